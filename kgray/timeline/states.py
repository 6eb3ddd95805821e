"""The timeline's input and output: claims, rivals, spans; and each statement and slot as a sweep has it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Literal, NamedTuple, Protocol

from kgray.records import EvidenceKind
from kgray.times import Instant

Said = tuple[Instant, int, int]  # (t_ref, sequence, ordinal): R6; [1:] is the evidence's place
Point = Literal["start", "confirmation", "end"]


class Claim(NamedTuple):  # a load makes 100,000 of them
    """One piece of evidence about one statement.

    said            unique among the claims of a statement
    start           holds: None = unknown ("always"); happened: its instant; not used by the other kinds
    end             holds: the stated end or None; ended: its instant, never None
    inferred        the start was read off the present tense (R3); one equal to t_ref counts as such
    recorded        record time (R4)
    every_variant   an end or a denial that names no variant: it speaks of all (R6)
    other_variant   such a one that bears on another variant in the first place
    """

    statement: str
    said: Said
    kind: EvidenceKind
    start: Instant | None
    end: Instant | None
    inferred: bool
    recorded: Instant
    every_variant: bool = False
    other_variant: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """A period [start, end) over which a statement held (R8-R12).

    opened   the evidence that opened it, by its start, confirmation or end point
    start    None = always
    end      None = still; equal to `start` where it is kept as history only (R12)
    ended    what ended it: the statement's own `ended`, the supporter whose stated end stands, the
             rival's evidence that cut it, or the claim that overruled it; None = it is open
    support  in order of `said`, the opener included
    """

    statement: str
    opened: Claim
    point: Point
    start: Instant | None
    end: Instant | None
    ended: Claim | None
    support: tuple[Claim, ...]


class Rivals(Protocol):
    """Which statements cannot hold at the same time; symmetric, and fixed for the life of a sweep."""

    def slot_keys(self, statement: str) -> Sequence[Hashable]:
        """Return the keys of a statement's slots: statements that share a key are mutual rivals."""
        ...

    def pairs(self, statement: str) -> Collection[str]:
        """Return its further rivals: by verdicts and by excluding relations."""
        ...


ALWAYS: Instant = -(1 << 62)  # an unknown start: before every instant
STILL: Instant = 1 << 62  # no stated end: after every instant
# What is taken at one instant, in this order (R7). DUE: a stated end is reached, which is no point.
DUE, END, CONFIRMATION, START = range(4)

# In order of `said`, ends strictly descending: no claim is both said earlier and ends earlier than another.
Front = tuple[Claim, ...]
OwnClaim = tuple[Claim, "StatementState"]  # a claim and the statement it is about
Event = tuple[int, Said, OwnClaim]  # (rank, said, ...)
Leader = tuple[Instant, "StatementState"]  # an instant and the statement that has it


def said(claim: Claim) -> Said:
    """Return when it was said; a key for bisection."""
    return claim.said


def until(claim: Claim) -> Instant:
    """Return a claim's stated end, STILL for none."""
    return STILL if claim.end is None else claim.end


def extended(front: Front, claim: Claim) -> Front:
    """Return the front with `claim` added, without claims that were said earlier and end no later."""
    place = bisect_left(front, claim.said, key=said)
    if place < len(front) and until(front[place]) >= until(claim):
        return front
    keep = place
    while keep and until(front[keep - 1]) <= until(claim):
        keep -= 1
    return (*front[:keep], claim, *front[place:])


@dataclass(slots=True, eq=False)
class SpanDraft:
    """A span while the sweep can still change it; only a statement's last one changes."""

    state: StatementState
    opened: Claim
    point: Point
    start: Instant
    support: list[Claim]  # by said, each once
    end: Instant | None = None
    ended: Claim | None = None
    cut: bool = False  # a rival ended it (R11)
    stated: Claim | None = None  # of the supporters with a stated end the one said last
    endless: Claim | None = None  # of the `holds` without one, the same

    def deadline(self) -> Instant:
        """Return the stated end that stands, STILL for none (R9)."""
        if self.stated is None or self.stated.end is None:
            return STILL
        lifts = self.endless is not None and self.endless.said > self.stated.said
        # Said compares t_ref first: if the last one without an end does not lift it, none does.
        if lifts and self.endless is not None and self.endless.said[0] > self.stated.end:
            return STILL
        return self.stated.end


