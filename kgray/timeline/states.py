"""The timeline's input and output: claims, rivals, spans; and each statement and slot as a sweep has it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
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

    def pairs(self, statement: str) -> Collection[str]:
        """Return its further rivals: by verdicts and by excluding relations."""


ALWAYS: Instant = -(1 << 62)  # an unknown start: before every instant
STILL: Instant = 1 << 62  # no stated end: after every instant
# What is taken at one instant, in this order (R7). DUE: a stated end is reached, which is no point.
DUE, END, CONFIRMATION, START = range(4)

# In order of `said`, ends strictly descending: no claim is both said earlier and ends earlier than another.
Front = tuple[Claim, ...]
OwnClaim = tuple[Claim, "StatementState"]  # a claim and the statement it is about
Event = tuple[int, Claim, "StatementState"]  # its rank first
Leader = tuple[Instant, "StatementState"]  # an instant and the statement that has it

said = attrgetter("said")  # a key for bisection


def until(claim: Claim) -> Instant:
    """Return a claim's stated end, STILL for none."""
    return STILL if claim.end is None else claim.end


def vouched(claim: Claim) -> Instant:
    """Return until when a claim that has started vouches: its stated end, else when it was said."""
    return claim.said[0] if claim.end is None else claim.end


def extended(front: Front, claim: Claim, end_of: Callable[[Claim], Instant]) -> Front:
    """Return the front with `claim` added, without claims that were said earlier and end no later."""
    end, place = end_of(claim), len(front)
    if front and front[-1].said > claim.said:
        place = bisect_left(front, claim.said, key=said)
        if end_of(front[place]) >= end:
            return front
    keep = place
    while keep and end_of(front[keep - 1]) <= end:
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

    def finish(self, end: Instant | None, ended: Claim | None, cut: bool) -> None:
        """End it; None: open it again."""
        self.end, self.ended, self.cut = end, ended, cut

    def deadline(self) -> Instant:
        """Return the stated end that stands, STILL for none (R9)."""
        if self.stated is None:
            return STILL
        end, last = until(self.stated), self.endless
        # Said compares t_ref first: if the last one without an end does not lift it, none does.
        lifted = last is not None and last.said > self.stated.said and last.said[0] > end
        return STILL if lifted else end


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
    claiming: Front = ()  # its `holds` that claim the present instant, by `until` (R10)
    past: Front = ()  # its `holds` that started before it, by `vouched` (R8)
    ended: Claim | None = None  # the last said `ended` at or before it (R10)

    shown: tuple[Span, ...] = ()  # the spans as last handed out
    low: int = 0  # how many of those are certainly unchanged

    def view(self) -> tuple[Span, ...]:
        """Return the spans in order of start; only those changed since the last call are built anew."""
        if self.low < len(self.shown) or self.low < len(self.spans):
            spans = list(self.shown[: self.low])
            for it in self.spans[self.low :]:
                start = None if it.start == ALWAYS else it.start
                support = tuple(it.support)
                spans.append(Span(self.statement, it.opened, it.point, start, it.end, it.ended, support))
            self.shown = tuple(spans)
            self.low = len(spans)
        return self.shown

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
        rivals = [rival for slot in self.slots for _, _, rival in slot.latest[-2:] if rival is not self]
        for rival in (*rivals, *self.partners):
            if rival.claiming and (best is None or rival.claiming[-1].said > best.said):
                best = rival.claiming[-1]
        return best if best is not None and best.said > moment else None

    def outlives(self, end: Claim, instant: Instant) -> bool:
        """Whether a claim said later than this `ended` extends past its instant (R8)."""
        place = bisect_left(self.past, end.said, key=said)
        return place < len(self.past) and vouched(self.past[place]) > instant

    def first_rival(self, instant: Instant) -> tuple[Instant, Claim] | None:
        """Return start and opener of the first span of positive length of a rival (R8)."""
        found = [rival for slot in self.slots for _, rival in slot.firsts if rival is not self]
        drafts = [rival.first for rival in (*found, *self.partners) if rival.first is not None]
        drafts += [r.spans[-1] for r in self.open_rivals() if r.spans[-1].start < instant]
        first = min(drafts, key=lambda d: (d.start, d.opened.said), default=None)
        return None if first is None else (first.start, first.opened)

    def last_rival_end(self) -> Instant:
        """Return the latest end of an ended rival span of positive length, ALWAYS for none."""
        ends = [end for slot in self.slots for end, rival in slot.ends if rival is not self]
        return max([*ends, *(partner.last_end for partner in self.partners)], default=ALWAYS)


@dataclass(slots=True, eq=False)
class SlotState:
    """One slot of a single-valued relation: its statements are mutual rivals.

    latest, firsts and ends tell of two statements at least, so that one remains when a statement asks about
    its rivals: to ask all of them would make a slot of 10,000 ends cost 50 million looks.
    """

    open: StatementState | None = None
    # (said, statement, its state): the last of the claims in force of each statement, sorted.
    latest: list[tuple[Said, str, StatementState]] = field(default_factory=list)
    firsts: tuple[Leader, ...] = ()  # the two with the earliest first spans, the earliest first
    ends: tuple[Leader, ...] = ()  # the two with the latest ends, the latest first


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
    return [(claim, state) for rank, claim, state in events if rank == START and claim.kind == "holds"]


def arranged(events: list[Event]) -> list[Event]:
    """Return the events of one instant in order; an end comes after its own earlier starts (R7)."""
    first: dict[StatementState, Said] = {}  # when a statement's first start here was said
    for claim, state in starts_of(events):
        first[state] = min(claim.said, first.get(state, claim.said))

    def order(event: Event) -> tuple[int, Said, bool, str]:
        rank, claim, state = event
        if claim.kind == "ended" and state in first and first[state] < claim.said:
            rank = START
        # Of one end for several variants, that of the variant that it was recorded with comes first (R6).
        return rank, claim.said, claim.other_variant, claim.statement

    return sorted(events, key=order)
