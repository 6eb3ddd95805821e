"""Transport faults, which depend only on the request and the number of its attempts."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Literal

from tests.world.dice import Dice

TransportFault = Literal["malformed", "truncated", "throttled", "failed", "hung"]
_KINDS: tuple[TransportFault, ...] = ("malformed", "truncated", "throttled", "failed", "hung")
MAX_REMEMBERED = 200_000  # requests with counted attempts; beyond it all counts are cleared


@dataclass(slots=True)
class Faults:
    """Rates of 1 for each request and attempt.

    malformed   200 with a reply that is not JSON
    truncated   200, cut in the middle, finish_reason "length"
    throttled   429 with Retry-After
    failed      500
    hung        no answer for hang_s seconds, then 500
    """

    seed: int = 0
    malformed: float = 0.0
    truncated: float = 0.0
    throttled: float = 0.0
    failed: float = 0.0
    hung: float = 0.0
    hang_s: float = 30.0
    made: dict[str, int] = field(default_factory=dict)
    _attempts: dict[bytes, int] = field(default_factory=dict)

    def fault_for(self, body: bytes) -> TransportFault | None:
        """Return the fault of this attempt of the request, or None."""
        rates = {kind: float(getattr(self, kind)) for kind in _KINDS}
        if not any(rates.values()):
            return None
        request = hashlib.blake2b(body, digest_size=16).digest()
        if len(self._attempts) >= MAX_REMEMBERED:
            self._attempts.clear()
        attempt = self._attempts[request] = self._attempts.get(request, 0) + 1
        thrown = Dice("transport", self.seed, request.hex(), attempt).unit()
        for kind, rate in rates.items():
            thrown -= rate
            if thrown < 0:
                self.made[kind] = self.made.get(kind, 0) + 1
                return kind
        return None
