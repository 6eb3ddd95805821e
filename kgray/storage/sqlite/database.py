"""The connections of a process to its file, their transactions, declared reads, and SQLite's errors."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from queue import LifoQueue
from typing import Any

import apsw

from kgray.domain import times
from kgray.errors import NoSpace, StoreError, Unavailable
from kgray.schema.kinds import FACTS, R, Read, Row
from kgray.schema.reads import READS
from kgray.schema.rows import pack
from kgray.storage.sqlite import statements as sql
from kgray.storage.transactions import (
    Counters,
    WriterLock,
    check_empty,
    check_move,
    check_moved,
    check_shard,
    check_slots,
    slots_of,
    stale,
)
from kgray.system.locks import for_owner, sync

_CHECK_S = 1.0  # time limit of the check before the first write; enough for 1.7 GB in the system's cache
_SMALL_CACHE_MB = 32  # largest page cache of the writing connection and of each further reading connection
_COPY_PAGES = 2_500  # pages of a step of a copy: 10 MB
_READERS = 4  # reading connections: a single connection suffices until a thread reads for seconds


@dataclass(slots=True, kw_only=True)
class KnownGroup(Counters):
    """A group of the file; no: its number, or None if it never existed."""

    no: int | None = None


class Database:
    """One file with one writing and a few reading connections.

    Threads of one process take turns at writing. A snapshot (R5) belongs to one thread; other threads read
    through other connections at the same time.
    """

    def __init__(self, path: Path, dimensions: int, *, patience_s: float, cache_mb: int) -> None:
        self.path, self.dimensions, self.patience_s = path, dimensions, patience_s
        self._small_cache_mb = min(_SMALL_CACHE_MB, cache_mb)
        with explained(path):
            self._writer = connect(path, patience_s=patience_s, cache_mb=self._small_cache_mb)
            reader = connect(path, patience_s=patience_s, cache_mb=cache_mb)
        self._durable = True  # SQLite's own default: synchronous = FULL
        self._turn = threading.RLock()  # of the thread that writes
        self._idle = LifoQueue[apsw.Connection | None]()  # free readers; None: not opened yet
        for connection in (*[None] * (_READERS - 1), reader):
            self._idle.put(connection)
        self._snapshot = threading.local()  # this thread's snapshot: its reader, and the groups read so far
        self._checked = False
        self.writer_locks: list[WriterLock] = []  # of this process, at most one a shard
        # Groups without a name yet, which this process can read -> their temporary digests.
        self.staged: dict[str, bytes] = {}

    def close(self) -> None:
        with explained(self.path):
            readers = [self._idle.get() for _ in range(_READERS)]  # waits for threads that read
            for reader in reversed(readers):
                if reader is not None:
                    reader.close(True)
                self._idle.put(reader)
            with self._turn:
                self._writer.close()

    @contextmanager
    def transaction(self, *, durable: bool) -> Iterator[apsw.Connection]:
        """Hold the file's one write lock; all or nothing.

        durable: on disk on return. Otherwise a power cut (not a kill) may lose it, but no earlier write.
        """
        with self._turn, explained(self.path):
            if not self._checked:  # before this process writes to the file for the first time
                if (error := damage(self._writer, first=_meta(self._writer, "epoch"))) is not None:
                    raise StoreError(_DAMAGED.format(path=self.path, error=error))
                self._checked = True
            if durable != self._durable:
                self._writer.pragma("synchronous", "FULL" if durable else "NORMAL")
                self._durable = durable
            with transaction(self._writer) as connection:
                yield connection

    def check_slots(
        self, connection: apsw.Connection, groups: Iterable[str], *, epoch: int | None = None
    ) -> None:
        """Raise StaleWriter if a group's slot is not held, or another process has taken it (R23)."""
        names = list(groups)
        rows = fetch_all(connection, sql.SLOTS_AT, (array(slots_of(names)),))  # the file is locked
        check_slots(self.path.parent, self.writer_locks, names, rows, epoch=epoch)

    def group(self, connection: apsw.Connection, name: str) -> KnownGroup | None:
        """Return a group that exists or existed, by the hash of its name; else None."""
        staged = self.staged.get(name)
        row = fetch_one(connection, sql.GROUP_BY_DIGEST, (staged or digest(name),))
        if row is None:
            return None
        no, named, last, last_recorded, removals = row
        return KnownGroup(
            asked=name, no=no, named=named is not None or staged is not None, last=last,
            last_recorded=last_recorded, removals=removals,
        )  # fmt: skip

    @contextmanager
    def holding(self, epoch: int | None, shard: int, shards: int | None) -> Iterator[int]:
        """Lock the slots of a shard, or (shards=None) of all, for a writer; see `ports.Store.writing`.

        All epochs come from one counter, so that none repeats, even after a new division of the groups.
        """
        with self.transaction(durable=True) as connection:
            rows = fetch_all(connection, sql.SHARDS)
            count = shards or len(rows)
            token = _new_epoch(connection)
            if count != len(rows):
                _divide(connection, count, token)  # holders of the former map are stale
                rows = fetch_all(connection, sql.SHARDS)
            check_shard(self.path.parent, shard, count)
            mine = range(count) if shards is None else (shard,)
            if epoch is None:
                epoch = token
            elif newer := [rows[number][1] for number in mine if rows[number][1] != epoch]:
                raise stale(self.path.parent, newer[0], epoch)
            connection.execute(sql.TAKE_SHARDS, (epoch, token, array(mine)))
            slot_epochs: dict[int, int] = dict(fetch_all(connection, sql.TAKE_SLOTS, (token, array(mine))))
        lock = WriterLock(shards=mine, epoch=epoch, token=token, slots=slot_epochs)
        self.writer_locks.append(lock)
        try:
            yield epoch
        finally:  # else this process could still write after another has continued with the same epoch
            self.writer_locks.remove(lock)

    def set_shards(self, shards: int) -> None:
        """Add or drop shards without slots; see `ports.Store.set_shards`."""
        with self.transaction(durable=True) as connection:
            (remaining,) = fetch_one(connection, sql.SLOTS_BEYOND, (shards,))
            check_empty(self.path.parent, shards, remaining)
            connection.execute(sql.END_MOVES_BEYOND, (shards,))
            _set_shards(connection, shards)

    @contextmanager
    def moving(self, moved_slots: Collection[int], shard: int) -> Iterator[None]:
        """Move slots to a shard at the end of the block; see `ports.Store.moving`."""
        chosen = array(moved_slots)
        with self.transaction(durable=True) as connection:
            number = len(fetch_all(connection, sql.SHARDS))
            check_move(self.path.parent, moved_slots, shard, number)
            connection.execute(sql.MARK_SLOTS, (shard, chosen))
        try:
            yield
            with self.transaction(durable=True) as connection:
                moved = fetch_all(connection, sql.MOVE_SLOTS, (_new_epoch(connection), shard, chosen))
                check_moved(self.path.parent, moved_slots, moved)
                connection.execute(sql.NOTE_WAITING_IN, (times.now(), chosen))
        except BaseException:
            with self.transaction(durable=True) as connection:
                connection.execute(sql.UNMARK_SLOTS, (shard, chosen))
            raise

    def compact(self) -> bool:
        """Rewrite the file if anything was erased, and cut the log; False if a reader prevents it.

        It takes about 2 s for 100 MB, while appenders wait. secure_delete alone zeroes deleted rows, but not
        the copies that SQLite leaves when it moves rows to a sibling page (measured: 1 word in 2,400).
        """
        with self._turn, explained(self.path):
            erased, rewritten, cut = (_meta(self._writer, key) for key in ("erased", "rewritten", "cut"))
            if erased != rewritten:
                rewrite(self._writer)
                self._writer.execute(sql.SET_META, ("rewritten", erased))
            is_cut = cut_log(self._writer, patience_s=self.patience_s)
            if is_cut and erased != cut:
                self._writer.execute(sql.SET_META, ("cut", erased))
                # This note itself was written to the log: cut it again.
                cut_log(self._writer, patience_s=self.patience_s)
        return is_cut

    def copy_to(self, path: Path, on_step: Callable[[], None]) -> None:
        """Copy the file's state of one moment to a new file, by SQLite's backup, while others write.

        on_step: called every _COPY_PAGES pages. Raises StoreError if the copy is damaged, NoSpace.
        """
        with self.snapshot(), self._reading() as reader, explained(path):
            os.close(for_owner(str(path), os.O_RDWR | os.O_CREAT | os.O_EXCL))
            fetch_one(reader, sql.META, ("epoch",))  # Begins the snapshot: no write restarts the copy.
            with closing(apsw.Connection(str(path))) as copy:
                copy.pragma("synchronous", "OFF")
                with copy.backup("main", reader, "main") as copying:
                    while not copying.done:
                        copying.step(_COPY_PAGES)
                        on_step()
                if (error := copy.pragma("quick_check", 1)) != "ok":
                    raise StoreError(_DAMAGED.format(path=self.path, error=error))
            sync(path)

    @contextmanager
    def _reading(self) -> Iterator[apsw.Connection]:
        """Lend a reading connection: the connection of this thread's snapshot, else an idle connection."""
        reader: apsw.Connection | None = getattr(self._snapshot, "reader", None)
        if reader is not None:
            yield reader
            return
        idle = self._idle.get()
        try:
            if idle is None:
                with explained(self.path):
                    idle = connect(self.path, patience_s=self.patience_s, cache_mb=self._small_cache_mb)
            yield idle
        finally:
            self._idle.put(idle)

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Let all reads of this thread in the block see one snapshot; may be nested."""
        if getattr(self._snapshot, "reader", None) is not None:
            yield
            return
        with self._reading() as reader:
            with explained(self.path):
                reader.execute("BEGIN")
            self._snapshot.reader, self._snapshot.groups = reader, {}
            try:
                yield
            finally:
                self._snapshot.reader = None
                if reader.in_transaction:
                    with explained(self.path):
                        reader.execute("COMMIT")

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        with self._reading() as reader, explained(self.path):
            return reader.execute(statement, values).fetchall()

    def read_group(self, group: str) -> KnownGroup | None:
        """Return a group, for a read; None if it never existed. A snapshot reads each group once."""
        with self._reading() as reader, explained(self.path):
            if group in self.staged or getattr(self._snapshot, "reader", None) is None:
                return self.group(reader, group)
            groups: dict[str, KnownGroup | None] = self._snapshot.groups
            if group not in groups:
                groups[group] = self.group(reader, group)
            return groups[group]


def _meta(connection: apsw.Connection, key: str) -> Any:  # noqa: ANN401 - a text, a number or None
    row = fetch_one(connection, sql.META, (key,))
    return None if row is None else row[0]


def _new_epoch(connection: apsw.Connection) -> int:
    return int(fetch_one(connection, sql.NEW_EPOCH)[0])


def _set_shards(connection: apsw.Connection, shards: int) -> None:
    connection.execute(sql.DROP_SHARDS, (shards,))
    connection.executemany(sql.NEW_SHARD, ((shard,) for shard in range(shards)))


def _divide(connection: apsw.Connection, shards: int, epoch: int) -> None:
    _set_shards(connection, shards)
    connection.execute(sql.DIVIDE_SLOTS, (shards, epoch))


def connect(path: Path, *, patience_s: float, cache_mb: int) -> apsw.Connection:
    """Return a connection that zeroes erased bytes, and waits up to `patience_s` for locks (WAL mode)."""
    name, flags = str(path), apsw.SQLITE_OPEN_READWRITE
    # In a read-only folder without an active writer, SQLite cannot create the files that readers share with a
    # writer: `immutable` says that the file does not change.
    if not os.access(path.parent, os.W_OK) and not path.with_name(f"{path.name}-wal").exists():
        name = f"{path.absolute().as_uri()}?immutable=1"
        flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    connection = apsw.Connection(name, flags=flags, statementcachesize=256)
    connection.convert_binding = lambda _cursor, _number, value: pack(value)  # a tuple of texts, as JSON
    connection.set_busy_timeout(int(patience_s * 1000))
    for name, value in (
        ("secure_delete", "ON"),
        ("foreign_keys", "OFF"),
        ("cache_size", -1024 * cache_mb),
        # Pages come from the system's cache without a copy: 100 vectors of a file of 1.6 GB in 1.2 ms, not
        # 10.6. The price: an unreadable disk ends the process (SIGBUS) without an error message.
        ("mmap_size", 2 << 30),
        # About 80 commits with vectors between two checkpoints; the log is cut back to this size.
        ("wal_autocheckpoint", 4000),
        ("journal_size_limit", 64 << 20),
        ("temp_store", "MEMORY"),  # a spilled sort must not leave words in a temporary file
    ):
        connection.pragma(name, value)
    return connection


@contextmanager
def transaction(connection: apsw.Connection) -> Iterator[apsw.Connection]:
    """Hold the file's one write lock; all or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
        connection.execute("COMMIT")
    except BaseException:
        # SQLite has rolled back by itself after some errors (a full disk).
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def rewrite(connection: apsw.Connection) -> None:
    """Rewrite the file with its live rows only, through a temporary file that nobody else can open."""
    connection.pragma("temp_store", "FILE")
    try:
        connection.execute("VACUUM")
    finally:
        connection.pragma("temp_store", "MEMORY")


