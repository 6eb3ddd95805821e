"""Reading: the records of a group, its derived graph, and the two searches."""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from operator import itemgetter
from typing import Literal

import numpy as np

from kgray.graph import Entity
from kgray.ports import GraphView, SearchScope, Vector
from kgray.records import Episode, EpisodeHead, GroupRecords, Place, Ruling, Verdict
from kgray.stores.sqlite import rows
from kgray.stores.sqlite import statements as sql
from kgray.stores.sqlite.database import MASK, Database, keys_of
from kgray.stores.sqlite.lexical import find_words
from kgray.stores.sqlite.vectors import KIND_NUMBERS, VectorSets, first_key, last_key
from kgray.stores.sqlite.view import StoredView
from kgray.stores.words import folded
from kgray.times import Instant

_PAGE_ROWS = 500  # rows a step of an iterator: no snapshot is held between two
_VECTOR_KINDS: dict[SearchScope, str] = {"fact": "statement", "entity": "name", "episode": "episode"}


class ReadingFace:
    """Reads; each sees one snapshot, or that of `reading` around it."""

    _db: Database
    _vectors: VectorSets

    def reading(self) -> AbstractContextManager[None]:
        """Hold one snapshot for the reads inside it; nests."""
        return self._db.snapshot()

    # ------------------------------------------------------------------------------ records

    def records(self, group: str, known_at: Instant | None = None) -> GroupRecords:
        """Return the group's live records, as of now or as recorded by `known_at`.

        `births` and `last_recorded` are those of now in both cases. 100,000 facts: about 2 s.
        """
        found = GroupRecords(group=group)
        no = self._db.number(group)
        if no is None:
            return found
        strings: dict[str, str] = {}
        with self._db.snapshot(), _no_collection():
            first, last = keys_of(no)
            _, found.last_recorded = self._db.row(sql.GROUP_LAST, (no,)) or (0, 0)
            for key, id_, reference_time, recorded_at in self._db.rows(sql.HEADS, (first, last, known_at)):
                head = EpisodeHead(
                    sequence=key & MASK, id=id_, reference_time=reference_time, recorded_at=recorded_at
                )
                found.heads.append(head)
            live = {head.sequence for head in found.heads}
            mentions = [row for row in self._db.rows(sql.MENTIONS, (first, last)) if row[0] in live]
            # In the order of keys, which is that of commits and so of places: the sort finds it done.
            mentions.sort(key=itemgetter(0, 1))
            found.mentions = rows.mentions(mentions, strings)
            evidence = [row for row in self._db.rows(sql.EVIDENCE, (first, last)) if row[0] in live]
            evidence.sort(key=itemgetter(0, 1))
            found.evidence = rows.evidence(evidence, strings)
            births = self._db.rows(sql.BIRTHS, (no,))
            found.births = {strings.setdefault(row[0], row[0]): (row[1], row[2]) for row in births}
            self._timed_records(found, no, known_at)
        return found

    def _timed_records(self, found: GroupRecords, no: int, known_at: Instant | None) -> None:
        """Add what is listed whatever became of the episode that raised it."""
        for row in self._db.rows(sql.RULINGS, (no, known_at)):
            sequence, ordinal, name, aspect, value, judge, other, reason, recorded_at = row
            ruling = Ruling(
                sequence=sequence, ordinal=ordinal, name=name, aspect=aspect, value=value, judge=judge,
                other=other, reason=reason,
            )  # fmt: skip
            found.rulings.append(ruling)
            found.recorded[sequence] = recorded_at
        for sequence, ordinal, a, b, exclusive, judge, reason, recorded_at in self._db.rows(
            sql.VERDICTS, (no, known_at)
        ):
            verdict = Verdict(
                sequence=sequence, ordinal=ordinal, a=a, b=b, exclusive=bool(exclusive), judge=judge,
                reason=reason,
            )  # fmt: skip
            found.verdicts.append(verdict)
            found.recorded[sequence] = recorded_at
        for key, kind, payload, recorded_at in self._db.rows(sql.OPERATIONS, (*keys_of(no), known_at)):
            found.operations.append(rows.operation(found.group, (key, kind, payload)))
            found.recorded[key & MASK] = recorded_at

    def name_vectors(self, group: str) -> Iterator[tuple[str, str, Vector]]:
        """Yield (recorded entity id, surface, vector), in order of insertion."""
        no = self._db.number(group)
        if no is None:
            return
        after, last = first_key(no, KIND_NUMBERS["name"]), last_key(no, KIND_NUMBERS["name"])
        while page := self._db.rows(sql.NAME_VECTORS, (after, last, _PAGE_ROWS)):
            for _, owner, text, blob in page:
                yield owner, text, np.frombuffer(blob, "<f4")
            after = page[-1][0] + 1

    def statement_vectors(self, group: str, statements: Sequence[str]) -> dict[str, Vector]:
        """Return the vectors of these recorded statements; those without one are left out."""
        no = self._db.number(group)
        if no is None:
            return {}
        asked = rows.array(dict.fromkeys(statements))
        found = self._db.rows(sql.STATEMENT_VECTORS, (no, KIND_NUMBERS["statement"], asked))
        return {owner: np.frombuffer(blob, "<f4") for owner, blob in found}

    # ------------------------------------------------------------------------------- search

    def view(self, group: str) -> GraphView:
        """Return the graph as known now."""
        return StoredView(self._db, group)

    def lexical(self, group: str, scope: SearchScope, query: str, limit: int) -> list[str | Place]:
        """Return what BM25 finds, best first, ties by age; see `ports.Store`."""
        no = self._db.number(group)
        if no is None or limit <= 0:
            return []
        with self._db.snapshot():
            return find_words(self._db, no, scope, query, limit)

    def nearest(self, group: str, scope: SearchScope, vector: Vector, limit: int) -> list[tuple[str, float]]:
        """Return (id, cosine), best first, ties by insertion; see `ports.Store` and vectors.py."""
        no = self._db.number(group)
        if no is None or limit <= 0:
            return []
        kind = KIND_NUMBERS[_VECTOR_KINDS[scope]]
        with self._db.snapshot():
            if scope != "entity":
                return self._vectors.nearest(no, kind, vector, limit)
            # An entity has a vector for each of its surfaces, and is found once, by its best.
            take = 2 * limit
            while True:
                found = self._vectors.nearest(no, kind, vector, take)
                best: dict[str, float] = {}
                for owner, score in found:
                    best.setdefault(owner, score)
                if len(best) >= limit or len(found) < take:
                    return list(best.items())[:limit]
                take *= 4

    # ------------------------------------------------------------------------------ look-ups

    def find(
        self, group: str, identifier: str
    ) -> list[tuple[Literal["episode", "entity", "statement", "fact"], str]]:
        """Return what bears this id; live episodes (by either id) as their sequence."""
        no = self._db.number(group)
        if no is None or not _is_text(identifier):
            return []
        values = (no, identifier)
        with self._db.snapshot():
            found: list[tuple[Literal["episode", "entity", "statement", "fact"], str]] = [
                ("episode", str(key & MASK)) for (key,) in self._db.rows(sql.LIVE_EPISODES, values)
            ]
            if self._db.row(sql.IS_ENTITY, values):
                found.append(("entity", identifier))
            if self._db.row(sql.IS_STATEMENT, values):
                found.append(("statement", identifier))
            if self._db.row(sql.IS_FACT, values):
                found.append(("fact", identifier))
        return found

    def entities_named(self, group: str, name: str) -> list[Entity]:
        """Return the shown entities with this name or alias, case and spacing aside, oldest first."""
        no = self._db.number(group)
        if no is None or not _is_text(name):
            return []
        return [rows.entity(row) for row in self._db.rows(sql.ENTITIES_CALLED, (no, folded(name)))]

    def episode_rows(self, group: str, known_at: Instant | None = None) -> Iterator[Episode]:
        """Yield the episodes of the dump, by sequence; see `ports.Store`."""
        no = self._db.number(group)
        if no is None:
            return
        after, last = keys_of(no)
        while page := self._db.rows(sql.EPISODES_ENDED, (after, last, known_at, _PAGE_ROWS)):
            for row in page:
                yield rows.episode(group, row)
            after = page[-1][0]

    def sequences(
        self, group: str, *, ids: Sequence[str] = (), source: str | None = None, everything: bool = False
    ) -> list[int]:
        """Return the sequences of the rows an operation names, sorted; retired ones and all states included.

        Rows accepted after the operation are named too: the caller leaves out greater sequences.
        """
        no = self._db.number(group)
        if no is None:
            return []
        keys: set[int] = set()
        with self._db.snapshot():
            for id_ in ids:
                if _is_text(id_):
                    keys.update(key for (key,) in self._db.rows(sql.SEQUENCES_OF_ID, (no, id_)))
            if source is not None and _is_text(source):
                keys.update(key for (key,) in self._db.rows(sql.SEQUENCES_OF_SOURCE, (no, source)))
            if everything:
                keys.update(key for (key,) in self._db.rows(sql.SEQUENCES_ALL, keys_of(no)))
        return sorted(key & MASK for key in keys)

    def surfaces(self, group: str, without: Sequence[int]) -> list[str]:
        """Return the surfaces of all stored mentions but those of these sequences, oldest first."""
        no = self._db.number(group)
        if no is None:
            return []
        found = self._db.rows(sql.SURFACES, (*keys_of(no), rows.array(sorted(set(without)))))
        return [surface for surface, _ in found]

    def last_recorded(self, group: str) -> Instant:
        """Return the group's newest record time; 0 for an empty group."""
        no = self._db.number(group)
        row = None if no is None else self._db.row(sql.GROUP_LAST, (no,))
        return int(row[1]) if row else 0

    def last_recorded_of(self, groups: Collection[str]) -> dict[str, Instant]:
        """Return the newest record time of each of these groups, 0 for an empty one."""
        numbers = {group: no for group in groups if (no := self._db.number(group)) is not None}
        times: dict[int, Instant] = {}
        if numbers:
            times = dict(self._db.rows(sql.GROUPS_RECORDED, (rows.array(numbers.values()),)))
        return {group: times.get(numbers.get(group, 0), 0) for group in groups}


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the cycle collector out of a bulk load: it would walk the 500,000 new objects again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _is_text(text: str) -> bool:
    """Whether the text can be stored at all: one with a lone surrogate cannot, so nothing bears it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
