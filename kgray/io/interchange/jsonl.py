"""The canonical dump as JSON lines, in memory that does not grow with the group.

The dump's statements follow from evidence. Evidence with one key has the same two ends, so the evidence is
divided into parts by its ends, and the statements of each part are derived alone. Entities that a correction
connects count as one end.
"""

from __future__ import annotations

import marshal
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import groupby, islice, product
from operator import itemgetter
from pathlib import Path
from typing import Any
from zlib import crc32

from kgray.domain.records import (
    EpisodeHead,
    Evidence,
    Mention,
    Operation,
    Place,
    Value,
    canonical,
)
from kgray.graph import dump
from kgray.graph.group import GroupGraph
from kgray.graph.stored import records_of
from kgray.io.interchange.files import Rows, new_file
from kgray.io.interchange.snapshot import Snapshot
from kgray.schema import kinds, reads, rows
from kgray.schema.record_rows import UnpackedRecords
from kgray.storage.ledger import dumped_episodes

_PART = 5_000  # pieces of evidence of a part, about
_ENTRIES = 64  # rows of packed records that are unpacked at once
_TABLES = """
CREATE TABLE lines (line TEXT);
CREATE TABLE evidence (part INT, sequence INT, ordinal INT, row BLOB);
"""
_ADD_EVIDENCE = "INSERT INTO evidence VALUES (?, ?, ?, ?)"
_EVIDENCE = "SELECT part, row FROM evidence ORDER BY part, sequence, ordinal"
_VALUE = Evidence._fields.index("value")
_Parts = list[tuple[str, set[object]]]  # the statements that a recorded statement shows as, with their ends


def write(snapshot: Snapshot, path: Path) -> Rows:
    """Write the lines of `kgray dump`."""
    counts = Counter[str]()
    snapshot.scratch.execute(_TABLES)
    dump_rows = _Streamed(snapshot).rows() if snapshot.is_stored else snapshot.dumped()

    def lines() -> Iterator[tuple[str]]:
        for row in dump_rows:
            counts[row["type"]] += 1
            yield (canonical(row),)

    snapshot.scratch.pour("INSERT INTO lines VALUES (?)", lines())
    with new_file(path) as file:
        # Texts are compared by their UTF-8, which has the order of code points.
        file.writelines(
            f"{line}\n" for (line,) in snapshot.scratch.rows("SELECT line FROM lines ORDER BY line")
        )
    return dict(sorted(counts.items()))


