"""The rules R7-R12, instant by instant, over one component.

A component is a set of statements connected by rivalry. It logs what each instant changed; evidence about
the past undoes the log back to its instant and sweeps forward again. So the newest claim costs one instant,
and a late claim costs the instants after it. Without the log each claim would cost all instants, 20 us each:
200 ms a commit for a slot of 10,000 values.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from kgray.timeline.claims import Claim, Point, Said, Span
from kgray.times import Instant

ALWAYS: Instant = -(1 << 62)  # an unknown start: before every instant
STILL: Instant = 1 << 62  # no stated end: after every instant
# What is taken at one instant, in this order (R7). _DUE: a stated end is reached, which is no point.
_DUE, _END, _CONFIRMATION, _START = range(4)
# Kinds of log entry: item added to or taken from a list, span ended, statement changed; else an attribute.
_ADDED, _TAKEN, _OVER, _CHANGED = "+", "-", "over", "changed"

# In order of `said`, ends strictly descending: no claim is both said earlier and ends earlier than another.
Front = tuple[Claim, ...]
Leader = tuple[Instant, "StatementState"]  # an instant and the statement that has it
OwnClaim = tuple[Claim, "StatementState"]  # a claim and the statement it is about
Event = tuple[int, Said, OwnClaim]  # (rank, said, ...)


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


@dataclass(slots=True, eq=False)
class SlotState:
    """One slot of a single-valued relation: its statements are mutual rivals."""

    open: StatementState | None = None
    # (said, statement, its state): the last of the claims in force of each statement, sorted.
    latest: list[tuple[Said, str, StatementState]] = field(default_factory=list)
    # Two statements each, so that one remains when a statement asks about its rivals.
    firsts: tuple[Leader, ...] = ()  # with the earliest first spans
    ends: tuple[Leader, ...] = ()  # with the latest ends

    def latest_of_others(self, state: StatementState) -> Claim | None:
        """Return the claim said last among the other statements' claims at this instant."""
        for _, _, rival in reversed(self.latest[-2:]):
            if rival is not state:
                return rival.claiming[-1]
        return None


def last_two(leaders: tuple[Leader, ...], new: Leader) -> tuple[Leader, ...]:
    """Return the two latest of different statements."""
    if not leaders or new[0] >= leaders[0][0]:
        others = leaders[:1] if not leaders or leaders[0][1] is not new[1] else leaders[1:]
        return (new, *others)
    if leaders[0][1] is new[1] or (len(leaders) > 1 and leaders[1][0] >= new[0]):
        return leaders
    return (leaders[0], new)


def _events(claim: Claim) -> list[tuple[Instant, int]]:
    """Return a claim's points (R7) and its stated end as (instant, rank); a denial has none."""
    if claim.kind == "ended":
        return [] if claim.end is None else [(claim.end, _END)]
    if claim.kind == "denied":
        return []
    start = ALWAYS if claim.start is None else claim.start
    found = [(start, _START)]
    if claim.kind == "happened":  # an event: that it happened stays true (R18)
        return found
    if claim.end is None and start < claim.said[0] and (claim.start is None or not claim.inferred):
        found.append((claim.said[0], _CONFIRMATION))
    if claim.end is not None and claim.end > start:
        found.append((claim.end, _DUE))
    return found


def _starts(events: Iterable[Event]) -> list[OwnClaim]:
    return [own for rank, _, own in events if rank == _START and own[0].kind == "holds"]


def _arranged(events: list[Event]) -> list[Event]:
    """Return the events of one instant in order; an end comes after its own earlier starts (R7)."""
    first: dict[StatementState, Said] = {}  # when a statement's first start here was said
    for claim, state in _starts(events):
        first[state] = min(claim.said, first.get(state, claim.said))

    def rank_of(rank: int, own: OwnClaim) -> int:
        if own[0].kind != "ended":
            return rank
        # Every time: a denial may have set the earlier start aside.
        return _START if own[1] in first and first[own[1]] < own[0].said else _END

    ranked = ((rank_of(rank, own), moment, own) for rank, moment, own in events)
    # Of one end for several variants, that of the variant that it was recorded with comes first (R6).
    return sorted(ranked, key=lambda e: (e[0], e[1], e[2][0].other_variant, e[2][0].statement))


