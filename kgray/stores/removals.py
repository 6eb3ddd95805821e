"""What pending removals take away: acceptance, previous context and retry must not count on it."""

from __future__ import annotations

from dataclasses import dataclass

from kgray.errors import InputError
from kgray.records import GROUP_NAME, Operation


def check_group(name: str) -> None:
    """Raise InputError for what is no group name."""
    if not GROUP_NAME.fullmatch(name):
        raise InputError(f"{name!r} is no group name: use 1 to 128 of A-Z a-z 0-9 _ . -", field="group")


@dataclass(frozen=True, slots=True)
class Removals:
    """The pending operations that will take episodes away: what is after them is not theirs."""

    operations: tuple[Operation, ...]

    def cover(
        self, sequence: int, names: tuple[str | None, ...], source: str, before: int | None = None
    ) -> bool:
        """Whether one of them (asked before `before`) takes the row with these names away."""
        return any(
            sequence < asked.sequence
            and (before is None or asked.sequence < before)
            and (asked.everything or asked.source == source or any(name in asked.episodes for name in names))
            for asked in self.operations
        )
