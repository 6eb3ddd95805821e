"""The embedded store: one SQLite file in a data folder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

from kgray import locks, times
from kgray.errors import StoreError
from kgray.graph import Fact
from kgray.kinds import EPISODE_HEADS_AT, EPISODES, EPISODES_AT, FACTS_OF, TAKEN_IDS, Kind, Read, Row
from kgray.ports import Appending, GroupCounts, GroupHead, ResponseCache, RowChanges, T
from kgray.records import Episode
from kgray.rows import episode as episode_of
from kgray.rows import fact as fact_of
from kgray.stores import alike
from kgray.stores.alike import AppendBuffer, Reads, counted, portions
from kgray.stores.sqlite import folder, schema
from kgray.stores.sqlite import statements as sql
from kgray.stores.sqlite.cache import SqliteResponses
from kgray.stores.sqlite.database import Database, array, digest, one, read_rows, restored
from kgray.stores.sqlite.row_writer import RowWriter
from kgray.times import Instant

# How long a short transaction waits for another process's; a commit holds the lock for milliseconds,
# a compaction of a large file for seconds.
PATIENCE_S = 30.0
# Of pages that the reading connection keeps. Two searches over 20,000 facts each way: hybrid p50 22.2 and
# 20.3 ms with 64, 23.4 and 25.4 ms with 16.
CACHE_MB = 64
_PORTION_ROWS = 1_000  # of a transaction that copies


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
    return SqliteStore(db, width, patience_s=patience_s)


class SqliteStore(Reads):
    """`ports.Store` on one file; to be closed. Threads may read side by side; they take turns at writing."""

    schema_version = schema.VERSION
    batch = 32  # 16 episodes of 0.6 ms of CPU each
    remote = False

    def __init__(self, db: Database, dimensions: int, *, patience_s: float) -> None:
        self._db = db
        self.folder = db.path.parent
        self.dimensions = dimensions
        self._responses = SqliteResponses(self.folder, patience_s=patience_s, standing=self._held_episodes)
        self._folder_lock = ExitStack()
        self._holding, self._holders = Lock(), 0

    def responses(self, *, max_bytes: int) -> ResponseCache:
        self._responses.max_bytes = max_bytes
        return self._responses

    def append(self, groups: Collection[str], work: Callable[[Appending], T]) -> T:
        with self._db.transaction(durable=True) as connection:
            appending = AppendBuffer(RowWriter(self._db, connection, groups, self.dimensions, new=True))
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
        if shares_folder:
            raise StoreError("the embedded store holds its folder's lock itself: it cannot share it")
        held = self._db.epochs
        with self._holding:  # one lock of the folder for all shards of this process
            if not self._holders or shards != self._db.of or shard in held:
                self._folder_lock.enter_context(locks.ingesting(self.folder))
            self._holders += 1
        try:
            with self._db.fenced(epoch, shard, shards) as own:
                yield own
        finally:
            with self._holding:
                self._holders -= 1
                if not self._holders:
                    self._folder_lock.close()

    def apply(self, changes: Sequence[RowChanges]) -> None:
        """Apply changes in one transaction; see `ports.Store`.

        Waits for the disk, unless all of it is extractions and answers, which a model can be asked for again.
        """
        with self._db.transaction(durable=any(change.durable for change in changes)) as connection:
            groups = [change.group for change in changes]
            self._db.check_epoch(connection, groups)
            running = RowWriter(self._db, connection, groups, self.dimensions)
            for change in changes:
                self._erase_responses(running, change)
            running.carry_out(changes)

    def adopt(
        self, group: str, head: GroupHead, rows: Iterable[tuple[Kind, Row]], verify: Callable[[], None]
    ) -> None:
        """Copy a group in; see `ports.Store`.

        Until it is complete its rows belong to a group with a number but no name, and with a digest that no
        name has ("#" is in none). One small transaction then gives it the name.
        """
        stage = hashlib.sha256(b"#adopting " + group.encode()).digest()
        with self._copying(group) as writer:
            left = one(writer.connection, sql.GROUP_BY_DIGEST, (stage,))
            if left is None:
                writer.connection.execute(sql.NEW_GROUP, (None, stage))
                no, removals = int(writer.connection.last_insert_rowid()), 0
            else:
                no, removals = left[0], left[4] + 1
                writer.clear_all(no)
            writer.connection.execute(sql.SET_HEAD, (None, head.last, head.last_recorded, removals, no))
        try:
            for kind, portion in portions(rows, _PORTION_ROWS):
                with self._copying(group, durable=False) as writer:  # one that is cut off starts again
                    writer.put(kind, [no] * len(portion), portion)
            with self._db.standing_in(group, stage):
                verify()
            with self._copying(group) as writer:
                writer.connection.execute(sql.NAME_GROUP, (group, digest(group), no))
                writer.connection.execute(sql.NOTE_WAITING, (times.now(), no))
                writer.connection.execute(sql.SETTLE, (no,))
        except BaseException:
            self._undo(stage, no)
            raise

    @contextmanager
    def _copying(self, group: str, *, durable: bool = True) -> Iterator[RowWriter]:
        """Write to the copy of a group, which must not be there."""
        with self._db.transaction(durable=durable) as connection:
            self._db.check_epoch(connection, [group])
            if there := self._db.group(connection, group):
                raise alike.known(group, self.folder, there)
            yield RowWriter(self._db, connection, (), self.dimensions)

    def _undo(self, stage: bytes, no: int) -> None:
        with self._db.transaction(durable=True) as connection:
            row = one(connection, sql.GROUP_BY_DIGEST, (stage,))
            if row is not None and row[0] == no:
                RowWriter(self._db, connection, (), self.dimensions).clear_all(no)

    def compact(self) -> bool:
        """Make what was erased unreadable in the files; False where a reader prevents it now."""
        cut = self._responses.compact()
        return self._db.compact() and cut

    def close(self) -> None:
        self._responses.close()
        self._db.close()

    def reading(self) -> AbstractContextManager[None]:
        return self._db.snapshot()

    def newly_pending(self, mark: Instant) -> tuple[dict[str, bool], Instant]:
        found = self._db.rows(sql.PENDING_GROUPS, (mark,))
        newest = max((waiting for *_, waiting in found), default=mark)  # in the order of commits
        return {name: bool(live) for name, live, _ in found}, newest

    def withdrawing(self) -> list[str]:
        return [name for (name,) in self._db.rows(sql.WITHDRAWING)]

    def pending_sequences(self, group: str, after: int, limit: int) -> list[tuple[int, bool]]:
        no = self._number(group)
        if no is None or limit <= 0:
            return []
        found = self._db.rows(sql.SEQUENCES_PENDING, (no, after, limit))
        return [(sequence, bool(is_episode)) for sequence, is_episode in found]

    def pending_count(self, group: str | None = None, *, most: int = 1 << 62) -> int:
        ((count,),) = self._db.rows(sql.PENDING_COUNT, (group, most))
        return int(count)

    def said_before(self, episode: Episode, limit: int) -> list[Episode]:
        no = self._number(episode.group)
        if no is None or limit <= 0:
            return []
        values = (no, episode.source, episode.reference_time, episode.sequence, limit)
        with self.reading():
            before = [sequence for (sequence,) in self._db.rows(sql.SAID_BEFORE, values)]
            return [episode_of(episode.group, row) for row in self.rows(EPISODES_AT, episode.group, before)]

    def heads(self, groups: Collection[str] | None = None) -> dict[str, GroupHead]:
        if groups is None:
            found = self._db.rows(sql.GROUPS)
            return {
                name: GroupHead(named=True, last=last, last_recorded=at, removals=removals)
                for name, _, last, at, removals in found
            }
        with self._db.snapshot():
            known = {group: self._db.known(group) for group in sorted(groups)}
        return {group: found.head if found else GroupHead() for group, found in known.items()}

    def rows(self, read: Read, group: str, values: Sequence[Any] = ()) -> Iterator[Row]:
        no = self._number(group)
        return iter(()) if no is None else read_rows(self._db.rows, read, no, values)

    def everywhere(self, read: Read, values: Sequence[Any] = ()) -> list[tuple[str, Row]]:
        found = self._db.rows(sql.EVERYWHERE[read], (array(values),))
        return list(zip((row[0] for row in found), restored(read, [row[1:] for row in found]), strict=True))

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
                    found = self._db.rows(statement, (no, entity, as_of, take))
                    newest.update((-created_at, id_) for created_at, id_ in found)
            ids = [id_ for _, id_ in sorted(newest)[:limit]]
            return [fact_of(row) for row in self.rows(FACTS_OF, group, ids)]

    def _number(self, group: str) -> int | None:
        found = self._db.known(group)
        return None if found is None else found.no

    def _counted(self, group: str | None) -> dict[str, GroupCounts]:
        no = None if group is None else self._number(group)
        if group is not None and no is None:
            return {group: GroupCounts()}
        found = counted(*(self._db.rows(each, (no,)) for each in (sql.COUNT_STATES, sql.COUNT_REST)))
        return found if group is None else {group: next(iter(found.values()))}

    def _erase_responses(self, running: RowWriter, change: RowChanges) -> None:
        """Drop cached replies before the rows that name their episodes, so that a kill leaves none behind."""
        if change.clear:
            self._responses.erase(change.group)
        elif gone := change.drops.get(EPISODES):
            heads = running.rows(EPISODE_HEADS_AT, change.group, [sequence for (sequence,) in gone])
            self._responses.erase(change.group, [head[1] for head in heads])

    def _held_episodes(self, group: str, ids: Sequence[str]) -> dict[str, str]:
        """Return episode id -> content hash of the rows with these ids that are not retired."""
        newest = {row[1]: (row[4], row[5]) for row in self.rows(TAKEN_IDS, group, ids)}
        return {id_: digest for id_, (digest, retired_at) in newest.items() if retired_at is None}