class Component:
    """The sweep over statements that are connected by rivalry."""

    def __init__(self, touched: set[StatementState]) -> None:
        """touched: collects the statements whose spans may have changed."""
        self.statements: list[StatementState] = []
        self._touched = touched
        self._batches: dict[Instant, list[Event]] = {}  # arranged
        self._times: list[Instant] = []
        self._marks: list[int] = []  # for each instant swept: the length of the log before it
        self._log: list[tuple[Any, str, Any]] = []  # (object, attribute or list mark, what it was)

    def __len__(self) -> int:
        return len(self._times)

    # -- in and out

    def change(self, new: Iterable[OwnClaim], gone: Iterable[OwnClaim] = ()) -> None:
        """Add new claims, remove those that a denial set aside, and sweep from the first touched instant."""
        touched: dict[Instant, list[Event]] = {}
        for own in new:
            for at, rank in _events(own[0]):
                touched.setdefault(at, []).append((rank, own[0].said, own))
        left = {(own[0].said, own[0].statement) for own in gone}
        for own in gone:
            touched.update((at, touched.get(at, [])) for at, _ in _events(own[0]))
        if not touched:
            return
        self._rewind(min(touched))
        for at in sorted(touched):
            if at not in self._batches:
                insort(self._times, at)
            # An instant that loses its last event stays: an empty one costs nothing.
            held = self._batches.get(at, ())
            events = [e for e in held if (e[1], e[2][0].statement) not in left] + touched[at]
            self._batches[at] = _arranged(events) if len(events) > 1 else events
        for instant in self._times[len(self._marks) :]:
            self._marks.append(len(self._log))
            self._take(instant, self._batches[instant])

    def dissolve(self) -> list[OwnClaim]:
        """Undo everything and return the claims, for another component."""
        self._rewind(ALWAYS)
        return [(claim, state) for state in self.statements for claim in state.claims]

    # -- the log

    def _set(self, target: Any, name: str, value: object) -> None:  # noqa: ANN401 - a state, slot or draft
        self._log.append((target, name, getattr(target, name)))
        setattr(target, name, value)

    def _insert(self, items: list[Any], place: int, item: object) -> None:
        self._log.append((items, _ADDED, place))
        items.insert(place, item)

    def _remove(self, items: list[Any], place: int) -> None:
        self._log.append((items, _TAKEN, (place, items.pop(place))))

    def _touch(self, state: StatementState) -> None:
        """Log that the statement's last span changes; called before each change."""
        self._log.append((state, _CHANGED, None))
        self._note_change(state)

    def _note_change(self, state: StatementState) -> None:
        self._touched.add(state)
        last = len(state.spans) - 1
        if state.low > last >= 0:
            state.low = last

    def _rewind(self, instant: Instant) -> None:
        """Undo all that was swept at `instant` and later."""
        place = bisect_left(self._times, instant)
        if place >= len(self._marks):
            return
        mark = self._marks[place]
        while len(self._log) > mark:
            target, name, old = self._log.pop()
            if name == _ADDED:
                del target[old]
            elif name == _TAKEN:
                target.insert(*old)
            elif name == _CHANGED:
                self._note_change(target)
            elif name == _OVER:
                target.end, target.ended, target.cut = None, None, False
            else:
                setattr(target, name, old)
        del self._marks[place:]

    # -- one instant

    def _take(self, instant: Instant, events: list[Event]) -> None:
        starts = _starts(events)
        for rank, _, (claim, state) in events:
            if rank == _DUE:
                self._reach_stated_end(instant, claim, state)
            elif claim.kind == "ended":
                self._stop_claiming(claim, state)
        for claim, state in starts:
            if until(claim) > instant:
                self._set_claiming(state, extended(state.claiming, claim))
        for rank, _, (claim, state) in events:
            if claim.kind == "ended":
                self._end(instant, claim, state)
            elif rank != _DUE:
                self._begin(instant, claim, state, "start" if rank == _START else "confirmation")
        for claim, state in starts:
            self._count_as_past(claim, state)

    def _count_as_past(self, claim: Claim, state: StatementState) -> None:
        """Keep a start as a past one: R8 asks whether a later one outlives an end."""
        if claim.end is not None:
            self._set(state, "bounded", extended(state.bounded, claim))
        elif state.unbounded is None or state.unbounded.said < claim.said:
            self._set(state, "unbounded", claim)

    def _reach_stated_end(self, instant: Instant, claim: Claim, state: StatementState) -> None:
        """Stop a claim at its stated end; the span ends if that end stands (R9)."""
        if any(other is claim for other in state.claiming):
            self._set_claiming(state, tuple(other for other in state.claiming if other is not claim))
        if state.open and state.spans[-1].deadline() <= instant:
            self._close(instant, state, state.spans[-1].stated, cut=False)

    def _stop_claiming(self, claim: Claim, state: StatementState) -> None:
        """Apply an `ended` claim: claims said before it that have started stop claiming (R10)."""
        place = bisect_left(state.claiming, claim.said, key=said)
        if place:
            self._set_claiming(state, state.claiming[place:])
        if state.ended is None or state.ended.said < claim.said:
            self._set(state, "ended", claim)

    def _set_claiming(self, state: StatementState, claiming: tuple[Claim, ...]) -> None:
        """Set the claims for a statement at this instant; its slots keep the one said last."""
        if claiming is state.claiming:
            return
        old, new = state.claiming[-1:], claiming[-1:]
        self._set(state, "claiming", claiming)
        if old and new and old[0] is new[0]:
            return
        for slot in state.slots:
            if old:
                self._remove(slot.latest, bisect_left(slot.latest, (old[0].said, state.statement)))
            if new:
                entry = (new[0].said, state.statement)
                self._insert(slot.latest, bisect_left(slot.latest, entry), (*entry, state))

    # -- the rules

    def _end(self, instant: Instant, claim: Claim, state: StatementState) -> None:
        """R8: an end point. One that was recorded with another variant only closes an open span (R6)."""
        if claim.other_variant and (not state.open or state.outlives(claim, instant)):
            return
        if state.spans:
            self._support(instant, claim, state)
            if state.open and not state.outlives(claim, instant):
                self._close(instant, state, claim, cut=False)
            return
        start, end, ended = ALWAYS, instant, claim
        first = state.first_rival(instant)
        if first is not None and first[0] == ALWAYS:
            is_rival_open = next(state.open_rivals(), None) is not None
            start = instant if is_rival_open else state.last_rival_end()
        elif first is not None and first[0] < instant:
            end, ended = first
        self._keep(SpanDraft(state, claim, "end", start, [claim]), end, ended, state)

    def _begin(self, instant: Instant, claim: Claim, state: StatementState, point: Point) -> None:
        """R9-R11: a start or a confirmation."""
        if state.open:
            self._support(instant, claim, state)
            return
        inferred = claim.start is not None and (claim.inferred or claim.start == claim.said[0])
        if point == "confirmation" or inferred:
            better = state.overruled_by(claim.said)
            if better is not None:
                if state.spans:
                    self._support(instant, claim, state)
                else:
                    self._keep(SpanDraft(state, claim, point, instant, [claim]), instant, better, state)
                return
        rivals = list(state.open_rivals())
        opens = instant
        if point == "confirmation" and not rivals and state.spans and state.spans[-1].cut:
            last = state.spans[-1].end
            opens = state.last_rival_end() if last is None else max(last, state.last_rival_end())
        for rival in rivals:
            if rival.open:  # a statement may be a rival twice
                self._close(opens, rival, claim, cut=True)
        self._start(opens, claim, point, state)
        self._end_if_due(instant, state)

    def _start(self, start: Instant, claim: Claim, point: Point, state: StatementState) -> None:
        """Open a span."""
        self._insert(state.spans, len(state.spans), SpanDraft(state, claim, point, start, [claim]))
        self._touch(state)
        self._set(state, "open", True)
        for slot in state.slots:
            self._set(slot, "open", state)
        self._weigh_stated_end(claim, state.spans[-1])

    def _keep(self, draft: SpanDraft, end: Instant, by: Claim, state: StatementState) -> None:
        """Add a span that is already ended: open rivals stay open."""
        self._insert(state.spans, len(state.spans), draft)
        self._touch(state)
        draft.end, draft.ended = end, by
        if end > draft.start:
            self._note_ended(draft, end, state)

    def _support(self, instant: Instant, claim: Claim, state: StatementState) -> None:
        """Add evidence to the last span; where that is open, its stated ends count anew (R9)."""
        self._touch(state)
        draft = state.spans[-1]
        place = bisect_left(draft.support, claim.said, key=said)
        if place == len(draft.support) or draft.support[place].said != claim.said:
            self._insert(draft.support, place, claim)
        if state.open:
            self._weigh_stated_end(claim, draft)
            self._end_if_due(instant, state)

    def _weigh_stated_end(self, claim: Claim, draft: SpanDraft) -> None:
        """Keep, of the supporters with and without a stated end, the one said last."""
        if claim.kind == "holds":
            name = "endless" if claim.end is None else "stated"
            held: Claim | None = getattr(draft, name)
            if held is None or held.said < claim.said:
                self._set(draft, name, claim)

    def _end_if_due(self, instant: Instant, state: StatementState) -> None:
        """End the open span now if its stated end is not in the future."""
        draft = state.spans[-1]
        if draft.deadline() <= instant:
            self._close(instant, state, draft.stated, cut=False)

    def _close(self, end: Instant, state: StatementState, by: Claim | None, *, cut: bool) -> None:
        """End the open span."""
        self._touch(state)
        draft = state.spans[-1]
        self._set(state, "open", False)
        for slot in state.slots:
            self._set(slot, "open", None)
        if end == ALWAYS:
            self._remove(state.spans, len(state.spans) - 1)  # from unknown to unknown: none (R12)
            return
        self._log.append((draft, _OVER, None))
        draft.end, draft.ended, draft.cut = end, by, cut
        if end > draft.start:
            self._note_ended(draft, end, state)

    def _note_ended(self, draft: SpanDraft, end: Instant, state: StatementState) -> None:
        """Note an ended span of positive length in the fields that rivals read (R8, R11)."""
        if state.first is None:
            self._set(state, "first", draft)
            for slot in state.slots:
                if len(slot.firsts) < 2 or draft.start < slot.firsts[1][0]:
                    # Of different statements, since each has one first span.
                    firsts = sorted((*slot.firsts, (draft.start, state)), key=itemgetter(0))
                    self._set(slot, "firsts", tuple(firsts[:2]))
        if end > state.last_end:
            self._set(state, "last_end", end)
        for slot in state.slots:
            self._set(slot, "ends", last_two(slot.ends, (end, state)))