class _Streamed:
    """Yields the rows of the dump of a group as stored."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot, self._scratch = snapshot, snapshot.scratch
        # Without episodes: declarations, verdicts and corrections.
        records = records_of(snapshot.store, snapshot.group, within=[])
        self._roots = _joined(records.operations)
        births = dict[str, Place]()  # of entities with corrections
        for unpacked in self._unpacked() if self._roots else ():
            births |= {id_: unpacked.births[id_] for id_ in self._roots.keys() & unpacked.births.keys()}
        self._records = replace(records, births=births | records.births)
        self._parts: dict[str, _Parts] = {s: [] for v in records.verdicts for s in (v.a, v.b)}

    def rows(self) -> Iterator[dump.DumpRow]:
        """Yield every row of the dump, unsorted."""
        snapshot, store = self._snapshot, self._snapshot.store
        yield from map(dump.episode_row, dumped_episodes(store, snapshot.group))
        for entity_row in store.rows(kinds.ENTITIES.all, snapshot.group):
            yield dump.entity_row(rows.entity(entity_row))
        graph = GroupGraph.build(self._records)
        yield from self._divide(graph)
        for name in graph.relations.names():
            yield dump.relation_row(graph.relations, name)
        for _, part in groupby(self._scratch.rows(_EVIDENCE), key=itemgetter(0)):
            yield from self._derive(marshal.loads(row) for _, row in part)  # noqa: S302 - of this process
        yield from dump.verdict_rows(self._records.verdicts, self._judged, snapshot.episode_id)
        yield from map(dump.merge_row, graph.fold.in_force)
        for fact_row in store.rows(kinds.FACTS.all, snapshot.group):
            if snapshot.holds(fact_row):
                yield dump.fact_row(rows.fact(fact_row))

    def _unpacked(self) -> Iterator[UnpackedRecords]:
        packed = iter(self._snapshot.store.rows(reads.PACKED, self._snapshot.group))
        while entries := list(islice(packed, _ENTRIES)):
            unpacked = UnpackedRecords()
            unpacked.take(entries, {})
            yield unpacked

    def _divide(self, graph: GroupGraph) -> Iterator[dump.DumpRow]:
        """Yield the rows of mentions; store the evidence by part, and note the names of relations."""
        statements = self._snapshot.store.rows(reads.STATEMENTS, self._snapshot.group)
        parts = 1 + sum(len(row.statements) for row in statements) // _PART
        episode_id = lru_cache(_ENTRIES)(self._snapshot.episode_id)  # None: it is not in the graph
        for unpacked in self._unpacked():
            mentions = dict[Place, Mention]()
            for mention in unpacked.mentions:
                if (episode := episode_id(mention.sequence)) is not None:
                    mentions[mention.sequence, mention.ordinal] = mention
                    yield dump.mention_row(mention, episode, graph.fold)
            stored_rows = list[tuple[int, int, int, bytes]]()
            for item in unpacked.evidence:
                if (episode := episode_id(item.sequence)) is not None:
                    graph.relations.use(item.relation)
                    ends = [mentions[item.sequence, n] for n in (item.subject, item.object) if n is not None]
                    key, row = self._packed(item, episode, ends, unpacked.births)
                    stored_rows.append((crc32(key) % parts, item.sequence, item.ordinal, row))
            self._scratch.pour(_ADD_EVIDENCE, stored_rows)

    def _packed(
        self, item: Evidence, episode: str, ends: Sequence[Mention], births: Mapping[str, Place]
    ) -> tuple[bytes, bytes]:
        """Return the key of a piece of evidence, and the piece with the births of the ids in it."""
        value = item.value and (item.value.type, item.value.value, item.value.unit)
        plain: tuple[Any, ...] = (*item[:_VALUE], value, *item[_VALUE + 1 :])
        ids = [mention.entity for mention in ends]
        item_births = {id_: births[id_] for id_ in (*ids, item.statement)}
        row = marshal.dumps((plain, [mention[1:4] for mention in ends], item_births, episode))
        return " ".join(sorted(self._roots.get(id_, id_) for id_ in ids)).encode(), row

    def _derive(self, part: Iterable[tuple[Any, ...]]) -> Iterator[dump.DumpRow]:
        """Yield the rows of the statements and the evidence of a part."""
        evidence, mentions, births, ids = list[Evidence](), dict[Place, Mention](), dict[str, Place](), {}
        for plain, ends, item_births, episode in part:
            value = plain[_VALUE] and Value(*plain[_VALUE])
            item = Evidence._make((*plain[:_VALUE], value, *plain[_VALUE + 1 :]))
            evidence.append(item)
            births.update(item_births)
            ids[item.sequence] = episode
            for ordinal, surface, entity in ends:
                mentions[item.sequence, ordinal] = Mention(item.sequence, ordinal, surface, entity)
        records = replace(
            self._records,
            heads=[EpisodeHead(sequence, id_, 0, 0) for sequence, id_ in sorted(ids.items())],
            mentions=[mentions[place] for place in sorted(mentions)],
            evidence=evidence,
            verdicts=[],
            births=self._records.births | births,
        )
        graph = GroupGraph.build(records)
        yield from map(dump.statement_row, graph.statements.values())
        places = graph.places()
        for item in evidence:
            statement = places.get((item.sequence, item.ordinal))
            yield dump.evidence_row(item, ids[item.sequence], statement)
        for recorded in self._parts.keys() & {item.statement for item in evidence}:
            self._parts[recorded] += [
                (id_, {graph.statements[id_].subject, graph.statements[id_].key[2]})
                for id_ in graph.parts.get(recorded, (recorded,))
                if id_ in graph.statements
            ]

    def _judged(self, a: str, b: str) -> Iterator[tuple[str, str]]:
        """Yield the pairs of statements that two recorded statements show as, as `GroupGraph.judged`."""
        for (first, first_ends), (second, second_ends) in product(self._parts[a], self._parts[b]):
            if first != second and first_ends & second_ends:
                yield first, second


def _joined(operations: Iterable[Operation]) -> dict[str, str]:
    """Return entity -> an id that all entities have that corrections connect with it."""
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
