"""Copying a group in from another store, invisible to others until it is complete.

Until then its rows belong to a group with a number but no name, and with a digest that no name has. One
small transaction then gives it the name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from itertools import groupby, islice
from operator import itemgetter

import apsw

from kgray.errors import StoreError
from kgray.kinds import Kind, Row
from kgray.ports import GroupHead
from kgray.stores.sqlite import statements as sql
from kgray.stores.sqlite.database import Database, digest, one
from kgray.stores.sqlite.row_writer import EVERY_SEQUENCE, RowWriter

_PORTION_ROWS = 1_000  # of a transaction


class StagedGroup:
    """A group that is being copied in. no: its number, from `start` on."""

    def __init__(self, db: Database, group: str, dimensions: int) -> None:
        """Write nothing yet."""
        self._db, self._group, self._dimensions = db, group, dimensions
        # "#" is in no group's name.
        self._stage = hashlib.sha256(b"#adopting " + group.encode()).digest()
        self.no = 0

    def start(self, head: GroupHead) -> None:
        """Create the group's row without a name; first delete what a killed process left of a copy.

        Raises StoreError where the group exists, or ever did.
        """
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
            connection.execute(sql.SET_HEAD, (None, head.last, head.last_recorded, self.no))

    def take(self, rows: Iterable[tuple[Kind, Row]]) -> None:
        """Write the rows, 1,000 a transaction; not durable each: a copy that is cut off starts again."""
        for kind, pairs in groupby(rows, itemgetter(0)):
            while portion := [row for _, row in islice(pairs, _PORTION_ROWS)]:
                with self._db.transaction(durable=False) as connection:
                    self._db.check_epoch(connection)
                    self._change(connection).put(kind, portion)

    def finish(self) -> None:
        """Give the group its name, which makes it visible to everybody."""
        with self._db.transaction(durable=True) as connection:
            self._db.check_epoch(connection)
            self._refuse_known(connection)
            connection.execute(sql.NAME_GROUP, (self._group, digest(self._group), self.no))

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
        if held is None:
            return
        _, name, last = held
        why = (
            "is there already"
            if name is not None
            else f"was there and was removed: its {last} sequences are never used again"
        )
        raise StoreError(
            f"group {self._group!r} in {self._db.path.parent} {why}; a copy needs a store that never had it"
        )
