"""A text to sentences, a sentence to tokens; in linear time, whatever the text is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

MAX_TEXT = 100_000  # characters; the rest of a longer text is not read
MAX_SENTENCE = 1_000  # a longer stretch without an end is cut at a space

_END = re.compile(r"[.!?…]+[\"'”’)\]]*(?=\s)|[。！？]|\n\s*\n|\n(?=[ \t]*(?:[-*•#]|\d+[.)]))")
_ABBREVIATIONS = frozenset("mr mrs ms dr prof inc ltd corp co st vs etc e.g i.e no jr sr dept approx".split())
_LAST_WORD = re.compile(r"([^\W\d_](?:[\w.]{0,12}[^\W_])?)$")
_REPLY = re.compile(r"^[ \t]*>.*$", re.MULTILINE)  # a line of another message
_ASKED = re.compile(
    r",\s*(?:right|correct|huh|eh|innit|yes|yeah|no)\W*$", re.IGNORECASE
)  # and a question mark
_TOKEN = re.compile(
    r"https?://[^\s]{1,2000}"
    r"|[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{1,64}){1,4}"
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
    """A stretch of the text with at least one token.

    question  it asks. quoted: it begins inside a quotation that an earlier sentence opened
    """

    start: int
    end: int
    tokens: list[Token]
    question: bool
    quoted: bool


def sentences(text: str) -> Iterator[Sentence]:
    """Yield the sentences of the first MAX_TEXT characters; lines quoted with ">" are left out."""
    shown = _REPLY.sub(lambda line: " " * len(line[0]), text[:MAX_TEXT])
    open_quotes = 0
    for start, end in _stretches(shown):
        words = shown[start:end]
        if "\n\n" in words:
            open_quotes = 0  # a quotation that was never closed ends with its paragraph
        tokens = list(tokenise(shown, start, end))
        if tokens:
            yield Sentence(start, end, tokens, _asks(words), open_quotes > 0)
        open_quotes = (open_quotes + words.count('"')) % 2 if '"' in words else open_quotes
        open_quotes = max(0, open_quotes + words.count("“") - words.count("”"))


def _asks(words: str) -> bool:
    return "?" in words or "？" in words or _ASKED.search(words) is not None


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
    return word[1].lower() in _ABBREVIATIONS or (len(word[1]) == 1 and word[1].isupper() and word[1] != "I")


def _cut(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    while end - start > MAX_SENTENCE:
        space = text.rfind(" ", start + MAX_SENTENCE // 2, start + MAX_SENTENCE)
        border = space if space > 0 else start + MAX_SENTENCE
        yield start, border
        start = border
    if end > start:
        yield start, end


def tokenise(text: str, start: int, end: int) -> Iterator[Token]:
    """Yield the tokens of text[start:end]; "don't" gives "do" and "n't", "cannot" gives "can" and "not"."""
    for match in _TOKEN.finditer(text, start, end):
        word, (first, last) = match[0], match.span()
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
