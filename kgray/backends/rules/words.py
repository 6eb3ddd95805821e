"""Closed word lists of English: `words.PLACES` is the list `places` of words.toml, in lower case."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

_FILE = Path(__file__).with_name("words.toml")
# A list with phrases is separated by commas.
_LISTS = {
    name.upper(): frozenset(part.strip() for part in text.split("," if "," in text else None))
    for name, text in tomllib.loads(_FILE.read_text(encoding="utf-8")).items()
}
# Each auxiliary and its form in the table of verb groups: verbs.py.
AUXILIARIES = {
    **dict.fromkeys(("am", "is", "are", "'m", "'re", "be"), "be"), **dict.fromkeys(("was", "were"), "was"),
    **dict.fromkeys(("have", "has", "'ve"), "have"), **dict.fromkeys(("do", "does"), "do"),
    **dict.fromkeys(("will", "'ll"), "will"), **dict.fromkeys(("not", "n't"), "not"),
    **{word: word for word in "been did never no longer used to going 's had can got".split()},
}  # fmt: skip
FUNCTION_WORDS = _LISTS["NOT_NOUNS"] | _LISTS["PREPOSITIONS"] | _LISTS["DETERMINERS"]
NOT_NAMES_AT_THE_START = FUNCTION_WORDS.union(
    AUXILIARIES,
    *(_LISTS[name] for name in ("STARTS", "NOT_NAMES", "TITLES", "ADVERBS", "OPENERS", "LEADS", "HEDGES")),
)
globals().update(_LISTS)
if TYPE_CHECKING:

    def __getattr__(name: str) -> frozenset[str]: ...
