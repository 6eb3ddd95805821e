"""The additions of the embedded store to the port: SQLite's failures, snapshots, shards of one file."""

from __future__ import annotations

from contextlib import ExitStack

import apsw
import pytest

from kgray.errors import Locked, StaleWriter
from kgray.ports import GroupCounts
from kgray.schema.kinds import FACTS, KINDS
from kgray.storage.sqlite import open_sqlite
from kgray.storage.transactions import slot_of
from kgray.system.locks import INGEST_LOCK
from tests.graph.by_hand import all_of, append, draft, everything, head, small, statement_commit, tell


@pytest.fixture
def store(tmp_path):
    opened = small(tmp_path)
    yield opened
    opened.close()


def test_a_commit_that_fails_at_its_last_statement_is_rolled_back(store):
    """Case k: the store fails at the last statement of a commit; running again completes it."""
    append(store, draft("Al says one"))
    state_before = everything(store)
    store._db._writer.execute(
        "CREATE TEMP TRIGGER broken BEFORE INSERT ON main.facts BEGIN SELECT raise(ABORT, 'x'); END"
    )
    with store.writing():
        with pytest.raises(apsw.ConstraintError):
            store.apply([statement_commit(1, "Al", "one", 100)])
        assert everything(store) == state_before
        store._db._writer.execute("DROP TRIGGER temp.broken")
        store.apply([statement_commit(1, "Al", "one", 100)])
    assert [row.text for row in all_of(store, FACTS)] == ["Al says one"]


def test_a_snapshot_is_consistent_during_commits(store, tmp_path):
    with store.writing():
        tell(store, "Al", "one")
        with store.reading(), store.reading():
            state_before = everything(store)
            tell(store, "Bo", "two")
            second_store = small(tmp_path)
            append(second_store, draft("from elsewhere"))
            second_store.close()
            assert everything(store) == state_before
        assert everything(store) != state_before
        assert store.counts()["g"] == GroupCounts(accepted=1, committed=2, entities=2, facts=2)


def test_each_shard_epoch_of_a_process_fences_its_own_groups(store, tmp_path):
    """A new owner of one shard makes only its former holder stale; the count of shards stays."""
    groups = {slot_of(name) % 2: name for name in "abcdefgh"}
    append(store, *(draft("Al says one", group=group) for group in groups.values()))
    commits = {shard: statement_commit(1, "Al", "one", 10, group=group) for shard, group in groups.items()}
    second_store, local = small(tmp_path), small(tmp_path)
    with ExitStack() as shard_holds:
        first = shard_holds.enter_context(store.writing(shard=0, shards=2))
        with pytest.raises(StaleWriter):  # of a shard without an owner
            store.apply([commits[1]])
        second = shard_holds.enter_context(store.writing(shard=1, shards=2))
        assert second > first
        for refused in ({"shard": 1, "shards": 2}, {"shard": 0, "shards": 3}, {}):
            with pytest.raises(Locked, match="is ingesting"):
                store.writing(**refused).__enter__()
        with pytest.raises(Locked, match="is ingesting"):
            local.writing().__enter__()
        (tmp_path / INGEST_LOCK).unlink()  # as on a file system without locks
        with second_store.writing(shard=1, shards=2):
            store.apply([commits[0]])  # its own shard was left to it
            with pytest.raises(StaleWriter, match=f"{second} was superseded"):
                store.apply([commits[1]])
            second_store.apply([commits[1]])
    with local.writing() as newest:
        assert newest > second
        local.apply(commits.values())
        with pytest.raises(Locked, match="is ingesting"):
            store.writing(shard=0, shards=2).__enter__()
    with (
        second_store.writing(shard=2, shards=3),
        pytest.raises(StaleWriter),
    ):  # no shard is held: the group is divided again
        second_store.writing(epoch=first, shard=0, shards=3).__enter__()
    assert {count.committed for count in store.counts().values()} == {1}
    for each in (second_store, local):
        each.close()


def test_an_epoch_cannot_be_adopted_while_its_holder_lives(store, tmp_path):
    """A hanging writer is not a restarted writer: the next writer waits for it."""
    second_store = small(tmp_path)
    with store.writing() as epoch:
        with pytest.raises(Locked, match="is ingesting"), second_store.writing(epoch=epoch):
            pass
        tell(store, "Al", "one")
    with second_store.writing(epoch=epoch):
        tell(second_store, "Bo", "two")
    second_store.close()


def test_the_next_adoption_removes_the_rows_of_a_killed_adoption(store, tmp_path):
    """Its rows have a number without a name: no read finds them, and their bytes are deleted too."""
    source = small(tmp_path / "source")
    with source.writing():
        tell(source, "Al", "zqlost")
    lost = [(kind, row) for kind in KINDS for row in source.rows(kind.all, "g")]
    # The process can do no more with the store, as if it had been killed.
    with store.writing(), pytest.raises(apsw.Error):
        store.adopt("g", head(source), lost, store.close)
    store = small(tmp_path)
    assert (store.heads(), store.counts(), store.pending_count()) == ({}, {}, 0)
    with source.writing(), store.writing():
        tell(source, "Bo", "two")
        every = [(kind, row) for kind in KINDS for row in source.rows(kind.all, "g")]
        kept_rows = [(kind, row) for kind, row in every if "zqlost" not in str(row)]
        store.adopt("g", head(source), kept_rows, lambda: None)
        assert store.compact()
    assert [row.text for row in all_of(store, FACTS)] == ["Bo says two"]
    assert b"zqlost" not in b"".join(path.read_bytes() for path in tmp_path.glob("kgray.sqlite3*"))
    store.close()
    source.close()


def test_a_small_page_cache_is_the_limit_of_every_connection(tmp_path):
    """Several actors share a machine, so each chooses a small cache."""
    opened = open_sqlite(tmp_path, embedder="e", dimensions=4, cache_mb=8)
    with opened._db._reading() as first, opened._db._reading() as second:
        caches = [each.pragma("cache_size") for each in (first, second, opened._db._writer)]
    opened.close()
    assert caches == [-8 * 1024] * 3
