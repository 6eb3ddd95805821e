"""The embedded store: one SQLite file in a data folder."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from itertools import groupby
from pathlib import Path
from threading import Lock
from typing import Any

import apsw

from kgray.domain import times
from kgray.domain.graph import Fact
from kgray.domain.records import Episode
from kgray.domain.times import Instant
from kgray.errors import StoreError
from kgray.ports import Appending, GroupCounts, GroupHead, RowChanges, ShardMap, Store, T
from kgray.schema import kinds
from kgray.schema.kinds import Kind, R, Read, Row
from kgray.schema.reads import FACTS_OF
from kgray.schema.rows import fact as fact_of
from kgray.storage import transactions
from kgray.storage.sqlite import folder, schema
from kgray.storage.sqlite import statements as sql
from kgray.storage.sqlite.database import (
    Database,
    KnownGroup,
    array,
    digest,
    fetch_all,
    read_rows,
    with_restored_types,
)
from kgray.storage.transactions import EVERY_SEQUENCE, CombinedBatch, States, Transaction, slot_of
from kgray.system import locks

# Seconds that a transaction waits for another process's lock: a commit holds it for milliseconds, a
# compaction of a large file for seconds.
PATIENCE_S = 30.0
# Page cache of the reading connection. Measured twice over 20,000 facts: hybrid p50 22.2 and 20.3 ms with 64,
# 23.4 and 25.4 ms with 16.
CACHE_MB = 64
_PORTION_ROWS = 1_000  # of a transaction that copies


def open_sqlite(
    path: Path,
    *,
    embedder: str = "",
    dimensions: int = 0,
    create: bool = True,
    patience_s: float = PATIENCE_S,
    cache_mb: int = CACHE_MB,
) -> SqliteStore:
    """Open the store in a data folder; create it if the folder has none.

    embedder    identity of the embedder of a new store; an existing store keeps its own
    dimensions  numbers a vector of a new store
    create      False, or no embedder: a folder without a store is an error that names `kgray init`
    cache_mb    page cache of the reading connection; the writing connection keeps at most 32

    Raises NoStore; StoreError, with nothing changed, for a foreign or damaged file, or another schema;
    Unavailable if another process holds the file beyond `patience_s`.
    """
    file, stored_embedder, width = folder.opened(
        path, embedder=embedder, dimensions=dimensions, create=create, patience_s=patience_s
    )
    return SqliteStore(Database(file, width, patience_s=patience_s, cache_mb=cache_mb), stored_embedder)


class SqliteStore(Store):
    """`ports.Store` on one file; close it at the end. Threads read in parallel, and take turns at writing."""

    schema_version = schema.VERSION
    batch = 32  # 16 episodes of 0.6 ms of CPU each
    lanes = 1  # the file has one write lock
    gather_s = 0.0  # a transaction of one episode costs 1 ms
    remote = False

    def __init__(self, db: Database, embedder: str) -> None:
        self._db, self.folder = db, db.path.parent
        self.embedder, self.dimensions = embedder, db.dimensions
        self._folder_lock = ExitStack()
        self._holding, self._holders = Lock(), 0

    def append(self, groups: Collection[str], work: Callable[[Appending], T]) -> T:
        with self._db.transaction(durable=True) as connection:
            appending = RowWriter(self._db, connection, groups, new=True)
            result = work(appending)
            appending.finish()
        return result

    @contextmanager
    def writing(
        self, *, epoch: int | None = None, shard: int = 0, shards: int | None = None, shared: bool = False
    ) -> Iterator[int]:
        if shared:
            raise StoreError("the embedded store holds its folder's lock itself: it cannot share it")
        with self._holding:  # one lock of the folder for all shards of this process
            is_held = any(shard in lock.shards for lock in self._db.writer_locks)
            if not self._holders or is_held or shards not in (0, len(self._db.rows(sql.SHARDS))):
                self._folder_lock.enter_context(locks.ingesting(self.folder))
            self._holders += 1
        try:
            with self._db.holding(epoch, shard, shards) as held_epoch:
                yield held_epoch
        finally:
            with self._holding:
                self._holders -= 1
                if not self._holders:
                    self._folder_lock.close()

    def shard_map(self) -> ShardMap:
        with self.reading():
            owners = [shard for (shard,) in self._db.rows(sql.OWNERS)]
            return ShardMap(len(self._db.rows(sql.SHARDS)), owners)

    def set_shards(self, shards: int) -> None:
        self._db.set_shards(shards)

    def moving(self, slots: Collection[int], shard: int) -> AbstractContextManager[None]:
        return self._db.moving(slots, shard)

    def apply(self, changes: Sequence[RowChanges], *, epoch: int | None = None) -> None:
        with self._db.transaction(durable=any(change.durable for change in changes)) as connection:
            groups = [change.group for change in changes]
            self._db.check_slots(connection, groups, epoch=epoch)
            RowWriter(self._db, connection, groups).carry_out(changes)

    def adopt(
        self, group: str, head: GroupHead, rows: Iterable[tuple[Kind[Any], Row]], verify: Callable[[], None]
    ) -> None:
        # Until the copy is complete, its rows belong to a stage: a numbered group with a name that no group
        # can have ("#"). A small transaction then gives it the name.
        stage = f"#adopting {group}"
        with self._copying(group, stage) as writer:
            copy = writer.groups[stage]
            if copy.no is not None:  # the rest of a killed process
                writer.clear(copy, EVERY_SEQUENCE)
                copy.removals += 1
            copy.last, copy.last_recorded = head.last, head.last_recorded
            writer.keep(copy)
        try:
            for kind, portion in transactions.portions(rows, _PORTION_ROWS):
                batch = CombinedBatch()
                batch.puts[kind] = {(stage, kind.key_of(row)): row for row in portion}
                with self._copying(group, stage, durable=False) as writer:  # a copy that is cut off restarts
                    writer.write(batch)
            self._db.staged[group] = digest(stage)
            verify()
            del self._db.staged[group]
            with self._copying(group, stage) as writer:
                writer.connection.execute(sql.NAME_GROUP, (group, digest(group), slot_of(group), copy.no))
                writer.connection.execute(sql.NOTE_WAITING, (times.now(), copy.no))
                writer.connection.execute(sql.SETTLE, (copy.no,))
        except BaseException:
            self._db.staged.pop(group, None)
            self._undo(stage)
            raise

    def _undo(self, stage: str) -> None:
        with self._db.transaction(durable=True) as connection:
            writer = RowWriter(self._db, connection, [stage])
            for staged in writer.groups.values():
                writer.clear(staged, EVERY_SEQUENCE)

    @contextmanager
    def _copying(self, group: str, stage: str, *, durable: bool = True) -> Iterator[RowWriter]:
        """Write to the copy of a group, which must not exist in the store."""
        with self._db.transaction(durable=durable) as connection:
            self._db.check_slots(connection, [group])
            if existing := self._db.group(connection, group):
                raise transactions.refuse_existing(self.folder, existing)
            yield RowWriter(self._db, connection, [stage], new=True)

    def compact(self) -> bool:
        return self._db.compact()

    def copy_to(self, path: Path, on_step: Callable[[], None]) -> None:
        """Copy the store's current file to a new file, while others write; on_step: called every 10 MB."""
        self._db.copy_to(path, on_step)

    def close(self) -> None:
        self._db.close()

    def reading(self, *, still: bool = False) -> AbstractContextManager[None]:  # noqa: ARG002 - it has snapshots
        return self._db.snapshot()

    def newly_pending(self, mark: Instant, shard: int | None = None) -> tuple[dict[str, bool], Instant]:
        rows = self._db.rows(sql.PENDING_GROUPS, (shard, mark))
        newest = max((waiting for *_, waiting in rows), default=mark)  # in the order of commits
        return {name: bool(live) for name, live, _ in rows}, newest

    def withdrawing(self, shard: int | None = None) -> list[str]:
        return [name for (name,) in self._db.rows(sql.WITHDRAWING, (shard,))]

    def pending_sequences(self, group: str, sequence: int, limit: int) -> list[tuple[int, bool]]:
        no = self._number(group)
        if no is None or limit <= 0:
            return []
        rows = self._db.rows(sql.SEQUENCES_PENDING, (no, sequence, limit))
        return [(number, bool(is_episode)) for number, is_episode in rows]

    def pending_count(
        self, group: str | None = None, *, shard: int | None = None, most: int = 1 << 62
    ) -> int:
        statement, key = (sql.PENDING_COUNT, shard) if group is None else (sql.PENDING_COUNT_OF, group)
        ((count,),) = self._db.rows(statement, (key, most))
        return int(count)

    def said_before(self, episodes: Sequence[Episode], limit: int) -> dict[int, list[int]]:
        result = {}
        with self.reading():
            for each in episodes:
                values = (self._number(each.group), each.source, each.reference_time, each.sequence, limit)
                result[each.sequence] = [sequence for (sequence,) in self._db.rows(sql.SAID_BEFORE, values)]
        return result

    def heads(self, groups: Collection[str] | None = None) -> dict[str, GroupHead]:
        if groups is None:
            rows = self._db.rows(sql.GROUPS)
            return {
                name: GroupHead(named=True, last=last, last_recorded=at, removals=removals)
                for name, last, at, removals in rows
            }
        heads = {}
        with self._db.snapshot():
            for group in sorted(groups):
                row = self._db.read_group(group) or KnownGroup(asked=group)
                heads[group] = GroupHead(
                    named=row.named, last=row.last, last_recorded=row.last_recorded, removals=row.removals
                )
        return heads

    def everywhere(self, read: Read[R], values: Sequence[Any] = ()) -> Iterator[tuple[str, R]]:
        rows = with_restored_types(read, self._db.rows(sql.EVERYWHERE[read], (array(values),)), first=1)
        return ((group, read.make(columns)) for group, *columns in rows)

    def rows(self, read: Read[R], group: str, values: Sequence[Any] = ()) -> Iterator[R]:
        no = self._number(group)
        return iter(()) if no is None else read_rows(self._db.rows, read, no, values)

    def facts_at(
        self, group: str, entities: Sequence[str], as_of: Instant | None, limit: int | None
    ) -> list[Fact]:
        no = self._number(group)
        if no is None:
            return []
        take = -1 if limit is None else limit
        newest: set[tuple[Instant, str]] = set()
        with self._db.snapshot():
            for entity in dict.fromkeys(entities):
                for statement in sql.FACTS_AT.values():
                    rows = self._db.rows(statement, (no, entity, as_of, take))
                    newest.update((-created_at, id_) for created_at, id_ in rows)
            ids = [id_ for _, id_ in sorted(newest)[:limit]]
            return [fact_of(row) for row in self.rows(FACTS_OF, group, ids)]

    def _number(self, group: str) -> int | None:
        row = self._db.read_group(group)
        return None if row is None else row.no

    def counts(self, group: str | None = None) -> dict[str, GroupCounts]:
        no = None if group is None else self._number(group)
        if group is not None and no is None:
            return {group: GroupCounts()}
        with self.reading():
            states, sums = (self._db.rows(each, (no,)) for each in (sql.COUNT_STATES, sql.COUNT_REST))
        result = transactions.counted(states, sums)
        if group is not None:
            return {group: next(iter(result.values()))}
        result.pop(kinds.OWN, None)
        return result


