"""What is Neo4j's alone: the lease, lost answers, refusals in one line, the graph that Graphiti reads.

What needs a whole database is in test_neo4j_whole.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace

import pytest

from kgray import times
from kgray.errors import Locked, SettingsError, StaleWriter, Unavailable
from kgray.graph import Derived, Entity, Fact
from kgray.ingest import runner
from kgray.ingest.runner import Runner
from kgray.ports import Commit, Failed, Failure
from kgray.records import Mention, Operation
from kgray.search import Query, search
from kgray.stores.neo4j import erasing, fence
from kgray.stores.neo4j.connection import Connection
from tests.graph.by_hand import EMBEDDER, WIDTH, draft, metadata, pointing, tell, told
from tests.graph.engine import SMALL, Engine, engine_on, in_group, triples, works
from tests.graph.stores import Neo4jStores

pytestmark = pytest.mark.neo4j


@pytest.fixture
def stores(neo4j_server, neo4j_driver):
    made = Neo4jStores(neo4j_server, neo4j_driver)
    yield made
    made.close()


@pytest.fixture
def ask(neo4j_driver):
    """Return a function that asks the database as another tool would: rows of a query."""

    def asked(query, **values):
        return [record.values() for record in neo4j_driver.execute_query(query, values).records]

    return asked


def opened(server, **options):
    """Open the database of the tests with other options."""
    from kgray.stores.neo4j import open_neo4j

    given = {"uri": server.uri, "user": server.user, "password": server.password}
    return open_neo4j(**{**given, "embedder": EMBEDDER, "dimensions": WIDTH, **options})


# ------------------------------------------------------------------------------------- refusals


def test_a_wrong_password_is_one_line_that_names_the_setting_and_not_the_password(neo4j_server):
    with pytest.raises(SettingsError) as refused:
        opened(neo4j_server, password="hush-hush")  # noqa: S106
    assert "store.password" in str(refused.value)
    assert "hush" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_server_that_does_not_answer_is_unavailable_at_once(neo4j_server):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(Unavailable, match=rf"127\.0\.0\.1:{port} \(user 'neo4j'\)"):
        opened(neo4j_server, uri=f"bolt://127.0.0.1:{port}", user="neo4j")


@pytest.mark.parametrize(
    "uri", ["http://127.0.0.1:1", "nowhere", "bolt://[::1", "bolt://user:hush-hush@127.0.0.1:1"]
)
def test_a_uri_that_cannot_be_used_is_named_without_what_it_hides(neo4j_server, uri):
    with pytest.raises((SettingsError, Unavailable)) as refused:
        opened(neo4j_server, uri=uri)
    assert "hush" not in str(refused.value)


def test_a_database_that_is_not_there_is_named_by_its_setting(neo4j_server):
    with pytest.raises(SettingsError, match=r"store\.database"):
        opened(neo4j_server, database="elsewhere")


# ------------------------------------------------------------------------------------- the lease


def test_a_living_holder_is_named_and_a_dead_or_silent_one_is_followed(stores, ask, group):
    first, second = stores.open(), stores.open()
    first.accept([draft("a", group=group)], now=1)
    with first.writing() as epoch:
        with pytest.raises(Locked, match=r"process \d+ on .* is ingesting"), second.writing():
            pass
        ask("MATCH (s:KgrayShard {id: $id}) SET s.beat = s.beat - 11000", id=str(stores.shard))
        with second.writing() as newer:
            assert newer == epoch + 1
            with pytest.raises(StaleWriter, match="nothing was changed"):
                first.write([told(1, "Al", "one", 10, group=group)])
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    with second.writing() as newest:
        ask(
            "MATCH (s:KgrayShard {id: $id}) SET s.pid = $pid, s.token = 'lost'",
            id=str(stores.shard),
            pid=dead.pid,
        )
        with first.writing() as after:
            assert after == newest + 1


def test_who_adopts_an_epoch_follows_its_holder_at_once(stores, group):
    """A writer that was restarted goes on for its run; the one before it, should it still live, is stale."""
    first, second = stores.open(), stores.open()
    first.accept([draft("a", group=group)], now=1)
    with first.writing() as epoch:
        with second.writing(epoch=epoch) as same:
            assert same == epoch
            with pytest.raises(StaleWriter):
                first.write([told(1, "Al", "one", 10, group=group)])
            second.write([told(1, "Al", "one", 10, group=group)])
        with pytest.raises(StaleWriter), second.writing(epoch=epoch + 1):
            pass
    assert [head.sequence for head in first.records(group).heads] == [1]


def test_a_write_that_took_longer_than_the_lease_leaves_a_fresh_beat(stores, ask, monkeypatch, group):
    """Who waits for the shard's lock behind a long write must not find its living holder dead."""
    from kgray.stores.neo4j import fence, groups

    first, second = stores.open(), stores.open()
    first.accept([draft("a", group=group)], now=1)
    monkeypatch.setattr(fence, "_BEAT_S", 0.0)
    monkeypatch.setattr(fence, "_beat", lambda *_: None)
    keep = groups.keep

    def late(db, running, kept):
        """As if the write had begun a while ago."""
        beat = "MATCH (s:KgrayShard {id: $id}) SET s.beat = s.beat - 11000"
        db.run(running, beat, id=str(stores.shard))
        keep(db, running, kept)

    with first.writing():
        monkeypatch.setattr(groups, "keep", late)
        first.write([told(1, "Al", "one", 10, group=group)])
        with pytest.raises(Locked), second.writing():
            pass


