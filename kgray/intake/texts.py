"""Cuts a text file at paragraph borders into pieces, in order, each with its position in the file."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from kgray.errors import InputError

PIECE = 1_500  # characters: short enough for one extraction to read well, and few calls a page
MAX_PARAGRAPH = 8_000  # a longer paragraph is cut at the end of a sentence
_BLOCK = 1 << 16
_BORDER = re.compile(r"(?:\r?\n[ \t]*){2,}")
_SENTENCE = re.compile(r"[.!?。！？][\"')\]]*\s+|\s*\r?\n\s*")


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive paragraphs. start, end: characters [start, end) of the file; line: 1-based."""

    text: str
    start: int
    end: int
    line: int


def pieces(file: BinaryIO) -> Iterator[Piece]:
    """Yield a text in order, paragraphs put together up to PIECE characters.

    The same text gives the same pieces; a BOM is ignored. Raises InputError where the bytes are not UTF-8,
    after it has yielded the text before them.
    """
    held: Piece | None = None
    for paragraph in _paragraphs(file):
        if held is not None and paragraph.end - held.start <= PIECE:
            gap = paragraph.start - held.end
            joint = "\n\n" if gap > 1 else "\n"
            held = Piece(held.text + joint + paragraph.text, held.start, paragraph.end, held.line)
            continue
        if held is not None:
            yield held
        held = paragraph
    if held is not None:
        yield held


def _paragraphs(file: BinaryIO) -> Iterator[Piece]:
    """Yield stripped paragraphs; at most MAX_PARAGRAPH characters and one block are held."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    text, start, line, ended = "", 0, 1, False
    while not ended:
        block = file.read(_BLOCK)
        ended = not block
        try:
            more = decoder.decode(block, ended)
        except UnicodeDecodeError:
            raise InputError(f"not valid UTF-8 after line {line + text.count(chr(10))}") from None
        text += more.removeprefix("\ufeff") if start == 0 and not text else more
        while end := _next_border(text, ended=ended):
            yield from _piece(text[:end], start, line)
            line += text.count("\n", 0, end)
            text, start = text[end:], start + end


def _next_border(text: str, *, ended: bool) -> int:
    """Return where the first paragraph ends, its border included; 0 = more must be read first."""
    border = _BORDER.search(text, 0, MAX_PARAGRAPH + 1)
    if border and (border.end() < len(text) or ended):
        return border.end()
    if len(text) <= MAX_PARAGRAPH:
        return len(text) if ended else 0
    cuts = [match.end() for match in _SENTENCE.finditer(text, 0, MAX_PARAGRAPH)]
    if cuts and cuts[-1] > PIECE:
        return cuts[-1]
    return text.rfind(" ", PIECE, MAX_PARAGRAPH) + 1 or MAX_PARAGRAPH


def _piece(raw: str, start: int, line: int) -> Iterator[Piece]:
    text = raw.strip()
    if text:
        before = len(raw) - len(raw.lstrip())
        yield Piece(text, start + before, start + before + len(text), line + raw.count("\n", 0, before))
