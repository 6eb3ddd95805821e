"""The file in the data folder: made, recognised, refused, migrated."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import apsw
import pytest

from kgray.errors import StoreError, Unavailable
from kgray.stores.sqlite import schema
from tests.graph.by_hand import draft, small, told


def files(folder: Path) -> dict[str, bytes]:
    """Return every file of a folder with its bytes."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def refusal(folder: Path, **options: object) -> str:
    """Return the one line with which opening is refused; nothing in the folder may change."""
    before = files(folder)
    with pytest.raises(StoreError) as caught:
        small(folder, **options)
    assert files(folder) == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_new_folder_gets_one_marked_file(tmp_path):
    small(tmp_path / "a" / "b").close()
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["kgray.sqlite3"]
    connection = apsw.Connection(str(tmp_path / "a" / "b" / "kgray.sqlite3"))
    assert connection.pragma("application_id") == schema.APPLICATION_ID
    assert connection.pragma("user_version") == schema.VERSION
    assert connection.pragma("page_size") == schema.PAGE_BYTES
    assert dict(connection.execute("SELECT key, value FROM meta").fetchall()) == {
        "schema": schema.VERSION, "embedder": "by-hand", "dimensions": 64, "epoch": 0,
    }  # fmt: skip
    connection.close()


def test_opening_again_keeps_what_is_there(tmp_path):
    store = small(tmp_path)
    store.accept([draft("kept")], now=1)
    store.close()
    store.close()
    again = small(tmp_path, create=False)
    assert [row.text for row in again.pending("g", 9)] == ["kept"]
    again.close()


def test_nothing_there_and_not_to_create_names_the_command(tmp_path):
    assert "kgray init" in refusal(tmp_path, create=False)
    with pytest.raises(StoreError, match="kgray init"):
        small(tmp_path / "missing", create=False)
    assert not (tmp_path / "missing").exists()


def test_an_empty_file_is_no_store_yet(tmp_path):
    (tmp_path / schema.FILE).touch()
    assert "kgray init" in refusal(tmp_path, create=False)
    small(tmp_path).close()


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"not a database at all" * 100, id="text"),
        pytest.param(b"SQLite format 3\0", id="cut-in-the-header"),
        pytest.param(b"\0" * 8192, id="zeros"),
    ],
)
def test_a_file_that_is_no_store_is_refused_untouched(tmp_path, content):
    (tmp_path / schema.FILE).write_bytes(content)
    assert "no kgray store" in refusal(tmp_path)


def test_another_programs_database_is_refused_untouched(tmp_path):
    other = apsw.Connection(str(tmp_path / schema.FILE))
    other.pragma("journal_mode", "wal")
    other.execute("CREATE TABLE t (x); INSERT INTO t VALUES (1)")
    other.close()
    assert "another program" in refusal(tmp_path)


def test_a_newer_version_is_refused_untouched(tmp_path):
    small(tmp_path).close()
    newer = apsw.Connection(str(tmp_path / schema.FILE))
    newer.pragma("user_version", schema.VERSION + 1)
    newer.close()
    assert "newer kgray" in refusal(tmp_path)


@pytest.mark.parametrize("other", [{"embedder": "another"}, {"dimensions": 32}], ids=["name", "width"])
def test_another_embedder_is_refused_and_both_are_named(tmp_path, other):
    store = small(tmp_path)
    store.accept([draft("kept")], now=1)
    store.close()
    line = refusal(tmp_path, **other)
    assert "'by-hand'" in line
    assert "64 numbers" in line
    assert str(next(iter(other.values()))) in line


def test_a_file_cut_short_is_refused(tmp_path):
    store = small(tmp_path)
    store.accept([draft("x" * 5000, client_id=str(n)) for n in range(50)], now=1)
    store.close()
    path = tmp_path / schema.FILE
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert "damaged" in refusal(tmp_path)


def test_damage_met_while_reading_is_one_line(tmp_path):
    store = small(tmp_path)
    store.accept([draft("x" * 500, client_id=str(n)) for n in range(200)], now=1)
    store.close()
    path = tmp_path / schema.FILE
    content = bytearray(path.read_bytes())
    # Every page but the first: the header still says that the file is ours.
    content[8192:] = b"\xa5" * (len(content) - 8192)
    path.write_bytes(bytes(content))
    with pytest.raises(StoreError, match="damaged"):  # noqa: PT012 - either call may meet it
        broken = small(tmp_path)
        broken.pending("g", 500)


