"""What an attempt may spend on models: calls and tokens, as the ledger counts them."""

from __future__ import annotations

import sys
import time

from kgray.errors import Cost
from kgray.ports import Store

# Of an episode, until one was measured.
_FIRST_TOKENS = 1_000
_FIRST_CALLS = 3  # as many as a reply that cannot be used costs
_LOOK_S = 0.02  # the least between two looks ...
_SHARE = 10  # ... and as many times as long as the last one took: counting reads the whole ledger


class Budget:
    """Calls and tokens that one attempt may spend; requests in flight are kept, so it may take a few more."""

    def __init__(self, store: Store, *, calls: int | None = None, tokens: int | None = None) -> None:
        self._store, self._calls, self._tokens = store, calls, tokens
        self.bounded = calls is not None or tokens is not None
        self._before = self._now = [0] * 4
        self._next = 0.0
        self.spent()
        self._before, self._now = self._now, self._before

    def spent(self) -> Cost:
        """Return what was spent since the start, counted now."""
        began = time.monotonic()
        counts = self._store.counts().values()
        sums = [sum(getattr(one, name) for one in counts) for name in Cost._fields]
        sums.append(sum(one.committed + one.failed for one in counts))
        self._now = [now - before for now, before in zip(sums, self._before, strict=True)]
        ended = time.monotonic()
        self._next = ended + max(_LOOK_S, _SHARE * (ended - began))
        return Cost(*self._now[:3])

    def over(self) -> str:
        """Return which bound was reached, as a sentence; "" = none. Cheap: it does not recount each time."""
        calls, tokens, _ = self._recent() if self.bounded else (0, 0, 0)
        if self._calls is not None and calls >= self._calls:
            return f"--max-calls {self._calls} is spent: {calls} calls were made"
        if self._tokens is not None and tokens >= self._tokens:
            return f"--max-tokens {self._tokens} is spent: {tokens} tokens were used"
        return ""

    def in_flight(self) -> int:
        """Return how many episodes the bounds allow in flight; 1 at least: the run ends elsewhere."""
        return max(1, self._payable(sys.maxsize))

    def room(self, bound: int, waiting: int) -> int:
        """Return how many episodes may be appended: all that wait and these are paid for, `bound` at most."""
        paid = self._payable(bound)
        # A stale count overestimates the room, so near the end of the budget spending is counted anew.
        if waiting < paid < bound:
            self.spent()
            paid = self._payable(bound)
        return paid - waiting

    def _payable(self, bound: int) -> int:
        if not self.bounded:
            return bound
        calls, tokens, ended = self._recent()
        if self._calls is not None:
            left = self._calls - calls
            paid = left * ended // calls if ended and calls else left // _FIRST_CALLS
            bound = min(bound, max(paid, min(left, 1)))
        if self._tokens is not None:
            each = max(1, tokens // ended) if ended and tokens else _FIRST_TOKENS
            bound = min(bound, -(-(self._tokens - tokens) // each))
        return bound

    def _recent(self) -> tuple[int, int, int]:
        """Return calls, tokens and ended episodes, counted a moment ago."""
        if time.monotonic() >= self._next:
            self.spent()
        calls, prompt, completion, ended = self._now
        return calls, prompt + completion, ended
