"""Fencing by slots: the right of a process to write to a group (R23). The rules are the same on every store.

Each group lies in one of `ports.SLOTS` slots, chosen by a hash of its name. The row of a slot names its
shard and an epoch. Taking a shard raises the epochs of its slots, and moving a slot raises its epoch. A
write locks the rows of its groups' slots, and compares their epochs with the epochs that the writer knows.
Therefore two writes of different slots do not wait for each other, and a late write of an earlier owner
changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import starmap
from typing import Any, NamedTuple

from kgray.errors import StaleWriter, StoreError
from kgray.ports import SLOTS, slot_of
from kgray.storage.alike import stale


@dataclass(slots=True, kw_only=True)
class Hold:
    """A writer's lock on shards and their slots, during one `Store.writing`.

    It has nothing to do with the held groups of `kgray.storage.ledger`.

    shards  numbers of the locked shards
    epoch   of the lock; a restarted writer continues with the epoch of its predecessor
    token   differs from the token of every other hold, also of a hold with the same epoch
    slots   slot -> epoch; a slot that is moved to a shard of the hold is added by the first write to it
    """

    shards: Collection[int]
    epoch: int
    token: object
    slots: dict[int, int] = field(default_factory=dict)


class SlotRow(NamedTuple):
    """The row of a locked slot; newest, token: those of the last hold on its shard."""

    slot: int
    shard: int
    epoch: int
    newest: int
    token: Any


def slots_of(groups: Iterable[str]) -> list[int]:
    """Return the slots of these groups, each once, in the common order of locking."""
    return sorted(set(map(slot_of, groups)))


def check(
    location: object,
    holds: Sequence[Hold],
    groups: Iterable[str],
    locked: Iterable[Any],
    *,
    epoch: int | None,
) -> None:
    """Raise StaleWriter unless holds with this epoch (None: any epoch) cover the slots of these groups.

    locked: the fields of a SlotRow for each of these slots, which the transaction has locked

    If a hold has the shard of a slot but not the slot, the slot was moved to the shard: the hold adopts the
    epoch of the row, unless another hold has taken the shard. A slot that left a hold and came back has a new
    epoch and is refused, because the hold may still receive a write from before the slot left.
    """
    rows = list(starmap(SlotRow, locked))
    if len(rows) < len(slots_of(groups)):
        raise stale(location, "no", None)
    for row in rows:
        hold = next((h for h in holds if row.shard in h.shards and epoch in (None, h.epoch)), None)
        if hold is None:
            if not holds:
                raise stale(location, row.newest, None)
            raise StaleWriter(
                f"slot {row.slot} in {location} is of shard {row.shard}, which this run does not hold: "
                f"nothing was changed"
            )
        is_newest = (hold.epoch, hold.token) == (row.newest, row.token)
        if not is_newest or hold.slots.setdefault(row.slot, row.epoch) != row.epoch:
            raise stale(location, max(row.newest, row.epoch), hold.epoch)


def check_move(location: object, slots: Collection[int], shard: int, shards: int) -> None:
    """Raise StoreError for a slot or a shard that does not exist. shards: the store's number of shards."""
    if strange := [slot for slot in slots if not 0 <= slot < SLOTS]:
        raise StoreError(f"there is no slot {strange[0]}: the slots of {location} are 0 to {SLOTS - 1}")
    if not 0 <= shard < shards:
        raise StoreError(f"{location} has {shards} shards: a slot cannot be moved to shard {shard}")


def check_shard(location: object, shard: int, shards: int) -> None:
    """Raise StoreError for a shard that cannot be taken."""
    if not 0 <= shard < shards:
        raise StoreError(f"{location} has {shards} shards: there is no shard {shard}")


def check_empty(location: object, shards: int, remaining: int) -> None:
    """Raise StoreError if the number of shards cannot be set. remaining: slots of the shards to drop."""
    if not 1 <= shards <= SLOTS:
        raise StoreError(f"{shards} shards: {location} can have 1 to {SLOTS}")
    if remaining:
        raise StoreError(f"{remaining} slots of {location} are of shards beyond {shards}: move them first")


def check_moved(location: object, slots: Collection[int], moved: Collection[object]) -> None:
    """Raise StaleWriter unless all of these slots were moved."""
    if len(moved) < len(set(slots)):
        raise StaleWriter(f"a shard in {location} was taken while its slots were moved: run it again")
