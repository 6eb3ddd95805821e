"""Properties of Neo4j alone: the lease, lost answers, refusals in one line, the graph that Graphiti reads.

Tests that need a whole database are in test_neo4j_whole.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import pytest

from kgray.domain.graph import Entity, Fact
from kgray.domain.records import Operation
from kgray.errors import Locked, Outrun, SettingsError, StaleWriter, StoreError, Unavailable
from kgray.graph.stored import StoredView
from kgray.ingest import runner
from kgray.ingest.runner import Runner
from kgray.ports import Patch, at_one_moment
from kgray.schema import kinds, rows
from kgray.schema.kinds import KINDS
from kgray.search import Query, Searcher
from kgray.storage.ledger import accept, failures, pending, request, result, retry_failed
from kgray.storage.neo4j import groups as grouped
from kgray.storage.neo4j.connection import Connection
from kgray.storage.transactions import slot_of
from tests.graph.by_hand import (
    all_of,
    append,
    draft,
    ended,
    everything,
    failed,
    head,
    metadata,
    remove,
    small,
    statement_commit,
    tell,
)
from tests.graph.by_hand import ask as asked_for
from tests.graph.engine import SMALL, Engine, engine_on, in_group, triples, works
from tests.graph.stores import Neo4jStores, opened
from tests.waiting import HANGS_S

pytestmark = pytest.mark.neo4j


@pytest.fixture
def stores(neo4j_server, neo4j_driver):
    maker = Neo4jStores(neo4j_server, neo4j_driver)
    yield maker
    maker.close()


# ------------------------------------------------------------------------------------- refusals


def test_a_wrong_password_error_names_the_setting_and_not_the_password(neo4j_server):
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
def test_an_unusable_uri_is_named_without_its_secrets(neo4j_server, uri):
    with pytest.raises((SettingsError, Unavailable)) as refused:
        opened(neo4j_server, uri=uri)
    assert "hush" not in str(refused.value)


def test_a_missing_database_is_named_by_its_setting(neo4j_server):
    with pytest.raises(SettingsError, match=r"store\.database"):
        opened(neo4j_server, database="elsewhere")


# ------------------------------------------------------------------------------------- the lease


def test_a_live_lease_holder_is_named_and_a_dead_holder_is_replaced(stores, ask, group):
    first, second = stores.open(), stores.open()
    append(first, draft("a", group=group))
    with first.writing() as epoch:
        with pytest.raises(Locked, match=r"process \d+ on .* is ingesting"), second.writing():
            pass
        ask("MATCH (o:KgrayShard {id: 0}) SET o.beat = o.beat - 11000")
        with second.writing() as newer:
            assert newer == epoch + 1
            with pytest.raises(StaleWriter, match="nothing was changed"):
                first.apply([statement_commit(1, "Al", "one", 10, group=group)])
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    with second.writing() as newest:
        ask("MATCH (o:KgrayShard {id: 0}) SET o.pid = $pid, o.token = 'lost'", pid=dead.pid)
        with first.writing() as next_epoch:
            assert next_epoch == newest + 1


def test_an_adopted_epoch_makes_its_former_holder_stale_at_once(stores, group):
    """A restarted writer continues its run; its predecessor is stale, even if it is still alive."""
    first, second = stores.open(), stores.open()
    append(first, draft("a", group=group))
    with first.writing() as epoch:
        with second.writing(epoch=epoch) as same_epoch:
            assert same_epoch == epoch
            with pytest.raises(StaleWriter):
                first.apply([statement_commit(1, "Al", "one", 10, group=group)])
            second.apply([statement_commit(1, "Al", "one", 10, group=group)])
        with pytest.raises(StaleWriter), second.writing(epoch=epoch + 1):
            pass
    results = [(row.sequence, row.state) for row in all_of(first, kinds.EPISODES, group)]
    assert results == [(1, kinds.COMMITTED)]


def test_the_lease_is_renewed_while_a_write_takes_long(stores, ask, monkeypatch, group):
    """Nobody waits for the write's locks to read that its process lives."""
    from kgray.storage.neo4j import fence, groups

    first, second = stores.open(), stores.open()
    append(first, draft("a", group=group))
    monkeypatch.setattr(fence, "BEAT_S", 0.05)
    rows_of, events = groups.group_rows, list[str]()
    beat = "MATCH (o:KgrayShard {id: 0}) RETURN o.beat > $since"

    def late(counters):
        """Pretend that the write began some seconds ago."""
        events.append("write")
        ask("MATCH (o:KgrayShard {id: 0}) SET o.beat = o.beat - 11000")
        ((started,),) = ask("RETURN timestamp() - 5000")
        deadline = time.monotonic() + 20
        while ask(beat, since=started) != [[True]] and time.monotonic() < deadline:
            time.sleep(0.02)
        with pytest.raises(Locked), second.writing():
            pass
        return rows_of(counters)

    with first.writing():
        monkeypatch.setattr(groups, "group_rows", late)
        first.apply([statement_commit(1, "Al", "one", 10, group=group)])
    assert events == ["write"]


