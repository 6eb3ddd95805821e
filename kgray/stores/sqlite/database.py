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

from kgray import times
from kgray.errors import NoSpace, StoreError, Unavailable
from kgray.kinds import R, Read, Row
from kgray.locks import for_owner, sync
from kgray.reads import READS
from kgray.rows import pack
from kgray.stores import slots
from kgray.stores.alike import Counters, stale
from kgray.stores.slots import Hold
from kgray.stores.sqlite import statements as sql

_CHECK_S = 1.0  # of a file before it is written to: 1.7 GB that the system has in memory
_WRITER_MB = 32  # page cache of the writing connection, which no search uses
_COPY_PAGES = 2_500  # of a step of a copy: 10 MB
_READERS = 4  # connections that read: one is enough until a thread reads for seconds


@dataclass(slots=True, kw_only=True)
class KnownGroup(Counters):
    """A group of the file. no: its number; None: it was never there."""

    no: int | None = None


class Database:
    """One file, one connection that writes and a few that read.

    Threads of one process take turns at writing. A snapshot (R5) is one thread's; others read meanwhile,
    through further connections.
    """

    def __init__(self, path: Path, dimensions: int, *, patience_s: float, cache_mb: int) -> None:
        self.path, self.dimensions, self.patience_s = path, dimensions, patience_s
        with explained(path):
            self._writer = connect(path, patience_s=patience_s, cache_mb=min(_WRITER_MB, cache_mb))
            reader = connect(path, patience_s=patience_s, cache_mb=cache_mb)
        self._durable = True  # SQLite's own default: synchronous = FULL
        self._turn = threading.RLock()
        self._idle = LifoQueue[apsw.Connection | None]()  # None: one that was not needed yet
        for connection in (*[None] * (_READERS - 1), reader):
            self._idle.put(connection)
        self._held = threading.local()  # this thread's snapshot: its reader, the groups that it asked for
        self._checked = False
        self.holds: list[Hold] = []  # of this process, of no shard two
        # Groups that have no name yet, which the reads of this process find -> their digests meanwhile.
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

        durable: on the disk when this returns. Else a power cut (not a kill) may lose it, but nothing before.
        """
        with self._turn, explained(self.path):
            if not self._checked:  # before this process writes to the file for the first time
                if (found := damage(self._writer, first=_meta(self._writer, "epoch"))) is not None:
                    raise StoreError(_DAMAGED.format(path=self.path, error=found))
                self._checked = True
            if durable != self._durable:
                self._writer.pragma("synchronous", "FULL" if durable else "NORMAL")
                self._durable = durable
            with transaction(self._writer) as connection:
                yield connection

    def check_slots(
        self, connection: apsw.Connection, groups: Iterable[str], *, epoch: int | None = None
    ) -> None:
        """Raise StaleWriter where a group's slot is not held, or another process took it since (R23)."""
        asked = list(groups)
        rows = many(connection, sql.SLOTS_AT, (array(slots.slots_of(asked)),))  # the file is locked
        slots.check(self.path.parent, self.holds, asked, rows, epoch=epoch)

    def group(self, connection: apsw.Connection, name: str) -> KnownGroup | None:
        """Return a group that exists or ever did, by the hash of its name; else None."""
        staged = self.staged.get(name)
        row = one(connection, sql.GROUP_BY_DIGEST, (staged or digest(name),))
        if row is None:
            return None
        no, named, last, last_recorded, removals = row
        return KnownGroup(
            asked=name, no=no, named=named is not None or staged is not None, last=last,
            last_recorded=last_recorded, removals=removals,
        )  # fmt: skip

    @contextmanager
    def holding(self, epoch: int | None, shard: int, shards: int | None) -> Iterator[int]:
        """Hold the slots of a shard, or all, until the end; see `ports.Store.writing`.

        All epochs are of one counter, so none comes twice, also where the groups are divided anew.
        """
        with self.transaction(durable=True) as connection:
            there = many(connection, sql.SHARDS)
            of = shards or len(there)
            token = _new_epoch(connection)
            if of != len(there):
                _divide(connection, of, token)  # who held a slot of the former map is stale
                there = many(connection, sql.SHARDS)
            slots.check_shard(self.path.parent, shard, of)
            mine = range(of) if shards is None else (shard,)
            if epoch is None:
                epoch = token
            elif behind := [there[number][1] for number in mine if there[number][1] != epoch]:
                raise stale(self.path.parent, behind[0], epoch)
            connection.execute(sql.TAKE_SHARDS, (epoch, token, array(mine)))
            taken: dict[int, int] = dict(many(connection, sql.TAKE_SLOTS, (token, array(mine))))
        hold = Hold(shards=mine, epoch=epoch, token=token, slots=taken)
        self.holds.append(hold)
        try:
            yield epoch
        finally:  # another process may adopt it now, and both would pass
            self.holds.remove(hold)

    def set_shards(self, shards: int) -> None:
        """Add or drop shards without slots; see `ports.Store.set_shards`."""
        with self.transaction(durable=True) as connection:
            (left,) = one(connection, sql.SLOTS_BEYOND, (shards,))
            slots.check_empty(self.path.parent, shards, left)
            connection.execute(sql.END_MOVES_BEYOND, (shards,))
            _set_shards(connection, shards)

    @contextmanager
    def moving(self, asked: Collection[int], shard: int) -> Iterator[None]:
        """Hand slots over to a shard; see `ports.Store.moving`."""
        chosen = array(asked)
        with self.transaction(durable=True) as connection:
            number = len(many(connection, sql.SHARDS))
            slots.check_move(self.path.parent, asked, shard, number)
            connection.execute(sql.MARK_SLOTS, (shard, chosen))
        try:
            yield
            with self.transaction(durable=True) as connection:
                moved = many(connection, sql.MOVE_SLOTS, (_new_epoch(connection), shard, chosen))
                slots.check_moved(self.path.parent, asked, moved)
                connection.execute(sql.NOTE_WAITING_IN, (times.now(), chosen))
        except BaseException:
            with self.transaction(durable=True) as connection:
                connection.execute(sql.UNMARK_SLOTS, (shard, chosen))
            raise

    def compact(self) -> bool:
        """Rewrite the file where anything was erased, and cut the log; False where a reader prevents it.

        Takes about 2 s for 100 MB, during which appenders wait. secure_delete alone zeroes deleted rows, but
        not the copies that SQLite leaves when it moves rows to a sibling page (seen for 1 word in 2,400).
        """
        with self._turn, explained(self.path):
            erased, rewritten, cut = (_meta(self._writer, key) for key in ("erased", "rewritten", "cut"))
            if erased != rewritten:
                rewrite(self._writer)
                self._writer.execute(sql.SET_META, ("rewritten", erased))
            whole = cut_log(self._writer, patience_s=self.patience_s)
            if whole and erased != cut:
                self._writer.execute(sql.SET_META, ("cut", erased))
                cut_log(self._writer, patience_s=self.patience_s)
        return whole

    def copy_to(self, path: Path, on_step: Callable[[], None]) -> None:
        """Copy the file as of one moment to a new one, by SQLite's backup interface, while others write.

        on_step: called every _COPY_PAGES pages. Raises StoreError where the copy is damaged, NoSpace.
        """
        with self.snapshot(), self._reading() as reader, explained(path):
            os.close(for_owner(str(path), os.O_RDWR | os.O_CREAT | os.O_EXCL))
            one(reader, sql.META, ("epoch",))  # The snapshot begins here: no write makes the copy begin anew.
            with closing(apsw.Connection(str(path))) as made:
                made.pragma("synchronous", "OFF")
                with made.backup("main", reader, "main") as copying:
                    while not copying.done:
                        copying.step(_COPY_PAGES)
                        on_step()
                if (found := made.pragma("quick_check", 1)) != "ok":
                    raise StoreError(_DAMAGED.format(path=self.path, error=found))
            sync(path)

    @contextmanager
    def _reading(self) -> Iterator[apsw.Connection]:
        """Lend a connection that reads: that of this thread's snapshot, else an idle one."""
        held: apsw.Connection | None = getattr(self._held, "reader", None)
        if held is not None:
            yield held
            return
        idle = self._idle.get()
        try:
            if idle is None:
                with explained(self.path):
                    idle = connect(self.path, patience_s=self.patience_s, cache_mb=_WRITER_MB)
            yield idle
        finally:
            self._idle.put(idle)

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Hold one snapshot for all reads of this thread inside; nests."""
        if getattr(self._held, "reader", None) is not None:
            yield
            return
        with self._reading() as reader:
            with explained(self.path):
                reader.execute("BEGIN")
            self._held.reader, self._held.groups = reader, {}
            try:
                yield
            finally:
                self._held.reader = None
                if reader.in_transaction:
                    with explained(self.path):
                        reader.execute("COMMIT")

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        with self._reading() as reader, explained(self.path):
            return reader.execute(statement, values).fetchall()

    def known(self, group: str) -> KnownGroup | None:
        """Return a group, for a read; None where it was never there. A snapshot asks for each once."""
        with self._reading() as reader, explained(self.path):
            if group in self.staged or getattr(self._held, "reader", None) is None:
                return self.group(reader, group)
            seen: dict[str, KnownGroup | None] = self._held.groups
            if group not in seen:
                seen[group] = self.group(reader, group)
            return seen[group]


def _meta(connection: apsw.Connection, key: str) -> Any:  # noqa: ANN401 - a text, a number or None
    found = one(connection, sql.META, (key,))
    return None if found is None else found[0]


def _new_epoch(connection: apsw.Connection) -> int:
    return int(one(connection, sql.NEW_EPOCH)[0])


def _set_shards(connection: apsw.Connection, shards: int) -> None:
    connection.execute(sql.DROP_SHARDS, (shards,))
    connection.executemany(sql.NEW_SHARD, ((shard,) for shard in range(shards)))


def _divide(connection: apsw.Connection, shards: int, epoch: int) -> None:
    _set_shards(connection, shards)
    connection.execute(sql.DIVIDE_SLOTS, (shards, epoch))


def connect(path: Path, *, patience_s: float, cache_mb: int) -> apsw.Connection:
    """Return a connection: WAL, erased bytes zeroed, waits up to `patience_s` for locks."""
    name, flags = str(path), apsw.SQLITE_OPEN_READWRITE
    # In a folder that cannot be written, and nobody has the file open for writing: SQLite could not make the
    # files that readers share with a writer, so it is told that nothing changes.
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
        # Pages are read from the system's cache without a copy: 100 vectors of a file of 1.6 GB in 1.2 ms,
        # not 10.6. The price: a disk that cannot be read ends the process (SIGBUS), with no line of ours.
        ("mmap_size", 2 << 30),
        # Some 80 commits with vectors between two checkpoints; the log is cut back to this size.
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
    """Rewrite the file with its live rows only, by way of a temporary file that nobody else can open."""
    connection.pragma("temp_store", "FILE")
    try:
        connection.execute("VACUUM")
    finally:
        connection.pragma("temp_store", "MEMORY")


def cut_log(connection: apsw.Connection, *, patience_s: float) -> bool:
    """Checkpoint and truncate the log; waits a second for readers. False: a reader prevents it."""
    connection.set_busy_timeout(1000)
    try:
        busy, _, _ = one(connection, "PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        connection.set_busy_timeout(int(patience_s * 1000))
    return not busy


def damage(connection: apsw.Connection, *, first: int = 0) -> str | None:
    """Return what is wrong with the file's structure; None where nothing was found within _CHECK_S.

    Each process begins at another table (first: any number), and so reaches what others did not.
    """
    statement = "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name"
    tables = [name for (name,) in many(connection, statement)]
    start = first % len(tables)
    ends = time.monotonic() + _CHECK_S
    connection.set_progress_handler(lambda: time.monotonic() > ends, 10_000)
    try:
        for table in (*tables[start:], *tables[:start]):
            found = str(connection.pragma("quick_check", table))
            if found != "ok":
                return next((line for line in found.splitlines() if not line.startswith("***")), found)
    except apsw.InterruptError:
        pass
    finally:
        connection.set_progress_handler(None)
    return None


def many(connection: apsw.Connection, statement: str, values: Sequence[Any] = ()) -> list[Row]:
    """Return all rows of a statement, run to its end, as a write must be."""
    return connection.execute(statement, values).fetchall()


def one(connection: apsw.Connection, statement: str, values: Sequence[Any] = ()) -> Any:  # noqa: ANN401 - a row or None
    """Return the first row or None."""
    rows = connection.execute(statement, values).fetchall()
    return rows[0] if rows else None


def digest(name: str) -> bytes:
    """Return the hash that identifies a group, also after its name was removed."""
    return hashlib.sha256(name.encode(errors="surrogatepass")).digest()


_PAGE_ROWS = 1_000  # no statement is open between two pages
_PAGE_VALUES = 500
Run = Callable[[str, Sequence[Any]], list[Row]]  # a statement and its values -> all its rows

_ENCODER = json.JSONEncoder(separators=(",", ":"))  # made once: each look-up binds one array


def array(values: Any) -> str:  # noqa: ANN401 - any iterable of JSON values
    """Return a JSON array for json_each: escaped, so that any string passes, lone surrogates too."""
    return _ENCODER.encode(list(values))


def read_rows(run: Run, read: Read[R], no: int, values: Sequence[Any]) -> Iterator[R]:
    """Return the rows of a declared read, page by page. no: the group's number."""
    if read.by is None:
        pages: Iterator[list[Row]] = _scan(run, read, no, values)
    else:
        asked = list(dict.fromkeys(values))
        parts = (array(asked[n : n + _PAGE_VALUES]) for n in range(0, len(asked), _PAGE_VALUES))
        pages = (run(sql.OF_READ[read], (no, part)) for part in parts)
    # No generator of ours is entered for a row.
    return map(read.make, chain.from_iterable(map(partial(restored, read), pages)))


