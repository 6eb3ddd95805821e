"""`timeline`, and `Sweep`: the same function, kept up to date while claims arrive.

`FullSweep` applies the rules R7-R12, instant by instant, to statements that rivalry connects. It logs what
each instant changed; evidence about the past undoes the log back to its instant and sweeps forward again.
Without the log each claim would cost all instants, 20 us each: 200 ms a commit for a slot of 10,000 values.

`PlainSlot` is a cheaper algorithm for a slot with claims in the present tense only, as in most slots (prices,
statuses, messages): no start or end is stated, nothing is denied, and no two rivals share an
instant. Then nothing overrules (R10) and nothing is confirmed (R7): each run of claims of one statement is a
span, which the next run ends (R9, R11). A claim changes only its neighbours, so a late claim costs as little
as the newest, and a history may be read in any order.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Hashable, Iterable, Sequence
from operator import attrgetter, itemgetter
from typing import Any

from kgray.domain.times import Instant
from kgray.timeline.states import (
    ALWAYS,
    DUE,
    START,
    Claim,
    Event,
    OwnClaim,
    Point,
    Rivals,
    SlotState,
    Span,
    SpanDraft,
    StatementState,
    arranged,
    events_of,
    extended,
    said_key,
    starts_of,
    stated_end,
    vouched_until,
)

_start = attrgetter("start")  # of a span


class FullSweep:
    """The sweep over statements that rivalry connects; it logs the changes of each instant to undo them."""

    def __init__(self, touched: set[StatementState]) -> None:
        self._touched = touched  # collects the statements whose spans may have changed
        self._batches: dict[Instant, list[Event]] = {}  # arranged
        self._times: list[Instant] = []
        self._log_lengths: list[int] = []  # for each instant swept: the length of the log before it
        # (object, attribute, former value), or (function that undoes a change, "", its arguments)
        self._undo_log: list[tuple[Any, str, Any]] = []

    def change(self, new: Iterable[OwnClaim], obsolete: Iterable[OwnClaim] = ()) -> None:
        """Add new claims, remove those that a denial set aside, and sweep from the first touched instant."""
        touched: dict[Instant, list[Event]] = {}
        for claim, state in new:
            for at, rank in events_of(claim):
                touched.setdefault(at, []).append((rank, claim, state))
        removed = {(claim.said, claim.statement) for claim, _ in obsolete}
        for claim, _ in obsolete:
            for at, _ in events_of(claim):
                touched.setdefault(at, [])
        if not touched:
            return
        self._rewind(min(touched))
        for at in sorted(touched):
            if at not in self._batches:
                insort(self._times, at)
            # An instant that loses its last event stays: an empty one costs nothing.
            former = self._batches.get(at, ())
            events = [e for e in former if (e[1].said, e[1].statement) not in removed] + touched[at]
            self._batches[at] = arranged(events) if len(events) > 1 else events
        for instant in self._times[len(self._log_lengths) :]:
            self._log_lengths.append(len(self._undo_log))
            self._take(instant, self._batches[instant])

    def _rewind(self, instant: Instant) -> None:
        place = bisect_left(self._times, instant)
        if place < len(self._log_lengths):
            length = self._log_lengths[place]
            for target, name, old in reversed(self._undo_log[length:]):
                setattr(target, name, old) if name else target(*old)
            del self._log_lengths[place:], self._undo_log[length:]

    def _set(self, target: Any, name: str, value: object) -> None:  # noqa: ANN401 - a state, slot or draft
        self._undo_log.append((target, name, getattr(target, name)))
        setattr(target, name, value)

    def _insert(self, items: list[Any], place: int, item: object) -> None:
        self._undo_log.append((items.pop, "", (place,)))
        items.insert(place, item)

    def _remove(self, items: list[Any], place: int) -> None:
        self._undo_log.append((items.insert, "", (place, items.pop(place))))

    def _touch(self, state: StatementState) -> None:
        """Note that the statement's last span changes; called before each change."""
        self._undo_log.append((self._note_change, "", (state,)))
        self._note_change(state)

    def _note_change(self, state: StatementState) -> None:
        self._touched.add(state)
        last = len(state.spans) - 1
        if state.unchanged_count > last >= 0:
            state.unchanged_count = last

    def _set_claiming(self, state: StatementState, claiming: tuple[Claim, ...]) -> None:
        """Set a statement's `holds` claims that cover this instant; its slots store the one said last."""
        if claiming == state.claiming:
            return
        old, new = state.claiming[-1:], claiming[-1:]
        self._set(state, "claiming", claiming)
        if old == new:
            return
        for slot in state.slots:
            if old:
                self._remove(slot.latest, bisect_left(slot.latest, (old[0].said, state.statement)))
            if new:
                entry = (new[0].said, state.statement)
                self._insert(slot.latest, bisect_left(slot.latest, entry), (*entry, state))

    def _take(self, instant: Instant, events: list[Event]) -> None:
        """Apply the rules at one instant: first update the claims that cover it (R10), then take its points.

        Last, it adds the claims that start here to `past`, for later instants.
        """
        starts = starts_of(events)
        for rank, claim, state in events:
            if rank == DUE:
                self._set_claiming(state, tuple(active for active in state.claiming if active is not claim))
                self._end_if_due(instant, state)
            elif claim.kind == "ended":  # earlier claims that have started stop claiming the instant
                self._stop_claiming(claim, state)
        for claim, state in starts:
            if stated_end(claim) > instant:
                self._set_claiming(state, extended(state.claiming, claim, stated_end))
        for rank, claim, state in events:
            if claim.kind == "ended":
                self._end(instant, claim, state)
            elif rank != DUE:
                self._begin(instant, claim, state, "start" if rank == START else "confirmation")
        for claim, state in starts:
            self._set(state, "past", extended(state.past, claim, vouched_until))

    def _stop_claiming(self, claim: Claim, state: StatementState) -> None:
        place = bisect_left(state.claiming, claim.said, key=said_key)
        if place:
            self._set_claiming(state, state.claiming[place:])
        if state.ended is None or state.ended.said < claim.said:
            self._set(state, "ended", claim)

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
        self._add_ended_span(SpanDraft(state, claim, "end", start, [claim]), end, ended, state)

    def _begin(self, instant: Instant, claim: Claim, state: StatementState, point: Point) -> None:
        """R9-R11: a start or a confirmation."""
        if state.open:
            self._support(instant, claim, state)
            return
        inferred = claim.start is not None and (claim.inferred or claim.start == claim.said[0])
        if point == "confirmation" or inferred:
            overruling = state.overruled_by(claim.said)
            if overruling is not None:
                if state.spans:
                    self._support(instant, claim, state)
                else:
                    self._add_ended_span(
                        SpanDraft(state, claim, point, instant, [claim]), instant, overruling, state
                    )
                return
        rivals = list(state.open_rivals())
        opens = instant
        if point == "confirmation" and not rivals and state.spans and state.spans[-1].cut:
            last = state.spans[-1].end
            opens = state.last_rival_end() if last is None else max(last, state.last_rival_end())
        for rival in rivals:
            if rival.open:  # a statement may be a rival twice
                self._close(opens, rival, claim, cut=True)
        self._insert(state.spans, len(state.spans), SpanDraft(state, claim, point, opens, [claim]))
        self._touch(state)
        self._set(state, "open", True)
        for slot in state.slots:
            self._set(slot, "open", state)
        self._note_supporter(instant, claim, state)

    def _add_ended_span(self, draft: SpanDraft, end: Instant, ended: Claim, state: StatementState) -> None:
        """Add a span that is already ended: open rivals stay open."""
        self._insert(state.spans, len(state.spans), draft)
        self._touch(state)
        draft.finish(end, ended, cut=False)
        if end > draft.start:
            self._note_ended(draft, end, state)

    def _support(self, instant: Instant, claim: Claim, state: StatementState) -> None:
        """Add evidence to the last span; if the span is open, compute its end again (R9)."""
        self._touch(state)
        support = state.spans[-1].support
        place = bisect_left(support, claim.said, key=said_key)
        if place == len(support) or support[place].said != claim.said:
            self._insert(support, place, claim)
        if state.open:
            self._note_supporter(instant, claim, state)

    def _note_supporter(self, instant: Instant, claim: Claim, state: StatementState) -> None:
        """Note the last supporters with and without a stated end; close the span if it is due (R9)."""
        draft = state.spans[-1]
        if claim.kind == "holds":
            name = "endless" if claim.end is None else "stated"
            latest: Claim | None = getattr(draft, name)
            if latest is None or latest.said < claim.said:
                self._set(draft, name, claim)
        self._end_if_due(instant, state)

    def _end_if_due(self, instant: Instant, state: StatementState) -> None:
        if state.open and state.spans[-1].deadline() <= instant:
            self._close(instant, state, state.spans[-1].stated, cut=False)

    def _close(self, end: Instant, state: StatementState, ended: Claim | None, *, cut: bool) -> None:
        self._touch(state)
        draft = state.spans[-1]
        self._set(state, "open", False)
        for slot in state.slots:
            self._set(slot, "open", None)
        if end == ALWAYS:
            self._remove(state.spans, len(state.spans) - 1)  # from unknown to unknown: none (R12)
            return
        self._undo_log.append((draft.finish, "", (None, None, False)))
        draft.finish(end, ended, cut)
        if end > draft.start:
            self._note_ended(draft, end, state)

    def _note_ended(self, draft: SpanDraft, end: Instant, state: StatementState) -> None:
        """Note an ended span of positive length in the fields that rivals read (R8, R11)."""
        if state.first is None:
            self._set(state, "first", draft)
            for slot in state.slots:
                firsts = sorted((*slot.firsts, (draft.start, state)), key=itemgetter(0))
                self._set(slot, "firsts", tuple(firsts[:2]))  # of two statements: each has one first span
        if end > state.last_end:
            self._set(state, "last_end", end)
            for slot in state.slots:
                other_ends = (leader for leader in slot.ends if leader[1] is not state)
                ends = sorted((*other_ends, (end, state)), key=itemgetter(0), reverse=True)
                self._set(slot, "ends", tuple(ends[:2]))


