"""Numbers, amounts of money and other values to their one form (records.Value)."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import NamedTuple

from kgray.records import Value

SIGNS = {"$": "USD", "€": "EUR", "£": "GBP", "¥": "JPY", "₹": "INR", "₽": "RUB", "₩": "KRW"}
CODES = frozenset(
    "USD EUR GBP JPY INR CHF CAD AUD NZD SEK NOK DKK PLN CZK HUF CNY KRW BRL MXN ZAR TRY RUB".split()
)
_UNIT_WORDS = {
    "dollar": "USD",
    "dollars": "USD",
    "bucks": "USD",
    "euro": "EUR",
    "euros": "EUR",
    "pound": "GBP",
    "pounds": "GBP",
    "yen": "JPY",
    "rupees": "INR",
    "francs": "CHF",
}
_NUMBER = r"\d{1,15}(?:[,']\d{3})*(?:\.\d{1,9})?"
_SCALE = r"(?:\s?(?:k|K|m|M|million|billion)\b)?"
_PRICE = re.compile(
    rf"(?P<sign>[$€£¥₹₽₩])\s?(?P<a>{_NUMBER})(?P<sa>{_SCALE})"
    rf"|(?P<code>[A-Z]{{3}})\s(?P<b>{_NUMBER})(?P<sb>{_SCALE})(?![\w])"
    rf"|(?<![\w.,])(?P<c>{_NUMBER})(?P<sc>{_SCALE})\s?(?P<unit>[$€£]|[A-Z]{{3}}\b|(?:dollars?|bucks|euros?|pounds?|yen|rupees|francs)\b)"
)
_SCALES = {"": 1, "k": 1_000, "m": 1_000_000, "million": 1_000_000, "billion": 1_000_000_000}


class Price(NamedTuple):
    """An amount of money at text[start:end]."""

    start: int
    end: int
    value: Value


def number(text: str) -> str:
    """Return the shortest decimal of a number: "100.0" and "1e2" are "100". ValueError where it is none."""
    try:
        exact = Decimal(text)
        if not exact.is_finite():
            raise ValueError(f"{text!r} is not a finite number")
        if abs(exact.adjusted()) > 40:  # no amount is that long; zeros are not written out
            raise ValueError(f"{text[:40]!r} is too large or too small for a number")
        plain = f"{exact:f}"
    except InvalidOperation:
        raise ValueError(f"{text!r} is not a number") from None
    plain = plain.rstrip("0").rstrip(".") if "." in plain else plain
    return "0" if plain in {"", "-0"} else plain


def prices(text: str, start: int, end: int) -> list[Price]:
    """Return the amounts of money in text[start:end], in order."""
    found = []
    for match in _PRICE.finditer(text, start, end):
        raw = match["a"] or match["b"] or match["c"]
        scale = (match["sa"] or match["sb"] or match["sc"] or "").strip().lower()
        unit = _unit(match["sign"] or match["code"] or match["unit"])
        if unit is None:
            continue
        amount = Decimal(re.sub("[,']", "", raw)) * _SCALES[scale]
        found.append(Price(match.start(), match.end(), Value("number", number(str(amount)), unit)))
    return found


def _unit(word: str) -> str | None:
    if word in SIGNS:
        return SIGNS[word]
    return word if word in CODES else _UNIT_WORDS.get(word.lower())
