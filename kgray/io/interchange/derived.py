"""The graph of a group at one moment, derived from its records part by part (R4).

Most statements influence no other statement. So the evidence is divided into components that do not influence
each other: the evidence between two entities, and all evidence that one functional slot or a verdict connects
with it. A `Part` is the graph of some components; one part is derived at a time. Besides the part, memory
grows by 32 bytes for each pair of entities, statement and slot. A component is in memory as a whole.
"""

from __future__ import annotations

import marshal
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, NamedTuple

from kgray.domain.graph import Entity, Fact
from kgray.domain.records import EpisodeHead, Evidence, Mention, Operation, Place, Value, Verdict
from kgray.domain.times import Instant
from kgray.errors import damaged
from kgray.graph.group import GroupGraph
from kgray.graph.names import EntityNote, Fold
from kgray.graph.rivals import SlotKey
from kgray.graph.stored import records_of
from kgray.ports import Store
from kgray.schema import reads
from kgray.schema.record_rows import UnpackedRecords
from kgray.storage.sqlite.scratch import Scratch

PART = 5_000  # approximate number of pieces of evidence in a part
_ENTRIES = 64  # rows of packed records that are unpacked at once
_TABLES = """
CREATE TABLE record_mentions (root TEXT, sequence INT, ordinal INT, row BLOB);
CREATE TABLE nodes (key TEXT PRIMARY KEY, node INT) WITHOUT ROWID;
CREATE TABLE record_evidence (node INT, sequence INT, ordinal INT, row BLOB);
CREATE TABLE parts (node INTEGER PRIMARY KEY, part INT);
"""
_ADD_MENTION = "INSERT INTO record_mentions VALUES (?, ?, ?, ?)"
_ADD_EVIDENCE = "INSERT INTO record_evidence VALUES (?, ?, ?, ?)"
_MENTIONS = "SELECT root, row FROM record_mentions ORDER BY root, sequence, ordinal"
_EVIDENCE = "SELECT part, row FROM record_evidence JOIN parts USING (node) ORDER BY part, sequence, ordinal"
_VALUE = Evidence._fields.index("value")
_SINGLE_VALUED = frozenset({"single", "single_object"})


class Part(NamedTuple):
    """Some components of a group: their graph, their records in order of place, and the ids of episodes."""

    graph: GroupGraph
    evidence: list[Evidence]
    verdicts: list[Verdict]
    episode_ids: dict[int, str]  # sequence -> id

    def facts(self) -> Iterator[Fact]:
        """Yield the facts of any time, one component after another."""
        done = set[str]()
        for statement in self.graph.statements:
            if statement not in done:
                component = self.graph.spans_of([statement])
                done.update(component)
                for spans in component.values():
                    yield from map(self.graph.fact, spans)


