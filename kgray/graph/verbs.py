"""English verbs: a relation's name as words of a sentence, and the forms that show a tense."""

from __future__ import annotations

import tomllib
from functools import lru_cache
from pathlib import Path

_TABLES = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
ENGLISH: dict[str, list[str]] = {name: text.split() for name, text in _TABLES.items()}  # by list
_THIRD_TO_PAST = dict(pair.split(":") for pair in ENGLISH["third_to_past"])
_PASTS = frozenset(_THIRD_TO_PAST.values())
_PAST_TO_STATE = dict(pair.split(":") for pair in ENGLISH["past_to_state"])
_PARTICIPLES, _BASES = frozenset(ENGLISH["participles"]), frozenset(ENGLISH["bases"])
_PREPOSITIONS = frozenset(ENGLISH["prepositions"])
_ADJECTIVES = ("ic", "ible", "able", "ful", "ous", "lar", "ent", "ant")
_NO_VERB = ("ss", "us", "is")  # boss, status, basis: they end in s and are no third person
_IRREGULAR_THIRD = {"be": "is", "have": "has", "do": "does", "go": "goes"}


@lru_cache(maxsize=4_096)
def verb_phrase(relation: str, *, event: bool = False) -> str:
    """Return a relation's name in words: WORKS_AT is "works at", of an event "worked at"."""
    first, *following_words = relation.lower().split("_")
    # A span tells when: USED_TO_WORK_AT and WILL_START read true inside theirs.
    skipped = 2 if [first, *following_words[:1]] == ["used", "to"] else 1 if first == "will" else 0
    if skipped and len(following_words) >= skipped:
        base, *following_words = following_words[skipped - 1 :]
        first = _third_person(base)
    following = following_words[0] if following_words else ""
    verb = _state_verb(first, following if following in _PREPOSITIONS else "")
    if event:
        verb[0] = _past(verb[0])
    return " ".join((*verb, *following_words))


def _state_verb(first: str, preposition: str) -> list[str]:
    is_participle = first in _PARTICIPLES or first in _PASTS or first.endswith("ed")
    is_third = first.endswith("s") and not first.endswith(_NO_VERB)
    if first == "born":
        return ["was", first]
    if preposition and (first in _PARTICIPLES or (preposition == "by" and is_participle)):
        return ["is", first]
    if first in _PAST_TO_STATE:
        return [_PAST_TO_STATE[first]]
    if first in _BASES:
        return [_third_person(first)]
    if is_third or is_participle or first in _THIRD_TO_PAST:
        return [first]
    is_noun = preposition == "of"
    is_adjective = bool(preposition) and first.endswith(_ADJECTIVES)
    if is_noun or is_adjective or first in _PREPOSITIONS or first.endswith("ing"):
        return ["is", first]
    return [first]


def _third_person(base: str) -> str:
    if base in _IRREGULAR_THIRD:
        return _IRREGULAR_THIRD[base]
    if base.endswith("y") and base[-2] not in "aeiou":
        return f"{base[:-1]}ies"
    return base + ("es" if base.endswith(("s", "x", "ch", "sh")) else "s")


def _past(verb: str) -> str:
    if verb in _THIRD_TO_PAST:
        return _THIRD_TO_PAST[verb]
    if verb in _PASTS or not verb.endswith("s") or verb.endswith(_NO_VERB):
        return verb
    if verb.endswith("ies"):
        return f"{verb[:-3]}ied"
    base = verb[:-2] if verb.endswith(("sses", "xes", "ches", "shes")) else verb[:-1]
    return f"{base}d" if base.endswith("e") else f"{base}ed"


# Third persons of the present ("works"), and "am", "are", "have", "do".
PRESENT_VERBS = frozenset(
    {*_THIRD_TO_PAST, *_PAST_TO_STATE.values(), *map(_third_person, _BASES), "am", "have", "do"}
)
# Pasts that are not also the present ("put", "cost").
PAST_TENSES = frozenset(past for third, past in _THIRD_TO_PAST.items() if third != f"{past}s")
PAST_TENSES |= {_past(_third_person(base)) for base in _BASES} - {
    "put",
    "cost",
    "read",
} | _PAST_TO_STATE.keys()
PARTICIPLES = _PARTICIPLES
