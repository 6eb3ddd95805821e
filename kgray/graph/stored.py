"""Read a group from a store: all its records or a part of them, and its graph, derived or as stored."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import merge
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from kgray.domain.graph import Entity, Fact
from kgray.domain.records import Episode, EpisodeHead, GroupRecords, Operation, Place
from kgray.domain.times import Instant
from kgray.errors import damaged
from kgray.graph.change import mentioned_entities
from kgray.graph.group import GroupGraph
from kgray.graph.names import connected
from kgray.graph.statements import moved_evidence
from kgray.graph.texts import summaries_of
from kgray.ports import GraphView, Store, at_one_moment
from kgray.schema import kinds, reads, rows
from kgray.schema.kinds import Key, Kind, R, Read, Row
from kgray.schema.reads import EpisodeHeadRow, PackedRow
from kgray.schema.record_rows import (
    Judgements,
    NameVector,
    UnpackedRecords,
    judgements,
    name_vectors,
    newest_vectors,
)
from kgray.system.garbage import garbage_not_collected

DERIVED: tuple[Kind[Any], ...] = (
    kinds.ENTITIES, kinds.MENTIONS, kinds.SHOWN_ENTITIES, kinds.SHOWN_EVIDENCE, kinds.FACTS,
)  # fmt: skip
ORDERED_KINDS = frozenset({"merge", "split", "distinct", "undo"})  # the corrections that derivation applies


def records_of(
    store: Store, group: str, known_at: Instant | None = None, *, within: Sequence[int] | None = None
) -> GroupRecords:
    """Return the group's live records, as of now or as known at `known_at`. Raises Damaged.

    within  sequences of episodes: read only their heads, mentions, evidence and births; None = all episodes

    `known_at` does not apply to `last_recorded`, which is the current value.
    """
    return stored_records(store, group, known_at, within=within).live


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRecords:
    """The records of a group.

    live      the records in force at the moment of the read
    retired   the mentions and evidence of committed episodes that are not live
    vectors   recorded statement -> (sequence, position) of its vector among the records of an entry
    heads     sequence -> the head of a stored episode, in any state
    judged    sequence of a row -> its declarations and verdicts, retired ones included
    saved_at  sequences of the removals that saved records of removed episodes
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
    store: Store, group: str, known_at: Instant | None, sequences: Sequence[int] | None
) -> StoredRecords:
    def is_in_force(recorded_at: Instant | None, retired_at: Instant | None) -> bool:
        is_recorded = recorded_at is not None and (known_at is None or recorded_at <= known_at)
        return is_recorded and (retired_at is None or (known_at is not None and retired_at > known_at))

    def read(scan: Read[R], look_up: Read[R]) -> Iterator[R]:
        return store.rows(scan, group) if sequences is None else store.rows(look_up, group, list(sequences))

    with garbage_not_collected():
        heads = {row.sequence: row for row in read(reads.EPISODE_HEADS, reads.EPISODE_HEADS_AT)}
        live = {
            row.sequence: EpisodeHead(row.sequence, row.id, row.reference_time, row.ended_at or 0)
            for row in heads.values()
            if row.state == kinds.COMMITTED and is_in_force(row.ended_at, row.retired_at)
        }
        current, retired, saved_at = _unpacked(read(reads.PACKED, reads.PACKED_AT), heads, live)
        carried_out = _operations(store, group)
        operations = [o for o, at in carried_out if o.kind in ORDERED_KINDS and is_in_force(at, None)]
        judged = {row.sequence: judgements(row.judged) for row in store.rows(reads.JUDGED, group)}
        declarations, verdicts = _judgements_in_force(judged.values(), carried_out, is_in_force)
        recorded = {operation.sequence: at for operation, at in carried_out}
        recorded |= {d.sequence: at for d, at in declarations} | {v.sequence: at for v, at in verdicts}
        corrected = {id_: (a, b) for operation in operations for id_, a, b in operation.births}
        records = GroupRecords(
            group=group,
            heads=list(live.values()),
            mentions=current.mentions,
            evidence=current.evidence,
            declarations=[declaration for declaration, _ in declarations],
            verdicts=[verdict for verdict, _ in verdicts],
            operations=operations,
            recorded=recorded,
            births={**retired.births, **corrected, **current.births},
            last_recorded=store.heads([group])[group].last_recorded,
        )
        return StoredRecords(
            live=records,
            retired=retired,
            vectors=newest_vectors((*current.vectors, *retired.vectors)),
            heads=heads,
            judged=judged,
            saved_at=saved_at,
        )


