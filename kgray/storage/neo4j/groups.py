"""Groups inside a transaction: locked in one order, counted, written at its end; deletion of a whole group.

A group may be too large for one transaction (R27). So the transaction of a removal takes the group's name
away, so that nobody can read the group, and notes the removal's sequence. Later transactions delete the rows,
ROWS_A_PIECE each; the last of them restores the name if later entries were accepted. A process may end in the
middle: the next append or write to the group, or start of ingestion, finishes the deletion first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kgray.errors import StoreError
from kgray.ports import T
from kgray.storage.neo4j import statements
from kgray.storage.neo4j import statements_by_hand as cypher
from kgray.storage.neo4j.connection import Connection, Running
from kgray.storage.neo4j.mapping import group_key, named_group
from kgray.storage.transactions import Counters, slot_of


class BeingCleared(Exception):
    """The named group is being deleted in pieces; the caller must finish that first."""


@dataclass(slots=True, kw_only=True)
class LockedGroup(Counters):
    """A locked group: the columns of LOCK_GROUPS."""

    adopting: str | None  # the token of the copy in progress into it
    clearing: int | None  # the sequence of a removal in progress; set during a copy, too
    waiting: int | None  # the time of the last append, while any entry is pending


def locked(
    db: Connection, running: Running, names: Iterable[str], *, make: bool, complete: bool = False
) -> dict[str, LockedGroup]:
    """Lock groups in the order of their ids, a common order, so that two transactions do not deadlock.

    make      create groups that never existed, without a name; otherwise leave them out
    complete  check the locked groups with `check_complete`
    """
    rows = db.run_rows(running, cypher.LOCK_GROUPS if make else cypher.LOCK_GROUPS_THERE, places_of(names))
    groups = by_name(row for (row,) in rows)
    if complete:
        check_complete(db, groups)
    return groups


def places_of(names: Iterable[str]) -> list[dict[str, Any]]:
    """Return the rows of LOCK_GROUPS and LOCK_GROUPS_THERE, in the common order of locking."""
    return sorted(({**_place(name), "name": name} for name in set(names)), key=lambda row: str(row["id"]))


def by_name(rows: Iterable[dict[str, Any]]) -> dict[str, LockedGroup]:
    """Return locked groups from the maps that a statement returned."""
    return {row["asked"]: LockedGroup(**row) for row in rows}


def check_complete(db: Connection, groups: Mapping[str, LockedGroup]) -> None:
    """Raise BeingCleared, which `write` handles; StoreError if a copy into a group is in progress."""
    for group in groups.values():
        if group.adopting is not None:
            raise StoreError(
                f"group {group.asked!r} is being copied into {db.location}, or a copy of it was cut off: "
                f"nothing can be added before it is whole; run `kgray copy` again, or ingest to clear it"
            )
        if group.clearing is not None:
            raise BeingCleared(group.asked)


def group_rows(groups: Iterable[LockedGroup]) -> list[dict[str, Any]]:
    """Return the rows of KEEP_GROUPS for locked groups."""
    rows = (_place(group.asked) | asdict(group) for group in groups)
    return sorted(rows, key=lambda row: str(row["id"]))


def keep(db: Connection, running: Running, groups: Iterable[LockedGroup]) -> None:
    """Write back locked groups."""
    db.run_rows(running, cypher.KEEP_GROUPS, group_rows(groups))


def _place(name: str) -> dict[str, Any]:
    return {"id": group_key(name), "slot": slot_of(name)}


ROWS_A_PIECE = 4_000


def clear_rows(db: Connection, running: Running, group: str, sequence: int) -> bool:
    """Delete some rows of the group up to a sequence; return True if more may exist."""
    room, parameters = ROWS_A_PIECE, {"group": group, "group_key": group_key(group), "sequence": sequence}
    for statement in statements.CLEAR.values():
        if room:
            room -= db.run(running, statement, most=room, **parameters)[0][0]
    return not room


def finish(db: Connection, name: str) -> None:
    """Delete the remaining rows of a removed group, or of a copy that was cut off, in pieces."""

    def piece(running: Running) -> bool:
        group = locked(db, running, [name], make=False).get(name)
        if group is None or group.clearing is None:
            return True  # another process was faster
        if clear_rows(db, running, name, group.clearing):
            return False
        group.named = db.run(running, cypher.WAITING, **named_group(name))[0][0]
        if group.adopting is not None:  # a copy that was cut off: it never used a sequence
            group.adopting, group.last, group.last_recorded = None, 0, 0
            group.removals += 1
        group.clearing = None
        keep(db, running, [group])
        return True

    while not db.write(piece):
        pass


def write(db: Connection, work: Callable[[Running], T]) -> T:
    """Run a write transaction; if a group in it is being cleared, finish that and run it again."""
    while True:
        try:
            return db.write(work)
        except BeingCleared as met:
            finish(db, *met.args)
