"""Equality of names, values and relation words, as the score of readings needs it: generous and pure.

Case, accents, punctuation, articles and possessives do not count. Amounts of money have one form, so that
"€1,860", "1860 EUR" and "1,860.00 euros" are equal.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

# Articles and possessive pronouns of the languages in the shipped set.
_ARTICLES = frozenset(
    "the a an my our your his her its their der die das dem den des ein eine einen mein meine unser el la "
    "los las un una mi le les l une mon ma mes notre nos".split()
)
_CURRENCIES = {
    "€": "eur", "euro": "eur", "euros": "eur", "$": "usd", "dollar": "usd", "dollars": "usd",
    "£": "gbp", "pound": "gbp", "pounds": "gbp",
}  # fmt: skip
_SIGN_FIRST = re.compile(r"([€$£])\s*(\d[\d.,]*)( ?million)?")
_THOUSANDS = re.compile(r"(?<=\d)[,\u202f](?=\d{3}(?!\d))")
_MILLIONS = re.compile(r"(\d+(?:\.\d+)?) million\b")
_POSSESSIVE = re.compile(r"(?<=\w)['’](?:s\b|(?!\w))")
_TOKEN = re.compile(r"\d+(?:\.\d+)?|[€$£]|[^\W\d_]+")
_WORD_BORDER = re.compile(r"(?<=[a-z])(?=[A-Z])")
_INFLECTIONS = ("", "s", "es", "d", "ed", "ing")
_STEM_LETTERS = 4  # a shorter cue must be the whole word: "own" is not "owner"
_FURTHER_WORDS = 4  # words that a reader's value may have beside an accepted spelling


@lru_cache(maxsize=100_000)
def tokens_of(text: str) -> tuple[str, ...]:
    """Return the words and numbers of a text in their normal form, articles included."""
    folded = unicodedata.normalize("NFKD", text).casefold()
    folded = "".join(c for c in folded if not unicodedata.combining(c))
    folded = _THOUSANDS.sub("", _SIGN_FIRST.sub(r"\2\3 \1", folded))
    folded = _MILLIONS.sub(lambda match: f"{float(match[1]) * 1e6:.0f}", folded)
    folded = _POSSESSIVE.sub("", folded)
    return tuple(_CURRENCIES.get(token, _number(token)) for token in _TOKEN.findall(folded))


def _number(token: str) -> str:
    if token[0].isdigit() and "." in token:
        return token.rstrip("0").rstrip(".")
    return token


@lru_cache(maxsize=100_000)
def normal_name(name: str) -> str:
    """Return a form that is equal for all spellings of a name; "" for a text without words."""
    tokens = tokens_of(name)
    return " ".join([token for token in tokens if token not in _ARTICLES] or tokens)


def resembles(value: str, text: str) -> bool:
    """Return whether a text gives an accepted value: its words side by side, and at most 4 further words."""
    accepted, words = normal_name(value).split(), normal_name(text).split()
    if not accepted or len(words) > len(accepted) + _FURTHER_WORDS:
        return False
    return any(words[at : at + len(accepted)] == accepted for at in range(len(words) - len(accepted) + 1))


def has_cue(cues: tuple[str, ...], relation: str, sentence: str) -> bool:
    """Return whether a relation's name or a sentence contains a cue.

    A cue of four letters or more matches words that begin with it, a shorter cue the word itself and its
    inflections in -s, -ed, -ing. A cue of several words matches them side by side.
    """
    name = _WORD_BORDER.sub(" ", relation).replace("_", " ")
    return any(_has(tokens_of(cue), tokens_of(text)) for cue in cues for text in (name, sentence))


def _has(stems: tuple[str, ...], words: tuple[str, ...]) -> bool:
    """Return whether the words contain the stems, side by side."""
    return any(all(map(_begins, words[at:], stems)) for at in range(len(words) - len(stems) + 1))


def _begins(word: str, stem: str) -> bool:
    if len(stem) >= _STEM_LETTERS:
        return word.startswith(stem)
    return any(word == stem + ending for ending in _INFLECTIONS)
