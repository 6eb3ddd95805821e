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
from kgray.stores.sqlite.row_writer import EVERY_SEQUENCE, RowWriter

_PORTION_ROWS = 1_000  # of a transaction


class StagedGroup(Adoption):
    """A group that is being copied in. no: its number, from `start` on."""

    def __init__(self, db: Database, group: str, head: GroupHead, dimensions: int) -> None:
        """Write nothing yet."""
        self._db, self._group, self._head, self._dimensions = db, group, head, dimensions
        # "#" is in no group's name.
        self._stage = hashlib.sha256(b"#adopting " + group.encode()).digest()
        self.no = 0

    def start(self) -> None:
        """Create the group's row, without a name."""
        with self._db.transaction(durable=True) as connection:
            self._db.check_epoch(connection)
            self._refuse_known(connection)
            left = one(connection, sql.GROUP_BY_DIGEST, (self._stage,))
            if left is None:
                connection.execute(sql.NEW_GROUP, (None, self._stage))
                self.no = int(connection.last_insert_rowid())
            else:
                self.no = int(left[0])
                self._change(connection).clear(EVERY_SEQUENCE)
            connection.execute(sql.SET_HEAD, (None, self._head.last, self._head.last_recorded, self.no))

    def take(self, rows: Iterable[tuple[Kind, Row]]) -> None:
        """Write the rows, 1,000 a transaction; not durable each: a copy that is cut off starts again."""
        for kind, portion in portions(rows, _PORTION_ROWS):
            with self._db.transaction(durable=False) as connection:
                self._db.check_epoch(connection)
                self._change(connection).put(kind, portion)

    def standing_in(self) -> AbstractContextManager[None]:
        """Let reads of this process find the group under its number."""
        return self._db.standing_in(self._group, self.no)

    def finish(self) -> None:
        """Give the group its name, which makes it visible to everybody."""
        with self._db.transaction(durable=True) as connection:
            self._db.check_epoch(connection)
            self._refuse_known(connection)
            connection.execute(sql.NAME_GROUP, (self._group, digest(self._group), self.no))
            connection.execute(sql.NOTE_WAITING, (times.now(), self.no))
            connection.execute(sql.SETTLE, (self.no,))

    def undo(self) -> None:
        """Delete what was written if this process may still write; else the next copy's `start` does."""
        with self._db.transaction(durable=True) as connection:
            row = one(connection, sql.GROUP_BY_DIGEST, (self._stage,))
            if row is not None and row[0] == self.no:
                self._change(connection).clear(EVERY_SEQUENCE)

    def _change(self, connection: apsw.Connection) -> RowWriter:
        return RowWriter(connection, self._dimensions, self.no)

    def _refuse_known(self, connection: apsw.Connection) -> None:
        held = one(connection, sql.GROUP_BY_DIGEST, (digest(self._group),))
        if held is not None:
            head = GroupHead(named=held[1] is not None, last=held[2])
            raise known(self._group, self._db.path.parent, head)
