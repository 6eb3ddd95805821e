"""Clauses to evidence: holds, ended or denied, and from when to when (R3, R6).

| phrase | present | past | has ... | used to | will ... | no longer | never |
|---|---|---|---|---|---|---|---|
| state ("works at") | holds | ended, if single-valued or dated | holds, if "since" | ended | holds from its date | ended | denied |
| start ("joined") | holds from its date | holds | holds | - | holds from its date | - | denied, if an event |
| end ("left") | ended at its date | ended | ended | - | ended at its date | - | - |

Without a date a fact holds from the reference time, or ended there, inferred; where the table says "its date" it
says nothing without one. A plain "does not work at" says nothing: it need not ever have been so.
"""

from __future__ import annotations

from typing import NamedTuple

from kgray.backends.rules.clauses import Clause
from kgray.backends.rules.dates import DatePhrase, Moment, resolve
from kgray.ontology import RelationType
from kgray.records import EvidenceKind
from kgray.times import Instant, Precision

_NOW_WORDS = frozenset({"today", "tonight", "this week", "this month", "this year"})


class Timing(NamedTuple):
    """The kind and time fields of records.ExtractedFact."""

    kind: EvidenceKind
    valid_from: Instant | None = None
    from_precision: Precision | None = None
    valid_to: Instant | None = None
    to_precision: Precision | None = None
    inferred: bool = False


class _Stated(NamedTuple):
    """The dates of a clause, resolved. unclear: one that says neither when it began nor when it ended."""

    start: Moment | None
    end: Moment | None
    since: bool  # the start is that of a period that still goes on: "since 2018", "for three years"
    unclear: bool


def timing_of(clause: Clause, reference: Instant, *, has_opposite: bool) -> Timing | None:
    """Return what kind of evidence a clause is, and its times; None = it says nothing sure.

    has_opposite: another relation says the opposite, so that "does not like" says that one.
    """
    time, polarity = clause.tense
    stated = _dates(clause, reference)
    if clause.denied:
        return Timing("denied")
    if stated.unclear:
        return None
    if polarity == "never":
        event = not clause.phrase.relation.phrases  # "never moved to Rome" may be said by one born there
        said = clause.phrase.mode == "state" or (clause.phrase.mode == "start" and event)
        return Timing("denied") if said and not clause.dates else None
    if clause.phrase.mode == "state":
        return _state(clause, stated, reference, has_opposite=has_opposite)
    if polarity or stated.since or stated.end or time == "former":
        return None
    happened = time in {"past", "perfect"}
    moment = stated.start or ((reference, "instant") if happened else None)
    if moment is None or (moment[0] > reference if happened else moment[0] <= reference):
        return None
    return _holds(moment, None, reference) if clause.phrase.mode == "start" else _ended(moment, reference)


def _state(clause: Clause, stated: _Stated, reference: Instant, *, has_opposite: bool) -> Timing | None:
    (time, polarity), now = clause.tense, (reference, "instant")
    if polarity == "no longer":
        if time == "future":
            return _ended(stated.start, reference) if stated.start and stated.start[0] > reference else None
        return _ended(stated.start or now, reference) if not stated.end else None
    if polarity == "not":
        if time == "perfect":  # "has not worked at Acme since 2020"
            return _ended(stated.start, reference) if stated.start and stated.since else None
        return Timing("holds", *now, inferred=True) if has_opposite and not clause.dates else None
    if time in {"past", "former"}:
        return _over(clause, stated, reference)
    if time == "perfect" and not stated.since:
        return None  # "I have worked at Acme": once, or still?
    if time == "future" and not (stated.start and stated.start[0] > reference):
        return None
    if stated.end and stated.end[0] <= reference:
        return None
    point = stated.start and not stated.since and time != "future"
    return None if point else _holds(stated.start or now, stated.end, reference)


def _over(clause: Clause, stated: _Stated, reference: Instant) -> Timing | None:
    """Return the times of a state in the past: until its date, else it ended at the reference time."""
    end = stated.end
    if end is None:
        relation = clause.phrase.relation
        single = relation.cardinality == "single" and relation.object == "entity"
        # "I loved the film" does not say that it ended; "I worked at Acme in 2015" not when.
        if stated.start or not (clause.tense.time == "former" or single or relation.name == "HAS_ROLE"):
            return None
        end = (reference, "instant")
    if end[0] > reference:
        return None
    return _holds(stated.start, end, reference) if stated.start else _ended(end, reference)


def _dates(clause: Clause, reference: Instant) -> _Stated:
    start: Moment | None = None
    end: Moment | None = None
    since = unclear = False
    for date in clause.dates:
        if date.first.words.lower() in _NOW_WORDS and date.role == "at" and clause.tense.time == "present":
            continue  # "is at Acme today" says no more than "is at Acme"
        if date.role == "length" and clause.tense.time in {"past", "former"}:
            continue  # "worked at Acme for three years": not when
        first = resolve(date.first, reference, future=_ahead(clause, date))
        if date.role == "until":
            unclear, end = unclear or first is None or end is not None, first
            continue
        unclear = unclear or date.role == "other" or first is None or start is not None
        start, since = first, date.role in {"since", "length"}
        if date.second:
            end = resolve(date.second, reference, future=_ahead(clause, date))
            unclear = unclear or end is None
    return _Stated(start, end, since, unclear)


def _ahead(clause: Clause, date: DatePhrase) -> bool:
    """Whether an open date ("on Friday") lies after the reference time."""
    time, mode = clause.tense.time, clause.phrase.mode
    if date.role == "length" or time in {"past", "perfect", "former"}:
        return False
    return time in {"future", "progressive"} or mode != "state" or date.role == "until"


def _ended(moment: Moment, reference: Instant) -> Timing:
    return Timing("ended", valid_to=moment[0], to_precision=moment[1], inferred=moment[0] == reference)


def _holds(start: Moment, end: Moment | None, reference: Instant) -> Timing | None:
    if end and end[0] <= start[0]:
        return None
    return Timing("holds", *start, *(end or (None, None)), inferred=start[0] == reference)


def share_dates(clauses: list[Clause]) -> None:
    """Give "left Acme" of "left Acme and joined Beta in May" the date of the other, and the reverse."""
    for first, second in zip(clauses, clauses[1:], strict=False):
        if second.elided and "state" not in {first.phrase.mode, second.phrase.mode}:
            first.dates, second.dates = first.dates or second.dates, second.dates or first.dates


def changed(timing: Timing, relation: RelationType) -> Timing | None:
    """Return when the other side of a change began or ended: Acme of "moved from Acme to Beta"."""
    if relation.object != "entity":
        return None
    if timing.kind == "holds":
        return Timing("ended", None, None, timing.valid_from, timing.from_precision, timing.inferred)
    return Timing("holds", timing.valid_to, timing.to_precision, inferred=timing.inferred)
