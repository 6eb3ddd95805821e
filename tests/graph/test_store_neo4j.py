"""What is Neo4j's alone: the lease, lost answers, refusals in one line, the graph that Graphiti reads."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace

import pytest

from kgray import times
from kgray.errors import Locked, SettingsError, StaleWriter, StoreError, Unavailable
from kgray.graph import Derived, Entity, Fact
from kgray.ingest import runner
from kgray.ingest.runner import Runner
from kgray.ports import Commit, Failed, Failure
from kgray.records import Mention, Operation
from kgray.search import Query, search
from kgray.stores.neo4j import erasing, fence
from kgray.stores.neo4j.connection import Connection
from tests.graph.by_hand import WIDTH, draft, gone, metadata, pointing, remove, tell, told
from tests.graph.engine import GROUP, SMALL, Engine, engine_on, in_group, triples, works
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
    return open_neo4j(**{**given, "embedder": "by-hand", "dimensions": WIDTH, **options})


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


def test_another_embedder_or_a_newer_schema_is_refused_and_nothing_is_changed(stores, neo4j_server, ask):
    stores.open()
    before = ask("MATCH (m:KgrayMeta) RETURN properties(m)")
    for options in ({"embedder": "other"}, {"dimensions": WIDTH + 1}):
        with pytest.raises(StoreError, match="was built with 'by-hand'"):
            opened(neo4j_server, **options)
    with pytest.raises(StoreError, match="at most 4096"):
        opened(neo4j_server, dimensions=5000)
    assert ask("MATCH (m:KgrayMeta) RETURN properties(m)") == before
    ask("MATCH (m:KgrayMeta) SET m.schema = 99")
    with pytest.raises(StoreError, match="upgrade kgray"):
        opened(neo4j_server)
    ask("MATCH (m:KgrayMeta) DELETE m")
    with pytest.raises(StoreError, match="kgray init"):
        opened(neo4j_server, create=False)


def test_an_index_that_somebody_dropped_is_missed(stores, ask):
    store = stores.open()
    assert store.missing() == []
    ask("DROP INDEX kgray_fact_source")
    ask("DROP INDEX edge_name_and_fact")
    assert store.missing() == ["edge_name_and_fact", "kgray_fact_source"]
    ask("MATCH (m:KgrayMeta) DELETE m")
    assert stores.open().missing() == []


def test_processes_that_found_a_database_at_once_make_it_together(stores, neo4j_server, ask):
    """Each holds the lock of a label that another waits for: who is rolled back tries again."""
    stores.open()
    for (name,) in ask("SHOW CONSTRAINTS YIELD name WHERE name STARTS WITH 'kgray_'"):
        ask(f"DROP CONSTRAINT {name}")
    ask("MATCH (m:KgrayMeta) DELETE m")

    def missing(_):
        with closing(opened(neo4j_server)) as store:
            return store.missing()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(missing, range(4))) == [[]] * 4


# ------------------------------------------------------------------------------------- the lease


def test_a_living_holder_is_named_and_a_dead_or_silent_one_is_followed(stores, ask):
    first, second = stores.open(), stores.open()
    first.accept([draft("a")], now=1)
    with first.writing() as epoch:
        with pytest.raises(Locked, match=r"process \d+ on .* is ingesting"), second.writing():
            pass
        ask("MATCH (s:KgrayShard) SET s.beat = s.beat - 11000")
        with second.writing() as newer:
            assert newer == epoch + 1
            with pytest.raises(StaleWriter, match="nothing was changed"):
                first.write([told(1, "Al", "one", 10)])
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    with second.writing() as newest:
        ask("MATCH (s:KgrayShard) SET s.pid = $pid, s.token = 'lost'", pid=dead.pid)
        with first.writing() as after:
            assert after == newest + 1


def test_who_adopts_an_epoch_follows_its_holder_at_once(stores):
    """A writer that was restarted goes on for its run; the one before it, should it still live, is stale."""
    first, second = stores.open(), stores.open()
    first.accept([draft("a")], now=1)
    with first.writing() as epoch:
        with second.writing(epoch=epoch) as same:
            assert same == epoch
            with pytest.raises(StaleWriter):
                first.write([told(1, "Al", "one", 10)])
            second.write([told(1, "Al", "one", 10)])
        with pytest.raises(StaleWriter), second.writing(epoch=epoch + 1):
            pass
    assert [head.sequence for head in first.records("g").heads] == [1]


def test_a_write_that_took_longer_than_the_lease_leaves_a_fresh_beat(stores, ask, monkeypatch):
    """Who waits for the shard's lock behind a long write must not find its living holder dead."""
    from kgray.stores.neo4j import fence, groups

    first, second = stores.open(), stores.open()
    first.accept([draft("a")], now=1)
    monkeypatch.setattr(fence, "_BEAT_S", 0.0)
    monkeypatch.setattr(fence, "_beat", lambda *_: None)
    keep = groups.keep

    def late(db, running, kept):
        """As if the write had begun a while ago."""
        db.run(running, "MATCH (s:KgrayShard) SET s.beat = s.beat - 11000")
        keep(db, running, kept)

    with first.writing():
        monkeypatch.setattr(groups, "keep", late)
        first.write([told(1, "Al", "one", 10)])
        with pytest.raises(Locked), second.writing():
            pass


