"""A removal too large for one transaction runs in pieces, and hides its rows from the first one on (R27)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import pytest

from kgray.communities.refresh import journal_answer
from kgray.domain import times
from kgray.domain.records import Operation
from kgray.errors import NotFound
from kgray.graph.repair import differences
from kgray.graph.stored import in_pieces, view_now
from kgray.ingest import correct as withdrawing
from kgray.memory.answers import entities_like, history_of, id_called
from kgray.memory.reads import GroupReads
from kgray.ports import Store
from kgray.schema import kinds, reads, rows
from kgray.search import Query, Recipe, Searcher, Weights
from kgray.storage.ledger import accept, request, result
from tests.graph.engine import SMALL, Engine, engine_on, triples, works
from tests.graph.histories import history, played
from tests.graph.stores import EMBEDDED, Stores

REMOVED = "Zqgone"


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let few rows be too many for one transaction."""
    monkeypatch.setattr(withdrawing, "AT_ONCE", 0)
    monkeypatch.setattr(withdrawing, "A_PIECE", 3)


def add_jobs(engine: Engine) -> None:
    """Add jobs in two sources: one source ends a job of the other, and renames a person."""
    ours = [triples(n, works(f"Firm {n}"), client_id=f"keep{n}") for n in (0, 20, 40)]
    theirs = [
        triples(
            n, works(f"{REMOVED} {n}"), {**works("Firm 0"), "source": f"{REMOVED} Bo"}, client_id=f"gone{n}"
        )
        for n in (10, 30, 50)
    ]
    engine.add(*(replace(draft, source="kept") for draft in ours))
    engine.add(*(replace(draft, source="secret") for draft in theirs))


def begin(engine: Engine, kind: str, pieces: int) -> int:
    """Request the withdrawal of the source, and stop after `pieces` changes; return the sequence."""
    operation = Operation(group=engine.named(), kind=kind, source="secret")  # type: ignore[arg-type]
    return go_on(engine, replace(operation, sequence=request(engine.store, operation)), pieces)


def go_on(engine: Engine, operation: Operation, pieces: int) -> int:
    """Carry out `pieces` changes of a withdrawal."""
    at = max(times.now(), engine.last_recorded() + 1)
    with engine.store.writing():
        for change in islice(withdrawing.withdraw(engine.store, operation, at), pieces):
            engine.store.apply([change])
    return operation.sequence


def everything(store: Store, group: str) -> dict[str, Any]:
    """Return the visible state of a group in one comparable value."""
    view = view_now(store, group)
    people = entities_like(store, group, "", 50)
    facts = [fact for row in people for fact in history_of(store, view, row.entity.id, None, None).facts]
    # A search by words and without a tail: scores count the stored rows, so they change with each piece.
    words = Recipe(methods=("bm25",), weights=Weights(floor=0.0, tail=0.0))
    results = [
        asyncio.run(
            Searcher(store, SMALL).search(
                Query(text=text, group=group, any_time=True, limit=50, recipe=words)
            )
        )
        for text in (REMOVED, "Alice works at Firm")
    ]
    news = asyncio.run(GroupReads(store).changes(group=group, limit=1000)).commits
    return {
        "people": [(row.entity.id, row.entity.name, row.entity.aliases) for row in people],
        "facts": sorted((fact.id, fact.valid_at, fact.invalid_at) for fact in facts),
        "found": [sorted((hit.scope, hit.id, hit.text) for hit in hits) for hits in results],
        "news": sorted((sorted(row.opened), sorted(row.ended)) for row in news if row.opened or row.ended),
    }


def every_row(store: Store, group: str) -> dict[str, list[Any]]:
    """Return every stored row of a group, without the operation itself."""
    return {
        kind.name: list(store.rows(kind.all, group)) for kind in kinds.KINDS if kind is not kinds.OPERATIONS
    }


