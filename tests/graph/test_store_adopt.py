"""A group adopted from another store, on every store: completely or not at all."""

from __future__ import annotations

import pytest

from kgray.domain.records import Operation
from kgray.errors import StaleWriter, StoreError
from kgray.ports import GroupHead
from kgray.schema import rows
from kgray.schema.kinds import KINDS
from kgray.storage.ledger import pending, pending_groups
from tests.graph.by_hand import (
    all_of,
    answered,
    append,
    ask,
    draft,
    everything,
    extracted,
    failed,
    head,
    remove,
    small,
    statement_commit,
    tell,
    worded,
)

pytestmark = pytest.mark.seldom_on_neo4j


@pytest.fixture
def source(tmp_path, group):
    """Yield a store with a group whose history leaves rows of every kind."""
    store = small(tmp_path / "source")
    with store.writing():
        for name in ("Al", "Bo", "Cy", "Di"):
            tell(store, name, "one", group=group, client_id=name)
        remove(store, [2], group=group, source="x")
        append(store, draft("failed", group=group), draft("pending", group=group))
        ask(store, Operation(group=group, kind="undo", target=1))
        store.apply([
            failed(6, 100, group=group), answered(7, "k", {"a": None}, group=group, calls=2),
            extracted(7, rows.Extraction(calls=1), group=group),
        ])  # fmt: skip
    yield store
    store.close()


def all_rows(store, group):
    """Yield every row, as a copy sends them."""
    for kind in KINDS:
        for row in store.rows(kind.all, group):
            yield kind, row


def test_an_adopted_group_has_equal_rows_and_searches_and_accepts_writes(store, source, group):
    source_state = everything(source, group)
    with store.writing():
        store.adopt(group, head(source, group), all_rows(source, group), lambda: None)
        assert everything(store, group) == source_state
        assert append(store, draft("next", group=group)) == [9]
        store.apply([statement_commit(9, "Ed", "two", 200, group=group)])
    assert worded(store, "fact", "ed", group) == [(9, 0)]


def test_no_other_reader_sees_an_adopted_group_before_it_is_verified(store, stores, source, group, mine):
    second_store = stores.open()
    observations = []

    def watched():
        for kind, row in all_rows(source, group):
            observations.append(
                (
                    mine(second_store.heads()),
                    all_of(second_store, kind, group),
                    mine(pending_groups(second_store)),
                )
            )
            yield kind, row

    def verify():
        assert everything(store, group)["entities"] == everything(source, group)["entities"]
        assert head(store, group).named
        observations.append(
            (mine(second_store.heads()), pending(second_store, group, 9), mine(second_store.counts()))
        )

    with store.writing():
        store.adopt(group, head(source, group), watched(), verify)
    assert all(observation == ({}, [], {}) for observation in observations)
    assert everything(second_store, group) == everything(source, group)


@pytest.mark.parametrize("fault_place", ["rows", "verify"])
def test_a_failed_adoption_leaves_no_rows_and_can_be_repeated(store, source, group, mine, fault_place):
    def broken():
        yield from all_rows(source, group)
        if fault_place == "rows":
            raise ValueError("lost")

    def verify():
        if fault_place == "verify":
            raise ValueError("lost")

    with store.writing():
        for _ in range(2):
            with pytest.raises(ValueError, match="lost"):
                store.adopt(group, head(source, group), broken(), verify)
            assert mine(store.heads()) == {}
            assert {kind: all_of(store, kind, group) for kind in KINDS} == {kind: [] for kind in KINDS}
            assert worded(store, "fact", "says", group) == []
        store.adopt(group, head(source, group), all_rows(source, group), lambda: None)
    assert everything(store, group) == everything(source, group)


def test_an_existing_or_removed_group_is_not_adopted(store, source, group, mine):
    with store.writing():
        tell(store, "Al", "one", group=group)
        state_before = everything(store, group)
        with pytest.raises(StoreError, match="is there already"):
            store.adopt(group, head(source, group), all_rows(source, group), lambda: None)
        assert everything(store, group) == state_before
        remove(store, [], group=group, everything=True)
        with pytest.raises(StoreError, match="was removed: its 2 sequences are never used again"):
            store.adopt(group, head(source, group), all_rows(source, group), lambda: None)
    assert mine(store.heads()) == {}


def test_adopting_without_a_lease_is_refused(store, group):
    with pytest.raises(StaleWriter):
        store.adopt(group, GroupHead(named=True), [], lambda: None)
