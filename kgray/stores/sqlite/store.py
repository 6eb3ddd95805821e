"""The embedded store: one SQLite file in a data folder."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import apsw

from kgray import locks, times
from kgray.errors import StoreError
from kgray.kinds import EPISODES, TAKEN_IDS, Key, Kind, Read, Row
from kgray.ports import Patch, ResponseCache
from kgray.ports.store import Appending, GroupHead, RowChanges, Store, T
from kgray.stores import alike
from kgray.stores.alike import Counters
from kgray.stores.sqlite import folder, schema
from kgray.stores.sqlite import statements as sql
from kgray.stores.sqlite.adoption import StagedGroup
from kgray.stores.sqlite.cache import ResponseFile, SqliteResponses
from kgray.stores.sqlite.database import Database, many, one, read_rows
from kgray.stores.sqlite.reading import StoreReads
from kgray.stores.sqlite.row_writer import RowWriter
from kgray.times import Instant

# How long a short transaction waits for another process's; a commit holds the lock for milliseconds,
# a compaction of a large file for seconds.
PATIENCE_S = 30.0
# Of pages that the reading connection keeps. Two searches over 20,000 facts each way: hybrid p50 22.2 and
# 20.3 ms with 64, 23.4 and 25.4 ms with 16.
CACHE_MB = 64


def open_sqlite(
    path: Path,
    *,
    embedder: str,
    dimensions: int,
    create: bool = True,
    patience_s: float = PATIENCE_S,
    cache_mb: int = CACHE_MB,
) -> SqliteStore:
    """Open the store in a data folder; creates it where there is none.

    embedder    the embedder's identity, kept with the folder
    dimensions  numbers a vector; 0 = as many as the store's have, which must be there
    create      False: a folder without a store is an error that names `kgray init`
    cache_mb    of pages, at most, by the connection that reads; the one that writes keeps 32 at most

    Raises StoreError, with nothing changed, for what is not ours, of another schema, damaged, or built with
    another embedder; Unavailable where another process holds the file beyond `patience_s`.
    """
    file, width = folder.opened(
        path, embedder=embedder, dimensions=dimensions, create=create, patience_s=patience_s
    )
    db = Database(file, patience_s=patience_s, cache_mb=cache_mb)
    return SqliteStore(db, ResponseFile(path, patience_s=patience_s), width)


class SqliteStore(StoreReads, Store):
    """`ports.Store` on one file; to be closed. Threads may read side by side; they take turns at writing."""

    schema_version = schema.VERSION
    batch = 32  # 16 episodes of 0.6 ms of CPU each
    remote = False

    def __init__(self, db: Database, responses: ResponseFile, dimensions: int) -> None:
        """See `open_sqlite`."""
        super().__init__(db)
        self.folder = db.path.parent
        self.dimensions = dimensions
        self._responses = responses

    def responses(self, *, max_bytes: int) -> ResponseCache:
        """Return the folder's response cache, a file of its own; closed with the store."""
        return SqliteResponses(self._responses, max_bytes=max_bytes, standing=self._held_episodes)

    def append(self, groups: Collection[str], work: Callable[[Appending], T]) -> T:
        """Run `work` in one durable transaction; the file has one write lock, so it holds every group."""
        with self._db.transaction(durable=True) as connection:
            appending = Append(self._db, connection, groups, self.dimensions)
            result = work(appending)
            appending.finish()
        return result

    @contextmanager
    def writing(
        self,
        *,
        epoch: int | None = None,
        shard: int = 0,
        shards: int | None = None,
        shares_folder: bool = False,
    ) -> Iterator[int]:
        """Hold the folder's ingest lock and a fencing epoch, new or adopted; see `ports.Store`."""
        if shares_folder:
            raise StoreError("the embedded store holds its folder's lock itself: it cannot share it")
        if shard or (shards or 1) != 1:
            raise StoreError(f"the embedded store is one shard, 0: it has no shard {shard} of {shards or 1}")
        with locks.ingesting(self.folder), self._db.fenced(epoch) as held:
            yield held

    def apply(self, changes: Sequence[RowChanges]) -> None:
        """Apply changes in order, in one transaction; see `ports.Store`.

        Waits for the disk, unless all of it is extractions and answers, which a model can be asked for again.
        """
        for change in changes:
            self._erase_responses(change)
        with self._db.transaction(durable=any(change.durable for change in changes)) as connection:
            self._db.check_epoch(connection)
            changed = RowWriter(connection, self.dimensions)
            for change in changes:
                self._apply(connection, change, changed)
            for group in alike.ended_in(changes):
                connection.execute(sql.SETTLE, (self._db.known_group(connection, group),))

    def adopt(
        self, group: str, head: GroupHead, rows: Iterable[tuple[Kind, Row]], verify: Callable[[], None]
    ) -> None:
        """Copy a group in from another store; `verify` reads it here before any other process can."""
        alike.adopt(StagedGroup(self._db, group, head, self.dimensions), rows, verify)

    def compact(self) -> bool:
        """Make what was erased unreadable in the files; False where a reader prevents it now."""
        cut = self._responses.compact()
        return self._db.compact() and cut

    def close(self) -> None:
        """Release files and memory; idempotent."""
        self._responses.close()
        self._db.close()

    def _apply(self, connection: apsw.Connection, change: RowChanges, changed: RowWriter) -> None:
        no = self._db.known_group(connection, change.group)
        if no is None:
            raise alike.no_sequence(change, 0)
        if not _applies(connection, no, change):
            return
        if change.recorded_at is not None:
            times = (change.recorded_at, no, change.recorded_at, change.rests_on)
            if not one(connection, sql.SET_RECORD_TIME, times):
                raise alike.outrun(change)
        changed.no = no
        changed.carry_out(change)

    def _erase_responses(self, change: RowChanges) -> None:
        """Drop cached replies before the rows that name their episodes, so that a kill leaves none behind.

        Done even where the cache is now disabled: the file may be from an earlier run.
        """
        if change.clear:
            self._responses.erase_group(change.group)
        elif gone := change.drops.get(EPISODES):
            ids = self._db.ids_of(change.group, [sequence for (sequence,) in gone])
            self._responses.erase(change.group, ids)

    def _held_episodes(self, group: str, ids: Sequence[str]) -> dict[str, str]:
        """Return episode id -> content hash of the rows with these ids that are not retired."""
        newest = {row[1]: (row[4], row[5]) for row in self.rows(TAKEN_IDS, group, ids)}
        return {id_: digest for id_, (digest, retired_at) in newest.items() if retired_at is None}


