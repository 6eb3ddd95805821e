"""Groups inside a transaction: locked in one order, numbered on, kept at its end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kgray.errors import StoreError
from kgray.stores.neo4j import statements as cypher
from kgray.stores.neo4j.connection import Connection, Running
from kgray.stores.neo4j.rows import digest, portions
from kgray.times import Instant


@dataclass(slots=True)
class Group:
    """A locked group's counters."""

    name: str
    last: int
    last_recorded: Instant
    removals: int
    adopting: bool = False  # rows of another store are being taken over (adopting.py)

    def take_sequence(self) -> int:
        """Take the next sequence."""
        self.last += 1
        return self.last

    def take_record_time(self, now: Instant) -> Instant:
        """Take a record time: the clock, or one microsecond past the group's last (R4)."""
        self.last_recorded = max(now, self.last_recorded + 1)
        return self.last_recorded


def group_id(name: str) -> str:
    """Return the id of a group's node, which is all that stays of a removed group's name."""
    return digest(name)


def ended_mark(name: str) -> str:
    """Return the `group_id` under which a removed group's last operation stays; `#` is in no group's name."""
    return f"#{digest(name)}"


def locked(db: Connection, running: Running, names: Iterable[str], *, make: bool) -> dict[str, Group]:
    """Lock groups in the order of their ids, the same for all, so that two transactions do not deadlock.

    make: those that are not there are made, and removed ones get their names back. Raises StoreError where
    one is being copied.
    """
    asked = sorted({name: group_id(name) for name in names}.items(), key=lambda item: item[1])
    statement = cypher.NAME_GROUPS if make else cypher.LOCK_GROUPS
    found = {
        row[0]: Group(*row)
        for portion in portions({"id": id_, "name": name} for name, id_ in asked)
        for row in db.run(running, statement, rows=portion)
    }
    for group in found.values():
        if make and group.adopting:
            raise StoreError(
                f"group {group.name!r} is being copied into {db.where}, or a copy of it was cut off: nothing "
                f"can be added before it is whole; run `kgray copy` again"
            )
    return found


def keep(db: Connection, running: Running, groups: Iterable[Group]) -> None:
    """Write the counters of locked groups."""
    values = sorted(
        (
            {
                "id": group_id(group.name),
                "last": group.last,
                "last_recorded": group.last_recorded,
                "removals": group.removals,
            }
            for group in groups
        ),
        key=lambda row: str(row["id"]),
    )
    for portion in portions(values):
        db.run(running, cypher.KEEP_GROUPS, rows=portion)