@dataclass(slots=True, eq=False)
class StatementState:
    """One statement: its rivals, and its spans as far as the sweep has come."""

    statement: str
    slots: list[SlotState] = field(default_factory=list)
    partners: list[StatementState] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)  # without those that a denial set aside
    denied: Said | None = None  # the last denial; what was said before it does not count

    spans: list[SpanDraft] = field(default_factory=list)  # in order of start
    open: bool = False  # whether the last span is
    first: SpanDraft | None = None  # its first ended span of positive length
    last_end: Instant = ALWAYS  # the latest end of those
    claiming: Front = ()  # its `holds` that claim the present instant (R10)
    bounded: Front = ()  # `holds` with a stated end that started before it (R8)
    unbounded: Claim | None = None  # the last said of those without one (R8)
    ended: Claim | None = None  # the last said `ended` at or before it (R10)

    shown: tuple[Span, ...] = ()  # the spans as last handed out
    low: int = 0  # how many of those are certainly unchanged

    def view(self) -> tuple[Span, ...]:
        """Return the spans in order of start; only those changed since the last call are built anew."""
        if self.low < len(self.shown) or self.low < len(self.spans):
            fresh = tuple(self._span(draft) for draft in self.spans[self.low :])
            self.shown = (*self.shown[: self.low], *fresh)
            self.low = len(self.shown)
        return self.shown

    def _span(self, draft: SpanDraft) -> Span:
        start = None if draft.start == ALWAYS else draft.start
        support = tuple(draft.support)
        return Span(self.statement, draft.opened, draft.point, start, draft.end, draft.ended, support)

    def open_rivals(self) -> Iterator[StatementState]:
        """Yield the rivals whose last span is open; the caller may close one before taking the next."""
        for slot in self.slots:
            if slot.open is not None and slot.open is not self:
                yield slot.open
        for partner in self.partners:
            if partner.open:
                yield partner

    def overruled_by(self, moment: Said) -> Claim | None:
        """Return the claim said last that overrules a point said at `moment`, None for none (R10)."""
        best = self.ended
        for slot in self.slots:
            other = slot.latest_of_others(self)
            if other is not None and (best is None or other.said > best.said):
                best = other
        for partner in self.partners:
            if partner.claiming and (best is None or partner.claiming[-1].said > best.said):
                best = partner.claiming[-1]
        return best if best is not None and best.said > moment else None

    def outlives(self, end: Claim, instant: Instant) -> bool:
        """Whether a claim said later than this `ended` extends past its instant (R8)."""
        if self.unbounded is not None and self.unbounded.said > end.said and self.unbounded.said[0] > instant:
            return True
        place = bisect_left(self.bounded, end.said, key=said)
        return place < len(self.bounded) and until(self.bounded[place]) > instant

    def first_rival(self, instant: Instant) -> tuple[Instant, Claim] | None:
        """Return start and opener of the first span of positive length of a rival (R8)."""
        found = [rival for slot in self.slots for _, rival in slot.firsts if rival is not self]
        drafts = [rival.first for rival in (*found, *self.partners) if rival.first is not None]
        drafts += [r.spans[-1] for r in self.open_rivals() if r.spans[-1].start < instant]
        if not drafts:
            return None
        draft = min(drafts, key=lambda d: (d.start, d.opened.said))
        return draft.start, draft.opened

    def last_rival_end(self) -> Instant:
        """Return the latest end of an ended rival span of positive length, ALWAYS for none."""
        ends = [end for slot in self.slots for end, rival in slot.ends if rival is not self]
        return max([*ends, *(partner.last_end for partner in self.partners)], default=ALWAYS)


@dataclass(slots=True, eq=False)
class SlotState:
    """One slot of a single-valued relation: its statements are mutual rivals."""

    open: StatementState | None = None
    # (said, statement, its state): the last of the claims in force of each statement, sorted.
    latest: list[tuple[Said, str, StatementState]] = field(default_factory=list)
    # Two statements each, so that one remains when a statement asks about its rivals: to ask all of them
    # would make a slot of 10,000 ends cost 50 million looks.
    firsts: tuple[Leader, ...] = ()  # with the earliest first spans, the earliest first
    ends: tuple[Leader, ...] = ()  # with the latest ends, the latest first

    def latest_of_others(self, state: StatementState) -> Claim | None:
        """Return the claim said last among the other statements' claims at this instant."""
        for _, _, rival in reversed(self.latest[-2:]):
            if rival is not state:
                return rival.claiming[-1]
        return None


def last_two(leaders: tuple[Leader, ...], new: Leader) -> tuple[Leader, ...]:
    """Return the two latest of different statements; `new` is later than what its statement had."""
    others = [leader for leader in leaders if leader[1] is not new[1]]
    return tuple(sorted((*others, new), key=itemgetter(0), reverse=True)[:2])


def events_of(claim: Claim) -> list[tuple[Instant, int]]:
    """Return a claim's points (R7) and its stated end as (instant, rank); a denial has none."""
    if claim.kind == "ended":
        return [] if claim.end is None else [(claim.end, END)]
    if claim.kind == "denied":
        return []
    start = ALWAYS if claim.start is None else claim.start
    found = [(start, START)]
    if claim.kind == "happened":  # an event: that it happened stays true (R18)
        return found
    if claim.end is None and start < claim.said[0] and (claim.start is None or not claim.inferred):
        found.append((claim.said[0], CONFIRMATION))
    if claim.end is not None and claim.end > start:
        found.append((claim.end, DUE))
    return found


def starts_of(events: Iterable[Event]) -> list[OwnClaim]:
    """Return the `holds` claims that start, with their statements."""
    return [own for rank, _, own in events if rank == START and own[0].kind == "holds"]


def arranged(events: list[Event]) -> list[Event]:
    """Return the events of one instant in order; an end comes after its own earlier starts (R7)."""
    first: dict[StatementState, Said] = {}  # when a statement's first start here was said
    for claim, state in starts_of(events):
        first[state] = min(claim.said, first.get(state, claim.said))

    def rank_of(rank: int, own: OwnClaim) -> int:
        if own[0].kind != "ended":
            return rank
        # Every time: a denial may have set the earlier start aside.
        return START if own[1] in first and first[own[1]] < own[0].said else END

    ranked = ((rank_of(rank, own), moment, own) for rank, moment, own in events)
    # Of one end for several variants, that of the variant that it was recorded with comes first (R6).
    return sorted(ranked, key=lambda e: (e[0], e[1], e[2][0].other_variant, e[2][0].statement))
