"""Acceptance of input into the log in short transactions, and the report of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

from kgray.domain import times
from kgray.domain.records import Draft, Operation
from kgray.errors import exit_code_of
from kgray.io.intake.drafts import Refusal
from kgray.io.intake.files import Submitted
from kgray.ports import Store
from kgray.ports.ingest import (
    IngestOutcome,
    Queued,
)
from kgray.schema.reads import EXTRACTIONS_AT
from kgray.schema.rows import extraction
from kgray.storage.ledger import Acceptance, AcceptancePreview, accept, live_ids, request

Item = Draft | Submitted | Refusal
OnAnswer = Callable[[Refusal | Literal["accepted", "duplicate", "conflict"]], None]
UNREAD = 10  # lines about what was not understood, in a report
MAX_ROWS = 500  # drafts of one accepting transaction ...
MAX_CHARACTERS = 4 << 20  # ... and their text: bounds how much of the input is in memory at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The outcome of a submission; `committed` and `failed` also count earlier pending entries."""

    accepted: int = 0
    duplicate: int = 0
    committed: int = 0
    failed: int = 0
    retracted: int = 0  # episodes that a replaced text file no longer holds
    untimed: int = 0  # accepted without a reference time; acceptance gave them one (R19)
    still_retracted: int = 0  # duplicates of retracted episodes, which stay retracted without `again`
    left_out: int = 0  # items of committed extractions that failed validation (`Extraction.dropped`)
    unread: tuple[str, ...] = ()  # the first lines about omitted content of this submission
    stopped: bool = False  # by a signal or an outage: accepted entries are safe, and the next run continues
    reason: str = ""  # the outage
    held: Mapping[str, str] = field(default_factory=dict)  # groups held for now, and why (R24)
    refusals: tuple[Refusal, ...] = ()
    unlisted: int = 0  # further refused rows, which `refusals` omits
    more: Mapping[str, Any] = field(default_factory=dict)  # further parts of the JSON form

    @property
    def refused(self) -> int:
        """How many rows were not taken."""
        return len(self.refusals) + self.unlisted

    @property
    def exit_code(self) -> int:
        """The exit code: 75 stopped, 1 something refused or failed, 0 all done."""
        return exit_code_of(stopped=self.stopped, incomplete=bool(self.refused or self.failed or self.held))

    def as_dict(self) -> dict[str, Any]:
        """Return the form that `kgray add --json` prints."""
        names = "accepted duplicate refused committed failed retracted still_retracted left_out".split()
        listed = {"held": dict(self.held), "refusals": [refusal.as_dict() for refusal in self.refusals]}
        return {**{name: getattr(self, name) for name in names}, **listed, **self.more}


