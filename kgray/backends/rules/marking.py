"""A sentence as a list of units: words, proper names, dates and amounts of money.

Names are runs of capitals, product names with digits, and titles in quotation marks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import pairwise
from typing import NamedTuple

from kgray.backends.rules.grammar import (
    AUXILIARIES,
    CURRENCY_OF,
    PATTERNS,
    WORDS,
    PhraseTable,
    Sentence,
    Token,
)
from kgray.dates import DatePhrase, find_dates
from kgray.records import Value, clean_number, clean_text

_QUOTES = frozenset("\"“”«»'‘`")
_SIGNS_IN_NAMES = "'’&/%$€£#@*+=_"  # these join the words on both sides

_SCALES = {"": 1, "k": 1_000, "m": 1_000_000, "million": 1_000_000, "billion": 1_000_000_000}


class FactEnd(NamedTuple):
    """A subject or object: an entity by name, or a value. span: [start, end) in the text, or None."""

    name: str
    type: str = ""
    span: tuple[int, int] | None = None
    value: Value | None = None
    is_noun_phrase: bool = False

    @property
    def last(self) -> str:
        """The last word of its name, in lower case."""
        return self.name.lower().split()[-1]


@dataclass(slots=True)
class KnownWords:
    """Knowledge about words from the rest of the text, all lower case."""

    persons: set[str] = field(default_factory=set)  # speakers, and each word of their names
    lowers: set[str] = field(default_factory=set)  # written without a capital somewhere


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
    """A sentence as units; adverbs without influence ("now", "also") are left out."""

    def __init__(
        self,
        text: str,
        sentence: Sentence,
        vocabulary: KnownWords,
        table: PhraseTable,
        speaker: FactEnd | None,
        type_of: Callable[[str], str],
    ) -> None:
        """speaker: the meaning of "I". type_of: a name's type in the earlier text; "" = unknown."""
        self.text, self.table, self.speaker, self.type_of = text, table, speaker, type_of
        marks = [Unit(d.start, d.end, date=d) for d in find_dates(text, sentence.start, sentence.end)]
        marks += find_prices(text, sentence.start, sentence.end)
        self.names: list[FactEnd] = []
        for outer, name in _Names(text, sentence, vocabulary, table).find([(m.start, m.end) for m in marks]):
            self.names.append(name._replace(type=name.type or type_of(name.name)))
            marks.append(Unit(*outer, name=self.names[-1]))
        units: list[Unit] = []
        waiting = sorted(marks, key=lambda mark: (-mark.start, mark.end))
        for token in sentence.tokens:  # a unit for each token outside marks
            while waiting and waiting[-1].end <= token.start:
                waiting.pop()
            if not waiting or token.start < waiting[-1].start:
                units.append(Unit(token.start, token.end, token.low))
            elif not units or units[-1] != waiting[-1]:
                units.append(waiting[-1])
        # A question, a doubt, or another person's words: "maybe", "if", "Bob said", a quotation.
        words = [unit for unit in units if unit.low]
        lows = {unit.low for unit in words}
        step = 2 if len(units) > 1 and units[1].low == "," else 1
        ironic = len(units) > step and units[0].low in WORDS["ironic"] and units[step].low == "and"
        # "I don't always like coffee" does not say that I don't like it.
        partly = lows & WORDS["negations"] and lows & WORDS["partly"]
        hedges = WORDS["hedges"]  # a name is no hedge, except as the first word: "May I"
        hedged = not hedges.isdisjoint(text[unit.start : unit.end] for unit in words)
        hedged = hedged or (bool(words) and words[0].low in hedges) or bool(lows & _QUOTES)
        self.states_something = not (sentence.question or sentence.quoted or ironic or partly or hedged)
        self.units = [unit for unit in units if unit.low not in WORDS["adverbs"]]

    def unit(self, at: int) -> Unit:
        """Return a unit; an empty one outside the sentence."""
        return self.units[at] if 0 <= at < len(self.units) else _NOTHING

    def low(self, at: int) -> str:
        return self.unit(at).low

    def name(self, at: int) -> FactEnd | None:
        return self.unit(at).name

    def is_border(self, at: int) -> bool:
        """Tell whether a clause may end before a unit: at a sign, an "and", the sentence's end."""
        if at >= len(self.units):
            return True
        low, end = self.low(at), self.units[at].end
        if low in {"-", "–"} and not self.text[end : end + 1].isspace():
            return False  # "$90-100"
        return low in {"and", "but"} or (low != "" and not low[0].isalnum() and low[0] not in _SIGNS_IN_NAMES)

    def noun_phrases(self, at: int) -> list[tuple[FactEnd, int]]:
        """Return the noun phrases that begin at a unit, the longest first: "the office printer"."""
        start = at + (self.low(at) in WORDS["determiners"])
        while self.low(start) in WORDS["plain_adjectives"]:
            start += 1
        end = start
        while end - start < 5 and (self.name(end) or self._is_noun(self.low(end))):
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
        if not low[:1].isalpha() or adverb or low in WORDS["function_words"]:
            return False
        forms = {form for verb_forms in self.table.verbs.get(low, {}).values() for form in verb_forms}
        return "base" in forms or forms.isdisjoint({"past", "participle"})

    def text_of(self, first: int, end: int) -> str:
        """Return the words of units [first, end)."""
        return clean_text(self.text[self.units[first].start : self.units[end - 1].end]) if end > first else ""


