"""Accepting input into the log in short transactions; a check of what would be refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from kgray import times
from kgray.derivation.stored import StoredView
from kgray.intake import Refusal, Submitted
from kgray.ledger import Acceptance, accept, conflict, failures, request, sequences_of, standing
from kgray.memory.reports import Report
from kgray.ports import Store
from kgray.ports.ingest import IngestOutcome, Queued
from kgray.records import Draft, Operation

Item = Draft | Submitted | Refusal
OnAnswer = Callable[[Refusal | Literal["accepted", "duplicate", "conflict"]], None]
MAX_ROWS = 500  # drafts of one accepting transaction ...
MAX_CHARACTERS = 4 << 20  # ... and their text: bounds how much of the input is in memory at once


class Submission:
    """Accepts items batch by batch and keeps count."""

    def __init__(
        self,
        store: Store,
        *,
        replace: bool = False,
        bulk: bool = False,
        on_answer: OnAnswer | None = None,
    ) -> None:
        """Accept into a store.

        replace     replace episodes whose id is taken by other content; retract what a text file no longer
                    has
        bulk        accept into the backfill lane
        on_answer   called with the outcome of each row, in order; refusals are then not kept for the report
        """
        self.queued: dict[str, Queued] = {}
        self._store = store
        self._replace, self._bulk, self._on_answer = replace, bulk, on_answer
        self._batch: list[Submitted | Refusal] = []
        self._characters = 0
        self.counts = {"accepted": 0, "duplicate": 0, "untimed": 0, "retracted": 0}  # so far, in the log
        self._refusals: list[Refusal] = []
        self._broken: set[str] = set()  # files with a refusal
        # (group, source) of text files -> the files, and the ids that they hold.
        self._whole: dict[tuple[str, str], tuple[set[str], set[str]]] = {}

    def take(self, item: Item) -> None:
        """Take one item, which is durable after `flush`; full batches are flushed here."""
        if isinstance(item, Draft):
            item = Submitted(draft=item, file="", line=None)
        self._batch.append(item)
        self._characters += 0 if isinstance(item, Refusal) else len(item.draft.text)
        if len(self._batch) >= MAX_ROWS or self._characters >= MAX_CHARACTERS:
            self.flush()

    @property
    def held(self) -> int:
        """How many items are waiting for `flush`."""
        return len(self._batch)

    @property
    def accepted(self) -> int:
        """How many drafts are in the log by now."""
        return self.counts["accepted"]

    def flush(self) -> None:
        """Accept the waiting items, in one transaction."""
        batch, self._batch, self._characters = self._batch, [], 0
        drafts = [item.draft for item in batch if isinstance(item, Submitted)]
        answers: Iterator[Acceptance] = iter(())
        if drafts:
            how = {"replace": self._replace, "bulk": self._bulk}
            answers = iter(accept(self._store, drafts, now=times.now(), **how))
        for item in batch:
            if isinstance(item, Refusal):
                self._refuse(item)
            else:
                self._note(item, next(answers))

    def finish(self, *, complete: bool) -> None:
        """Accept the rest; with `replace`, retract what the text files no longer hold.

        complete: False = the input was not read to its end, so nothing is known to be gone from it.
        """
        self.flush()
        if not (self._replace and complete):
            return
        for (group, source), (files, held) in sorted(self._whole.items()):
            if files & self._broken:  # the rows after the fault were not read, so none is known to be gone
                continue
            gone = [id_ for id_ in standing_ids(self._store, group, source) if id_ not in held]
            if gone:
                operation = Operation(group=group, kind="retract", episodes=tuple(gone))
                sequence = request(self._store, operation)
                self._queue(group).last = sequence
                self.counts["retracted"] += len(gone)

    def report(self, done: IngestOutcome) -> Report:
        """Return the report: the counts so far, and `done`."""
        return Report(
            **self.counts,
            committed=done.committed,
            failed=done.failed,
            stopped=done.stopped,
            reason=done.reason,
            refusals=tuple(self._refusals),
        )

    def _queue(self, group: str) -> Queued:
        return self.queued.setdefault(group, Queued())

    def _note(self, item: Submitted, answer: Acceptance) -> None:
        if item.whole and self._replace:
            files, held = self._whole.setdefault((item.draft.group, item.draft.source), (set(), set()))
            files.add(item.file)
            held.add(answer.id)
        if answer.status == "conflict":
            self._refuse(Refusal(file=item.file, line=item.line, field="id", reason=answer.reason))
            return
        queue = self._queue(item.draft.group)
        queue.last = max(queue.last, answer.sequence or 0)
        self.counts[answer.status] += 1
        if answer.status == "accepted":
            self.counts["untimed"] += not answer.timed
            if answer.sequence is not None:
                queue.sequences.append(answer.sequence)
        if self._on_answer is not None:
            self._on_answer(answer.status)

    def _refuse(self, refusal: Refusal) -> None:
        self._broken.add(refusal.file)
        if self._on_answer is None:
            self._refusals.append(refusal)
        else:
            self._on_answer(refusal)


def standing_ids(store: Store, group: str, source: str) -> list[str]:
    """Return the ids of a source's live episodes, in any state, in the group's order."""
    found: dict[int, str] = {}
    sequences = sequences_of(store, group, source=source)
    found |= {episode.sequence: episode.id for episode in StoredView(store, group).episodes(sequences)}
    for failed in failures(store, group):
        if failed.episode.source == source:
            found[failed.episode.sequence] = failed.episode.id
    if set(sequences) - found.keys():
        for waiting in store.pending(group, store.pending_count(group)):
            if not isinstance(waiting, Operation) and waiting.source == source:
                found[waiting.sequence] = waiting.id
    return list(dict.fromkeys(found[sequence] for sequence in sorted(found)))


def refusals_of(store: Store, items: Iterable[Item]) -> Iterator[Refusal]:
    """Yield what accepting these items would refuse, conflicts with the store and among them included."""
    seen: dict[str, str] = {}  # id -> content hash, of rows with a client id
    for item in items:
        if isinstance(item, Refusal):
            yield item
            continue
        draft, file, line = (
            (item.draft, item.file, item.line) if isinstance(item, Submitted) else (item, "", None)
        )
        if draft.client_id is None:
            continue
        held = seen.get(draft.id) or standing(store, draft.group, [draft.id]).get(draft.id)
        seen[draft.id] = content = draft.content_sha256
        if held is not None and held != content:
            yield Refusal(file=file, line=line, field="id", reason=conflict(draft, held))