class DerivedGroup:
    """The graph of a group as its records give it at one moment.

    head_of    sequence -> the head of an episode that is in the graph at that moment; None: it is not
    scratch    the database for the records
    relations  the names of relations that the evidence uses, with their declarations
    """

    def __init__(
        self, store: Store, group: str, known_at: Instant | None, scratch: Scratch,
        head_of: Callable[[int], EpisodeHead | None],
    ) -> None:  # fmt: skip
        """Read and divide the records. Raises Damaged."""
        self._scratch, self._head_of = scratch, head_of
        # Without episodes: declarations, verdicts and corrections.
        self._records = records_of(store, group, known_at, within=[])
        self.relations = GroupGraph.build(replace(self._records, verdicts=[], operations=[])).relations
        self._roots = _representatives(self._records.operations)
        self._births = dict(self._records.births)  # of entities with corrections
        self._nodes = _Components()
        scratch.execute(_TABLES)
        packed = iter(store.rows(reads.PACKED, group))
        while entries := list(islice(packed, _ENTRIES)):
            try:
                unpacked = UnpackedRecords()
                unpacked.take(entries, {})
                self._take(unpacked)
            except (LookupError, ValueError, TypeError) as fault:  # a row that cannot be read
                raise damaged(group, fault) from fault
        scratch.pour("INSERT INTO parts VALUES (?, ?)", self._nodes.parts(PART))

    @cached_property
    def fold(self) -> Fold:
        """The merges and splits in force."""
        return Fold(self._records.operations, self._births, self._records.recorded)

    def mentions(self) -> Iterator[Mention]:
        """Yield the mentions; the mentions of an entity are in order of place."""
        for _, row in self._scratch.rows(_MENTIONS):
            yield Mention._make(marshal.loads(row)[0])  # noqa: S302 - of this process

    def entities(self) -> Iterator[Entity]:
        """Yield the entities, without summaries."""
        for _, mention_rows in groupby(self._scratch.rows(_MENTIONS), key=itemgetter(0)):
            notes: dict[str, EntityNote] = {}
            for _, row in mention_rows:
                columns, born = marshal.loads(row)  # noqa: S302 - of this process
                mention = Mention._make(columns)
                shown_id, _ = self.fold.shown(mention.entity, mention.surface, mention.sequence)
                if (note := notes.get(shown_id)) is None:
                    note = notes[shown_id] = EntityNote(shown_id, self._births.get(shown_id, born))
                note.take(mention)
            for note in notes.values():
                yield note.shown()

    def parts(self, name_of: Callable[[str], str | None]) -> Iterator[Part]:
        """Yield the graph part by part. name_of: id of an entity -> its name."""
        for _, rows in groupby(self._scratch.rows(_EVIDENCE), key=itemgetter(0)):
            evidence, heads = list[Evidence](), dict[int, EpisodeHead]()
            mentions, births = dict[Place, Mention](), dict[str, Place]()
            for _, row in rows:
                plain, ends, item_births, head = marshal.loads(row)  # noqa: S302 - of this process
                value = plain[_VALUE] and Value(*plain[_VALUE])
                item = Evidence._make((*plain[:_VALUE], value, *plain[_VALUE + 1 :]))
                evidence.append(item)
                births.update(item_births)
                heads[item.sequence] = EpisodeHead(*head)
                for columns in ends:
                    mentions[columns[:2]] = Mention._make(columns)
            recorded = {item.statement for item in evidence}
            records = replace(
                self._records,
                heads=list(heads.values()),
                mentions=[mentions[place] for place in sorted(mentions)],
                evidence=evidence,
                verdicts=[v for v in self._records.verdicts if v.a in recorded and v.b in recorded],
                births=self._births | births,
            )
            shown_ids = {self.fold.shown(m.entity, m.surface, m.sequence)[0] for m in records.mentions}
            names = {id_: name for id_ in shown_ids if (name := name_of(id_)) is not None}
            graph = GroupGraph.build(replace(records, names=names))
            ids = {head.sequence: head.id for head in records.heads}
            yield Part(graph, evidence, records.verdicts, ids)

    def _take(self, unpacked: UnpackedRecords) -> None:
        """Store the records of entries that are in the graph."""
        births = unpacked.births
        self._births |= {id_: births[id_] for id_ in self._roots.keys() & births.keys()}
        heads = {s: self._head_of(s) for s in {m.sequence for m in unpacked.mentions}}
        mentions = {(m.sequence, m.ordinal): m for m in unpacked.mentions if heads[m.sequence] is not None}
        self._scratch.pour(
            _ADD_MENTION,
            (
                (self._root(m.entity), m.sequence, m.ordinal, marshal.dumps((tuple(m), births[m.entity])))
                for m in mentions.values()
            ),
        )
        evidence_rows = list[tuple[int, int, int, bytes]]()
        for item in unpacked.evidence:
            if (head := heads.get(item.sequence)) is not None:
                ordinals = [item.subject, *([] if item.object is None else [item.object])]
                ends = [mentions[item.sequence, ordinal] for ordinal in ordinals]
                node = self._connect(item, [self._root(mention.entity) for mention in ends])
                evidence_rows.append((node, item.sequence, item.ordinal, _packed(item, ends, births, head)))
        self._scratch.pour(_ADD_EVIDENCE, evidence_rows)

    def _connect(self, item: Evidence, ends: Sequence[str]) -> int:
        """Return the node of a piece of evidence, connected with all nodes that influence its facts.

        These are the evidence between the same ends, of the same recorded statement, of the same functional
        slots (`StatementRivals.slot_keys`), and of statements that a verdict compares with it.
        """
        self.relations.use(item.relation)
        value = item.value and (item.value.type, item.value.value, item.value.unit)
        node = self._node("ends", *sorted(ends), *([repr(value)] if value else ()))
        self._nodes.count(node)
        self._nodes.join(node, self._node("statement", item.statement))
        for other in self._judged.get(item.statement, ()):
            self._nodes.join(node, self._node("statement", other))
        for role, entity, name in self._slots(item, ends):
            self._nodes.join(node, self._node(role, entity, name))
        return node

    def _slots(self, item: Evidence, ends: Sequence[str]) -> set[SlotKey]:
        name, is_swapped, _ = self.relations.folded(item.relation)
        traits = self.relations.traits(name)
        if traits.cardinality not in _SINGLE_VALUED:
            return set()
        if item.value is not None:
            return {("s", ends[0], name)}
        subject, target = reversed(ends) if is_swapped else ends
        if traits.symmetric:
            return {("s", subject, name), ("s", target, name)}
        return {("s", subject, name) if traits.cardinality == "single" else ("o", target, name)}

    @cached_property
    def _judged(self) -> Mapping[str, Collection[str]]:
        """Recorded statement -> the statements that a verdict compares with it."""
        others: dict[str, set[str]] = {}
        for verdict in self._records.verdicts:
            others.setdefault(verdict.a, set()).add(verdict.b)
            others.setdefault(verdict.b, set()).add(verdict.a)
        return others

    def _root(self, entity: str) -> str:
        return self._roots.get(entity, entity)

    def _node(self, *key: str) -> int:
        text = "\x1f".join(key)
        row = self._scratch.first("SELECT node FROM nodes WHERE key = ?", (text,))
        if row is None:
            row = (self._nodes.add(),)
            self._scratch.execute("INSERT INTO nodes VALUES (?, ?)", (text, row[0]))
        return int(row[0])


