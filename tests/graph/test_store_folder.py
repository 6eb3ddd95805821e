"""The file in the data folder: made, recognised, refused."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from kgray.errors import StoreError, Unavailable
from kgray.storage.ledger import pending
from kgray.storage.sqlite import schema
from tests.graph.by_hand import append, draft, small, tell


def files(folder: Path) -> dict[str, bytes]:
    """Return every file of a folder with its bytes."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def refusal(folder: Path, **options: object) -> str:
    """Return the single error line of a refused opening; the folder must not change."""
    files_before = files(folder)
    with pytest.raises(StoreError) as caught:
        small(folder, **options)
    assert files(folder) == files_before
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_new_folder_gets_one_marked_file(tmp_path):
    small(tmp_path / "a" / "b").close()
    file_names = sorted(path.name for path in (tmp_path / "a" / "b").iterdir())
    assert file_names == ["kgray.sqlite3", "kgray.sqlite3.made"]
    connection = apsw.Connection(str(tmp_path / "a" / "b" / "kgray.sqlite3"))
    assert connection.pragma("application_id") == schema.APPLICATION_ID
    assert connection.pragma("user_version") == schema.VERSION
    assert connection.pragma("page_size") == schema.PAGE_BYTES
    assert dict(connection.execute("SELECT key, value FROM meta").fetchall()) == {
        "embedder": "by-hand", "dimensions": 64, "epoch": 0,
    }  # fmt: skip
    connection.close()


def test_a_second_opening_keeps_the_content(tmp_path):
    store = small(tmp_path)
    append(store, draft("kept"))
    store.close()
    store.close()
    reopened = small(tmp_path, create=False)
    assert [row.text for row in pending(reopened, "g", 9)] == ["kept"]
    reopened.close()


def test_opening_a_missing_store_names_the_init_command(tmp_path):
    assert "kgray init" in refusal(tmp_path, create=False)
    with pytest.raises(StoreError, match="kgray init"):
        small(tmp_path / "missing", create=False)
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize("create", [True, False])
def test_an_emptied_store_file_is_not_reinitialised(tmp_path, create):
    store = small(tmp_path)
    append(store, draft("kept"))
    store.close()
    os.truncate(tmp_path / schema.FILE, 0)
    line = refusal(tmp_path, create=create)
    assert f"{schema.FILE} is empty: its content is lost; restore it from a copy" in line
    (tmp_path / schema.FILE).unlink()
    line = refusal(tmp_path, create=create)
    assert f"{schema.FILE} is gone, and there was a store: restore it from a copy" in line
    assert line.endswith("or, to begin anew, remove kgray.sqlite3.made")
    (tmp_path / "kgray.sqlite3.made").unlink()
    reopened = small(tmp_path)
    assert reopened.pending_count() == 0
    reopened.close()


@pytest.mark.parametrize("place", [0.1, 0.25, 0.5, 0.75, 0.9])
def test_a_damaged_file_refuses_writes(tmp_path, place):
    """64 KB of noise at any place: a message reported as stored would be lost with the file."""
    store = small(tmp_path)
    append(store, *(draft(f"printer {n} " * 20, client_id=str(n)) for n in range(2000)))
    with store.writing():
        tell(store, "Al", "one")
    store.close()
    path = tmp_path / schema.FILE
    noise = random.Random(3).randbytes(65_536)
    with path.open("r+b") as file:
        file.seek(int(path.stat().st_size * place))
        file.write(noise)
    content_before = path.read_bytes()
    message = r"kgray\.sqlite3 is damaged \([^\n]*\): restore it from a copy$"
    with pytest.raises(StoreError, match=message), closing(small(tmp_path)) as damaged:
        append(damaged, draft("more"))
    with pytest.raises(StoreError, match=message), closing(small(tmp_path)) as damaged, damaged.writing():
        pass
    assert path.read_bytes() == content_before


def replies_of_an_older_version(folder: Path, application_id: int, *, killed: bool) -> apsw.Connection:
    """Write the reply cache of kgray 0.1; killed: the process ended before its log was in the file."""
    connection = apsw.Connection(str(folder / "cache.sqlite3"))
    connection.pragma("journal_mode", "wal")
    connection.execute("CREATE TABLE entries (reply BLOB NOT NULL) STRICT")
    connection.execute("INSERT INTO entries VALUES (?)", (b"Alice works at zqalpha",))
    connection.pragma("application_id", application_id)
    if not killed:
        connection.close()
    return connection


@pytest.mark.parametrize("killed", [False, True])
def test_the_reply_cache_of_an_older_version_is_deleted(tmp_path, killed):
    """Cached replies quote episodes, and no removal would delete them."""
    small(tmp_path).close()
    files_before = sorted(files(tmp_path))
    connection = replies_of_an_older_version(tmp_path, 0x6B677263, killed=killed)
    assert b"zqalpha" in b"".join(files(tmp_path).values())
    small(tmp_path).close()
    connection.close()
    assert sorted(files(tmp_path)) == files_before


@pytest.mark.parametrize("content", ["another program's", "a text", "nothing"])
def test_a_foreign_file_of_the_same_name_is_not_deleted(tmp_path, content):
    small(tmp_path).close()
    if content == "another program's":
        replies_of_an_older_version(tmp_path, 7, killed=False).close()
    else:
        (tmp_path / "cache.sqlite3").write_text("" if content == "nothing" else "zqalpha " * 99)
    files_before = files(tmp_path)
    small(tmp_path).close()
    assert {name: body for name, body in files(tmp_path).items() if name in files_before} == files_before


