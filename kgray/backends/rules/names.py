"""Proper names in a sentence: capitalised sequences, product names with digits, quoted names, @handles."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kgray.backends.rules import lexicon as lex
from kgray.backends.rules.sentences import Sentence, Token

MAX_NAME = 120  # characters; a longer sequence of capitals is a heading or noise
_CONNECTORS = frozenset(
    {
        "of",
        "the",
        "&",
        "van",
        "de",
        "der",
        "den",
        "von",
        "la",
        "le",
        "du",
        "del",
        "della",
        "di",
        "da",
        "bin",
        "al",
        "el",
    }
)
_OPEN_TO_CLOSE = {'"': '"', "“": "”", "«": "»"}
_MODEL = re.compile(r"[A-Z]+[a-z]*-?\d[\w.-]*")
_NO_MODEL = re.compile(r"[QH][1-4]|[A-Z]{2,}-\d+")  # a quarter, the number of a ticket
_LOWER_ENDS = ("ing", "ed", "ly")
_LEGAL_FORMS = frozenset("inc incorporated corp corporation ltd limited llc llp plc gmbh".split())
# What is counted in Roman numbers: "World War I" is no speaker.
_NUMBERED = frozenset(
    """war part phase type chapter volume act section article level tier class stage book title division
    appendix""".split()
)
_ENDS = frozenset('.,;:!?)"”»')


@dataclass(frozen=True, slots=True)
class Chunk:
    """A name at tokens [first, end); its characters are text[start:stop]."""

    first: int
    end: int
    start: int
    stop: int
    surface: str
    type: str = ""


@dataclass(slots=True)
class Known:
    """What the text around a sentence tells about words."""

    capitals: set[str] = field(default_factory=set)  # lower case of words capitalised in mid-sentence
    lowers: set[str] = field(default_factory=set)  # words that occur in lower case
    persons: set[str] = field(default_factory=set)  # lower case: speakers, and each word of their names

    def learn(self, sentence: Sentence) -> None:
        """Note which words of a sentence are written in lower case, which in capitals though inside it."""
        for index, token in enumerate(sentence.tokens):
            if token.text.islower():
                self.lowers.add(token.low)
            elif index and token.text[0].isupper() and token.low not in lex.NOT_NAMES:
                self.capitals.add(token.low)

    def add_person(self, name: str) -> None:
        """Note a person's full name and its words."""
        words = name.lower().split()
        self.persons.update(words)
        self.persons.add(" ".join(words))


def find(
    text: str, sentence: Sentence, known: Known, dated: Sequence[bool], verbish: Callable[[str], bool]
) -> list[Chunk]:
    """Return the names of a sentence, in order, never overlapping.

    dated     per token: part of a date or an amount, so of no name
    verbish   whether a lower-case word may be a verb: what follows a name at the start of a sentence
    """
    return _Finder(text, sentence, known, dated, verbish).run()


