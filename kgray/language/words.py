"""The words of a text for storing and searching; the same function for both.

Digits stay ("GPT-4" is not "GPT-5"), accents are dropped, and a run of Chinese, Japanese or Korean characters
gives its single characters and overlapping pairs, because no space divides its words.

Stop words (stopwords.txt, with their sources) apply to their own language only: German "die" is a content
word in an English question.
"""

from __future__ import annotations

import re
import sys
import threading
import unicodedata
import zlib
from array import array
from collections import Counter
from functools import cache, lru_cache
from itertools import chain, pairwise
from pathlib import Path
from typing import NamedTuple

from snowballstemmer import stemmer

# Only the start of a longer query is read: more words cost time and add no meaning.
MAX_QUERY_CHARACTERS = 10_000
MAX_QUERY_WORDS = 64
# Longer words are equal if their first 64 characters are; queries have no such words.
MAX_WORD = 64

_ASCII_WORD = re.compile(r"[a-z0-9]+")
_UNSPACED = re.compile(
    "([\u1100-\u11ff\u2e80-\u2fdf\u3005-\u3007\u3040-\u30ff\u3130-\u318f\u31a0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uac00-\ud7ff\uf900-\ufaff\U0001b000-\U0001b16f\U00020000-\U0003ffff]+)"
)


class _Folding(dict[int, str | None]):
    """Maps each decomposed character to itself, to a space, or (accents) to nothing."""

    def __missing__(self, code: int) -> str | None:
        character = chr(code)
        # Accents are above or below a letter (200 and up); 10-35 are Hebrew and Arabic vowel points. Other
        # classes carry meaning: Indic and Thai vowels, the voicing marks of kana.
        rank = unicodedata.combining(character)
        folded: str | None = character if unicodedata.category(character)[0] in "LMN" else " "
        if rank >= 200 or 10 <= rank <= 35:
            folded = None
        self[code] = folded
        return folded


_FOLDING = _Folding()


class _Stemmer(threading.local):
    """The English stemmer of each thread: a stemmer keeps the word that it works on."""

    def __init__(self) -> None:
        self.english = stemmer("english")


_STEMMER = _Stemmer()


# An ending that the English stemmer leaves on German plurals and French words. Without the ending, of 30
# questions in each language .90 in German find their message instead of .73, .97 in French instead of .93; 24
# more of 12,000 English words become equal ("list", "listen"). A stemmer for the language of each text is no
# better, and fails if a question has no stop words that reveal its language: .70 in German, .43 in Spanish.
_ENDING = re.compile(r"(?<=[a-z]{4})en?$")


@lru_cache(maxsize=16_384)
def stem(word: str) -> str:
    """Return the stem of a plain Latin word: Porter's second stemmer for English, then without -e and -en."""
    return (
        _ENDING.sub("", str(_STEMMER.english.stemWord(word))) if word.isascii() and word.isalpha() else word
    )


def plain_words(text: str) -> list[str]:
    """Return the words of a text in order, folded and not stemmed; any string, never an error."""
    if text.isascii():
        parts = _ASCII_WORD.findall(text.lower())
    else:
        plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", text).casefold())
        parts = unicodedata.normalize("NFC", plain.translate(_FOLDING)).split()
        if _UNSPACED.search(plain):
            parts = [part for word in parts for part in _divided(word)]
    return [word[:MAX_WORD] for word in parts]


def words(text: str) -> list[str]:
    """Return the words of a text in order, folded and stemmed; any string, never an error."""
    return [stem(word) for word in plain_words(text)]


@lru_cache(maxsize=65_536)
def term(word: str) -> int:
    """Return the stored number of a word: its CRC, 32 bits."""
    return zlib.crc32(word.encode())


def packed(text: str) -> bytes:
    """Return the stored terms of a text's words, in order, with repeats: uint32, little endian."""
    terms = array("I", map(term, words(text)))
    if sys.byteorder == "big":
        terms.byteswap()
    return terms.tobytes()


def _divided(word: str) -> list[str]:
    """Split the unspaced runs of a word into characters, then overlapping pairs."""
    parts: list[str] = []
    for at, part in enumerate(_UNSPACED.split(word)):
        if at % 2:  # the group of the pattern: a run
            parts += [*part, *map("".join, pairwise(part))]
        elif part:
            parts.append(part)
    return parts


class Language(NamedTuple):
    """Words of one language, plain (`kgray.language.words.plain_words`)."""

    stops: frozenset[str]
    dates: frozenset[str]  # signs of a date: names of months, "week", "yesterday"


@cache
def languages() -> dict[str, Language]:
    """Return the supported languages of questions by code, English first."""
    lines = Path(__file__).with_name("stopwords.txt").read_text(encoding="utf-8").splitlines()
    parts = [line.partition(":") for line in lines if not line.startswith("#")]
    return {code: Language(*(frozenset(x.split()) for x in sets.split("|"))) for code, _, sets in parts}


@cache
def _languages_of_words() -> dict[str, list[str]]:
    """Return word -> codes of the languages that have it."""
    codes: dict[str, list[str]] = {}
    for code, language in languages().items():
        for word in language.stops | language.dates:
            codes.setdefault(word, []).append(code)
    return codes


def language_of(plain: list[str]) -> str:
    """Return the code of the language that covers most of the words; English on a tie."""
    codes = _languages_of_words()
    covered = Counter(chain.from_iterable(codes.get(word, ()) for word in set(plain)))
    return max(languages(), key=covered.__getitem__)