def cut_log(connection: apsw.Connection, *, patience_s: float) -> bool:
    """Checkpoint and truncate the log; waits a second for readers. False: a reader prevents it."""
    connection.set_busy_timeout(1000)
    try:
        busy, _, _ = fetch_one(connection, "PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        connection.set_busy_timeout(int(patience_s * 1000))
    return not busy


def damage(connection: apsw.Connection, *, first: int = 0) -> str | None:
    """Return a fault of the file's structure; None if the check shows none within _CHECK_S.

    first: any number; it selects the first table, so that different processes check different tables.
    """
    statement = "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name"
    tables = [name for (name,) in fetch_all(connection, statement)]
    start = first % len(tables)
    ends = time.monotonic() + _CHECK_S
    connection.set_progress_handler(lambda: time.monotonic() > ends, 10_000)
    try:
        for table in (*tables[start:], *tables[:start]):
            result = str(connection.pragma("quick_check", table))
            if result != "ok":
                return next((line for line in result.splitlines() if not line.startswith("***")), result)
    except apsw.InterruptError:
        pass
    finally:
        connection.set_progress_handler(None)
    return None


def fetch_all(connection: apsw.Connection, statement: str, values: Sequence[Any] = ()) -> list[Row]:
    """Return all rows of a statement; it runs to its end, which a statement that writes needs."""
    return connection.execute(statement, values).fetchall()


def fetch_one(connection: apsw.Connection, statement: str, values: Sequence[Any] = ()) -> Any:  # noqa: ANN401 - a row or None
    """Return the first row or None."""
    rows = connection.execute(statement, values).fetchall()
    return rows[0] if rows else None


def digest(name: str) -> bytes:
    """Return the hash that identifies a group, even after the removal of its name."""
    return hashlib.sha256(name.encode(errors="surrogatepass")).digest()


_PAGE_ROWS = 1_000  # no statement is open between two pages
_PAGE_VALUES = 500
# The limit of a page of rows with texts or vectors: a single row of 10,000 triples has 40 MB.
_PAGE_BYTES = 4 << 20
_FIRST_LARGE_ROWS = 8
Run = Callable[[str, Sequence[Any]], list[Row]]  # a statement and its values -> all its rows

_ENCODER = json.JSONEncoder(separators=(",", ":"))  # made once, because each look-up encodes an array


def array(values: Any) -> str:  # noqa: ANN401 - any iterable of JSON values
    """Return a JSON array for json_each: escaped, so that any string passes, lone surrogates too."""
    return _ENCODER.encode(list(values))


def read_rows(run: Run, read: Read[R], no: int, values: Sequence[Any]) -> Iterator[R]:
    """Return the rows of a declared read, page by page. no: the group's number."""
    if read.by is None:
        pages: Iterator[list[Row]] = _scan(run, read, no, values)
    else:
        distinct = list(dict.fromkeys(values))
        parts = (array(distinct[n : n + _PAGE_VALUES]) for n in range(0, len(distinct), _PAGE_VALUES))
        pages = (run(sql.OF_READ[read], (no, part)) for part in parts)
    # map and chain run in C, so that no Python code runs for each row.
    return map(read.make, chain.from_iterable(map(partial(with_restored_types, read), pages)))


def _scan(run: Run, read: Read[Any], no: int, start: Sequence[Any]) -> Iterator[list[Row]]:
    width, at, lowest = _SCANS[read]
    place = (*start, *lowest[len(start) :])
    is_large = read in _LARGE
    limit = _FIRST_LARGE_ROWS if is_large else _PAGE_ROWS
    while page := run(sql.OF_READ[read], (no, limit, *place)):
        yield page if len(page[0]) == width else [row[:width] for row in page]
        if len(page) < limit:
            return
        if is_large:
            size = sum(len(value) for row in page for value in row if isinstance(value, bytes | str))
            limit = max(1, min(_PAGE_ROWS, 2 * limit, limit * _PAGE_BYTES // max(1, size)))
        place = tuple(page[-1][column] for column in at)


_RESTORE: Mapping[str, Callable[[Any], Any]] = {
    "bool": bool,
    "texts": lambda text: () if text == "[]" else tuple(json.loads(text)),
}
# Scan -> its number of columns, the indexes of the columns that give a row's position, and a position before
# all rows.
_SCANS = {
    read: (
        len(read.columns),
        [[*dict.fromkeys((*read.columns, *read.place))].index(name) for name in read.place],
        read.kind.lowest(read.place),
    )
    for read in READS
    if read.by is None
}
_LARGE = frozenset(
    read
    for read in _SCANS
    if read.kind is not FACTS
    and any(read.kind.types[name] == "bytes" or name in ("text", "body") for name in read.columns)
)
# Read -> the indexes of the columns with types that SQLite lacks, and the functions that restore these.
_CONVERTERS = {
    read: [
        (n, _RESTORE[t]) for n, name in enumerate(read.columns) if (t := read.kind.types[name]) in _RESTORE
    ]
    for read in READS
}


def with_restored_types(read: Read[Any], page: list[Row], *, first: int = 0) -> list[Row]:
    """Convert the columns whose types SQLite lacks; first: the index of the read's first column in a row."""
    if not _CONVERTERS[read] or not page:
        return page
    columns = list(zip(*page, strict=True))
    for place, convert in _CONVERTERS[read]:
        columns[first + place] = tuple(map(convert, columns[first + place]))
    return list(zip(*columns, strict=True))


_DAMAGED = "{path} is damaged ({error}): restore it from a copy"
_LOCKED = "{path} is still locked by another process after the longest wait; nothing was changed: repeat it"
_READ_ONLY = "{path} cannot be written: check the permissions of the folder and the file"
_LINES: Mapping[type[Exception], str] = {
    apsw.BusyError: _LOCKED,
    apsw.LockedError: _LOCKED,
    apsw.CorruptError: _DAMAGED,
    apsw.NotADBError: _DAMAGED,
    apsw.ReadOnlyError: _READ_ONLY,
    apsw.PermissionsError: _READ_ONLY,
    apsw.CantOpenError: "{path} cannot be opened: check the folder, its permissions and its file system",
    apsw.IOError: "{path}: the disk failed to read or write ({error})",
    # Statements are constants: if one fails to compile, a table has been changed.
    apsw.SQLError: _DAMAGED,
}


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn errors of SQLite and the file system into StoreError or Unavailable; other errors pass."""
    try:
        yield
    except (apsw.Error, OSError) as error:
        # SHMSIZE: the small file that readers and writers share could not grow.
        if (
            getattr(error, "errno", None) in {errno.ENOSPC, errno.EDQUOT}
            or isinstance(error, apsw.FullError)
            or getattr(error, "extendedresult", None) == apsw.SQLITE_IOERR_SHMSIZE
        ):
            raise NoSpace(f"no space left for {path}: free some space, then run it again") from None
        if isinstance(error, OSError):
            raise StoreError(f"{error.filename or path}: {error.strerror}") from None
        if (line := _LINES.get(type(error))) is None:
            raise
        error_type = Unavailable if line is _LOCKED else StoreError
        raise error_type(line.format(path=path, error=error)) from None
