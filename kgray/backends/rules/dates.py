"""Date phrases of a text, and the instants they mean against the text's reference time (R3).

A pattern finds a phrase and tells its precision; dateparser reads it. "2018" is a year, "March 2024" a month,
"last Friday" a day, "last week" the Monday of that week. What is ambiguous ("03/04/2025") is no date.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Literal, NamedTuple

from kgray.times import DAY, Instant, Precision, from_datetime, parse, to_datetime

Role = Literal["since", "until", "at", "range", "length", "other"]
Shape = Literal["iso", "numeric", "day", "week", "month", "year"]
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
    ("numeric", rf"\d{{1,2}}[./]\d{{1,2}}[./]{_YEAR}(?!\w)"),
    ("month", rf"{_MONTH},? (?:of )?{_YEAR}(?!\w)"),
    ("day", r"(?i:the day before yesterday|the day after tomorrow|yesterday|tomorrow|today|tonight|last night)\b"),
    ("day", rf"(?i:{_COUNT} (?:days?|weeks?) ago|in {_COUNT} (?:days?|weeks?))\b"),
    ("month", rf"(?i:{_COUNT} months? ago|in {_COUNT} months?)\b"),
    ("year", rf"(?i:{_COUNT} years? ago|in {_COUNT} years?)\b"),
    ("week", rf"(?i:{_NEAR} week)\b"),
    ("month", rf"(?i:{_NEAR} month)\b"),
    ("year", rf"(?i:{_NEAR} year)\b"),
    ("day", rf"(?:(?i:last|next|this|this past|this coming|coming) )?{_WEEKDAY}(?!\w)"),
    ("month", rf"(?:(?i:last|next|this) )?{_MONTH}(?! ?\d)(?!\w)"),
    ("year", rf"{_YEAR}(?![\w%-]|[.,/:]\d)"),
)  # fmt: skip
_DATE = re.compile(
    r"(?<![\w$€£.,/:-])(?:" + "|".join(f"(?P<s{i}>{pattern})" for i, (_, pattern) in enumerate(_SHAPES)) + ")"
)
_LENGTH = re.compile(
    r"\bfor (?:the (?:last|past) |over |about |more than |almost |nearly )?"
    rf"({_COUNT}) (day|week|month|year)s?\b",
    re.IGNORECASE,
)
_ROLES: dict[str, Role] = {
    **dict.fromkeys(("since", "from", "as of", "effective", "starting", "starting in", "starting on"), "since"),
    **dict.fromkeys(("until", "till", "up to", "up until", "through"), "until"),
    **dict.fromkeys(("in", "on", "during", "at", "around"), "at"),
    **dict.fromkeys(("by", "before", "after", "of", "for"), "other"),
}  # fmt: skip
_LEAD = re.compile(
    rf"\b({'|'.join(sorted(_ROLES, key=len, reverse=True))}|between|and|to)"
    r"(?: (?:early|late|mid|the (?:beginning|start|middle|end) of|about|around))?\s+$",
    re.IGNORECASE,
)
_WORDS_AS_NUMBERS = {"a couple of": "2", "the ": "", " of ": " "}


class DateWords(NamedTuple):
    """A date as it is written, and what it is."""

    shape: Shape
    words: str


class DatePhrase(NamedTuple):
    """A date with the word before it: text[start:end]. second: the end of a range, "from A to B"."""

    start: int
    end: int
    role: Role
    first: DateWords
    second: DateWords | None = None


class _Found(NamedTuple):
    start: int
    end: int
    date_start: int
    lead: str
    date: DateWords


def find_dates(text: str, start: int, end: int) -> list[DatePhrase]:
    """Return the date phrases of text[start:end] in order, ranges joined."""
    phrases: list[DatePhrase] = []
    dates = list(_dates(text, start, end))
    joined = False
    for date, following in zip(dates, [*dates[1:], None], strict=False):
        if joined:
            joined = False
        elif following and _is_range(text, date, following):
            phrases.append(DatePhrase(date.start, following.end, "range", date.date, following.date))
            joined = True
        elif role := _role(date):
            phrases.append(DatePhrase(date.start, date.end, role, date.date))
    for match in _LENGTH.finditer(text, start, end):
        if not any(one.start < match.end() and match.start() < one.end for one in phrases):
            unit = match[2].lower()
            shape: Shape = "day" if unit in {"day", "week"} else unit  # type: ignore[assignment]  # month, year
            since = DateWords(shape, f"{match[1]} {unit}s ago")
            phrases.append(DatePhrase(match.start(), match.end(), "length", since))
    return sorted(phrases)


def _dates(text: str, start: int, end: int) -> Iterator[_Found]:
    for match in _DATE.finditer(text, start, end):
        shape = _SHAPES[int((match.lastgroup or "s0")[1:])][0]
        window = max(start, match.start() - 32)
        lead = _LEAD.search(text[window : match.start()])
        begins = window + lead.start() if lead else match.start()
        yield _Found(
            begins, match.end(), match.start(), lead[1].lower() if lead else "", DateWords(shape, match[0])
        )


def _is_range(text: str, first: _Found, second: _Found) -> bool:
    """Whether two dates are "from A to B", "between A and B" or "2010-2015"."""
    between = text[first.end : second.date_start].strip().lower()
    if between in {"-", "–"}:
        return True
    leads = {"to": {"from"}, "and": {"between"}, "until": {"from"}, "till": {"from"}, "through": {"from"}}
    return first.lead in leads.get(between, ())


def _role(date: _Found) -> Role | None:
    if date.lead in _ROLES:
        return _ROLES[date.lead]
    # A month or year alone is no date: there is none in "the March report".
    bare = date.date.shape in {"month", "year"} and not re.match(r"(?i)last|next|this|earl|lat|.* ", date.date.words)
    return None if bare else "at"


# ------------------------------------------------------------------------- phrase to instant


def resolve(date: DateWords, reference: Instant, *, future: bool) -> Moment | None:
    """Return the instant (the first of the day, month or year) and its precision.

    future: an open phrase such as "on Friday" or "in March" lies after the reference time; else before.
    None where the phrase names no date ("2026-13-45"), an ambiguous one, or one beyond the calendar.
    """
    try:
        return _resolve(date, reference // DAY, future)
    except (ValueError, OverflowError):
        return None


def end_of(moment: Moment) -> Moment | None:
    """Return the first instant after a day, month or year; None for a bare instant or past the calendar."""
    start, precision = to_datetime(moment[0]), moment[1]
    try:
        if precision == "year":
            return from_datetime(start.replace(year=start.year + 1)), "year"
        if precision == "month":
            return from_datetime((start + timedelta(days=31)).replace(day=1)), "month"
        return (from_datetime(start + timedelta(days=1)), "day") if precision == "day" else None
    except (ValueError, OverflowError):
        return None


@lru_cache(maxsize=4096)
def _resolve(date: DateWords, day: int, future: bool) -> Moment | None:  # positional: the cache's key
    shape, words = date.shape, date.words.lower()
    base = to_datetime(day * DAY).replace(tzinfo=None)
    if shape == "iso":
        return parse(words.upper())
    if shape == "numeric":
        return _numeric(words)
    if shape == "week":
        weeks = {"last": -1, "next": 1}.get(words.split()[0], 0)
        return from_datetime(base - timedelta(days=base.weekday()) + timedelta(weeks=weeks)), "day"
    if words.isdigit():
        return from_datetime(base.replace(year=int(words), month=1, day=1)), "year"
    moment = _by_dateparser(*_plain(words, future=future), base)
    if moment is None:
        return None
    if shape == "year":
        return from_datetime(moment.replace(month=1, day=1)), "year"
    return (from_datetime(moment.replace(day=1)), "month") if shape == "month" else (from_datetime(moment), "day")


def _numeric(words: str) -> Moment | None:
    """Return the day of "13/04/2025" and "5.3.2024"; "03/04/2025" may be March or April."""
    first, second, year = (int(part) for part in re.split("[./]", words))
    if "/" in words and first <= 12 and second <= 12 and first != second:  # both may be months
        return None
    month, day = (first, second) if second > 12 else (second, first)  # 12 months
    return parse(f"{year}-{month:02}-{day:02}")


def _plain(words: str, *, future: bool) -> tuple[str, bool]:
    """Return a phrase in words that dateparser knows, and whether it lies ahead."""
    for written, plain in _WORDS_AS_NUMBERS.items():
        words = words.replace(written, plain)
    if words in {"tonight", "last night"}:
        return ("today" if words == "tonight" else "yesterday"), future
    if match := re.fullmatch(r"(?:earlier |later )?(last|next|this) (month|year)", words):
        steps = {"last": f"1 {match[2]} ago", "next": f"in 1 {match[2]}", "this": "today"}
        return steps[match[1]], future
    if match := re.fullmatch(r"(this past|this coming|last|next|this|coming) (\w+\.?)", words):
        ahead = {"last": False, "this past": False, "this": future}.get(match[1], True)
        return match[2], ahead
    return words, future


def _by_dateparser(words: str, future: bool, base: datetime) -> datetime | None:  # unpacked from _plain
    import dateparser  # takes 0.2 s, and only texts with such a date need it

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
    return found and found.replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