class Submission:
    """Accepts items batch by batch and keeps count."""

    def __init__(
        self, store: Store, *, replace: bool = False, on_answer: OnAnswer | None = None, **options: bool
    ) -> None:
        """Begin without a row.

        replace, options   passed to `ledger.accept`. With `replace`, `finish` also retracts episodes that a
                           text file no longer holds
        on_answer   called with the outcome of each row, in order; refusals are then not kept for the report
        """
        self.queued: dict[str, Queued] = {}
        self._store, self._replace, self._on_answer = store, replace, on_answer
        self._options = options | {"replace": replace}
        self._batch: list[Submitted | Refusal] = []
        self._characters = 0
        # Counts so far, under the names of the fields of `Report`.
        self.counts = dict.fromkeys(("accepted", "duplicate", "untimed", "retracted", "still_retracted"), 0)
        self._refusals: list[Refusal] = []
        self._broken: set[str] = set()  # files with a refusal
        # (group, source) of text files -> the files, and the ids that they hold.
        self._file_episodes: dict[tuple[str, str], tuple[set[str], set[str]]] = {}

    def take(self, item: Item) -> None:
        """Take one item, which is durable after `flush`; full batches are flushed here."""
        row = Submitted(draft=item) if isinstance(item, Draft) else item
        self._batch.append(row)
        self._characters += 0 if isinstance(row, Refusal) else len(row.draft.text)
        if len(self._batch) >= MAX_ROWS or self._characters >= MAX_CHARACTERS:
            self.flush()

    @property
    def waiting(self) -> int:
        """How many items are waiting for `flush`."""
        return len(self._batch)

    def flush(self) -> None:
        """Accept the waiting items, in one transaction."""
        batch, self._batch, self._characters = self._batch, [], 0
        drafts = [item.draft for item in batch if isinstance(item, Submitted)]
        for found in _outcomes(batch, accept(self._store, drafts, now=times.now(), **self._options)):
            if isinstance(found, Refusal):
                self._broken.add(found.file)
                (self._on_answer or self._refusals.append)(found)
                continue
            item, answer = found
            draft = item.draft
            if item.whole and self._replace:
                files, file_ids = self._file_episodes.setdefault((draft.group, draft.source), (set(), set()))
                files.add(item.file)
                file_ids.add(answer.id)
            queue = self.queued.setdefault(draft.group, Queued())
            queue.last = max(queue.last, answer.sequence)
            self.counts[answer.status] += 1
            self.counts["still_retracted"] += answer.retracted
            if answer.status == "accepted":
                self.counts["untimed"] += not answer.timed
                queue.sequences.append(answer.sequence)
            if self._on_answer is not None:
                self._on_answer(answer.status)

    def finish(self, *, complete: bool) -> None:
        """Flush; with `replace`, retract the episodes that the text files no longer hold.

        complete: all files were read to the end
        """
        self.flush()
        if not (self._replace and complete):
            return
        for (group, source), (files, file_ids) in sorted(self._file_episodes.items()):
            if files & self._broken:  # the rows after the fault were not read, so none is known to be gone
                continue
            whole = Operation(group=group, kind="retract", source=source)
            if gone := tuple(id_ for id_ in live_ids(self._store, whole) if id_ not in file_ids):
                operation = Operation(group=group, kind="retract", episodes=gone, replaces=True)
                self.queued.setdefault(group, Queued()).last = request(self._store, operation)
                self.counts["retracted"] += len(gone)

    def report(self, done: IngestOutcome) -> Report:
        """Return the report: the counts so far, and `done`."""
        left_out, told = done.totals.left_out, done.told() | self.counts
        unread = tuple(islice(self._unread(), UNREAD)) if left_out else ()
        return Report(**told, left_out=left_out, unread=unread, refusals=tuple(self._refusals))

    def _unread(self) -> Iterator[str]:
        for group, queued in self.queued.items():
            sequences = iter(queued.sequences)
            while batch := list(islice(sequences, MAX_ROWS)):
                for row in self._store.rows(EXTRACTIONS_AT, group, batch):
                    yield from extraction(row).dropped


def _outcomes(
    batch: Iterable[Submitted | Refusal], answers: Iterable[Acceptance]
) -> Iterator[tuple[Submitted, Acceptance] | Refusal]:
    """Pair rows with outcomes; a conflict becomes a Refusal. answers: one for each row that is no Refusal."""
    remaining = iter(answers)
    for row in batch:
        if isinstance(row, Refusal):
            yield row
        elif (answer := next(remaining)).status == "conflict":
            yield Refusal(file=row.file, line=row.line, field="id", reason=answer.reason)
        else:
            yield row, answer


def foreseen(
    store: Store, items: Iterable[Item], *, replace: bool = False, again: bool = False
) -> Iterator[tuple[Submitted, Acceptance] | Refusal]:
    """Yield what accepting these items would do with each, one after the other; accepts nothing."""
    preview = AcceptancePreview(store, replace=replace, again=again)
    rows = (Submitted(draft=item) if isinstance(item, Draft) else item for item in items)
    while batch := list(islice(rows, MAX_ROWS)):
        drafts = [row.draft for row in batch if isinstance(row, Submitted)]
        yield from _outcomes(batch, preview.of(drafts))
