"""Create and check the file in a data folder; a file that is not kgray's is refused and not touched."""

from __future__ import annotations

import os
import struct
import tempfile
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import apsw

from kgray.errors import NoStore, StoreError
from kgray.storage.sqlite import schema
from kgray.storage.sqlite.database import connect, explained
from kgray.storage.transactions import check_version
from kgray.system import locks

_HEADER = 100  # bytes; https://www.sqlite.org/fileformat.html section 1.3
_REPLIES = "cache.sqlite3"  # a file of older versions, which kept replies of models in it
_REPLIES_ID = 0x6B677263  # "kgrc": its application_id


def opened(
    folder: Path, *, embedder: str, dimensions: int, create: bool, patience_s: float
) -> tuple[Path, str, int]:
    """Return the path of the file, the embedder of its vectors, their width; raises as `open_sqlite` does."""
    path = folder / schema.FILE
    with explained(path):
        if not is_there(path):
            if not (create and embedder):
                raise NoStore(f"there is no kgray store in {folder}: run `kgray init --data {folder}`")
            _make(path, embedder, dimensions)
        check_version(path, read_header(path), schema.VERSION)
        with closing(connect(path, patience_s=patience_s, cache_mb=2)) as connection:
            # The log may hold a newer header than the file.
            version = int(connection.pragma("user_version"))
            check_version(path, version, schema.VERSION)
            rows: list[Any] = connection.execute("SELECT key, value FROM meta").fetchall()
        meta = dict(rows)
        _delete_replies(folder)
        # The marker of a store: a folder that has lost its file must not look new. The marker may exist, and
        # a read-only folder has none.
        with suppress(OSError), open(path.with_name(schema.MARKER), "x", opener=locks.for_owner) as file:
            file.write(f"{path.name} is a store of kgray. If it is gone, restore it from a copy.\n")
    return path, str(meta["embedder"]), int(meta["dimensions"])


def _delete_replies(folder: Path) -> None:
    """Delete the replies of models that an older version kept in the folder.

    They quote episodes. Nothing reads them any more, and no removal of an episode would reach them (R25). A
    read-only folder keeps them, as it keeps its episodes.
    """
    path = folder / _REPLIES
    if not path.is_file():
        return
    with suppress(OSError, apsw.Error):
        # Read it by SQLite: the program's name may be only in the log.
        with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
            is_ours = connection.pragma("application_id") == _REPLIES_ID
        for file in (path, path.with_name(f"{_REPLIES}-wal"), path.with_name(f"{_REPLIES}-shm")):
            if is_ours:
                file.unlink(missing_ok=True)


def is_there(path: Path) -> bool:
    """Return True if the store's file exists. Raises StoreError if it is empty, or was deleted."""
    size: int | None = None
    with suppress(FileNotFoundError, NotADirectoryError):
        size = path.stat().st_size
    what_to_do = "restore it from a copy, or, to begin anew, remove"
    if size == 0:
        raise StoreError(f"{path} is empty: its content is lost; {what_to_do} it and {schema.MARKER}")
    if size is None and path.with_name(schema.MARKER).exists():
        raise StoreError(f"{path} is gone, and there was a store: {what_to_do} {schema.MARKER}")
    return size is not None


def _make(path: Path, embedder: str, dimensions: int) -> None:
    """Create the file under another name and link it into place: it appears complete or not at all."""
    locks.make_folder(path.parent)
    handle, name = tempfile.mkstemp(prefix=path.name + ".new-", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        connection = apsw.Connection(name)
        connection.pragma("page_size", schema.PAGE_BYTES)
        connection.pragma("journal_mode", "wal")
        with connection:
            connection.execute(schema.TABLES)
            stored = "INSERT INTO meta VALUES ('embedder', ?), ('dimensions', ?), ('epoch', 0)"
            connection.execute(stored, (embedder, dimensions))
            connection.pragma("application_id", schema.APPLICATION_ID)
            connection.pragma("user_version", schema.VERSION)
        connection.close()
        temporary.chmod(locks.OWNER_FILE)
        put_in_place(temporary, path)
    finally:
        for file in (temporary, Path(name + "-wal"), Path(name + "-shm")):
            file.unlink(missing_ok=True)


def install(complete: Path, folder: Path) -> bool:
    """Make a complete file the store of a data folder without a store; else return False.

    It deletes the log of a lost store, which SQLite would apply to the new file.
    """
    path = folder / schema.FILE
    with explained(path):
        if path.exists():
            return False
        for end in ("-wal", "-shm"):
            path.with_name(path.name + end).unlink(missing_ok=True)
        return put_in_place(complete, path)


def put_in_place(complete: Path, path: Path) -> bool:
    """Give a complete file its name; False if the name exists: another process was first."""
    try:
        os.link(complete, path)
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links
        if path.exists():
            return False
        complete.rename(path)
    locks.sync(path.parent)
    return True


def read_header(path: Path) -> int:
    """Check the header's bytes, and return the schema's version.

    Opening a foreign file with SQLite could already change it.

    It reads through SQLite's own file layer. Closing a plain file would drop all locks of this process on it,
    including its connections' locks (POSIX): another process that closes the store would then delete the log,
    and later commits would be lost.
    """
    size = path.stat().st_size
    header = b""
    if size >= _HEADER:
        file = apsw.VFSFile("unix", str(path), [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READONLY, 0])
        try:
            header = file.xRead(_HEADER, 0)
        finally:
            file.xClose()
    if header[:16] != b"SQLite format 3\0":
        what_to_do = "choose another data folder, or restore it from a copy"
        raise StoreError(f"{path} is no kgray store, or it is damaged: {what_to_do}")
    page, pages, version, identity = struct.unpack_from(">16xH10xI28xI4xI", header)
    if identity != schema.APPLICATION_ID:
        raise StoreError(f"{path} is a database of another program: choose another data folder")
    log = path.with_name(path.name + "-wal")
    if (65536 if page == 1 else page) * pages > size and not (log.exists() and log.stat().st_size):
        raise StoreError(f"{path} is damaged: it was cut short; restore it from a copy")
    return int(version)