def test_writes_of_different_groups_do_not_wait_for_each_other(stores, monkeypatch, group, other_group):
    from kgray.storage.neo4j import groups

    store = stores.open()
    append(store, draft("a", group=group), draft("b", group=other_group))
    rows_of, events = groups.group_rows, list[str]()

    def late(counters):
        """Delay the first write: the second begins and ends during the first."""
        events.append("write")
        if len(events) == 1:
            pool.submit(store.apply, [statement_commit(1, "Bo", "two", 10, group=other_group)]).result(
                timeout=30
            )
            assert store.pending_count(other_group) == 0
            assert store.pending_count(group) == 1
        return rows_of(counters)

    with store.writing(), ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(groups, "group_rows", late)
        store.apply([statement_commit(1, "Al", "one", 10, group=group)])
    assert events == ["write", "write"]
    assert store.pending_count(group) == 0


def test_each_shard_has_its_own_lease(stores):
    first, second = stores.open(), stores.open()
    with first.writing(shard=1, shards=3) as first_epoch, second.writing(shard=2, shards=3) as second_epoch:
        assert min(first_epoch, second_epoch) > 0
    with first.writing(shard=0, shards=1):  # as the database of the other tests is divided
        pass


# --------------------------------------------------------------------------------- lost answers


@pytest.fixture
def deaf(stores, monkeypatch):
    """Open a store whose commits all succeed, and whose first answers are lost: everything is sent again."""
    from kgray.storage.neo4j.connection import Connection

    store, write = stores.open(), Connection.write

    def write_twice(connection, work, **options):
        write(connection, work, **options)
        return write(connection, work, **options)

    monkeypatch.setattr(Connection, "write", write_twice)
    return store


def test_an_append_is_not_repeated_after_a_lost_answer(deaf, ask, group):
    sent = [draft("a", group=group), draft("b", client_id="c", group=group), draft("a", group=group)]
    answers = accept(deaf, sent, now=1)
    assert [(a.status, a.sequence) for a in answers] == [("accepted", 1), ("accepted", 2), ("duplicate", 1)]
    (answer,) = accept(deaf, [draft("other", client_id="c", group=group)], now=1, replace=True)
    assert (answer.status, answer.sequence) == ("accepted", 4)
    assert request(deaf, Operation(group=group, kind="merge", entities=("x", "y"))) == 5
    assert head(deaf, group).last == 5
    assert [row.sequence for row in pending(deaf, group, 9)] == [1, 2, 3, 4, 5]
    with deaf.writing():
        deaf.apply([failed(1, 9, group=group)])
        assert [row.failure.attempts for row in failures(deaf, group)] == [1]
        assert retry_failed(deaf, group, [], now=10) == 1
        assert head(deaf, group).last == 6
        deaf.apply([statement_commit(6, "Al", "one", 20, group=group)])
    states = [(row.sequence, row.state) for row in all_of(deaf, kinds.EPISODES, group)]
    assert states == [(1, kinds.FAILED), (2, kinds.ACCEPTED), (4, kinds.ACCEPTED), (6, kinds.COMMITTED)]
    (thread,) = deaf._threads
    noted = "MATCH (c:KgrayCall {id: $id}) RETURN count(c)"
    assert ask(noted, id=thread) == [[1]], "of a thread's appends the last one alone is noted"
    deaf.close()
    assert ask(noted, id=thread) == [[0]]