def _unpacked(
    stored: Iterable[PackedRow], heads: Mapping[int, EpisodeHeadRow], live: Collection[int]
) -> tuple[UnpackedRecords, UnpackedRecords, list[int]]:
    """Return the records of live episodes, the records of other rows, and the sequences of removals."""
    # While a removal runs in pieces, its episodes are still stored but no longer belong to the graph.
    uncommitted = {row.sequence for row in heads.values() if row.state != kinds.COMMITTED}
    strings: dict[str, str] = {}
    live_records, other_records, saved_at = UnpackedRecords(), UnpackedRecords(), list[int]()

    def packed() -> Iterator[PackedRow]:
        for row in stored:
            if row.sequence not in heads:
                saved_at.append(row.sequence)
            if row.sequence not in uncommitted:
                yield row

    for are_live, packed_rows in groupby(packed(), key=lambda row: row.sequence in live):
        (live_records if are_live else other_records).take(packed_rows, strings)
    return live_records, other_records, saved_at


def _judgements_in_force(
    judged: Iterable[Judgements],
    operations: Iterable[tuple[Operation, Instant]],
    is_in_force: Callable[[Instant, Instant | None], bool],
) -> Judgements:
    """Return the declarations and verdicts in force, in order of place; retractions withdrew the others."""
    retired_at = {place: at for record, at in operations for place in record.retired}
    in_force = Judgements([], [])
    for stored in judged:
        in_force.declarations.extend(
            (record, at)
            for record, at in stored.declarations
            if is_in_force(at, retired_at.get(("declaration", record.sequence, record.ordinal)))
        )
        in_force.verdicts.extend(
            (record, at)
            for record, at in stored.verdicts
            if is_in_force(at, retired_at.get(("verdict", record.sequence, record.ordinal)))
        )
    for records in in_force:
        records.sort(key=lambda record: (record[0].sequence, record[0].ordinal))
    return in_force


def _operations(store: Store, group: str) -> list[tuple[Operation, Instant]]:
    """Return the corrections that were carried out, or begun, with their record times."""
    return [
        (rows.operation(group, row), row.recorded_at)
        for row in store.rows(kinds.OPERATIONS.all, group)
        if row.state != kinds.REFUSED and row.recorded_at is not None
    ]


def stored_names(store: Store, group: str, saved_at: Sequence[int]) -> Iterator[NameVector]:
    """Yield the vectors of a group's names in order of place, each name once.

    saved_at  the sequences of the removals that saved names of removed episodes
    """
    saved = [
        name for row in store.rows(reads.NAME_VECTORS_AT, group, saved_at) for name in name_vectors(row.names)
    ]
    removals = set(saved_at)
    scanned = store.rows(reads.NAME_VECTORS, group)
    unsaved = (name for row in scanned if row.sequence not in removals for name in name_vectors(row.names))
    place = attrgetter("sequence", "ordinal")
    yielded: set[tuple[str, str]] = set()
    for name in merge(sorted(saved, key=place), unsaved, key=place) if saved else unsaved:
        if (owner := (name.entity, name.surface)) not in yielded:
            yielded.add(owner)
            yield name


# A read of all episodes costs less than look-ups, from 1,000 look-ups and a quarter of all episodes on.
_MIN_SCAN_EPISODES, _SCAN_SHARE = 1_000, 4
Episodes = Callable[[Sequence[int]], list[Episode]]  # reads episodes by sequence
StatementChoice = Callable[[GroupGraph], Iterable[str]]  # chooses the statements that must be complete


def records_around(
    store: Store,
    group: str,
    choose: StatementChoice,
    *,
    episodes: Iterable[int] = (),
    entities: Iterable[str] = (),
) -> GroupRecords:
    """Return the records of these episodes and entities, and all records that decide the chosen statements.

    This saves deriving the whole group (5 s for 40,000 messages) to show one message or to merge two
    entities. A statement follows from all evidence with its key, and its facts from the statements that
    rivalry connects with it, so episodes that mention their subjects are read until none is missing. Other
    statements and entities than the chosen ones may be incomplete. Call it inside `Store.reading`.
    """
    last = store.heads([group])[group].last
    group_records = records_of(store, group, within=[])
    complete = connected(group_records.operations, entities)
    sequences = set(episodes) | _mentioning(store, group_records, complete)
    while len(sequences) <= _MIN_SCAN_EPISODES or _SCAN_SHARE * len(sequences) <= last:
        records = records_of(store, group, within=sorted(sequences))
        needed = _needed(store, records, choose) - sequences
        if not needed:
            # Texts of facts use names of entities (R18). They are read where mentions may be missing.
            corrected = {i for o in records.operations for i in (*o.entities, o.made) if i}
            ids = {mention.entity for mention in records.mentions} | corrected
            ids -= connected(records.operations, set(entities))
            names = {row.id: row.name for row in store.rows(reads.ENTITIES_OF, group, sorted(ids))}
            return replace(records, names=names)
        sequences |= needed
    return records_of(store, group)