def test_a_folder_below_a_file_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError):
        small(tmp_path / "file" / "folder")


def test_a_lock_beyond_patience_leaves_everything_as_it_was(tmp_path):
    store = small(tmp_path, patience_s=0.05)
    other = apsw.Connection(str(tmp_path / schema.FILE))
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable, match="locked"):
        store.accept([draft("x")], now=1)
    assert store.pending_count() == 0  # reading goes on
    other.execute("ROLLBACK")
    assert store.accept([draft("x")], now=1)[0].status == "accepted"
    other.close()
    store.close()


def test_a_full_disk_is_one_line_and_leaves_nothing_half_written(tmp_path):
    store = small(tmp_path)
    store.accept([draft("before")], now=1)
    pages = store._db._writer.pragma("page_count")
    store._db._writer.pragma("max_page_count", pages + 2)
    with pytest.raises(StoreError, match="no space left"):
        store.accept([draft("y" * 4000, client_id=str(n)) for n in range(50)], now=1)
    store._db._writer.pragma("max_page_count", 10**6)
    assert [row.text for row in store.pending("g", 99)] == ["before"]
    assert store.accept([draft("after")], now=1)[0].sequence == 2
    store.close()


def test_a_file_of_version_1_goes_on_with_everything_in_the_live_lane(tmp_path):
    """As the first version wrote it: what is pending in it was added by who waits for it."""
    connection = apsw.Connection(str(tmp_path / schema.FILE))
    connection.pragma("page_size", schema.PAGE_BYTES)
    connection.pragma("journal_mode", "wal")
    assert schema.migrate(connection, schema.STEPS[:1]) == 0
    connection.execute(
        "INSERT INTO meta VALUES ('embedder', 'by-hand'), ('dimensions', 64), ('epoch', 7);"
        "INSERT INTO groups (name, digest, last, last_recorded) VALUES ('g', ?, 2, 30)",
        (hashlib.sha256(b"g").digest(),),
    )
    for sequence, state, ended_at in ((1, 2, 30), (2, 0, None)):
        sent = draft(f"text {sequence}")
        connection.execute(
            "INSERT INTO episodes (key, no, id, source, kind, text, reference_time, content_sha256, "
            "metadata, state, ended_at) VALUES (1 << 40 | ?1, 1, ?2, 's', 'text', ?3, 5, ?4, '{}', ?5, ?6)",
            (sequence, sent.id, sent.text, sent.content_sha256, state, ended_at),
        )
    connection.close()
    store = small(tmp_path, create=False)
    assert store.pending_groups() == {"g": True}
    assert [(row.sequence, row.text, row.bulk) for row in store.pending("g", 9)] == [(2, "text 2", False)]
    assert [head.recorded_at for head in store.records("g").heads] == [30]
    store.accept([draft("new")], now=1, bulk=True)
    with store.writing() as epoch:
        assert epoch == 8
        store.write([told(2, "Al", "one", 40)])
    assert store.pending_groups() == {"g": False}
    store.close()
    connection = apsw.Connection(str(tmp_path / schema.FILE))
    assert connection.pragma("user_version") == schema.VERSION == 2
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def test_an_older_file_goes_through_every_missing_step_once(tmp_path):
    """The chain from the file of today on."""
    store = small(tmp_path)
    store.accept([draft("kept")], now=1)
    store.close()
    steps = (
        *schema.STEPS,
        "ALTER TABLE groups ADD COLUMN note TEXT",
        "UPDATE groups SET note = name || '!'; CREATE TABLE later (x)",
    )
    path = tmp_path / schema.FILE
    connection = apsw.Connection(str(path))
    assert schema.migrate(connection, steps) == schema.VERSION
    assert schema.migrate(connection, steps) == len(steps)
    assert connection.pragma("user_version") == len(steps)
    assert connection.execute("SELECT name, note FROM groups").fetchall() == [("g", "g!")]
    connection.close()
    shutil.rmtree(tmp_path)


def test_a_migration_that_fails_changes_nothing(tmp_path):
    small(tmp_path).close()
    connection = apsw.Connection(str(tmp_path / schema.FILE))
    with pytest.raises(apsw.SQLError):
        schema.migrate(connection, (*schema.STEPS, "CREATE TABLE half (x)", "NOT SQL"))
    assert connection.pragma("user_version") == schema.VERSION
    assert connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'half'").fetchall() == []
    connection.close()
    small(tmp_path).close()
