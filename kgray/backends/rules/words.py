"""Closed word lists of English: words.toml as sets of lower-case words and phrases."""

from __future__ import annotations

import tomllib
from pathlib import Path

_LISTS = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))


def _words(name: str) -> frozenset[str]:
    """Return a list of the file; one with phrases is separated by commas."""
    text: str = _LISTS[name]
    return frozenset(part.strip() for part in (text.split(",") if "," in text else text.split()))


FIRST_NAMES = _words("first_names")
PLACES = _words("places")
LANGUAGES = _words("languages")
ORGANISATIONS = _words("organisations")
TITLES = _words("titles")
THINGS = _words("things")
GROUPS = _words("groups")
NOT_NAMES = _words("not_names")
ROLE_SPEAKERS = _words("role_speakers")
ROLE_HEADS = _words("role_heads")
NO_ROLE = _words("no_role")
OFFICES = _words("offices")
STATUSES = _words("statuses")
PROBLEMS = _words("problems")
BELONGINGS = _words("belongings")
DETERMINERS = _words("determiners")
PLAIN_ADJECTIVES = _words("plain_adjectives")
NOT_NOUNS = _words("not_nouns")
PREPOSITIONS = _words("prepositions")
LOOSE_PREPOSITIONS = _words("loose_prepositions")
ADVERBS = _words("adverbs")
OPENERS = _words("openers")
HEDGES = _words("hedges")
TAKEN_BACK = _words("taken_back")
PARTLY = _words("partly")
NEGATIONS = _words("negations")
# Each auxiliary and its form in the table of verb groups: tenses.py.
AUXILIARIES = {
    **dict.fromkeys(("am", "is", "are", "'m", "'re", "be"), "be"), **dict.fromkeys(("was", "were"), "was"),
    **dict.fromkeys(("have", "has", "'ve"), "have"), **dict.fromkeys(("do", "does"), "do"),
    **dict.fromkeys(("will", "'ll"), "will"), **dict.fromkeys(("not", "n't"), "not"),
    **{word: word for word in "been did never no longer used to going 's had can got".split()},
}  # fmt: skip
FUNCTION_WORDS = NOT_NOUNS | PREPOSITIONS | DETERMINERS
NOT_NAMES_AT_THE_START = frozenset(AUXILIARIES).union(
    _words("starts"), NOT_NAMES, TITLES, FUNCTION_WORDS, ADVERBS, OPENERS, HEDGES
)
