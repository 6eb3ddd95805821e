"""Date phrases of a text, and the instants they mean against the text's reference time (R3).

A pattern finds a phrase and tells its precision; dateparser reads it. "2018" is a year, "March 2024" a month,
"last Friday" a day, "last week" the Monday of that week. "03/04/2025" is ambiguous and is not read as a date.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Literal, NamedTuple

from kgray.times import DAY, Instant, Precision, from_datetime, parse, to_datetime

# since: a period that still goes on; at: a moment; other: a relation that no fact can hold ("before May")
Role = Literal["since", "until", "at", "range", "length", "other"]
Shape = Literal["iso", "day", "week", "month", "year"]
Moment = tuple[Instant, Precision]

_MONTH = (
    r"(?:January|February|March|April|May|June|July|August|September|October|November|December"
    r"|(?:Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)\b\.?)"
)
_WEEKDAY = r"(?:Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday)"
_COUNT = r"(?:\d{1,3}|an?|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|a couple of)"
_YEAR = r"(?:19|20)\d\d"
_NEAR = r"(?:last|next|this|earlier this|later this)"
# In this order: a longer phrase stands before one that is a part of it.
_SHAPES: tuple[tuple[Shape, str], ...] = (
    ("iso", rf"{_YEAR}-\d\d(?:-\d\d)?(?!\d)(?:T[\d:.]+(?:Z|[+-]\d\d:?\d\d)?)?"),
    ("day", rf"(?:the )?\d{{1,2}}(?:st|nd|rd|th)? (?:of )?{_MONTH}(?:,? {_YEAR})?(?!\w)"),
    ("day", rf"{_MONTH} \d{{1,2}}(?:st|nd|rd|th)?(?!\w)(?:,? {_YEAR})?(?!\w)"),
    ("month", rf"{_MONTH},? (?:of )?{_YEAR}(?!\w)"),
    ("day", r"(?i:the day before yesterday|the day after tomorrow|yesterday|tomorrow|today|tonight)\b"),
    ("day", rf"(?i:{_COUNT} (?:days?|weeks?) ago|in {_COUNT} (?:days?|weeks?))\b"),
    ("month", rf"(?i:{_COUNT} months? ago|in {_COUNT} months?|{_NEAR} month)\b"),
    ("year", rf"(?i:{_COUNT} years? ago|in {_COUNT} years?|{_NEAR} year)\b"),
    ("week", rf"(?i:{_NEAR} week)\b"),
    ("day", rf"(?:(?i:last|next|this) )?{_WEEKDAY}(?!\w)"),
    ("month", rf"(?:(?i:last|next|this) )?{_MONTH}(?! ?\d)(?!\w)"),
    ("year", rf"{_YEAR}(?![\w%-]|[.,/:]\d)"),
)
_DATE = re.compile(
    r"(?<![\w$€£.,/:-])(?:" + "|".join(f"(?P<s{i}>{pattern})" for i, (_, pattern) in enumerate(_SHAPES)) + ")"
)
_LENGTH = re.compile(
    rf"\bfor (?:the (?:last|past) |over |about )?({_COUNT}) (day|week|month|year)s?\b", re.IGNORECASE
)
_ROLES: dict[str, Role] = {
    "since": "since", "from": "since", "as of": "since", "starting": "since", "starting in": "since",
    "starting on": "since", "until": "until", "till": "until", "through": "until", "in": "at", "on": "at",
    "during": "at", "around": "at", "by": "other", "before": "other", "after": "other", "of": "other",
    "for": "other",
}  # fmt: skip
_LEAD = re.compile(
    rf"\b({'|'.join(sorted(_ROLES, key=len, reverse=True))}|to)"
    r"(?: (?:early|late|mid|the (?:beginning|start|middle|end) of|about|around))?\s+$",
    re.IGNORECASE,
)


class DateWords(NamedTuple):
    """A date as it is written, and how exact it is."""

    shape: Shape
    words: str


class DatePhrase(NamedTuple):
    """A date with the word before it: text[start:end]. second: the end of a range, "from A to B"."""

    start: int
    end: int
    role: Role
    first: DateWords
    second: DateWords | None = None


def find_dates(text: str, start: int, end: int) -> list[DatePhrase]:
    """Return the date phrases of text[start:end] in order; "from 2010 to 2015" is one."""
    phrases: list[DatePhrase] = []
    lead_before = ""
    for begins, match, lead, date in _dates(text, start, end):
        last = phrases[-1] if phrases else None
        joined = text[last.end : match.start()].strip().lower() if last else ""
        if last and joined in {"to", "until", "till", "through"} and lead_before == "from":
            phrases[-1] = last._replace(end=match.end(), role="range", second=date)
            lead_before = ""
            continue
        lead_before = lead
        # A month or year alone is no date: there is none in "the March report".
        bare = date.shape in {"month", "year"} and " " not in date.words
        if role := _ROLES.get(lead, None if bare else "at"):
            phrases.append(DatePhrase(begins, match.end(), role, date))
    for match in _LENGTH.finditer(text, start, end):
        if not any(one.start < match.end() and match.start() < one.end for one in phrases):
            unit = match[2].lower()
            shape: Shape = "day" if unit in {"day", "week"} else unit  # type: ignore[assignment]  # month, year
            since = DateWords(shape, f"{match[1]} {unit}s ago")
            phrases.append(DatePhrase(match.start(), match.end(), "length", since))
    return phrases


def _dates(text: str, start: int, end: int) -> Iterator[tuple[int, re.Match[str], str, DateWords]]:
    """Yield each date: where its lead word begins, the match, the lead word or "", the date."""
    for match in _DATE.finditer(text, start, end):
        shape = _SHAPES[int((match.lastgroup or "s0")[1:])][0]
        window = max(start, match.start() - 32)
        lead = _LEAD.search(text[window : match.start()])
        begins = window + lead.start() if lead else match.start()
        yield begins, match, lead[1].lower() if lead else "", DateWords(shape, match[0])


def resolve(date: DateWords, reference: Instant, *, future: bool) -> Moment | None:
    """Return the instant (the first of the day, month or year) and its precision.

    future: an open phrase such as "on Friday" or "in March" lies after the reference time; else before.
    None where the phrase names no date ("2026-13-45") or one beyond the calendar.
    """
    try:
        return _resolve(date, reference // DAY, future)
    except (ValueError, OverflowError):
        return None


@lru_cache(maxsize=4096)
def _resolve(date: DateWords, day: int, future: bool) -> Moment | None:  # positional: the cache's key
    shape, words = date.shape, date.words.lower()
    base = to_datetime(day * DAY).replace(tzinfo=None)
    if shape == "iso":
        return parse(words.upper())
    if shape == "week":
        weeks = {"last": -1, "next": 1}.get(words.split()[0], 0)
        return from_datetime(base - timedelta(days=base.weekday()) + timedelta(weeks=weeks)), "day"
    if words.isdigit():
        return parse(words)
    moment = _by_dateparser(*_plain(words, future=future), base)
    if moment is None:
        return None
    if shape == "day":
        return from_datetime(moment), "day"
    first = moment.replace(day=1) if shape == "month" else moment.replace(month=1, day=1)
    return from_datetime(first), shape


def _plain(words: str, *, future: bool) -> tuple[str, bool]:
    """Return a phrase in words that dateparser knows, and whether it lies ahead."""
    words = (
        words.replace("a couple of", "2").replace("the ", "").replace(" of ", " ").replace("tonight", "today")
    )
    if match := re.fullmatch(r"(?:earlier |later )?(last|next|this) (month|year)", words):
        return {"last": f"1 {match[2]} ago", "next": f"in 1 {match[2]}", "this": "today"}[match[1]], future
    if match := re.fullmatch(r"(last|next|this) (\w+\.?)", words):
        return match[2], {"last": False, "this": future, "next": True}[match[1]]
    return words, future


def _by_dateparser(words: str, future: bool, base: datetime) -> datetime | None:  # unpacked from _plain
    import dateparser  # takes 0.2 s, and only texts with such a date need it

    ahead = "future" if future else "past"
    settings = {
        "RELATIVE_BASE": base,
        "TIMEZONE": "UTC",
        "PREFER_DATES_FROM": ahead,
        "PREFER_DAY_OF_MONTH": "first",
    }
    found: datetime | None = dateparser.parse(words, languages=["en"], settings=settings)
    return found and found.replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
