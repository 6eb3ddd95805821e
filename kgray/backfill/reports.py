"""What a run tells: where it stands while it goes on, and what an attempt answers in the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kgray.backfill.manifest import State
from kgray.backfill.spending import Spent
from kgray.ingest.parts import Totals
from kgray.ledger import FailedEpisode
from kgray.memory import Report

FIRST = 10  # failures that are shown with their reason
SHOWN = 1_000  # refusals in a report; refused.jsonl beside it has them all


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where an attempt stands.

    ended    episodes committed or failed by it, of `accepted` and of what was pending before
    rate     of them a second, lately
    total    about how many there will be; None = not known yet. left_s: about how long they take
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
        """About how many seconds are left; None where nothing tells."""
        return (self.total - self.ended) / self.rate if self.total is not None and self.rate else None


@dataclass(slots=True)
class Failures:
    """Why episodes of an attempt failed: how many a class, and the first ones."""

    classes: dict[str, int] = field(default_factory=dict)
    first: list[dict[str, Any]] = field(default_factory=list)

    def add(self, row: FailedEpisode) -> None:
        """Count one."""
        kind = row.failure.kind
        self.classes[kind] = self.classes.get(kind, 0) + 1
        if len(self.first) < FIRST:
            episode = row.episode
            self.first.append(
                {
                    "group": episode.group,
                    "id": episode.id,
                    "client_id": episode.client_id,
                    "class": kind,
                    "message": row.failure.message,
                    "attempts": row.failure.attempts,
                }
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What an attempt answers.

    report    as of `kgray add`: accepted, committed and failed are this attempt's; duplicate counts the rows,
              too, that an earlier attempt took and this one passed over (skipped); refused is the whole run's
    spent     model calls and tokens of this attempt
    sums      over all attempts
    """

    run: str
    attempt: int
    state: State
    report: Report
    refused: int
    files: int
    rows: int
    skipped: int
    failures: Failures
    spent: Spent
    totals: Totals
    elapsed_s: float
    sums: Mapping[str, int]

    @property
    def rate(self) -> float | None:
        """Episodes a second from the first claim to the last commit; None where this process saw neither."""
        claim, commit = self.totals.first_claim, self.totals.last_commit
        ended = self.report.committed + self.report.failed
        return (
            ended / (commit - claim) if claim is not None and commit is not None and commit > claim else None
        )

    @property
    def exit_code(self) -> int:
        """75 stopped, 1 something refused or failed, 0 all done."""
        return 75 if self.state == "stopped" else 1 if self.refused or self.report.failed else 0

    def as_dict(self) -> dict[str, Any]:
        """Return the form that `kgray backfill --json` prints: as of `kgray add`, and "report"."""
        totals, rate = self.totals, self.rate
        return self.report.as_dict() | {
            "refused": self.refused,
            "report": {
                "run": self.run,
                "attempt": self.attempt,
                "state": self.state,
                "reason": self.report.reason,
                "files": self.files,
                "rows": self.rows,
                "skipped": self.skipped,
                "failures": {"classes": self.failures.classes, "first": self.failures.first},
                "calls": self.spent.calls,
                "prompt_tokens": self.spent.prompt_tokens,
                "completion_tokens": self.spent.completion_tokens,
                "requests": totals.requests,
                "stalls": totals.stalls,
                "wasted": totals.wasted,
                "wasted_tokens": totals.wasted_tokens,
                "seconds": {stage: round(seconds, 3) for stage, seconds in totals.seconds.items()},
                "elapsed_s": round(self.elapsed_s, 3),
                "episodes_per_s": None if rate is None else round(rate, 2),
                "all_attempts": dict(self.sums),
            },
        }
