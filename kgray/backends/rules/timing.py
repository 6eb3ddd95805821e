"""When a clause's fact held: its dates, its mood and the reference time to the fields of a fact (R3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kgray.backends.rules import dates
from kgray.backends.rules.mood import Claim, Mood
from kgray.records import EvidenceKind
from kgray.times import Instant, Precision


class Timing(NamedTuple):
    """The time fields of records.ExtractedFact."""

    kind: EvidenceKind
    valid_from: Instant | None = None
    from_precision: Precision | None = None
    valid_to: Instant | None = None
    to_precision: Precision | None = None
    inferred: bool = False


def starting(when: dates.When) -> bool:
    """Whether a date phrase may say when something began or happened."""
    return when.role in {"since", "at", "range", "length"}


def fix(claim: Claim, mood: Mood, whens: Sequence[dates.When], reference: Instant) -> Timing | str | None:
    """Return the times of a claim; a text = the reason to drop it; None = it says nothing sure.

    whens: the date phrases of the clause, the one that counts first.
    """
    if claim.kind == "denied":
        return Timing("denied")
    start = _start(whens, mood, reference)
    end = _end(whens, reference, ahead=mood.ahead or not claim.over)
    if claim.over:
        return _over(whens, start, end, reference)
    if claim.kind == "ended":
        moment = start or end
        if moment is None:
            return None if claim.default == "none" else _ended((reference, "instant"), reference)
        return _ended(moment, reference)
    if start is None and claim.default == "none":
        return None
    return _holds(start or (reference, "instant"), end, reference)


def _start(whens: Sequence[dates.When], mood: Mood, reference: Instant) -> dates.Moment | None:
    for when in whens:
        if not starting(when) or (when.role == "length" and mood.time == "past"):
            continue
        shape, words = when.first
        if when.role == "at" and mood.time == "present" and words.lower() in {"today", "tonight"}:
            continue  # "is at Acme today" says no more than "is at Acme"
        ahead = mood.time in {"future", "progressive"} or (mood.ahead and when.role in {"at", "range"})
        return dates.resolve((shape, words), reference, future=ahead and when.role != "length")
    return None


def _end(whens: Sequence[dates.When], reference: Instant, *, ahead: bool) -> dates.Moment | None:
    for when in whens:
        value = when.second if when.role == "range" else when.first if when.role == "until" else None
        if value:
            return dates.resolve(value, reference, future=ahead)
    return None


def _over(
    whens: Sequence[dates.When], start: dates.Moment | None, end: dates.Moment | None, reference: Instant
) -> Timing | str:
    """Return the times of a state in the past: between its dates, else it ended at the reference time."""
    point = any(when.role == "at" for when in whens)
    if start and end is None and point:
        end = dates.after(start)
        if end and end[0] > reference:
            end = None
    if end is None:
        if start and not point and start[0] < reference:
            return _holds(start, (reference, "instant"), reference)
        return _ended((reference, "instant"), reference)
    return _holds(start, end, reference) if start else _ended(end, reference)


def _ended(moment: dates.Moment, reference: Instant) -> Timing:
    return Timing("ended", valid_to=moment[0], to_precision=moment[1], inferred=moment[0] == reference)


def _holds(start: dates.Moment, end: dates.Moment | None, reference: Instant) -> Timing | str:
    if end and end[0] <= start[0]:
        return "its end is not after its start"
    return Timing(
        "holds",
        start[0],
        start[1],
        end[0] if end else None,
        end[1] if end else None,
        inferred=start[0] == reference,
    )
