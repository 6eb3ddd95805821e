"""Names: their key, their tokens, and when one strictly expands another (R15, R16)."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

_PIECES = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*", re.UNICODE)
_POSSESSIVE = re.compile(r"['\u2019]s$")
# Words that tell nothing about who is meant; a name made only of them keeps them.
_LEGAL_FORMS = frozenset(
    """inc incorporated corp corporation co company ltd limited llc llp plc gmbh ag sa sarl bv nv oy ab as kg
    pty""".split()
)
_STOP_WORDS = frozenset("the a an of and for at in on to from by with de la le el der die das".split())


@lru_cache(maxsize=65_536)
def key(surface: str) -> str:
    """Return the form under which two surfaces are the same name: case, width, marks and dots aside."""
    return " ".join(_pieces(surface)) or unicodedata.normalize("NFKC", surface).casefold().strip()


@lru_cache(maxsize=65_536)
def tokens(surface: str) -> tuple[str, ...]:
    """Return the telling tokens of a name, in order; legal forms and stop words dropped."""
    pieces = _pieces(surface)
    telling = tuple(p for p in pieces if p not in _LEGAL_FORMS and p not in _STOP_WORDS)
    return telling or pieces or (key(surface),)


def digits(surface: str) -> frozenset[str]:
    """Return the tokens that hold a digit: where they differ, two names are never one (R15)."""
    return frozenset(t for t in tokens(surface) if any(c.isdigit() for c in t))


def strictly_expands(new: str, old: str) -> bool:
    """Whether `new` tells all that `old` does and more (R16).

    Every token of the old name equals, or is an initial or prefix of, the token it pairs with, in
    order, and the new name has more letters: "M. Webb" -> "Marcus Webb", never "Aero phone" ->
    "phone from Aero".
    """
    if _letters(new) <= _letters(old):
        return False
    later = iter(_pieces(new))
    return all(any(candidate.startswith(token) for candidate in later) for token in _pieces(old))


def initials(surface: str) -> str:
    """Return the first letters of a name of several tokens, else ""."""
    parts = tokens(surface)
    return "".join(p[0] for p in parts) if len(parts) > 1 else ""


def is_acronym(surface: str) -> bool:
    """Whether the surface is one word of two to six capitals, such as IBM."""
    return surface.isascii() and surface.isalpha() and surface.isupper() and 2 <= len(surface) <= 6


@lru_cache(maxsize=65_536)
def _pieces(surface: str) -> tuple[str, ...]:
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", surface).casefold())
    bare = "".join(c for c in folded if not unicodedata.combining(c))
    return tuple(_POSSESSIVE.sub("", piece) for piece in _PIECES.findall(bare))


def _letters(surface: str) -> int:
    return sum(c.isalpha() for c in surface)
