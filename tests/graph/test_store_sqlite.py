"""What the embedded store adds to the port: SQLite's own failures, snapshots, and one shard."""

from __future__ import annotations

import apsw
import pytest

from kgray.errors import Locked, StoreError
from kgray.kinds import ALL, EVIDENCE, FACTS, KINDS
from kgray.ports import GroupCounts
from kgray.stores.sqlite.adoption import StagedGroup
from tests.graph.by_hand import all_of, append, draft, everything, head, small, tell, told


@pytest.fixture
def store(tmp_path):
    opened = small(tmp_path)
    yield opened
    opened.close()


def test_a_commit_that_breaks_at_its_last_statement_leaves_nothing(store):
    """Case k: the store fails at the last statement of a commit; running again completes it."""
    append(store, draft("Al says one"))
    before = everything(store)
    store._db._writer.execute(
        "CREATE TEMP TRIGGER broken BEFORE INSERT ON main.facts BEGIN SELECT raise(ABORT, 'x'); END"
    )
    with store.writing():
        with pytest.raises(apsw.ConstraintError):
            store.apply([told(1, "Al", "one", 100)])
        assert everything(store) == before
        store._db._writer.execute("DROP TRIGGER temp.broken")
        store.apply([told(1, "Al", "one", 100)])
    assert [row[4] for row in all_of(store, FACTS)] == ["Al says one"]


def test_a_snapshot_sees_one_moment_while_commits_go_on(store, tmp_path):
    with store.writing():
        tell(store, "Al", "one")
        with store.reading(), store.reading():
            before = everything(store)
            tell(store, "Bo", "two")
            other = small(tmp_path)
            append(other, draft("from elsewhere"))
            other.close()
            assert everything(store) == before
        assert everything(store) != before
        assert store.counts()["g"] == GroupCounts(accepted=1, committed=2, entities=2, facts=2)


def test_the_embedded_store_is_one_shard(store):
    with pytest.raises(StoreError, match="one shard, 0: it has no shard 1"), store.writing(shard=1):
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


def test_what_a_killed_adoption_left_goes_at_the_next_one(store, tmp_path):
    """It stands under a number without a name: no read finds it, and its bytes go too."""
    source = small(tmp_path / "source")
    with source.writing():
        tell(source, "Al", "zqlost")
    lost = [(kind, row) for kind in KINDS for row in source.rows(ALL[kind.name], "g")]
    with store.writing():
        killed = StagedGroup(store._db, "g", head(source), store.dimensions)
        killed.start()
        killed.take(lost)
    assert (store.heads(), store.counts(), store.pending_count()) == ({}, {}, 0)
    with source.writing(), store.writing():
        tell(source, "Bo", "two")
        every = [(kind, row) for kind in KINDS for row in source.rows(ALL[kind.name], "g")]
        kept = [(kind, row) for kind, row in every if "zqlost" not in str(row)]
        store.adopt("g", head(source), kept, lambda: None)
        assert store.compact()
    assert [row[6] for row in all_of(store, EVIDENCE)] == ["Bo says two"]
    assert b"zqlost" not in b"".join(path.read_bytes() for path in tmp_path.glob("kgray.sqlite3*"))
    source.close()