# -------------------------------------------------------------------------- the graph of Graphiti

EPISODE_ROWS = """
MATCH (e:Episodic) WHERE e.group_id = $group
OPTIONAL MATCH (e)-[m:MENTIONS]->(n:Entity)
RETURN e.name, e.content, e.source, n.uuid ORDER BY e.name, n.uuid
"""
FACT_ROWS = """
MATCH (a:Entity)-[f:RELATES_TO]->(b) WHERE f.group_id = $group
RETURN a.name, f.name, f.fact, b.name, b:Entity, toString(f.valid_at), f.invalid_at
ORDER BY f.uuid
"""
ENTITIES = "MATCH (n:Entity {group_id: $group}) RETURN n.uuid, n.summary ORDER BY n.uuid"
EDGES = "MATCH (e:Episodic {group_id: $group}) RETURN e.name, e.entity_edges ORDER BY e.name"
VALUES = "MATCH (v:Value {group_id: $group}) RETURN v.uuid, v.name"


def with_rows(change, extra_rows):
    """Return the changes with more rows of some kinds."""
    puts = {**change.puts, **{kind: [*change.puts.get(kind, ()), *rows] for kind, rows in extra_rows.items()}}
    return replace(change, puts=puts)


def test_graphitis_readers_find_equivalent_rows(stores, ask, group):
    store = stores.open()
    with store.writing():
        tell(store, "Al", "one", client_id="c1", metadata=metadata(a="b"), group=group)
        sent = draft("Bo knows Al", kind="triples", client_id="c2", group=group)
        append(store, sent)
        knows = Fact(
            id="F3", statement="S2", source="E2", relation="KNOWS", text="Bo knows Al", created_at=20,
            target="E1", valid_at=5, episodes=(sent.id,),
        )  # fmt: skip
        extra_rows = {kinds.MENTIONS: [("E1", 2)], kinds.FACTS: [rows.fact_row(knows)]}
        store.apply([with_rows(statement_commit(2, "Bo", "two", 20, group=group, sent=sent), extra_rows)])
    assert ask(EDGES, group=group) == [["c1", ["F1"]], ["c2", ["F2", "F3"]]]
    assert ask(EPISODE_ROWS, group=group) == [
        ["c1", "Al says one", "text", "E1"],
        ["c2", "Bo knows Al", "json", "E1"],
        ["c2", "Bo knows Al", "json", "E2"],
    ]
    moment = "1970-01-01T00:00:00.000005Z"
    assert ask(FACT_ROWS, group=group) == [
        ["Al", "SAYS", "Al says one", "one", False, moment, None],
        ["Bo", "SAYS", "Bo says two", "two", False, moment, None],
        ["Bo", "KNOWS", "Bo knows Al", "Al", True, moment, None],
    ]
    assert ask(ENTITIES, group=group) == [["E1", ""], ["E2", ""]]


def test_a_merge_and_a_retraction_move_and_hide_rows_for_graphitis_readers(stores, ask, group):
    store = stores.open()
    with store.writing():
        tell(store, "Al", "one", client_id="c1", group=group)
        tell(store, "Bo", "two", client_id="c2", group=group)
        operation = Operation(group=group, kind="merge", entities=("E1", "E2"))
        (fact,) = statement_commit(2, "Bo", "two", 20, group=group).puts[kinds.FACTS]
        merged = {
            kinds.ENTITIES: [rows.entity_row(Entity(id="E1", name="Al", aliases=("Bo",), born=(1, 0)))],
            kinds.FACTS: [fact._replace(source="E1")],
            kinds.SHOWN_ENTITIES: [("E2", "E1")],
            kinds.MENTIONS: [("E1", 2)],
        }
        operation = replace(operation, sequence=asked_for(store, operation))
        drops = {kinds.ENTITIES: [("E2",)], kinds.MENTIONS: [("E2", 2)]}
        store.apply([ended(operation, 50, puts=merged, drops=drops)])
        assert [row[::3] for row in ask(EPISODE_ROWS, group=group)] == [["c1", "E1"], ["c2", "E1"]]
        operation = Operation(group=group, kind="retract", episodes=("c1",))
        operation = replace(operation, sequence=asked_for(store, operation))
        retired = Patch(kind=kinds.EPISODES, columns=("retired_at",), rows=((1, 60),))
        drops = {kinds.FACTS: [("F1",)], kinds.MENTIONS: [("E1", 1)]}
        store.apply([ended(operation, 60, drops=drops, patches=(retired,))])
    assert [row[::3] for row in ask(EPISODE_ROWS, group=group)] == [["c2", "E1"]]
    assert [row[1] for row in ask(VALUES, group=group)] == ["two"]