def _applies(connection: apsw.Connection, no: int, change: RowChanges) -> bool:
    """Whether the entry exists and is in one of the states in which the change applies."""
    row = one(connection, sql.STATE_OF[change.ledger], (no, change.sequence))
    if row is not None:
        return alike.applies(change, *row)
    last = one(connection, sql.GROUP_HEAD, (no,))[1]
    if change.sequence <= last:
        return alike.applies(change, None, None)
    raise alike.no_sequence(change, last)


class Append(Appending):
    """`ports.Appending` inside an open transaction. Its writes are buffered until `finish`."""

    def __init__(
        self, db: Database, connection: apsw.Connection, groups: Collection[str], dimensions: int
    ) -> None:
        """Read and write nothing yet."""
        self._db, self._connection, self._dimensions = db, connection, dimensions
        self._groups = set(groups)
        self._heads: dict[str, Counters] = {}
        self._puts: dict[tuple[str, Kind], list[Row]] = {}
        self._patches: list[tuple[str, Patch]] = []
        self._drops: dict[tuple[str, Kind], list[Key]] = {}

    def rows(self, read: Read, group: str, values: Sequence[Any] = ()) -> list[Row]:
        """Return the rows of a declared read, without what this transaction appended."""
        no = self._db.known_group(self._connection, group)
        return [] if no is None else list(read_rows(partial(many, self._connection), read, no, values))

    def take_sequence(self, group: str) -> int:
        """Take the group's next sequence; the group exists from now on."""
        return self._head(group).take_sequence()

    def take_record_time(self, group: str, now: Instant) -> Instant:
        """Take a record time past the group's last (R4)."""
        return self._head(group).take_record_time(now)

    def put(self, kind: Kind, group: str, row: Row) -> None:
        """Put a row."""
        self._puts.setdefault((group, kind), []).append(row)

    def patch(self, group: str, patch: Patch) -> None:
        """Change rows that were in the store before this transaction."""
        self._patches.append((group, patch))

    def drop(self, kind: Kind, group: str, key: Key) -> None:
        """Drop a row that was there before this transaction."""
        self._drops.setdefault((group, kind), []).append(key)

    def finish(self) -> None:
        """Write what was put, taken and patched."""
        for group, head in self._heads.items():
            no = self._db.group(self._connection, group)
            values = (group if head.named else None, head.last, head.last_recorded, no)
            self._connection.execute(sql.SET_HEAD, values)
            self._connection.execute(sql.NOTE_WAITING, (times.now(), no))
        changed = RowWriter(self._connection, self._dimensions)
        for (group, kind), keys in self._drops.items():
            changed.no = self._db.group(self._connection, group)
            changed.drop(kind, keys)
        for (group, kind), rows in self._puts.items():
            changed.no = self._db.group(self._connection, group)
            changed.put(kind, rows)
        for group, patch in self._patches:
            changed.no = self._db.group(self._connection, group)
            changed.patch(patch)

    def _head(self, group: str) -> Counters:
        head = self._heads.get(group)
        if head is None:
            if group not in self._groups:
                raise StoreError(f"this transaction does not hold group {group!r}")
            no = self._db.known_group(self._connection, group)
            head = self._heads[group] = Counters()
            if no is not None:
                name, head.last, head.last_recorded, _ = one(self._connection, sql.GROUP_HEAD, (no,))
                head.named = name is not None
        return head
