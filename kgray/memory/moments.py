"""Moments, limits and rows, as the methods of a memory take and return them."""

from __future__ import annotations

from datetime import datetime

from kgray.domain import times
from kgray.domain.times import Instant
from kgray.errors import InputError

MAX_ROWS = 1000
When = str | int | float | datetime  # ISO 8601, epoch seconds, or a datetime


def instant_of(value: When | None, field: str) -> Instant | None:
    """Return the instant of an argument. Raises InputError with the argument's name."""
    return None if value is None else times.given(value, field)[0]


def check_limit(limit: int, maximum: int = MAX_ROWS) -> None:
    """Raise InputError for a limit that is not 1 to `maximum`."""
    if not 1 <= limit <= maximum:
        raise InputError(f"limit is {limit}: use 1 to {maximum}", field="limit")
