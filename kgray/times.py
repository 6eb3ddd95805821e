"""Instants, as integers: microseconds since 1970-01-01T00:00:00Z (R1), and their precision.

They compare, sort and store exactly and are cheap to hash; `datetime` appears only in texts for people.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from typing import Literal

from kgray.errors import InputError

Instant = int  # microseconds since the epoch, UTC
Precision = Literal["instant", "day", "month", "year"]

SECOND: Instant = 1_000_000
DAY: Instant = 86_400 * SECOND
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PARTIAL = re.compile(r"(\d{4})(?:-(\d{2})(?:-(\d{2}))?)?")
_ISO_START = re.compile(r"\d{4}(?:-|$)", re.ASCII)
# Numbers above this are milliseconds: as seconds they would be after the year 5138.
_MILLISECONDS_FROM = 1e11


def now() -> Instant:
    """Return this machine's clock; for record times only, never for dates in texts (R3)."""
    return time.time_ns() // 1000


def from_datetime(moment: datetime) -> Instant:
    """Return the instant of a datetime; without a zone it counts as UTC (R3)."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(microseconds=1)


def to_datetime(instant: Instant) -> datetime:
    """Return the aware UTC datetime of an instant."""
    return _EPOCH + timedelta(microseconds=instant)


def show_as(instant: Instant, precision: Precision) -> str:
    """Return the part of `show` that a precision covers: "2026", "2026-03", "2026-03-01"."""
    return str(show(instant))[: {"year": 4, "month": 7, "day": 10, "instant": 27}[precision]]


def show(instant: Instant | None) -> str | None:
    """Return `2026-01-31T00:00:00.000000Z`, kgray's only printed form of a time."""
    if instant is None:
        return None
    return to_datetime(instant).strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(27, "0")


def parse(value: str | float | datetime) -> tuple[Instant, Precision]:
    """Read ISO 8601, epoch seconds, or (above 1e11) epoch milliseconds; no zone means UTC.

    "2018" is a year, "2018-03" a month, "2018-03-01" a day: their instant is their start.
    Raises ValueError with the reason for anything else.
    """
    if isinstance(value, datetime):
        return from_datetime(value), "instant"
    if isinstance(value, bool):
        raise ValueError(f"{value!r} is not a time")
    if isinstance(value, int | float):
        return _from_number(value), "instant"
    text = value.strip()
    if match := _PARTIAL.fullmatch(text):
        year, month, day = match.groups()
        try:
            start = datetime(int(year), int(month or 1), int(day or 1), tzinfo=UTC)
        except ValueError as error:
            raise ValueError(f"{value!r} is not a date: {error}") from None
        return from_datetime(start), "day" if day else "month" if month else "year"
    try:
        instant = from_datetime(datetime.fromisoformat(text))
        to_datetime(instant)  # a zone may move a moment out of the years 1 to 9999
        return instant, "instant"
    except (ValueError, OverflowError):
        pass
    try:
        return _from_number(float(text)), "instant"
    except ValueError:
        raise ValueError(
            f"{value!r} is not a time: use ISO 8601 (2026-03-01T09:00:00Z) or epoch seconds"
        ) from None


def given(value: object, field: str) -> tuple[Instant, Precision]:
    """Read a user's time like `parse`. Raises InputError that names the field."""
    if isinstance(value, bool) or not isinstance(value, str | int | float | datetime):
        raise InputError(f"{field} must be ISO 8601 or epoch seconds", field=field)
    try:
        return parse(value)
    except ValueError as error:
        raise InputError(f"{field}: {str(error)[:200]}", field=field) from None


def parse_iso(text: str) -> tuple[Instant, Precision]:
    """Read ISO 8601 only, like `parse`: a model that writes 1700 means the year. Raises ValueError."""
    if not _ISO_START.match(text.strip()):
        raise ValueError(f"{text[:80]!r} is not a date: use ISO 8601, such as 2026-03-01")
    return parse(text)


def _from_number(number: float) -> Instant:
    try:
        seconds = number / 1000 if abs(number) > _MILLISECONDS_FROM else number
        instant = round(seconds * SECOND)
        to_datetime(instant)
    except (OverflowError, ValueError):
        raise ValueError(f"{number!r} is not a time: outside the years 1 to 9999") from None
    return instant
