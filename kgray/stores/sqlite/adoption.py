"""Copying a group in from another store, invisible to others until it is complete.

Until then its rows belong to a group with a number but no name, and with a digest that no name has. One
small transaction then gives it the name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import AbstractContextManager

import apsw

from kgray import times
from kgray.kinds import Kind, Row
from kgray.ports import GroupHead
from kgray.stores.alike import Adoption, known, portions
from kgray.stores.sqlite import statements as sql
from kgray.stores.sqlite.database import Database, digest, one
from kgray.stores.sqlite.row_writer import RowWriter

_PORTION_ROWS = 1_000  # of a transaction


class StagedGroup(Adoption):
    """A group that is being copied in. no: its number, from `start` on."""

    def __init__(self, db: Database, group: str, head: GroupHead, dimensions: int) -> None:
        self._db, self._group, self._head, self._dimensions = db, group, head, dimensions
        # "#" is in no group's name.
        self._stage = hashlib.sha256(b"#adopting " + group.encode()).digest()
        self.no = 0

    def start(self) -> None:
        with self._db.transaction(durable=True) as connection:
            self._db.check_epoch(connection, [self._group])
            self._refuse_known(connection)
            left = one(connection, sql.GROUP_BY_DIGEST, (self._stage,))
            if left is None:
                connection.execute(sql.NEW_GROUP, (None, self._stage))
                self.no, removals = int(connection.last_insert_rowid()), 0
            else:
                self.no, removals = left[0], left[4] + 1
                self._writer(connection).clear_all(self.no)
            head = (None, self._head.last, self._head.last_recorded, removals, self.no)
            connection.execute(sql.SET_HEAD, head)

    def take(self, rows: Iterable[tuple[Kind, Row]]) -> None:
        """Write the rows, 1,000 a transaction; not durable each: a copy that is cut off starts again."""
        for kind, portion in portions(rows, _PORTION_ROWS):
            with self._db.transaction(durable=False) as connection:
                self._db.check_epoch(connection, [self._group])
                self._writer(connection).put(kind, self.no, portion)

    def standing_in(self) -> AbstractContextManager[None]:
        return self._db.standing_in(self._group, self._stage)

    def finish(self) -> None:
        with self._db.transaction(durable=True) as connection:
            self._db.check_epoch(connection, [self._group])
            self._refuse_known(connection)
            connection.execute(sql.NAME_GROUP, (self._group, digest(self._group), self.no))
            connection.execute(sql.NOTE_WAITING, (times.now(), self.no))
            connection.execute(sql.SETTLE, (self.no,))

    def undo(self) -> None:
        with self._db.transaction(durable=True) as connection:
            row = one(connection, sql.GROUP_BY_DIGEST, (self._stage,))
            if row is not None and row[0] == self.no:
                self._writer(connection).clear_all(self.no)

    def _writer(self, connection: apsw.Connection) -> RowWriter:
        return RowWriter(self._db, connection, (), self._dimensions)

    def _refuse_known(self, connection: apsw.Connection) -> None:
        if held := self._db.group(connection, self._group):
            raise known(self._group, self._db.path.parent, held)
