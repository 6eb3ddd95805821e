"""A slot has one owner, and can be moved to another: marked, drained, handed over (R23)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

import pytest

from kgray.errors import StaleWriter, StoreError
from kgray.ports import RowChanges, Store
from kgray.storage.transactions import SLOTS, slot_of
from tests.graph.by_hand import append, draft, head, statement_commit
from tests.graph.stores import Stores

pytestmark = pytest.mark.seldom_on_neo4j


class Owner(NamedTuple):
    """The owner of one of two shards: its own process on a server, one of two runs in a file's process."""

    store: Store
    shard: int
    epoch: int

    def apply(self, *changes: RowChanges) -> None:
        self.store.apply(changes, epoch=self.epoch)


@pytest.fixture
def owners(stores: Stores, group: str) -> Iterator[tuple[Owner, Owner]]:
    """Yield the owner of the group's slot, and the owner of the other shard, of two."""
    first = stores.open()
    stores_of_shards = [first, first if "Sqlite" in type(stores).__name__ else stores.open()]
    own_shard = slot_of(group) % 2
    append(first, *(draft(text, group=group) for text in ("Al says one", "Bo says two", "Cy says three")))
    with ExitStack() as shard_holds:
        yield tuple(
            Owner(store, shard, shard_holds.enter_context(store.writing(shard=shard, shards=2)))
            for store, shard in zip(stores_of_shards, (own_shard, 1 - own_shard), strict=True)
        )
    with first.writing(shard=0, shards=1):
        pass  # as the database of the other tests is divided


@pytest.fixture
def second_group(group: str) -> str:
    """Return the name of another group of the group's shard, in another slot."""
    names = (f"{group}{n}" for n in range(SLOTS))
    return next(n for n in names if slot_of(n) != slot_of(group) and (slot_of(n) - slot_of(group)) % 2 == 0)


def test_the_slot_of_a_group_is_fixed():
    assert [slot_of(name) for name in ("g", "h", "Zürich", "")] == [886, 743, 318, 0]
    assert {slot_of(f"group {n}") for n in range(20_000)} == set(range(SLOTS))


def test_a_moved_slot_has_a_new_owner_and_refuses_late_batches_of_the_old_owner(
    owners, mine, group, second_group
):
    old, new = owners
    slot = slot_of(group)
    append(old.store, draft("Di says four", group=second_group))
    item, two, three = (
        statement_commit(n, name, "x", 10 * n, group=group)
        for n, name in enumerate(("Al", "Bo", "Cy"), start=1)
    )
    old.apply(item)
    with pytest.raises(StaleWriter):
        new.apply(two)
    _, mark = new.store.newly_pending(0, new.shard)
    with old.store.moving([slot], new.shard):
        for owner in owners:
            assert group not in owner.store.newly_pending(0, owner.shard)[0]
            assert group not in owner.store.withdrawing(owner.shard)
        assert mine(old.store.newly_pending(0, old.shard)[0]) == {second_group: True}
        assert mine(old.store.newly_pending(0)[0]) == {group: True, second_group: True}
        old.apply(two)  # its earlier decision
        with pytest.raises(StaleWriter):
            new.apply(three)
    with pytest.raises(StaleWriter, match="nothing was changed"):
        old.apply(three)
    assert head(old.store, group).last_recorded == 20
    assert mine(new.store.newly_pending(mark, new.shard)[0]) == {group: True}
    assert mine(old.store.newly_pending(0, old.shard)[0]) == {second_group: True}
    assert old.store.pending_count(group) == 1
    new.apply(two)  # sent again: left out
    new.apply(three)
    old.apply(statement_commit(1, "Di", "four", 10, group=second_group))  # it keeps its other slots
    assert old.store.pending_count(group) == old.store.pending_count(second_group) == 0


def test_a_batch_decided_before_a_slot_moved_away_and_back_is_refused(owners, group):
    """The owner is the same, and so is its run; an earlier batch of it may arrive late."""
    old, new = owners
    for owner in (new, old):
        with old.store.moving([slot_of(group)], owner.shard):
            pass
    with pytest.raises(StaleWriter):
        old.apply(statement_commit(1, "Al", "one", 10, group=group))


def test_a_new_owner_of_a_shard_gets_its_moved_slots(owners, stores, group):
    old, new = owners
    with old.store.moving([slot_of(group)], new.shard):
        pass
    stores.lose_hold()
    other_memory = stores.open()
    with other_memory.writing(epoch=new.epoch, shard=new.shard, shards=2):
        other_memory.apply([statement_commit(1, "Al", "one", 10, group=group)])
        with pytest.raises(StaleWriter):
            new.apply(statement_commit(2, "Bo", "two", 20, group=group))  # it lives, and has the same epoch
    with other_memory.writing(shard=new.shard, shards=2):
        other_memory.apply([statement_commit(2, "Bo", "two", 20, group=group)])