def test_a_copy_is_complete_after_lost_answers(deaf, tmp_path, ask, group):
    """Each portion is written twice, and each edge exists once."""
    source = small(tmp_path / "source")
    with source.writing():
        tell(source, "Al", "one", group=group, client_id="c1")
    source_rows = [(kind, row) for kind in KINDS for row in source.rows(kind.all, group)]
    with deaf.writing():
        deaf.adopt(group, head(source, group), source_rows, lambda: None)
    assert everything(deaf, group) == everything(source, group)
    assert ask(EPISODE_ROWS, group=group) == [["c1", "Al says one", "text", "E1"]]
    assert ask(EDGES, group=group) == [["c1", ["F1"]]]
    source.close()


@pytest.mark.parametrize("groups", [1, 12])
def test_one_query_checks_all_groups_for_foreign_changes(stores, monkeypatch, groups):
    """Each run checks all groups in memory with one query."""
    engine = engine_on(stores)
    drafts = [in_group(triples(1, works("Acme")), f"g{n}") for n in range(groups)]
    engine.add(*drafts)
    committer = engine.loop.committer
    names = [engine.named(draft.group) for draft in drafts]
    assert [name for name in names if committer.kept(name) is None] == []
    statements = []
    run = Connection.run
    monkeypatch.setattr(
        Connection, "run", lambda *a, **values: (statements.append(a[2]), run(*a, **values))[1]
    )

    asyncio.run(committer.forget_stale())

    assert len(statements) == 1
    assert [name for name in names if committer.kept(name) is None] == []


def test_decisions_during_a_write_share_the_next_batch(stores):
    """Decisions made while the server writes share the next transaction."""
    engine = engine_on(stores)
    drafts = [triples(n, works(f"Firm {n}"), client_id=f"c{n}") for n in range(60)]
    engine.accept(*drafts)
    write, batches = engine.store.apply, []
    engine.store.apply = lambda batch: (batches.append(len(batch)), write(batch))
    with engine.store.writing():
        totals = asyncio.run(Runner(replace(engine.parts, window=64)).run(groups=[engine.named()]))

    assert totals.committed == 60
    assert max(batches) <= engine.store.batch
    assert len(batches) < 60
    assert max(batches[1:]) > 1, "the first has what was extracted; how many share one is the server's speed"


def test_a_run_that_stops_during_a_write_loses_and_repeats_no_episodes(
    stores, neo4j_driver, monkeypatch, tmp_path
):
    """R21, R24: the batch arrives after its run has given up waiting for it; the next run finds it done."""
    engine = engine_on(stores)
    drafts = [triples(n, works(f"Firm {n}"), client_id=f"c{n}") for n in range(12)]
    undisturbed = Engine(tmp_path, prefix=engine.prefix)
    undisturbed.add(*drafts)
    expected = undisturbed.dump()
    engine.accept(*drafts)
    apply, on_its_way = engine.store.apply, threading.Event()
    engine.store.apply = lambda batch: (on_its_way.set(), apply(batch))[1]
    monkeypatch.setattr(runner, "GRACE_S", 0.01)

    async def leave():
        with engine.store.writing(), neo4j_driver.session() as session:
            with (
                session.begin_transaction() as lock
            ):  # the batch cannot be written before this transaction ends
                slot = slot_of(engine.named())
                lock.run("MATCH (s:KgraySlot {slot: $slot}) SET s.locked = true", slot=slot).consume()
                totals = await Runner(engine.parts).run(groups=[engine.named()], stop=on_its_way.is_set)
                lock.rollback()
            return totals

    outcome = asyncio.run(leave())
    del engine.store.apply
    assert outcome.committed < 12
    engine.run()

    assert engine.store.pending_count(engine.named()) == 0
    assert engine.dump() == expected


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
def small_pieces(monkeypatch):
    """Let few rows be too many for one transaction."""
    monkeypatch.setattr(grouped, "ROWS_A_PIECE", 6)


