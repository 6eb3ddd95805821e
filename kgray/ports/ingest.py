"""The interface that carries out pending work, in this process or a runtime, and its reports."""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

from kgray.schema.row_changes import RowChanges

Stop = Callable[[], bool]
OnStep = Callable[[str, int, str], None]  # group, sequence, outcome: committed | failed | done | refused
OnWait = Callable[[str], None]
Room = Callable[[], int]  # maximum number of entries in flight now

STAGES = ("extract", "judge", "embed", "decide", "write")


def never() -> bool:
    """Never stop."""
    return False


def boundless() -> int:
    """Return no bound."""
    return sys.maxsize


def ignore(*_: object) -> None:
    """Ignore a step or a line."""


class Sequences:
    """Sequences of a group in ascending order; eight bytes each."""

    def __init__(self, sequences: Iterable[int] = ()) -> None:
        self._values = array("q", sequences)

    def append(self, sequence: int) -> None:
        """Add a sequence that is greater than all earlier sequences."""
        if self._values and sequence <= self._values[-1]:
            raise ValueError(f"sequence {sequence} comes after {self._values[-1]}")
        self._values.append(sequence)

    def __contains__(self, sequence: int) -> bool:
        return self.before(sequence) < self.before(sequence + 1)

    def __iter__(self) -> Iterator[int]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def before(self, bound: int | None) -> int:
        """Return the number of sequences below a bound; None = all."""
        return len(self) if bound is None else bisect_left(self._values, bound)


@dataclass(slots=True)
class Queued:
    """A submission's entries in a group's order, new or pending; last: to wait for, duplicates included."""

    sequences: Sequences = field(default_factory=Sequences)
    last: int = 0


@dataclass(slots=True)
class Totals:
    """The counts of a run, and of its requests ahead of time."""

    committed: int = 0
    failed: int = 0
    operations: int = 0
    left_out: int = 0  # dropped items of committed extractions (`Extraction.dropped`)
    requests: int = 0
    stalls: int = 0  # requests first made by the commit of their episode, which waited for them
    wasted: int = 0  # requests answered ahead of time and not used at the commit
    wasted_tokens: int = 0
    # Sums over concurrent work.
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    first_claim: float | None = None  # `time.monotonic()` of the first episode taken ...
    last_commit: float | None = None  # ... and of the last durable commit

    def count(self, outcome: str) -> None:
        """Count one ended entry."""
        self.committed += outcome == "committed"
        self.failed += outcome == "failed"
        self.operations += outcome in {"done", "refused"}


COUNTS = tuple(field.name for field in fields(Totals) if field.type == "int")


def joined(first: Totals, second: Totals) -> Totals:
    """Return the totals of two runs together."""
    totals = Totals(**{name: getattr(first, name) + getattr(second, name) for name in COUNTS})
    totals.seconds = {stage: first.seconds[stage] + second.seconds[stage] for stage in STAGES}
    totals.first_claim = min(
        (t.first_claim for t in (first, second) if t.first_claim is not None), default=None
    )
    totals.last_commit = max(
        (t.last_commit for t in (first, second) if t.last_commit is not None), default=None
    )
    return totals


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestOutcome:
    """The outcome of a run."""

    committed: int = 0
    failed: int = 0
    stopped: bool = False  # a signal or an outage ended the run first
    reason: str = ""  # the outage
    held: Mapping[str, str] = field(default_factory=dict)  # held groups with pending entries -> reason (R24)
    totals: Totals = field(default_factory=Totals)  # the run's counts; empty if another process ingested

    def told(self) -> dict[str, Any]:
        """Return the fields that a submission's report repeats: all except the totals."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "totals"}


class Ingest(Protocol):
    """A runtime, which carries out pending entries."""

    async def carry_out(
        self,
        queued: Mapping[str, Queued] | None,
        *,
        groups: Collection[str] | None = None,
        before: Mapping[str, int] | None = None,
        more: Stop = never,
        stop: Stop = never,
        room: Room = boundless,
        on_step: OnStep = ignore,
        on_wait: OnWait = ignore,
    ) -> IngestOutcome:
        """Return when all pending entries, or at least the `queued` ones, have ended, or `stop()` is true.

        queued   None: all entries pending now. It may grow during the run, which waits for additions too
        groups   carry out pending entries of these groups only
        before   `last_sequences` at the start: later entries of others are carried out, but not counted
        more     whether entries are still being queued: if so, this does not return
        room     maximum number of entries in flight; shared actors ignore it
        on_step  called for every step that this process sees
        on_wait  called with lines: the process that this process waits for, the actors that it starts

        An outage beyond the patience or a full disk ends it with `stopped` and the reason. Raises SettingsError,
        StoreError for other faults.
        """

    def seats(self) -> int:
        """Return the number of parallel calls of this runtime's engines at this moment; 0 without engines."""

    def close(self) -> None:
        """Release its resources, except the store; idempotent."""


class Writer(Protocol):
    """Carries out a run's writes: the store itself, or a writer in the process that has the store open."""

    async def write(self, changes: Sequence[RowChanges]) -> None:
        """Carry out `Store.apply`, a batch at a time; after a transient fault, wait and send the batch again."""