def test_shards_are_held_one_by_one(stores):
    first, second = stores.open(), stores.open()
    here, beside = 100 + stores.shard, 200 + stores.shard
    with first.writing(shard=here) as one, second.writing(shard=beside) as other:
        assert (one, other) == (1, 1)


# --------------------------------------------------------------------------------- lost answers


@pytest.fixture
def deaf(stores, monkeypatch):
    """Open a store whose commits all succeed, and whose first answers are lost: everything is sent again."""
    store = stores.open()
    write = store._db.write

    def again(work, **options):
        write(work, **options)
        return write(lambda running, _: work(running, 1), **options)

    monkeypatch.setattr(store._db, "write", again)
    return store


def test_what_was_appended_before_its_answer_was_lost_is_not_appended_again(deaf, group):
    answers = deaf.accept(
        [draft("a", group=group), draft("b", client_id="c", group=group), draft("a", group=group)], now=1
    )
    assert [(a.status, a.sequence) for a in answers] == [("accepted", 1), ("accepted", 2), ("duplicate", 1)]
    (answer,) = deaf.accept([draft("other", client_id="c", group=group)], now=1, replace=True)
    assert (answer.status, answer.sequence) == ("accepted", 4)
    assert deaf.request(Operation(group=group, kind="merge", entities=("x", "y")), now=1) == 5
    assert deaf.next_sequence(group) == 6
    assert [row.sequence for row in deaf.pending(group, 9)] == [1, 2, 3, 4, 5]
    with deaf.writing():
        deaf.write(
            [Failed(group=group, sequence=1, recorded_at=9, failure=Failure(kind="Refused", message="no"))]
        )
        assert [row.failure.attempts for row in deaf.failures(group)] == [1]
        assert deaf.retry(group, [], now=10) == 1
        assert deaf.next_sequence(group) == 7
        deaf.write([told(6, "Al", "one", 20, group=group)])
    assert [head.sequence for head in deaf.records(group).heads] == [6]


# -------------------------------------------------------------------------- the graph of Graphiti

SEEN = """
MATCH (e:Episodic) WHERE e.group_id = $group
OPTIONAL MATCH (e)-[m:MENTIONS]->(n:Entity)
RETURN e.name, e.content, e.source, n.uuid ORDER BY e.name, n.uuid
"""
KNOWN = """
MATCH (a:Entity)-[f:RELATES_TO]->(b) WHERE f.group_id = $group
RETURN a.name, f.name, f.fact, b.name, b:Entity, toString(f.valid_at), f.invalid_at, f.fact_embedding
ORDER BY f.uuid
"""
ENTITIES = "MATCH (n:Entity {group_id: $group}) RETURN n.uuid, n.summary, n.name_embedding ORDER BY n.uuid"
VALUES = "MATCH (v:Value {group_id: $group}) RETURN v.uuid, v.name"


