"""What a reply says must be in what was read: names, numbers and dates without a ground are left out (R18).

A model may copy the example of its prompt, or know of things that nobody told. What was read is the episode's
text, its speaker, and the previous context. What does not stand there is dropped and told:

name     with the facts that end at it, where no word of it stands there: as such, inflected ("Annas",
         "Праге", "Helsingissä"), misspelt, inside another word, shortened ("Kathi"), as its initials, or,
         of some places, in another language ("Wien"). Where the texts have letters of another script than
         the name, it may be there in these, and stays
number   with its fact, where neither its digits ("1.5 million" has those of 1500000) nor a word for a number
         stands there
date     alone: the fact stays, and holds or ends as if it had none. A date is there where its day, month or
         year is, or any word of time ("last week", "gestern")

Words of numbers and times are known in some languages. In a text without a common word of one of these,
numbers and dates stay. Triples are not read by a model.
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections.abc import Iterable
from dataclasses import replace
from difflib import SequenceMatcher
from functools import cached_property, lru_cache
from itertools import product
from pathlib import Path

from kgray import times
from kgray.derivation import names
from kgray.ingest.candidates import code, code_match
from kgray.ports import ExtractionRequest
from kgray.prompting.replies import with_entities
from kgray.records import ExtractedFact, Extraction
from kgray.times import Instant

_SPOKEN = re.compile(r"[^\W\d_]+")
_WORDS = re.compile(r"[^\W_]+")
_NUMBERS = re.compile(r"\d[\d.,' \u00a0\u202f]*")
# Names that stand for who speaks in a text that has no speaker.
_SPEAKERS = frozenset("i me user speaker author narrator writer assistant".split())
_WITHOUT_SPACES = frozenset("CJK HIRAGANA KATAKANA THAI LAO KHMER MYANMAR HANGUL".split())
_LIKE = 0.75  # of difflib's ratio: "Microsft", "Munich" beside "München"; "Wien" and "Vienna" have 0.6
_TABLES = tomllib.loads(Path(__file__).with_name("grounding.toml").read_text(encoding="utf-8"))
_PLACES = {name: frozenset(names.folded(local).split()) for name, local in _TABLES["places"].items()}
# Letters that no accent is part of: "Ørsted" is "Orsted" in a reply, "Łukasz" is "Lukasz".
_PLAIN = str.maketrans({"ø": "o", "ł": "l", "đ": "d", "æ": "ae", "œ": "oe", "þ": "th", "ð": "d", "ı": "i"})
_COMMON = frozenset(_TABLES["words"]["common"].split())
_NUMBER_WORDS, _TIME_WORDS = (
    re.compile(rf"\b(?:{'|'.join(_TABLES['words'][name].split())})\b", re.IGNORECASE)
    for name in ("numbers", "times")
)


class _Texts:
    """What was read, prepared for looking things up; what is rarely needed is prepared when it is."""

    def __init__(self, request: ExtractionRequest) -> None:
        episodes = (request.episode, *request.previous)
        self.text = "\n".join(part for e in episodes for part in (e.text, e.speaker or "") if part)
        self.folded = names.folded(self.text).translate(_PLAIN)
        self.words = frozenset(word for word in _WORDS.findall(self.folded) if len(word) > 1)

    @cached_property
    def codes(self) -> list[str]:
        return [word for word in re.findall(r"[^\s,;:!?()\"]+", self.text) if code(word)]

    @cached_property
    def capitalised(self) -> list[str]:
        """Words that may be a short form of a name: "Tom", "Kathi", "Liz"."""
        found = {w.lower() for w in _SPOKEN.findall(self.text) if len(w) > 2 and w[0].isupper()}
        return sorted(found - _COMMON)

    @cached_property
    def scripts(self) -> frozenset[str]:
        return _scripts(self.text)

    @cached_property
    def is_known_language(self) -> bool:
        return not self.words.isdisjoint(_COMMON)

    def has_name(self, name: str) -> bool:
        """Whether a word of a name, its initials, or letters of another script stand in what was read."""
        key = names.key(name).translate(_PLAIN)
        tokens = [token.translate(_PLAIN) for token in names.tokens(name)]
        if not self.words.isdisjoint(tokens) or key in _SPEAKERS:
            return True
        joined = not _scripts(name).isdisjoint(_WITHOUT_SPACES)
        if key in self.folded if joined else _stands(key, self.folded):
            return True
        if any(_is_form(token, word) for token in tokens for word in self.words):
            return True
        if self.scripts - _scripts(name):
            return True
        if any(not self.words.isdisjoint(_PLACES.get(token, ())) for token in tokens):
            return True
        # A short form has letters of a name in order, from its first on, or is a part of it.
        for word, token in product(self.capitalised, tokens):
            if len(word) < len(token) and (word in token or (word[0] == token[0] and _holds(word, token))):
                return True
        match = code_match(name)
        return any(match(word) is not None for word in self.codes) or self._has_initials(name)

    def _has_initials(self, name: str) -> bool:
        """Whether a code takes its letters from words that follow each other."""
        letters = code(name)
        words = _WORDS.findall(self.folded)
        starts = "".join(word[0] for word in words)
        if not letters:
            return False
        if letters in starts or any(letters[0] == w[0] and _holds(letters, w) for w in words):
            return True
        # "NYC" of a text that says "New York"; "VW" of one that says "Volkswagen".
        titles = re.findall(r"\b[A-Z]\w*(?: [A-Z]\w*)+", self.text)
        initials = ("".join(word[0] for word in title.lower().split()) for title in titles)
        return any(map(letters.startswith, initials)) or (
            len(letters) == 2 and any(letters[0] == w[0] and letters[1] in w[1:] for w in self.capitalised)
        )

    def has_number(self, number: str) -> bool:
        """Whether the digits of a number, or a word for one, stand in what was read."""
        wanted = _digits(number)
        if len(wanted) <= 1 and wanted in {"", "1", "2"}:
            return True
        said = {_digits(found) for found in _NUMBERS.findall(self.text)}
        parts = {_digits(part) for found in _NUMBERS.findall(self.text) for part in re.findall(r"\d+", found)}
        if wanted in said | parts or not self.is_known_language:
            return True
        return _NUMBER_WORDS.search(self.text) is not None

    def has_date(self, instant: Instant) -> bool:
        """Whether something in what was read can lead to a date."""
        if not self.is_known_language or _TIME_WORDS.search(self.text):
            return True
        moment = times.to_datetime(instant)
        parts = {str(moment.year), f"{moment.year % 100:02}", str(moment.month), str(moment.day)}
        return any(found.lstrip("0") in parts or found in parts for found in re.findall(r"\d+", self.text))


def ground(extraction: Extraction, request: ExtractionRequest) -> Extraction:
    """Return the extraction without what does not stand in what was read; `dropped` tells of each."""
    read = _Texts(request)
    dropped: list[str] = []
    kept = []
    for place, entity in enumerate(extraction.entities):
        # A key is read from the record by its form; its kind ("Ticket 4711") may be the table's.
        if entity.key_of is not None or read.has_name(entity.name):
            kept.append(place)
        else:
            dropped.append(f"entities[{place}]: {entity.name[:80]!r} is not in the text")
    facts = []
    for place, fact in enumerate(extraction.facts):
        ends = [fact.source] if fact.target is None else [fact.source, fact.target]
        if not set(ends) <= set(kept):
            dropped.append(f"facts[{place}]: it ends at a name that is not in the text")
        elif fact.value is not None and fact.value.type == "number" and not read.has_number(fact.value.value):
            dropped.append(f"facts[{place}]: its number {fact.value.value} is not in the text")
        else:
            dated = _dated(fact, read, request.episode.reference_time)
            dropped += [f"facts[{place}]: a date of it is not in the text"] * (dated != fact)
            facts.append(dated)
    if not dropped:
        return extraction
    whole = replace(extraction, facts=tuple(facts), dropped=(*extraction.dropped, *dropped))
    return with_entities(whole, kept)


def _dated(fact: ExtractedFact, read: _Texts, said_at: Instant) -> ExtractedFact:
    """Return the fact without the dates that nothing leads to, as if they had not been stated (R3)."""
    start, end = fact.valid_from, fact.valid_to
    no_start = start is not None and start != said_at and not read.has_date(start)
    no_end = end is not None and end != said_at and not read.has_date(end)
    if fact.kind == "ended":
        return replace(fact, valid_to=said_at, to_precision="instant", inferred=True) if no_end else fact
    if no_end:
        fact = replace(fact, valid_to=None, to_precision=None)
    if no_start:
        fact = replace(fact, valid_from=said_at, from_precision="instant", inferred=True)
    return fact


@lru_cache(maxsize=65_536)
def _is_form(name: str, word: str) -> bool:
    """Whether a word of a text is an inflection, a misspelling or a compound of a name's token."""
    short, long = sorted((name, word), key=len)
    if len(short) >= 4 and short in long:
        return True
    same = next(
        (at for at, pair in enumerate(zip(name, word, strict=False)) if pair[0] != pair[1]), len(short)
    )
    ending = len(long) - same
    if same >= 5 or (same == 4 and ending <= 3) or (same in (2, 3) and ending <= 2 and len(short) > 2):
        return True
    if same == 0 or len(short) < 4 or len(long) - len(short) > 2:
        return False
    return SequenceMatcher(None, name, word, autojunk=False).ratio() >= _LIKE


def _stands(key: str, text: str) -> bool:
    """Whether a name stands in a text, not as a part of a word."""
    padded = f" {text} "
    places = (match.start() for match in re.finditer(f"(?={re.escape(key)})", padded))
    return any(not padded[at - 1].isalnum() and not padded[at + len(key) :][:1].isalnum() for at in places)


def _holds(letters: str, word: str) -> bool:
    left = iter(word)
    return len(letters) > 2 and all(letter in left for letter in letters)


def _digits(number: str) -> str:
    """Return the digits that count of a number: "1,500,000", "1.5 million" and "0.15e7" have "15"."""
    mantissa = re.split(r"[eE]", number)[0]
    return "".join(c for c in mantissa if c.isdigit()).strip("0")


def _scripts(text: Iterable[str]) -> frozenset[str]:
    """Return the scripts of the letters of a text, such as LATIN, CYRILLIC, CJK."""
    letters = {c for c in text if c.isalpha()}
    return frozenset(unicodedata.name(c, "?").split()[0] for c in letters)