def test_shards_are_held_one_by_one(stores):
    first, second = stores.open(), stores.open()
    with first.writing(shard=0) as one, second.writing(shard=1) as other:
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


def test_what_was_appended_before_its_answer_was_lost_is_not_appended_again(deaf):
    answers = deaf.accept([draft("a"), draft("b", client_id="c"), draft("a")], now=1)
    assert [(a.status, a.sequence) for a in answers] == [("accepted", 1), ("accepted", 2), ("duplicate", 1)]
    (answer,) = deaf.accept([draft("other", client_id="c")], now=1, replace=True)
    assert (answer.status, answer.sequence) == ("accepted", 4)
    assert deaf.request(Operation(group="g", kind="merge", entities=("x", "y")), now=1) == 5
    assert deaf.next_sequence("g") == 6
    assert [row.sequence for row in deaf.pending("g", 9)] == [1, 2, 3, 4, 5]
    with deaf.writing():
        deaf.write(
            [Failed(group="g", sequence=1, recorded_at=9, failure=Failure(kind="Refused", message="no"))]
        )
        assert [row.failure.attempts for row in deaf.failures("g")] == [1]
        assert deaf.retry("g", [], now=10) == 1
        assert deaf.next_sequence("g") == 7
        deaf.write([told(6, "Al", "one", 20)])
    assert [head.sequence for head in deaf.records("g").heads] == [6]


# -------------------------------------------------------------------------- the graph of Graphiti

SEEN = """
MATCH (e:Episodic) WHERE e.group_id = 'g'
OPTIONAL MATCH (e)-[m:MENTIONS]->(n:Entity)
RETURN e.name, e.content, e.source, n.uuid ORDER BY e.name, n.uuid
"""
KNOWN = """
MATCH (a:Entity)-[f:RELATES_TO]->(b) WHERE f.group_id = 'g'
RETURN a.name, f.name, f.fact, b.name, b:Entity, toString(f.valid_at), f.invalid_at, f.fact_embedding
ORDER BY f.uuid
"""


def test_graphitis_readers_find_what_means_the_same(stores, ask):
    store = stores.open()
    with store.writing():
        tell(store, "Al", "one", client_id="c1", metadata=metadata(a="b"))
        (accepted,) = store.accept([draft("Bo knows Al", kind="triples", client_id="c2")], now=1)
        commit = told(2, "Bo", "two", 20, episode=accepted.id)
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
    assert ask(SEEN) == [
        ["c1", "Al says one", "text", "E1"],
        ["c2", "Bo knows Al", "json", "E1"],
        ["c2", "Bo knows Al", "json", "E2"],
    ]
    moment = "1970-01-01T00:00:00.000005Z"
    first, second = (pointing(n).tolist() for n in (1, 2))
    assert ask(KNOWN) == [
        ["Al", "SAYS", "Al says one", "one", False, moment, None, first],
        ["Bo", "SAYS", "Bo says two", "two", False, moment, None, second],
        ["Bo", "KNOWS", "Bo knows Al", "Al", True, moment, None, second],
    ]
    assert ask("MATCH (n:Entity) RETURN n.uuid, n.summary, n.name_embedding ORDER BY n.uuid") == [
        ["E1", "", first],
        ["E2", "", second],
    ]


