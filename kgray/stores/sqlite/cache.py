"""The reply cache: a model's replies in a file of its own, `cache.sqlite3`, which may be deleted at any time.

Groups, episodes and requests are stored as digests only, and each request's digest includes the group.
Replies are plain text, so they are deleted with the episodes that they were asked for (R25).
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import apsw

from kgray import locks
from kgray.errors import StoreError
from kgray.ports import ResponseCache
from kgray.records import Episode
from kgray.stores.sqlite.database import connect, cut_log, explained, one, rewrite, transaction

FILE = "cache.sqlite3"
APPLICATION_ID = 0x6B677263  # "kgrc", in the header of the file
VERSION = 1
_LOG_PAGES = 250  # of the write-ahead log, before it is folded into the file: 1 MB
_EVICTED = 16  # entries evicted at a time once the bound is passed
_LARGEST = 4  # a reply may take a quarter of the file
_WHAT_TO_DO = "move it away or delete it; what it holds can be asked of the model again"
Standing = Callable[[str, Sequence[str]], Mapping[str, str]]  # group, ids -> id -> content hash of those held

# used: a count that grows with each use; the smallest is evicted first. waste: whether anything was deleted
# since the file was last rewritten. askers: the episodes whose text a reply was asked for or used with.
_TABLES = """
CREATE TABLE entries (
    id INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, tenant BLOB NOT NULL, used INTEGER NOT NULL,
    reply BLOB NOT NULL
) STRICT;
CREATE INDEX entries_used ON entries (used);
CREATE INDEX entries_tenant ON entries (tenant);
CREATE TABLE askers (
    episode BLOB NOT NULL, entry INTEGER NOT NULL, PRIMARY KEY (episode, entry)
) STRICT, WITHOUT ROWID;
CREATE INDEX askers_entry ON askers (entry);
CREATE TABLE waste (one INTEGER PRIMARY KEY) STRICT;
"""
_COUNT = "SELECT count(*) FROM sqlite_schema"
_IN_USE = (  # bytes
    "SELECT (page_count - freelist_count) * page_size "
    "FROM pragma_page_count, pragma_freelist_count, pragma_page_size"
)
_FIND = "SELECT id, reply FROM entries WHERE key = ?"
_USED = "(SELECT coalesce(max(used), 0) + 1 FROM entries)"
_USE = f"UPDATE entries SET used = {_USED} WHERE id = ?"  # noqa: S608 - constants
_NEW = f"INSERT OR IGNORE INTO entries (key, tenant, used, reply) VALUES (?, ?, {_USED}, ?) RETURNING id"  # noqa: S608
_NOTE = "INSERT OR IGNORE INTO askers VALUES (?, ?)"
_ASKED_BY = "SELECT entry FROM askers WHERE episode = ?"
_OF_TENANT = "SELECT id FROM entries WHERE tenant = ?"
_LEAST_USED = "SELECT id FROM entries ORDER BY used LIMIT ?"
_DROP = ("DELETE FROM askers WHERE entry = ?", "DELETE FROM entries WHERE id = ?")
_WASTED = "INSERT OR IGNORE INTO waste VALUES (1)"


class SqliteResponses(ResponseCache):
    """`ports.ResponseCache` in a folder; the file is created when the first reply is kept.

    standing    asks the store which episodes it holds; others (previews, removed ones) leave no trace here
    max_bytes   of the file, without its log (up to 1 MB). The least recently used entries are evicted first.
                0: nothing is kept, but what is there is erased
    """

    def __init__(self, folder: Path, *, patience_s: float, standing: Standing, max_bytes: int = 0) -> None:
        self.path, self.max_bytes = folder / FILE, max_bytes
        self._patience_s, self._standing = patience_s, standing
        self._connection: apsw.Connection | None = None
        self._turn = threading.RLock()

    def recall(self, key: str, asking: Episode, context: Sequence[Episode] = ()) -> str | None:
        if not self._there():
            return None
        held = self._held([asking, *context])
        with self._transaction() as connection:
            row = one(connection, _FIND, (_digest(asking.group, key),))
            if row is None:
                return None
            connection.execute(_USE, (row[0],))
            if asking in held:
                _note(connection, row[0], held)
            return bytes(row[1]).decode("utf-8", "surrogatepass")

    def keep(self, key: str, reply: str, asking: Episode, context: Sequence[Episode] = ()) -> None:
        body = reply.encode("utf-8", "surrogatepass")
        seen = [asking, *context]
        if _LARGEST * len(body) > self.max_bytes or len(self._held(seen)) < len(seen):
            return
        with self._transaction(make=True) as connection:
            row = one(connection, _NEW, (_digest(asking.group, key), _digest(asking.group), body))
            if row is not None:
                _note(connection, row[0], seen)
                while one(connection, _IN_USE)[0] > self.max_bytes:
                    if not _drop(connection, _LEAST_USED, _EVICTED):
                        break

    def erase(self, group: str, episodes: Iterable[str] | None = None) -> None:
        """Drop the replies that were asked for, or used, with these episodes of a group; None: all."""
        if not self._there():
            return
        with self._transaction() as connection:
            if episodes is None:
                _drop(connection, _OF_TENANT, _digest(group))
            for episode in episodes or ():
                _drop(connection, _ASKED_BY, _digest(group, episode))

    def compact(self) -> bool:
        """Rewrite the file if anything was ever deleted from it, and cut its log; False where it is in use.

        Evicted replies count: their bytes may lie in the file after the entry is gone.
        """
        if not self._there():
            return True
        with self._turn, _explained(self.path):
            connection = self._opened()
            connection.set_busy_timeout(1000)
            try:
                if one(connection, "SELECT one FROM waste") is not None:
                    rewrite(connection)
                    connection.execute("DELETE FROM waste")
            except (apsw.BusyError, apsw.LockedError):
                return False
            finally:
                connection.set_busy_timeout(int(self._patience_s * 1000))
            return cut_log(connection, patience_s=self._patience_s)

    def close(self) -> None:
        with self._turn:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _there(self) -> bool:
        with _explained(self.path), suppress(FileNotFoundError, NotADirectoryError):
            return self.path.stat().st_size > 0
        return False

    def _held(self, episodes: Sequence[Episode]) -> list[Episode]:
        live = self._standing(episodes[0].group, [episode.id for episode in episodes])
        return [episode for episode in episodes if live.get(episode.id) == episode.content_sha256]

    @contextmanager
    def _transaction(self, *, make: bool = False) -> Iterator[apsw.Connection]:
        """Hold the file's one write lock; all or nothing. A power cut may lose the last ones."""
        with self._turn, _explained(self.path), transaction(self._opened(make=make)) as connection:
            yield connection

    def _opened(self, *, make: bool = False) -> apsw.Connection:
        if self._connection is not None and (self._there() or not make):  # a user may delete it meanwhile
            return self._connection
        self.close()
        if make:
            with suppress(FileExistsError):  # SQLite would let others read it
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, locks.OWNER_FILE))
        connection = connect(self.path, patience_s=self._patience_s, cache_mb=2)
        try:
            if not one(connection, _COUNT)[0] and not connection.pragma("application_id"):
                connection.pragma("auto_vacuum", "FULL")  # what is evicted makes the file smaller
                connection.pragma("journal_mode", "wal")
                with transaction(connection):
                    if not one(connection, _COUNT)[0]:  # another process may have been first
                        connection.execute(_TABLES)
                        connection.pragma("application_id", APPLICATION_ID)
                        connection.pragma("user_version", VERSION)
            named = connection.pragma("application_id"), connection.pragma("user_version")
            if named != (APPLICATION_ID, VERSION):
                raise StoreError(f"{self.path} is no response cache of this version of kgray: {_WHAT_TO_DO}")
            connection.pragma("synchronous", "NORMAL")
            connection.pragma("wal_autocheckpoint", _LOG_PAGES)
            connection.pragma("journal_size_limit", _LOG_PAGES * 4096)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Raise StoreError for a damaged file; its message says to delete it, unlike the store's."""
    with explained(path):
        try:
            yield
        except (apsw.CorruptError, apsw.NotADBError, apsw.SQLError) as error:
            raise StoreError(f"{path} is damaged, or no response cache ({error}): {_WHAT_TO_DO}") from None


def _note(connection: apsw.Connection, entry: int, episodes: Sequence[Episode]) -> None:
    connection.executemany(_NOTE, [(_digest(one.group, one.id), entry) for one in episodes])


def _drop(connection: apsw.Connection, entries: str, value: bytes | int) -> bool:
    """Delete the entries that a statement finds; return whether there were any."""
    found = connection.execute(entries, (value,)).fetchall()
    for statement in _DROP:
        connection.executemany(statement, found)
    if found:
        connection.execute(_WASTED)
    return bool(found)


def _digest(group: str, of: str = "") -> bytes:
    """Return 32 bytes for a group's request or episode; no group's name holds the line break between them."""
    return hashlib.sha256(f"{group}\n{of}".encode("utf-8", "surrogatepass")).digest()
