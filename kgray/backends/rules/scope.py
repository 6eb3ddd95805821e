"""One sentence, marked up: names, dates, amounts, and who the pronouns mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from kgray.backends.rules import dates, names, values
from kgray.backends.rules import lexicon as lex
from kgray.backends.rules.phrases import PhraseBook
from kgray.backends.rules.sentences import Sentence, Token
from kgray.records import Value


class Ref(NamedTuple):
    """An end of a fact: an entity by name, or a value; tokens [first, end) of the sentence."""

    name: str
    first: int
    end: int
    type: str = ""
    span: tuple[int, int] | None = None  # characters in the text; None = not written there (a pronoun)
    value: Value | None = None


@dataclass(slots=True)
class Scope:
    """What is known about one sentence before its clauses are read."""

    text: str
    sentence: Sentence
    book: PhraseBook
    speaker: str | None
    typed: Callable[[str], str]  # name -> the type that is known by now, "" = none
    antecedent: Callable[[str, int], Ref | None]  # ("person" | "thing", token) -> whom a pronoun there means
    chunks: list[names.Chunk] = field(default_factory=list)
    whens: list[dates.When] = field(default_factory=list)
    chunk_at: list[names.Chunk | None] = field(default_factory=list)
    when_at: list[bool] = field(default_factory=list)
    price_at: dict[int, tuple[int, Value]] = field(default_factory=dict)  # token -> (end token, amount)
    quoted: list[bool] = field(default_factory=list)  # per token: inside quotation marks

    @property
    def tokens(self) -> list[Token]:
        """The tokens of the sentence."""
        return self.sentence.tokens

    def low(self, index: int) -> str:
        """Return a token in lower case, "" outside the sentence."""
        return self.tokens[index].low if 0 <= index < len(self.tokens) else ""

    def ref(self, chunk: names.Chunk) -> Ref:
        """Return the end of a fact that a name is."""
        label = chunk.type or self.typed(chunk.surface)
        return Ref(chunk.surface, chunk.first, chunk.end, label, (chunk.start, chunk.stop))

    def is_group(self, index: int) -> bool:
        """Whether the word before `index` is the head of a group's name ("team")."""
        return self.low(index - 1) in lex.GROUP_HEADS

    def origin(self, index: int) -> int:
        """Return where "from Acme" or "from $120" at a token ends; the token itself where it is none."""
        chunk = self.chunk_at[index + 1] if index + 1 < len(self.tokens) else None
        if chunk:
            return chunk.end
        if index + 1 in self.price_at:
            return self.price_at[index + 1][0]
        known = lex.STATUSES
        for end in (index + 3, index + 2):
            if " ".join(token.low for token in self.tokens[index + 1 : end]) in known:
                return end
        return index


def mark(scope: Scope, known: names.Known) -> None:
    """Find the dates, amounts and names of the sentence, and fill the scope's marks."""
    sentence, tokens = scope.sentence, scope.tokens
    scope.whens = dates.find(scope.text, sentence.start, sentence.end)
    scope.when_at = _covered(tokens, [(when.start, when.end) for when in scope.whens])
    money = values.prices(scope.text, sentence.start, sentence.end) if _pays(scope.text, sentence) else []
    at = 0
    for price in money:
        while at < len(tokens) and tokens[at].start < price.start:
            at += 1
        first = at
        while at < len(tokens) and tokens[at].start < price.end:
            at += 1
        if at > first:
            scope.price_at[first] = (at, price.value)
    paid = _covered(tokens, [(price.start, price.end) for price in money])
    barred = [a or b for a, b in zip(scope.when_at, paid, strict=True)]
    heads = scope.book.heads
    scope.chunks = names.find(scope.text, sentence, known, barred, lambda low: low in heads)
    scope.chunk_at = [None] * len(tokens)
    for chunk in scope.chunks:
        for index in range(chunk.first, chunk.end):
            scope.chunk_at[index] = chunk
    scope.quoted = _quotes(tokens)


def _pays(text: str, sentence: Sentence) -> bool:
    """Whether an amount of money is possible at all: a digit is there."""
    return any(c.isdigit() for c in text[sentence.start : sentence.end])


def _covered(tokens: list[Token], spans: list[tuple[int, int]]) -> list[bool]:
    covered = [False] * len(tokens)
    at = 0
    for start, end in sorted(spans):
        while at < len(tokens) and tokens[at].start < start:
            at += 1
        while at < len(tokens) and tokens[at].start < end:
            covered[at] = True
            at += 1
    return covered


def _quotes(tokens: list[Token]) -> list[bool]:
    """Mark what stands between quotation marks; an unclosed one opens nothing."""
    marks = [i for i, token in enumerate(tokens) if token.text in {'"', "“", "”", "«", "»"}]
    inside = [False] * len(tokens)
    for opening, closing in zip(marks[::2], marks[1::2], strict=False):
        inside[opening:closing] = [True] * (closing - opening)
    return inside
