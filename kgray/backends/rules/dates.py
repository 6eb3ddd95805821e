"""Date phrases of a text, and the instants they mean against the text's reference time (R3).

A pattern finds a phrase and tells its precision; dateparser reads it. "2018" is a year, "March 2024" a month,
"last Friday" a day, "last week" the Monday of that week. "03/04/2025" is ambiguous and is not read as a date.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Literal, NamedTuple

from kgray.times import DAY, Instant, Precision, from_datetime, parse, to_datetime

# since: a period that still goes on; at: a moment; other: a relation that no fact can hold ("before May")
Role = Literal["since", "until", "at", "range", "length", "other"]
Shape = Literal["iso", "day", "week", "month", "year"]
DatedMoment = tuple[Instant, Precision]

_MONTH = (
    r"(?:January|February|March|April|May|June|July|August|September|October|November|December"
    r"|(?:Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)\b\.?)"
)
_WEEKDAY = r"(?:Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday)"
_COUNT = r"(?:\d{1,3}|an?|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|a couple of)"
_YEAR = r"(?:19|20)\d\d"
_NEAR = r"(?:last|next|this|earlier this|later this)"
_SHAPES: tuple[tuple[Shape, str], ...] = (  # a longer phrase stands before one that is a part of it
    ("iso", rf"{_YEAR}-\d\d(?:-\d\d)?(?!\d)(?:T[\d:.]+(?:Z|[+-]\d\d:?\d\d)?)?"),
    ("day", rf"(?:the )?\d{{1,2}}(?:st|nd|rd|th)? (?:of )?{_MONTH}(?:,? {_YEAR})?(?!\w)"),
    ("day", rf"{_MONTH} \d{{1,2}}(?:st|nd|rd|th)?(?!\w)(?:,? {_YEAR})?(?!\w)"),
    ("month", rf"{_MONTH},? (?:of )?{_YEAR}(?!\w)"),
    ("day", r"(?i:the day before yesterday|the day after tomorrow|yesterday|tomorrow|today|tonight)\b"),
    ("day", rf"(?i:{_COUNT} (?:minutes?|hours?|days?|weeks?) ago|in {_COUNT} (?:days?|weeks?))\b"),
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
_LENGTH = re.compile(rf"(?i:\bfor (?:the (?:last|past) |over |about )?({_COUNT}) (day|week|month|year)s?\b)")
_LEADS: dict[Role, str] = {
    "since": "since|from|as of|starting in|starting on|starting",
    "until": "until|till|through",
    "at": "in|on|during|around",
    "other": "by|before|after|of|for",
}
_ROLES = {lead: role for role, leads in _LEADS.items() for lead in leads.split("|")}
_LEAD = re.compile(
    rf"\b({'|'.join(_LEADS.values())}|to)"
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
    for match in _DATE.finditer(text, start, end):
        date = DateWords(_SHAPES[int((match.lastgroup or "s0")[1:])][0], match[0])
        led = _LEAD.search(text, max(start, match.start() - 32), match.start())
        lead = led[1].lower() if led else ""
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
            phrases.append(DatePhrase(led.start() if led else match.start(), match.end(), role, date))
    for match in _LENGTH.finditer(text, start, end):
        if not any(one.start < match.end() and match.start() < one.end for one in phrases):
            unit = match[2].lower()
            shape: Shape = "day" if unit in {"day", "week"} else unit  # type: ignore[assignment]  # month, year
            since = DateWords(shape, f"{match[1]} {unit}s ago")
            phrases.append(DatePhrase(match.start(), match.end(), "length", since))
    return phrases


def resolve(date: DateWords, reference: Instant, *, future: bool) -> DatedMoment | None:
    """Return the instant (the first of the day, month or year) and its precision.

    future: an open phrase such as "on Friday" or "in March" lies after the reference time; else before.
    None where the phrase names no date ("2026-13-45") or one beyond the calendar.
    """
    words = date.words.lower()
    try:
        if date.shape == "iso" or words.isdigit():
            return parse(words.upper())
        by_the_clock = words.endswith(("minutes ago", "minute ago", "hours ago", "hour ago"))
        # Of days: few values, so that the cache holds them.
        base = reference if by_the_clock else reference // DAY * DAY
        return _relative(date.shape, words, base, future)
    except (ValueError, OverflowError):
        return None


@lru_cache(maxsize=4096)
def _relative(shape: Shape, words: str, at: Instant, future: bool) -> DatedMoment | None:
    base = to_datetime(at).replace(tzinfo=None)
    if shape == "week":
        weeks = {"last": -1, "next": 1}.get(words.split(maxsplit=1)[0], 0)
        return from_datetime(base - timedelta(days=base.weekday()) + timedelta(weeks=weeks)), "day"
    import dateparser  # takes 0.2 s, and only texts with such a date need it

    words, future = _plain(words, future=future)
    settings = {"RELATIVE_BASE": base, "TIMEZONE": "UTC", "PREFER_DAY_OF_MONTH": "first"}
    settings["PREFER_DATES_FROM"] = "future" if future else "past"
    found = dateparser.parse(words, languages=["en"], settings=settings)
    if found is None:
        return None
    first = datetime(found.year, 1 if shape == "year" else found.month, found.day if shape == "day" else 1)  # noqa: DTZ001
    return from_datetime(first), "day" if shape == "day" else "month" if shape == "month" else "year"


def _plain(words: str, *, future: bool) -> tuple[str, bool]:
    """Return a phrase in words that dateparser knows, and whether it lies ahead."""
    words = words.replace("a couple of", "2").replace("the ", "").replace(" of ", " ")
    words = words.replace("tonight", "today")
    if match := re.fullmatch(r"(?:earlier |later )?(last|next|this) (month|year)", words):
        return {"last": f"1 {match[2]} ago", "next": f"in 1 {match[2]}", "this": "today"}[match[1]], future
    if match := re.fullmatch(r"(last|next|this) (\w+\.?)", words):
        return match[2], {"last": False, "this": future, "next": True}[match[1]]
    return words, future
