"""SQLite's errors, said in one line of ours."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from kgray.errors import KgrayError, NoSpace, StoreError, Unavailable

_FULL = {errno.ENOSPC, errno.EDQUOT}
_DAMAGED = "{path} is damaged ({error}): restore it from a copy"
# In order: the first line whose kinds fit says it.
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
