"""Comparison of two English sentences by rules: equal words, a negation, a verb of ending.

    same         "Alice is a member of the choir", "Alice is member of choir"
    contradicts  "Alice does not like tea", "Alice likes tea"
    ends         "Alice left Acme in May", "Alice works at Acme"; endings.toml lists the verbs

Only sentences of the form subject, verb, object are understood. Any other pair is independent: a wrong "same"
or "ends" costs more than a missing one (R15). Sentences with "I" or "she" are independent unless their words
are equal, because two speakers may have said them.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

from kgray.words import plain_words, stem

_EMPTY = frozenset("a an the is are also now currently still".split())  # words without influence
_NEGATIONS = frozenset({"not", "never"})
_SUPPORTS = frozenset({"do", "does"})  # auxiliaries that a negation brings along
_SHORT_NOT = re.compile(r"n['’]t\b", re.IGNORECASE)
_NO_LONGER = re.compile(r"\bno longer\b|\bnot any ?more\b", re.IGNORECASE)
_FULL = {"ca": "can", "wo": "will"}  # the verb in "can't" and "won't"
_BEFORE_OBJECT = frozenset("a an the his her their its".split())
_BEFORE_VERB = frozenset("has have had just recently finally already".split())
_PRONOUNS = frozenset("i we you he she it they me us him them my our".split())


class Ending(NamedTuple):
    """A phrase that ends states. Phrases are words in lower case."""

    phrase: tuple[str, ...]
    states: tuple[tuple[str, ...], ...]
    symmetric: bool  # whether the state may have its two ends in reverse order


def compare_sentences(sentence: str, candidate: str) -> str:
    """Return the word that answers the comparison: same, contradicts, ends or independent."""
    words, candidate_words = _content(sentence), _content(candidate)
    if words == candidate_words:
        return "same"
    if not _PRONOUNS.isdisjoint([*words, *candidate_words]):
        return "independent"
    if not _NO_LONGER.search(candidate) and _is_former(sentence, candidate):
        return "ends"
    if _is_negation(words, candidate_words):
        return "contradicts"
    return "ends" if _is_ended(sentence, candidate) else "independent"


def _content(sentence: str) -> list[str]:
    """Return the words of a sentence in order, in lower case, "not" for "n't", without empty words."""
    words = [_FULL.get(word, word) for word in plain_words(_SHORT_NOT.sub(" not", sentence))]
    return [word for word in words if word not in _EMPTY]


def _is_negation(first: Sequence[str], second: Sequence[str]) -> bool:
    """Return whether exactly one of two sentences is negated, and they are equal otherwise."""
    is_negated = [not _NEGATIONS.isdisjoint(words) for words in (first, second)]
    return is_negated[0] != is_negated[1] and _without_negation(first) == _without_negation(second)


def _without_negation(words: Iterable[str]) -> list[str]:
    return [stem(word) for word in words if word not in _NEGATIONS | _SUPPORTS]


def _is_former(sentence: str, candidate: str) -> bool:
    """Return whether a sentence is the candidate with the words "no longer"."""
    state = _NO_LONGER.sub(" ", sentence)
    return state != sentence and _without_negation(_content(state)) == _without_negation(_content(candidate))


def _is_ended(sentence: str, candidate: str) -> bool:
    """Return whether a sentence states the end of a candidate with the same subject and object."""
    words, state_words = sentence.split(), candidate.split()
    for ending in _ENDINGS:
        for (subject, target), state in product(_parts(words, ending.phrase), ending.states):
            for first, last in _parts(state_words, state):
                ends = [(first, last), (last, first)] if ending.symmetric else [(first, last)]
                if any(
                    _key(_without_auxiliaries(subject)) == _key(a) and _begins_with(target, b)
                    for a, b in ends
                ):
                    return True
    return False


def _parts(words: Sequence[str], phrase: Sequence[str]) -> Iterator[tuple[Sequence[str], Sequence[str]]]:
    """Yield the words before and after each place of a phrase that has words on both sides."""
    low, size = [word.casefold() for word in words], len(phrase)
    for at in range(1, len(words) - size):
        if tuple(low[at : at + size]) == tuple(phrase):
            yield words[:at], words[at + size :]


def _begins_with(words: Sequence[str], name: Sequence[str]) -> bool:
    """Return whether words begin with a name, and do not continue with a longer name.

    "Acme in May" begins with the name Acme, "Acme Labs" does not.
    """
    words, name = _bare(words), _bare(name)
    head, tail = words[: len(name)], words[len(name) :]
    goes_on = tail and not tail[0].islower() and head[-1:] and head[-1][-1].isalnum()
    return bool(name) and _key(head) == _key(name) and not goes_on


def _without_auxiliaries(words: Sequence[str]) -> Sequence[str]:
    """Return the words of a subject without the auxiliaries and adverbs that follow it: "Alice has just"."""
    size = len(words)
    while size and words[size - 1].casefold() in _BEFORE_VERB:
        size -= 1
    return words[:size]


def _bare(words: Sequence[str]) -> Sequence[str]:
    """Return words without the articles and possessives at their start."""
    first = next((at for at, word in enumerate(words) if word.casefold() not in _BEFORE_OBJECT), len(words))
    return words[first:]


def _key(words: Sequence[str]) -> list[str]:
    return plain_words(" ".join(_bare(words)))


def _phrases(rows: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """Return the phrases of rows such as "works at|for", the longest first."""
    phrases = [words for row in rows for words in product(*(part.split("|") for part in row.split()))]
    return tuple(sorted(phrases, key=len, reverse=True))


def _endings() -> tuple[Ending, ...]:
    table = tomllib.loads(Path(__file__).with_name("endings.toml").read_text(encoding="utf-8"))
    return tuple(
        Ending(phrase, _phrases(row["states"]), row.get("symmetric", False))
        for row in table["endings"]
        for phrase in _phrases(row["ends"])
    )


_ENDINGS = _endings()
