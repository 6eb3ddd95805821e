"""Copies of a group to another store: every row and record time, invisible until the copy is complete."""

from __future__ import annotations

import threading
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw
import pytest

from kgray.domain import times
from kgray.domain.records import Extraction, Operation
from kgray.errors import InputError, Locked, NotFound, StoreError
from kgray.graph.stored import StoredView
from kgray.maintenance.transfer.copying import Sum, copy_group, rows_of
from kgray.ports import Store
from kgray.runtime.wiring import OpenStore
from kgray.schema.reads import (
    ANSWERS_TO,
    EPISODES_SINCE,
    MESSAGES,
    NAME_VECTORS,
    PACKED,
    SEARCHED,
    VECTORS,
)
from kgray.schema.record_rows import UnpackedRecords
from kgray.settings import Settings, StoreSettings
from kgray.storage.ledger import accept, failures, pending, pending_groups, request, retry_failed
from kgray.storage.sqlite import open_sqlite
from tests.graph.by_hand import answered, draft, extracted
from tests.graph.engine import Engine, WildJudge, day, in_group, reading, triples, works
from tests.graph.stores import Neo4jStores, SqliteStores

neo4j = pytest.mark.neo4j
ON_SERVER = pytest.param(
    "sqlite-neo4j", marks=[neo4j, pytest.mark.slow]
)  # by default test_store_adopt has both


@pytest.fixture
def store_pair(request, tmp_path):
    """Return the maker of stores for each of the two sides."""
    makers: list[Any] = []

    def side(kind: str, name: str) -> Any:
        if kind == "sqlite":
            makers.append(SqliteStores(tmp_path / name))
        else:
            makers.append(
                Neo4jStores(request.getfixturevalue("neo4j_server"), request.getfixturevalue("neo4j_driver"))
            )
        return makers[-1]

    kinds = request.param.split("-")
    yield [side(kind, f"{n}-{kind}") for n, kind in enumerate(kinds)]
    for stores in makers:
        stores.close()


def opened(stores: Any) -> OpenStore:
    """Open one side."""
    store = stores.open()
    backend = "sqlite" if isinstance(stores, SqliteStores) else "neo4j"
    folder = stores.folder if backend == "sqlite" else Path("nowhere")
    return OpenStore(store=store, folder=folder, settings=Settings(store=StoreSettings(backend=backend)))


def lived(store: Store, prefix: str) -> Engine:
    """Return an engine whose group has been through everything that leaves a row of its own."""
    engine = Engine(store=store, prefix=prefix, judge=WildJudge())
    engine.add(*(triples(n, works(f"Firm {n % 3}"), client_id=f"t{n}") for n in range(5)))
    facts = [{"source": 0, "target": 1, "relation": "KNOWS", "text": "Al knows Bo Day"}]
    engine.add(
        reading(6, ["Al", "Bo Day"], facts, client_id="r1"), reading(7, ["Bo", "Cy"], [], client_id="r2")
    )
    # Two names that the ontology does not list, so that the pair is compared and has a verdict.
    engine.add(
        *(
            reading(
                7, [], [{"source": "Eve", "target": "Finn", "relation": name, "fact": f"Eve {name} Finn"}]
            )
            for name in ("HUMS_TO", "WAVES_AT")
        )
    )
    engine.add(triples(8, {"source": "Mug", "relation": "COSTS", "target": {"value": 9, "unit": "eur"}}))
    engine.add(draft('{"entities": 7}', client_id="bad", reference_time=day(9)))
    engine.add(draft('{"entities": 8}', client_id="worse", reference_time=day(9)))
    retry_failed(store, engine.named(), ["bad"], now=times.now())
    engine.run()
    engine.add(triples(10, works("Firm 9"), client_id="t1"), replace=True)
    ids = {name: e.id for e in engine.view().all_entities() for name in (e.name, *e.aliases)}
    merged = engine.ask("merge", entities=(ids["Bo"], ids["Cy"]))
    assert "error" not in merged
    engine.ask("split", entities=(ids["Alice"],), surfaces=("Alice",))
    engine.ask("merge", entities=(ids["Mug"], "nobody"))
    engine.ask("retract", episodes=("t2",))
    engine.ask("remove", episodes=("t3",))
    engine.add(in_group(triples(1, works("Elsewhere"), client_id="t1"), "other"))
    waiting = [reading(20 + n, ["Di"], [], client_id=f"w{n}") for n in range(2)]
    engine.accept(*waiting)
    accept(store, [in_group(triples(30, works("Bulk")), engine.named())], now=times.now(), bulk=True)
    sequence = request(store, Operation(group=engine.named(), kind="undo", target=99))
    with store.writing():
        result = engine.parts.extractor.identity
        store.apply(
            [
                extracted(
                    sequence - 3, Extraction(model=result, calls=1, prompt_tokens=5), group=engine.named()
                ),
                answered(sequence - 3, "f" * 64, {"duplicate_of": None}, group=engine.named(), calls=2),
            ]
        )
    return engine


