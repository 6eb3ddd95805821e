"""The ledger: what was submitted to a group, in its order, and what became of it (R19, R22, R24, R25).

acceptance  drafts and corrections into the log; failed episodes into it again
lookup      which rows an id, a source or a moment means; what failed; what pending removals take away

It is written over `Store.append` and declared reads, so every store behaves the same.
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
