"""Puts, drops and patches rows of declared kinds, and clears groups.

Erasure (R25, R27) has two steps. Deleted rows are zeroed (secure_delete). Copies that SQLite made earlier
remain: in pages that were rebalanced, and in the write-ahead log. So `Database.compact` rewrites the file and
truncates the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import apsw

from kgray import kinds
from kgray.kinds import Key, Kind, Row
from kgray.ports import Patch, RowChanges
from kgray.rows import computed, pack
from kgray.stores.sqlite import statements as sql
from kgray.stores.sqlite.database import many, one

EVERY_SEQUENCE = (1 << 63) - 1


class RowWriter:
    """Changes rows of groups inside a transaction. no: the number of the group that is changed now."""

    def __init__(self, connection: apsw.Connection, dimensions: int, no: int = 0) -> None:
        """Change nothing yet; dimensions: numbers a vector."""
        self._connection, self._dimensions, self.no = connection, dimensions, no

    def carry_out(self, change: RowChanges) -> None:
        """Clear, drop, put and patch what a change of the group says."""
        if change.clear:
            self.clear(change.sequence)
        elif change.unsettles:
            self._connection.execute(sql.COUNT_REMOVAL, (self.no,))
        for kind, keys in change.drops.items():
            self.drop(kind, keys)
        for kind, rows in change.puts.items():
            self.put(kind, rows)
        for patch in change.patches:
            self.patch(patch)
        if change.erases:
            self._connection.execute(sql.COUNT_ERASURE)

    def put(self, kind: Kind, rows: Sequence[Row]) -> None:
        """Put rows, each with its computed columns."""
        put, stored = sql.PUT[kind], [(self.no, *row) for row in self._stored(kind, rows)]
        if kind is not kinds.STATEMENT_VECTORS:
            self._connection.executemany(put, stored)
            return
        (last,) = one(self._connection, sql.LAST_VECTOR)
        if any(rowid <= last for (rowid,) in self._connection.executemany(put, stored).fetchall()):
            self._connection.execute(sql.COUNT_REMOVAL, (self.no,))

    def drop(self, kind: Kind, keys: Sequence[Key]) -> None:
        """Drop rows by their keys; keys without a row are ignored."""
        self._connection.executemany(sql.DROP[kind], [(self.no, *key) for key in keys])

    def patch(self, patch: Patch) -> None:
        """Change some columns of rows, on which no computed one depends."""
        kind, width = patch.kind, len(patch.kind.key)
        values = _bound(_lists(kind, patch.columns), [row[width:] for row in patch.rows])
        named = ((self.no, *row[:width]) for row in patch.rows)
        bound = [(*new, *name) for new, name in zip(values, named, strict=True)]
        self._connection.executemany(sql.patch(kind, patch.columns), bound)

    def clear(self, sequence: int) -> None:
        """Delete the group's rows: of log kinds those before an entry, of others all of them.

        The group loses its name where nothing but the entry is pending.
        """
        connection, no = self._connection, self.no
        for statement in sql.CLEAR.values():
            connection.execute(statement, {"no": no, "sequence": sequence})
        connection.execute(sql.COUNT_REMOVAL, (no,))
        if all(found == sequence for found, _ in many(connection, sql.SEQUENCES_PENDING, (no, 0, 2))):
            connection.execute(sql.UNNAME_GROUP, (no,))
        connection.execute(sql.COUNT_ERASURE)

    def _stored(self, kind: Kind, rows: Sequence[Row]) -> Sequence[Row]:
        """Return rows as bound, with the computed columns."""
        if kind.computed:
            rows = [(*row, *computed(kind, row, self._dimensions)) for row in rows]
        return _bound(_lists(kind), rows)


def _bound(lists: frozenset[int], rows: Sequence[Row]) -> Sequence[Row]:
    """Return rows as SQLite takes them: tuples of texts, at the indexes `lists`, become JSON."""
    if not lists:
        return rows
    return [tuple([pack(v) if n in lists else v for n, v in enumerate(row)]) for row in rows]


@cache
def _lists(kind: Kind, columns: tuple[str, ...] = ()) -> frozenset[int]:
    """Return the indexes of columns that hold tuples of texts, among these columns or (default) all."""
    texts = {column.name for column in kind.columns if column.type == "texts"}
    return frozenset(n for n, name in enumerate(columns or kind.names) if name in texts)