@pytest.fixture
def killed(monkeypatch, stores):
    """Return a function that ends the process after a number of pieces of our groups' removals."""
    clear, pieces_left = grouped.clear_rows, [1 << 62]

    def clear_rows(db, running, group, *words):
        pieces_left[0] -= group.startswith(stores.prefix)
        if pieces_left[0] < 0:
            raise Killed
        return clear(db, running, group, *words)

    monkeypatch.setattr(grouped, "clear_rows", clear_rows)

    def end_after(pieces):
        pieces_left[0] = pieces

    return end_after


def test_a_large_group_is_removed_in_pieces_and_invisible_from_the_first(stores, small_pieces, killed, group):
    """R25, R27: a group beyond the server's heap is removed in pieces; a killed process loses nothing."""
    store = stores.open()
    with store.writing():
        tell(store, "Al", "one", group=group, client_id="c1")
        tell(store, "Bo", "two", group=group)
        nothing = everything(store, f"{group}-none")
        killed(pieces=2)
        with pytest.raises(Killed):
            remove(store, [], group=group, everything=True)
    assert all_of(store, kinds.MENTIONS, group) == []
    contents = everything(stores.open(), group)
    assert contents.pop("head") == replace(head(store, group), named=False, last=3, removals=0)
    nothing.pop("head")
    assert {name: value for name, value in contents.items() if name != "counts"} == {
        name: value for name, value in nothing.items() if name != "counts"
    }
    assert list(contents["counts"].values()) == list(nothing["counts"].values())
    killed(pieces=1 << 62)

    with stores.open().writing():
        assert result(store, group, 3) == {"episodes": 0}
        assert append(store, draft("Al says one", group=group, client_id="c1")) == [4]
    assert [row.sequence for row in all_of(store, kinds.EPISODES, group)] == [4]


def test_episodes_added_during_a_large_removal_are_kept(stores, small_pieces, killed, group):
    """R19, R27: an append to a group under removal continues the removal first."""
    store = stores.open()
    with store.writing():
        tell(store, "Al", "one", group=group, client_id="c1")
        operation = Operation(group=group, kind="remove", everything=True)
        sequence = request(store, operation)
        (later,) = append(store, draft("said after the removal was asked", group=group))
        operation = replace(operation, sequence=sequence)
        end = ended(operation, 99, result={"episodes": 1}, clear=True, erases=True)
        killed(pieces=1)
        with pytest.raises(Killed):
            store.apply([end])
        killed(pieces=1 << 62)
        (answer,) = accept(store, [draft("Al says one", group=group, client_id="c1")], now=1)
        assert (answer.status, answer.sequence) == ("accepted", 4)
        store.apply([end])
        assert [row.sequence for row in pending(store, group, 9)] == [later, 4]
        assert result(store, group, sequence) == {"episodes": 1}
        assert all_of(store, kinds.MENTIONS, group) == []


@pytest.mark.seldom_on_neo4j
def test_the_next_ingest_continues_a_large_removal(stores, small_pieces, killed, ask):
    """R25, R27: through the engine, with repeated interruptions."""
    drafts = [triples(n, works(f"Firm {n}"), client_id=f"c{n}") for n in range(8)]
    engine = engine_on(stores)
    engine.add(in_group(drafts[0], "other"), *drafts)
    firms = [entity.id for entity in engine.view().all_entities() if entity.name in ("Firm 1", "Firm 2")]
    engine.ask("merge", entities=tuple(firms))
    other_dump = engine.dump(group="other")
    sequence = request(engine.store, Operation(group=engine.named(), kind="remove", everything=True))
    engine.accept(triples(20, works("Beta"), client_id="later"))
    runs, clearing_now = 0, "MATCH (g:KgrayGroup {cleared_name: $group}) RETURN count(g)"
    while not result(engine.store, engine.named(), sequence):
        killed(pieces=3)
        with suppress(Killed):
            Engine(store=engine.store, prefix=engine.prefix).run()
        if ask(clearing_now, group=engine.named()) == [[1]]:
            runs += 1
            assert engine.dump() == []
            people = StoredView(engine.store, engine.named()).entities_named("Alice")
            query = Query(text="Alice works", group=engine.named(), any_time=True)
            assert (people, asyncio.run(Searcher(engine.store, SMALL).search(query))) == ([], [])
    killed(pieces=1 << 62)
    engine = Engine(store=engine.store, prefix=engine.prefix)
    engine.run()

    assert runs > 1, "it was never ended in the middle"
    assert engine.spans() == {"Beta": [(20, None)]}
    assert engine.dump(group="other") == other_dump


