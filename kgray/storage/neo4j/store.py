"""The production store: a Neo4j database behind `ports.Store`, shared by all groups."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from kgray.domain.graph import Fact
from kgray.domain.records import Episode
from kgray.domain.times import SECOND, Instant
from kgray.errors import KgrayError, Outrun, StoreError
from kgray.ports import Appending, GroupCounts, GroupHead, RowChanges, ShardMap, Store, T
from kgray.schema import rows as packing
from kgray.schema.kinds import COMMUNITY_RUNS, FactRow, Kind, R, Read, Row
from kgray.storage import transactions
from kgray.storage.neo4j import fence, schema, statements
from kgray.storage.neo4j import groups as grouped
from kgray.storage.neo4j import statements_by_hand as cypher
from kgray.storage.neo4j.connection import PATIENCE_S, PLANNED_ONCE, Connection, Running
from kgray.storage.neo4j.mapping import group_key, named_group
from kgray.storage.neo4j.row_writer import BatchWriter, state_keys, states_of
from kgray.storage.neo4j.statements import storable
from kgray.storage.transactions import (
    EVERY_SEQUENCE,
    SLOTS,
    CombinedBatch,
    WriterLock,
    entries_of,
    portions,
    slots_of,
)
from kgray.system import locks

_Work = Callable[[BatchWriter], None]
_NO_LIMIT = (1 << 31) - 1
_RUNS = COMMUNITY_RUNS.all
_PORTION_ROWS = 500  # of a transaction that copies
# How long an append may take from its look at the clock to its commit to be found by `newly_pending`.
_LATE: Instant = 5 * SECOND


def open_neo4j(
    *,
    uri: str,
    user: str,
    password: str,
    database: str | None = None,
    embedder: str = "",
    dimensions: int = 0,
    folder: Path | None = None,
    create: bool = True,
    patience_s: float = PATIENCE_S,
) -> Neo4jStore:
    """Open the store in a database; create it if the database has none.

    uri         bolt://, neo4j:// or their TLS forms (+s, +ssc); database: None = the user's own
    embedder    identity of the embedder of a new store; an existing store keeps its own
    dimensions  numbers a vector of a new store
    folder      the data folder, whose ingest lock is held while writing; None: only the lease
    create      repair constraints and indexes. False, or no embedder: a database without a store is an error
                that names `kgray init`

    Raises SettingsError if the server refuses the settings; Unavailable at once if it does not answer;
    NoStore; StoreError for another schema, or constraints that cannot be created.
    """
    db = Connection(uri=uri, user=user, password=password, database=database, patience_s=patience_s)
    try:
        server = schema.probe(db)
        vectors = schema.prepare(db, embedder=embedder, dimensions=dimensions, create=create)
        return Neo4jStore(db, server, vectors, folder=folder, complete=create)
    except BaseException:
        db.close()
        raise


class Neo4jStore(Store):
    """`ports.Store` on one database; close it at the end. Threads may read, and write different groups."""

    # 32 episodes, about 0.6 s with vectors of 1,024 numbers. A batch of twice the size was no faster.
    batch = 64
    lanes = 2
    # With the server on the same two busy cores a transaction of 7 changes took 63 ms, of 38 changes 105 ms.
    gather_s = 0.1
    remote = True
    schema_version = schema.VERSION

    def __init__(
        self, db: Connection, server: str, vectors: tuple[str, int], *, folder: Path | None, complete: bool
    ) -> None:
        """vectors: their embedder and dimensions; complete: all constraints and indexes exist."""
        self._db = db
        self.folder = folder
        self.server = server
        self.embedder, self.dimensions = vectors
        self._complete = complete
        self._writer_lock: WriterLock | None = None
        self._adopting: dict[str, str] = {}  # group -> token of this process's copy into it
        self._local = threading.local()
        self._threads = set[str]()  # threads that appended, each by the id of its node

    def append(self, groups: Collection[str], work: Callable[[Appending], T]) -> T:
        # The node of the thread notes each append. If a retry reads its own note, an earlier attempt was
        # committed, and its value, kept in `values`, is the result.
        self._make_complete()
        thread_id, call, values = (
            self._local.__dict__.setdefault("name", str(uuid4())),
            str(uuid4()),
            list[T](),
        )
        self._threads.add(thread_id)

        def attempt(running: Running) -> T:
            # Locking waits for an earlier attempt that is still committing; then its note is visible.
            locked = grouped.locked(self._db, running, groups, make=True, complete=True)
            if values and self._db.run(running, cypher.LAST_CALL, id=thread_id) == [[call]]:
                return values[-1]
            appending = BatchWriter(self._db, running, locked)
            value = work(appending)
            if appending.finish():
                self._db.run(running, cypher.NOTE_CALL, id=thread_id, call=call)
                values.append(value)
            return value

        return grouped.write(self._db, attempt)

    def _make_complete(self) -> None:
        """Repair the schema before the first write: without constraints, two processes may create a node."""
        if not self._complete:
            schema.repair(self._db)
            self._complete = True

    def newly_pending(self, mark: Instant, shard: int | None = None) -> tuple[dict[str, bool], Instant]:
        statement = cypher.PENDING_GROUPS if shard is None else cypher.PENDING_GROUPS_IN_SHARD
        rows = self._db.one_list(statement, mark=mark, shard=shard)
        newest = max((appended_at for _, _, appended_at in rows), default=0)
        return {group: live for group, live, _ in rows}, max(mark, newest - _LATE)

    def withdrawing(self, shard: int | None = None) -> list[str]:
        return [group for (group,) in self._db.rows(cypher.WITHDRAWING, shard=shard)]

    def pending_sequences(self, group: str, sequence: int, limit: int) -> list[tuple[int, bool]]:
        if limit <= 0:
            return []
        parameters = self._named(group) | {"after": max(0, sequence), "limit": limit}
        rows = self._db.rows(cypher.PENDING_SEQUENCES, **parameters)
        return [(sequence, is_episode) for sequence, is_episode in rows]

    def pending_count(
        self, group: str | None = None, *, shard: int | None = None, most: int = 1 << 62
    ) -> int:
        statement = cypher.PENDING_COUNT if shard is None else cypher.PENDING_COUNT_IN_SHARD
        parameters: dict[str, Any] = {"mark": 0, "most": most, "shard": shard}
        if group is not None:
            statement, parameters["group_key"] = cypher.PENDING_COUNT_OF, group_key(group)
        ((count,),) = self._db.rows(statement, **parameters)
        return int(count)

    def said_before(self, episodes: Sequence[Episode], limit: int) -> dict[int, list[int]]:
        if not episodes:
            return {}
        named = self._named(episodes[0].group)
        entries = [[e.sequence, e.source, e.reference_time] for e in episodes]
        rows = self._db.one_list(cypher.SAID_BEFORE, **named, asked=entries, limit=limit)
        result = {int(sequence): list[int](earlier) for sequence, earlier in rows}
        return {e.sequence: result.get(e.sequence, []) for e in episodes}

    @contextmanager
    def writing(
        self, *, epoch: int | None = None, shard: int = 0, shards: int | None = None, shared: bool = False
    ) -> Iterator[int]:
        self._make_complete()
        with ExitStack() as stack:
            if self.folder is not None and shard == 0 and not shared:
                stack.enter_context(locks.ingesting(self.folder))
            lock = stack.enter_context(fence.holding(self._db, epoch=epoch, shard=shard, shards=shards))
            self._writer_lock = lock
            try:
                # Finish the removals that other processes left incomplete.
                for (name,) in self._db.rows(cypher.CLEARING):
                    grouped.finish(self._db, name)
                yield lock.epoch
            finally:
                self._writer_lock = None

    def shard_map(self) -> ShardMap:
        ((shards, rows),) = self._db.rows(cypher.SHARD_MAP)
        owners = dict(rows)  # empty before the first writer
        return ShardMap(shards, [owners.get(slot, slot % shards) for slot in range(SLOTS)])

    def set_shards(self, shards: int) -> None:
        fence.set_shards(self._db, shards)

    def moving(self, slots: Collection[int], shard: int) -> AbstractContextManager[None]:
        return fence.moving(self._db, slots, shard)

    def apply(self, changes: Sequence[RowChanges], *, epoch: int | None = None) -> None:
        # The removal of a group ends a transaction: later transactions delete its rows.
        start = 0
        for at, change in enumerate(changes, 1):
            if change.clear:
                self._apply(changes[start:at], epoch)
                grouped.finish(self._db, change.group)
                start = at
        self._apply(changes[start:], epoch)

    def _apply(self, changes: Sequence[RowChanges], epoch: int | None) -> None:
        """Apply changes in one transaction; only begin the removal of a group."""
        names = {change.group for change in changes}
        parameters = {
            "slots": slots_of(names),
            "groups": grouped.places_of(names),
            "entries": state_keys(entries_of(changes)),
        }

        def work(running: Running) -> None:
            ((locked, rows, states),) = self._db.run(running, PLANNED_ONCE + cypher.BEGIN_WRITE, **parameters)
            fence.check_locked(self._db, locked, self._writer_lock, names, epoch)
            groups = grouped.by_name(rows)
            grouped.check_complete(self._db, groups)
            BatchWriter(self._db, running, groups).carry_out(changes, states_of(states))

        if changes:
            grouped.write(self._db, work)

    def adopt(
        self, group: str, head: GroupHead, rows: Iterable[tuple[Kind[Any], Row]], verify: Callable[[], None]
    ) -> None:
        """Copy a group into the store in portions; a portion with an unknown outcome can be put again.

        Until the copy is complete the group's node has a token and no name, and is marked as being cleared:
        only this process can read the group, appending to it is refused, and the next ingestion deletes the
        rows of a killed process (`groups.finish`).
        """
        token = str(uuid4())
        in_copy = partial(self._in_copy, group, token)
        self._db.write(lambda running: fence.check(self._db, running, self._writer_lock, [group]))
        grouped.finish(self._db, group)
        # Some of the copied entries may be pending.
        counters = {"last": head.last, "last_recorded": head.last_recorded, "appended": True}
        in_copy({"clearing": EVERY_SEQUENCE, **counters})
        try:
            for kind, portion in portions(rows, _PORTION_ROWS):
                batch = CombinedBatch()
                for row in portion:
                    batch.put(kind, group, row)
                in_copy({}, partial(BatchWriter.copy, batch=batch))
            self._adopting[group] = token
            verify()
            in_copy({"named": True, "adopting": None, "clearing": None})
        except BaseException:
            self._undo(group, token)
            raise
        finally:
            self._adopting.pop(group, None)

    def _undo(self, group: str, token: str) -> None:
        with suppress(StoreError):  # another process has taken the group over
            self._in_copy(group, token, {"clearing": EVERY_SEQUENCE})
            grouped.finish(self._db, group)

    def _in_copy(
        self, group: str, token: str, counters: Mapping[str, Any], work: _Work = lambda _: None
    ) -> None:
        """Run a transaction on the copy of a group, and set counters; StoreError if the copy is not ours."""

        def once(running: Running) -> None:
            fence.check(self._db, running, self._writer_lock, [group])
            locked = grouped.locked(self._db, running, [group], make=True)[group]
            if counters.get("clearing") and locked.adopting is None:  # the copy begins
                if locked.last:
                    raise transactions.refuse_existing(self._db.location, locked)
                locked.adopting = token
            if counters.get("named") and locked.named:
                return  # the answer to its commit was lost
            if locked.adopting != token:
                raise StoreError(f"another process has taken group {group!r} over meanwhile: run it again")
            work(BatchWriter(self._db, running, {group: locked}))
            grouped.keep(self._db, running, [replace(locked, **counters)])

        self._db.write(once)

    def compact(self) -> bool:
        return False  # a server's files, logs and backups are its own (docs/neo4j.md, "Removal")

    @contextmanager
    def reading(self, *, still: bool = False) -> Iterator[None]:
        """Make sure that nothing is written while this thread reads inside it; nests.

        Each statement sees the commits before it, and a commit becomes visible in parts. So the state of a
        scanned group (record time, removals; or its runs of communities) is read, under its lock, before the
        first scan and at the end. still: the group stays locked in between
        """
        if getattr(self._local, "scanned", None) is not None:
            yield
            return
        with ExitStack() as stack:
            self._local.locking = stack.enter_context(self._db.transaction()) if still else None
            self._local.scanned = scanned = dict[tuple[str, bool], tuple[object, ...]]()
            stack.callback(setattr, self._local, "scanned", None)
            yield
            for (group, runs), state in scanned.items():
                if self._settled(group, runs=runs) != state:
                    raise Outrun(f"group {group!r} was written while it was read: run it again")

    def _settled(self, group: str, *, runs: bool) -> tuple[object, ...]:
        """Return the state of a group, or of its runs, that each write changes, under the writers' lock."""

        def work(running: Running) -> tuple[object, ...]:
            locked = grouped.locked(self._db, running, [group], make=False).get(group)
            head = (0, 0) if locked is None else (locked.last_recorded, locked.removals)
            ask = partial(self._db.run, running)  # under the lock, earlier commits are completely visible
            published = statements.read_rows(ask, _RUNS, self._named(group), ()) if runs else ()
            return (*head, *published)

        locking: Running | None = self._local.locking
        return self._db.write(work) if locking is None else work(locking)

    def heads(self, groups: Collection[str] | None = None) -> dict[str, GroupHead]:
        names = sorted(set(groups or ()))
        ids = {group_key(group): group for group in names if storable(group)}
        rows = self._db.one_list(cypher.HEADS) if groups is None else []
        if ids:
            rows = self._db.one_list(cypher.HEADS_OF, ids=list(ids))
        result = {}
        for id_, name, adopting, last, last_recorded, removals in rows:
            group: str = ids[id_] if ids else name
            named = name is not None or adopting == self._adopting.get(group, "")
            result[group] = GroupHead(named=named, last=last, last_recorded=last_recorded, removals=removals)
        return result if groups is None else {group: result.get(group, GroupHead()) for group in names}

    def rows(self, read: Read[R], group: str, values: Sequence[Any] = ()) -> Iterator[R]:
        scanned, runs = getattr(self._local, "scanned", None), read is _RUNS
        if read.by is None and scanned is not None and (group, runs) not in scanned:
            scanned[group, runs] = self._settled(group, runs=runs)
        yield from statements.read_rows(self._db.rows, read, self._named(group), values)

    def everywhere(self, read: Read[R], values: Sequence[Any] = ()) -> Iterator[tuple[str, R]]:
        return statements.rows_everywhere(self._db.rows, read, values)

    def facts_at(
        self, group: str, entities: Sequence[str], as_of: Instant | None, limit: int | None
    ) -> list[Fact]:
        ids = [id_ for id_ in dict.fromkeys(entities) if storable(id_)]
        if not ids or limit == 0:
            return []
        take = _NO_LIMIT if limit is None else limit
        rows = self._db.rows(cypher.FACTS_AT, **self._named(group), asked=ids, as_of=as_of, limit=take)
        facts = map(FactRow._make, rows)  # the driver returns a list of episodes
        return [packing.fact(fact._replace(episodes=tuple(fact.episodes))) for fact in facts]

    def counts(self, group: str | None = None) -> dict[str, GroupCounts]:
        heads = self.heads(None if group is None else [group])
        existing = {name for name, head in heads.items() if head.named}
        statements = cypher.COUNT_ALL if group is None else cypher.COUNT
        rows = (self._db.one_list(each, group=group) for each in statements)
        result = transactions.counted(
            *([(name, *row) for name, *row in part if name in existing] for part in rows)
        )
        return {name: result.get(name, GroupCounts()) for name in heads}

    def _named(self, group: str) -> dict[str, Any]:
        return named_group(group, self._adopting.get(group, ""))

    def missing(self) -> list[str]:
        """Return the names of constraints and indexes that are missing, broken or not online."""
        return sorted(schema.flaws_of(self._db))

    def check_writable(self) -> None:
        """Raise StoreError if the server refuses a write."""
        self._db.write(partial(self._db.run, statement=cypher.PROBE))

    def close(self) -> None:
        if self._threads:
            drop = partial(self._db.run, statement=cypher.DROP_CALLS, ids=list(self._threads))
            with suppress(KgrayError):  # the server is away: the nodes stay, and harm nothing
                self._db.write(drop, patient=False)
        self._threads.clear()
        self._db.close()
