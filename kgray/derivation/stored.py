"""A group read from a store: its records, all or around some; its graph, derived of them or as stored."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from operator import itemgetter
from typing import Any

from kgray import kinds, rows
from kgray.derivation.group import GroupGraph
from kgray.derivation.names import connected
from kgray.derivation.summaries import summaries_of
from kgray.errors import damaged
from kgray.graph import Entity, Fact
from kgray.kinds import Key, Kind, Read, Row
from kgray.ports import GraphView, Store, at_one_moment
from kgray.records import Episode, EpisodeHead, GroupRecords, Place, is_storable
from kgray.times import Instant

_OPEN: list[bool] = []  # the blocks that are open, in any thread: whether the collector was on before each


@contextmanager
def garbage_not_collected() -> Iterator[None]:
    """Turn the collector off inside the block, for a bulk load: else all threads would wait 0.13 s."""
    _OPEN.append(gc.isenabled())
    gc.disable()
    try:
        yield
    finally:
        if _OPEN.pop():
            gc.enable()


def let_go(*held: object) -> None:
    """Empty what is not used any more item by item: freed at once, 100,000 facts keep the lock for 0.4 s."""
    for one in held:
        while isinstance(one, dict | list | set) and one:
            one.popitem() if isinstance(one, dict) else one.pop()


_HEAD = itemgetter(0, 1, 4, 6)
DERIVED = (kinds.ENTITIES, kinds.SHOWN_ENTITIES, kinds.FACTS)
_SHOWN = kinds.EVIDENCE.names.index("shown")
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
    strings: dict[str, str] = {}
    recorded: dict[int, Instant] = {}

    def stands(recorded_at: Instant, retired_at: Instant | None) -> bool:
        known = known_at is None or recorded_at <= known_at
        return known and (retired_at is None or (known_at is not None and retired_at > known_at))

    def timed(name: str, *, at: int) -> list[Row]:
        """Return the declarations or verdicts that stand; at: the column of their record time."""
        found = [row for row in store.rows(kinds.ALL[name], group) if stands(row[at], row[at + 1])]
        recorded.update((row[0], row[at]) for row in found)
        return found

    def told(scan: Read, look_up: Read, values: Iterable[Any] = within or ()) -> Iterator[Row]:
        return store.rows(scan, group) if within is None else store.rows(look_up, group, list(values))

    with garbage_not_collected():
        found = told(kinds.EPISODE_HEADS, kinds.EPISODE_HEADS_AT)
        heads = [EpisodeHead(*_HEAD(row)) for row in found if row[5] == kinds.COMMITTED and stands(*row[6:8])]
        live = {head.sequence for head in heads}
        mentioned = (row for row in told(kinds.ALL["mentions"], kinds.MENTIONS_IN) if row[0] in live)
        spoken = (row for row in told(kinds.ALL["evidence"], kinds.EVIDENCE_IN) if row[0] in live)
        mentions, evidence = rows.mentions(mentioned, strings), rows.evidence(spoken, strings)
        declared, verdicts = timed("declarations", at=6), timed("verdicts", at=7)
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
            declarations=[rows.declaration(row) for row in declared],
            verdicts=[rows.verdict(row) for row in verdicts],
            operations=corrections,
            recorded=recorded,
            births={strings.setdefault(id_, id_): (sequence, ordinal) for id_, sequence, ordinal in births},
            last_recorded=store.heads([group])[group].last_recorded,
        )


# Where more than a quarter of many episodes is needed, to read all costs less than to look them up.
_MANY, _PART = 1_000, 4
Wanted = Callable[[GroupGraph], Iterable[str]]  # the statements that are to follow as from all records


def records_around(
    store: Store, group: str, wanted: Wanted, *, episodes: Iterable[int] = (), entities: Iterable[str] = ()
) -> GroupRecords:
    """Return records that hold these episodes, the episodes of these entities, and what decides on `wanted`.

    To show one message of 40,000, or to merge two entities, the whole group need not be derived (5 s). A
    statement follows from all evidence with its key, and its facts from the statements that rivalry connects
    to it: episodes that mention their subjects are read until no more is needed. The statements that `wanted`
    returns, and what these entities show as, follow as from all records; what else is mentioned may be
    incomplete. To be called inside `Store.reading`.
    """
    last = store.heads([group])[group].last
    none = records_of(store, group, within=[])
    complete = connected(none.operations, entities)
    within = set(episodes) | _mentioning(store, none, complete)
    while len(within) <= _MANY or _PART * len(within) <= last:
        records = records_of(store, group, within=sorted(within))
        needed = _needed(store, records, wanted) - within
        if not needed:
            # Facts tell the names of entities (R18): the stored ones, where mentions of them may be missing.
            corrected = {i for o in records.operations for i in (*o.entities, o.made) if i}
            ids = {mention.entity for mention in records.mentions} | corrected
            ids -= connected(records.operations, set(entities))
            names = {row[0]: row[1] for row in store.rows(kinds.ENTITIES_OF, group, sorted(ids))}
            return replace(records, names=names)
        within |= needed
    return records_of(store, group)


def records_of_entities(store: Store, group: str, ids: Iterable[str], *, undone: int | None) -> GroupRecords:
    """Return the records that all follows from which entities, or those of what is undone, take part in."""

    def read() -> GroupRecords:
        operations = records_of(store, group, within=[]).operations
        undoing = (i for operation in operations if operation.sequence == undone for i in operation.entities)
        entities = connected(operations, {*ids, *undoing})

        def wanted(graph: GroupGraph) -> list[str]:
            return [s.id for s in graph.statements.values() if {s.subject, s.object} & entities]

        return records_around(store, group, wanted, entities=entities)

    return at_one_moment(store, read)


def _needed(store: Store, records: GroupRecords, wanted: Wanted) -> set[int]:
    """Return the episodes from which the wanted statements, their rivals and the verdicts on them follow."""
    graph = GroupGraph.build(records)
    members = {m for statement in wanted(graph) for m in graph.component(statement)[1]}
    ends = {graph.statements[member].subject for member in members}
    ends |= {end for member in members for _, end, _ in graph.slot_keys(member)}
    sequences = _mentioning(store, records, ends)
    places = graph.places()
    told = {e.statement for e in records.evidence if places.get((e.sequence, e.ordinal)) in members}
    judged = [verdict for verdict in records.verdicts if {verdict.a, verdict.b} & told]
    sequences |= {verdict.sequence for verdict in judged}
    both = sorted({statement for verdict in judged for statement in (verdict.a, verdict.b)})
    return sequences | {row[1] for row in store.rows(kinds.EVIDENCE_OF, records.group, both)}


def _mentioning(store: Store, records: GroupRecords, ends: Iterable[str]) -> set[int]:
    """Return the episodes that mention entities, under any id that corrections connect with them."""
    entities = sorted(connected(records.operations, ends))
    return {row[2] for row in store.rows(kinds.MENTIONS_OF, records.group, entities)}


def stale(store: Store, group: str) -> tuple[dict[Kind, Sequence[Row]], dict[Kind, Sequence[Key]], list[Row]]:
    """Return where the stored graph is not what the records derive: rows to put, keys to drop, by kind.

    The last are (sequence, ordinal, shown) of evidence that is about another statement than was stored.
    """
    graph = GroupGraph.build(records_of(store, group))
    derived_facts = graph.facts_of(graph.statements)
    texts = summaries_of(derived_facts)
    shown_now = (note.shown() for note in graph.entities.values())
    entities = (rows.entity_row(replace(one, summary=texts.get(one.id, ""))) for one in shown_now)
    recorded = {**graph.entities, **graph.shows}
    shown = ((one, i) for one in recorded for i in sorted(graph.shows_as(one)))
    facts = map(rows.fact_row, derived_facts)
    puts: dict[Kind, Sequence[Row]] = {}
    drops: dict[Kind, Sequence[Key]] = {}
    for kind, derived in zip(DERIVED, (entities, shown, facts), strict=True):
        held = {kind.key_of(row): tuple(row) for row in store.rows(kinds.ALL[kind.name], group)}
        now = {kind.key_of(row): tuple(row) for row in derived}
        puts[kind] = [row for key, row in sorted(now.items()) if held.get(key) != row]
        drops[kind] = sorted(held.keys() - now.keys())
    places = graph.places()
    told = ((row[:2], row[_SHOWN]) for row in store.rows(kinds.ALL["evidence"], group))
    return puts, drops, [(*at, places.get(at)) for at, stored in told if stored != places.get(at)]


def in_pieces(store: Store, group: str) -> bool:
    """Whether a retraction or removal of the group is being carried out in pieces (`ingest.correct`)."""
    return any(row[5] is not None for row in store.rows(kinds.OPERATIONS_IN_STATE, group, [kinds.PENDING]))


def view_now(store: Store, group: str) -> GraphView:
    """Return the graph as known now, as it is stored; call it within the snapshot that reads it.

    While a removal goes in pieces the stored graph is neither the one before nor the one after it. Then it is
    the one that the records derive, which is right from the first piece on, at the cost of the whole group.
    """
    stored = StoredView(store, group)
    return View(records_of(store, group), stored.episodes) if in_pieces(store, group) else stored


class View(GraphView):
    """A `ports.GraphView` derived from records (R4); facts are swept when they are asked for."""

    def __init__(self, records: GroupRecords, episodes: Callable[[Sequence[int]], list[Episode]]) -> None:
        """Build the graph; episodes: reads episodes by sequence."""
        self.records = records
        self.graph = GroupGraph.build(records)
        self.group = records.group
        self._read_episodes = episodes
        self._live = {head.sequence for head in records.heads}
        self._by_statement: dict[str, list[Fact]] = {}

    def facts_of(self, statements: Sequence[str], as_of: Instant | None) -> list[Fact]:
        shown = self.shown_statements
        return self._holding([s for recorded in statements for s in shown.get(recorded, ())], as_of)

    def facts_of_evidence(self, places: Sequence[Place], as_of: Instant | None) -> list[list[Fact]]:
        return [self._holding([self.places[p]] if p in self.places else [], as_of) for p in places]

    def facts_at(self, entities: Sequence[str], as_of: Instant | None, limit: int | None) -> list[Fact]:
        found = self._holding([s for e in entities for s in self.graph.about.get(e, ())], as_of)
        found.sort(key=lambda f: (-f.created_at, f.id))
        return found[:limit]

    def facts(self, ids: Sequence[str]) -> list[Fact]:
        wanted = set(ids)
        return [f for f in self.all_facts() if f.id in wanted]

    def entities_of(self, recorded: Sequence[str]) -> list[list[Entity]]:
        graph = self.graph
        shown = ([i for i in sorted(graph.shows_as(r)) if i in graph.entities] for r in recorded)
        return [[graph.entity(i) for i in ids] for ids in shown]

    def episodes(self, sequences: Sequence[int]) -> list[Episode]:
        wanted = [s for s in sequences if s in self._live]
        found = {e.sequence: e for e in self._read_episodes(wanted)}
        return [found[s] for s in wanted if s in found]

    def supporters(self, ids: Sequence[str]) -> dict[str, str | None]:
        wanted = set(ids)
        sequences = [h.sequence for h in self.records.heads if h.id in wanted]
        return {e.id: e.client_id for e in self._read_episodes(sequences)}

    def all_facts(self) -> list[Fact]:
        """Return all facts, of any time."""
        return self._holding(list(self.graph.statements), None)

    def all_entities(self) -> list[Entity]:
        """Return all entities, by id, without summaries: these would cost a sweep of every statement."""
        return [self.graph.entities[i].shown() for i in sorted(self.graph.entities)]

    @cached_property
    def places(self) -> dict[Place, str]:
        """Evidence place -> the statement it shows as."""
        return self.graph.places()

    @cached_property
    def shown_statements(self) -> dict[str, list[str]]:
        """Recorded statement -> the statements that its evidence shows as."""
        found: dict[str, dict[str, None]] = {}
        for said in self.records.evidence:
            if (shown := self.places.get((said.sequence, said.ordinal))) is not None:
                found.setdefault(said.statement, {})[shown] = None
        return {recorded: list(shown) for recorded, shown in found.items()}

    def _holding(self, statements: Sequence[str], as_of: Instant | None) -> list[Fact]:
        wanted = dict.fromkeys(statements)
        missing = [s for s in wanted if s not in self._by_statement]
        for statement, spans in self.graph.spans_of(missing).items():
            self._by_statement[statement] = [self.graph.fact(span) for span in spans]
        facts = (f for s in wanted for f in self._by_statement[s])
        return [f for f in facts if as_of is None or f.holds_at(as_of)]


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
        shows = ([known[id_] for id_ in parts[asked] if id_ in known] for asked in recorded)
        return [sorted(found, key=lambda entity: entity.born) for found in shows]

    def entities_named(self, name: str) -> list[Entity]:
        """Return the entities shown with this name or alias (ignoring case and spacing), oldest first."""
        folded = rows.folded(name)
        if not is_storable(folded):
            return []
        recorded = [entity for _, entity in self._rows(kinds.NAMED, [folded])]
        found = self.entities(list(dict.fromkeys(recorded)))
        bearing = [one for one in found if folded in map(rows.folded, (one.name, *one.aliases))]
        return sorted(bearing, key=lambda entity: (entity.born, entity.id))

    def episodes(self, sequences: Sequence[int]) -> list[Episode]:
        found = self._rows(kinds.EPISODES_AT, dict.fromkeys(sequences))
        live = (row for row in found if row[10] == kinds.COMMITTED and row[14] is None)
        return [rows.episode(self.group, row) for row in live]

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
