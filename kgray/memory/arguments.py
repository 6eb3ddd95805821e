"""What callers hand to the verbs, checked: groups, moments, queries."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from kgray import times
from kgray.errors import InputError
from kgray.ports import SearchScope
from kgray.records import GROUP_NAME
from kgray.search import Filters, Query
from kgray.times import Instant

Time = str | int | float | datetime
SCOPES: tuple[SearchScope, ...] = ("fact", "entity", "episode")


def checked_group(group: str) -> None:
    """Raise InputError for what is no group's name."""
    if not GROUP_NAME.fullmatch(group):
        raise InputError(
            f"group {group[:80]!r} is not a name: use 1 to 128 of A-Z a-z 0-9 _ . -", field="group"
        )


def instant_of(value: Time | None, field: str) -> Instant | None:
    """Return a moment as an instant. Raises InputError."""
    if value is None:
        return None
    try:
        return times.parse(value)[0]
    except ValueError as error:
        raise InputError(f"{field}: {error}", field=field) from None


def query_of(
    text: str,
    group: str,
    *,
    as_of: Time | None,
    known_at: Time | None,
    filters: Filters | None,
    **more: Any,  # noqa: ANN401 - the other fields of Query, as they are
) -> Query:
    """Return the checked query. Raises InputError, NotBuilt."""
    return Query(
        text=text,
        group=group,
        as_of=instant_of(as_of, "as_of"),
        known_at=instant_of(known_at, "known_at"),
        filters=filters or Filters(),
        **more,
    )