def records_of_entities(store: Store, group: str, ids: Iterable[str], *, undone: int | None) -> GroupRecords:
    """Return the records that decide all statements about these entities and the entities of an operation.

    undone  the sequence of the operation that will be undone; None = there is none
    """

    def read() -> GroupRecords:
        operations = records_of(store, group, within=[]).operations
        undoing = (i for operation in operations if operation.sequence == undone for i in operation.entities)
        entities = connected(operations, {*ids, *undoing})

        def choose(graph: GroupGraph) -> list[str]:
            return [s.id for s in graph.statements.values() if {s.subject, s.object} & entities]

        return records_around(store, group, choose, entities=entities)

    return at_one_moment(store, read)


def _needed(store: Store, records: GroupRecords, choose: StatementChoice) -> set[int]:
    """Return the episodes that decide the chosen statements, their rivals and the verdicts on them."""
    graph = GroupGraph.build(records)
    members = {m for statement in choose(graph) for m in graph.component(statement)[1]}
    ends = {graph.statements[member].subject for member in members}
    ends |= {end for member in members for _, end, _ in graph.slot_keys(member)}
    sequences = _mentioning(store, records, ends)
    places = graph.places()
    recorded = {e.statement for e in records.evidence if places.get((e.sequence, e.ordinal)) in members}
    judged = [verdict for verdict in records.verdicts if {verdict.a, verdict.b} & recorded]
    # The evidence of both statements is in episodes that mention their subjects.
    return sequences | _mentioning(store, records, {id_ for verdict in judged for id_ in verdict.subjects})


def _mentioning(store: Store, records: GroupRecords, ends: Iterable[str]) -> set[int]:
    """Return the episodes that mention entities, under any id that corrections connect with them."""
    entities = sorted(connected(records.operations, ends))
    return {row.sequence for row in store.rows(reads.MENTIONS_OF, records.group, entities)}


class StaleRows(NamedTuple):
    """Differences of the stored graph from the derived graph: rows to put and keys to drop, by kind."""

    puts: dict[Kind[Any], Sequence[Row]]
    drops: dict[Kind[Any], Sequence[Key]]


def stale_rows(store: Store, group: str) -> StaleRows:
    """Compare a group's stored graph with the graph that its records derive."""
    stored = stored_records(store, group)
    records = stored.live
    graph = GroupGraph.build(records)
    derived_facts = graph.facts_of(graph.statements)
    texts = summaries_of(derived_facts)
    entities = (note.shown() for note in graph.entities.values())
    moved = moved_evidence(graph.places(), records.evidence, stored.retired.evidence)
    derived: dict[Kind[Any], Iterable[Row]] = {
        kinds.ENTITIES: (rows.entity_row(replace(e, summary=texts.get(e.id, ""))) for e in entities),
        kinds.MENTIONS: mentioned_entities(graph.fold, records.mentions),
        kinds.SHOWN_ENTITIES: graph.shown_entities(graph.shows),
        kinds.SHOWN_EVIDENCE: moved.values(),
        kinds.FACTS: map(rows.fact_row, derived_facts),
    }
    result = StaleRows({}, {})
    for kind in DERIVED:
        stored_rows = {kind.key_of(row): tuple(row) for row in store.rows(kind.all, group)}
        derived_rows = {kind.key_of(row): tuple(row) for row in derived[kind]}
        result.puts[kind] = [r for key, r in sorted(derived_rows.items()) if stored_rows.get(key) != r]
        result.drops[kind] = sorted(stored_rows.keys() - derived_rows.keys())
    return result


def in_pieces(store: Store, group: str) -> bool:
    """Return whether a retraction or removal of the group is running in pieces (`ingest.correct`)."""
    pending = store.rows(reads.OPERATIONS_IN_STATE, group, [kinds.PENDING])
    return any(row.result is not None for row in pending)


