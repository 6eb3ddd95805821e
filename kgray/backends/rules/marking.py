"""One sentence as a list of units: words, proper names, dates and amounts of money.

Names are runs of capitals, product names with digits, and titles in quotation marks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import pairwise
from typing import NamedTuple

from kgray.backends.rules import words
from kgray.backends.rules.phrases import PhraseTable
from kgray.backends.rules.sentences import Sentence, Token
from kgray.dates import DatePhrase, find_dates
from kgray.records import Value, clean_number, clean_text

_MAX_NOUNS = 5
_QUOTES = frozenset("\"“”«»'‘`")
_SIGNS_IN_NAMES = "'’&/%$€£#@*+=_"  # what follows one of these belongs to what stands before it

_NUMBER = r"\d{1,15}(?:[,']\d{3})*(?:\.\d{1,9})?"
_SCALE = r"(?:\s?(?:k|K|m|M|million|billion)\b)?"
_PRICE = re.compile(
    rf"(?P<sign>[$€£¥₹₽₩])\s?(?P<a>{_NUMBER})(?P<sa>{_SCALE})(?![-–]?\d)"
    rf"|(?P<code>[A-Z]{{3}})\s(?P<b>{_NUMBER})(?P<sb>{_SCALE})(?![\w])"
    rf"|(?<![\w.,])(?P<c>{_NUMBER})(?P<sc>{_SCALE})\s?"
    r"(?P<unit>[$€£]|[A-Z]{3}\b|(?:dollars?|bucks|euros?|pounds?|yen|rupees|francs)\b)"
)
_SCALES = {"": 1, "k": 1_000, "m": 1_000_000, "million": 1_000_000, "billion": 1_000_000_000}
_MAX_NAME = 120  # characters; a longer run of capitals is a heading or noise
_TITLE = re.compile(r"([\"“«])([A-Z][\w'’-]*(?: (?:[A-Z0-9][\w'’-]*|of|the|and|a|in|to|for)){0,5})[\"”»]")
_MODEL = re.compile(r"[A-Z]+[a-z]*-?\d[\w.-]*")
_NO_MODEL = re.compile(r"[QH][1-4]|[A-Z]{2,}-\d+")  # a quarter, the number of a ticket


class FactEnd(NamedTuple):
    """A subject or object: an entity by name, or a value. span: [start, end) in the text, or None."""

    name: str
    type: str = ""
    span: tuple[int, int] | None = None
    value: Value | None = None
    is_noun_phrase: bool = False


@dataclass(slots=True)
class KnownWords:
    """What the rest of the text shows about words, all lower case."""

    persons: set[str] = field(default_factory=set)  # speakers, and each word of their names
    lowers: set[str] = field(default_factory=set)  # written without a capital somewhere

    def add_person(self, name: str) -> None:
        """Note a person's full name and its words."""
        self.persons |= {name.lower(), *name.lower().split()}


class Unit(NamedTuple):
    """A word, or a name, date or amount as a whole; [start, end) in the text. low: "" unless a word."""

    start: int
    end: int
    low: str = ""
    name: FactEnd | None = None
    date: DatePhrase | None = None
    price: Value | None = None


_NOTHING = Unit(0, 0)


