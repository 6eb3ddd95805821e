"""SQLite's errors, said in one line of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from kgray.errors import StoreError, Unavailable


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn the errors of SQLite and of the file system inside into StoreError or Unavailable."""
    try:
        yield
    except (apsw.BusyError, apsw.LockedError):
        raise Unavailable(
            f"{path} is locked by another process beyond patience; nothing was changed, run it again"
        ) from None
    except apsw.FullError:
        raise StoreError(
            f"no space left for {path}; nothing was changed: free some space, run it again"
        ) from None
    except (apsw.CorruptError, apsw.NotADBError) as error:
        raise StoreError(f"{path} is damaged ({error}): restore it from a copy") from None
    except (apsw.ReadOnlyError, apsw.PermissionsError):
        raise StoreError(
            f"{path} cannot be written: check the permissions of the folder and the file"
        ) from None
    except apsw.CantOpenError:
        raise StoreError(
            f"{path} cannot be opened: check the folder, its permissions and its file system"
        ) from None
    except apsw.IOError as error:
        raise StoreError(f"{path}: the disk failed to read or write ({error})") from None
    except apsw.SQLError as error:
        # Our statements are constants: one that fails to compile means that a table is not as made.
        raise StoreError(f"{path} is damaged ({error}): restore it from a copy") from None
    except OSError as error:
        raise StoreError(f"{error.filename or path}: {error.strerror}") from None
