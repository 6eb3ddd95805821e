"""A group read from a store: its records, all or around some; its graph, derived of them or as stored."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import merge
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from kgray import kinds, reads, rows
from kgray.derivation.change import (
    mentioned_entities,
    moved_evidence,
    shown_entities,
)
from kgray.derivation.group import GroupGraph
from kgray.derivation.names import connected
from kgray.derivation.summaries import summaries_of
from kgray.errors import damaged
from kgray.garbage import garbage_not_collected
from kgray.graph import Entity, Fact
from kgray.kinds import Key, Kind, R, Read, Row
from kgray.ports import GraphView, Store, at_one_moment
from kgray.reads import EpisodeHeadRow, PackedRow
from kgray.record_rows import (
    Judgements,
    NameVector,
    UnpackedRecords,
    judgements,
    name_vectors,
    newest_vectors,
)
from kgray.records import Episode, EpisodeHead, GroupRecords, Operation, Place
from kgray.times import Instant

DERIVED: tuple[Kind[Any], ...] = (
    kinds.ENTITIES, kinds.MENTIONS, kinds.SHOWN_ENTITIES, kinds.SHOWN_EVIDENCE, kinds.FACTS,
)  # fmt: skip
TIMED = frozenset({"merge", "split", "distinct", "undo"})  # the corrections that derivation applies


def records_of(
    store: Store, group: str, known_at: Instant | None = None, *, within: Sequence[int] | None = None
) -> GroupRecords:
    """Return the group's live records, as of now or as known at `known_at`.

    `last_recorded` is always that of now. Raises Damaged.

    within  sequences: mentions, evidence and births of these episodes alone, at the cost of these alone
    """
    return stored_records(store, group, known_at, within=within).live


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRecords:
    """The records of a group.

    live     those that stand at a moment
    retired  the mentions and evidence of committed episodes that are not live
    vectors  recorded statement -> (sequence, position) of its vector among the records of an entry
    heads    of the stored episodes, in any state, by sequence
    judged   all stored declarations and verdicts by the sequence of their row; retired ones, too
    saved_at  the sequences of the removals that saved records of removed episodes
    """

    live: GroupRecords
    retired: UnpackedRecords
    vectors: dict[str, Place]
    heads: dict[int, EpisodeHeadRow]
    judged: dict[int, Judgements]
    saved_at: list[int]


def stored_records(
    store: Store, group: str, known_at: Instant | None = None, *, within: Sequence[int] | None = None
) -> StoredRecords:
    """Return the records of a group; `known_at` and `within` as in `records_of`. Raises Damaged."""
    try:
        return at_one_moment(store, lambda: _records(store, group, known_at, within))
    except (LookupError, ValueError, TypeError, AttributeError) as fault:  # a row that cannot be read
        raise damaged(group, fault) from fault


def _records(
    store: Store, group: str, known_at: Instant | None, within: Sequence[int] | None
) -> StoredRecords:
    def stands(recorded_at: Instant | None, retired_at: Instant | None) -> bool:
        known = recorded_at is not None and (known_at is None or recorded_at <= known_at)
        return known and (retired_at is None or (known_at is not None and retired_at > known_at))

    def chosen(scan: Read[R], look_up: Read[R]) -> Iterator[R]:
        return store.rows(scan, group) if within is None else store.rows(look_up, group, list(within))

    with garbage_not_collected():
        heads = {row.sequence: row for row in chosen(reads.EPISODE_HEADS, reads.EPISODE_HEADS_AT)}
        live = {
            row.sequence: EpisodeHead(row.sequence, row.id, row.reference_time, row.ended_at or 0)
            for row in heads.values()
            if row.state == kinds.COMMITTED and stands(row.ended_at, row.retired_at)
        }
        ours, others, saved_at = _unpacked(chosen(reads.PACKED, reads.PACKED_AT), heads, live)
        carried_out = _operations(store, group)
        operations = [one for one, at in carried_out if one.kind in TIMED and stands(at, None)]
        judged = {row.sequence: judgements(row.judged) for row in store.rows(reads.JUDGED, group)}
        declared, answered = _standing(judged.values(), carried_out, stands)
        recorded = {one.sequence: at for one, at in carried_out}
        recorded |= {one.sequence: at for one, at in declared} | {one.sequence: at for one, at in answered}
        corrected = {id_: (a, b) for one in operations for id_, a, b in one.births}
        records = GroupRecords(
            group=group,
            heads=list(live.values()),
            mentions=ours.mentions,
            evidence=ours.evidence,
            declarations=[one for one, _ in declared],
            verdicts=[one for one, _ in answered],
            operations=operations,
            recorded=recorded,
            births={**others.births, **corrected, **ours.births},
            last_recorded=store.heads([group])[group].last_recorded,
        )
        return StoredRecords(
            live=records,
            retired=others,
            vectors=newest_vectors((*ours.vectors, *others.vectors)),
            heads=heads,
            judged=judged,
            saved_at=saved_at,
        )


def _unpacked(
    stored: Iterable[PackedRow], heads: Mapping[int, EpisodeHeadRow], live: Collection[int]
) -> tuple[UnpackedRecords, UnpackedRecords, list[int]]:
    """Return the records of live episodes, those of other rows, and the sequences of removals among these."""
    # While a removal goes on in pieces, its episodes are stored, and no part of the graph any more.
    out = {row.sequence for row in heads.values() if row.state != kinds.COMMITTED}
    strings: dict[str, str] = {}
    ours, others, saved_at = UnpackedRecords(), UnpackedRecords(), list[int]()

    def packed() -> Iterator[PackedRow]:
        for row in stored:
            if row.sequence not in heads:
                saved_at.append(row.sequence)
            if row.sequence not in out:
                yield row

    for are_live, some in groupby(packed(), key=lambda row: row.sequence in live):
        (ours if are_live else others).take(some, strings)
    return ours, others, saved_at


def _standing(
    judged: Iterable[Judgements],
    operations: Iterable[tuple[Operation, Instant]],
    stands: Callable[[Instant, Instant | None], bool],
) -> Judgements:
    """Return the declarations and verdicts that stand, in order of place; some went with retractions."""
    gone = {place: at for one, at in operations for place in one.retired}
    standing = Judgements([], [])
    for each in judged:
        standing.declarations.extend(
            (one, at)
            for one, at in each.declarations
            if stands(at, gone.get(("declaration", one.sequence, one.ordinal)))
        )
        standing.verdicts.extend(
            (one, at)
            for one, at in each.verdicts
            if stands(at, gone.get(("verdict", one.sequence, one.ordinal)))
        )
    for found in standing:
        found.sort(key=lambda one: (one[0].sequence, one[0].ordinal))
    return standing


def _operations(store: Store, group: str) -> list[tuple[Operation, Instant]]:
    """Return the corrections that were carried out, or begun, with their record times."""
    found = (row for row in store.rows(kinds.OPERATIONS.all, group) if row.state != kinds.REFUSED)
    return [(rows.operation(group, row), row.recorded_at) for row in found if row.recorded_at is not None]


def stored_names(store: Store, group: str, saved_at: Sequence[int]) -> Iterator[NameVector]:
    """Yield the vectors of a group's names in order of place, each name once.

    saved_at: the sequences of the removals that saved names of removed episodes
    """
    saved = [
        name for row in store.rows(reads.NAME_VECTORS_AT, group, saved_at) for name in name_vectors(row.names)
    ]
    apart = set(saved_at)
    scanned = store.rows(reads.NAME_VECTORS, group)
    own = (name for row in scanned if row.sequence not in apart for name in name_vectors(row.names))
    place = attrgetter("sequence", "ordinal")
    known: set[tuple[str, str]] = set()
    for name in merge(sorted(saved, key=place), own, key=place) if saved else own:
        if (owner := (name.entity, name.surface)) not in known:
            known.add(owner)
            yield name


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
            names = {row.id: row.name for row in store.rows(reads.ENTITIES_OF, group, sorted(ids))}
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
    # The evidence of both statements is in episodes that mention their subjects.
    return sequences | _mentioning(store, records, {id_ for verdict in judged for id_ in verdict.subjects})


def _mentioning(store: Store, records: GroupRecords, ends: Iterable[str]) -> set[int]:
    """Return the episodes that mention entities, under any id that corrections connect with them."""
    entities = sorted(connected(records.operations, ends))
    return {row.sequence for row in store.rows(reads.MENTIONS_OF, records.group, entities)}


class StaleRows(NamedTuple):
    """Where the stored graph is not what the records derive: rows to put and keys to drop, by kind."""

    puts: dict[Kind[Any], Sequence[Row]]
    drops: dict[Kind[Any], Sequence[Key]]


def stale(store: Store, group: str) -> StaleRows:
    """Compare a group's stored graph with what its records derive."""
    stored = stored_records(store, group)
    records = stored.live
    graph = GroupGraph.build(records)
    derived_facts = graph.facts_of(graph.statements)
    texts = summaries_of(derived_facts)
    shown_now = (note.shown() for note in graph.entities.values())
    moved = moved_evidence(graph.places(), records.evidence, stored.retired.evidence)
    derived: dict[Kind[Any], Iterable[Row]] = {
        kinds.ENTITIES: (rows.entity_row(replace(one, summary=texts.get(one.id, ""))) for one in shown_now),
        kinds.MENTIONS: mentioned_entities(graph.fold, records.mentions),
        kinds.SHOWN_ENTITIES: shown_entities(graph, graph.shows),
        kinds.SHOWN_EVIDENCE: moved.values(),
        kinds.FACTS: map(rows.fact_row, derived_facts),
    }
    found = StaleRows({}, {})
    for kind in DERIVED:
        held = {kind.key_of(row): tuple(row) for row in store.rows(kind.all, group)}
        now = {kind.key_of(row): tuple(row) for row in derived[kind]}
        found.puts[kind] = [row for key, row in sorted(now.items()) if held.get(key) != row]
        found.drops[kind] = sorted(held.keys() - now.keys())
    return found


