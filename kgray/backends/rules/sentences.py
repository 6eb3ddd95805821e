"""A text to sentences, a sentence to tokens; in linear time, whatever the text is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

# Past this a text is not read on: a chat message is far below, and a file is split before it comes here.
MAX_TEXT = 100_000
# A longer stretch without an end is cut at a space: no clause is that long.
MAX_SENTENCE = 1_000

_END = re.compile(r"[.!?…]+[\"'”’)\]]*(?=\s)|[。！？]|\n\s*\n|\n(?=[ \t]*(?:[-*•#>]|\d+[.)]))")
_ABBREVIATIONS = frozenset(
    {
        "mr",
        "mrs",
        "ms",
        "dr",
        "prof",
        "inc",
        "ltd",
        "corp",
        "co",
        "st",
        "vs",
        "etc",
        "e.g",
        "i.e",
        "no",
        "jr",
        "sr",
        "dept",
        "approx",
    }
)
_LAST_WORD = re.compile(r"([^\W\d_](?:[\w.]{0,12}[^\W_])?)$")
_TOKEN = re.compile(
    r"https?://[^\s]{1,2000}"
    r"|[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{1,64}){1,4}"
    r"|@\w{1,64}"
    r"|(?:[A-Z]\.){1,4}(?=[\s,]|[A-Z])"
    r"|\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![\w])|\d+(?:[.:/-]\d+)*(?:st|nd|rd|th|%)?(?![\w])"
    r"|[^\W_]+(?:[-'’&][^\W_]+)*"
    r"|\S"
)
_CONTRACTION = re.compile(r"(.+?)(n['’]t|['’](?:s|m|re|ve|ll|d))$", re.IGNORECASE)
_STEMS = {"ca": "can", "wo": "will", "sha": "shall"}


class Token(NamedTuple):
    """A word, number or sign; [start, end) in the whole text. low: lower case, with straight quotes."""

    text: str
    low: str
    start: int
    end: int


class Sentence(NamedTuple):
    """A stretch of the text; never empty."""

    start: int
    end: int
    tokens: list[Token]
    question: bool


def sentences(text: str) -> Iterator[Sentence]:
    """Yield the sentences of the first MAX_TEXT characters that have a token."""
    for start, end in _stretches(text[:MAX_TEXT]):
        tokens = list(tokenise(text, start, end))
        if tokens:
            yield Sentence(
                start, end, tokens, "?" in text[max(start, end - 4) : end] or tokens[-1].text == "？"
            )


def _stretches(text: str) -> Iterator[tuple[int, int]]:
    start = 0
    for match in _END.finditer(text):
        if match[0] == "." and _abbreviated(text, match.start()):
            continue
        yield from _cut(text, start, match.end())
        start = match.end()
    yield from _cut(text, start, len(text))


def _abbreviated(text: str, dot: int) -> bool:
    word = _LAST_WORD.search(text, max(0, dot - 14), dot)
    if not word:
        return False
    low = word[1].lower()
    return low in _ABBREVIATIONS or (len(word[1]) == 1 and word[1].isupper() and word[1] != "I")


def _cut(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    while end - start > MAX_SENTENCE:
        space = text.rfind(" ", start + MAX_SENTENCE // 2, start + MAX_SENTENCE)
        border = space if space > 0 else start + MAX_SENTENCE
        yield start, border
        start = border
    if end > start:
        yield start, end


def tokenise(text: str, start: int, end: int) -> Iterator[Token]:
    """Yield the tokens of text[start:end]; "don't" gives "do" and "n't", "I'm" "I" and "'m"."""
    for match in _TOKEN.finditer(text, start, end):
        word = match[0]
        first, last = match.span()
        low = word.lower().replace("’", "'")
        if "'" in low and (parts := _CONTRACTION.match(word)):
            border = first + parts.end(1)
            stem = parts[1].lower()
            yield Token(parts[1], _STEMS.get(stem, stem), first, border)
            yield Token(parts[2], parts[2].lower().replace("’", "'"), border, last)
        elif low == "cannot":
            yield Token(word[:3], "can", first, first + 3)
            yield Token(word[3:], "not", first + 3, last)
        else:
            yield Token(word, low, first, last)