def summed(store: Store, group: str) -> Sum:
    """Return the sum of a group's export."""
    result = Sum(group, replace(store.heads([group])[group], removals=0))  # each store counts its own
    for _ in result.passing(rows_of(store, group, result.head)):
        pass
    return result


def moments(engine: Engine) -> list[int | None]:
    """Return the present, and every fourth record time of the group: their sum reveals a gap."""
    return [None, *[row.ended_at for row in engine.store.rows(EPISODES_SINCE, engine.named())][::4]]


@pytest.mark.parametrize(
    "store_pair",
    ["sqlite-sqlite", ON_SERVER],
    indirect=True,
)
def test_a_copied_group_has_equal_rows_and_accepts_the_same_episodes(store_pair, tmp_path):
    """Promise 1, across stores: the same records, dumps at every moment, searches, later commits."""
    source, target = map(opened, store_pair)
    ours = lived(source.store, store_pair[1].prefix)
    group = ours.named()
    kinds = {
        "group", "episodes", "corrections", "extractions", "answers", "records", "shown evidence", "entities",
        "shown entities", "mentions", "facts",
    }  # fmt: skip
    state_before = summed(source.store, group)
    assert set(state_before.counts) == kinds

    copied = copy_group(source, target, group)

    assert (copied.group, copied.existed, copied.rows) == (group, False, dict(state_before.counts))
    assert summed(source.store, group) == state_before == summed(target.store, group)
    assert store_pair[1].mine(list(target.store.heads())) == [group]
    theirs = Engine(store=target.store, prefix=ours.prefix, judge=WildJudge())
    for moment in moments(ours):
        assert ours.dump(moment) == theirs.dump(moment)
    theirs.check()
    item, copy = source.store, target.store
    assert failures(item, group) == failures(copy, group)
    assert item.counts(group) == copy.counts(group)
    assert pending(item, group, 99) == pending(copy, group, 99)
    assert pending_groups(item)[group] == pending_groups(copy)[group]
    answers = [list(store.rows(ANSWERS_TO, group, ["f" * 64])) for store in (item, copy)]
    assert answers[0] == answers[1] != []
    for read in (MESSAGES, SEARCHED, VECTORS, NAME_VECTORS):
        assert list(item.rows(read, group)) == list(copy.rows(read, group)) != [], read.name
    for engine in (ours, theirs):
        engine.add(triples(40, works("Firm 1"), client_id="later"))
        engine.ask("retract", episodes=("t4",))
        engine.check()
    assert ours.dump() == theirs.dump()
    back = opened(SqliteStores(tmp_path / "back"))
    copy_group(target, back, group)
    assert summed(target.store, group) == summed(back.store, group)
    assert Engine(store=back.store, prefix=ours.prefix).dump() == ours.dump()


