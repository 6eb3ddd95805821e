"""The ledger: what was submitted to a group, in its order, and what became of it (R19, R22, R24, R25).

acceptance  drafts into the log, requests of corrections, what stands under an id
removals    what pending removals will take away
failures    failed episodes and their retry
lookup      which rows an id, a source or a moment means

Written once over `Store.append` and declared reads: a store keeps rows and knows nothing of this.
"""

from __future__ import annotations

from kgray.ledger.acceptance import Acceptance, accept, conflict, request, standing
from kgray.ledger.failures import FailedEpisode, Failure, failures, retry
from kgray.ledger.lookup import Bearers, dumped_episodes, episodes_at, find, previous, result, sequences_of
from kgray.ledger.removals import Removals, check_group

__all__ = [
    "Acceptance",
    "Bearers",
    "FailedEpisode",
    "Failure",
    "Removals",
    "accept",
    "check_group",
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