class PlainSlot:
    """The spans of one slot, or of one statement without rivals, in order of start."""

    def __init__(self, touched: set[StatementState]) -> None:
        self._touched = touched  # collects the statements whose spans may have changed
        self._runs: list[SpanDraft] = []

    def take(self, claim: Claim, state: StatementState) -> bool:
        """Add a claim; False if it needs all rules: the caller then discards this object and applies them."""
        at = claim.said[0]
        if claim.kind != "holds" or claim.end is not None or claim.start != at:
            return False
        place = bisect_right(self._runs, at, key=_start)  # the run before this index is open at `at`
        current = self._runs[place - 1] if place else None
        if current is not None and current.state is state:
            current.support.insert(bisect_left(current.support, claim.said, key=said_key), claim)
            self._settle(place - 1)
            return True
        if current is not None:
            keep = bisect_left(current.support, at, key=lambda claim: claim.said[0])
            later = current.support[keep:]
            if later and later[0].said[0] == at:
                return False  # two rivals at one instant
            if later:
                del current.support[keep:]
                self._insert(place, current.state, later)
        following = self._runs[place] if place < len(self._runs) else None
        if following is not None and following.state is state:
            following.support.insert(0, claim)
            following.start = at
        else:
            self._insert(place, state, [claim])
        self._settle(place)
        return True

    def _insert(self, place: int, state: StatementState, support: list[Claim]) -> None:
        run = SpanDraft(state, support[0], "start", support[0].said[0], support)
        self._runs.insert(place, run)
        state.spans.insert(bisect_left(state.spans, run.start, key=_start), run)

    def _settle(self, place: int) -> None:
        """Update opener and end of the run at `place` and of its neighbours."""
        self._runs[place].opened = self._runs[place].support[0]
        for near in range(max(place - 1, 0), min(place + 2, len(self._runs))):
            run = self._runs[near]
            following = self._runs[near + 1] if near + 1 < len(self._runs) else None
            run.end = None if following is None else following.start
            run.ended = None if following is None else following.opened
            state = run.state
            state.unchanged_count = min(
                state.unchanged_count, bisect_left(state.spans, run.start, key=_start)
            )
            self._touched.add(state)


