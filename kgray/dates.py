"""Date phrases of a text, and their instants relative to the text's reference time (R3).

A pattern finds a phrase and its precision; dateparser reads it. "2018" is a year, "March 2024" a month,
"last Friday" a day, "last week" the Monday of that week. "03/04/2025" is ambiguous and is not read as a date.
A question may be in other languages: dateparser translates its date words into English first.
"""

from __future__ import annotations

import re
import tomllib
from calendar import monthrange
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

from kgray.times import DAY, Instant, Precision, from_datetime, parse, to_datetime

# since: a period without an end; at: a moment; other: a relation that no fact can store ("before May")
Role = Literal["since", "until", "at", "range", "length", "other"]
Shape = Literal["iso", "day", "week", "month", "year"]
DatedMoment = tuple[Instant, Precision]

_TABLES = tomllib.loads(Path(__file__).with_name("dates.toml").read_text(encoding="utf-8"))
_MONTH = (
    r"(?:January|February|March|April|May|June|July|August|September|October|November|December"
    r"|(?:Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)\b\.?)"
)
_WEEKDAY = r"(?:Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday)"
_COUNT = r"(?:\d{1,3}|an?|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|a couple of)"
_YEAR = r"(?:19|20)\d\d"
_NEAR = r"(?:last|next|this|earlier this|later this)"
_SHAPES: tuple[tuple[Shape, str], ...] = (  # a longer phrase precedes a phrase that is a part of it
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
# A question about May may mean May of any known year: the last years, because memories seldom reach further
# back.
YEARS = 5
MAX_DATED_CHARACTERS = 1000  # of a question; dateparser needs 1 ms for them
_NAMES = "january february march april may june july august september october november december".split()
_NAMES += "monday tuesday wednesday thursday friday saturday sunday".split()
_NAME = re.compile(rf"\b(?:{_MONTH}|{_WEEKDAY})(?!\w)", re.IGNORECASE)
_FIRST_MONTHS = {name: int(month) for month, names in _TABLES["seasons"].items() for name in names.split()}
_SEASON = re.compile(
    rf"(?:\b(?P<near>last|this|next|in|during|the|of) )?(?:\b|(?=[\u4e00-\u9fff]))"
    rf"(?P<name>{'|'.join(_FIRST_MONTHS)})(?:\b|(?<=[\u4e00-\u9fff]))(?:,? (?:of |de )?(?P<year>{_YEAR}))?",
    re.IGNORECASE,
)
_DIGITS = {word: digit for digit, words in _TABLES["numbers"].items() for word in words.split()}
_NUMBER = re.compile(
    rf"(?:(?<!\w)|(?=[二两三四五][天周年个週]))(?:{'|'.join(_DIGITS)})(?= ?\w)(?!月)", re.IGNORECASE
)
_REWRITES = [(re.compile(find, re.IGNORECASE), new) for find, new in _TABLES["rewrites"].items()]
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
    """The words of a date, and its precision."""

    shape: Shape
    words: str


class DatePhrase(NamedTuple):
    """A date with the word before it: text[start:end]. second: the end of a range, "from A to B"."""

    start: int
    end: int
    role: Role
    first: DateWords
    second: DateWords | None = None


def find_dates(text: str, start: int, end: int, *, bare: bool = False) -> list[DatePhrase]:
    """Return the date phrases of text[start:end] in order. bare: a single month or year counts, too."""
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
        # A single month or year is no date: "the March report" has no date.
        alone = not bare and date.shape in {"month", "year"} and " " not in date.words
        if role := _ROLES.get(lead, None if alone else "at"):
            phrases.append(DatePhrase(led.start() if led else match.start(), match.end(), role, date))
    for match in _LENGTH.finditer(text, start, end):
        if not any(phrase.start < match.end() and match.start() < phrase.end for phrase in phrases):
            unit = match[2].lower()
            shape: Shape = "day" if unit in {"day", "week"} else unit  # type: ignore[assignment]  # month, year
            start_date = DateWords(shape, f"{match[1]} {unit}s ago")
            phrases.append(DatePhrase(match.start(), match.end(), "length", start_date))
    return phrases


def resolve(date: DateWords, reference: Instant, *, future: bool) -> DatedMoment | None:
    """Return the instant (the first of the day, month or year) and its precision.

    future: an open phrase such as "on Friday" or "in March" is after the reference time; else before.
    None if the phrase is no date ("2026-13-45") or is beyond the calendar.
    """
    words = date.words.lower()
    try:
        if date.shape == "iso" or words.isdigit():
            return parse(words.upper())
        by_the_clock = words.endswith(("minutes ago", "minute ago", "hours ago", "hour ago"))
        # Days have few values, so that the cache is effective.
        base = reference if by_the_clock else reference // DAY * DAY
        return _relative(date.shape, words, base, future)
    except (ValueError, OverflowError):
        return None


@lru_cache(maxsize=4096)
def _relative(
    shape: Shape, words: str, at: Instant, future: bool
) -> DatedMoment | None:  # positional: a cache's key
    base = to_datetime(at).replace(tzinfo=None)
    if shape == "week":
        weeks = {"last": -1, "next": 1}.get(words.split(maxsplit=1)[0], 0)
        return from_datetime(base - timedelta(days=base.weekday()) + timedelta(weeks=weeks)), "day"
    import dateparser  # the import takes 0.2 s, and only texts with such a date need it

    words, future = _plain(words, future=future)
    settings = {"RELATIVE_BASE": base, "TIMEZONE": "UTC", "PREFER_DAY_OF_MONTH": "first"}
    settings["PREFER_DATES_FROM"] = "future" if future else "past"
    moment = dateparser.parse(words, languages=["en"], settings=settings)
    if moment is None:
        return None
    first = datetime(moment.year, 1 if shape == "year" else moment.month, moment.day if shape == "day" else 1)  # noqa: DTZ001
    return from_datetime(first), "day" if shape == "day" else "month" if shape == "month" else "year"


def _plain(words: str, *, future: bool) -> tuple[str, bool]:
    """Return a phrase in words that dateparser knows, and whether it is in the future."""
    words = words.replace("a couple of", "2").replace("the ", "").replace(" of ", " ")
    words = words.replace("tonight", "today")
    if match := re.fullmatch(r"(?:earlier |later )?(last|next|this) (month|year)", words):
        return {"last": f"1 {match[2]} ago", "next": f"in 1 {match[2]}", "this": "today"}[match[1]], future
    if match := re.fullmatch(r"(last|next|this) (\w+\.?)", words):
        return match[2], {"last": False, "this": future, "next": True}[match[1]]
    return words, future


def mentioned(text: str, reference: Instant, language: str = "en") -> list[tuple[Instant, Instant]]:
    """Return the spans [from, to) of the dates in a question, each once; any text, never an error.

    A day, week, month, season or year is its whole span; "since May" lasts until the reference time. A month
    or day without a year gives a span in each of the last YEARS years, the newest first.
    language: a code of dateparser ("de"); dates in English words are read in any language.
    """
    text = _rewritten(text[:MAX_DATED_CHARACTERS])
    spans = _seasons(text, reference)
    text = _SEASON.sub(" ", text)
    if language != "en":
        text = _rewritten(_english(text, language))
    text = _NAME.sub(lambda match: match[0].capitalize(), text)
    for phrase in find_dates(text, 0, len(text), bare=language != "en"):
        first = _spans(phrase.first, reference)
        second = _spans(phrase.second, reference) if phrase.second else []
        if phrase.role == "range" and first and second:
            first = [(first[0][0], max(first[0][1], second[0][1]))]
        elif phrase.role in {"since", "length"}:
            first = [(start, max(end, reference)) for start, end in first[:1]]
        spans += first
    return list(dict.fromkeys(spans))


def _spans(date: DateWords, reference: Instant) -> list[tuple[Instant, Instant]]:
    if (moment := resolve(date, reference, future=False)) is None:
        return []
    start, words = to_datetime(moment[0]), date.words.lower()
    if "week" in words:
        return [_span(start - timedelta(days=start.weekday()), days=7)]
    months = {"month": 1, "year": 12}.get(moment[1], 0)
    if _NAME.search(words) is None or re.search(r"\d{4}|day|last|next|this", words):
        return [_span(start, months=months)]
    return _yearly(start, reference, months)


def _yearly(start: datetime, reference: Instant, months: int) -> list[tuple[Instant, Instant]]:
    """Return the spans that start at this month and day in the last years, the newest first."""
    newest = to_datetime(reference).year
    years = range(newest, max(newest - YEARS - 1, 0), -1)
    existing = [year for year in years if start.day <= monthrange(year, start.month)[1]]  # 29 February
    spans = [_span(start.replace(year=year), months=months) for year in existing]
    return [span for span in spans if span[0] <= reference][:YEARS]


def _seasons(text: str, reference: Instant) -> list[tuple[Instant, Instant]]:
    """Return the spans of the seasons of the northern half of the earth, of three months each."""
    spans: list[tuple[Instant, Instant]] = []
    today = to_datetime(reference)
    for match in _SEASON.finditer(text):
        name, near, year = match["name"].lower(), (match["near"] or "").lower(), match["year"]
        start = datetime(int(year or today.year), _FIRST_MONTHS[name], 1, tzinfo=UTC)
        if year:
            spans.append(_span(start, months=3))
        elif near or name not in {"fall", "spring"}:
            yearly = _yearly(start, reference, 3)
            ended = [span for span in yearly if span[1] <= reference]
            spans += {"last": ended[:1], "this": yearly[:1], "next": []}.get(near, yearly)
    return spans


def _span(start: datetime, *, days: int = 1, months: int = 0) -> tuple[Instant, Instant]:
    first = from_datetime(start)
    if not months:
        return first, first // DAY * DAY + days * DAY
    months_since_january = start.month - 1 + months
    if start.year + months_since_january // 12 > 9999:  # the calendar ends
        return first, first + DAY
    return first, from_datetime(
        datetime(start.year + months_since_january // 12, months_since_january % 12 + 1, 1, tzinfo=UTC)
    )


def _english(text: str, language: str) -> str:
    """Return the text with its date words in English: "letzte Woche" becomes "1 week ago"."""
    from dateparser.conf import settings  # the import takes 0.3 s, and only such questions need it
    from dateparser.languages.loader import default_loader

    locale = default_loader.get_locale(language)
    text = _abbreviations(language).sub(" ", text)
    text = _NUMBER.sub(lambda match: _DIGITS[match[0].lower()], text)
    text = re.sub(r"\b(март|август)е\b", r"\1а", text, flags=re.IGNORECASE)  # "в марте": the case after "in"
    text = re.sub(r"\b(январ|феврал|апрел|ма|ию[нл]|\w+а?бр)е\b", r"\1я", text, flags=re.IGNORECASE)
    text = str(locale.translate(text, keep_formatting=True, settings=settings))
    if language in {"zh", "ja", "ko"}:
        text = re.sub(r"(?<=[^\W\da-z])(?=[\da-z])|(?<=[\da-z])(?=[^\W\da-z])", " ", text)
        text = re.sub(r"(?<=[a-z])(?=\d)|(?<=\d)(?=[a-z])", " ", text)
    text = re.sub(r"(?<=\d)\.(?= )", "", text)
    for count, near in (("in 1", "next"), ("0", "this"), ("1", "last")):
        text = re.sub(rf"\b{count} (week|month|year)(?: ago)?\b", rf"{near} \1", text)
    return re.sub(r"\bago (\w+) (day|week|month|year)s?\b", r"\1 \2 ago", text)


def _rewritten(text: str) -> str:
    for pattern, new in _REWRITES:
        text = pattern.sub(new, text)
    return text


@lru_cache(maxsize=32)
def _abbreviations(language: str) -> re.Pattern[str]:
    """Return a pattern for short names of days and months that are also words: "so", "sam", "mar"."""
    from dateparser.languages.loader import default_loader

    info = default_loader.get_locale(language).info
    short = []
    for key in _NAMES:
        names = [name.lower() for name in info.get(key, ())]
        short += [name for name in names if len(name) <= min(3, max(map(len, names)) - 2)]
    words = "|".join(sorted(map(re.escape, short), reverse=True))
    return re.compile(rf"(?<![\w.])(?<!\d )(?:{words})(?![\w.])(?! \d)" if words else r"(?!)", re.IGNORECASE)
