"""What matters in a wording: digits, negation, qualifiers (R18).

Two wordings of the same subject, relation and object are one statement unless they differ here.
"""

from __future__ import annotations

import re
from functools import lru_cache

from kgray.times import Instant, to_datetime

_WORD = re.compile(r"[^\W_]+(?:[.,:/-][^\W_]+)*(?:['\u2019]t)?", re.UNICODE)
_NEGATIONS = frozenset("not no never none without nor cannot nobody nothing neither".split())
_QUALIFIERS = frozenset(
    """part-time full-time freelance temporary temporarily interim acting former formerly ex partly mostly
    only except unless rarely sometimes occasionally often usually always remotely jointly privately publicly
    secretly officially unofficially allegedly reportedly probably possibly maybe apparently decaf iced hot
    cold black green red blue white raw cooked dark light beta alpha preview draft final internal external
    junior senior deputy assistant honorary""".split()
)
# Phrases that only say when: their numbers are the fact's dates, told apart from its wording (R3).
_AGO = re.compile(
    r"\b(?:\d+|an?|one|two|three|four|five|six|seven|eight|nine|ten)\s+"
    r"(?:seconds?|minutes?|hours?|days?|weeks?|months?|years?)\s+(?:ago|later|earlier|from now)\b",
    re.IGNORECASE,
)
_MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec".split()
_ISO_DATE = re.compile(r"\d{4}-\d{2}(?:-\d{2})?(?:t[\d:.]+z?)?$")


@lru_cache(maxsize=16_384)
def _marks(text: str) -> tuple[frozenset[str], bool, frozenset[str]]:
    words = [w.casefold() for w in _WORD.findall(_AGO.sub(" ", text))]
    numbers = frozenset(w for w in words if any(c.isdigit() for c in w))
    negated = any(w in _NEGATIONS or w.endswith(("n't", "n\u2019t")) for w in words)
    return numbers, negated, frozenset(w for w in words if w in _QUALIFIERS)


def marks(text: str, dates: tuple[Instant | None, ...] = ()) -> tuple[frozenset[str], bool, frozenset[str]]:
    """Return (digits, negated, qualifiers) of a wording, less the digits that only tell its own dates."""
    numbers, negated, qualifiers = _marks(text)
    if numbers:
        numbers = frozenset(n for n in numbers if not _is_date_part(n, dates))
    return numbers, negated, qualifiers


def _is_date_part(number: str, dates: tuple[Instant | None, ...]) -> bool:
    if _ISO_DATE.match(number):
        return True
    for instant in dates:
        if instant is None:
            continue
        moment = to_datetime(instant)
        plain = number.rstrip("stndrh").lstrip("0")
        if plain in {str(moment.year), str(moment.day), str(moment.month)}:
            return True
    return False
