"""The state of a sweep at the instant that it has reached: of one statement, and of one slot.

A component changes it only through its log, so that a late claim can undo later instants.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from kgray.timeline.claims import Claim, Point, Said, Span
from kgray.times import Instant

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

ALWAYS: Instant = -(1 << 62)  # an unknown start: before every instant
STILL: Instant = 1 << 62  # no stated end: after every instant

# In order of `said`, ends strictly descending: no claim is both said earlier and ends earlier than another.
Front = tuple[Claim, ...]
Leader = tuple[Instant, "StatementState"]  # an instant and the statement that has it
OwnClaim = tuple[Claim, "StatementState"]  # a claim and the statement it is about


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


class SpanDraft:
    """A span while the sweep can still change it; only a statement's last one changes."""

    __slots__ = ("cut", "end", "ended", "endless", "opened", "point", "start", "stated", "support")

    def __init__(self, opened: Claim, point: Point, start: Instant) -> None:
        self.opened = opened
        self.point: Point = point
        self.start = start
        self.end: Instant | None = None
        self.ended: Claim | None = None
        self.cut = False  # a rival ended it (R11)
        self.support = [opened]  # by said, each once
        self.stated: Claim | None = None  # of the supporters with a stated end the one said last
        self.endless: Claim | None = None  # of the `holds` without one, the same

    def deadline(self) -> Instant:
        """Return the stated end that stands, STILL for none (R9)."""
        if self.stated is None or self.stated.end is None:
            return STILL
        lifts = self.endless is not None and self.endless.said > self.stated.said
        # Said compares t_ref first: if the last one without an end does not lift it, none does.
        if lifts and self.endless is not None and self.endless.said[0] > self.stated.end:
            return STILL
        return self.stated.end


class StatementState:
    """One statement: its rivals, and its spans as far as the sweep has come."""

    __slots__ = (
        "bounded",
        "claiming",
        "claims",
        "denied",
        "ended",
        "first",
        "last_end",
        "low",
        "open",
        "partners",
        "shown",
        "slots",
        "spans",
        "statement",
        "unbounded",
    )

    def __init__(self, statement: str) -> None:
        self.statement = statement
        self.slots: list[SlotState] = []
        self.partners: list[StatementState] = []
        self.claims: list[Claim] = []  # without those that a denial set aside
        self.denied: Said | None = None  # the last denial; what was said before it does not count

        self.spans: list[SpanDraft] = []  # in order of start
        self.open = False  # whether the last span is
        self.first: SpanDraft | None = None  # its first ended span of positive length
        self.last_end = ALWAYS  # the latest end of those
        self.claiming: Front = ()  # its `holds` that claim the present instant (R10)
        self.bounded: Front = ()  # `holds` with a stated end that started before it (R8)
        self.unbounded: Claim | None = None  # the last said of those without one (R8)
        self.ended: Claim | None = None  # the last said `ended` at or before it (R10)

        self.shown: tuple[Span, ...] = ()  # the spans as last handed out
        self.low = 0  # how many of those are certainly unchanged

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
        found = [leader for slot in self.slots for leader in slot.firsts if leader[1] is not self]
        found += [(p.first.start, p) for p in self.partners if p.first is not None]
        drafts = [rival.first for _, rival in found if rival.first is not None]
        drafts += [r.spans[-1] for r in self.open_rivals() if r.spans[-1].start < instant]
        if not drafts:
            return None
        draft = min(drafts, key=lambda d: (d.start, d.opened.said))
        return draft.start, draft.opened

    def last_rival_end(self) -> Instant:
        """Return the latest end of an ended rival span of positive length, ALWAYS for none."""
        ends = [end for slot in self.slots for end, rival in slot.ends if rival is not self]
        ends += [partner.last_end for partner in self.partners]
        return max(ends, default=ALWAYS)


class SlotState:
    """One slot of a single-valued relation: its statements are mutual rivals."""

    __slots__ = ("ends", "firsts", "key", "latest", "open")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.open: StatementState | None = None
        # (said, statement, its state): the last of the claims in force of each statement, sorted.
        self.latest: list[tuple[Said, str, StatementState]] = []
        # Two statements each, so that one remains when a statement asks about its rivals.
        self.firsts: tuple[Leader, ...] = ()  # with the earliest first spans
        self.ends: tuple[Leader, ...] = ()  # with the latest ends

    def latest_of_others(self, state: StatementState) -> Claim | None:
        """Return the claim said last among the other statements' claims at this instant."""
        for _, _, rival in reversed(self.latest[-2:]):
            if rival is not state:
                return rival.claiming[-1]
        return None


def first_two(leaders: tuple[Leader, ...], new: Leader) -> tuple[Leader, ...]:
    """Return the two earliest; they are of different statements, since each has one first span."""
    return tuple(sorted((*leaders, new), key=_instant)[:2])


def last_two(leaders: tuple[Leader, ...], new: Leader) -> tuple[Leader, ...]:
    """Return the two latest of different statements."""
    if not leaders or new[0] >= leaders[0][0]:
        others = leaders[:1] if not leaders or leaders[0][1] is not new[1] else leaders[1:]
        return (new, *others)
    if leaders[0][1] is new[1] or (len(leaders) > 1 and leaders[1][0] >= new[0]):
        return leaders
    return (leaders[0], new)


def _instant(leader: Leader) -> Instant:
    return leader[0]