# Index, what is asked, the property shown, what is found.
GRAPHITIS_SEARCHES = [
    ("edge_name_and_fact", "two", "fact", "Bo says two"),
    ("node_name_and_content", "bo", "name", "Bo"),
    ("episode_content", "two", "content", "Bo says two"),
    ("community_name", "bo", "name", None),
]


def test_graphitis_searches_find_theirs_by_word_and_by_vector(stores, ask):
    """By the names of its indexes, which follow a commit within moments; and nothing of what was removed."""
    store = stores.open()

    def by_word(index, word, shown, _):
        ask("CALL db.index.fulltext.awaitEventuallyConsistentIndexRefresh()")
        kind, found = ("Relationships", "relationship") if shown == "fact" else ("Nodes", "node")
        query = f"CALL db.index.fulltext.query{kind}($index, $words) YIELD {found} AS x RETURN x.{shown}"
        return [row[0] for row in ask(query, index=index, words=f'group_id:"g" AND ({word})')]

    def by_vector():
        near = "9, $vector) YIELD {0} AS x WHERE x.group_id = 'g' RETURN x.{1} LIMIT 1"  # best first
        facts, names = near.format("relationship", "fact"), near.format("node", "name")
        vector = pointing(2).tolist()
        return [
            *ask(f"CALL db.index.vector.queryRelationships('kgray_fact_vectors', {facts}", vector=vector),
            *ask(f"CALL db.index.vector.queryNodes('kgray_entity_vectors', {names}", vector=vector),
        ]

    with store.writing():
        for name, value in (("Al", "one"), ("Bo", "two"), ("Cy", "three")):
            tell(store, name, value)
        tell(store, "Bo", "two", group="other")
        for search in GRAPHITIS_SEARCHES:
            assert by_word(*search) == [found for found in search[3:] if found]
        assert by_vector() == [["Bo says two"], ["Bo"]]
        remove(store, [2], episodes=("x",))
        assert [by_word(*search) for search in GRAPHITIS_SEARCHES] == [[]] * 4
        assert "Bo" not in str(by_vector())


def test_a_merge_and_a_retraction_move_and_hide_what_graphitis_readers_see(stores, ask):
    store = stores.open()
    with store.writing():
        tell(store, "Al", "one", client_id="c1")
        tell(store, "Bo", "two", client_id="c2")
        asked = Operation(group="g", kind="merge", entities=("E1", "E2"))
        merged = Derived(
            entities=(Entity(id="E1", name="Al", aliases=("Bo",), born=(1, 0)),),
            gone_entities=("E2",),
            facts=(replace(told(2, "Bo", "two", 20).derived.facts[0], source="E1"),),
            shown_entities=(("E2", "E1"),),
        )
        sequence = store.request(asked, now=1)
        store.write([Commit(group="g", sequence=sequence, recorded_at=50, derived=merged, operation=asked)])
        assert [row[::3] for row in ask(SEEN)] == [["c1", "E1"], ["c2", "E1"]]
        asked = Operation(group="g", kind="retract", episodes=("c1",))
        sequence = store.request(asked, now=1)
        retracted = Derived(gone_facts=("F1",))
        store.write(
            [
                Commit(
                    group="g",
                    sequence=sequence,
                    recorded_at=60,
                    derived=retracted,
                    operation=asked,
                    retired=(1,),
                )
            ]
        )
    assert [row[::3] for row in ask(SEEN)] == [["c2", "E1"]]
    assert [row[1] for row in ask("MATCH (v:Value) RETURN v.uuid, v.name")] == ["two"]


# --------------------------------------------------------------------------------- hard removal

EVERY_WORD = """
MATCH (n) RETURN labels(n) AS kinds, properties(n) AS held
UNION ALL MATCH ()-[r]->() RETURN [type(r)] AS kinds, properties(r) AS held
"""


