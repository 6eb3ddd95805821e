"""The ontology's phrases, compiled: which relation the words at a place may tell of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from kgray.backends.rules import lexicon as lex
from kgray.backends.rules import verbs
from kgray.backends.rules.sentences import Token, tokenise
from kgray.ontology import Ontology, RelationType

Mode = Literal["state", "start", "end"]


class Pattern(NamedTuple):
    """A phrase: its relation, what it tells, the kind of object it takes, its place in the ontology."""

    relation: RelationType
    mode: Mode
    slot: str
    order: int


class Match(NamedTuple):
    """A phrase at tokens [head, end); origin: the tokens of "from X" that were passed over."""

    pattern: Pattern
    lemma: str
    end: int
    origin: tuple[int, int] | None


@dataclass(slots=True)
class _Node:
    after: dict[str, _Node] = field(default_factory=dict)
    patterns: list[Pattern] = field(default_factory=list)


class PhraseBook:
    """Every phrase of an ontology as one trie a verb, found by any inflection of it."""

    def __init__(self, ontology: Ontology) -> None:
        """Compile the phrases; relations earlier in the ontology win among equals."""
        self.heads: dict[str, dict[str, set[verbs.Form]]] = {}  # word -> verb -> its forms
        self.nouns: dict[str, RelationType] = {}
        self.opposites: dict[str, RelationType] = {}  # "does not like" tells of DISLIKES
        self._tries: dict[str, _Node] = {}
        order = 0
        for relation in ontology:
            for mode, phrases in (
                ("state", relation.phrases),
                ("start", relation.starts),
                ("end", relation.ends),
            ):
                for phrase in phrases:
                    order += 1
                    self._add(phrase, relation, mode, order)  # type: ignore[arg-type]  # the three modes
            for noun in relation.nouns:
                self.nouns.setdefault(noun, relation)
            if len(relation.excludes) == 1:
                self.opposites.setdefault(relation.excludes[0], relation)

    def _add(self, phrase: str, relation: RelationType, mode: Mode, order: int) -> None:
        words, _, slot = phrase.rpartition(" ")
        groups = [group.split("|") for group in _words(words)]
        for verb in groups[0]:
            node = self._tries.setdefault(verb, _Node())
            self._index(verb)
            self._grow(node, groups[1:], Pattern(relation, mode, slot.strip("{}"), order))

    def _grow(self, node: _Node, groups: Sequence[Sequence[str]], pattern: Pattern) -> None:
        if not groups:
            node.patterns.append(pattern)
            return
        for word in groups[0]:
            self._grow(node.after.setdefault(word, _Node()), groups[1:], pattern)

    def _index(self, verb: str) -> None:
        if verb == "be":
            for word in lex.BE:
                self.heads.setdefault(word, {}).setdefault("be", set())
            return
        pairs = [(verb, "base")] if verb == "can" else verbs.forms(verb)
        for word, form in pairs:
            self.heads.setdefault(word, {}).setdefault(verb, set()).add(form)  # type: ignore[arg-type]

    def match(self, tokens: Sequence[Token], head: int, pass_origin: Callable[[int], int]) -> list[Match]:
        """Return the phrases that begin at a token, the longest first, then in the ontology's order.

        pass_origin(i) is where "from X" at i ends, or i: it may stand before the phrase's last word.
        """
        found: list[tuple[int, int, Match]] = []
        for lemma in self.heads.get(tokens[head].low, ()):
            for pattern, end, origin, depth in self._walk(tokens, head + 1, self._tries[lemma], pass_origin):
                found.append((-depth, pattern.order, Match(pattern, lemma, end, origin)))
        found.sort(key=lambda row: row[:2])
        return [match for _, _, match in found]

    def _walk(
        self, tokens: Sequence[Token], at: int, node: _Node, pass_origin: Callable[[int], int]
    ) -> list[tuple[Pattern, int, tuple[int, int] | None, int]]:
        """Follow one path: adverbs and negations between the words are passed over."""
        found: list[tuple[Pattern, int, tuple[int, int] | None, int]] = []
        origin: tuple[int, int] | None = None
        depth = 0
        while True:
            found += [(pattern, at, origin, depth) for pattern in node.patterns]
            if not node.after:
                return found
            step = at
            while (
                step < len(tokens)
                and step - at < 4
                and tokens[step].low not in node.after
                and skipped(tokens[step])
            ):  # adverbs in a row
                step += 1
            if step < len(tokens) and tokens[step].low == "from" and "from" not in node.after:
                passed = pass_origin(step)
                if passed > step:
                    origin, step = (step + 1, passed), passed
            following = node.after.get(tokens[step].low) if step < len(tokens) else None
            if following is None:
                return found
            node, at, depth = following, step + 1, depth + 1


def skipped(token: Token) -> bool:
    """Whether a word may stand between the words of a phrase without changing it."""
    return token.low in lex.ADVERBS or (token.low.endswith("ly") and token.text.islower())


def _words(phrase: str) -> list[str]:
    """Return the words as a sentence's tokens: "can't" is "can" and "n't"; alternatives stay joined."""
    words: list[str] = []
    for word in phrase.split():
        words += [word] if "|" in word else [token.low for token in tokenise(word, 0, len(word))]
    return words
