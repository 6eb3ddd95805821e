"""Clauses to evidence: holds, ended, denied or happened, and from when to when (R3, R6, R18).

| phrase | present | past | perfect | used to | future | no longer | never |
|---|---|---|---|---|---|---|---|
| state ("works at") | holds | ended | holds, if "since" | ended | holds, if dated | ended | denied |
| start ("joined") | holds, if dated | holds | holds | | holds, if dated | | denied, if an event |
| end ("left") | ended, if dated | ended | ended | | ended, if dated | | |
| event ("met") | | happened | happened | | | | denied |

Without a date, something holds from, or ended at, the reference time, inferred; the future counts only with
a date. A past state has ended if it is dated, or if there can be only one at a time: "I loved the film" does
not say that it has. A plain "does not work at" gives no evidence: it may never have been so. "Never moved to
Rome" may be said by somebody who was born there.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from kgray.backends.rules.clauses import Clause
from kgray.backends.rules.grammar import PATTERNS, THIRD, WORDS, Mode, Phrase, third_person
from kgray.backends.rules.marking import MarkedSentence
from kgray.dates import DatedMoment, resolve
from kgray.ontology import RelationType
from kgray.records import EvidenceKind, clean_text
from kgray.times import Instant

_MAX_WORDING = 400


class Timing(NamedTuple):
    """The kind of evidence, and when it began and ended; None = not stated."""

    kind: EvidenceKind
    start: DatedMoment | None = None
    end: DatedMoment | None = None


class _Stated(NamedTuple):
    """The dates of a clause. lasting: the start is that of a period that still goes on, "since 2018"."""

    start: DatedMoment | None = None
    end: DatedMoment | None = None
    lasting: bool = False


def timing_of(
    clause: Clause, phrase: Phrase, reference: Instant, *, has_opposite: bool = False
) -> Timing | None:
    """Return what kind of evidence a clause is, and its times; None = it says nothing certain.

    phrase        the clause's own, or that of an event that it tells of too
    has_opposite  another relation means the opposite, so that "does not like" is evidence of that one
    """
    (time, polarity), mode = clause.tense, phrase.mode
    stated = _stated(clause, reference, mode)
    if clause.denied:
        return Timing("denied")
    if stated is None:
        return None
    if polarity == "never":
        is_event = mode == "start" and not phrase.relation.phrases
        return Timing("denied") if (mode in {"state", "event"} or is_event) and not clause.dates else None
    if mode == "state":
        return _state(clause, stated, (reference, "instant"), has_opposite=has_opposite)
    happened = time in {"past", "perfect"}
    moment = stated.start or ((reference, "instant") if happened else None)
    unclear = (
        polarity or stated.lasting or stated.end or time == "former" or (mode == "event" and not happened)
    )
    if unclear or moment is None or happened != (moment[0] <= reference):
        return None
    if mode == "end":
        return Timing("ended", end=moment)
    return Timing("happened" if mode == "event" else "holds", start=moment)


def _state(clause: Clause, stated: _Stated, now: DatedMoment, *, has_opposite: bool) -> Timing | None:
    """Return what a state says, such as "works at"; now: the reference time."""
    (time, polarity), (start, end, lasting) = clause.tense, stated
    if time in {"past", "former"}:
        single = clause.phrase.relation.cardinality == "single" and clause.phrase.slot not in {
            "status",
            "price",
        }
        if start is end is None and (time == "former" or single):
            return Timing("ended", end=now)
        if end is None or end[0] > now[0] or (start and start[0] >= end[0]):
            return None  # "I worked at Acme in 2015": when did it end?
        return Timing("holds", start, end) if start else Timing("ended", end=end)
    if time == "future" and (start is None or start[0] <= now[0]):
        return None
    if polarity == "no longer":
        return Timing("ended", end=start or now) if end is None else None
    if polarity == "not" and time == "perfect":  # "has not worked at Acme since 2020"
        return Timing("ended", end=start) if start and lasting else None
    if polarity == "not":
        return Timing("holds", start=now) if has_opposite and not clause.dates else None
    once = time == "perfect" and not lasting  # "I have worked at Acme": does it still hold?
    moment = start is not None and not lasting and time != "future"  # "works at Acme on Friday"
    if once or moment or (end and end[0] <= max(now, start or now)[0]):
        return None
    return Timing("holds", start or now, end)


def _stated(clause: Clause, reference: Instant, mode: Mode) -> _Stated | None:
    """Return the dates of a clause; None where one is unreadable or one too many."""
    start = end = None
    lasting, time = False, clause.tense.time
    for date in clause.dates:
        if date.role == "length" and mode in {"start", "end"}:
            return None  # "left Acme for a week" did not leave it
        if date.role == "length" and (time in {"past", "former"} or mode == "event"):
            continue  # "worked at Acme for three years": not when
        if date.first.words.lower() in WORDS["at_present"] and (date.role, time) == ("at", "present"):
            continue  # "works at Acme today" says no more than "works at Acme"
        # Whether an open date ("on Friday") lies after the reference time.
        ahead = date.role != "length" and time not in {"past", "perfect", "former"}
        ahead = ahead and (time != "present" or clause.phrase.mode != "state" or date.role == "until")
        first = resolve(date.first, reference, future=ahead)
        second = resolve(date.second, reference, future=ahead) if date.second else None
        if first is None or date.role == "other" or (date.second and second is None):
            return None
        if date.role == "until":
            first, second = None, first
        if (first and start) or (second and end):
            return None
        start, end = first or start, second or end
        lasting = lasting or date.role in {"since", "length", "range"}
    return _Stated(start, end, lasting)


def share_dates(clauses: list[Clause]) -> None:
    """Give "left Acme" of "left Acme and joined Beta in May" the date of the other, and the reverse."""
    for first, second in pairwise(clauses):
        if second.elided and "state" not in {first.phrase.mode, second.phrase.mode}:
            first.dates, second.dates = first.dates or second.dates, second.dates or first.dates


def other_side(timing: Timing, relation: RelationType) -> Timing | None:
    """Return what a change says of its other side: "moved from Acme to Beta" ends Acme when Beta begins."""
    if relation.object != "entity" or timing.kind == "denied":
        return None
    return Timing("ended", end=timing.start) if timing.kind == "holds" else Timing("holds", start=timing.end)


def wording_of(sentence: MarkedSentence, clause: Clause) -> str:
    """Return the clause's words as a sentence about its subject, in the third person."""
    units = sentence.units
    verb = units[clause.verb]
    group = [unit.low for unit in units[clause.first : clause.verb + 1]]
    if clause.subject.pronoun:
        present = clause.tense.time == "present" and WORDS["before_base"].isdisjoint(group)
        group = [THIRD.get(word, word) for word in group]
        if present and verb.low == clause.phrase.verb:
            group[-1] = third_person(verb.low)
    head = " ".join({"'s": "is", "'ll": "will"}.get(word, word) for word in group)
    rest, last = "", verb.end
    for unit in units[clause.verb + 1 : clause.end]:
        rest += sentence.text[last : unit.start] + ("" if unit.date else sentence.text[unit.start : unit.end])
        last = unit.end
    qualifier = PATTERNS["qualifier"].match(sentence.text, last)
    rest += qualifier[0] if qualifier else ""
    speaker = sentence.speaker.name if sentence.speaker else ""
    own = "their" if clause.subject.pronoun else f"{speaker}'s"
    said = PATTERNS["first_person"].sub(
        lambda word: own if word[0].lower() in {"my", "our"} else speaker, rest
    )
    text = clean_text(f"{clause.subject.text} {head}{said}".replace(" n't", "n't").replace("cann't", "can't"))
    return text[:_MAX_WORDING].strip()