def test_no_property_holds_a_word_of_what_was_removed(stores, ask):
    """R25: nothing of it is left in any node or relationship, derived, indexed or journaled."""
    store = stores.open()
    with store.writing():
        tell(store, "Kept", "keptvalue", client_id="keptclient")
        tell(
            store, "Zqname", "zqvalue", client_id="zqclient", source="zqsource", metadata=metadata(a="zqmeta")
        )
        assert "zq" in str(ask(EVERY_WORD)).lower()
        asked = Operation(group="g", kind="remove", episodes=("zqclient",))
        sequence = store.request(asked, now=1)
        done = Commit(
            group="g", sequence=sequence, recorded_at=90, operation=asked, erased=(2,), derived=gone(2),
            gone_births=("E2", "S2"),
        )  # fmt: skip
        store.write([done])
        left = str(ask(EVERY_WORD)).lower()
        assert "zq" not in left
        assert "kept" in left
        asked = Operation(group="g", kind="remove", everything=True)
        sequence = store.request(asked, now=1)
        store.write([Commit(group="g", sequence=sequence, recorded_at=99, operation=asked, forgotten=True)])
    nodes = "MATCH (n) WHERE NOT n:KgrayMeta RETURN labels(n)[0], n.group_id ORDER BY labels(n)[0]"
    assert [row[0] for row in ask(nodes)] == ["KgrayGroup", "KgrayOperation", "KgrayShard"]
    assert "'g'" not in str(ask(EVERY_WORD))
    assert store.groups() == []
    assert store.next_sequence("g") == 5
    assert store.compact() is False, "its bytes are in the server's files, which no client can clear"


@pytest.mark.parametrize("groups", [1, 40])
def test_a_look_whether_others_changed_the_groups_is_one_statement_however_many_they_are(
    stores, monkeypatch, groups
):
    """What is in memory is looked at anew at each run: thousands of groups are no thousands of questions."""
    engine = engine_on(stores)
    drafts = [in_group(triples(1, works("Acme")), f"g{n}") for n in range(groups)]
    engine.add(*drafts)
    committer = engine.loop.committer
    assert sum(committer.kept(draft.group) is not None for draft in drafts) == groups
    asked = []
    run = Connection.run
    monkeypatch.setattr(Connection, "run", lambda *a, **values: (asked.append(a[2]), run(*a, **values))[1])

    committer.forget_stale()

    assert len(asked) == 1
    assert all(committer.kept(draft.group) is not None for draft in drafts)


def test_episodes_gather_while_a_batch_is_on_its_way(stores):
    """What is decided while the server writes shares the next transaction."""
    engine = engine_on(stores)
    drafts = [triples(n, works(f"Firm {n}"), client_id=f"c{n}") for n in range(60)]
    engine.accept(*drafts)
    write, batches = engine.store.write, []
    engine.store.write = lambda batch: (batches.append(len(batch)), write(batch))
    with engine.store.writing():
        totals = asyncio.run(Runner(replace(engine.parts, window=64)).run())

    assert totals.committed == 60
    assert max(batches) <= engine.store.batch
    assert len(batches) <= 20


def test_a_run_that_leaves_while_a_batch_is_on_its_way_loses_and_doubles_nothing(stores, monkeypatch):
    """R21, R24: the batch arrives after its run has given up the store; the next run finds it done."""
    engine = engine_on(stores)
    drafts = [triples(n, works(f"Firm {n}"), client_id=f"c{n}") for n in range(12)]
    engine.add(*drafts)
    expected = engine.dump()
    engine = engine_on(stores)
    engine.accept(*drafts)
    on_its_way = threading.Event()
    late = fence.renew_late

    def slowly(*words):
        on_its_way.set()
        time.sleep(0.5)
        late(*words)

    async def leave():
        with engine.store.writing():
            return await Runner(engine.parts).run(stop=on_its_way.is_set)

    monkeypatch.setattr(fence, "renew_late", slowly)
    monkeypatch.setattr(runner, "GRACE_S", 0.01)
    left = asyncio.run(leave())
    monkeypatch.setattr(fence, "renew_late", late)
    assert left.committed < 12
    engine.run()

    assert engine.store.pending_count() == 0
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
    asked = Operation(group=GROUP, kind="remove", everything=True)
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
        people = engine.store.entities_named(GROUP, "Alice")
        at = {fact.id for fact in engine.store.view(GROUP).facts_at([p.id for p in people], None, None)}
        hits = asyncio.run(search(engine.store, SMALL, Query(text="Alice works", group=GROUP, any_time=True)))
        assert {hit.id for hit in hits if hit.scope == "fact"} <= at

    runs = 0
    while engine.store.pending_count():
        runs += 1
        with suppress(Killed):
            Engine(store=engine.store).run()
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