def find_prices(text: str, start: int, end: int) -> list[Unit]:
    """Return the amounts of money in text[start:end], in order."""
    prices = []
    for match in PATTERNS["price"].finditer(text, start, end):
        raw = match["a"] or match["b"] or match["c"]
        scale = (match["sa"] or match["sb"] or match["sc"] or "").strip().lower()
        word = match["sign"] or match["code"] or match["unit"]
        if unit := word if word.lower() in WORDS["currencies"] else CURRENCY_OF.get(word.lower()):
            amount = Decimal(re.sub("[,']", "", raw)) * _SCALES[scale]
            value = Value("number", clean_number(amount), unit)
            prices.append(Unit(match.start(), match.end(), price=value))
    return prices


class _Names:
    """The names of a sentence."""

    def __init__(self, text: str, sentence: Sentence, vocabulary: KnownWords, table: PhraseTable) -> None:
        self.text, self.sentence, self.vocabulary, self.verbs = text, sentence, vocabulary, table.verbs

    def find(self, reserved: Sequence[tuple[int, int]]) -> list[tuple[tuple[int, int], FactEnd]]:
        """Return the names in order, each with its span including title and quotation marks.

        reserved: spans of dates and amounts
        """
        text, names = self.text, []
        for match in PATTERNS["title"].finditer(text, self.sentence.start, self.sentence.end):
            names.append((match.span(), FactEnd(match[2], self._type(match[2]), match.span(2))))
        covered = {at for span in (*reserved, *(outer for outer, _ in names)) for at in range(*span)}
        self.tokens = [token for token in self.sentence.tokens if token.start not in covered]
        written = [token.text for token in self.tokens if token.text[0].isalpha() and len(token.text) > 1]
        # If most words are in capitals, a capital does not mark a name.
        self.shouting = len(written) > 2 and sum(map(str.isupper, written)) * 2 > len(written)
        gaps = [text[a.end : b.start] for a, b in pairwise(self.tokens)]
        joints = ["|", *("|" if len(gap) > 1 or gap == "\n" else "-" for gap in gaps)]
        self.letters = "".join(joints[at] + self._letter(at) for at in range(len(self.tokens)))
        at = 0
        while at < len(self.tokens):
            hit = PATTERNS["name"].match(self.letters, 2 * at)
            title, end = (len(hit["title"] or "") // 2, hit.end() // 2) if hit else (0, at)
            previous = self.tokens[at - 1].text if at else ""
            is_inside = previous[:1].isalnum() or previous in {",", "'s", "’s", "&", "(", "/", "-", "–", "—"}
            if hit and (is_inside or title or self._trusted(at, end)):
                start, stop = self.tokens[at + title].start, self.tokens[end - 1].end
                label = "Person" if title else self._type(text[start:stop])
                if stop - start <= 120:  # a longer run of capitals is a heading or noise
                    outer = (self.tokens[at].start, stop)
                    names.append((outer, FactEnd(text[start:stop], label, (start, stop))))
                at = end
            else:
                at += 1
        return sorted(names, key=lambda hit: hit[0])

    def _low(self, at: int) -> str:
        return self.tokens[at].low if at < len(self.tokens) else ""

    def _letter(self, at: int) -> str:
        """Return the letter of a token in the table of the pattern `name`; x = not in a name."""
        token, following = self.tokens[at], self._low(at + 1)
        if token.low in WORDS["titles"] and token.text[0].isupper():
            return "t"
        if token.low == ",":
            return "L" if following in WORDS["legal_forms"] else "x"
        if token.low == ".":
            return "." if at and self.tokens[at - 1].end == token.start else "x"
        if self._is_capitalised(token):
            person = token.low in WORDS["first_names"] or token.low in self.vocabulary.persons
            return "P" if person else "W" if token.low in AUXILIARIES else "C"
        if token.text[0].isdigit() and token.text.replace(".", "").isalnum():
            # "Ticket 42 is", but not "Bob 7 times".
            counted = following.endswith("s") and not (following in AUXILIARIES or following in self.verbs)
            return "x" if counted else "d"
        return ("O" if token.low in {"&", "of", "the"} else "o") if token.low in WORDS["connectors"] else "x"

    def _is_capitalised(self, token: Token) -> bool:
        """Tell whether a name may begin with a token: "Bob", "M28w", "iPhone"."""
        text, low = token.text, token.low
        if any(low in WORDS[never] for never in ("not_names", "role_heads", "negations")):
            return False
        if text.startswith("http") or "@" in text:
            return False
        mixed = len(text) > 2 and text[0].islower() and text[1].isupper()
        plain = text[0].isupper() and len(text) > 1 and not (self.shouting and text.isupper())
        return mixed or plain or PATTERNS["model"].fullmatch(text) is not None

    def _trusted(self, at: int, end: int) -> bool:
        """Tell whether a capital at the start of a sentence begins a name."""
        low, text = self.tokens[at].low, self.tokens[at].text
        if low in self.vocabulary.persons or low in WORDS["first_names"]:
            return True
        if at + 1 < end and self._low(at + 1) in WORDS["first_names"]:
            return False  # "Somehow Bob"
        if low in WORDS["no_names_at_the_start"] or low.endswith(("ing", "ed", "ly")) or low in self.verbs:
            return False
        if self._low(at + 1) == "of":  # "University of Oslo", but not "Instead of Oslo"
            return low in WORDS["organisations"]
        named = low in WORDS["places"] or PATTERNS["model"].fullmatch(text)
        if named or end - at > 1 or any(map(str.isupper, text[1:])):
            return True
        following = self._low(end + (self._low(end) in WORDS["adverbs"]))
        is_subject = following in AUXILIARIES or following in self.verbs
        joined = self._low(end) in {"and", "&"} and self.letters[2 * end + 3 : 2 * end + 4] in {"P", "C", "W"}
        return low not in self.vocabulary.lowers and (is_subject or joined)

    def _type(self, name: str) -> str:
        """Return the type that a name implies, such as Person or Product; "" = not certain."""
        low, parts = name.lower(), name.split()
        first, last = parts[0].lower(), parts[-1].lower().rstrip(".")
        if low in self.vocabulary.persons:
            return "Person"
        if (len(parts) > 1 and last in WORDS["organisations"]) or low.startswith(
            ("university of ", "bank of ")
        ):
            return "Organization"
        if any(map(str.isdigit, name)):
            return "Product" if any(map(PATTERNS["product"].fullmatch, parts)) else ""
        initial = len(parts) > 1 and len(first) == 2 and first[1] == "."
        person = first in WORDS["first_names"] or initial
        if low in WORDS["places"]:
            return "" if person else "Place"
        return "Person" if person and len(parts) <= 4 else ""