@pytest.mark.parametrize(
    "store_pair",
    ["sqlite-sqlite", ON_SERVER],
    indirect=True,
)
def test_an_interrupted_copy_is_invisible_and_can_be_repeated(store_pair):
    """A killed process cleans nothing up: its remains are no group, and the next copy starts at zero."""
    source, target = map(opened, store_pair)
    ours = lived(source.store, store_pair[1].prefix)
    group = ours.named()
    head = source.store.heads([group])[group]
    rows = list(rows_of(source.store, group, head))
    mine = store_pair[1].mine

    def cut(store, count):
        yield from rows[:count]
        store.close()  # no later statement reaches the store, as none of a killed process would
        raise OSError("killed")

    for count in (1, len(rows) // 2, len(rows)):
        with suppress(OSError, StoreError, apsw.Error), target.store.writing():  # nor does it end its hold
            target.store.adopt(group, head, cut(target.store, count), lambda: None)
        store_pair[1].lose_hold()
        target = opened(store_pair[1])
        store = target.store
        assert mine(list(store.heads())) == []
        assert mine(pending_groups(store)) == mine(store.counts()) == {}
        assert list(rows_of(store, group, head)) == []
        engine = Engine(store=store, prefix=ours.prefix)
        assert engine.dump() == []
        view = StoredView(store, group)
        assert view.entities_named("Alice") == []
        assert view.episodes(range(99)) == []
    copy_group(source, target, group)
    assert summed(target.store, group) == summed(source.store, group)
    assert Engine(store=target.store, prefix=ours.prefix).dump() == ours.dump()


@pytest.mark.parametrize("store_pair", ["sqlite-sqlite"], indirect=True)
def test_the_source_can_be_closed_after_an_interrupted_copy(store_pair):
    """Closing waits for readers; an abandoned scan is no reader."""
    source, target = map(opened, store_pair)
    group = lived(source.store, store_pair[1].prefix).named()

    def cut():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as raised:  # with its frames, as the caller of close() has it
        copy_group(source, target, group, on_row=cut)
    closing = threading.Thread(target=source.store.close, daemon=True)
    closing.start()
    closing.join(10)
    assert not closing.is_alive()
    del raised


@pytest.mark.parametrize("store_pair", ["sqlite-sqlite"], indirect=True)
def test_a_copy_that_fails_verification_is_deleted(store_pair):
    """A copy that fails its verification leaves nothing; the group can be copied or begun afterwards."""
    source, target = map(opened, store_pair)
    group = lived(source.store, store_pair[1].prefix).named()

    def differs():
        raise StoreError("not the same")

    head = source.store.heads([group])[group]
    with target.store.writing(), pytest.raises(StoreError, match="not the same"):
        target.store.adopt(group, head, rows_of(source.store, group, head), differs)
    assert store_pair[1].mine(list(target.store.heads())) == []
    assert target.store.heads([group])[group].last == 0
    copy_group(source, target, group)
    second_copy = copy_group(source, target, group)
    assert second_copy.existed
    accept(target.store, [in_group(triples(50, works("More")), group)], now=times.now())
    with pytest.raises(StoreError, match=r"already, and not the same \(group"):
        copy_group(source, target, group)


@pytest.mark.parametrize("store_pair", ["sqlite-sqlite"], indirect=True)
def test_an_impossible_copy_is_refused_with_its_reason(store_pair, tmp_path):
    """Another embedder, no such group, a store in use, a group that was removed there: one line each."""
    source, target = map(opened, store_pair)
    engine = Engine(store=source.store, prefix=store_pair[1].prefix)
    group = engine.named()
    engine.add(triples(0, works("Firm")))
    with pytest.raises(NotFound, match="no group 'absent'"):
        copy_group(source, target, "absent")
    with closing(open_sqlite(tmp_path / "other", embedder="another", dimensions=128)) as other_width:
        foreign = OpenStore(store=other_width, folder=tmp_path / "other", settings=target.settings)
        with pytest.raises(InputError, match="same embedder"):
            copy_group(source, foreign, group)
    with source.store.writing(), pytest.raises(Locked, match="run the command when that has ended"):
        copy_group(opened(store_pair[0]), target, group)
    with pytest.raises(InputError, match="one store"):
        copy_group(source, source, group)
    copy_group(source, target, group)
    target_engine = Engine(store=target.store, prefix=engine.prefix)
    target_engine.ask("remove", everything=True)
    with pytest.raises(StoreError, match="was removed: its 2 sequences are never used again"):
        copy_group(source, target, group)


@pytest.mark.neo4j
@pytest.mark.seldom_on_neo4j
def test_appends_to_a_group_during_its_copy_to_a_server_are_refused(neo4j_server, neo4j_driver, tmp_path):
    """An append would use sequences of the copy; the error names the remedy."""
    source = opened(SqliteStores(tmp_path))
    stores = Neo4jStores(neo4j_server, neo4j_driver)
    engine = Engine(store=source.store, prefix=stores.prefix)
    engine.add(triples(0, works("Firm")))
    group, free = engine.named(), engine.named("free")
    target, other_target = opened(stores), opened(stores)

    def rows():
        for row in rows_of(source.store, group, source.store.heads([group])[group]):
            yield row
            with pytest.raises(StoreError, match="run `kgray copy` again"):
                accept(other_target.store, [in_group(triples(1, works("Other")), group)], now=1)
            accept(other_target.store, [in_group(triples(1, works("Other"), client_id="o"), free)], now=1)

    with target.store.writing():
        target.store.adopt(group, source.store.heads([group])[group], rows(), lambda: None)
    assert stores.mine(list(other_target.store.heads())) == [free, group]
    assert summed(other_target.store, group) == summed(source.store, group)
    stores.close()


class OneAcme(WildJudge):
    """Says that every name is the first candidate."""

    @staticmethod
    def _answer(question):
        return {"duplicate_of": 0} if question.kind == "entity" else WildJudge._answer(question)


@pytest.mark.parametrize("store_pair", ["sqlite-sqlite"], indirect=True)
def test_a_copy_includes_entities_made_by_a_split(store_pair):
    """The correction records its birth at an earlier sequence, after the births of later episodes."""
    source, target = map(opened, store_pair)
    engine = Engine(store=source.store, prefix=store_pair[1].prefix, judge=OneAcme())
    for at, name in enumerate(("Acme Corporation", "Acme Corp", "Acme", "Zed Later")):
        engine.add(reading(at, [name], []))
    group = engine.named()
    records = UnpackedRecords()
    records.take(source.store.rows(PACKED, group), {})
    engine.ask("split", entities=(records.mentions[0].entity,), surfaces=("Acme Corp",))
    copy_group(source, target, group)
    theirs = Engine(store=target.store, prefix=store_pair[1].prefix)
    assert theirs.dump() == engine.dump()
    born = [sorted(entity.born for entity in each.view().all_entities()) for each in (engine, theirs)]
    assert born[0] == born[1] == [(1, 0), (2, 0), (4, 0)]


@pytest.mark.parametrize("store_pair", ["sqlite-sqlite"], indirect=True)
def test_episodes_appended_during_a_copy_stay_with_the_source(store_pair):
    """The copy's counters are older: the next entry of the copy would take its sequence."""
    source = opened(store_pair[0])
    engine = Engine(store=source.store, prefix=store_pair[1].prefix)
    engine.add(triples(0, works("Acme")))
    group = engine.named()
    head = source.store.heads([group])[group]
    accept(source.store, [in_group(triples(1, works("Beta")), group)], now=1)
    copied = [row[0] for kind, row in rows_of(source.store, group, head) if kind.name == "episodes"]
    assert copied == [head.last]
