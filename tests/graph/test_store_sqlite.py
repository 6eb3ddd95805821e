"""What the embedded store adds to the port: SQLite's own failures, snapshots, and one shard."""

from __future__ import annotations

import apsw
import pytest

from kgray.errors import Locked, StoreError
from kgray.ports import GroupCounts
from tests.graph.by_hand import draft, everything, small, tell, told


@pytest.fixture
def store(tmp_path):
    opened = small(tmp_path)
    yield opened
    opened.close()


def test_a_commit_that_breaks_at_its_last_statement_leaves_nothing(store):
    """Case k: the store fails at the last statement of a commit; running again completes it."""
    store.accept([draft("Al says one")], now=1)
    before = everything(store)
    store._db._writer.execute(
        "CREATE TEMP TRIGGER broken BEFORE UPDATE OF state ON main.episodes "
        "BEGIN SELECT raise(ABORT, 'x'); END"
    )
    with store.writing():
        with pytest.raises(apsw.ConstraintError):
            store.write([told(1, "Al", "one", 100)])
        assert everything(store) == before
        store._db._writer.execute("DROP TRIGGER temp.broken")
        store.write([told(1, "Al", "one", 100)])
    assert store.view("g").facts(["F1"])[0].text == "Al says one"


def test_a_snapshot_sees_one_moment_while_commits_go_on(store, tmp_path):
    with store.writing():
        tell(store, "Al", "one")
        with store.reading(), store.reading():
            before = everything(store)
            tell(store, "Bo", "two")
            other = small(tmp_path)
            other.accept([draft("from elsewhere")], now=1)
            other.close()
            assert everything(store) == before
        assert everything(store) != before
        assert store.counts()["g"] == GroupCounts(accepted=1, committed=2, entities=2, facts=2)


def test_the_embedded_store_is_one_shard(store):
    with pytest.raises(StoreError, match="one shard, 0, and has no shard 1"), store.writing(shard=1):
        pass


def test_an_epoch_is_not_adopted_from_who_holds_the_folder(store, tmp_path):
    """A writer that hangs is not one that was restarted: it is waited for."""
    other = small(tmp_path)
    with store.writing() as epoch:
        with pytest.raises(Locked, match="is ingesting"), other.writing(epoch=epoch):
            pass
        tell(store, "Al", "one")
    with other.writing(epoch=epoch):
        tell(other, "Bo", "two")
    other.close()