class _Components:
    """Disjoint sets of nodes, which are numbered from 0 on (union-find with path halving)."""

    def __init__(self) -> None:
        self._parents, self._sizes = array("q"), array("q")

    def add(self) -> int:
        """Add a node; return its number."""
        self._parents.append(len(self._parents))
        self._sizes.append(0)
        return len(self._parents) - 1

    def count(self, node: int) -> None:
        """Add a piece of evidence to a node."""
        self._sizes[node] += 1

    def join(self, first: int, second: int) -> None:
        """Connect two nodes."""
        self._parents[self._root(second)] = self._root(first)

    def parts(self, size: int) -> Iterator[tuple[int, int]]:
        """Yield (node, number of its part).

        A part has whole components and, except the last part, at least `size` pieces of evidence.
        """
        totals = array("q", bytes(8 * len(self._sizes)))
        for node, pieces in enumerate(self._sizes):
            totals[self._root(node)] += pieces
        numbers, number, filled = array("q", bytes(8 * len(totals))), 0, 0
        for node, total in enumerate(totals):
            numbers[node] = number
            filled += total
            if filled >= size:
                number, filled = number + 1, 0
        for node, pieces in enumerate(self._sizes):
            if pieces:
                yield node, numbers[self._root(node)]

    def _root(self, node: int) -> int:
        parents = self._parents
        while (parent := parents[node]) != node:
            parents[node] = parents[parent]
            node = parents[node]
        return node


def _packed(item: Evidence, ends: Iterable[Mention], births: Mapping[str, Place], head: EpisodeHead) -> bytes:
    """Return a piece of evidence with its mentions, the births of the ids in it, and its episode."""
    value = item.value and (item.value.type, item.value.value, item.value.unit)
    plain: tuple[Any, ...] = (*item[:_VALUE], value, *item[_VALUE + 1 :])
    item_births = {id_: births[id_] for id_ in (item.statement, *(mention.entity for mention in ends))}
    return marshal.dumps((plain, list(map(tuple, ends)), item_births, tuple(head)))


def _representatives(operations: Iterable[Operation]) -> dict[str, str]:
    """Return entity -> a representative id, the same for all entities that corrections connect."""
    roots = dict[str, str]()

    def root(id_: str) -> str:
        while (parent := roots.setdefault(id_, id_)) != id_:
            id_ = parent
        return id_

    for operation in operations:
        first, *rest_ids = filter(None, (*operation.entities, operation.made))
        for id_ in rest_ids:
            roots[root(id_)] = root(first)
    return {id_: root(id_) for id_ in roots}
