"""The engine on a real store, driven step by step: shared by the tests of whole behaviours."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.plain_loop import Loop
from kgray.domain import times
from kgray.domain.ontology import Ontology, shipped
from kgray.domain.records import Draft, Extraction, Operation, canonical
from kgray.graph import dump
from kgray.graph.stored import StoredView, View, records_of
from kgray.ingest.calls import Parts
from kgray.ingest.runner import Runner
from kgray.ingest.state import GroupState
from kgray.io.intake.triples import normalise
from kgray.models.hashing import HashingEmbedder
from kgray.models.prompting.replies import parse_extraction
from kgray.models.rules import RulesJudge
from kgray.ports import (
    Answer,
    Embedder,
    ExtractionRequest,
    Extractor,
    GroupCounts,
    Judge,
    Judged,
    Question,
    QuestionRequest,
    Store,
)
from kgray.ports.ingest import Totals
from kgray.settings import PipelineSettings
from kgray.storage.ledger import (
    Acceptance,
    accept,
    dumped_episodes,
    episodes_at,
    pending_groups,
    request,
    result,
)
from kgray.storage.sqlite import open_sqlite
from tests import make
from tests.graph.by_hand import WIDTH
from tests.graph.stores import Stores

DAY_ZERO = times.parse("2026-01-01")[0]
GROUP = "g"
# Similarity means little at this width, but the tests check determinism.
SMALL = HashingEmbedder(WIDTH)


def day(number: float) -> int:
    """Return the instant of a day's number, counted from 2026-01-01."""
    return DAY_ZERO + round(number * times.DAY)


def iso(number: float) -> str:
    """Return a day's instant as kgray prints it."""
    return str(times.show(day(number)))


class ReadsItself:
    """An extractor whose texts are their own extraction, as JSON: a reader that is always right."""

    identity = "reads-itself"

    async def extract(self, request: ExtractionRequest) -> Extraction:
        """Parse the episode's text as an extraction reply."""
        return parse_extraction(json.loads(request.episode.text), request.episode)


class WildJudge:
    """A judge whose every answer is a hash of the question: right about nothing, always the same."""

    identity = "wild"

    def key(self, request: QuestionRequest) -> str:
        """Return the request's key."""
        return request.key(self.identity)

    async def judge(self, request: QuestionRequest) -> Judged:
        """Answer each question."""
        return Judged(answers=tuple(self._answer(q) for q in request.questions), calls=1)

    @staticmethod
    def _answer(question: Question) -> Answer:
        number = int.from_bytes(hashlib.sha256(repr(question).encode()).digest()[:4], "big")
        if question.kind == "entity":
            pick = number % (len(question.candidates) + 1)
            return {"duplicate_of": None if pick == len(question.candidates) else pick}
        words = ("independent", "contradicts", "ends", "same")
        return {"answers": [words[number >> 2 * i & 3] for i in range(len(question.candidates))]}