def _scan(run: Run, read: Read[Any], no: int, since: Sequence[Any]) -> Iterator[list[Row]]:
    width, at, lowest = _SCANS[read]
    place = (*since, *lowest[len(since) :])
    while page := run(sql.OF_READ[read], (no, _PAGE_ROWS, *place)):
        yield page if len(page[0]) == width else [row[:width] for row in page]
        if len(page) < _PAGE_ROWS:
            return
        place = tuple(page[-1][column] for column in at)


_MADE: Mapping[str, Callable[[Any], Any]] = {
    "bool": bool,
    "texts": lambda text: () if text == "[]" else tuple(json.loads(text)),
}
# Made once, of each scan: its number of columns, where those of a place are, what is below its first place.
_SCANS = {
    read: (
        len(read.columns),
        [[*dict.fromkeys((*read.columns, *read.place))].index(name) for name in read.place],
        read.kind.lowest(read.place),
    )
    for read in READS
    if read.by is None
}
# Of each read: the indexes of the columns whose types SQLite lacks, and what restores them.
_CONVERTERS = {
    read: [(n, _MADE[of]) for n, name in enumerate(read.columns) if (of := read.kind.types[name]) in _MADE]
    for read in READS
}


def restored(read: Read[Any], page: list[Row], *, first: int = 0) -> list[Row]:
    """Return rows of a read, whose columns begin at an index, with the types that SQLite lacks."""
    if not _CONVERTERS[read] or not page:
        return page
    columns = list(zip(*page, strict=True))
    for place, convert in _CONVERTERS[read]:
        columns[first + place] = tuple(map(convert, columns[first + place]))
    return list(zip(*columns, strict=True))


_DAMAGED = "{path} is damaged ({error}): restore it from a copy"
_LOCKED = "{path} is locked by another process beyond patience; nothing was changed, run it again"
_FIXED = "{path} cannot be written: check the permissions of the folder and the file"
_LINES: Mapping[type[Exception], str] = {
    apsw.BusyError: _LOCKED,
    apsw.LockedError: _LOCKED,
    apsw.CorruptError: _DAMAGED,
    apsw.NotADBError: _DAMAGED,
    apsw.ReadOnlyError: _FIXED,
    apsw.PermissionsError: _FIXED,
    apsw.CantOpenError: "{path} cannot be opened: check the folder, its permissions and its file system",
    apsw.IOError: "{path}: the disk failed to read or write ({error})",
    # Our statements are constants: one that fails to compile means that a table is not as made.
    apsw.SQLError: _DAMAGED,
}


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn the errors of SQLite and of the file system inside into StoreError or Unavailable."""
    try:
        yield
    except (apsw.Error, OSError) as error:
        # The last: the small file that readers and writers share could not grow.
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
        made = Unavailable if line is _LOCKED else StoreError
        raise made(line.format(path=path, error=error)) from None
