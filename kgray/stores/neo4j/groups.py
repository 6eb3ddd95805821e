"""Groups inside a transaction: locked in one order, counted, written at its end; deletion of a whole group.

A group may be too large for one transaction (R27). So the transaction that carries out the removal takes the
group's name away, so that nothing of it is read from then on, and notes what is to be deleted. Its rows go in
transactions of their own, ROWS_A_PIECE each; the last one restores the name if something was accepted after
the removal. A process may end in the middle: whoever next appends to the group, writes to it or starts to
ingest finishes the deletion first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kgray.errors import StoreError
from kgray.ports import T, slot_of
from kgray.stores.alike import Counters
from kgray.stores.neo4j import statements
from kgray.stores.neo4j import statements_by_hand as cypher
from kgray.stores.neo4j.connection import Connection, Running
from kgray.stores.neo4j.mapping import group_key, named_group


class BeingCleared(Exception):
    """The group that it names is being deleted in pieces, which the caller has to finish first."""


@dataclass(slots=True, kw_only=True)
class LockedGroup(Counters):
    """A locked group: the columns of LOCK_GROUPS."""

    adopting: str | None  # the token of the copy that is on its way into it
    clearing: int | None  # the sequence of the removal whose rows are going; set while it is copied, too
    waiting: int | None  # when something was last appended, while anything is pending


def locked(
    db: Connection, running: Running, names: Iterable[str], *, make: bool, whole: bool = False
) -> dict[str, LockedGroup]:
    """Lock groups in the order of their ids, the same for all, so that two transactions do not deadlock.

    make    create those that never existed, without a name. Else they are left out
    whole   `check_whole` first
    """
    rows = db.run_rows(running, cypher.LOCK_GROUPS if make else cypher.LOCK_GROUPS_THERE, places_of(names))
    groups = by_name(row for (row,) in rows)
    if whole:
        check_whole(db, groups)
    return groups


def places_of(names: Iterable[str]) -> list[dict[str, Any]]:
    """Return the rows that LOCK_GROUPS and LOCK_GROUPS_THERE take, in the order in which all lock."""
    return sorted(({**_place(name), "name": name} for name in set(names)), key=lambda row: str(row["id"]))


def by_name(rows: Iterable[dict[str, Any]]) -> dict[str, LockedGroup]:
    """Return locked groups from the maps that a statement returned."""
    return {row["asked"]: LockedGroup(**row) for row in rows}


def check_whole(db: Connection, groups: Mapping[str, LockedGroup]) -> None:
    """Raise BeingCleared, which `write` waits out; StoreError where a group is being copied into."""
    for group in groups.values():
        if group.adopting is not None:
            raise StoreError(
                f"group {group.asked!r} is being copied into {db.where}, or a copy of it was cut off: "
                f"nothing can be added before it is whole; run `kgray copy` again, or ingest to clear it"
            )
        if group.clearing is not None:
            raise BeingCleared(group.asked)


def kept(groups: Iterable[LockedGroup]) -> list[dict[str, Any]]:
    """Return the rows of KEEP_GROUPS for locked groups."""
    rows = (_place(group.asked) | asdict(group) for group in groups)
    return sorted(rows, key=lambda row: str(row["id"]))


def keep(db: Connection, running: Running, groups: Iterable[LockedGroup]) -> None:
    """Write back locked groups."""
    db.run_rows(running, cypher.KEEP_GROUPS, kept(groups))


def _place(name: str) -> dict[str, Any]:
    return {"id": group_key(name), "slot": slot_of(name)}


ROWS_A_PIECE = 4_000


def clear_rows(db: Connection, running: Running, group: str, sequence: int) -> bool:
    """Delete some rows of the group up to a sequence; return whether there may be more."""
    left, asked = ROWS_A_PIECE, {"group": group, "group_key": group_key(group), "sequence": sequence}
    for statement in statements.CLEAR.values():
        if left:
            left -= db.run(running, statement, most=left, **asked)[0][0]
    return not left


def finish(db: Connection, name: str) -> None:
    """Delete what is left of a group in pieces, if any is; it is no longer being removed or copied then."""

    def piece(running: Running) -> bool:
        group = locked(db, running, [name], make=False).get(name)
        if group is None or group.clearing is None:
            return True  # another process was faster
        if clear_rows(db, running, name, group.clearing):
            return False
        group.named = db.run(running, cypher.WAITING, **named_group(name))[0][0]
        if group.adopting is not None:  # a copy that was cut off: no sequence was ever taken
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
