"""`Store.append`, which any process may call while another ingests: a short transaction that locks groups."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from kgray.errors import KgrayError
from kgray.kinds import Key, Kind, Read, Row
from kgray.ports.store import Appending, Patch
from kgray.stores.neo4j import groups as grouped
from kgray.stores.neo4j import statements_by_hand as cypher
from kgray.stores.neo4j.connection import Connection, Running
from kgray.stores.neo4j.groups import LockedGroup
from kgray.stores.neo4j.mapping import named_group
from kgray.stores.neo4j.reading import read_rows
from kgray.stores.neo4j.row_writer import BatchWriter, FoldedBatch
from kgray.times import Instant

T = TypeVar("T")


class AppendingTransaction(Appending):
    """`ports.Appending`: reads go to the server, writes are buffered until `write`."""

    def __init__(self, db: Connection, running: Running, groups: dict[str, LockedGroup]) -> None:
        """Take groups that are locked, so that nobody else changes their logs."""
        self._db, self._running, self._groups = db, running, groups
        self._collected = FoldedBatch()
        self.appended = False

    def rows(self, read: Read, group: str, values: Sequence[Any] = ()) -> list[Row]:
        """Return the rows of a declared read, without what this transaction appended."""
        return list(read_rows(partial(self._db.run, self._running), read, named_group(group), values))

    def take_sequence(self, group: str) -> int:
        """Take the group's next sequence."""
        self.appended = self._groups[group].appended = True
        return self._groups[group].take_sequence()

    def take_record_time(self, group: str, now: Instant) -> Instant:
        """Take a record time past the group's last (R4)."""
        self.appended = True
        return self._groups[group].take_record_time(now)

    def put(self, kind: Kind, group: str, row: Row) -> None:
        """Put a row."""
        self.appended = True
        self._collected.put(group, kind, row)

    def patch(self, group: str, patch: Patch) -> None:
        """Change rows that were in the store before this transaction."""
        self.appended = True
        self._collected.patch(group, patch)

    def drop(self, kind: Kind, group: str, key: Key) -> None:
        """Drop a row."""
        self.appended = True
        self._collected.drop(group, kind, key)

    def write(self) -> None:
        """Send what was appended, and the groups' counters."""
        BatchWriter(self._db, self._running, 0).write(self._collected)
        grouped.keep(self._db, self._running, self._groups.values())


class Appender:
    """Carries out `Store.append` exactly once, even if the answer to its commit was lost.

    Each append creates a KgrayCall node and deletes those of this process's earlier ones. A retry looks for
    the node: if it is there, the earlier attempt was committed, and its value, kept here, is returned.
    """

    def __init__(self, db: Connection) -> None:
        """Nothing is sent here."""
        self._db = db
        self._ended: list[str] = []  # calls whose outcome is known, and whose nodes are left
        self._lock = threading.Lock()

    def close(self) -> None:
        """Take the last calls' nodes away; where the server is out of reach they stay, and harm nothing."""
        with self._lock:
            ended, self._ended = self._ended, []
        if ended:
            with suppress(KgrayError):
                drop = cypher.DROP_CALLS
                self._db.write(lambda running: self._db.run(running, drop, ended=ended), patient=False)

    def append(self, groups: Collection[str], work: Callable[[Appending], T]) -> T:
        """See `ports.Store.append`."""
        call, values = str(uuid.uuid4()), list[T]()
        with self._lock:
            ended = list(self._ended)

        def attempt(running: Running) -> T:
            # Locking waits for an earlier attempt that is still committing; then its node is visible.
            locked = grouped.opened(self._db, running, groups, make=True)
            if values and self._db.run(running, cypher.CALL, id=call):
                return values[-1]
            appending = AppendingTransaction(self._db, running, locked)
            value = work(appending)
            if appending.appended:
                appending.write()
                self._db.run(running, cypher.NEW_CALL, id=call, ended=ended)
                values.append(value)
            return value

        value = grouped.cleared_first(self._db, lambda: self._db.write(attempt))
        if values:
            with self._lock:
                self._ended = [id_ for id_ in self._ended if id_ not in ended] + [call]
        return value
