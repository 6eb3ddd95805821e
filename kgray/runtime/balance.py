"""Divide slots evenly among shards, with as few moves as possible. This module does not use Ray."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

# Slots of one move. Their groups wait until the writes of their former shard are durable; each move costs the
# store three transactions.
PORTION = 16


class Move(NamedTuple):
    """Slots that go from one shard to another."""

    slots: Sequence[int]
    source: int
    target: int


def moves(owners: Sequence[int], shards: int) -> Iterator[Move]:
    """Yield moves, of at most PORTION slots each, that give each shard the same number of slots, or one more.

    owners  the shard of each slot; a shard that is not below `shards` loses all slots
    """
    counts = Counter(owners)
    quota, remainder = divmod(len(owners), shards)
    # The largest shards keep one slot above the quota: that saves moves.
    ranked = sorted(range(shards), key=lambda shard: (-counts[shard], shard))
    free = {shard: quota + (place < remainder) for place, shard in enumerate(ranked)}
    surplus: dict[int, list[int]] = {}  # by source
    for slot, shard in enumerate(owners):
        if free.get(shard, 0) > 0:
            free[shard] -= 1
        else:
            surplus.setdefault(shard, []).append(slot)
    for target, missing in free.items():
        while missing > 0:
            source, slots = next((shard, slots) for shard, slots in surplus.items() if slots)
            portion = slots[: min(missing, PORTION)]
            surplus[source] = slots[len(portion) :]
            missing -= len(portion)  # noqa: PLW2901 - counts down
            yield Move(portion, source, target)
