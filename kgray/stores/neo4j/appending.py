"""`Store.append`, which any process may call while another ingests: a short transaction that locks groups."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TypeVar

from kgray.errors import KgrayError
from kgray.ports.store import Appending
from kgray.stores.batch import AppendBuffer
from kgray.stores.neo4j import groups as grouped
from kgray.stores.neo4j import statements_by_hand as cypher
from kgray.stores.neo4j.connection import Connection, Running
from kgray.stores.neo4j.row_writer import BatchWriter

T = TypeVar("T")


class Appender:
    """Carries out `Store.append` exactly once, even if the answer to its commit was lost.

    Each append creates a KgrayCall node and deletes those of this process's earlier ones. A retry looks for
    the node: if it is there, the earlier attempt was committed, and its value, kept here, is returned.
    """

    def __init__(self, db: Connection) -> None:
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
        call, values = str(uuid.uuid4()), list[T]()
        with self._lock:
            ended = list(self._ended)

        def attempt(running: Running) -> T:
            # Locking waits for an earlier attempt that is still committing; then its node is visible.
            locked = grouped.opened(self._db, running, groups, make=True)
            if values and self._db.run(running, cypher.CALL, id=call):
                return values[-1]
            appending = AppendBuffer(BatchWriter(self._db, running, 0, locked), locked)
            value = work(appending)
            if appending.finish():
                self._db.run(running, cypher.NEW_CALL, id=call, ended=ended)
                values.append(value)
            return value

        value = grouped.cleared_first(self._db, lambda: self._db.write(attempt))
        if values:
            with self._lock:
                self._ended = [id_ for id_ in self._ended if id_ not in ended] + [call]
        return value
