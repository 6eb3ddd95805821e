"""Names: their key, their tokens, and when one strictly expands another (R15, R16)."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

# A word with signs that belong to the name: C++, C#, A+, A- at its end, a sign before a number.
_PIECES = re.compile(r"(?:(?<!\S)[-+](?=\d))?[^\W_]+(?:['\u2019][^\W_]+)*(?:[+#]+|-(?!\S))?", re.UNICODE)
_POSSESSIVE = re.compile(r"['\u2019]s$")
_OUTER = " \t\"'\u2018\u2019\u201c\u201d,;:.!?()[]{}"
# Legal forms at the end of a company's name, which are often left out. Two-letter forms (AG, SA, AB, AS) are
# missing, because they are too often names themselves.
_LEGAL_FORMS = frozenset(
    "inc incorporated corp corporation company ltd limited llc llp plc gmbh sarl pty".split()
)
_STOP_WORDS = frozenset("the of and for at in on to from by with de la le el der die das".split())


@lru_cache(maxsize=16_384)
def key(surface: str) -> str:
    """Return the key of a name, ignoring case, width, spacing and outer punctuation: equal keys, one name.

    "acme" and "ACME." are one name; "C" and "C++", "Room 1" and "Room -1" are not.
    """
    folded = _folded(surface)
    return " ".join(word.rstrip(".,;:") or word for word in folded.strip(_OUTER).split()) or folded.strip()


@lru_cache(maxsize=16_384)
def tokens(surface: str) -> tuple[str, ...]:
    """Return the telling tokens of a name, in order: without legal forms at its end and stop words."""
    pieces = list(_pieces(surface))
    while len(pieces) > 1 and pieces[-1] in _LEGAL_FORMS:
        pieces.pop()
    telling = tuple(p for p in pieces[:-1] if p not in _STOP_WORDS) + tuple(pieces[-1:])
    return telling or (key(surface),)


def digits(surface: str) -> frozenset[str]:
    """Return the tokens with a digit; names where these differ are never the same (R15)."""
    return frozenset(t for t in tokens(surface) if any(c.isdigit() for c in t))


def strictly_expands(new: str, old: str) -> bool:
    """Whether `new` contains all of `old` and more (R16).

    Every token of the old name equals, or is an initial or prefix of, a token of the new one, in
    order, and the new name has more letters: "M. Webb" -> "Marcus Webb", never "Aero phone" ->
    "phone from Aero".
    """
    if _letters(new) <= _letters(old):
        return False
    later = iter(_pieces(new))
    return all(any(candidate.startswith(token) for candidate in later) for token in _pieces(old))


def initials(surface: str) -> tuple[str, ...]:
    """Return the initials of a name of several tokens, with and without its legal form; else ()."""
    pieces = [p for p in _pieces(surface) if p not in _STOP_WORDS]
    spelled = {"".join(p[0] for p in parts) for parts in (tokens(surface), pieces) if len(parts) > 1}
    return tuple(sorted(spelled))


def is_acronym(surface: str) -> bool:
    """Whether the surface is one word of two to six capitals, such as IBM."""
    return surface.isascii() and surface.isalpha() and surface.isupper() and 2 <= len(surface) <= 6


@lru_cache(maxsize=16_384)
def _pieces(surface: str) -> tuple[str, ...]:
    before, comma, after = _folded(surface).partition(",")
    if comma and "," not in after and after.strip() and after.strip(" .") not in _LEGAL_FORMS:
        before, after = after, before  # "Webb, Marcus" is "Marcus Webb"
    return tuple(_POSSESSIVE.sub("", piece) for piece in _PIECES.findall(f"{before} {after}"))


def _folded(surface: str) -> str:
    if surface.isascii():
        return surface.lower()
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", surface).casefold())
    return "".join(c for c in folded if not unicodedata.combining(c))


def _letters(surface: str) -> int:
    return sum(c.isalpha() for c in surface)
