"""What a question says: its content words, phrases, codes, the speakers it names and the dates it mentions.

A pure function of the question, the speakers and the clock. The words of one language are not left out of
another: "die" is what an English question asks about. Their lists are in stopwords.txt, with their sources.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from kgray.dates import mentioned
from kgray.times import Instant
from kgray.words import MAX_QUERY_CHARACTERS, MAX_QUERY_WORDS, plain_words, stem


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a query says.

    text        as asked
    words       its distinct content words in order, as `kgray.words.words` gives them; stop words only where
                nothing else is left
    phrases     what stands in quotation marks, as words in order, of two words or more; Chinese, Japanese and
                Korean as single characters
    codes       those of `words` that hold a digit, or are written in capitals
    speakers    the known speakers that it names, as they are given
    of_somebody whether one of them is no role, and written as a name: "Bill", not "the bill", nor "user"
    topic       the text to embed: without the names of known speakers, unless only stop words are left; roles
                such as "user" stay. With the names in it, what lies near is what speaks of them
    spans       [from, to) of the dates it mentions, microseconds UTC (`kgray.dates.mentioned`)
    """

    text: str
    words: tuple[str, ...]
    phrases: tuple[tuple[str, ...], ...]
    codes: tuple[str, ...]
    speakers: tuple[str, ...]
    of_somebody: bool
    topic: str
    spans: tuple[tuple[Instant, Instant], ...]


class _Names(NamedTuple):
    """Whom a name calls."""

    called: dict[tuple[str, ...], tuple[str, ...]]  # words of whole names, and of first names of one speaker
    longest: int  # words of a name
    unspaced: tuple[str, ...]  # speakers whose names stand in writing that has no spaces


_CAPITALS = re.compile(r"[^\W\d_]{2,}")
_POSSESSIVE = re.compile(r"['’´`]s?(?!\w)", re.IGNORECASE)
_UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3]+")
_WORD = re.compile(rf"{_UNSPACED.pattern}|(?:(?!{_UNSPACED.pattern})[^\W_]|(?<=\w)\u0301)+")
_QUOTES = tuple(zip("“„„«»‹「『《”", "”“”»«›」』》”", strict=True))
_QUOTED = re.compile(
    r'(?<!\w)"([^"]+)"(?!\w)|' + "|".join(f"{first}([^{first}{last}]+){last}" for first, last in _QUOTES)
)
_BETWEEN_NAMES = re.compile(r"[\s_@.,]+")
_ROLES = frozenset("user assistant system human ai bot agent tool model".split())
_TITLES = frozenset("mr mrs ms miss dr prof sir herr frau monsieur madame mme senor senora the".split())
_GENITIVES = frozenset({"de", "nl", "sv", "da", "nb"})  # "Annas Hund": names take an s without an apostrophe
_ALSO_NAMES = frozenset({"will", "may"})  # stop words of English that are names where they have a capital


def read(text: str, *, speakers: Collection[str], now: Instant) -> Question:
    """Read a question; any text, never an error.

    now     what "yesterday" and "last week" count from: the clock, or the last message's time
    """
    start = text[:MAX_QUERY_CHARACTERS]
    plain = plain_words(start)
    code = language_of(plain)
    language = languages()[code]
    found, spans, of_somebody = _named(start, _names(frozenset(speakers)), code)
    capitals = _capitals(start)
    kept = [word for word in plain if word not in language.stops or word in capitals]
    words = tuple(dict.fromkeys([stem(word) for word in kept or plain]))[:MAX_QUERY_WORDS]
    codes = {stem(word) for word in capitals - _ALSO_NAMES} | {word for word in words if _has_digit(word)}
    dated = any(map(_has_digit, plain)) or _dated(start, plain, code)
    return Question(
        text=text,
        words=words,
        phrases=tuple(_phrases(start)),
        codes=tuple(word for word in words if word in codes),
        speakers=found,
        of_somebody=of_somebody,
        topic=_topic(text, spans, language),
        spans=tuple(mentioned(start, now, code)) if dated else (),
    )


def _dated(text: str, plain: list[str], code: str) -> bool:
    """Return whether a text may mention a date: elsewhere than in English it costs 1 ms to know."""
    dates = languages()[code].dates
    unspaced = code in {"zh", "ja", "ko"}
    return code == "en" or not dates.isdisjoint(plain) or (unspaced and any(word in text for word in dates))


def _has_digit(word: str) -> bool:
    return any(map(str.isdigit, word))


def _capitals(text: str) -> set[str]:
    """Return what is written in capitals ("RR-NG", "the WHO"), unless all is; and "May" within a text."""
    if text.isupper():
        return set()
    found: set[str] = set()
    for match in _CAPITALS.finditer(text):
        inside = match[0].istitle() and text[: match.start()].strip() != ""
        if match[0].isupper() or (inside and match[0].lower() in _ALSO_NAMES):
            found.update(plain_words(match[0]))
    return found


def _phrases(text: str) -> Iterator[tuple[str, ...]]:
    for match in _QUOTED.finditer(text):
        plain = plain_words(match[match.lastindex or 0])
        # a phrase of Chinese is found by its characters; pairs stand after them in a text's words
        phrase = tuple(stem(word) for word in plain if len(word) == 1 or not _UNSPACED.match(word))
        if len(phrase) > 1:
            yield phrase


