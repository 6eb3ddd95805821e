"""Create, check and open the file in a data folder; a file that is not kgray's is refused and not touched."""

from __future__ import annotations

import errno
import os
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw

from kgray.errors import KgrayError, NoSpace, StoreError, Unavailable
from kgray.stores.sqlite import schema

# secure-delete of FTS5 came with 3.41, contentless deletion with 3.43; older ones would keep erased words.
_OLDEST_SQLITE = 3_043_000
_HEADER = 100  # bytes; https://www.sqlite.org/fileformat.html section 1.3


def opened(folder: Path, *, embedder: str, dimensions: int, create: bool, patience_s: float) -> Path:
    """Return the path of the folder's file; creates the file where there is none.

    Raises StoreError for what is not ours, of another schema, damaged, or built with another embedder.
    """
    if apsw.SQLITE_VERSION_NUMBER < _OLDEST_SQLITE:
        raise StoreError(
            f"SQLite {apsw.sqlite_lib_version()} is too old for kgray: install apsw 3.50 or newer, "
            f"which brings its own"
        )
    path = folder / schema.FILE
    with explained(path):
        if not _there(path):
            if not create:
                raise StoreError(f"there is no kgray store in {folder}: run `kgray init --data {folder}`")
            _make(path, embedder, dimensions)
        _check_header(path)
        _check_meta(path, embedder, dimensions, patience_s)
    return path


def connect(path: Path, *, patience_s: float, cache_mb: int) -> apsw.Connection:
    """Return a connection: WAL, erased bytes zeroed, waits up to `patience_s` for locks."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, statementcachesize=256)
    connection.set_busy_timeout(int(patience_s * 1000))
    for name, value in (
        ("secure_delete", "ON"),
        ("foreign_keys", "OFF"),
        ("cache_size", -1024 * cache_mb),
        # Some 80 commits with vectors between two checkpoints; the log is cut back to this size.
        ("wal_autocheckpoint", 4000),
        ("journal_size_limit", 64 << 20),
        ("temp_store", "MEMORY"),  # a spilled sort must not leave words in a temporary file
    ):
        connection.pragma(name, value)
    return connection


def _there(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except (FileNotFoundError, NotADirectoryError):
        return False


def _make(path: Path, embedder: str, dimensions: int) -> None:
    """Create the file under another name and link it into place: it appears complete or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=path.name + ".new-", dir=path.parent)
    os.close(handle)
    made = Path(name)
    try:
        connection = apsw.Connection(name)
        connection.pragma("page_size", schema.PAGE_BYTES)
        connection.pragma("journal_mode", "wal")
        with connection:
            connection.execute(schema.tables())
            stored = "INSERT INTO meta VALUES ('embedder', ?), ('dimensions', ?), ('epoch', 0)"
            connection.execute(stored, (embedder, dimensions))
            connection.pragma("application_id", schema.APPLICATION_ID)
            connection.pragma("user_version", schema.VERSION)
        connection.close()
        made.chmod(0o644)
        _put(made, path)
    finally:
        for left in (made, Path(name + "-wal"), Path(name + "-shm")):
            left.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def _put(made: Path, path: Path) -> None:
    """Give the new file its name, unless another process was first."""
    if path.exists() and path.stat().st_size == 0:
        path.unlink()  # an empty file is no store, and nothing is lost with it
    try:
        os.link(made, path)
    except FileExistsError:
        pass
    except OSError:  # a file system without hard links
        if not path.exists():
            made.rename(path)


def _check_header(path: Path) -> None:
    """Read the header as plain bytes: opening a foreign file with SQLite could already change it."""
    with path.open("rb") as file:
        header = file.read(_HEADER)
    size = path.stat().st_size
    if len(header) < _HEADER or header[:16] != b"SQLite format 3\0":
        raise StoreError(
            f"{path} is no kgray store, or it is damaged: choose another data folder, "
            f"or restore it from a copy"
        )
    page, pages, version, identity = struct.unpack_from(">16xH10xI28xI4xI", header)
    if identity != schema.APPLICATION_ID:
        raise StoreError(f"{path} is a database of another program: choose another data folder")
    _check_version(path, version)
    log = path.with_name(path.name + "-wal")
    if (65536 if page == 1 else page) * pages > size and not (log.exists() and log.stat().st_size):
        raise StoreError(f"{path} is damaged: it was cut short; restore it from a copy")


def _check_version(path: Path, version: int) -> None:
    if version == schema.VERSION:
        return
    who, what_to_do = "a newer", "upgrade kgray"
    if version < schema.VERSION:
        who, what_to_do = "an earlier", "choose an empty data folder and add the episodes again"
    raise StoreError(
        f"{path} was written by {who} kgray (schema {version}; this one knows {schema.VERSION}): {what_to_do}"
    )


def _check_meta(path: Path, embedder: str, dimensions: int, patience_s: float) -> None:
    connection = connect(path, patience_s=patience_s, cache_mb=2)
    try:
        # The log may hold a newer header than the file.
        _check_version(path, int(connection.pragma("user_version")))
        rows: list[Any] = connection.execute("SELECT key, value FROM meta").fetchall()
        stored = dict(rows)
        if (stored.get("embedder"), stored.get("dimensions")) != (embedder, dimensions):
            raise StoreError(
                f"the embedder {embedder!r} gives {dimensions} numbers a text, but the graph in "
                f"{path.parent} was built with {stored.get('embedder')!r} "
                f"({stored.get('dimensions')} numbers): "
                f"set embedder.backend to that one, or start an empty data folder and add the episodes again"
            )
    finally:
        connection.close()


# ------------------------------------------------------- what SQLite raises, in one line of ours

_FULL = {errno.ENOSPC, errno.EDQUOT}
_DAMAGED = "{path} is damaged ({error}): restore it from a copy"
# (classes of errors, what is raised, its message); the first entry that fits is used.
_LINES: tuple[tuple[tuple[type[Exception], ...], type[KgrayError], str], ...] = (
    (
        (apsw.BusyError, apsw.LockedError),
        Unavailable,
        "{path} is locked by another process beyond patience; nothing was changed, run it again",
    ),
    ((apsw.CorruptError, apsw.NotADBError), StoreError, _DAMAGED),
    (
        (apsw.ReadOnlyError, apsw.PermissionsError),
        StoreError,
        "{path} cannot be written: check the permissions of the folder and the file",
    ),
    (
        (apsw.CantOpenError,),
        StoreError,
        "{path} cannot be opened: check the folder, its permissions and its file system",
    ),
    ((apsw.IOError,), StoreError, "{path}: the disk failed to read or write ({error})"),
    # Our statements are constants: one that fails to compile means that a table is not as made.
    ((apsw.SQLError,), StoreError, _DAMAGED),
)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn the errors of SQLite and of the file system inside into StoreError or Unavailable."""
    try:
        yield
    except (apsw.Error, OSError) as error:
        if _is_full(error):
            raise NoSpace(f"no space left for {path}: free some space, then run it again") from None
        if isinstance(error, OSError):
            raise StoreError(f"{error.filename or path}: {error.strerror}") from None
        for kinds, made, line in _LINES:
            if isinstance(error, kinds):
                raise made(line.format(path=path, error=error)) from None
        raise


def _is_full(error: Exception) -> bool:
    if isinstance(error, OSError):
        return error.errno in _FULL
    # The second: the small file that readers and writers share could not grow.
    shared = getattr(error, "extendedresult", None) == apsw.SQLITE_IOERR_SHMSIZE
    return isinstance(error, apsw.FullError) or shared
