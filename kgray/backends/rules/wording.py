"""A clause to one self-contained sentence: pronouns become names, date phrases are removed.

Dates are fields of the fact. In its text they would make two statements out of "works at Acme" and "works at
Acme since 2018", whose wordings differ in digits (R18).
"""

from __future__ import annotations

import re

from kgray.backends.rules.clauses import Clause
from kgray.backends.rules.marking import MarkedSentence
from kgray.backends.rules.verbs import third_person
from kgray.records import clean_text

_MAX_WORDING = 400
_THIRD = {
    "am": "is",
    "'m": "is",
    "are": "is",
    "'re": "is",
    "were": "was",
    "have": "has",
    "'ve": "has",
    "do": "does",
}
_QUALIFIER = re.compile(r"(?: (?:part-time|full-time|remotely))+")
_FIRST_PERSON = re.compile(r"\b(?:my|our|me|us)\b", re.IGNORECASE)


def wording_of(sentence: MarkedSentence, clause: Clause) -> str:
    """Return the clause's words as a sentence about its subject, in the third person."""
    units = sentence.units
    verb = units[clause.place.verb]
    group = [unit.low for unit in units[clause.place.first : clause.place.verb + 1]]
    if clause.subject.pronoun:
        bare = (
            clause.tense.time == "present"
            and verb.low == clause.phrase.verb
            and not set(group) & {"do", "did", "will", "'ll", "to", "can"}
        )
        group = [_THIRD.get(word, word) for word in group]
        if bare:
            group[-1] = third_person(verb.low)
    head = " ".join({"'s": "is", "'ll": "will"}.get(word, word) for word in group)
    rest, last = "", verb.end
    for unit in units[clause.place.verb + 1 : clause.end]:
        rest += sentence.text[last : unit.start] + ("" if unit.date else sentence.text[unit.start : unit.end])
        last = unit.end
    qualifier = _QUALIFIER.match(sentence.text, last)
    rest += qualifier[0] if qualifier else ""
    speaker = sentence.speaker.name if sentence.speaker else ""
    own = "their" if clause.subject.pronoun else f"{speaker}'s"
    said = _FIRST_PERSON.sub(lambda word: own if word[0].lower() in {"my", "our"} else speaker, rest)
    text = clean_text(f"{clause.subject.text} {head}{said}".replace(" n't", "n't").replace("cann't", "can't"))
    return text[:_MAX_WORDING].strip()