def view_now(store: Store, group: str) -> GraphView:
    """Return the current graph of a group from the store. Call it inside the snapshot that the view reads.

    While a removal runs in pieces, the stored graph is inconsistent. Then the view is derived from the
    records, which are correct from the first piece on, at the cost of the whole group.
    """
    stored = StoredView(store, group)
    return View(records_of(store, group), stored.episodes) if in_pieces(store, group) else stored


_by_birth = attrgetter("born", "id")


def _in_order(facts: Iterable[Fact], parts: Iterable[Iterable[str]]) -> list[Fact]:
    """Return facts, each once, in order of the parts (lists of their statements), then by start and id."""
    by_statement: dict[str, list[Fact]] = {}
    for fact in facts:
        by_statement.setdefault(fact.statement, []).append(fact)
    unique: dict[str, Fact] = {}
    for part in parts:
        ordered = [fact for statement in part for fact in by_statement.get(statement, ())]
        ordered.sort(key=lambda f: (f.valid_at is not None, f.valid_at or 0, f.id))
        unique.update((fact.id, fact) for fact in ordered if fact.id not in unique)
    return list(unique.values())


class View(GraphView):
    """A `ports.GraphView` derived from records (R4); each call sweeps the statements that it needs."""

    def __init__(self, records: GroupRecords, episodes: Episodes, graph: GroupGraph | None = None) -> None:
        """Take the graph of these records; None = build it."""
        self.records = records
        self.graph = GroupGraph.build(records) if graph is None else graph
        self.group = records.group
        self._read_episodes = episodes
        self._live = {head.sequence for head in records.heads}
        self._by_statement: dict[str, list[Fact]] = {}

    def facts_of(self, statements: Sequence[str], as_of: Instant | None) -> list[Fact]:
        shown_ids = self.shown_statements
        parts = [shown_ids.get(recorded, []) for recorded in statements]
        return _in_order(self._holding([s for part in parts for s in part], as_of), parts)

    def facts_of_evidence(self, places: Sequence[Place], as_of: Instant | None) -> list[list[Fact]]:
        return [self._holding([self.places[p]] if p in self.places else [], as_of) for p in places]

    def facts_at(self, entities: Sequence[str], as_of: Instant | None, limit: int | None) -> list[Fact]:
        facts = self._holding([s for e in entities for s in self.graph.about.get(e, ())], as_of)
        facts.sort(key=lambda f: (-f.created_at, f.id))
        return facts[:limit]

    def facts(self, ids: Sequence[str]) -> list[Fact]:
        wanted_ids = set(ids)
        return [f for f in self.all_facts() if f.id in wanted_ids]

    def entities_named(self, name: str) -> list[Entity]:
        folded_name = rows.folded(name)
        named = [e for e in self.all_entities() if folded_name in map(rows.folded, (e.name, *e.aliases))]
        return sorted(named, key=_by_birth)

    def entities_of(self, recorded: Sequence[str]) -> list[list[Entity]]:
        shown_ids = (self.graph.shows_as(id_) & self.graph.entities.keys() for id_ in recorded)
        return [sorted(map(self.graph.entity, ids), key=_by_birth) for ids in shown_ids]

    def episodes(self, sequences: Sequence[int]) -> list[Episode]:
        live_sequences = [s for s in sequences if s in self._live]
        by_sequence = {e.sequence: e for e in self._read_episodes(live_sequences)}
        return [by_sequence[s] for s in live_sequences if s in by_sequence]

    def supporters(self, ids: Sequence[str]) -> dict[str, str | None]:
        wanted_ids = set(ids)
        sequences = [h.sequence for h in self.records.heads if h.id in wanted_ids]
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
        shown_ids: dict[str, dict[str, None]] = {}
        for evidence in self.records.evidence:
            if (shown_id := self.places.get((evidence.sequence, evidence.ordinal))) is not None:
                shown_ids.setdefault(evidence.statement, {})[shown_id] = None
        return {recorded: list(ids) for recorded, ids in shown_ids.items()}

    def _holding(self, statements: Sequence[str], as_of: Instant | None) -> list[Fact]:
        unique = dict.fromkeys(statements)
        missing = [s for s in unique if s not in self._by_statement]
        for statement, spans in self.graph.spans_of(missing).items():
            self._by_statement[statement] = [self.graph.fact(span) for span in spans]
        facts = (f for s in unique for f in self._by_statement[s])
        return [f for f in facts if as_of is None or f.holds_at(as_of)]


