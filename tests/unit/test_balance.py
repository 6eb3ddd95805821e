"""Slots are divided evenly, and none is moved that need not be."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from kgray.runtime.balance import PORTION, moves
from kgray.storage.transactions import SLOTS


@given(
    owners=st.lists(st.integers(0, 6), min_size=1, max_size=200),
    shards=st.integers(1, 7),
)
def test_the_fewest_moves_make_the_counts_even(owners: list[int], shards: int):
    counts_before, later_value = Counter(owners), list(owners)
    moved = 0
    for move in moves(owners, shards):
        assert 1 <= len(move.slots) <= PORTION
        assert move.source != move.target
        for slot in move.slots:
            assert later_value[slot] == move.source == owners[slot]  # each at most once, and by its owner
            later_value[slot] = move.target
            moved += 1

    counts = [Counter(later_value)[shard] for shard in range(shards)]
    assert sum(counts) == len(owners)
    assert max(counts) - min(counts) <= 1
    # For any shares: the slots that stay are at most the smaller of the two.
    shares = sorted(counts, reverse=True)
    had = sorted((counts_before[shard] for shard in range(shards)), reverse=True)
    assert moved == len(owners) - sum(map(min, had, shares))


def test_from_2_shards_to_5_and_back_three_fifths_move():
    owners = [slot % 2 for slot in range(SLOTS)]
    grown = sum(len(move.slots) for move in moves(owners, 5))
    assert grown == SLOTS - 205 - 205
    assert list(moves(owners, 2)) == []
