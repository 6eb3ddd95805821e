"""The budget of an attempt: the model calls and tokens that it may spend, as the ledger counts them."""

from __future__ import annotations

import sys
import time

from kgray.errors import Cost
from kgray.ports import Store

# The assumed cost of an episode until the first episode ends.
_FIRST_TOKENS = 1_000
_FIRST_CALLS = 3  # the cost of an unusable reply
_LOOK_S = 0.02  # minimum seconds between two counts ...
_SHARE = 10  # ... and a multiple of the last count's duration: counting reads the whole ledger


class Budget:
    """Bounds on an attempt's calls and tokens. Requests in flight finish, so it may exceed them slightly."""

    def __init__(self, store: Store, *, calls: int | None = None, tokens: int | None = None) -> None:
        self._store, self._calls, self._tokens = store, calls, tokens
        self.bounded = calls is not None or tokens is not None
        self._at_start = self._spending = [0] * 4
        self._next = 0.0
        self.spent()
        self._at_start, self._spending = self._spending, self._at_start

    def spent(self) -> Cost:
        """Count and return the cost since the start."""
        began = time.monotonic()
        counts = self._store.counts().values()
        sums = [sum(getattr(group, name) for group in counts) for name in Cost._fields]
        sums.append(sum(group.committed + group.failed for group in counts))
        self._spending = [total - start for total, start in zip(sums, self._at_start, strict=True)]
        ended = time.monotonic()
        self._next = ended + max(_LOOK_S, _SHARE * (ended - began))
        return Cost(*self._spending[:3])

    def over(self) -> str:
        """Return the bound that was reached, as a sentence; "" = none. Cheap: it does not always recount."""
        calls, tokens, _ = self._recent() if self.bounded else (0, 0, 0)
        if self._calls is not None and calls >= self._calls:
            return f"--max-calls {self._calls} is spent: {calls} calls were made"
        if self._tokens is not None and tokens >= self._tokens:
            return f"--max-tokens {self._tokens} is spent: {tokens} tokens were used"
        return ""

    def in_flight(self) -> int:
        """Return the number of episodes that the bounds allow in flight, at least 1: `over` ends the run."""
        return max(1, self._payable(sys.maxsize))

    def room(self, bound: int, waiting: int) -> int:
        """Return the number of episodes to append so that the budget covers all waiting ones, <= `bound`."""
        paid = self._payable(bound)
        # A stale count overestimates the room, so the ledger is recounted near the end of the budget.
        if waiting < paid < bound:
            self.spent()
            paid = self._payable(bound)
        return paid - waiting

    def _payable(self, bound: int) -> int:
        if not self.bounded:
            return bound
        calls, tokens, ended = self._recent()
        if self._calls is not None:
            remaining = self._calls - calls
            paid = remaining * ended // calls if ended and calls else remaining // _FIRST_CALLS
            bound = min(bound, max(paid, min(remaining, 1)))
        if self._tokens is not None:
            each = max(1, tokens // ended) if ended and tokens else _FIRST_TOKENS
            bound = min(bound, -(-(self._tokens - tokens) // each))
        return bound

    def _recent(self) -> tuple[int, int, int]:
        """Return calls, tokens and ended episodes, as of the last count."""
        if time.monotonic() >= self._next:
            self.spent()
        calls, prompt, completion, ended = self._spending
        return calls, prompt + completion, ended
