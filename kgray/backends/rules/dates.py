"""Dates in a text, and the instants they mean, against the text's reference time (R3).

A cheap pattern finds date phrases and tells their shape; dateparser reads them. Its precision is the
shape's: "2018" is a year, "March 2024" a month, "last Friday" a day. "Last week" is that week's Monday,
a day. What is ambiguous ("03/04/2025") or vague ("last summer") is no date.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Literal, NamedTuple

from kgray.times import DAY, Instant, Precision, from_datetime, parse, to_datetime

Role = Literal["since", "until", "at", "range", "length", "other"]
Shape = Literal[
    "iso", "year", "month", "day", "relative_day", "relative_week", "relative_month", "relative_year"
]
Moment = tuple[Instant, Precision]

_MONTH = (
    r"(?:January|February|March|April|May|June|July|August|September|October|November|December"
    r"|(?:Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)\.?)"
)
_WEEKDAY = r"(?:Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday)"
_NUMBER = (
    r"(?:\d{1,3}|an?|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|a couple of|couple of)"
)
_YEAR = r"(?:19|20)\d\d"
_ORDINAL = r"(?:st|nd|rd|th)?"
# Alternatives from the longest to the shortest; the group's name is the shape.
_SHAPES = (
    ("iso", rf"{_YEAR}-\d\d(?:-\d\d)?(?!\d)(?:T[\d:.]+(?:Z|[+-]\d\d:?\d\d)?)?"),
    ("day", rf"(?:the )?\d{{1,2}}{_ORDINAL} (?:of )?{_MONTH}(?:,? {_YEAR})?(?![\w])"),
    ("day", rf"{_MONTH} \d{{1,2}}{_ORDINAL}(?![\w])(?:,? {_YEAR})?(?![\w])"),
    ("day", rf"\d{{1,2}}[./]\d{{1,2}}[./]{_YEAR}(?![\w])"),
    ("month", rf"{_MONTH},? (?:of )?{_YEAR}(?![\w])"),
    (
        "relative_day",
        r"(?i:the day before yesterday|the day after tomorrow|yesterday|tomorrow|today|tonight|last night)\b",
    ),
    ("relative_day", rf"(?i:{_NUMBER} (?:days?|weeks?) ago|in {_NUMBER} (?:days?|weeks?))\b"),
    ("relative_month", rf"(?i:{_NUMBER} months? ago|in {_NUMBER} months?)\b"),
    ("relative_year", rf"(?i:{_NUMBER} years? ago|in {_NUMBER} years?)\b"),
    ("relative_week", r"(?i:(?:last|next|this|earlier this|later this) week)\b"),
    ("relative_month", r"(?i:(?:last|next|this|earlier this|later this) month)\b"),
    ("relative_year", r"(?i:(?:last|next|this|earlier this|later this) year)\b"),
    ("day", rf"(?:(?i:last|next|this|this past|this coming|coming) )?{_WEEKDAY}(?![\w])"),
    ("month", rf"(?:(?i:last|next|this) )?{_MONTH}(?! ?\d)(?![\w])"),
    ("year", rf"{_YEAR}(?![\w%-]|[.,/:]\d)"),
)
_NAMED = "|".join(f"(?P<s{index}>{pattern})" for index, (_, pattern) in enumerate(_SHAPES))
_DATE = re.compile(rf"(?<![\w$€£.,/:-])(?:{_NAMED})")
_HINT = re.compile(
    r"\d{4}|ago\b|[Yy]esterday|[Tt]o(?:day|morrow|night)|[Ll]ast |[Nn]ext |[Tt]his |day\b"
    r"|[Ii]n (?:a|an|\d+|[a-z]+) \w+"
    r"|Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec|\d[./]\d|[Ff]or |\d days|\d weeks"
)
# The words before a date that say what it is; the last group matters.
_LEAD = re.compile(
    r"\b(since|from|until|till|up to|up until|through|in|on|by|as of|effective"
    r"|starting|starting in|starting on"
    r"|beginning|during|before|after|around|at|between|and|to|of|for)"
    r"(?: (?:early|late|mid|the (?:beginning|start|middle|end) of|about|around))?\s+$",
    re.IGNORECASE,
)
_DURATION = re.compile(
    r"\bfor (?:the (?:last|past) |over |about |more than |almost |nearly )?"
    rf"({_NUMBER}) (day|week|month|year)s?\b",
    re.IGNORECASE,
)
_ROLES: dict[str, Role] = {
    "since": "since",
    "from": "since",
    "as of": "since",
    "effective": "since",
    "starting": "since",
    "starting in": "since",
    "starting on": "since",
    "beginning": "since",
    "until": "until",
    "till": "until",
    "up to": "until",
    "up until": "until",
    "through": "until",
    "in": "at",
    "on": "at",
    "during": "at",
    "at": "at",
    "around": "at",
    "by": "other",
    "before": "other",
    "after": "other",
    "of": "other",
    "for": "other",
}
_JOINS = frozenset({"to", "until", "till", "through", "and", "-", "–"})
# A bare month or year is a date only after one of the words above: "the March report" has none.
_BARE = frozenset({"day", "iso", "relative_day", "relative_week", "relative_month", "relative_year"})


class When(NamedTuple):
    """A date phrase: text[start:end], lead word included."""

    start: int
    end: int
    role: Role
    first: tuple[Shape, str]
    second: tuple[Shape, str] | None = None  # the end of a range


class _Raw(NamedTuple):
    start: int
    end: int
    date: int  # where the date itself starts
    lead: str
    value: tuple[Shape, str]


def find(text: str, start: int, end: int) -> list[When]:
    """Return the date phrases of text[start:end], in order, ranges joined."""
    if not _HINT.search(text, start, end):
        return []
    found: list[When] = []
    raws = list(_raws(text, start, end))
    skip = False
    for index, raw in enumerate(raws):
        if skip:
            skip = False
            continue
        after = raws[index + 1] if index + 1 < len(raws) else None
        if after and _joined(text, raw, after):
            found.append(When(raw.start, after.end, "range", raw.value, after.value))
            skip = True
        elif (role := _role(raw)) is not None:
            found.append(When(raw.start, raw.end, role, raw.value))
    found += _durations(text, start, end, found)
    return sorted(found)


def _raws(text: str, start: int, end: int) -> Iterator[_Raw]:
    for match in _DATE.finditer(text, start, end):
        name = match.lastgroup or "s0"
        shape: Shape = _SHAPES[int(name[1:])][0]  # type: ignore[assignment]  # the table's first column
        window = max(start, match.start() - 32)
        lead = _LEAD.search(text[window : match.start()])
        begins = window + lead.start() if lead else match.start()
        yield _Raw(begins, match.end(), match.start(), lead[1].lower() if lead else "", (shape, match[0]))


def _joined(text: str, first: _Raw, second: _Raw) -> bool:
    """Whether two dates are "from A to B", "between A and B" or "2010-2015"."""
    between = text[first.end : second.date].strip().lower()
    if between not in _JOINS:
        return False
    if between in {"-", "–"}:
        return True
    return first.lead in {"from", "between"} if between in {"to", "and"} else first.lead in {"from", "since"}


def _role(raw: _Raw) -> Role | None:
    shape, words = raw.value
    if raw.lead in _ROLES:
        return _ROLES[raw.lead]
    relative = words.lower().startswith(("last", "next", "this"))
    return "at" if shape in _BARE or relative else None


def _durations(text: str, start: int, end: int, found: list[When]) -> Iterator[When]:
    for match in _DURATION.finditer(text, start, end):
        if not any(when.start < match.end() and match.start() < when.end for when in found):
            ago = f"{match[1]} {match[2]}s ago"
            shape: Shape = (
                "relative_day"
                if match[2].lower() in {"day", "week"}
                else ("relative_month" if match[2].lower() == "month" else "relative_year")
            )
            yield When(match.start(), match.end(), "length", (shape, ago))


# ------------------------------------------------------------------------- phrase to instant


def resolve(value: tuple[Shape, str], reference: Instant, *, future: bool) -> Moment | None:
    """Return the instant (the first of the phrase's day, month or year) and its precision.

    future: an open phrase such as "on Friday" or "in March" lies after the reference time; else before.
    None where the phrase names no date ("2026-13-45") or one beyond the calendar.
    """
    try:
        return _resolve(value[0], value[1].lower(), reference // DAY, future)
    except (ValueError, OverflowError):
        return None


def after(moment: Moment) -> Moment | None:
    """Return the first instant after a day, month or year; None for a bare instant or past the calendar."""
    start = to_datetime(moment[0])
    try:
        if moment[1] == "year":
            return from_datetime(start.replace(year=start.year + 1)), "year"
        if moment[1] == "month":
            return from_datetime((start + timedelta(days=31)).replace(day=1)), "month"
        return (from_datetime(start + timedelta(days=1)), "day") if moment[1] == "day" else None
    except (ValueError, OverflowError):
        return None


@lru_cache(maxsize=4096)
def _resolve(shape: Shape, words: str, day: int, future: bool) -> Moment | None:  # cached by value
    base = to_datetime(day * DAY).replace(tzinfo=None)
    if shape == "year":
        return from_datetime(datetime(int(words), 1, 1)), "year"  # noqa: DTZ001 - no zone means UTC
    if shape == "iso":
        return parse(words.upper())
    if shape == "relative_week":
        weeks = -1 if words.startswith("last") else 1 if words.startswith("next") else 0
        monday = base - timedelta(days=base.weekday()) + timedelta(weeks=weeks)
        return from_datetime(monday), "day"
    moment = _parse(*_plain(shape, words, future=future), base)
    if moment is None:
        return None
    if shape in {"month", "relative_month"}:
        return from_datetime(moment.replace(day=1)), "month"
    if shape == "relative_year":
        return from_datetime(moment.replace(month=1, day=1)), "year"
    return from_datetime(moment), "day"


def _plain(shape: Shape, words: str, *, future: bool) -> tuple[str, bool]:
    """Return a phrase in words that dateparser knows, and whether it lies ahead."""
    words = words.replace("a couple of", "2").replace("couple of", "2").removeprefix("the ")
    if shape.startswith("relative"):
        unit = shape.removeprefix("relative_")
        first = words.split()[0]
        if words in {"tonight", "last night"}:
            return ("today" if words == "tonight" else "yesterday"), future
        if first in {"last", "next", "this", "earlier", "later"}:
            step = {"last": f"1 {unit} ago", "next": f"in 1 {unit}"}.get(first, "today")
            return step, future
        return words, future
    for word in ("this past ", "this coming ", "last ", "next ", "this ", "coming "):
        if words.startswith(word):
            ahead = {"last ": False, "this past ": False, "this ": future}.get(word, True)
            return words.removeprefix(word), ahead
    return words.replace(" of ", " "), future


def _parse(words: str, future: bool, base: datetime) -> datetime | None:  # unpacked from _plain
    if match := re.fullmatch(r"(\d{1,2})[./](\d{1,2})[./](\d{4})", words):
        first, second, year = int(match[1]), int(match[2]), int(match[3])
        if "/" in words and first <= 12 and second <= 12 and first != second:  # months of a year
            return None
        return datetime(year, first, second) if second > 12 else datetime(year, second, first)  # noqa: DTZ001
    import dateparser  # 0.2 s, and only texts with such a date need it

    found: datetime | None = dateparser.parse(
        words,
        languages=["en"],
        settings={
            "RELATIVE_BASE": base,
            "TIMEZONE": "UTC",
            "PREFER_DATES_FROM": "future" if future else "past",
            "PREFER_DAY_OF_MONTH": "first",
        },
    )
    if found is None:
        return None
    return found.replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
