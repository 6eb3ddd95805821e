"""Removal leaves no unreferenced row: one rule, implemented above the stores (R25, R26)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.plain_loop import Loop
from kgray.domain.records import Operation
from kgray.errors import Garbled, KgrayError, Refused, SettingsError, Unavailable
from kgray.ingest import committer, correct
from kgray.ingest.calls import Parts
from kgray.ingest.correct import withdraw_requested
from kgray.ingest.runner import Runner
from kgray.ports import Matrix
from kgray.ports.ingest import embedded
from kgray.schema.kinds import DONE, KINDS, OPERATIONS, Row
from kgray.schema.record_rows import UnpackedRecords, judgements, name_vectors, search_columns
from kgray.schema.rows import vector_bytes
from kgray.storage.ledger import held, request
from tests.graph.engine import SMALL, Engine, WildJudge, reading, triples, works
from tests.graph.record_vectors import statement_vectors
from tests.graph.stores import SqliteStores
from tests.graph.test_promises import CORRECTIONS, EPISODES, SLOW, Fresh, carry_out

REMOVALS = st.tuples(st.just("remove"), st.integers(0, 30), st.integers(0, 30))
HISTORIES = st.lists(EPISODES | EPISODES | EPISODES | CORRECTIONS | REMOVALS, min_size=2, max_size=9)
KINDS_OF_EPISODE = ("extractions", "answers", "shown_evidence")  # kinds whose rows go with their episode


def stored(engine: Engine) -> dict[str, list[Row]]:
    """Return every row of the group, by kind."""
    return {kind.name: list(engine.store.rows(kind.all, engine.named())) for kind in KINDS}


def loose(rows: dict[str, list[Row]], operations: list[Any]) -> dict[str, set[Any]]:
    """Return by kind the rows that no stored episode owns or that no row refers to."""
    stored_sequences = {row.sequence for row in rows["episodes"]}
    removals = {row.sequence for row in rows["operations"] if row.kind == "remove"}
    records = UnpackedRecords()
    records.take(rows["records"], {})
    borne = {(mention.entity, mention.surface) for mention in records.mentions}
    spoken = {item.statement for item in records.evidence}
    corrected = {id_ for o in operations for id_ in (*o.entities, o.made)}
    named = {entity for entity, _ in borne} | spoken | corrected
    judged = [judgements(row.judged) for row in rows["records"]]
    results: dict[str, set[Any]] = {
        name: {row.sequence for row in rows[name]} - stored_sequences for name in KINDS_OF_EPISODE
    }
    # A removal saves rows of the removed episodes that others still use, under its own sequence.
    results["records"] = {row.sequence for row in rows["records"]} - stored_sequences - removals
    results["mentions"] = {
        item.sequence for item in (*records.mentions, *records.evidence)
    } - stored_sequences
    verdicts = [item for each in judged for item, _ in each.verdicts]
    results["verdicts"] = {
        verdict.sequence
        for verdict in verdicts
        if verdict.sequence not in stored_sequences and verdict.reason
    }
    names = {(vector.entity, vector.surface) for row in rows["records"] for vector in name_vectors(row.names)}
    results["names"] = names ^ borne
    results["births"] = {id_ for o in operations for id_, *_ in o.births} - named
    vectors = {id_ for row in rows["records"] for id_, *_ in search_columns(row.search).statements}
    results["statement_vectors"] = vectors - spoken
    return {name: sequences for name, sequences in results.items() if sequences}


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fresh]:
    """Yield a function that makes an engine with a group of its own, all in one store."""
    stores = SqliteStores(tmp_path_factory.mktemp("erasure"))
    store = stores.open()
    yield lambda **options: Engine(store=store, prefix=stores.fresh(), judge=WildJudge(), **options)
    stores.close()


@SLOW
@given(HISTORIES)
def test_every_row_belongs_to_a_stored_episode_or_is_referenced_by_it(
    fresh: Fresh, history: list[Any]
) -> None:
    """R25: after any merges, splits, retractions and removals, in any order."""
    engine = fresh()
    for number, step in enumerate(history):
        carry_out(engine, number, step)
        assert loose(stored(engine), engine.view().records.operations) == {}, step


def test_a_group_can_be_derived_after_a_merged_entity_is_removed(tmp_path: Path) -> None:
    """R16, R25: the entities of a merge stay born, so that the group can be derived, and undone, after it."""
    engine = Engine(tmp_path)
    engine.add(triples(0, works("Acme"), client_id="a"), triples(1, works("Beta"), client_id="b"))
    ids = {entity.name: entity.id for entity in engine.view().all_entities()}
    merged = engine.ask("merge", entities=(ids["Acme"], ids["Beta"]))
    engine.ask("remove", episodes=("a",))
    assert {entity.name for entity in engine.view().all_entities()} == {"Alice", "Beta"}
    engine.check()
    engine.add(triples(2, works("Beta"), client_id="c"))
    engine.ask("undo", target=merged["sequence"])
    engine.check()


def test_removing_a_retracted_episode_deletes_all_its_rows(tmp_path: Path) -> None:
    """R25: its verdicts, births, names and vectors go, though no live row named them any more."""
    engine = Engine(tmp_path, judge=WildJudge())
    facts = [{"source": 0, "target": 1, "relation": "ZYQQVORP_OF", "text": "Zyqqvorp zyqqvorps"}]
    engine.add(triples(0, works("Acme")), reading(1, ["Zyqqvorp", "Acme"], facts, client_id="gone"))
    engine.ask("retract", episodes=("gone",))
    assert "zyqqvorp" in repr(stored(engine)).casefold()
    engine.ask("remove", episodes=("gone",))
    assert "zyqqvorp" not in repr(stored(engine)).casefold()
    assert loose(stored(engine), engine.view().records.operations) == {}


def test_a_removed_wording_loses_its_vector_whether_or_not_it_was_retracted(tmp_path: Path) -> None:
    """R25: a statement that stays is found by the first wording that is left."""

    def job_in(text: str) -> dict[str, str]:
        return {"source": "Alice", "relation": "WORKS_AT", "target": "Acme", "text": text}

    for name, retracted in (("straight", False), ("retracted", True)):
        engine = Engine(tmp_path / name)
        engine.add(triples(1, job_in("Alice works at Acme in the bunker"), client_id="a"))
        engine.add(triples(2, job_in("Alice works at Acme"), client_id="b"))
        if retracted:
            engine.ask("retract", episodes=("a",))
        engine.ask("remove", episodes=("a",))
        ((_, _, vector),) = statement_vectors(engine.store, engine.named())
        (expected,) = asyncio.run(SMALL.embed(["Alice works at Acme"]))
        assert vector == vector_bytes(expected), name


class Away:
    """An embedder that is a server out of reach; the same vectors as the tests' otherwise."""

    identity, dimensions = SMALL.identity, SMALL.dimensions

    async def embed(self, texts: Sequence[str]) -> Matrix:
        """Fail for every text."""
        raise Unavailable(f"nobody embeds {len(texts)} texts")