def in_pieces(store: Store, group: str) -> bool:
    """Whether a retraction or removal of the group is being carried out in pieces (`ingest.correct`)."""
    pending = store.rows(reads.OPERATIONS_IN_STATE, group, [kinds.PENDING])
    return any(row.result is not None for row in pending)


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

    def entities_named(self, name: str) -> list[Entity]:
        wanted = rows.folded(name)
        named = [e for e in self.all_entities() if wanted in map(rows.folded, (e.name, *e.aliases))]
        return sorted(named, key=lambda entity: (entity.born, entity.id))

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
        # Of a recorded statement that shows as others alone, no fact bears the id.
        shown: dict[str, dict[str, None]] = {statement: {statement: None} for statement in statements}
        for row in self._rows(reads.SHOWN_BY_STATEMENTS, shown):
            if row.shown is not None:
                shown[row.statement][row.shown] = None
        return self._facts(list(shown.values()), as_of)

    def facts_of_evidence(self, places: Sequence[Place], as_of: Instant | None) -> list[list[Fact]]:
        sequences = dict.fromkeys(sequence for sequence, _ in places)
        shown: dict[Place, str | None] = {}
        for row in self._rows(reads.STATEMENTS_AT, sequences):
            for ordinal, _, statement in (each.partition(" ") for each in row.statements):
                shown[row.sequence, int(ordinal)] = statement
        for moved in self._rows(reads.SHOWN_BY_EVIDENCE, sequences):
            shown[moved.sequence, moved.ordinal] = moved.shown
        wanted = dict.fromkeys(id_ for place in places if (id_ := shown.get(place)) is not None)
        by_statement: dict[str, list[Fact]] = {}
        for fact in self._facts([wanted], as_of):
            by_statement.setdefault(fact.statement, []).append(fact)
        return [by_statement.get(shown.get(place) or "", []) for place in places]

    def facts_at(self, entities: Sequence[str], as_of: Instant | None, limit: int | None) -> list[Fact]:
        asked = dict.fromkeys(entities)
        shown = dict.fromkeys(row.id for row in self._rows(reads.ENTITY_IDS, asked))
        folded = [id_ for id_ in asked if id_ not in shown]
        shown.update((row.shown, None) for row in self._rows(reads.SHOWN_OF, folded))
        return self._store.facts_at(self.group, list(shown), as_of, limit) if shown else []

    def facts(self, ids: Sequence[str]) -> list[Fact]:
        return [rows.fact(row) for row in self._rows(reads.FACTS_OF, dict.fromkeys(ids))]

    def entities_of(self, recorded: Sequence[str]) -> list[list[Entity]]:
        shown: dict[str, list[str]] = {id_: [] for id_ in recorded}
        for row in self._rows(reads.SHOWN_OF, shown):
            shown[row.recorded].append(row.shown)
        # An id that no mention was recorded with, a split's, stands for itself.
        parts = {id_: found or [id_] for id_, found in shown.items()}
        wanted = dict.fromkeys(id_ for part in parts.values() for id_ in part)
        known = {row.id: rows.entity(row) for row in self._rows(reads.ENTITIES_OF, wanted)}
        shows = ([known[id_] for id_ in parts[asked] if id_ in known] for asked in recorded)
        return [sorted(found, key=lambda entity: entity.born) for found in shows]

    def entities_named(self, name: str) -> list[Entity]:
        folded = rows.folded(name)
        named = self._store.rows(reads.ENTITY_NAMES, self.group)
        bearing = [row.id for row in named if folded in map(rows.folded, (row.name, *row.aliases))]
        known = (rows.entity(row) for row in self._rows(reads.ENTITIES_OF, bearing))
        return sorted(known, key=lambda entity: (entity.born, entity.id))

    def episodes(self, sequences: Sequence[int]) -> list[Episode]:
        found = self._rows(reads.EPISODES_AT, dict.fromkeys(sequences))
        live = (row for row in found if row.state == kinds.COMMITTED and row.retired_at is None)
        return [rows.episode(self.group, row) for row in live]

    def supporters(self, ids: Sequence[str]) -> dict[str, str | None]:
        return {row.id: row.client_id for row in self._rows(reads.SUPPORTERS, dict.fromkeys(ids))}

    def _facts(self, parts: list[dict[str, None]], as_of: Instant | None) -> list[Fact]:
        """Return the facts of these statements, each once, part by part; within a part by start and id."""
        wanted = dict.fromkeys(statement for part in parts for statement in part)
        by_statement: dict[str, list[Fact]] = {}
        for row in self._rows(reads.FACTS_OF_STATEMENTS, wanted):
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

    def _rows(self, read: Read[R], values: Iterable[object]) -> list[R]:
        asked = list(values)
        return list(self._store.rows(read, self.group, asked)) if asked else []