SpanChange = tuple[tuple[Span, ...], tuple[Span, ...]]  # the former spans, the new spans


def timeline(
    evidence: Iterable[Claim], rivals: Rivals, known_at: Instant | None = None
) -> dict[str, tuple[Span, ...]]:
    """Return the spans of every statement with evidence, in order of start (R6-R13).

    known_at: only claims recorded by then count (R4); None = all. Pure: it reads no clock and does not
    depend on the order of `evidence`. Cost: O(n log n) for n claims of one slot.
    """
    claims = [claim for claim in evidence if known_at is None or claim.recorded <= known_at]
    sweep = Sweep(rivals)
    sweep.add(claims)
    return {statement: sweep.spans(statement) for statement in sorted({c.statement for c in claims})}


class Sweep:
    """`timeline`, kept up to date: claims in any order and in any batches give the same spans.

    It asks `rivals` when a statement's first claim arrives. If the rivals of a statement change later, or
    evidence is removed, make a new sweep. `add` sweeps all statements again from the earliest instant that
    the claims touch: use one sweep for each set of statements that rivalry connects.
    """

    def __init__(self, rivals: Rivals) -> None:
        self._rivals = rivals
        self._statements: dict[str, StatementState] = {}
        self._slots: dict[Hashable, SlotState] = {}
        self._touched: set[StatementState] = set()
        self._plain = PlainSlot(self._touched)
        self._component: FullSweep | None = None  # as soon as all rules are needed
        self._size = 0

    def __len__(self) -> int:
        """Return the number of claims, including claims that a denial set aside."""
        return self._size

    def spans(self, statement: str) -> tuple[Span, ...]:
        """Return the statement's spans in order of start; () for an unknown statement."""
        state = self._statements.get(statement)
        return () if state is None else state.view()

    def add(self, claims: Sequence[Claim]) -> dict[str, SpanChange]:
        """Add claims; return (former spans, new spans) by statement, where they differ."""
        own_claims = [
            (claim, self._statements.get(claim.statement) or self._new_state(claim)) for claim in claims
        ]
        new, obsolete = _apply_denials(own_claims)
        if self._component is not None:
            self._component.change(new, obsolete)
        elif obsolete or not all(self._plain.take(claim, state) for claim, state in new):
            self._apply_all_rules()
        self._size += len(claims)
        changes: dict[str, SpanChange] = {}
        for state in sorted(self._touched, key=attrgetter("statement")):
            former, unchanged = state.last_view, state.unchanged_count
            spans = state.view()
            if former[unchanged:] != spans[unchanged:]:
                changes[state.statement] = (former, spans)
        self._touched.clear()
        return changes

    def _new_state(self, claim: Claim) -> StatementState:
        """Create a statement's state at its first claim, linked to its rivals; use all rules if necessary."""
        state = self._statements[claim.statement] = StatementState(claim.statement)
        for key in dict.fromkeys(self._rivals.slot_keys(claim.statement)):
            state.slots.append(self._slots.setdefault(key, SlotState()))
        for name in sorted(set(self._rivals.pairs(claim.statement))):
            partner = self._statements.get(name)
            if partner is not None and partner is not state:
                state.partners.append(partner)
                partner.partners.append(state)
        first = next(iter(self._statements.values()))
        # `PlainSlot` needs all statements in one and the same slot.
        fits = len(state.slots) <= 1 if state is first else state.slots and state.slots == first.slots
        if self._component is None and (state.partners or not fits):
            self._apply_all_rules()
        return state

    def _apply_all_rules(self) -> None:
        """Sweep all claims again, by all rules from this call on."""
        self._component = FullSweep(self._touched)
        states = self._statements.values()
        for state in states:
            state.spans.clear()
            state.unchanged_count = 0
        self._touched.update(states)
        self._component.change((claim, state) for state in states for claim in state.claims)


def _apply_denials(own_claims: Sequence[OwnClaim]) -> tuple[list[OwnClaim], list[OwnClaim]]:
    """Apply denials (R6): return the new claims that count, and the former claims that no longer count."""
    denied = {}
    for claim, state in own_claims:
        if claim.kind == "denied" and (state.denied is None or state.denied < claim.said):
            state.denied = denied[state] = claim.said
    obsolete = []
    for state, said in denied.items():
        obsolete += [(claim, state) for claim in state.claims if claim.said < said]
        state.claims = [claim for claim in state.claims if claim.said > said]
    new = []
    for claim, state in own_claims:
        if claim.kind != "denied" and (state.denied is None or claim.said > state.denied):
            state.claims.append(claim)
            new.append((claim, state))
    return new, obsolete