def test_a_removal_does_not_wait_for_an_embedder_and_the_next_run_embeds(tmp_path: Path) -> None:
    """R27, R25: the removed wording's vector goes at once; the group is decided only with the new vector."""
    drafts = [
        triples(n, works("Acme", text=f"Alice {word} at Acme"), client_id=client_id)
        for n, (client_id, word) in enumerate({"a": "toils", "b": "works", "c": "is"}.items(), 1)
    ]
    engine, second_engine = Engine(tmp_path / "one"), Engine(tmp_path / "other")
    for each in (engine, second_engine):
        each.add(*drafts[:2])
    request(engine.store, Operation(group="g", kind="remove", episodes=("a",)))
    with engine.store.writing():
        asyncio.run(withdraw_requested(engine.store, partial(embedded, Away()), "g"))
    second_engine.ask("remove", episodes=("a",))
    assert statement_vectors(engine.store, "g") == []
    assert engine.dump() == second_engine.dump()
    away = Engine(store=engine.store)
    away.loop = Loop(replace(engine.parts, embedder=Away()))
    away.accept(drafts[2])
    with pytest.raises(Unavailable, match="nobody embeds 1 texts"):
        away.run()
    removals = engine.store.heads(["g"])["g"].removals
    second_engine.add(drafts[2])
    engine.run()
    vectors = [statement_vectors(each.store, "g") for each in (engine, second_engine)]
    assert engine.store.heads(["g"])["g"].removals > removals  # of a statement with earlier evidence
    assert len(vectors[0]) == 1
    assert vectors[0] == vectors[1]
    assert "unembedded" not in str(list(engine.store.rows(OPERATIONS.all, "g")))