class _Finder:
    """One pass over the tokens of one sentence."""

    def __init__(
        self,
        text: str,
        sentence: Sentence,
        known: Known,
        dated: Sequence[bool],
        verbish: Callable[[str], bool],
    ) -> None:
        self.text, self.tokens, self.known = text, sentence.tokens, known
        self.dated, self.verbish = dated, verbish
        words = [token for token in self.tokens if token.text[0].isalpha()]
        shouted = sum(token.text.isupper() and len(token.text) > 1 for token in words)
        self.shouting = len(words) > 2 and shouted * 2 > len(words)  # "HP works" is no shout
        self.chunks: list[Chunk] = []

    def run(self) -> list[Chunk]:
        index = 0
        while index < len(self.tokens):
            index = self._step(index)
        return self.chunks

    def _step(self, index: int) -> int:
        """Take what stands at a token; return where to go on."""
        token = self.tokens[index]
        if self.dated[index]:
            return index + 1
        if token.text in _OPEN_TO_CLOSE and (end := self._quoted(index)):
            return end
        if token.text[0] == "@" and len(token.text) > 1 and "." not in token.text:
            self._add(index, index + 1, token.start + 1, "Person")
            return index + 1
        if token.low in lex.TITLES and token.text[0].isupper():
            return self._titled(index)
        if not self._begins(index):
            return index + 1
        end = self._extent(index)
        first = index
        if self._initial(index) and not self._trusted(index, end):
            if end - index == 1 or not self._begins(index + 1):
                return index + 1
            first = index + 1
        self._add(first, end, self.tokens[first].start, "")
        return end

    def _titled(self, index: int) -> int:
        """Return past "Dr. Ada Lind", whose title is dropped."""
        following = index + 1
        if following < len(self.tokens) and self.tokens[following].text == ".":
            following += 1
        if following >= len(self.tokens) or not self._begins(following):
            return index + 1
        end = self._extent(following)
        self._add(following, end, self.tokens[following].start, "Person")
        return end

    def _quoted(self, index: int) -> int:
        """Return past a quoted name of at most six words, all capitalised but connectors; else 0."""
        close = _OPEN_TO_CLOSE[self.tokens[index].text]
        for end in range(index + 1, min(index + 8, len(self.tokens))):
            if self.tokens[end].text == close:
                inside = self.tokens[index + 1 : end]
                capital = all(t.text[0].isupper() or t.low in _CONNECTORS or t.text.isdigit() for t in inside)
                if inside and capital and inside[0].text[0].isupper() and inside[0].low not in lex.NOT_NAMES:
                    self._add(index + 1, end, inside[0].start, "")
                    return end + 1
                return 0
        return 0

    def _begins(self, index: int) -> bool:
        """Whether a name may begin at a token."""
        token = self.tokens[index]
        text = token.text
        if self.dated[index] or token.low in lex.NOT_NAMES or token.low in lex.ROLE_HEADS:
            return False
        if text.startswith("http") or "@" in text:
            return False
        if _MODEL.fullmatch(text):
            return True
        if self.shouting and text.isupper():
            return False
        if text[0].isupper():
            return len(text) > 1
        return len(text) > 2 and text[0].islower() and text[1].isupper()  # iPhone, eBay

    def _initial(self, index: int) -> bool:
        """Whether a capital may be due to the place: the start, or after a colon, quote or bullet."""
        if index == 0:
            return True
        before = self.tokens[index - 1].text
        return not before[0].isalnum() and before not in {",", "'s", "’s", "&", "(", "/", "-", "–", "—"}

    def _extent(self, index: int) -> int:
        """Return the end of the name that begins at a token."""
        end = index + 1
        while end < len(self.tokens) and not self.dated[end]:
            token = self.tokens[end]
            if self._continues(index, end):
                end += 1
            elif legal := self._legal_form(end):
                return legal
            elif token.low in _CONNECTORS and self._linkable(index, token) and (step := self._connected(end)):
                end = step
            else:
                break
        if end < len(self.tokens) and any(c.isdigit() for c in self.tokens[end - 1].text):
            end += self.tokens[end].low in lex.DOCUMENT_HEADS
        return end

    def _continues(self, index: int, at: int) -> bool:
        token = self.tokens[at]
        if token.text == "I" and self._first_of_its_kind(at):
            return True
        if token.low in lex.NOT_NAMES or token.low in lex.ROLE_HEADS:
            return False
        if token.text[0].isupper() and not (self.shouting and token.text.isupper()):
            return token.low not in lex.AUXILIARIES
        if token.text[0].isdigit():
            counted = at + 1 < len(self.tokens) and self.tokens[at + 1].text[0].islower()
            word = self.tokens[index].low not in lex.FIRST_NAMES
            plain = (
                counted
                and self.tokens[at + 1].low.endswith("s")
                and not self.verbish(self.tokens[at + 1].low)
            )
            return (
                word
                and (not plain or "." in token.text)
                and "/" not in token.text
                and ":" not in token.text
                and token.text[-1] != "%"
            )
        return False

    def _first_of_its_kind(self, at: int) -> bool:
        """Whether the "I" at a token is a number: after what is counted so, or where no verb can follow."""
        ends = at + 1 >= len(self.tokens) or self.tokens[at + 1].text in _ENDS
        return self.tokens[at - 1].low in _NUMBERED or ends

    def _legal_form(self, at: int) -> int:
        """Return past ", Inc." that goes on with a name; 0 where none stands there."""
        if at + 1 >= len(self.tokens) or self.tokens[at].text != ",":
            return 0
        form = self.tokens[at + 1]
        if form.low not in _LEGAL_FORMS or not form.text[0].isupper():
            return 0
        dot = at + 2 < len(self.tokens) and self.tokens[at + 2].text == "."
        return at + 2 + (dot and self.tokens[at + 2].start == form.end)

    def _linkable(self, index: int, connector: Token) -> bool:
        """Whether a connector may stand inside the name: "Bob & Carol" and "Bob of Acme" are two."""
        person = self.tokens[index].low in lex.FIRST_NAMES or self.tokens[index].low in self.known.persons
        return not (person and connector.low in {"&", "of", "the"})

    def _connected(self, at: int) -> int:
        """Return past "of the Sea"; 0 where no capital follows within two connectors."""
        for end in (at + 1, at + 2):
            if end >= len(self.tokens) or self.dated[end]:
                return 0
            if self.tokens[end].text[0].isupper() and self._begins(end):
                return end + 1
            if self.tokens[end].low not in _CONNECTORS:
                return 0
        return 0

    def _trusted(self, index: int, end: int) -> bool:
        """Whether a capital at the start of a sentence is a name's."""
        token = self.tokens[index]
        low = token.low
        if low in self.known.persons or low in lex.FIRST_NAMES:
            return True
        if low in lex.SENTENCE_STARTERS or low in lex.TITLES:
            return False
        if low in lex.PLACES or low in self.known.capitals or _MODEL.fullmatch(token.text):
            return True
        if low in self.known.lowers:
            return False
        if any(c.isupper() for c in token.text[1:]) or token.text.endswith("."):
            return True
        if self.verbish(low) or low.endswith(_LOWER_ENDS):
            return end - index > 1 and not low.endswith(_LOWER_ENDS) and not self.verbish(low)
        if end - index > 1:
            return True
        return self._acts(end)

    def _acts(self, at: int) -> bool:
        """Whether what stands at a token shows that a subject stood before it."""
        if at >= len(self.tokens):
            return False
        token = self.tokens[at]
        if token.low in lex.AUXILIARIES or self.verbish(token.low) or token.low == "'s":
            return True
        following = self.tokens[at + 1] if at + 1 < len(self.tokens) else None
        if token.low in {"and", "&", ","} and following:
            return following.text[0].isupper() or token.low == ","
        return token.low in lex.ADVERBS and following is not None and self._acts(at + 1)

    def _add(self, first: int, end: int, start: int, label: str) -> None:
        stop = self.tokens[end - 1].end
        surface = self.text[start:stop]
        if stop - start > MAX_NAME or not any(c.isalnum() for c in surface):
            return
        self.chunks.append(Chunk(first, end, start, stop, surface, label or guess_type(surface, self.known)))


def guess_type(surface: str, known: Known) -> str:
    """Return the type that a name shows by itself: Person, Place, Organization, Product; "" = not sure."""
    words = surface.lower().split()
    if not words:
        return ""
    if surface.lower() in known.persons:
        return "Person"
    place = " ".join(words) in lex.PLACES
    person = words[0] in lex.FIRST_NAMES or (len(words) > 1 and _initials(surface.split()))
    if (words[-1].rstrip(".") in lex.ORG_WORDS and len(words) > 1) or words[:2] in (
        ["university", "of"],
        ["bank", "of"],
    ):
        return "Organization"
    if any(c.isdigit() for c in surface):
        model = any(_MODEL.fullmatch(word) and not _NO_MODEL.fullmatch(word) for word in surface.split())
        return "Product" if model else ""
    if place:
        return "" if person else "Place"
    if person and len(words) <= 4:  # a longer run of capitals is a title
        return "Person"
    return ""


def _initials(words: Sequence[str]) -> bool:
    """Whether a name is of the form "M. Webb"."""
    return len(words[0]) == 2 and words[0][1] == "."  # a letter and a dot