class Engine:
    """A store with its loop; `run` ingests all pending rows.

    prefix      the first part of its group names in the store; tests name groups without it
    window      episodes in flight of the windowed runner; 0: the plain loop
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        judge: Judge | None = None,
        extractor: Extractor | None = None,
        ontology: Ontology | None = None,
        store: Store | None = None,
        prefix: str = "",
        window: int = 0,
        embedder: Embedder = SMALL,
    ) -> None:
        if store is None:
            assert folder is not None
            store = open_sqlite(folder, embedder=SMALL.identity, dimensions=SMALL.dimensions)
        self.store, self.prefix = store, prefix
        self.parts = Parts(
            store=self.store,
            extractor=extractor or ReadsItself(),
            judge=judge or RulesJudge(),
            embedder=embedder,
            ontology=ontology or shipped(),
            pipeline=PipelineSettings(),
            patience_s=0,
        )
        self.loop: Loop | Runner = Loop(self.parts)
        if window:
            self.parts = replace(self.parts, window=window)
            self.loop = Runner(self.parts)

    def named(self, group: str = GROUP) -> str:
        """Return a group's name in the store."""
        return self.prefix + group

    def accept(self, *drafts: Draft, replace: bool = False) -> list[Acceptance]:
        """Append drafts."""
        placed = [in_group(draft, self.named(draft.group)) for draft in drafts]
        return accept(self.store, placed, now=times.now(), replace=replace)

    def run(self) -> Totals:
        """Ingest all pending rows of its groups; the same store may have pending rows of others."""
        pending = pending_groups(self.store)
        mine = [group for group in pending if group.startswith(self.prefix)] if self.prefix else None
        with self.store.writing():
            return asyncio.run(self.loop.run(groups=mine))

    def add(self, *drafts: Draft, replace: bool = False) -> None:
        """Accept and ingest."""
        self.accept(*drafts, replace=replace)
        self.run()

    def ask(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Carry out an operation and return its result."""
        operation = Operation(group=self.named(), kind=kind, **fields)
        sequence = request(self.store, operation)
        self.run()
        answer = result(self.store, self.named(), sequence)
        assert answer is not None
        return dict(answer)

    def last_recorded(self, group: str = GROUP) -> int:
        """Return a group's newest record time."""
        name = self.named(group)
        return self.store.heads([name])[name].last_recorded

    def groups(self) -> list[str]:
        """Return the groups that exist."""
        return list(self.store.heads())

    def view(self, known_at: int | None = None, group: str = GROUP) -> View:
        """Derive the graph from the stored records."""
        name = self.named(group)
        return View(records_of(self.store, name, known_at), lambda s: episodes_at(self.store, name, s))

    def dump(self, known_at: int | None = None, group: str = GROUP) -> list[str]:
        """Return the canonical dump."""
        episodes = dumped_episodes(self.store, self.named(group), known_at)
        return dump.lines(dump.rows(self.view(known_at, group), episodes))

    def spans(self, relation: str = "WORKS_AT", group: str = GROUP) -> dict[str, list[tuple[Any, Any]]]:
        """Return object name -> [(from, to)] in days, of the stored facts."""
        view = StoredView(self.store, self.named(group))
        entities = {e.id: e.name for e in self.view(group=group).all_entities()}
        facts = {f.id: f for f in view.facts_at(list(entities), None, None) if f.relation == relation}
        results: dict[str, list[tuple[Any, Any]]] = {}
        order = sorted(
            facts.values(), key=lambda f: (f.valid_at is not None, f.valid_at or 0, f.invalid_at or 0)
        )
        for fact in order:
            name = entities[fact.target] if fact.target else fact.value.shown()  # type: ignore[union-attr]
            results.setdefault(name, []).append((in_days(fact.valid_at), in_days(fact.invalid_at)))
        return results

    def check(self, group: str = GROUP) -> None:
        """Assert that cached state equals loaded state, and the stored index the derivation from records."""
        name = self.named(group)
        loaded = GroupState.load(self.store, name, SMALL.dimensions)
        cached = self.loop.committer.kept(name)
        if cached is not None:
            ours, theirs = fingerprint(cached), fingerprint(loaded)
            assert {k: (v, theirs[k]) for k, v in ours.items() if v != theirs[k]} == {}
        view = self.view(group=group)
        stored = StoredView(self.store, name)
        entities = sorted(view.entities([e.id for e in view.all_entities()]), key=lambda e: e.id)
        assert sorted(stored.entities([e.id for e in entities]), key=lambda e: e.id) == entities
        facts = {f.id: f for f in stored.facts_at([e.id for e in entities], None, None)}
        assert facts == {f.id: f for f in view.all_facts()}
        recorded = sorted({m.entity for m in view.records.mentions})
        assert stored.entities_of(recorded) == view.entities_of(recorded)
        statements = sorted({e.statement for e in view.records.evidence})
        assert stored.facts_of(statements, None) == view.facts_of(statements, None)
        counts = self.store.counts(name).get(name, GroupCounts())
        assert (counts.facts, counts.entities) == (len(facts), len(view.all_entities()))


def engine_on(stores: Stores, **options: Any) -> Engine:
    """Return an engine whose groups are new."""
    return Engine(store=stores.open(), prefix=stores.fresh(), **options)


def fingerprint(state: GroupState) -> dict[str, Any]:
    """Return all that deciding reads of a state, in a comparable form."""
    graph = state.graph
    names = graph.relations.names()
    return {
        "entities": {
            i: (n.shown(), n.card, n.count, list(n.surfaces.items())) for i, n in graph.entities.items()
        },
        "statements": {
            i: (s.key, s.variant, s.wording, s.marks, s.born, s.claims) for i, s in graph.statements.items()
        },
        "by_ends": {k: sorted(v) for k, v in graph.by_ends.items()},
        "relations": [
            (n, graph.relations.folded(n), graph.relations.traits(graph.relations.folded(n).name))
            for n in names
        ],
        "verdicts": graph.verdicts,
        "moved": graph.moved,
        "shows": {item: graph.shows_as(item) for item in {**graph.entities, **graph.shows}},
        "near": {s: sorted(state.names.near(s)) for n in graph.entities.values() for s in n.surfaces},
        "bearers": {s: sorted(state.names.bearers(s)) for n in graph.entities.values() for s in n.surfaces},
        "vectors": state._owners,
        "spans": graph.spans_of(sorted(graph.statements)),
        "slot_keys": {s: graph.slot_keys(s) for s in graph.statements},
    }


def in_days(instant: int | None) -> float | None:
    """Return an instant as a day's number."""
    if instant is None:
        return None
    number = (instant - DAY_ZERO) / times.DAY
    return int(number) if number == int(number) else number


_ids = itertools.count()


def triples(
    at: float,
    *items: dict[str, Any],
    group: str = GROUP,
    client_id: str | None = None,
    source: str = "default",
) -> Draft:
    """Return a `triples` draft dated to a day."""
    text = normalise([dict(i) for i in items], day(at))
    fields = {"group": group, "source": source, "client_id": client_id}
    return make.draft(text, kind="triples", at=day(at), **fields)


def works(name: str, **fields: Any) -> dict[str, Any]:
    """Return the triple "Alice works at <name>"."""
    return {"source": "Alice", "relation": "WORKS_AT", "target": name, **fields}


def reading(
    at: float, entities: Sequence[Any], facts: Sequence[dict[str, Any]], *, client_id: str | None = None
) -> Draft:
    """Return a `text` draft that reads itself."""
    listed = [e if isinstance(e, dict) else {"name": e} for e in entities]
    text = canonical(
        {"entities": listed, "facts": list(facts), "n": next(_ids) if client_id is None else client_id}
    )
    return make.draft(text, at=day(at), group=GROUP, source="default", client_id=client_id)


def in_group(draft: Draft, group: str) -> Draft:
    """Return the draft for another group."""
    return replace(draft, group=group)