class Refusing:
    """An embedder that fails or hangs on texts about Acme, and counts its requests."""

    identity, dimensions = SMALL.identity, SMALL.dimensions

    def __init__(self, error: KgrayError | None = None) -> None:
        self._error, self.request_count = error, 0

    async def embed(self, texts: Sequence[str]) -> Matrix:
        """Refuse texts about Acme; embed others."""
        if not any("Acme" in text for text in texts):
            return await SMALL.embed(texts)
        self.request_count += 1
        if self._error is None:
            await asyncio.Event().wait()
            raise AssertionError
        raise self._error


async def in_a_run(parts: Parts) -> list[tuple[int, str]]:
    """Carry out the pending operations; return the reported steps."""
    steps: list[tuple[int, str]] = []
    await Runner(parts).run(on_step=lambda _, *step: steps.append(step))
    return steps


async def in_a_plain_loop(parts: Parts) -> list[tuple[int, str]]:
    """Carry out the pending operations one by one; return the reported steps."""
    steps: list[tuple[int, str]] = []
    await Loop(parts).run(on_step=lambda _, *step: steps.append(step))
    return steps


async def at_once(parts: Parts) -> list[tuple[int, str]]:
    """Carry out the removals as a command does; return which have their result."""
    await withdraw_requested(parts.store, partial(embedded, parts.embedder), "g")
    ended = [row for row in parts.store.rows(OPERATIONS.all, "g") if row.state == DONE]
    return [(row.sequence, "done") for row in ended]


def with_two_removals(folder: Path) -> Engine:
    """Make a group with two pending removals; each leaves a statement without its vector."""
    engine = Engine(folder)
    for n, (relation, word) in enumerate((r, w) for r in ("WORKS_AT", "OWNS") for w in ("first", "then")):
        fact = {"source": "Alice", "relation": relation, "target": "Acme", "text": f"{word} {relation} Acme"}
        engine.add(triples(n, fact, client_id=f"{relation} {word}"))
    for relation in ("WORKS_AT", "OWNS"):
        request(engine.store, Operation(group="g", kind="remove", episodes=(f"{relation} first",)))
    return engine


REFUSALS = [SettingsError("no such key"), Refused("too long"), Garbled("no vectors"), Unavailable("nobody")]


@pytest.mark.parametrize("error", REFUSALS)
@pytest.mark.parametrize("carried_out", [in_a_run, in_a_plain_loop, at_once])
def test_removals_complete_when_the_embedder_fails(
    tmp_path: Path, carried_out: Any, error: KgrayError
) -> None:
    """R25: its error concerns the next decision, and no episode; then the waiting texts are embedded."""
    engine, second_engine = with_two_removals(tmp_path / "one"), with_two_removals(tmp_path / "other")
    second_engine.run()
    embedder = Refusing(error)
    parts = replace(engine.parts, embedder=embedder)
    with engine.store.writing():
        assert asyncio.run(carried_out(parts)) == [(5, "done"), (6, "done")]
    assert embedder.request_count == 1
    assert engine.store.pending_count() == 0
    assert "first" not in repr(stored(engine))
    assert held(engine.store) == {}
    for each in (engine, second_engine):
        each.accept(triples(9, works("Beta")))
    with engine.store.writing():
        if isinstance(error, Refused | Garbled):
            assert asyncio.run(in_a_run(parts)) == []
            assert str(error) in held(engine.store)["g"].reason
        else:
            with pytest.raises(type(error), match=str(error)):
                asyncio.run(in_a_run(parts))
    assert engine.store.pending_count() == 1
    for each in (engine, second_engine):
        each.run()
    vectors = [statement_vectors(each.store, "g") for each in (engine, second_engine)]
    assert len(vectors[0]) == 3
    assert vectors[0] == vectors[1]


@pytest.mark.parametrize("carried_out", [in_a_run, in_a_plain_loop, at_once])
def test_a_hanging_embedder_delays_one_removal_and_only_if_texts_need_vectors(
    tmp_path: Path, carried_out: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R27: this includes texts of an earlier removal that still wait for vectors."""
    for module in (committer, correct):
        monkeypatch.setattr(module, "EMBEDDER_S", 0.3)
    engine, embedder = with_two_removals(tmp_path), Refusing()
    parts = replace(engine.parts, embedder=embedder)
    with engine.store.writing():
        assert asyncio.run(carried_out(parts)) == [(5, "done"), (6, "done")]
        assert embedder.request_count == 1
        request(engine.store, Operation(group="g", kind="remove", episodes=("OWNS then",)))
        assert (7, "done") in asyncio.run(carried_out(parts))
    assert embedder.request_count == 1
