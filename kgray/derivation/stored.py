"""A group read from a store: its records, and its derived graph as the store has it."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from operator import itemgetter
from typing import Any

from kgray import kinds, rows
from kgray.derivation.view import View
from kgray.errors import damaged
from kgray.graph import Entity, Fact
from kgray.kinds import Read, Row
from kgray.ports import GraphView, Store, at_one_moment
from kgray.records import Episode, EpisodeHead, GroupRecords, Place, is_storable
from kgray.times import Instant

_OPEN: list[bool] = []  # the blocks that are open, in any thread: whether the collector was on before each


@contextmanager
def garbage_not_collected() -> Iterator[None]:
    """Turn the collector off inside the block, for a bulk load; blocks nest, and may overlap.

    It would look at all that was made since at once, 0.13 s for 100,000 facts, and all threads would wait.
    """
    _OPEN.append(gc.isenabled())
    gc.disable()
    try:
        yield
    finally:
        if _OPEN.pop():
            gc.enable()


def let_go(*held: object) -> None:
    """Empty dicts, lists and sets that are not used any more, item by item.

    All at once, freeing the graph of 100,000 facts keeps the interpreter's lock for 0.4 s.
    """
    for one in held:
        while isinstance(one, dict | list | set) and one:
            one.popitem() if isinstance(one, dict) else one.pop()


_HEAD = itemgetter(0, 1, 4, 6)
TIMED = frozenset({"merge", "split", "distinct", "undo"})  # the corrections that derivation applies


def records_of(
    store: Store, group: str, known_at: Instant | None = None, *, within: Sequence[int] | None = None
) -> GroupRecords:
    """Return the group's live records, as of now or as known at `known_at`.

    `births` and `last_recorded` are always those of now. 100,000 facts take about 2 s. Raises Damaged.

    within  sequences: mentions, evidence and births of these episodes alone, at the cost of these alone
    """
    try:
        return at_one_moment(store, lambda: _records(store, group, known_at, within))
    except (LookupError, ValueError, TypeError, AttributeError) as fault:  # a row that cannot be read
        raise damaged(group, fault) from fault


def _records(
    store: Store, group: str, known_at: Instant | None, within: Sequence[int] | None
) -> GroupRecords:
    stands = partial(_stands, known_at)
    strings: dict[str, str] = {}
    recorded: dict[int, Instant] = {}

    def timed(name: str, *, at: int) -> list[Row]:
        """Return the rulings or verdicts that stand; at: the column of their record time."""
        found = [row for row in store.rows(kinds.ALL[name], group) if stands(row[at], row[at + 1])]
        recorded.update((row[0], row[at]) for row in found)
        return found

    def told(scan: Read, look_up: Read, values: Iterable[Any] = within or ()) -> Iterator[Row]:
        return store.rows(scan, group) if within is None else store.rows(look_up, group, list(values))

    with garbage_not_collected():
        found = told(kinds.EPISODE_HEADS, kinds.EPISODE_HEADS_AT)
        heads = [EpisodeHead(*_HEAD(row)) for row in found if row[5] == kinds.COMMITTED and stands(*row[6:8])]
        live = {head.sequence for head in heads}
        said = (
            told(kinds.ALL["mentions"], kinds.MENTIONS_IN),
            told(kinds.ALL["evidence"], kinds.EVIDENCE_IN),
        )
        mentioned, spoken = ((row for row in found if row[0] in live) for found in said)
        mentions, evidence = rows.mentions(mentioned, strings), rows.evidence(spoken, strings)
        rulings, verdicts = timed("rulings", at=8), timed("verdicts", at=7)
        asked = store.rows(kinds.ALL["operations"], group)
        operations = [r for r in asked if r[3] == kinds.DONE and r[1] in TIMED and stands(r[4], None)]
        recorded.update((row[0], row[4]) for row in operations)
        corrections = [rows.operation(group, row) for row in operations]
        born: set[str] = set()
        if within is not None:  # the entities and statements that are named
            born = {one.entity for one in mentions} | {one.statement for one in evidence}
            born = born.union(*({*one.entities, one.made} for one in corrections)) - {""}
        births = told(kinds.ALL["births"], kinds.BIRTHS_OF, born)
        return GroupRecords(
            group=group,
            heads=heads,
            mentions=mentions,
            evidence=evidence,
            rulings=[rows.ruling(row) for row in rulings],
            verdicts=[rows.verdict(row) for row in verdicts],
            operations=corrections,
            recorded=recorded,
            births={strings.setdefault(id_, id_): (sequence, ordinal) for id_, sequence, ordinal in births},
            last_recorded=store.heads([group])[group].last_recorded,
        )


def _stands(known_at: Instant | None, recorded_at: Instant, retired_at: Instant | None) -> bool:
    known = known_at is None or recorded_at <= known_at
    return known and (retired_at is None or (known_at is not None and retired_at > known_at))


def in_pieces(store: Store, group: str) -> bool:
    """Whether a retraction or removal of the group is being carried out in pieces (`ingest.withdraw`)."""
    return any(row[5] is not None for row in store.rows(kinds.OPERATIONS_IN_STATE, group, [kinds.PENDING]))


def view_now(store: Store, group: str) -> GraphView:
    """Return the graph as known now, as it is stored; call it within the snapshot that reads it.

    While a removal goes in pieces the stored graph is neither the one before nor the one after it. Then it is
    the one that the records derive, which is right from the first piece on, at the cost of the whole group.
    """
    stored = StoredView(store, group)
    return View(records_of(store, group), stored.episodes) if in_pieces(store, group) else stored


class StoredView(GraphView):
    """The `ports.GraphView` of a group as known now, from the store: at most three declared reads a call.

    Each call sees the snapshot of the `Store.reading` around it, else the newest state.
    """

    def __init__(self, store: Store, group: str) -> None:
        self._store = store
        self.group = group

    def facts_of(self, statements: Sequence[str], as_of: Instant | None) -> list[Fact]:
        shown: dict[str, dict[str, None]] = {statement: {} for statement in statements}
        for statement, shown_as, _ in self._rows(kinds.STATEMENTS_SHOWN, shown):
            if shown_as is not None:
                shown[statement][shown_as] = None
        return self._facts(list(shown.values()), as_of)

    def facts_of_evidence(self, places: Sequence[Place], as_of: Instant | None) -> list[list[Fact]]:
        shown = {(row[0], row[1]): row[2] for row in self._rows(kinds.EVIDENCE_SHOWN, dict.fromkeys(places))}
        by_statement: dict[str, list[Fact]] = {}
        for fact in self._facts([dict.fromkeys(id_ for id_ in shown.values() if id_ is not None)], as_of):
            by_statement.setdefault(fact.statement, []).append(fact)
        return [by_statement.get(shown.get(place) or "", []) for place in places]

    def facts_at(self, entities: Sequence[str], as_of: Instant | None, limit: int | None) -> list[Fact]:
        asked = dict.fromkeys(entities)
        shown = dict.fromkeys(id_ for (id_,) in self._rows(kinds.ENTITY_IDS, asked))
        folded = [id_ for id_ in asked if id_ not in shown]
        shown.update((id_, None) for _, id_ in self._rows(kinds.SHOWN_OF, folded))
        return self._store.facts_at(self.group, list(shown), as_of, limit) if shown else []

    def facts(self, ids: Sequence[str]) -> list[Fact]:
        return [rows.fact(row) for row in self._rows(kinds.FACTS_OF, dict.fromkeys(ids))]

    def entities_of(self, recorded: Sequence[str]) -> list[list[Entity]]:
        shown: dict[str, list[str]] = {id_: [] for id_ in recorded}
        for recorded_id, id_ in self._rows(kinds.SHOWN_OF, shown):
            shown[recorded_id].append(id_)
        # An id that no mention was recorded with, a split's, stands for itself.
        parts = {id_: found or [id_] for id_, found in shown.items()}
        wanted = dict.fromkeys(id_ for part in parts.values() for id_ in part)
        known = {row[0]: rows.entity(row) for row in self._rows(kinds.ENTITIES_OF, wanted)}
        return [
            sorted((known[id_] for id_ in parts[asked] if id_ in known), key=lambda e: e.born)
            for asked in recorded
        ]

    def entities_named(self, name: str) -> list[Entity]:
        """Return the entities shown with this name or alias (ignoring case and spacing), oldest first."""
        folded = rows.folded(name)
        if not is_storable(folded):
            return []
        recorded = [entity for _, entity in self._rows(kinds.NAMED, [folded])]
        found = [
            entity
            for entity in self.entities(list(dict.fromkeys(recorded)))
            if folded in {rows.folded(borne) for borne in (entity.name, *entity.aliases)}
        ]
        return sorted(found, key=lambda entity: (entity.born, entity.id))

    def episodes(self, sequences: Sequence[int]) -> list[Episode]:
        found = self._rows(kinds.EPISODES_AT, dict.fromkeys(sequences))
        return [
            rows.episode(self.group, row) for row in found if row[10] == kinds.COMMITTED and row[14] is None
        ]

    def supporters(self, ids: Sequence[str]) -> dict[str, str | None]:
        return dict(self._rows(kinds.SUPPORTERS, dict.fromkeys(ids)))

    def _facts(self, parts: list[dict[str, None]], as_of: Instant | None) -> list[Fact]:
        """Return the facts of these statements, each once, part by part; within a part by start and id."""
        wanted = dict.fromkeys(statement for part in parts for statement in part)
        by_statement: dict[str, list[Fact]] = {}
        for row in self._rows(kinds.FACTS_OF_STATEMENTS, wanted):
            fact = rows.fact(row)
            if as_of is None or fact.holds_at(as_of):
                by_statement.setdefault(fact.statement, []).append(fact)
        found: dict[str, Fact] = {}
        for part in parts:
            facts = [fact for statement in part for fact in by_statement.get(statement, ())]
            facts.sort(key=lambda f: (f.valid_at is not None, f.valid_at or 0, f.id))
            for fact in facts:
                found.setdefault(fact.id, fact)
        return list(found.values())

    def _rows(self, read: Read, values: Iterable[object]) -> list[Row]:
        asked = list(values)
        return list(self._store.rows(read, self.group, asked)) if asked else []
