"""The records of a group, and the vectors that deciding needs, as they are loaded."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from kgray.errors import Unavailable
from kgray.ports import Vector
from kgray.records import EpisodeHead, GroupRecords
from kgray.stores.neo4j import groups as grouped
from kgray.stores.neo4j import rows
from kgray.stores.neo4j import statements_records as cypher
from kgray.stores.neo4j.connection import Connection, Running
from kgray.stores.neo4j.groups import Group
from kgray.times import Instant

_PAGE_ROWS = 500  # rows a step of an iterator: no transaction is held between two
_MAX_VECTORS = 1_000
_TRIES = 20  # of a read that commits keep overtaking


class RecordsFace:
    """Reads of records. Several statements make one; each sees what is committed when it runs."""

    _db: Connection
    _adopting: str | None = None  # the group that this process is copying in, which no other sees yet

    def records(self, group: str, known_at: Instant | None = None) -> GroupRecords:
        """Return the group's live records, as of now or as recorded by `known_at`.

        `births` and `last_recorded` are those of now in both cases. Neo4j has no snapshots: where the
        group was written meanwhile, everything is read again.
        """
        with _no_collection():
            before = self._settled(group)
            for _ in range(_TRIES):
                found = GroupRecords(group=group)
                if before is None:
                    return found
                found.last_recorded = before.last_recorded
                self._db.read(lambda running: _read(self._db, running, found, known_at))  # noqa: B023
                after = self._settled(group)
                if after is not None and (after.last_recorded, after.removals) == (
                    before.last_recorded,
                    before.removals,
                ):
                    return found
                before = after
        raise Unavailable(f"group {group!r} is written faster than it can be read: run it again")

    def _settled(self, group: str) -> Group | None:
        """Return the group's counters while nobody writes it.

        A commit becomes visible bit by bit; it holds the group's lock until all of it is. With the
        same counters before and after, what was read between is of one moment.
        """

        def work(running: Running, _: int) -> Group | None:
            found = grouped.locked(self._db, running, [group], make=False).get(group)
            return None if found is not None and found.adopting and group != self._adopting else found

        return self._db.write(work)

    def name_vectors(self, group: str) -> Iterator[tuple[str, str, Vector]]:
        """Yield (recorded entity id, surface, vector), in order of insertion."""
        after = -1
        while page := self._db.rows(cypher.NAME_VECTORS, group=group, after=after, limit=_PAGE_ROWS):
            for after, entity, surface, vector in page:  # noqa: B007 - the last one starts the next page
                yield entity, surface, np.asarray(vector, np.float32)

    def statement_vectors(self, group: str, statements: Sequence[str]) -> dict[str, Vector]:
        """Return the vectors of these recorded statements; those without one are left out."""
        asked = list(dict.fromkeys(statements))
        found: dict[str, Vector] = {}
        for start in range(0, len(asked), _MAX_VECTORS):
            ids = asked[start : start + _MAX_VECTORS]
            for id_, vector in self._db.rows(cypher.STATEMENT_VECTORS, group=group, ids=ids):
                found[id_] = np.asarray(vector, np.float32)
        return found


def _read(db: Connection, running: Running, found: GroupRecords, known_at: Instant | None) -> None:
    """Fill in the records; from the start where a try broke off."""
    found.heads, found.rulings, found.verdicts, found.operations = [], [], [], []
    group = found.group
    values = {"group": group, "known_at": known_at}
    for sequence, id_, said, recorded_at in db.run(running, cypher.HEADS, **values):
        found.heads.append(
            EpisodeHead(sequence=sequence, id=id_, reference_time=said, recorded_at=recorded_at)
        )
    live = {head.sequence for head in found.heads}
    mentions = db.run(running, cypher.MENTIONS, group=group)
    found.mentions = [rows.mention(row) for row in mentions if row[0] in live]
    evidence = db.run(running, cypher.EVIDENCE, group=group)
    found.evidence = [rows.evidence(row) for row in evidence if row[0] in live]
    found.births = {id_: (seq, ordinal) for id_, seq, ordinal in db.run(running, cypher.BIRTHS, group=group)}
    # Listed whatever became of the episode that raised it.
    for *row, recorded_at in db.run(running, cypher.RULINGS, **values):
        found.rulings.append(rows.ruling(row))
        found.recorded[row[0]] = recorded_at
    for *row, recorded_at in db.run(running, cypher.VERDICTS, **values):
        found.verdicts.append(rows.verdict(row))
        found.recorded[row[0]] = recorded_at
    for *row, recorded_at in db.run(running, cypher.OPERATIONS, **values):
        found.operations.append(rows.operation(group, row))
        found.recorded[row[0]] = recorded_at


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the cycle collector out of a bulk load: it would walk the new objects again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