class MarkedSentence:
    """A sentence as units; adverbs that change nothing ("now", "also") are left out."""

    def __init__(
        self,
        text: str,
        sentence: Sentence,
        known: KnownWords,
        table: PhraseTable,
        speaker: FactEnd | None,
        type_of: Callable[[str], str],
    ) -> None:
        """speaker: what "I" means. type_of: a name's type as known from the text before; "" = unknown."""
        self.text, self.sentence, self.table = text, sentence, table
        self.speaker, self.type_of = speaker, type_of
        start, end = sentence.start, sentence.end
        marks = [Unit(d.start, d.end, date=d) for d in find_dates(text, start, end)]
        marks += find_prices(text, start, end)
        self.names: list[FactEnd] = []
        for outer, name in find_names(text, sentence, known, [(m.start, m.end) for m in marks], table.verbs):
            found = name._replace(type=name.type or type_of(name.name))
            self.names.append(found)
            marks.append(Unit(*outer, name=found))
        units = self._merged(sorted(marks, key=lambda mark: (mark.start, -mark.end)))
        self.states_something = not (sentence.question or sentence.quoted or self._hedged(units))
        self.units = [unit for unit in units if unit.low not in words.ADVERBS]

    def _merged(self, marks: list[Unit]) -> list[Unit]:
        """Return the marks, and a unit for each token that none of them covers."""
        units: list[Unit] = []
        waiting = marks[::-1]
        for token in self.sentence.tokens:
            while waiting and waiting[-1].end <= token.start:
                waiting.pop()
            if not waiting or token.start < waiting[-1].start:
                units.append(Unit(token.start, token.end, token.low))
            elif not units or units[-1] != waiting[-1]:
                units.append(waiting[-1])
        return units

    def _hedged(self, units: list[Unit]) -> bool:
        """Whether it may not be so, or somebody else says it: "maybe", "if", "Bob said", a quotation."""
        said = [unit for unit in units if unit.low]
        step = 2 if len(units) > 1 and units[1].low == "," else 1
        if len(units) > step and units[0].low in words.IRONIC and units[step].low == "and":
            return True
        hedged = any(self.text[unit.start : unit.end] in words.HEDGES for unit in said)
        lows = {unit.low for unit in said}
        # "I don't always like coffee" does not say that I don't like it.
        partly = lows & words.NEGATIONS and lows & words.PARTLY
        first = bool(partly) or (bool(said) and said[0].low in words.HEDGES)
        return hedged or first or any(unit.low in _QUOTES for unit in said)

    def unit(self, at: int) -> Unit:
        """Return a unit; an empty one outside the sentence."""
        return self.units[at] if 0 <= at < len(self.units) else _NOTHING

    def low(self, at: int) -> str:
        return self.unit(at).low

    def name(self, at: int) -> FactEnd | None:
        return self.unit(at).name

    def is_border(self, at: int) -> bool:
        """Whether a clause may end before a unit: at a sign, an "and", the sentence's end."""
        if at >= len(self.units):
            return True
        low, end = self.low(at), self.units[at].end
        if low in {"-", "–"} and not self.text[end : end + 1].isspace():
            return False  # "$90-100"
        return low in {"and", "but"} or (low != "" and not low[0].isalnum() and low[0] not in _SIGNS_IN_NAMES)

    def noun_phrases(self, at: int) -> list[tuple[FactEnd, int]]:
        """Return the noun phrases that begin at a unit, the longest first: "the office printer"."""
        start = at + (self.low(at) in words.DETERMINERS)
        while self.low(start) in words.PLAIN_ADJECTIVES:
            start += 1
        end = start
        while end - start < _MAX_NOUNS and (self.name(end) or self._is_noun(self.low(end))):
            end += 1
        return [(self._noun_phrase(at, start, stop), stop) for stop in range(end, start, -1)]

    def _noun_phrase(self, at: int, start: int, end: int) -> FactEnd:
        name = self.name(start)
        if name and end == start + 1:
            return name._replace(is_noun_phrase=start > at)
        last = self.name(end - 1)
        if last and not any(map(self.name, range(start, end - 1))):
            return last  # "the ticket KS-20871", "my colleague Ada Lind"
        span = (self.units[start].start, self.units[end - 1].end)
        surface = self.text[slice(*span)]
        if self.low(start).endswith("ing") and start == at:
            return FactEnd(surface, value=Value("text", clean_text(surface)), is_noun_phrase=True)
        return FactEnd(surface, self.type_of(surface), span, is_noun_phrase=True)

    def _is_noun(self, low: str) -> bool:
        adverb = low.endswith("ly") and len(low) > 4  # not "fly"
        if not low[:1].isalpha() or adverb or low in words.FUNCTION_WORDS:
            return False
        forms = {form for known in self.table.verbs.get(low, {}).values() for form in known}
        return "base" in forms or forms.isdisjoint({"past", "participle"})

    def text_of(self, first: int, end: int) -> str:
        """Return the words of units [first, end)."""
        return clean_text(self.text[self.units[first].start : self.units[end - 1].end]) if end > first else ""