class RowWriter(Transaction[KnownGroup]):
    """An open transaction. new: a group that never existed gets its row at the first write."""

    def __init__(
        self, db: Database, connection: apsw.Connection, groups: Iterable[str], *, new: bool = False
    ) -> None:
        self.connection = connection
        existing = {name: db.group(connection, name) for name in set(groups)}
        super().__init__({n: g or KnownGroup(asked=n) for n, g in existing.items() if g is not None or new})

    def rows(self, read: Read[R], group: str, values: Sequence[Any] = ()) -> list[R]:
        row = self.groups.get(group)
        if row is None or row.no is None:
            return []
        return list(read_rows(partial(fetch_all, self.connection), read, row.no, values))

    def states(self, entries: Sequence[tuple[str, int]]) -> States:
        result: States = {}
        for group, sequence in entries:
            if group in self.groups:
                values = (self.groups[group].no, sequence)
                for ledger, state, ended_at in fetch_all(self.connection, sql.STATES, values):
                    result[kinds.BY_NAME[ledger], group, sequence] = state, ended_at
        return result

    def write(
        self, batch: CombinedBatch, *, counters: Sequence[KnownGroup] = (), settled: Sequence[str] = ()
    ) -> None:
        for kind, names in batch.drops.items():
            self.connection.executemany(sql.DROP[kind], [(self._no(group), *key) for group, key in names])
        for kind, patches in batch.patches.items():
            for columns, rows_of_columns in groupby(patches.items(), lambda item: tuple(item[1])):
                bound = [(*new.values(), self._no(group), *key) for (group, key), new in rows_of_columns]
                self.connection.executemany(sql.patch(kind, columns), bound)
        for kind, rows in batch.puts.items():
            bound = [(self._no(group), *row) for (group, _), row in rows.items()]
            self.connection.executemany(sql.PUT[kind], bound)
        if batch.erases:
            self.connection.execute(sql.COUNT_ERASURE)
        for each in counters:
            self.keep(each)
        for group in settled:
            self.connection.execute(sql.SETTLE, (self.groups[group].no,))

    def clear(self, group: KnownGroup, sequence: int) -> None:
        connection, no = self.connection, group.no
        for statement in sql.CLEAR.values():
            connection.execute(statement, {"no": no, "sequence": sequence})
        pending = fetch_all(connection, sql.SEQUENCES_PENDING, (no, 0, 2))
        group.named = group.named and any(number != sequence for number, _ in pending)
        connection.execute(sql.COUNT_ERASURE)

    def keep(self, group: KnownGroup) -> None:
        """Write back the counters of a group."""
        name = group.asked if group.named else None
        values = (name, slot_of(group.asked), group.last, group.last_recorded, group.removals)
        self.connection.execute(sql.SET_HEAD, (*values, self._no(group.asked)))
        if group.appended:
            self.connection.execute(sql.NOTE_WAITING, (times.now(), group.no))

    def _no(self, name: str) -> int:
        """Return the number of a group of this transaction; create the row of a new group."""
        group = self.groups[name]
        if group.no is None:
            self.connection.execute(sql.NEW_GROUP, (digest(name), slot_of(name)))
            group.no = int(self.connection.last_insert_rowid())
        return group.no