def test_graphitis_readers_find_what_means_the_same(stores, ask, group):
    store = stores.open()
    with store.writing():
        tell(store, "Al", "one", client_id="c1", metadata=metadata(a="b"), group=group)
        (accepted,) = store.accept([draft("Bo knows Al", kind="triples", client_id="c2", group=group)], now=1)
        commit = told(2, "Bo", "two", 20, episode=accepted.id, group=group)
        knows = Fact(
            id="F3", statement="S2", source="E2", relation="KNOWS", text="Bo knows Al", created_at=20,
            target="E1", valid_at=5, episodes=(accepted.id,),
        )  # fmt: skip
        mention = Mention(sequence=2, ordinal=1, surface="Al", entity="E1")
        store.write(
            [
                replace(
                    commit,
                    mentions=(*commit.mentions, mention),
                    derived=replace(commit.derived, facts=(*commit.derived.facts, knows)),
                )
            ]
        )
    assert ask(SEEN, group=group) == [
        ["c1", "Al says one", "text", "E1"],
        ["c2", "Bo knows Al", "json", "E1"],
        ["c2", "Bo knows Al", "json", "E2"],
    ]
    moment = "1970-01-01T00:00:00.000005Z"
    first, second = (pointing(n).tolist() for n in (1, 2))
    assert ask(KNOWN, group=group) == [
        ["Al", "SAYS", "Al says one", "one", False, moment, None, first],
        ["Bo", "SAYS", "Bo says two", "two", False, moment, None, second],
        ["Bo", "KNOWS", "Bo knows Al", "Al", True, moment, None, second],
    ]
    assert ask(ENTITIES, group=group) == [
        ["E1", "", first],
        ["E2", "", second],
    ]


def test_a_merge_and_a_retraction_move_and_hide_what_graphitis_readers_see(stores, ask, group):
    store = stores.open()
    with store.writing():
        tell(store, "Al", "one", client_id="c1", group=group)
        tell(store, "Bo", "two", client_id="c2", group=group)
        asked = Operation(group=group, kind="merge", entities=("E1", "E2"))
        merged = Derived(
            entities=(Entity(id="E1", name="Al", aliases=("Bo",), born=(1, 0)),),
            gone_entities=("E2",),
            facts=(replace(told(2, "Bo", "two", 20, group=group).derived.facts[0], source="E1"),),
            shown_entities=(("E2", "E1"),),
        )
        sequence = store.request(asked, now=1)
        store.write([Commit(group=group, sequence=sequence, recorded_at=50, derived=merged, operation=asked)])
        assert [row[::3] for row in ask(SEEN, group=group)] == [["c1", "E1"], ["c2", "E1"]]
        asked = Operation(group=group, kind="retract", episodes=("c1",))
        sequence = store.request(asked, now=1)
        retracted = Derived(gone_facts=("F1",))
        store.write(
            [
                Commit(
                    group=group,
                    sequence=sequence,
                    recorded_at=60,
                    derived=retracted,
                    operation=asked,
                    retired=(1,),
                )
            ]
        )
    assert [row[::3] for row in ask(SEEN, group=group)] == [["c2", "E1"]]
    assert [row[1] for row in ask(VALUES, group=group)] == ["two"]


@pytest.mark.parametrize("groups", [1, 12])
def test_a_look_whether_others_changed_the_groups_is_one_statement_however_many_they_are(
    stores, monkeypatch, groups
):
    """What is in memory is looked at anew at each run: thousands of groups are no thousands of questions."""
    engine = engine_on(stores)
    drafts = [in_group(triples(1, works("Acme")), f"g{n}") for n in range(groups)]
    engine.add(*drafts)
    committer = engine.loop.committer
    names = [engine.named(draft.group) for draft in drafts]
    assert [name for name in names if committer.kept(name) is None] == []
    asked = []
    run = Connection.run
    monkeypatch.setattr(Connection, "run", lambda *a, **values: (asked.append(a[2]), run(*a, **values))[1])

    committer.forget_stale()

    assert len(asked) == 1
    assert [name for name in names if committer.kept(name) is None] == []


