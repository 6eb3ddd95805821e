"""Amounts of money in a text to their one form (records.Value)."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import NamedTuple

from kgray.records import Value, clean_number

CODES = frozenset(
    "USD EUR GBP JPY INR CHF CAD AUD NZD SEK NOK DKK PLN CZK HUF CNY KRW BRL MXN ZAR TRY RUB".split()
)
_UNITS = {
    "$": "USD", "€": "EUR", "£": "GBP", "¥": "JPY", "₹": "INR", "₽": "RUB", "₩": "KRW", "dollar": "USD",
    "dollars": "USD", "bucks": "USD", "euro": "EUR", "euros": "EUR", "pound": "GBP", "pounds": "GBP",
    "yen": "JPY", "rupees": "INR", "francs": "CHF",
}  # fmt: skip
_NUMBER = r"\d{1,15}(?:[,']\d{3})*(?:\.\d{1,9})?"
_SCALE = r"(?:\s?(?:k|K|m|M|million|billion)\b)?"
_PRICE = re.compile(
    rf"(?P<sign>[$€£¥₹₽₩])\s?(?P<a>{_NUMBER})(?P<sa>{_SCALE})(?![-–]?\d)"
    rf"|(?P<code>[A-Z]{{3}})\s(?P<b>{_NUMBER})(?P<sb>{_SCALE})(?![\w])"
    rf"|(?<![\w.,])(?P<c>{_NUMBER})(?P<sc>{_SCALE})\s?"
    r"(?P<unit>[$€£]|[A-Z]{3}\b|(?:dollars?|bucks|euros?|pounds?|yen|rupees|francs)\b)"
)
_SCALES = {"": 1, "k": 1_000, "m": 1_000_000, "million": 1_000_000, "billion": 1_000_000_000}


class Price(NamedTuple):
    """An amount of money at text[start:end]."""

    start: int
    end: int
    value: Value


def find_prices(text: str, start: int, end: int) -> list[Price]:
    """Return the amounts of money in text[start:end], in order."""
    found = []
    for match in _PRICE.finditer(text, start, end):
        raw = match["a"] or match["b"] or match["c"]
        scale = (match["sa"] or match["sb"] or match["sc"] or "").strip().lower()
        word = match["sign"] or match["code"] or match["unit"]
        unit = word if word in CODES else _UNITS.get(word.lower())
        if unit:
            amount = Decimal(re.sub("[,']", "", raw)) * _SCALES[scale]
            found.append(Price(match.start(), match.end(), Value("number", clean_number(amount), unit)))
    return found
