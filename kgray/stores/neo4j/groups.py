"""The counters of groups inside a transaction: locked in one order, advanced, written at its end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kgray.errors import StoreError
from kgray.ports.store import GroupHead
from kgray.stores.neo4j import statements_by_hand as cypher
from kgray.stores.neo4j.connection import Connection, Running
from kgray.stores.neo4j.mapping import ended_mark, group_key
from kgray.stores.neo4j.values import Values, portions
from kgray.times import Instant


class BeingCleared(Exception):
    """The group is being deleted in pieces, which the caller has to finish first (clearing.py)."""

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
        return GroupHead(named=self.name is not None, last=self.last, last_recorded=self.last_recorded)


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

    Raises BeingCleared, which `clearing.cleared_first` waits out; StoreError where one is being copied.
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
                "adopting": group.adopting,
                "clearing": group.clearing,
                "cleared_name": None if group.clearing is None else group.asked,
            },
        }
        for group in groups
    ]
    for portion in portions(sorted(values, key=lambda row: str(row["id"]))):
        db.run(running, cypher.KEEP_GROUPS, rows=portion)
