"""What has pending work carried out, by this process or a runtime, and what it reports."""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

Stop = Callable[[], bool]
OnStep = Callable[[str, int, str], None]  # group, sequence, outcome: committed | failed | done | refused
OnWait = Callable[[str], None]
Room = Callable[[], int]  # how many entries may be in flight now

STAGES = ("extract", "judge", "embed", "decide", "write")


def never() -> bool:
    """Never stop."""
    return False


def boundless() -> int:
    """Bound nothing."""
    return sys.maxsize


def ignore(*_: object) -> None:
    """Do nothing: of a step, of a line."""


class Sequences:
    """Sequences of one group in ascending order; eight bytes each."""

    def __init__(self, sequences: Iterable[int] = ()) -> None:
        self._held = array("q", sequences)

    def append(self, sequence: int) -> None:
        """Add one that is greater than all before it."""
        if self._held and sequence <= self._held[-1]:
            raise ValueError(f"sequence {sequence} comes after {self._held[-1]}")
        self._held.append(sequence)

    def __contains__(self, sequence: int) -> bool:
        return self.before(sequence) < self.before(sequence + 1)

    def __iter__(self) -> Iterator[int]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    def before(self, bound: int | None) -> int:
        """Return how many are less than a sequence; None = all."""
        return len(self) if bound is None else bisect_left(self._held, bound)


@dataclass(slots=True)
class Queued:
    """What a submission put into one group's order, or found waiting there; last: to wait for, duplicates too."""

    sequences: Sequences = field(default_factory=Sequences)
    last: int = 0


@dataclass(slots=True)
class Totals:
    """What a run has done, and how much of it ahead of time."""

    committed: int = 0
    failed: int = 0
    operations: int = 0
    left_out: int = 0  # items of committed extractions that were not understood (`Extraction.dropped`)
    requests: int = 0
    stalls: int = 0  # requests that were first asked by the commit of their episode, which waited for them
    wasted: int = 0  # requests answered ahead of time and not used at the commit
    wasted_tokens: int = 0
    # Of concurrent work.
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    first_claim: float | None = None  # `time.monotonic()` of the first episode taken ...
    last_commit: float | None = None  # ... and of the last one durable

    def count(self, outcome: str) -> None:
        """Count one ended entry."""
        self.committed += outcome == "committed"
        self.failed += outcome == "failed"
        self.operations += outcome in {"done", "refused"}


COUNTS = tuple(field.name for field in fields(Totals) if field.type == "int")


def joined(first: Totals, then: Totals) -> Totals:
    """Return the totals of two runs together."""
    found = Totals(**{name: getattr(first, name) + getattr(then, name) for name in COUNTS})
    found.seconds = {stage: first.seconds[stage] + then.seconds[stage] for stage in STAGES}
    found.first_claim = min((t.first_claim for t in (first, then) if t.first_claim is not None), default=None)
    found.last_commit = max((t.last_commit for t in (first, then) if t.last_commit is not None), default=None)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestOutcome:
    """What was carried out."""

    committed: int = 0
    failed: int = 0
    stopped: bool = False  # a signal or an outage ended the run first
    reason: str = ""  # the outage
    held: Mapping[str, str] = field(default_factory=dict)  # groups held with something pending -> why (R24)
    totals: Totals = field(default_factory=Totals)  # how the run went; empty where another process ingested

    def told(self) -> dict[str, Any]:
        """Return what a report of a submission says of it, too: all but the totals."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "totals"}


class Ingest(Protocol):
    """A runtime, which carries out what is pending."""

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
        """Return when all that is pending, or at least what is `queued`, has ended, or `stop()` is true.

        queued   None: all that is pending now. It may grow while this runs: what is added is waited for too
        groups   carry out what is pending in these alone
        before   `last_sequences` when the run began: what others append later is carried out, but not counted
        more     whether more is being queued: while it is, this does not return
        room     at most so many entries are in flight; actors that others use too pay no heed to it
        on_step  called for every step that this process sees
        on_wait  called with lines: which process this one waits for, what it starts

        An outage beyond the patience or a full disk ends it with `stopped` and the reason. Raises SettingsError,
        StoreError for other faults.
        """

    def seats(self) -> int:
        """Return how many calls the engines of this runtime take at a time; 0 without engines of its own."""

    def close(self) -> None:
        """Release what it holds, not the store; idempotent."""
