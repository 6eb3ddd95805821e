"""What an attempt may spend on models: calls and tokens, as the ledger counts them."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

from kgray.ports import Store

# Of an episode, until one was measured.
_FIRST_TOKENS = 1_000
_FIRST_CALLS = 3  # as many as a reply that cannot be used costs
_LOOK_S = 0.02  # the least between two looks ...
_SHARE = 10  # ... and as many times as long as the last one took: counting reads the whole ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """Model calls and tokens, and how many episodes have ended."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    ended: int = 0

    @property
    def tokens(self) -> int:
        """Tokens of both kinds."""
        return self.prompt_tokens + self.completion_tokens


class Budget:
    """Calls and tokens that one attempt may spend, counted from now on; None = any number.

    Requests that are already sent are waited for and their answers kept, so a run may exceed its bound by a
    few calls.
    """

    def __init__(self, store: Store, *, calls: int | None = None, tokens: int | None = None) -> None:
        self._store, self._calls, self._tokens = store, calls, tokens
        self.bounded = calls is not None or tokens is not None
        self._before = Spending()
        self._before = self.spent()
        self._now = Spending()

    def spent(self) -> Spending:
        """Return what was spent since the start, counted now."""
        began = time.monotonic()
        counts, before = self._store.counts().values(), self._before
        self._now = Spending(
            calls=sum(c.calls for c in counts) - before.calls,
            prompt_tokens=sum(c.prompt_tokens for c in counts) - before.prompt_tokens,
            completion_tokens=sum(c.completion_tokens for c in counts) - before.completion_tokens,
            ended=sum(c.committed + c.failed for c in counts) - before.ended,
        )
        ended = time.monotonic()
        self._next = ended + max(_LOOK_S, _SHARE * (ended - began))
        return self._now

    def over(self) -> str:
        """Return which bound was reached, as a sentence; "" = none. Cheap: it does not recount each time."""
        if not self.bounded:
            return ""
        now = self._recent()
        if self._calls is not None and now.calls >= self._calls:
            return f"--max-calls {self._calls} is spent: {now.calls} calls were made"
        if self._tokens is not None and now.tokens >= self._tokens:
            return f"--max-tokens {self._tokens} is spent: {now.tokens} tokens were used"
        return ""

    def in_flight(self) -> int:
        """Return how many episodes may be in flight, so that no more calls are made than the bounds allow.

        At least 1: the run ends where a bound is reached, not here.
        """
        return max(1, self._payable(sys.maxsize, self._recent())) if self.bounded else sys.maxsize

    def room(self, bound: int, waiting: int) -> int:
        """Return how many episodes may be appended so that the budget pays for all that are pending.

        bound: how many may be pending whatever the budget; waiting: how many are, counted before this call
        """
        if not self.bounded:
            return bound - waiting
        paid = self._payable(bound, self._recent())
        # A stale count overestimates the room, so near the end of the budget spending is counted anew.
        if waiting < paid < bound:
            paid = self._payable(bound, self.spent())
        return paid - waiting

    def _payable(self, bound: int, now: Spending) -> int:
        if self._calls is not None:
            left = self._calls - now.calls
            paid = left * now.ended // now.calls if now.ended and now.calls else left // _FIRST_CALLS
            bound = min(bound, max(paid, min(left, 1)))
        if self._tokens is not None:
            each = max(1, now.tokens // now.ended) if now.ended and now.tokens else _FIRST_TOKENS
            bound = min(bound, -(-(self._tokens - now.tokens) // each))
        return bound

    def _recent(self) -> Spending:
        return self.spent() if time.monotonic() >= self._next else self._now
