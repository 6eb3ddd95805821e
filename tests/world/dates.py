"""Dates in texts, and their meaning at their own precision (R3)."""

from __future__ import annotations

from dataclasses import dataclass

from kgray.domain import times
from kgray.domain.times import DAY, Instant
from tests.world.dice import Dice

_MONTHS = """January February March April May June July August September October November December""".split()


@dataclass(frozen=True, slots=True, kw_only=True)
class Date:
    """A date as a text states it.

    instant  the first of it
    iso      at its own precision: 2026, 2026-03, 2026-03-12
    words    as the text has it; relative ones ("3 days ago") stand after a verb, not after "since"
    """

    instant: Instant
    iso: str
    words: str
    relative: bool = False


def midnight(instant: Instant) -> Instant:
    """Return the first instant of its day."""
    return instant - instant % DAY


def dated(
    dice: Dice, instant: Instant, said_at: Instant, *, relative: bool = False, months: bool = False
) -> Date:
    """Return a way to tell the day of `instant`; months: its month alone will do, if the dice say so."""
    moment = times.to_datetime(midnight(instant))
    days = (midnight(said_at) - midnight(instant)) // DAY
    if relative and 1 <= days <= 28:
        return Date(instant=midnight(instant), iso=f"{moment:%Y-%m-%d}", words=_ago(days), relative=True)
    if months and dice.flip(0.25):
        first = moment.replace(day=1)
        return Date(
            instant=times.from_datetime(first),
            iso=f"{first:%Y-%m}",
            words=f"{_MONTHS[first.month - 1]} {first.year}",
        )
    plain = f"{moment.day} {_MONTHS[moment.month - 1]} {moment.year}"
    words = dice.pick((plain, f"{moment:%Y-%m-%d}"))
    return Date(instant=midnight(instant), iso=f"{moment:%Y-%m-%d}", words=words)


def _ago(days: int) -> str:
    if days == 1:
        return "yesterday"
    if days % 7 == 0:
        return "a week ago" if days == 7 else f"{days // 7} weeks ago"
    return f"{days} days ago"