def test_a_scan_of_a_group_that_changes_during_the_read_fails(stores, group):
    """Neo4j has no snapshots: a scan during a commit is not consistent."""
    store, writer = stores.open(), stores.open()
    with writer.writing():
        tell(writer, "Al", "one", group=group)

        def read():
            with store.reading():
                all_of(store, kinds.MENTIONS, group)
                tell(writer, "Bo", "two", group=group)
                all_of(store, kinds.RECORDS, group)

        with pytest.raises(Outrun, match="was written while it was read"):
            read()
        with store.reading():
            results = [len(all_of(store, kind, group)) for kind in (kinds.MENTIONS, kinds.RECORDS)]
    assert results == [2, 2]


def test_a_read_during_a_commit_repeats_until_it_is_consistent(stores, group):
    store, writer = stores.open(), stores.open()
    with writer.writing():
        tell(writer, "Al", "one", group=group)
        met = iter(["Bo", "Cy"])

        def read():
            mentions = len(all_of(store, kinds.MENTIONS, group))
            for name in met:
                tell(writer, name, "two", group=group)
                break
            return mentions, len(all_of(store, kinds.RECORDS, group))

        assert at_one_moment(store, read) == (3, 3)


def test_continuous_commits_wait_while_a_group_is_read(stores, group):
    """Each try meets a commit, until commits to the group wait; all of them are made in the end."""
    store, writer = stores.open(), stores.open()
    commits: list[threading.Thread] = []

    def read():
        mentions = len(all_of(store, kinds.MENTIONS, group))
        number = len(commits)
        statement_commit = threading.Thread(
            target=tell, args=(writer, f"Al {number}", "two"), kwargs={"group": group}
        )
        commits.append(statement_commit)
        statement_commit.start()
        statement_commit.join(HANGS_S if number < 3 else 0.5)  # the fourth waits for this block
        return mentions, len(all_of(store, kinds.RECORDS, group)), statement_commit.is_alive()

    with writer.writing():
        tell(writer, "Al", "one", group=group)
        assert at_one_moment(store, read) == (4, 4, True)
        commits[-1].join(HANGS_S)
    assert len(all_of(store, kinds.RECORDS, group)) == 5


def test_a_fact_with_a_missing_entity_is_refused(stores, group):
    store = stores.open()
    with store.writing():
        append(store, draft("Al knows Bo", group=group))
        fact = Fact(
            id="F", statement="S1", source="E1", relation="KNOWS", text="", created_at=9, target="none"
        )  # fmt: skip
        wrong = with_rows(
            statement_commit(1, "Al", "one", 9, group=group), {kinds.FACTS: [rows.fact_row(fact)]}
        )
        with pytest.raises(StoreError, match=r"entity that is not stored \(E1, none\)"):
            store.apply([wrong])
    assert store.pending_count(group) == 1
    assert all_of(store, kinds.FACTS, group) == []


def test_a_mention_of_a_missing_entity_is_refused(stores, group):
    store = stores.open()
    with store.writing():
        append(store, draft("Al says one", group=group))
        wrong = with_rows(statement_commit(1, "Al", "one", 9, group=group), {kinds.MENTIONS: [("none", 1)]})
        with pytest.raises(StoreError, match="an entity that is not stored: nothing was changed"):
            store.apply([wrong])
    assert store.pending_count(group) == 1
    assert all_of(store, kinds.RECORDS, group) == []