class StoredView(GraphView):
    """The `ports.GraphView` of a group as known now, from the store: at most three declared reads a call.

    Each call sees the snapshot of the `Store.reading` around it, else the newest state.
    """

    def __init__(self, store: Store, group: str) -> None:
        self._store = store
        self.group = group

    def facts_of(self, statements: Sequence[str], as_of: Instant | None) -> list[Fact]:
        # A recorded id that shows only as other statements does no harm here: no fact has it.
        shown_ids: dict[str, dict[str, None]] = {statement: {statement: None} for statement in statements}
        for row in self._rows(reads.SHOWN_BY_STATEMENTS, shown_ids):
            if row.shown is not None:
                shown_ids[row.statement][row.shown] = None
        return self._facts(list(shown_ids.values()), as_of)

    def facts_of_evidence(self, places: Sequence[Place], as_of: Instant | None) -> list[list[Fact]]:
        sequences = dict.fromkeys(sequence for sequence, _ in places)
        statement_at: dict[Place, str | None] = {}
        for row in self._rows(reads.STATEMENTS_AT, sequences):
            for ordinal, _, statement in (item.partition(" ") for item in row.statements):
                statement_at[row.sequence, int(ordinal)] = statement
        for moved in self._rows(reads.SHOWN_BY_EVIDENCE, sequences):
            statement_at[moved.sequence, moved.ordinal] = moved.shown
        statements = dict.fromkeys(id_ for place in places if (id_ := statement_at.get(place)) is not None)
        by_statement: dict[str, list[Fact]] = {}
        for fact in self._facts([statements], as_of):
            by_statement.setdefault(fact.statement, []).append(fact)
        return [by_statement.get(statement_at.get(place) or "", []) for place in places]

    def facts_at(self, entities: Sequence[str], as_of: Instant | None, limit: int | None) -> list[Fact]:
        unique = dict.fromkeys(entities)
        shown_ids = dict.fromkeys(row.id for row in self._rows(reads.ENTITY_IDS, unique))
        folded = [id_ for id_ in unique if id_ not in shown_ids]
        shown_ids.update((row.shown, None) for row in self._rows(reads.SHOWN_OF, folded))
        return self._store.facts_at(self.group, list(shown_ids), as_of, limit) if shown_ids else []

    def facts(self, ids: Sequence[str]) -> list[Fact]:
        return [rows.fact(row) for row in self._rows(reads.FACTS_OF, dict.fromkeys(ids))]

    def entities_of(self, recorded: Sequence[str]) -> list[list[Entity]]:
        shown_ids: dict[str, list[str]] = {id_: [] for id_ in recorded}
        for row in self._rows(reads.SHOWN_OF, shown_ids):
            shown_ids[row.recorded].append(row.shown)
        # No mention was recorded with the id of a split's part: such an id shows as itself.
        id_lists = [shown_ids[id_] or [id_] for id_ in recorded]
        unique = dict.fromkeys(id_ for ids in id_lists for id_ in ids)
        stored = {row.id: rows.entity(row) for row in self._rows(reads.ENTITIES_OF, unique)}
        return [sorted((stored[i] for i in ids if i in stored), key=_by_birth) for ids in id_lists]

    def entities_named(self, name: str) -> list[Entity]:
        folded = rows.folded(name)
        named = self._store.rows(reads.ENTITY_NAMES, self.group)
        bearing = [row.id for row in named if folded in map(rows.folded, (row.name, *row.aliases))]
        bearers = (rows.entity(row) for row in self._rows(reads.ENTITIES_OF, bearing))
        return sorted(bearers, key=_by_birth)

    def episodes(self, sequences: Sequence[int]) -> list[Episode]:
        episode_rows = self._rows(reads.EPISODES_AT, dict.fromkeys(sequences))
        live = (row for row in episode_rows if row.state == kinds.COMMITTED and row.retired_at is None)
        return [rows.episode(self.group, row) for row in live]

    def supporters(self, ids: Sequence[str]) -> dict[str, str | None]:
        return {row.id: row.client_id for row in self._rows(reads.SUPPORTERS, dict.fromkeys(ids))}

    def _facts(self, parts: list[dict[str, None]], as_of: Instant | None) -> list[Fact]:
        """Return the facts of these statements, each once, in order of the parts, then by start and id."""
        statements = dict.fromkeys(statement for part in parts for statement in part)
        facts = map(rows.fact, self._rows(reads.FACTS_OF_STATEMENTS, statements))
        return _in_order((f for f in facts if as_of is None or f.holds_at(as_of)), parts)

    def _rows(self, read: Read[R], values: Iterable[object]) -> list[R]:
        keys = list(values)
        return list(self._store.rows(read, self.group, keys)) if keys else []
