"""A fact that a reader listed, and whether it is a labelled fact."""

from __future__ import annotations

from dataclasses import dataclass

from bench.labelled_set.labels import LabelledFact
from bench.labelled_set.spelling import has_cue, normal_name

_FIRST_PERSON = frozenset("i me myself we us speaker yo ich je moi mich".split())


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadFact:
    """A fact that a reader listed. start, end: ISO dates as the reader gave them, None = no date."""

    subject: str
    object: str
    relation: str
    text: str
    status: str
    start: str | None = None
    end: str | None = None


def end_name(name: str, speaker: str | None) -> str:
    """Return the name of a fact's end; a pronoun of the first person means the speaker."""
    return speaker if speaker and normal_name(name) in _FIRST_PERSON else name


def is_match(gold: LabelledFact, fact: ReadFact) -> bool:
    """Return whether a reader's fact has both ends of the label, in either order, and a cue."""
    straight = gold.subject.accepts(fact.subject) and gold.object.accepts(fact.object)
    exchanged = gold.subject.accepts(fact.object) and gold.object.accepts(fact.subject)
    return (straight or exchanged) and has_cue(gold.cues, fact.relation, fact.text)
