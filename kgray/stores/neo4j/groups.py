"""Groups inside a transaction: locked in one order, counted, written at its end; deletion of a whole group.

A group goes at once, or in pieces where it is too large for one transaction (R27). In pieces: the transaction
that carries out the removal takes the group's name away, so that nothing of it is read from then on, and
notes what is to be deleted. The pieces follow in transactions of their own; the last one restores the name if
something was accepted after the removal. A process may end in the middle: whoever next appends to the group,
writes to it or starts to ingest finishes the deletion first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from kgray.errors import StoreError
from kgray.ports.store import GroupHead, RowChanges
from kgray.stores.neo4j import statements
from kgray.stores.neo4j import statements_by_hand as cypher
from kgray.stores.neo4j.connection import Connection, Running, Values, portions
from kgray.stores.neo4j.mapping import ended_mark, group_key
from kgray.times import Instant


class BeingCleared(Exception):
    """The group is being deleted in pieces, which the caller has to finish first ."""

    def __init__(self, group: str) -> None:
        super().__init__(group)
        self.group = group


@dataclass(slots=True)
class LockedGroup:
    """A locked group: the columns of LOCK_GROUPS.

    name        None: removed, never there, or not to be read now
    adopting    the token of the copy that is on its way into it
    clearing    the sequence of the removal whose rows are going in pieces
    was_named   whether it had a name when it was locked
    """

    asked: str
    name: str | None
    last: int
    last_recorded: Instant
    removals: int
    adopting: str | None
    clearing: int | None
    was_named: bool

    def take_sequence(self) -> int:
        """Take the next sequence; the group exists from now on."""
        self.name = self.asked
        self.last += 1
        return self.last

    def take_record_time(self, now: Instant) -> Instant:
        """Take a record time: the clock, or one microsecond past the group's last (R4)."""
        self.last_recorded = max(now, self.last_recorded + 1)
        return self.last_recorded

    @property
    def head(self) -> GroupHead:
        """Return its counters in the port's form."""
        return GroupHead(
            named=self.name is not None,
            last=self.last,
            last_recorded=self.last_recorded,
            removals=self.removals,
        )


def locked(db: Connection, running: Running, names: Iterable[str], *, make: bool) -> dict[str, LockedGroup]:
    """Lock groups in the order of their ids, the same for all, so that two transactions do not deadlock.

    make: create those that never existed, without a name. Else they are left out.
    """
    asked = sorted(({"id": group_key(name), "name": name} for name in set(names)), key=lambda row: row["id"])
    statement = cypher.LOCK_GROUPS if make else cypher.LOCK_GROUPS_THERE
    rows = (row for portion in portions(asked) for row in db.run(running, statement, rows=portion))
    return {row[0]: LockedGroup(*row) for row in rows}


def opened(db: Connection, running: Running, names: Iterable[str], *, make: bool) -> dict[str, LockedGroup]:
    """Lock groups that are neither cleared nor copied into.

    Raises BeingCleared, which `cleared_first` waits out; StoreError where one is being copied.
    """
    found = locked(db, running, names, make=make)
    for group in found.values():
        if group.clearing is not None:
            raise BeingCleared(group.asked)
        if group.adopting is not None:
            raise StoreError(
                f"group {group.asked!r} is being copied into {db.where}, or a copy of it was cut off: "
                f"nothing can be added before it is whole; run `kgray copy` again"
            )
    return found


def keep(db: Connection, running: Running, groups: Iterable[LockedGroup]) -> None:
    """Write back locked groups; one that got its name back restores it on the operation that removed it."""
    groups = list(groups)
    named = [group.asked for group in groups if group.name is not None and not group.was_named and group.last]
    if named:
        marks = [{"group": name, "mark": ended_mark(name)} for name in named]
        db.run(running, cypher.NAME_OPERATIONS, rows=marks)
    values: list[Values] = [
        {
            "id": group_key(group.asked),
            "put": {
                "id": group_key(group.asked),
                "name": group.name,
                "last": group.last,
                "last_recorded": group.last_recorded,
                "removals": group.removals,
                "adopting": group.adopting,
                "clearing": group.clearing,
                "cleared_name": None if group.clearing is None else group.asked,
            },
        }
        for group in groups
    ]
    for portion in portions(sorted(values, key=lambda row: str(row["id"]))):
        db.run(running, cypher.KEEP_GROUPS, rows=portion)


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
    if db.run(running, cypher.PENDING_COUNT_LOCKED, group=group.asked)[0][0]:
        group.name = group.asked
        return
    group.name = None
    named = {"group": group.asked, "mark": ended_mark(group.asked), "sequence": sequence}
    db.run(running, cypher.UNNAME_OPERATION, **named)


def finish(db: Connection, name: str) -> None:
    """Delete what is left of a group in pieces, and mark the removal as finished."""

    def piece(running: Running) -> bool:
        group = locked(db, running, [name], make=False).get(name)
        if group is None or group.clearing is None:
            return True  # another process was faster
        if clear_rows(db, running, name, group.clearing, ROWS_A_PIECE) == ROWS_A_PIECE:
            return False
        end(db, running, group, group.clearing)
        group.clearing = None
        keep(db, running, [group])
        return True

    while not db.write(piece):
        pass


def finish_all(db: Connection) -> None:
    """Finish the removals that other processes began and did not finish."""
    for (name,) in db.rows(cypher.CLEARING):
        finish(db, name)


def cleared_first(db: Connection, work: Callable[[], T]) -> T:
    """Run a transaction; if a group in it is being cleared, finish that and run it again."""
    while True:
        try:
            return work()
        except BeingCleared as met:
            finish(db, met.group)