@lru_cache(maxsize=64)
def _names(speakers: frozenset[str]) -> _Names:
    called: dict[tuple[str, ...], tuple[str, ...]] = {}
    firsts: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    for speaker in sorted(speakers):
        spread = [_spread(part) for part in _BETWEEN_NAMES.split(speaker)]
        parts = [tuple([word for word, _, _ in part]) for part in spread if part]
        parts = [part for part in parts if part[0] not in _TITLES] or parts
        name = tuple(chain.from_iterable(parts))
        if name:
            called[name] = (*called.get(name, ()), speaker)
            firsts.setdefault(parts[0], set()).add(name)
    for first, names in firsts.items():
        if len(names) == 1 and len(first[0]) > 1 and first[0] not in _ROLES | languages()["en"].stops:
            called.setdefault(first, called[next(iter(names))])
    unspaced = tuple(name for name in sorted(speakers) if len(name) > 1 and _UNSPACED.match(name))
    return _Names(called, max(map(len, called), default=0), unspaced)


def _spread(text: str) -> list[tuple[str, int, int]]:
    """Return the words of a text, folded and undivided, each with its place."""
    places = []
    for match in _WORD.finditer(text):
        folded = match[0] if _UNSPACED.search(match[0]) else "".join(plain_words(match[0]))
        places.append((folded, match.start(), match.end()))
    return places


def _named(text: str, names: _Names, code: str) -> tuple[tuple[str, ...], list[tuple[int, int]], bool]:
    """Return the speakers that a text names; where, with what makes a name possessive; `of_somebody`.

    The longest name counts.
    """
    spread = _spread(text)
    found: dict[str, None] = {}
    spans: list[tuple[int, int]] = []
    at, of_somebody = 0, False
    while at < len(spread):
        size, speakers = _name_at(text, spread, at, names, code)
        if speakers:
            found.update(dict.fromkeys(speakers))
            end = spread[at + size - 1][2]
            possessive = _POSSESSIVE.match(text, end)
            if spread[at][0] not in _ROLES:
                start = spread[at][1]
                spans.append((start, possessive.end() if possessive else end))
                of_somebody |= text[start].isupper() or not any(name[:1].isupper() for name in speakers)
        at += size
    for name in names.unspaced:
        place = text.find(name)
        if place >= 0 and name not in found:
            found[name] = None
            spans.append((place, place + len(name)))
            of_somebody = True
    return tuple(found), sorted(spans), of_somebody


def _name_at(
    text: str, spread: list[tuple[str, int, int]], at: int, names: _Names, code: str
) -> tuple[int, tuple[str, ...]]:
    word, start, _ = spread[at]
    capital = text[start].isupper()
    if word in languages()[code].stops and not (capital and start):
        return 1, ()  # "will" and "a" are no names
    for size in range(min(names.longest, len(spread) - at), 0, -1):
        words = tuple([folded for folded, _, _ in spread[at : at + size]])
        last = spread[at + size - 1]
        calls = [words]
        if code in _GENITIVES and text[last[1]].isupper() and len(last[0]) > 3 and last[0].endswith("s"):
            calls.append((*words[:-1], last[0][:-1]))
        for call in calls:
            if call in names.called:
                return size, names.called[call]
    return 1, ()


def _topic(text: str, spans: list[tuple[int, int]], language: Language) -> str:
    if not spans:
        return text
    pieces, end = [], 0
    for start, after in spans:
        if start >= end:
            pieces.append(text[end:start])
            end = after
    topic = re.sub(r"\s+([?!.,;:])", r"\1", " ".join("".join([*pieces, text[end:]]).split()))
    return topic if set(plain_words(topic)) - language.stops else text


# ------------------------------------------------------------------------------------ languages


class Language(NamedTuple):
    """Words of one language, plain (`kgray.words.plain_words`)."""

    stops: frozenset[str]
    dates: frozenset[str]  # what tells that a date may be mentioned: names of months, "week", "yesterday"


@cache
def languages() -> dict[str, Language]:
    """Return the languages that questions are read in, by their codes, English first."""
    lines = Path(__file__).with_name("stopwords.txt").read_text(encoding="utf-8").splitlines()
    found = {}
    for line in lines:
        if not line.startswith("#"):
            code, _, rest = line.partition(":")
            stops, _, dates = rest.partition("|")
            found[code] = Language(frozenset(stops.split()), frozenset(dates.split()))
    return found


@cache
def _tells() -> dict[str, list[str]]:
    """Return the languages that each word speaks for."""
    told: dict[str, list[str]] = {}
    for code, language in languages().items():
        for word in language.stops | language.dates:
            told.setdefault(word, []).append(code)
    return told


def language_of(plain: list[str]) -> str:
    """Return the code of the language that covers most of the words; English on a tie."""
    told = _tells()
    covered = Counter(chain.from_iterable(told.get(word, ()) for word in set(plain)))
    return max(languages(), key=covered.__getitem__)
