"""The ledger: the state of each entry of a group's log (R19, R22, R24, R25).

acceptance  appends drafts and corrections to the log; retries failed episodes
lookup      finds rows by id, source or moment; failed episodes; what pending removals will take away

It uses only `Store.append` and declared reads, so every store behaves the same.
"""

from __future__ import annotations

from kgray.ledger.acceptance import Acceptance, accept, conflict, request, retry, standing
from kgray.ledger.lookup import (
    Bearers,
    FailedEpisode,
    Failure,
    Removals,
    dumped_episodes,
    episodes_at,
    failures,
    find,
    previous,
    result,
    sequences_of,
)

__all__ = [
    "Acceptance",
    "Bearers",
    "FailedEpisode",
    "Failure",
    "Removals",
    "accept",
    "conflict",
    "dumped_episodes",
    "episodes_at",
    "failures",
    "find",
    "previous",
    "request",
    "result",
    "retry",
    "sequences_of",
    "standing",
]