def test_a_failed_move_leaves_the_slots_with_their_owner(owners, mine, group):
    old, new = owners
    with pytest.raises(KeyboardInterrupt), new.store.moving([slot_of(group)], new.shard):
        raise KeyboardInterrupt
    assert mine(old.store.newly_pending(0, old.shard)[0]) == {group: True}
    old.apply(statement_commit(1, "Al", "one", 10, group=group))
    with pytest.raises(StaleWriter):
        new.apply(statement_commit(2, "Bo", "two", 20, group=group))


def test_a_killed_move_is_cancelled_by_the_next_owner_of_the_shard(stores, mine, group):
    store, other_memory = stores.open(), stores.open()
    append(store, draft("Al says one", group=group))
    own_shard = slot_of(group) % 2
    with store.writing(shard=own_shard, shards=2) as epoch:
        move = store.moving([slot_of(group)], 1 - own_shard)
        move.__enter__()
        assert mine(store.newly_pending(0, own_shard)[0]) == {}
    with other_memory.writing(epoch=epoch, shard=own_shard, shards=2):
        assert mine(other_memory.newly_pending(0, own_shard)[0]) == {group: True}
        with pytest.raises(StaleWriter, match="was taken while its slots were moved"):
            move.__exit__(None, None, None)
        other_memory.apply([statement_commit(1, "Al", "one", 10, group=group)])
    with other_memory.writing(shard=0, shards=1):
        pass


def test_a_missing_slot_is_not_moved_and_no_slot_is_moved_to_a_missing_shard(owners, group):
    old, _ = owners
    for slots, shard in (([slot_of(group)], 2), ([slot_of(group)], -1), ([SLOTS], 0), ([-1], 0)):
        with pytest.raises(StoreError, match="slot"), old.store.moving(slots, shard):
            pass


def test_an_added_shard_writes_alongside_the_shards_that_gave_it_slots(stores, mine, group):
    """From one shard to two: the first owner continues, and only its writes to moved slots are refused."""
    first, second = stores.open(), stores.open()
    append(first, draft("Al says one", group=group))
    if "Sqlite" in type(stores).__name__:
        second = first
    with first.writing(shard=0, shards=1) as old:
        first.set_shards(2)
        assert first.shard_map() == (2, [0] * SLOTS)
        with first.moving([slot_of(group)], 1):
            pass
        assert [slot for slot, shard in enumerate(first.shard_map().owners) if shard] == [slot_of(group)]
        with second.writing(shard=1, shards=2) as epoch:
            assert mine(second.newly_pending(0, 1)[0]) == {group: True}
            second.apply([statement_commit(1, "Al", "one", 10, group=group)], epoch=epoch)
    second_memory = stores.open()
    with second_memory.writing(epoch=old, shard=0, shards=0):  # the count stays: nothing is divided again
        assert second_memory.shard_map().owners[slot_of(group)] == 1
    with pytest.raises(StoreError, match="there is no shard 2"):
        second_memory.writing(shard=2, shards=0).__enter__()
    with first.writing(shard=0, shards=1):
        pass


def test_a_shard_without_slots_can_be_dropped_and_its_holder_cannot_write(owners, stores, group):
    new = owners[1]
    with pytest.raises(StoreError, match=r"512 slots of .* are of shards beyond 1: move them first"):
        new.store.set_shards(1)
    with pytest.raises(StoreError, match="can have 1 to 1024"):
        new.store.set_shards(0)
    owned = new.store.shard_map().owners
    with new.store.moving([slot for slot in range(SLOTS) if owned[slot] == 1], 0):
        pass
    move = new.store.moving([0], 1)  # of a process that was killed
    move.__enter__()
    new.store.set_shards(1)
    with pytest.raises(StaleWriter):
        move.__exit__(None, None, None)
    assert new.store.shard_map() == (1, [0] * SLOTS)
    first, former = sorted(owners, key=lambda owner: owner.shard)
    with pytest.raises(StaleWriter):
        former.apply(statement_commit(1, "Al", "one", 10, group=group))
    first.apply(statement_commit(1, "Al", "one", 10, group=group))  # whose the slot is now
    stores.lose_hold()
    with pytest.raises(StoreError, match="there is no shard 1"):
        stores.open().writing(epoch=former.epoch, shard=1, shards=0).__enter__()
