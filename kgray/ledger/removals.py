"""What pending removals take away: acceptance, previous context and retry must not count on it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kgray import rows
from kgray.errors import InputError
from kgray.kinds import OPERATIONS_IN_STATE, PENDING, Read, Row
from kgray.records import GROUP_NAME, Operation


class RowReader(Protocol):
    """What reads declared rows: a store, or a transaction that appends to it."""

    def rows(self, read: Read, group: str, values: Sequence[Any] = ()) -> Iterable[Row]:
        """Return the rows of a declared read."""
        ...


@dataclass(frozen=True, slots=True)
class Removals:
    """The pending retractions and removals of a group, in order. What was accepted after one is not its."""

    operations: tuple[Operation, ...] = ()

    @classmethod
    def of(cls, source: RowReader, group: str) -> Removals:
        """Read those of a group."""
        found = source.rows(OPERATIONS_IN_STATE, group, [PENDING])
        return cls(tuple(rows.operation(group, row) for row in found if row[1] in {"retract", "remove"}))

    def cover(
        self, sequence: int, names: tuple[str | None, ...], source: str, before: int | None = None
    ) -> bool:
        """Whether one of them (with a sequence below `before`) takes the row with these ids away."""
        return any(
            sequence < asked.sequence
            and (before is None or asked.sequence < before)
            and (asked.everything or asked.source == source or any(name in asked.episodes for name in names))
            for asked in self.operations
        )


def check_group(name: str) -> None:
    """Raise InputError for what is no group name."""
    if not GROUP_NAME.fullmatch(name):
        raise InputError(f"{name!r} is no group name: use 1 to 128 of A-Z a-z 0-9 _ . -", field="group")
