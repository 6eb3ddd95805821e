"""Deleting a whole group (R27): at once, or in pieces where it is too large for one transaction.

In pieces: the transaction that carries out the removal takes the group's name away, so that nothing of it is
read from then on, and notes what is to be deleted. The pieces follow in transactions of their own; the last
one restores the name if something was accepted after the removal. A process may end in the middle: whoever
next appends to the group, writes to it or starts to ingest finishes the deletion first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from kgray.ports.store import RowChanges
from kgray.stores.neo4j import groups as grouped
from kgray.stores.neo4j import statements, statements_by_hand
from kgray.stores.neo4j.connection import Connection, Running
from kgray.stores.neo4j.groups import BeingCleared, LockedGroup
from kgray.stores.neo4j.mapping import ended_mark

T = TypeVar("T")

# Rows: 20,600, of 3,000 facts with vectors of 1,024 numbers, took 231 MB of the server's heap at once.
AT_ONCE = 20_000
ROWS_A_PIECE = 4_000
EVERY_SEQUENCE = (1 << 63) - 1
_ALL = EVERY_SEQUENCE


def is_large(db: Connection, change: RowChanges) -> bool:
    """Whether the group that a change clears is too large for one transaction."""
    found = db.rows(statements.GROUP_SIZE, group=change.group, sequence=change.sequence)
    return bool(found[0][0] > AT_ONCE)


def clear_rows(db: Connection, running: Running, group: str, sequence: int, most: int = _ALL) -> int:
    """Delete at most so many rows of the group up to a sequence; return how many."""
    left = most
    for statement in statements.CLEAR.values():
        if left:
            left -= db.run(running, statement, group=group, sequence=sequence, most=left)[0][0]
    return most - left


def end(db: Connection, running: Running, group: LockedGroup, sequence: int) -> None:
    """Take away the name of a cleared group, or restore it where entries are pending in it."""
    if db.run(running, statements_by_hand.PENDING_COUNT_LOCKED, group=group.asked)[0][0]:
        group.name = group.asked
        return
    group.name = None
    named = {"group": group.asked, "mark": ended_mark(group.asked), "sequence": sequence}
    db.run(running, statements_by_hand.UNNAME_OPERATION, **named)


def finish(db: Connection, name: str) -> None:
    """Delete what is left of a group in pieces, and mark the removal as finished."""

    def piece(running: Running) -> bool:
        group = grouped.locked(db, running, [name], make=False).get(name)
        if group is None or group.clearing is None:
            return True  # another process was faster
        if clear_rows(db, running, name, group.clearing, ROWS_A_PIECE) == ROWS_A_PIECE:
            return False
        end(db, running, group, group.clearing)
        group.clearing = None
        grouped.keep(db, running, [group])
        return True

    while not db.write(piece):
        pass


def finish_all(db: Connection) -> None:
    """Finish the removals that other processes began and did not finish."""
    for (name,) in db.rows(statements_by_hand.CLEARING):
        finish(db, name)


def cleared_first(db: Connection, work: Callable[[], T]) -> T:
    """Run a transaction; if a group in it is being cleared, finish that and run it again."""
    while True:
        try:
            return work()
        except BeingCleared as met:
            finish(db, met.group)
