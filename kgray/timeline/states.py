"""Input and output of the timeline (claims, rivals, spans), and a sweep's state of statements and slots."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Literal, NamedTuple, Protocol

from kgray.domain.records import EvidenceKind
from kgray.domain.times import Instant

Said = tuple[Instant, int, int]  # (t_ref, sequence, ordinal): R6; [1:] is the evidence's place
Point = Literal["start", "confirmation", "end"]


class Claim(NamedTuple):  # a load makes 100,000 of them
    """One piece of evidence about one statement.

    said            unique among the claims of a statement
    start           holds: None = unknown ("always"); happened: its instant; not used by the other kinds
    end             holds: the stated end or None; ended: its instant, never None
    inferred        the start was read off the present tense (R3); one equal to t_ref counts as such
    recorded        record time (R4)
    every_variant   an end or a denial that names no variant: it is about all variants (R6)
    other_variant   such an end or denial that was recorded with another variant
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
    ended    the claim that ended it: the statement's own `ended`, the supporter whose stated end counts,
             the rival's evidence that cut it, or the claim that overruled it; None = it is open
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
# The ranks of events at one instant, in this order (R7). DUE: a stated end is reached; it is no point.
DUE, END, CONFIRMATION, START = range(4)

# In order of `said`, with strictly descending ends. A claim is left out if another was said later and ends no
# earlier.
Front = tuple[Claim, ...]
OwnClaim = tuple[Claim, "StatementState"]  # a claim and the statement it is about
Event = tuple[int, Claim, "StatementState"]  # its rank first
Leader = tuple[Instant, "StatementState"]  # an instant and the statement that has it

said_key = attrgetter("said")  # a key for bisection


def stated_end(claim: Claim) -> Instant:
    """Return a claim's stated end, STILL for none."""
    return STILL if claim.end is None else claim.end


def vouched_until(claim: Claim) -> Instant:
    """Return the instant until which a started claim vouches: its stated end, else its reference time."""
    return claim.said[0] if claim.end is None else claim.end


def extended(front: Front, claim: Claim, end_of: Callable[[Claim], Instant]) -> Front:
    """Return the front with `claim` added, without claims that were said earlier and end no later."""
    end, place = end_of(claim), len(front)
    if front and front[-1].said > claim.said:
        place = bisect_left(front, claim.said, key=said_key)
        if end_of(front[place]) >= end:
            return front
    keep = place
    while keep and end_of(front[keep - 1]) <= end:
        keep -= 1
    return (*front[:keep], claim, *front[place:])


@dataclass(slots=True, eq=False)
class SpanDraft:
    """A span while the sweep can still change it; only the last span of a statement changes."""

    state: StatementState
    opened: Claim
    point: Point
    start: Instant
    support: list[Claim]  # by said, each once
    end: Instant | None = None
    ended: Claim | None = None
    cut: bool = False  # a rival ended it (R11)
    stated: Claim | None = None  # the supporter with a stated end that was said last
    endless: Claim | None = None  # the `holds` without a stated end that was said last

    def finish(self, end: Instant | None, ended: Claim | None, cut: bool) -> None:
        """End it; None: open it again."""
        self.end, self.ended, self.cut = end, ended, cut

    def deadline(self) -> Instant:
        """Return the stated end in force, STILL for none (R9)."""
        if self.stated is None:
            return STILL
        end, last = stated_end(self.stated), self.endless
        # `said` compares t_ref first: if the last claim without an end does not lift it, none does.
        lifted = last is not None and last.said > self.stated.said and last.said[0] > end
        return STILL if lifted else end


@dataclass(slots=True, eq=False)
class StatementState:
    """One statement: its rivals, and its spans up to the last swept instant."""

    statement: str
    slots: list[SlotState] = field(default_factory=list)
    partners: list[StatementState] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)  # without those that a denial set aside
    denied: Said | None = None  # the last denial; earlier claims do not count

    spans: list[SpanDraft] = field(default_factory=list)  # in order of start
    open: bool = False  # whether the last span is
    first: SpanDraft | None = None  # its first ended span of positive length
    last_end: Instant = ALWAYS  # the latest end of those
    claiming: Front = ()  # its `holds` that claim the present instant: a front by `stated_end` (R10)
    past: Front = ()  # its `holds` that started before it: a front by `vouched_until` (R8)
    ended: Claim | None = None  # the last said `ended` at or before it (R10)

    last_view: tuple[Span, ...] = ()  # the result of the last `view`
    unchanged_count: int = 0  # the number of its first spans that are certainly unchanged

    def view(self) -> tuple[Span, ...]:
        """Return the spans in order of start; build only the spans that changed after the last call."""
        if self.unchanged_count < len(self.last_view) or self.unchanged_count < len(self.spans):
            spans = list(self.last_view[: self.unchanged_count])
            for draft in self.spans[self.unchanged_count :]:
                start = None if draft.start == ALWAYS else draft.start
                support = tuple(draft.support)
                spans.append(
                    Span(self.statement, draft.opened, draft.point, start, draft.end, draft.ended, support)
                )
            self.last_view = tuple(spans)
            self.unchanged_count = len(spans)
        return self.last_view

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
        """Return whether a claim said later than this `ended` extends past its instant (R8)."""
        place = bisect_left(self.past, end.said, key=said_key)
        return place < len(self.past) and vouched_until(self.past[place]) > instant

    def first_rival(self, instant: Instant) -> tuple[Instant, Claim] | None:
        """Return start and opener of the first span of positive length of a rival (R8)."""
        rivals = [rival for slot in self.slots for _, rival in slot.firsts if rival is not self]
        drafts = [rival.first for rival in (*rivals, *self.partners) if rival.first is not None]
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

    `firsts` and `ends` keep two statements each, so that one remains when a statement skips itself. `latest`
    keeps one entry for each statement with claims in force; only its last two are read. A scan of all rivals
    would cost 50 million look-ups in a slot of 10,000 ends.
    """

    open: StatementState | None = None
    # (said, statement, its state), sorted. `said` is that of the statement's last claim in force.
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
    events = [(start, START)]
    if claim.kind == "happened":  # an event: that it happened stays true (R18)
        return events
    if claim.end is None and start < claim.said[0] and (claim.start is None or not claim.inferred):
        events.append((claim.said[0], CONFIRMATION))
    if claim.end is not None and claim.end > start:
        events.append((claim.end, DUE))
    return events


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
        # If an end applies to several variants, the claim of its recorded variant comes first (R6).
        return rank, claim.said, claim.other_variant, claim.statement

    return sorted(events, key=order)
