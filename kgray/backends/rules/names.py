"""Proper names in a sentence: runs of capitals, product names with digits, titles in quotation marks."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kgray.backends.rules import words
from kgray.backends.rules.sentences import Sentence, Token

_MAX_NAME = 120  # characters; a longer run of capitals is a heading or noise
_CONNECTORS = frozenset("of the & van de der den von la le du del della di da bin al el".split())
_TITLE = re.compile(r"([\"“«])([A-Z][\w'’-]*(?: (?:[A-Z0-9][\w'’-]*|of|the|and|a|in|to|for)){0,5})[\"”»]")
_LEGAL_FORMS = frozenset("inc incorporated corp corporation ltd limited llc llp plc gmbh".split())
_MODEL = re.compile(r"[A-Z]+[a-z]*-?\d[\w.-]*")
_NO_MODEL = re.compile(r"[QH][1-4]|[A-Z]{2,}-\d+")  # a quarter, the number of a ticket


class Name(NamedTuple):
    """A name at text[start:stop]. outer: with its title and quotation marks. type: "" = not known."""

    outer: tuple[int, int]
    start: int
    stop: int
    text: str
    type: str


@dataclass(slots=True)
class KnownWords:
    """What the rest of the text shows about words, all lower case."""

    persons: set[str] = field(default_factory=set)  # speakers, and each word of their names
    lowers: set[str] = field(default_factory=set)  # written without a capital somewhere

    def add_person(self, name: str) -> None:
        """Note a person's full name and its words."""
        self.persons |= {name.lower(), *name.lower().split()}


def find_names(
    text: str,
    sentence: Sentence,
    known: KnownWords,
    taken: Sequence[tuple[int, int]],
    verbs: Collection[str],
) -> list[Name]:
    """Return the names of a sentence in order. taken: spans of dates and amounts; verbs: their forms."""
    names = []
    blocked = list(taken)
    for match in _TITLE.finditer(text, sentence.start, sentence.end):
        names.append(Name(match.span(), *match.span(2), match[2], guess_type(match[2], known)))
        blocked.append(match.span())
    tokens = [token for token in sentence.tokens if not _within(token, blocked)]
    scan = _Scan(text, tokens, known, verbs)
    at = 0
    while at < len(tokens):
        end = scan.end_of_name(at)
        if end > at:
            first = at + scan.length_of_title(at)
            start, stop = tokens[first].start, tokens[end - 1].end
            label = "Person" if first > at else guess_type(text[start:stop], known)
            if stop - start <= _MAX_NAME:
                names.append(Name((tokens[at].start, stop), start, stop, text[start:stop], label))
        at = max(end, at + 1)
    return sorted(names)


def _within(token: Token, spans: Sequence[tuple[int, int]]) -> bool:
    return any(start <= token.start < end for start, end in spans)


class _Scan:
    """The tokens of one sentence that no date, amount or quoted title covers."""

    def __init__(self, text: str, tokens: list[Token], known: KnownWords, verbs: Collection[str]) -> None:
        self.text, self.tokens, self.known, self.verbs = text, tokens, known, verbs
        letters = [token.text for token in tokens if token.text[0].isalpha() and len(token.text) > 1]
        # Where most words are in capitals, a capital shows no name.
        self.shouting = len(letters) > 2 and sum(map(str.isupper, letters)) * 2 > len(letters)

    def low(self, at: int) -> str:
        return self.tokens[at].low if at < len(self.tokens) else ""

    def length_of_title(self, at: int) -> int:
        """Return how many tokens "Dr." takes at a place."""
        if self.low(at) not in words.TITLES or not self.tokens[at].text[0].isupper():
            return 0
        return 1 + (self.low(at + 1) == ".")

    def end_of_name(self, at: int) -> int:
        """Return where the name that begins at a token ends; `at` where none does."""
        first = at + self.length_of_title(at)
        if not self._begins(first):
            return at
        end = self._extent(first)
        before = self.tokens[at - 1].text if at else ""
        inside = at > 0 and (before[0].isalnum() or before in {",", "'s", "’s", "&", "(", "/", "-", "–", "—"})
        return end if inside or first > at or self._trusted(first, end) else at

    def _begins(self, at: int) -> bool:
        """Whether a name may begin at a token."""
        if at >= len(self.tokens):
            return False
        text, low = self.tokens[at].text, self.tokens[at].low
        if low in words.NOT_NAMES or low in words.ROLE_HEADS or text.startswith("http") or "@" in text:
            return False
        if _MODEL.fullmatch(text):
            return True
        mixed = len(text) > 2 and text[0].islower() and text[1].isupper()
        shouted = self.shouting and text.isupper()
        return mixed or (text[0].isupper() and len(text) > 1 and not shouted)

    def _extent(self, at: int) -> int:
        """Return the end of the name that begins at a token."""
        end = at + 1
        while end < len(self.tokens):
            token = self.tokens[end]
            gap = self.text[self.tokens[end - 1].end : token.start]
            if len(gap) > 1 or gap == "\n":  # a date, an amount or a line's end stands between
                break
            if self._continues(at, end):
                end += 1
            elif token.low == "," and self.low(end + 1) in _LEGAL_FORMS:
                stop = self.tokens[end + 1].end
                dot = self.low(end + 2) == "." and self.tokens[end + 2].start == stop
                return end + 2 + dot
            elif step := self._connected(at, end):
                end = step
            else:
                break
        return end

    def _continues(self, at: int, end: int) -> bool:
        token, following = self.tokens[end], self.low(end + 1)
        if token.text[0].isupper():
            return self._begins(end) and token.low not in words.AUXILIARIES
        if not token.text[0].isdigit() or not token.text.replace(".", "").isalnum():
            return False
        # "Ticket 42 is", but not "Bob 7 times".
        counted = (
            following.endswith("s") and following not in words.AUXILIARIES and following not in self.verbs
        )
        return self.low(at) not in words.FIRST_NAMES and not counted

    def _connected(self, at: int, end: int) -> int:
        """Return past "of the Sea"; 0 where no capital follows, or where two names meet: "Bob & Carol"."""
        person = self.low(at) in words.FIRST_NAMES or self.low(at) in self.known.persons
        if self.low(end) not in _CONNECTORS or (person and self.low(end) in {"&", "of", "the"}):
            return 0
        step = end + 1 + (self.low(end + 1) in _CONNECTORS)
        return step + 1 if self._begins(step) else 0

    def _trusted(self, at: int, end: int) -> bool:
        """Whether a capital at the start of a sentence is a name's."""
        low, text = self.tokens[at].low, self.tokens[at].text
        if low in self.known.persons or low in words.FIRST_NAMES:
            return True
        if low in words.NOT_NAMES_AT_THE_START or low.endswith(("ing", "ed", "ly")) or low in self.verbs:
            return False
        if low in words.PLACES or end - at > 1 or any(map(str.isupper, text[1:])) or _MODEL.fullmatch(text):
            return True
        following = self.low(end + 1) if self.low(end) in words.ADVERBS else self.low(end)
        is_subject = following in words.AUXILIARIES or following in self.verbs
        joined = self.low(end) in {"and", "&"} and self._begins(end + 1)
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
