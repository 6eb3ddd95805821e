"""Who may write to a group: the rules of slots, the same on every store (R23).

Each group lies in one of `ports.SLOTS` slots, by a hash of its name. A slot has a row with its shard and an
epoch. Whoever takes the shard raises the epochs of its slots, and so does whoever moves a slot. A write locks
the rows of the slots of its groups, and no others, and compares their epochs with those that it knows: two
writes of different slots do not wait for each other, and a late one of an earlier owner changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import starmap
from typing import Any, NamedTuple

from kgray.errors import StaleWriter, StoreError
from kgray.ports import SLOTS, slot_of
from kgray.stores.alike import stale


@dataclass(slots=True, kw_only=True)
class Hold:
    """What one context of `Store.writing` holds.

    shards  their numbers
    epoch   of the run that it serves
    token   tells it from every other hold, also from one that goes on with the same epoch
    slots   slot -> epoch, of the slots that it has; those that are moved to it come in with their first write
    """

    shards: Collection[int]
    epoch: int
    token: object
    slots: dict[int, int] = field(default_factory=dict)


class SlotRow(NamedTuple):
    """A slot's row, locked, with the newest epoch and token of its shard."""

    slot: int
    shard: int
    epoch: int
    newest: int
    token: Any


def check(
    where: object, holds: Sequence[Hold], groups: Iterable[str], rows: Callable[[list[int]], Iterable[Any]],
    *, epoch: int | None,
) -> None:  # fmt: skip
    """Raise StaleWriter unless the holds (of this epoch, None: of any) have the slots of all of these groups.

    rows: called with the slots, sorted; locks them, and returns the fields of the SlotRow of each.

    A slot that a hold has never had was moved to its shard: its epoch is that of the row, as long as nobody
    has taken the shard since. A slot that a hold has had, and that went and came back, is refused: what was
    decided before it went may still be on its way.
    """
    asked = sorted(set(map(slot_of, groups)))
    found = list(starmap(SlotRow, rows(asked)))
    if len(found) < len(asked):
        raise stale(where, "no", None)
    for row in found:
        hold = next((h for h in holds if row.shard in h.shards and epoch in (None, h.epoch)), None)
        if hold is None:
            if not holds:
                raise stale(where, row.newest, None)
            raise StaleWriter(
                f"slot {row.slot} in {where} is of shard {row.shard}, which this run does not hold: nothing "
                f"was changed"
            )
        its_own = (hold.epoch, hold.token) == (row.newest, row.token)
        if not its_own or hold.slots.setdefault(row.slot, row.epoch) != row.epoch:
            raise stale(where, max(row.newest, row.epoch), hold.epoch)


def check_move(where: object, slots: Collection[int], shard: int, number: int) -> None:
    """Raise StoreError where slots, of which a store with so many shards has, cannot be moved to a shard."""
    if strange := [slot for slot in slots if not 0 <= slot < SLOTS]:
        raise StoreError(f"there is no slot {strange[0]}: the slots of {where} are 0 to {SLOTS - 1}")
    if not 0 <= shard <= number:
        raise StoreError(f"{where} has {number} shards: a slot cannot be moved to shard {shard}")


def check_moved(where: object, asked: Collection[int], moved: Collection[object]) -> None:
    """Raise StaleWriter where not all of these slots were still marked."""
    if len(moved) < len(set(asked)):
        raise StaleWriter(f"a shard in {where} was taken while its slots were moved: run it again")
