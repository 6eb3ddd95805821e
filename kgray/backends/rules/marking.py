"""One sentence as a list of units: words, names, dates and amounts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from kgray.backends.rules import words
from kgray.backends.rules.amounts import find_prices
from kgray.backends.rules.dates import DatePhrase, find_dates
from kgray.backends.rules.names import KnownWords, find_names
from kgray.backends.rules.phrases import PhraseTable
from kgray.backends.rules.sentences import Sentence
from kgray.records import Value, clean_text

_MAX_NOUNS = 5
_QUOTES = frozenset("\"“”«»'‘`")
_SIGNS_IN_NAMES = "'’&/%$€£#@*+=_"  # what follows one of these belongs to what stands before it


class FactEnd(NamedTuple):
    """A subject or object: an entity by name, or a value. span: [start, end) in the text, or None."""

    name: str
    type: str = ""
    span: tuple[int, int] | None = None
    value: Value | None = None
    is_noun_phrase: bool = False


class Unit(NamedTuple):
    """A word, or a name, date or amount as a whole; [start, end) in the text. low: "" unless a word."""

    start: int
    end: int
    kind: Literal["word", "name", "date", "price"]
    low: str = ""
    name: FactEnd | None = None
    date: DatePhrase | None = None
    price: Value | None = None


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
        marks = [Unit(d.start, d.end, "date", date=d) for d in find_dates(text, start, end)]
        marks += [Unit(p.start, p.end, "price", price=p.value) for p in find_prices(text, start, end)]
        self.names: list[FactEnd] = []
        for name in find_names(text, sentence, known, [(m.start, m.end) for m in marks], table.verbs):
            found = FactEnd(name.text, name.type or type_of(name.text), (name.start, name.stop))
            self.names.append(found)
            marks.append(Unit(*name.outer, "name", name=found))
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
                units.append(Unit(token.start, token.end, "word", token.low))
            elif not units or units[-1] != waiting[-1]:
                units.append(waiting[-1])
        return units

    def _hedged(self, units: list[Unit]) -> bool:
        """Whether it may not be so, or somebody else says it: "maybe", "if", "Bob said", a quotation."""
        said = [unit for unit in units if unit.low]
        hedged = any(self.text[unit.start : unit.end] in words.HEDGES for unit in said)
        lows = {unit.low for unit in said}
        # "I don't always like coffee" does not say that I don't like it.
        partly = lows & words.NEGATIONS and lows & words.PARTLY
        first = bool(partly) or (bool(said) and said[0].low in words.HEDGES)
        return hedged or first or any(unit.low in _QUOTES for unit in said)

    def low(self, at: int) -> str:
        """Return a word in lower case, "" outside the sentence and for what is no word."""
        return self.units[at].low if 0 <= at < len(self.units) else ""

    def name(self, at: int) -> FactEnd | None:
        """Return the name that a unit is."""
        return self.units[at].name if 0 <= at < len(self.units) else None

    def date(self, at: int) -> DatePhrase | None:
        """Return the date phrase that a unit is."""
        return self.units[at].date if 0 <= at < len(self.units) else None

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
        """Whether a word may stand in a noun phrase."""
        adverb = low.endswith("ly") and len(low) > 4  # not "fly"
        if not low[:1].isalpha() or adverb or low in words.FUNCTION_WORDS:
            return False
        forms = {form for known in self.table.verbs.get(low, {}).values() for form in known}
        return "base" in forms or forms.isdisjoint({"past", "participle"})

    def text_of(self, first: int, end: int) -> str:
        """Return the words of units [first, end)."""
        return clean_text(self.text[self.units[first].start : self.units[end - 1].end]) if end > first else ""