OPENS = """
import contextlib, json, sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
from pathlib import Path
import kgray
from kgray.cli import cli
data = Path(sys.argv[1])
with kgray.open(data, create=True) as memory:
    memory.add("I work at Acme.", group="g", speaker="Al Ng", id="a")
    with kgray.open(data, create=True) as second:
        second.add("I work at Beta.", group="g", speaker="Al Ng", id="b")
        second.search("Where does Al work?", group="g")
        second.remove(group="g", episodes=["a"])
    for command in ("status", "doctor", "groups --json", f"copy --group g --to-data {sys.argv[2]}"):
        with contextlib.suppress(SystemExit):
            cli.main([*command.split(), "--data", str(data)], standalone_mode=False)
    memory.dump(group="g")
found = [name for name in opened if Path(name).name.startswith(("kgray.sqlite3", "cache.sqlite3"))]
Path(sys.argv[3]).write_text(json.dumps(found))
"""


def test_only_sqlite_opens_the_store_file(tmp_path):
    """To close a plain file drops all locks of the process on it: see `folder.read_header`."""
    places = [str(tmp_path / name) for name in ("data", "copy", "found")]
    subprocess.run([sys.executable, "-c", OPENS, *places], check=True)
    opened = {Path(name).name for name in json.loads((tmp_path / "found").read_text())}
    # And the file that becomes the store, before anybody knows it.
    assert {re.sub("new-.*", "new", name) for name in opened} == {"kgray.sqlite3.made", "kgray.sqlite3.new"}


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"not a database at all" * 100, id="text"),
        pytest.param(b"SQLite format 3\0", id="cut-in-the-header"),
        pytest.param(b"\0" * 8192, id="zeros"),
    ],
)
def test_a_file_that_is_not_a_store_is_refused_unchanged(tmp_path, content):
    (tmp_path / schema.FILE).write_bytes(content)
    assert "no kgray store" in refusal(tmp_path)


def test_another_programs_database_is_refused_unchanged(tmp_path):
    connection = apsw.Connection(str(tmp_path / schema.FILE))
    connection.pragma("journal_mode", "wal")
    connection.execute("CREATE TABLE t (x); INSERT INTO t VALUES (1)")
    connection.close()
    assert "another program" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("version", "opener", "what_to_do"),
    [
        pytest.param(schema.VERSION + 1, "newer", "upgrade kgray", id="newer"),
        pytest.param(2, "earlier", "run `kgray upgrade`", id="earlier"),
    ],
)
def test_another_schema_is_refused_unchanged(tmp_path, version, opener, what_to_do):
    small(tmp_path).close()
    connection = apsw.Connection(str(tmp_path / schema.FILE))
    connection.pragma("user_version", version)
    connection.close()
    line = refusal(tmp_path)
    assert f"{opener} kgray (schema {version}; this one knows {schema.VERSION})" in line
    assert what_to_do in line


def test_a_store_records_the_embedder_of_its_vectors(tmp_path):
    """A command without an embedder opens the store; others compare embedders (kgray.runtime.wiring)."""
    assert "kgray init" in refusal(tmp_path, embedder="")
    small(tmp_path).close()
    for difference in ({"embedder": "another"}, {"dimensions": 32}, {"embedder": "", "dimensions": 0}):
        with closing(small(tmp_path, **difference)) as store:
            assert (store.embedder, store.dimensions) == ("by-hand", 64)


def test_a_truncated_file_is_refused(tmp_path):
    store = small(tmp_path)
    append(store, *(draft("x" * 5000, client_id=str(n)) for n in range(50)))
    store.close()
    path = tmp_path / schema.FILE
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert "damaged" in refusal(tmp_path)


def test_damage_detected_while_reading_is_a_store_error(tmp_path):
    store = small(tmp_path)
    append(store, *(draft("x" * 500, client_id=str(n)) for n in range(200)))
    store.close()
    path = tmp_path / schema.FILE
    content = bytearray(path.read_bytes())
    # Every page but the first: the header still says that the file is ours.
    content[8192:] = b"\xa5" * (len(content) - 8192)
    path.write_bytes(bytes(content))
    with pytest.raises(StoreError, match="damaged"):  # noqa: PT012 - either call may meet it
        broken = small(tmp_path)
        pending(broken, "g", 500)


def test_a_folder_below_a_file_is_a_store_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError):
        small(tmp_path / "file" / "folder")


def test_a_lock_timeout_changes_nothing(tmp_path):
    store = small(tmp_path, patience_s=0.05)
    connection = apsw.Connection(str(tmp_path / schema.FILE))
    connection.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable, match="locked"):
        append(store, draft("x"))
    assert store.pending_count() == 0  # reading goes on
    connection.execute("ROLLBACK")
    assert append(store, draft("x")) == [1]
    connection.close()
    store.close()


def test_a_full_disk_is_a_store_error_and_leaves_no_partial_write(tmp_path):
    store = small(tmp_path)
    append(store, draft("before"))
    pages = store._db._writer.pragma("page_count")
    store._db._writer.pragma("max_page_count", pages + 2)
    with pytest.raises(StoreError, match="no space left"):
        append(store, *(draft("y" * 4000, client_id=str(n)) for n in range(50)))
    store._db._writer.pragma("max_page_count", 10**6)
    assert [row.text for row in pending(store, "g", 99)] == ["before"]
    assert append(store, draft("after")) == [2]
    store.close()