def find_prices(text: str, start: int, end: int) -> list[Unit]:
    """Return the amounts of money in text[start:end], in order."""
    found = []
    for match in _PRICE.finditer(text, start, end):
        raw = match["a"] or match["b"] or match["c"]
        scale = (match["sa"] or match["sb"] or match["sc"] or "").strip().lower()
        word = match["sign"] or match["code"] or match["unit"]
        unit = word if word.lower() in words.CURRENCIES else words.CURRENCY_OF.get(word.lower())
        if unit:
            amount = Decimal(re.sub("[,']", "", raw)) * _SCALES[scale]
            value = Value("number", clean_number(amount), unit)
            found.append(Unit(match.start(), match.end(), price=value))
    return found


def find_names(
    text: str, sentence: Sentence, known: KnownWords, taken: Sequence[tuple[int, int]], verbs: Collection[str]
) -> list[tuple[tuple[int, int], FactEnd]]:
    """Return the names of a sentence in order, each with its span including title and quotation marks.

    taken: spans of dates and amounts; verbs: their forms
    """
    names = []
    blocked = list(taken)
    for match in _TITLE.finditer(text, sentence.start, sentence.end):
        names.append((match.span(), FactEnd(match[2], guess_type(match[2], known), match.span(2))))
        blocked.append(match.span())
    covered = {place for start, end in blocked for place in range(start, end)}
    tokens = [token for token in sentence.tokens if token.start not in covered]
    scan = _Scan(text, tokens, known, verbs)
    at = 0
    while at < len(tokens):
        first, end = scan.name_at(at)
        if end > at:
            start, stop = tokens[first].start, tokens[end - 1].end
            label = "Person" if first > at else guess_type(text[start:stop], known)
            if stop - start <= _MAX_NAME:
                names.append(((tokens[at].start, stop), FactEnd(text[start:stop], label, (start, stop))))
        at = max(end, at + 1)
    return sorted(names, key=lambda found: found[0])


# A name in a sentence of which each token is two letters. The first: "-" where it follows the one before
# within a line and no date or amount stands between, else "|". The second, by what it may be in a name:
#   P a first name, a known person   C another name's word   W the same, and an auxiliary   d a number
#   t "Dr"   o "van"   O "of", "the", "&": they join no persons   L the comma of ", Inc"   . a full stop
_NAME = re.compile(
    r".(?P<title>t.(?:\..)?)?"
    r"(?:P(?:-[CP]|-o.(?:[oO].)?[CPW])*|[CW](?:-[CPd]|-[oO].(?:[oO].)?[CPW])*)"
    r"(?:-L..(?:-\.)?)?"
)


