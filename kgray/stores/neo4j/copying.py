"""A group out of the database, row by row; the way in is adopting.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import numpy as np

from kgray.errors import StoreError, Unavailable
from kgray.kept import (
    Kept,
    KeptAnswers,
    KeptBirth,
    KeptEntity,
    KeptEpisode,
    KeptEvidence,
    KeptExtraction,
    KeptFact,
    KeptGroup,
    KeptMention,
    KeptName,
    KeptOperation,
    KeptRuling,
    KeptShown,
    KeptUse,
    KeptVector,
    KeptVerdict,
)
from kgray.stores.neo4j import rows
from kgray.stores.neo4j import statements_copying as cypher
from kgray.stores.neo4j.adopting import OPERATION_STATES, Adoption
from kgray.stores.neo4j.connection import Connection, Row, Running
from kgray.stores.neo4j.fence import Held
from kgray.stores.neo4j.groups import group_id
from kgray.stores.removals import check_group

_PAGE_ROWS = 1_000
_PAGE_VECTORS = 500
_KINDS: tuple[Literal["name", "statement", "episode"], ...] = ("name", "statement", "episode")


class CopyingFace:
    """Export and adoption; see `ports.Store`."""

    _db: Connection
    _held: Held | None
    _adopting: str | None = None  # the group whose rows this process may read before it has its name
    dimensions: int

    def export(self, group: str) -> Iterator[Kept]:
        """Yield all that is kept of a group; what others append meanwhile has later sequences.

        Raises Unavailable where the group was written meanwhile: Neo4j has no snapshots.
        """
        before = self._counters(group)
        if before is None or (before[0] is None and group != self._adopting):
            return
        _, last, *counters = before
        yield KeptGroup(last=last, last_recorded=counters[0])
        yield from _Export(self._db, group, last).rows()
        after = self._counters(group)
        if after is None or after[2:] != counters:
            raise Unavailable(f"group {group!r} was written while it was read: run it again")

    def _counters(self, group: str) -> Row | None:
        """Return name, last, last_recorded, removals while nobody writes: see `RecordsFace._settled`."""

        def work(running: Running, _: int) -> Row | None:
            self._db.run(running, cypher.HELD, id=group_id(group))
            found = self._db.run(running, cypher.GROUP, id=group_id(group))
            return found[0] if found else None

        return self._db.write(work)

    def adopt(self, group: str, rows: Iterable[Kept], verify: Callable[[], None]) -> None:
        """Take over what another store exported; until it is verified nothing can be appended to it."""
        check_group(group)
        adoption = Adoption(self._db, self._held, group, self.dimensions)
        adoption.start()
        try:
            adoption.take(rows)
            adoption.reveal()
            self._adopting = group
            verify()
            adoption.finish()
        except BaseException:
            adoption.undo()
            raise
        finally:
            self._adopting = None


class _Export:
    """The rows of one group, up to a sequence."""

    def __init__(self, db: Connection, group: str, last: int) -> None:
        self._db, self._group, self._last = db, group, last

    def rows(self) -> Iterator[Kept]:
        yield from self._log()
        for id_, sequence, ordinal in self._db.rows(cypher.BIRTHS, group=self._group):
            yield KeptBirth(id=id_, sequence=sequence, ordinal=ordinal)
        for row in self._pairs(cypher.MENTIONS, -1):
            yield KeptMention(mention=rows.mention(row))
        for *row, shown in self._pairs(cypher.EVIDENCE, -1):
            yield KeptEvidence(evidence=rows.evidence(row), shown=shown)
        yield from self._judgements()
        yield from self._found_by()
        yield from self._derived()

    def _judgements(self) -> Iterator[Kept]:
        for *row, recorded_at, retired_at in self._pairs(cypher.RULINGS, -1):
            yield KeptRuling(ruling=rows.ruling(row), recorded_at=recorded_at, retired_at=retired_at)
        for *row, recorded_at, retired_at in self._pairs(cypher.VERDICTS, -1):
            yield KeptVerdict(verdict=rows.verdict(row), recorded_at=recorded_at, retired_at=retired_at)

    def _found_by(self) -> Iterator[Kept]:
        for entity, surface, uses in self._db.rows(cypher.NAMES, group=self._group):
            yield KeptName(entity=entity, surface=surface, uses=uses)
        for kind in _KINDS:
            for _, owner, text, vector in self._single(cypher.VECTORS[kind], -1, _PAGE_VECTORS):
                if vector is None:
                    raise StoreError(f"the {kind} {owner!r} of group {self._group!r} has lost its vector")
                packed = np.asarray(vector, "<f4").tobytes()
                yield KeptVector(kind=kind, owner=owner, text=text, vector=packed)

    def _derived(self) -> Iterator[Kept]:
        for row in self._single(cypher.ENTITIES, ""):
            yield KeptEntity(entity=rows.entity(row))
        for recorded, shown in self._db.rows(cypher.SHOWN, group=self._group):
            yield KeptShown(recorded=recorded, shown=shown)
        for row in self._single(cypher.FACTS, ""):
            yield KeptFact(fact=rows.fact(row))

    def _log(self) -> Iterator[Kept]:
        for row in self._single(cypher.EPISODES, 0):
            ended_at, retired_at, kind, message, raw, attempts = row[12:]
            yield KeptEpisode(
                episode=rows.episode(self._group, row), ended_at=ended_at, retired_at=retired_at,
                failure_kind=kind, failure_message=message, failure_raw=raw, attempts=attempts,
            )  # fmt: skip
        for sequence, kind, payload, state, recorded_at, result in self._single(cypher.OPERATIONS, 0):
            yield KeptOperation(
                sequence=sequence, kind=kind, payload=payload, state=OPERATION_STATES[state],
                recorded_at=recorded_at, result=result,
            )  # fmt: skip
        for sequence, calls, prompt, completion, body in self._single(cypher.EXTRACTIONS, 0):
            yield KeptExtraction(
                sequence=sequence, calls=calls, prompt_tokens=prompt, completion_tokens=completion, body=body
            )
        for request, body, calls, prompt, completion in self._single(cypher.ANSWERS, ""):
            yield KeptAnswers(
                request=request, body=body, calls=calls, prompt_tokens=prompt, completion_tokens=completion
            )
        for sequence, request in self._pairs(cypher.USES, ""):
            yield KeptUse(sequence=sequence, request=request)

    def _single(self, statement: str, after: Any, limit: int = _PAGE_ROWS) -> Iterator[Row]:  # noqa: ANN401 - a key
        """Yield the rows, whose first column is their key."""
        values = {"group": self._group, "last": self._last, "limit": limit}
        while page := self._db.rows(statement, after=after, **values):
            yield from page
            after = page[-1][0]

    def _pairs(self, statement: str, second: Any) -> Iterator[Row]:  # noqa: ANN401 - a key's second half
        """Yield the rows, whose first two columns are their key."""
        first = 0
        while page := self._db.rows(
            statement, group=self._group, first=first, second=second, limit=_PAGE_ROWS
        ):
            yield from page
            first, second = page[-1][:2]