@pytest.mark.parametrize(
    ("stores", "kind"),
    [
        ("sqlite", "remove"),
        ("sqlite", "retract"),
        pytest.param("neo4j", "remove", marks=[pytest.mark.neo4j, pytest.mark.slow]),
    ],
    indirect=["stores"],
)
def test_a_source_is_invisible_from_the_first_piece_of_its_removal(stores: Stores, kind: str) -> None:
    """R25, R27: the removal is interrupted repeatedly, each time a little later."""
    engine = engine_on(stores)
    add_jobs(engine)
    sequence = begin(engine, kind, pieces=1)
    operation = replace(Operation(group=engine.named(), kind=kind, source="secret"), sequence=sequence)  # type: ignore[arg-type]
    contents, dump = everything(engine.store, engine.named()), engine.dump()
    assert [name for _, name, _ in contents["people"]] == ["Alice", "Firm 0", "Firm 20", "Firm 40"]
    assert REMOVED not in repr(contents)
    runs = 0
    while in_pieces(engine.store, engine.named()):
        assert result(engine.store, engine.named(), sequence) is None
        assert everything(engine.store, engine.named()) == contents
        assert (engine.dump(), differences(engine.store, engine.named())) == (dump, [])
        with pytest.raises(NotFound):
            id_called(engine.store, engine.named(), "gone10")
        runs += 1
        go_on(engine, operation, pieces=runs)
    assert runs > 3
    assert everything(engine.store, engine.named()) == contents
    assert engine.dump() == dump
    Engine(store=engine.store, prefix=engine.prefix).check()
    report = result(engine.store, engine.named(), sequence)
    assert report is not None
    assert (report["episodes"], report["entities"], report["statements"]) == (3, 4, 4)
    if kind == "remove":
        assert REMOVED.casefold() not in repr(every_row(engine.store, engine.named())).casefold()


@EMBEDDED
def test_an_answer_about_a_partly_removed_source_is_not_stored(stores: Stores) -> None:
    """R25: a model may answer a question from before the removal, after its stored answers were deleted."""
    engine = engine_on(stores)
    add_jobs(engine)
    begin(engine, "remove", pieces=1)
    sources = [row.sequence for row in engine.store.rows(reads.EPISODE_HEADS, engine.named())]
    late = rows.answers_row(sources[0], "community late", [{"summary": REMOVED}], 1, 1, 1)
    keep = partial(journal_answer, group=engine.named(), answer=late, sources=sources)
    engine.store.append([engine.named()], keep)
    assert REMOVED not in repr(list(engine.store.rows(kinds.ANSWERS.all, engine.named())))


@EMBEDDED
@pytest.mark.parametrize("kind", ["remove", "retract"])
def test_a_removal_in_pieces_leaves_the_same_rows_as_a_single_change(
    stores: Stores, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R25, R26: rows of each kind are equal, including evidence that is visible or not."""
    store, rows = stores.open(), []
    for limit in (10_000, 0):
        monkeypatch.setattr(withdrawing, "AT_ONCE", limit)
        engine = Engine(store=store, prefix=stores.fresh())
        add_jobs(engine)
        engine.ask(kind, source="secret")
        rows.append(plain(every_row(store, engine.named())))
    assert rows[0] == rows[1]


def plain(rows: dict[str, list[Any]]) -> dict[str, Any]:
    """Return the number of rows of each kind, and all evidence with its visibility (None or not)."""
    evidence_places = [
        (row.sequence, int(statement.partition(" ")[0]))
        for row in rows["records"]
        for statement in row.statements
    ]
    hidden = {(row.sequence, row.ordinal) for row in rows["shown_evidence"] if row.shown is None}
    counts: dict[str, Any] = {name: len(rows_of_kind) for name, rows_of_kind in rows.items()}
    return counts | {"shows": [(*place, place in hidden) for place in evidence_places]}


@EMBEDDED
def test_episodes_are_accepted_during_a_withdrawal_and_the_next_ingest_continues_it(stores: Stores) -> None:
    """R19, R27: the same content is accepted again during a pending removal; it follows the removal."""
    engine = engine_on(stores)
    add_jobs(engine)
    sequence = begin(engine, "remove", pieces=2)
    second_draft = replace(
        triples(60, works("Firm 9"), client_id="gone10", group=engine.named()), source="secret"
    )
    (receipt,) = accept(engine.store, [second_draft], now=times.now())
    assert receipt.status == "accepted"
    engine = Engine(store=engine.store, prefix=engine.prefix)
    engine.run()
    assert result(engine.store, engine.named(), sequence)
    assert engine.spans()["Firm 9"] == [(60, None)]
    assert REMOVED not in engine.spans()
    engine.check()


@EMBEDDED
@pytest.mark.parametrize("seed", [0, 3, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_histories_with_removals_in_pieces(stores: Stores, seed: int) -> None:
    """R4, R16, R25, R26: after every step the graph follows from the records; nothing erased is left."""
    store = stores.open()
    played(
        lambda **options: Engine(store=store, prefix=stores.fresh(), **options),
        history(seed, steps=10 + seed),
    )