class _Scan:
    """The tokens of one sentence that no date, amount or quoted title covers."""

    def __init__(self, text: str, tokens: list[Token], known: KnownWords, verbs: Collection[str]) -> None:
        self.tokens, self.known, self.verbs = tokens, known, verbs
        written = [token.text for token in tokens if token.text[0].isalpha() and len(token.text) > 1]
        # Where most words are in capitals, a capital shows no name.
        self.shouting = len(written) > 2 and sum(map(str.isupper, written)) * 2 > len(written)
        gaps = [text[a.end : b.start] for a, b in pairwise(tokens)]
        joints = "|" + "".join("|" if len(gap) > 1 or gap == "\n" else "-" for gap in gaps)
        self.letters = "".join(map("".join, zip(joints, map(self._letter, range(len(tokens))), strict=False)))

    def low(self, at: int) -> str:
        return self.tokens[at].low if at < len(self.tokens) else ""

    def name_at(self, at: int) -> tuple[int, int]:
        """Return the tokens [first, end) of the name that begins at `at`, behind its title; none: empty."""
        found = _NAME.match(self.letters, 2 * at)
        if not found:
            return at, at
        first, end = at + len(found["title"] or "") // 2, found.end() // 2
        before = self.tokens[at - 1].text if at else ""
        inside = at > 0 and (before[0].isalnum() or before in {",", "'s", "’s", "&", "(", "/", "-", "–", "—"})
        return (first, end) if inside or first > at or self._trusted(at, end) else (at, at)

    def _letter(self, at: int) -> str:
        """Return the letter of a token in the table of `_NAME`; x for what is in no name."""
        token, following = self.tokens[at], self.low(at + 1)
        if token.low in words.TITLES and token.text[0].isupper():
            return "t"
        if token.low == ",":
            return "L" if following in words.LEGAL_FORMS else "x"
        if token.low == ".":
            return "." if at and self.tokens[at - 1].end == token.start else "x"
        if self._is_capitalised(token):
            person = token.low in words.FIRST_NAMES or token.low in self.known.persons
            return "P" if person else "W" if token.low in words.AUXILIARIES else "C"
        if token.text[0].isdigit() and token.text.replace(".", "").isalnum():
            # "Ticket 42 is", but not "Bob 7 times".
            counted = following.endswith("s") and not (
                following in words.AUXILIARIES or following in self.verbs
            )
            return "x" if counted else "d"
        return ("O" if token.low in {"&", "of", "the"} else "o") if token.low in words.CONNECTORS else "x"

    def _is_capitalised(self, token: Token) -> bool:
        """Whether a name may begin with a token: "Bob", "M28w", "iPhone"."""
        text, low = token.text, token.low
        if low in words.NOT_NAMES or low in words.ROLE_HEADS or low in words.NEGATIONS:
            return False
        if text.startswith("http") or "@" in text:
            return False
        mixed = len(text) > 2 and text[0].islower() and text[1].isupper()
        plain = text[0].isupper() and len(text) > 1 and not (self.shouting and text.isupper())
        return mixed or plain or _MODEL.fullmatch(text) is not None

    def _trusted(self, at: int, end: int) -> bool:
        """Whether a capital at the start of a sentence is a name's."""
        low, text = self.tokens[at].low, self.tokens[at].text
        if low in self.known.persons or low in words.FIRST_NAMES:
            return True
        if at + 1 < end and self.low(at + 1) in words.FIRST_NAMES:
            return False  # "Somehow Bob"
        if low in words.NOT_NAMES_AT_THE_START or low.endswith(("ing", "ed", "ly")) or low in self.verbs:
            return False
        if self.low(at + 1) == "of":  # "University of Oslo", but not "Instead of Oslo"
            return low in words.ORGANISATIONS
        if low in words.PLACES or end - at > 1 or any(map(str.isupper, text[1:])) or _MODEL.fullmatch(text):
            return True
        following = self.low(end + 1) if self.low(end) in words.ADVERBS else self.low(end)
        is_subject = following in words.AUXILIARIES or following in self.verbs
        joined = self.low(end) in {"and", "&"} and self.letters[2 * end + 3 : 2 * end + 4] in {"P", "C", "W"}
        return low not in self.known.lowers and (is_subject or joined)


def guess_type(name: str, known: KnownWords) -> str:
    """Return the type that a name shows by itself: Person, Place, Organization, Product; "" = not sure."""
    low, parts = name.lower(), name.split()
    first, last = parts[0].lower(), parts[-1].lower().rstrip(".")
    if low in known.persons:
        return "Person"
    if (len(parts) > 1 and last in words.ORGANISATIONS) or low.startswith(("university of ", "bank of ")):
        return "Organization"
    if any(map(str.isdigit, name)):
        return "Product" if any(_MODEL.fullmatch(p) and not _NO_MODEL.fullmatch(p) for p in parts) else ""
    initial = len(parts) > 1 and len(first) == 2 and first[1] == "."
    person = first in words.FIRST_NAMES or initial
    if low in words.PLACES:
        return "" if person else "Place"
    return "Person" if person and len(parts) <= 4 else ""
