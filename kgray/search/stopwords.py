"""Words that say little, by language, and which language a text is in.

The words of one language are not left out of another: "die" is what an English question asks about. The lists
are in stopwords.txt, with their sources.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from importlib import resources
from itertools import chain
from typing import NamedTuple


class Language(NamedTuple):
    """Words of one language, plain (`kgray.words.plain_words`)."""

    stops: frozenset[str]
    dates: frozenset[str]  # what tells that a date may be mentioned: names of months, "week", "yesterday"


@cache
def languages() -> dict[str, Language]:
    """Return the languages that questions are read in, by their codes, English first."""
    lines = resources.files("kgray.search").joinpath("stopwords.txt").read_text(encoding="utf-8").splitlines()
    found = {}
    for line in lines:
        if not line.startswith("#"):
            code, _, rest = line.partition(":")
            stops, _, dates = rest.partition("|")
            found[code] = Language(frozenset(stops.split()), frozenset(dates.split()))
    return found


@cache
def _tells() -> dict[str, list[str]]:
    """Return the languages that each word speaks for."""
    told: dict[str, list[str]] = {}
    for code, language in languages().items():
        for word in language.stops | language.dates:
            told.setdefault(word, []).append(code)
    return told


def language_of(plain: list[str]) -> str:
    """Return the code of the language that covers most of the words; English on a tie."""
    told = _tells()
    covered = Counter(chain.from_iterable(told.get(word, ()) for word in set(plain)))
    return max(languages(), key=covered.__getitem__)
