"""A group out of the file, row by row; the way in is adopting.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

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
from kgray.records import Ruling, Verdict
from kgray.stores.removals import check_group
from kgray.stores.sqlite import rows
from kgray.stores.sqlite import statements_copying as copying
from kgray.stores.sqlite.adopting import OPERATION_STATES, Adoption
from kgray.stores.sqlite.database import MASK, Database, Row, keys_of
from kgray.stores.sqlite.vectors import KIND_NUMBERS

_PAGE_ROWS = 1_000
_KINDS = {number: kind for kind, number in KIND_NUMBERS.items()}


class CopyingFace:
    """Export and adoption; see `ports.Store`."""

    _db: Database
    dimensions: int

    def export(self, group: str) -> Iterator[Kept]:
        """Yield all that is kept of a group, as of one snapshot, which is held until the end."""
        no = self._db.number(group)
        if no is None:
            return
        with self._db.snapshot():
            name, last, last_recorded = self._db.row(copying.GROUP, (no,)) or (None, 0, 0)
            if name is None and no != self._db.staged:
                return
            yield KeptGroup(last=last, last_recorded=last_recorded)
            yield from _Export(self._db, group, no).rows()

    def adopt(self, group: str, rows: Iterable[Kept], verify: Callable[[], None]) -> None:
        """Take over what another store exported; `verify` reads it here before any other process can."""
        check_group(group)
        adoption = Adoption(self._db, group, self.dimensions)
        adoption.start()
        try:
            adoption.take(rows)
            with self._db.standing_in(group, adoption.no):
                verify()
            adoption.finish()
        except BaseException:
            adoption.undo()
            raise


class _Export:
    """The rows of one group inside a snapshot."""

    def __init__(self, db: Database, group: str, no: int) -> None:
        self._db, self._group, self._no = db, group, no
        self._strings: dict[str, str] = {}

    def rows(self) -> Iterator[Kept]:
        yield from self._log()
        for id_, sequence, ordinal in self._db.rows(copying.BIRTHS, (self._no,)):
            yield KeptBirth(id=id_, sequence=sequence, ordinal=ordinal)
        for page in self._pages(copying.MENTIONS, 0, 0):
            for mention in rows.mentions(page, {}):
                yield KeptMention(mention=mention)
        for page in self._pages(copying.EVIDENCE, 0, 0):
            evidence = rows.evidence([row[:-1] for row in page], {})
            for item, row in zip(evidence, page, strict=True):
                yield KeptEvidence(evidence=item, shown=row[-1])
        yield from self._judgements()
        for _, entity, surface, uses in self._keyed(copying.NAMES):
            yield KeptName(entity=entity, surface=surface, uses=uses)
        for _, kind, owner, text, vector in self._keyed(copying.VECTORS):
            yield KeptVector(kind=_KINDS[kind], owner=owner, text=text, vector=vector)  # type: ignore[arg-type]
        yield from self._derived()

    def _log(self) -> Iterator[Kept]:
        for row in self._keyed(copying.EPISODES):
            ended_at, retired_at, kind, message, raw, attempts = row[12:]
            yield KeptEpisode(
                episode=rows.episode(self._group, row), ended_at=ended_at, retired_at=retired_at,
                failure_kind=kind, failure_message=message, failure_raw=raw, attempts=attempts,
            )  # fmt: skip
        for key, kind, payload, state, recorded_at, result in self._keyed(copying.OPERATIONS):
            yield KeptOperation(
                sequence=key & MASK, kind=kind, payload=payload, state=OPERATION_STATES[state],
                recorded_at=recorded_at, result=result,
            )  # fmt: skip
        for key, calls, prompt, completion, body in self._keyed(copying.EXTRACTIONS):
            yield KeptExtraction(
                sequence=key & MASK,
                calls=calls,
                prompt_tokens=prompt,
                completion_tokens=completion,
                body=body,
            )
        for request, body, calls, prompt, completion in self._all(copying.ANSWERS, ""):
            yield KeptAnswers(
                request=request, body=body, calls=calls, prompt_tokens=prompt, completion_tokens=completion
            )
        for sequence, request in self._all(copying.USES, 0, ""):
            yield KeptUse(sequence=sequence, request=request)

    def _judgements(self) -> Iterator[Kept]:
        for *row, recorded_at, retired_at in self._all(copying.RULINGS, 0, 0):
            sequence, ordinal, name, aspect, value, judge, other, reason = row
            ruling = Ruling(
                sequence=sequence, ordinal=ordinal, name=name, aspect=aspect, value=value, judge=judge,
                other=other, reason=reason,
            )  # fmt: skip
            yield KeptRuling(ruling=ruling, recorded_at=recorded_at, retired_at=retired_at)
        for *row, recorded_at, retired_at in self._all(copying.VERDICTS, 0, 0):
            sequence, ordinal, a, b, exclusive, judge, reason = row
            verdict = Verdict(
                sequence=sequence, ordinal=ordinal, a=a, b=b, exclusive=bool(exclusive), judge=judge,
                reason=reason,
            )  # fmt: skip
            yield KeptVerdict(verdict=verdict, recorded_at=recorded_at, retired_at=retired_at)

    def _derived(self) -> Iterator[Kept]:
        for row in self._all(copying.ENTITIES, ""):
            yield KeptEntity(entity=rows.entity(row))
        for recorded, shown in self._all(copying.SHOWN, "", ""):
            yield KeptShown(recorded=recorded, shown=shown)
        for row in self._all(copying.FACTS, ""):
            yield KeptFact(fact=rows.fact(row))

    def _all(self, statement: str, *after: Any) -> Iterator[Row]:  # noqa: ANN401 - what is before every key
        for page in self._pages(statement, *after):
            yield from page

    def _pages(self, statement: str, *after: Any) -> Iterator[list[Row]]:  # noqa: ANN401 - as above
        while page := self._db.rows(statement, (self._no, *after, _PAGE_ROWS)):
            yield page
            after = page[-1][: len(after)]

    def _keyed(self, statement: str) -> Iterator[Row]:
        after, last = keys_of(self._no)
        while page := self._db.rows(statement, (after, last, _PAGE_ROWS)):
            yield from page
            after = page[-1][0]
