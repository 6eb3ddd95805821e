"""The tables of English in words.toml: `words.PLACES` is the list `places`, in lower case."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

_TABLES = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
RECORD_KEYS: list[str] = _TABLES.pop("record_keys")
RECORD_NAMES: list[str] = _TABLES.pop("record_names")
BE: dict[str, str] = _TABLES.pop("be")
TENSES: dict[str, str] = _TABLES.pop("tenses")
CURRENCY_OF = {word: code for code, listed in _TABLES.pop("money").items() for word in listed.split()}
# Each auxiliary and how it stands in the table of tenses.
AUXILIARIES = {
    word: form or word for form, listed in _TABLES.pop("auxiliaries").items() for word in listed.split()
}
# A list with phrases is separated by commas; a line's end is a space.
_LISTS = {
    name.upper(): frozenset(" ".join(part.split()) for part in text.split("," if "," in text else None))
    for name, text in _TABLES.items()
}
FUNCTION_WORDS = _LISTS["NOT_NOUNS"] | _LISTS["PREPOSITIONS"] | _LISTS["DETERMINERS"]
NOT_NAMES_AT_THE_START = FUNCTION_WORDS.union(
    AUXILIARIES,
    *(_LISTS[name] for name in ("STARTS", "NOT_NAMES", "TITLES", "ADVERBS", "OPENERS", "LEADS", "HEDGES")),
)
globals().update(_LISTS)
if TYPE_CHECKING:

    def __getattr__(name: str) -> frozenset[str]: ...
