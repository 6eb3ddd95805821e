"""The token counter: an estimate that needs no model's vocabulary and is rather too high than too low."""

from __future__ import annotations

import re
import unicodedata

_PIECES = re.compile(r"[A-Za-z]+|\s+|[^A-Za-z\s]")
_LETTERS_A_TOKEN = 4
_WIDE = ("W", "F")


def count_tokens(text: str) -> int:
    """Return how many tokens `text` takes, by this fixed rule.

    ASCII letters   one for each 4 of a run, begun ones counted: "the" 1, "works" 2
    spaces          a single space: none, it belongs to the next word; any other run: one a character
    CJK             one a character (full-width signs too; emoji: 3)
    anything else   one for each byte but the last of its UTF-8 form, at least one: digits and
                    punctuation 1, accented and Cyrillic letters 1, Thai and Devanagari 2, beyond the BMP 3

    English prose counts about a third more than the vocabularies of current models make of it, so a
    block within a budget here is within it there; old vocabularies may need more for Chinese.
    Texts joined by a newline cost their sum and one, if neither starts or ends with a space.
    """
    return sum(map(_cost, _PIECES.findall(text)))


def _cost(piece: str) -> int:
    first = piece[0]
    if "A" <= first <= "Z" or "a" <= first <= "z":
        return -(-len(piece) // _LETTERS_A_TOKEN)
    if first.isspace():
        return 0 if piece == " " else len(piece)
    point = ord(first)
    if point < 0x800:
        return 1
    if point < 0x10000:
        return 1 if unicodedata.east_asian_width(first) in _WIDE else 2
    return 1 if 0x20000 <= point < 0x40000 else 3  # the supplementary ideographs are CJK too