def test_episodes_gather_while_a_batch_is_on_its_way(stores):
    """What is decided while the server writes shares the next transaction."""
    engine = engine_on(stores)
    drafts = [triples(n, works(f"Firm {n}"), client_id=f"c{n}") for n in range(60)]
    engine.accept(*drafts)
    write, batches = engine.store.write, []
    engine.store.write = lambda batch: (batches.append(len(batch)), write(batch))
    with engine.store.writing():
        totals = asyncio.run(Runner(replace(engine.parts, window=64)).run(groups=[engine.named()]))

    assert totals.committed == 60
    assert max(batches) <= engine.store.batch
    assert len(batches) <= 20


def test_a_run_that_leaves_while_a_batch_is_on_its_way_loses_and_doubles_nothing(
    stores, monkeypatch, tmp_path
):
    """R21, R24: the batch arrives after its run has given up the store; the next run finds it done."""
    engine = engine_on(stores)
    drafts = [triples(n, works(f"Firm {n}"), client_id=f"c{n}") for n in range(12)]
    undisturbed = Engine(tmp_path, prefix=engine.prefix)
    undisturbed.add(*drafts)
    expected = undisturbed.dump()
    engine.accept(*drafts)
    on_its_way = threading.Event()
    late = fence.renew_late

    def slowly(*words):
        on_its_way.set()
        time.sleep(0.5)
        late(*words)

    async def leave():
        with engine.store.writing():
            return await Runner(engine.parts).run(groups=[engine.named()], stop=on_its_way.is_set)

    monkeypatch.setattr(fence, "renew_late", slowly)
    monkeypatch.setattr(runner, "GRACE_S", 0.01)
    left = asyncio.run(leave())
    monkeypatch.setattr(fence, "renew_late", late)
    assert left.committed < 12
    engine.run()

    assert engine.store.pending_count(engine.named()) == 0
    assert engine.dump() == expected


class Killed(BaseException):
    """The process ends here."""


def test_a_large_group_is_removed_in_pieces_and_whoever_comes_next_goes_on(stores, monkeypatch):
    """R25, R27: more than the server's heap would hold goes in parts; what comes after it stays."""
    monkeypatch.setattr(erasing, "AT_ONCE", 4)
    monkeypatch.setattr(erasing, "ROWS_AT_ONCE", 6)
    told = [triples(n, works(f"Firm {n}"), client_id=f"c{n}") for n in range(8)]
    engine = engine_on(stores)
    engine.add(in_group(told[0], "other"), *told)
    firms = [entity.id for entity in engine.view().all_entities() if entity.name in ("Firm 1", "Firm 2")]
    engine.ask("merge", entities=tuple(firms))
    other = engine.dump(group="other")
    asked = Operation(group=engine.named(), kind="remove", everything=True)
    engine.store.request(asked, now=times.now())
    engine.accept(triples(20, works("Beta"), client_id="later"))
    lock, pieces = erasing.locked, 0

    def locked(*words, **named):
        nonlocal pieces
        pieces += 1
        if pieces % 4 == 0:
            raise Killed
        return lock(*words, **named)

    monkeypatch.setattr(erasing, "locked", locked)
    written = []
    write = engine.store.write
    monkeypatch.setattr(engine.store, "write", lambda batch: (written.append(batch), write(batch)))

    def reads(engine):
        """Readers see a group of which less was said, and no error."""
        engine.dump()
        people = engine.store.entities_named(engine.named(), "Alice")
        at = {
            fact.id for fact in engine.store.view(engine.named()).facts_at([p.id for p in people], None, None)
        }
        query = Query(text="Alice works", group=engine.named(), any_time=True)
        hits = asyncio.run(search(engine.store, SMALL, query))
        assert {hit.id for hit in hits if hit.scope == "fact"} <= at

    runs = 0
    while engine.store.pending_count(engine.named()):
        runs += 1
        with suppress(Killed):
            Engine(store=engine.store, prefix=engine.prefix).run()
        reads(engine)

    assert runs > 2, "it was never ended in the middle"
    assert engine.spans() == {"Beta": [(20, None)]}
    assert engine.dump(group="other") == other
    before = engine.dump()
    monkeypatch.setattr(erasing, "locked", lock)
    with engine.store.writing():
        for batch in written:
            write(batch)
    assert engine.dump() == before
