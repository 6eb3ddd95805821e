"""An attempt's progress and its final report: `kgray backfill --json`, report.json."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kgray.backfill.budget import Spending
from kgray.backfill.manifest import Manifest
from kgray.errors import Cost, exit_code_of
from kgray.ledger import FailedEpisode
from kgray.memory import Report
from kgray.ports.ingest import Totals

SHOWN = 1_000  # refusals in a report; refused.jsonl beside it has them all
_LATELY_S = 30.0  # what a rate is measured over
_TELLING = 8  # episodes; of fewer an estimate was of hours for the work of a minute
_FIRST = 10  # failures that are shown with their reason


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProgress:
    """The progress of an attempt.

    ended    episodes that it committed or failed: of `accepted` and of those pending before
    rate     episodes ended a second, lately; 0 = too few ended to tell
    total    estimate of all episodes of the attempt; None = not known yet
    sorting  rows read so far, while they are sorted and none is accepted yet
    """

    accepted: int = 0
    duplicate: int = 0
    refused: int = 0
    ended: int = 0
    failed: int = 0
    rate: float = 0.0
    total: int | None = None
    sorting: int = 0

    @property
    def left_s(self) -> float | None:
        """Estimated seconds left; None where there is no basis for it."""
        return (self.total - self.ended) / self.rate if self.total is not None and self.rate else None


class RecentRate:
    """Episodes ended a second, over the last half a minute and at least _TELLING episodes."""

    def __init__(self) -> None:
        """Start with nothing measured."""
        self._seen: deque[tuple[float, int]] = deque()

    def at(self, now: float, ended: int) -> float:
        """Note how many have ended by now (seconds); return the rate, 0 until it says something."""
        if ended == 0:  # models and actors are only being started, which is no measure
            self._seen.clear()
        self._seen.append((now, ended))
        while now - self._seen[0][0] > _LATELY_S and ended - self._seen[1][1] >= _TELLING:
            self._seen.popleft()
        since, first = self._seen[0]
        return (ended - first) / (now - since) if ended - first >= _TELLING else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """The report of an attempt.

    manifest  of the run, as the attempt left it; refused rows are the whole run's
    report    like that of `kgray add`. accepted, committed, failed: of this attempt; duplicate also counts
              rows that an earlier attempt took and this one skipped
    failures  {"classes": count by error class, "first": the first ones with their reason}
    reasons   how many rows of the run were refused for each reason
    spent     model calls and tokens of this attempt
    """

    manifest: Manifest
    report: Report
    skipped: int
    failures: Mapping[str, Any]
    reasons: Mapping[str, int]
    spent: Spending
    totals: Totals
    elapsed_s: float

    @property
    def refused(self) -> int:
        """How many rows of the run were not taken."""
        return self.manifest.total("refused")

    @property
    def exit_code(self) -> int:
        """The exit code: 75 stopped, 1 something refused or failed, 0 all done."""
        incomplete = bool(self.refused or self.report.failed or self.report.held)
        return exit_code_of(stopped=self.report.stopped, incomplete=incomplete)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form: the keys of `kgray add`, and "report"."""
        manifest, totals, rate = self.manifest, self.totals, self._rate()
        # Another process did the work: this one knows what was done, and not how long it took.
        elsewhere = totals.first_claim is None and bool(self.report.committed + self.report.failed)
        seconds = {stage: round(spent, 3) for stage, spent in totals.seconds.items()}
        return self.report.as_dict() | {
            "refused": self.refused,
            "report": {
                **{name: getattr(manifest, name) for name in ("run", "attempt", "state")},
                "reason": self.report.reason,
                "files": len(manifest.files),
                "rows": manifest.total("rows"),
                "skipped": self.skipped,
                "failures": self.failures,
                "reasons": self.reasons,
                **{name: getattr(self.spent, name) for name in Cost._fields},
                **{n: getattr(totals, n) for n in ("requests", "stalls", "wasted", "wasted_tokens")},
                "seconds": None if elsewhere else seconds,
                "elapsed_s": round(self.elapsed_s, 3),
                "episodes_per_s": None if rate is None else round(rate, 2),
                "all_attempts": dict(manifest.sums),
            },
        }

    def _rate(self) -> float | None:
        """Episodes a second from the first claim to the last commit; None where this process saw neither."""
        claim, commit = self.totals.first_claim, self.totals.last_commit
        if claim is None or commit is None or commit <= claim:
            return None
        return (self.report.committed + self.report.failed) / (commit - claim)


def failures_of(failed: Iterable[FailedEpisode]) -> dict[str, Any]:
    """Return {"classes": count by error class, "first": the first ones with their reason}."""
    classes: Counter[str] = Counter()
    first: list[dict[str, Any]] = []
    for row in failed:
        classes[row.failure.kind] += 1
        if len(first) < _FIRST:
            told = row.failure.as_dict(row.episode.id, row.episode.client_id, row.episode.group)
            first.append({key: value for key, value in told.items() if key != "reply"})
    return {"classes": dict(classes), "first": first}
