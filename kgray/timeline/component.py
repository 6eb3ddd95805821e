"""The rules R7-R12, instant by instant, over one component.

A component is a set of statements connected by rivalry. It logs what each instant changed; evidence about
the past undoes the log back to its instant and sweeps forward again. So the newest claim costs one instant,
and a late claim costs the instants after it. Without the log each claim would cost all instants, 20 us each:
200 ms a commit for a slot of 10,000 values.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import Any

from kgray.timeline.claims import Claim, Point, Said
from kgray.timeline.state import (
    ALWAYS,
    OwnClaim,
    SpanDraft,
    StatementState,
    extended,
    first_two,
    last_two,
    said,
    until,
)
from kgray.times import Instant

_END, _CONFIRMATION, _START = range(3)  # the order of points at one instant (R7)
_FEW = 8  # up to this many new instants are inserted one by one; more are sorted in
# Kinds of log entry: item added to or taken from a list, span ended, statement changed; else an attribute.
_ADDED, _TAKEN, _OVER, _CHANGED = "+", "-", "over", "changed"


def points(claim: Claim) -> list[tuple[Instant, int]]:
    """Return the points of a claim as (instant, rank) (R7); a denial has none."""
    if claim.kind == "denied":
        return []
    if claim.kind == "ended":
        return [] if claim.end is None else [(claim.end, _END)]
    start = ALWAYS if claim.start is None else claim.start
    found = [(start, _START)]
    if claim.end is None and start < claim.said[0] and (claim.start is None or not claim.inferred):
        found.append((claim.said[0], _CONFIRMATION))
    return found


class _Batch:
    """The events of one instant."""

    __slots__ = ("arranged", "due", "ends", "events", "starts")

    def __init__(self) -> None:
        self.events: list[tuple[int, Said, OwnClaim]] = []
        self.due: list[OwnClaim] = []  # `holds` with their stated end here
        self.starts: list[OwnClaim] = []
        self.ends: list[OwnClaim] = []  # `ended`
        self.arranged = False

    def arrange(self) -> None:
        """Sort the events by (end, confirmation, start; said); an end after its own earlier starts (R7)."""
        self.starts = [own for rank, _, own in self.events if rank == _START and own[0].kind == "holds"]
        self.ends = [own for _, _, own in self.events if own[0].kind == "ended"]
        if self.ends:  # every time: a denial may have set the earlier start aside
            first: dict[StatementState, Said] = {}
            for claim, state in self.starts:
                first[state] = min(claim.said, first.get(state, claim.said))
            self.events = [
                (_rank(rank, own, first.get(own[1])), moment, own) for rank, moment, own in self.events
            ]
        self.events.sort(key=lambda event: event[:2])
        self.arranged = True


def _rank(rank: int, own: OwnClaim, first_start: Said | None) -> int:
    """Return a point's rank at its instant (R7): an end comes after own starts there that were said before.

    first_start     when the first start of the same statement at this instant was said
    """
    if own[0].kind != "ended":
        return rank
    return _START if first_start is not None and first_start < own[0].said else _END


class Component:
    """The sweep over statements that are connected by rivalry."""

    def __init__(self, touched: set[StatementState]) -> None:
        """touched: collects the statements whose spans may have changed."""
        self.statements: list[StatementState] = []
        self._touched = touched
        self._batches: dict[Instant, _Batch] = {}
        self._times: list[Instant] = []
        self._marks: list[int] = []  # for each instant swept: the length of the log before it
        self._log: list[tuple[Any, str, Any]] = []  # (object, attribute or list mark, what it was)

    def __len__(self) -> int:
        """Return the number of instants."""
        return len(self._times)

    # -- in and out

    def change(self, new: Iterable[OwnClaim], gone: Iterable[OwnClaim] = ()) -> None:
        """Add new claims, remove those that a denial set aside, and sweep from the first touched instant."""
        arriving = [(at, rank, own) for own in new for at, rank in points(own[0])]
        leaving = [(at, rank, own) for own in gone for at, rank in points(own[0])]
        if not arriving and not leaving:
            return
        self._rewind(min(at for at, _, _ in (*arriving, *leaving)))
        for at, rank, own in leaving:
            self._take_out(at, rank, own)
        missing = set()
        for at, rank, own in arriving:
            missing.update(self._put_in(at, rank, own))
        if len(missing) > _FEW:
            self._times = sorted((*self._times, *missing))
        else:
            for at in missing:
                insort(self._times, at)
        self._sweep()

    def dissolve(self) -> list[OwnClaim]:
        """Undo everything and return the claims, for another component."""
        self._rewind(ALWAYS)
        return [(claim, state) for state in self.statements for claim in state.claims]

    def _put_in(self, at: Instant, rank: int, own: OwnClaim) -> list[Instant]:
        new = []
        if at not in self._batches:
            new.append(at)
        batch = self._batches.setdefault(at, _Batch())
        batch.events.append((rank, own[0].said, own))
        batch.arranged = False
        end = own[0].end
        if rank == _START and end is not None and end > at:
            if end not in self._batches:
                new.append(end)
            self._batches.setdefault(end, _Batch()).due.append(own)
        return new

    def _take_out(self, at: Instant, rank: int, own: OwnClaim) -> None:
        """Remove one point; its instant stays, because an empty one costs nothing."""
        batch = self._batches[at]
        batch.events = [event for event in batch.events if event[2][0] is not own[0]]
        batch.arranged = False
        end = own[0].end
        if rank == _START and end is not None and end > at:
            due = self._batches[end]
            due.due = [other for other in due.due if other[0] is not own[0]]

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

    def _sweep(self) -> None:
        for instant in self._times[len(self._marks) :]:
            self._marks.append(len(self._log))
            self._take(instant, self._batches[instant])

    def _take(self, instant: Instant, batch: _Batch) -> None:
        if not batch.arranged:
            batch.arrange()
        for own in batch.due:
            self._reach_stated_end(instant, *own)
        for claim, state in batch.ends:
            self._stop_claiming(claim, state)
        for claim, state in batch.starts:
            if until(claim) > instant:
                self._set_claiming(state, extended(state.claiming, claim))
        for rank, _, (claim, state) in batch.events:
            if claim.kind == "ended":
                self._end(instant, claim, state)
            else:
                self._begin(instant, claim, state, "start" if rank == _START else "confirmation")
        for claim, state in batch.starts:
            self._count_as_past(claim, state)

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

    def _count_as_past(self, claim: Claim, state: StatementState) -> None:
        """Keep a start as a past one: R8 asks whether a later one outlives an end."""
        if claim.end is not None:
            self._set(state, "bounded", extended(state.bounded, claim))
        elif state.unbounded is None or state.unbounded.said < claim.said:
            self._set(state, "unbounded", claim)

    # -- the rules

    def _end(self, instant: Instant, claim: Claim, state: StatementState) -> None:
        """R8: an end point."""
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
        self._keep(SpanDraft(claim, "end", start), end, ended, state)

    def _begin(self, instant: Instant, claim: Claim, state: StatementState, point: Point) -> None:
        """R9-R11: a start or a confirmation."""
        if state.open:
            self._support(instant, claim, state)
            return
        inferred = claim.start is not None and (claim.inferred or claim.start == claim.said[0])
        if point == "confirmation" or inferred:
            better = state.overruled_by(claim.said)
            if better is not None:
                self._overrule(instant, claim, state, point, better)
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

    def _overrule(
        self, instant: Instant, claim: Claim, state: StatementState, point: Point, better: Claim
    ) -> None:
        """R10: overruled by something said later."""
        if state.spans:
            self._support(instant, claim, state)
        else:
            self._keep(SpanDraft(claim, point, instant), instant, better, state)

    def _start(self, start: Instant, claim: Claim, point: Point, state: StatementState) -> None:
        """Open a span."""
        self._insert(state.spans, len(state.spans), SpanDraft(claim, point, start))
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
                    self._set(slot, "firsts", first_two(slot.firsts, (draft.start, state)))
        if end > state.last_end:
            self._set(state, "last_end", end)
        for slot in state.slots:
            self._set(slot, "ends", last_two(slot.ends, (end, state)))
