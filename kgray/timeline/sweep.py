"""`timeline`, and `Sweep`: the same function, kept up to date while claims arrive.

`PlainSlot` is a cheaper algorithm for a slot with claims in the present tense only, as in most slots (prices,
statuses, messages): no start or end is stated, nothing is denied, and no two rivals share an
instant. Then nothing overrules (R10) and nothing is confirmed (R7): each run of claims of one statement is a
span, which the next run ends (R9, R11). A claim changes only its neighbours, so a late claim costs as little
as the newest, and a history may be read in any order.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Sequence

from kgray.timeline.claims import Claim, Rivals, Span
from kgray.timeline.component import Component, OwnClaim, SlotState, SpanDraft, StatementState, said
from kgray.times import Instant


class PlainSlot:
    """The spans of one slot, or of one statement without rivals, in order of start."""

    def __init__(self, touched: set[StatementState]) -> None:
        """touched: collects the statements whose spans changed."""
        self.statements: list[StatementState] = []
        self._touched = touched
        self._runs: list[SpanDraft] = []
        self._starts: list[Instant] = []  # of the runs, for bisection

    def __len__(self) -> int:
        return len(self._runs)

    def take(self, own: Sequence[OwnClaim]) -> bool:
        """Add claims; False where one needs all rules: the caller then dissolves this slot."""
        return all(self._put(claim, state) for claim, state in own)

    def dissolve(self) -> list[OwnClaim]:
        """Drop the spans and return the claims, for a component to take in."""
        for state in self.statements:
            state.spans.clear()
            state.low = 0
            self._touched.add(state)
        self._runs, self._starts = [], []
        return [(claim, state) for state in self.statements for claim in state.claims]

    def _put(self, claim: Claim, state: StatementState) -> bool:
        at = claim.said[0]
        if claim.kind != "holds" or claim.end is not None or claim.start != at:
            return False
        place = bisect_right(self._starts, at)  # the run before this index is open at `at`
        current = self._runs[place - 1] if place else None
        if current is not None and current.state is state:
            current.support.insert(bisect_left(current.support, claim.said, key=said), claim)
            self._settle(place - 1)
            return True
        if current is not None:
            keep = bisect_left(current.support, at, key=lambda claim: claim.said[0])
            rest = current.support[keep:]
            if rest and rest[0].said[0] == at:
                return False  # two rivals at one instant
            if rest:
                del current.support[keep:]
                self._insert(place, _run(current.state, rest))
        following = self._runs[place] if place < len(self._runs) else None
        if following is not None and following.state is state:
            following.support.insert(0, claim)
            following.start = self._starts[place] = at
        else:
            self._insert(place, _run(state, [claim]))
        self._settle(place)
        return True

    def _insert(self, place: int, run: SpanDraft) -> None:
        self._runs.insert(place, run)
        self._starts.insert(place, run.start)
        spans = run.state.spans
        spans.insert(bisect_left(spans, run.start, key=_start), run)

    def _settle(self, place: int) -> None:
        """Update opener and end of the run at `place` and of its neighbours."""
        self._runs[place].opened = self._runs[place].support[0]
        for near in range(max(place - 1, 0), min(place + 2, len(self._runs))):
            run = self._runs[near]
            following = self._runs[near + 1] if near + 1 < len(self._runs) else None
            run.end = None if following is None else following.start
            run.ended = None if following is None else following.opened
            state = run.state
            state.low = min(state.low, bisect_left(state.spans, run.start, key=_start))
            self._touched.add(state)


def _run(state: StatementState, support: list[Claim]) -> SpanDraft:
    return SpanDraft(state, support[0], "start", support[0].said[0], support)


def _start(draft: SpanDraft) -> Instant:
    return draft.start


SpanChange = tuple[tuple[Span, ...], tuple[Span, ...]]  # the spans before, the spans after


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

    The sweep calls `rivals` back when a statement's first claim arrives. Where the rivals of a statement
    change later (a ruling, a merge, a verdict on two old statements), or evidence is taken away, make a new
    sweep of the statements concerned.

    Statements connected by rivalry form a component. `add` sweeps only the touched components, from the
    earliest instant that the claims touch.
    """

    def __init__(self, rivals: Rivals) -> None:
        self._rivals = rivals
        self._statements: dict[str, StatementState] = {}
        self._slots: dict[Hashable, SlotState] = {}
        self._component_of: dict[StatementState, Component | PlainSlot] = {}
        self._component_of_slot: dict[SlotState, Component | PlainSlot] = {}
        self._touched: set[StatementState] = set()
        self._size = 0

    def __len__(self) -> int:
        """Return the number of claims held, including those that a denial set aside."""
        return self._size

    def spans(self, statement: str) -> tuple[Span, ...]:
        """Return the statement's spans in order of start; () for an unknown statement."""
        state = self._statements.get(statement)
        return () if state is None else state.view()

    def add(self, claims: Sequence[Claim]) -> dict[str, SpanChange]:
        """Add claims; return, by statement, the spans before and after where they differ."""
        own = [(claim, self._statement(claim.statement)) for claim in claims]
        new, gone = _sift(own)
        work: dict[Component | PlainSlot, tuple[list[OwnClaim], list[OwnClaim]]] = {}
        for side, part in enumerate((new, gone)):
            for claim, state in part:
                work.setdefault(self._component_of[state], ([], []))[side].append((claim, state))
        for component, (arriving, leaving) in work.items():
            if isinstance(component, Component):
                component.change(arriving, leaving)
            elif leaving or not component.take(arriving):
                self._apply_all_rules(component)
        self._size += len(claims)
        return self._changes()

    def _changes(self) -> dict[str, SpanChange]:
        changes: dict[str, SpanChange] = {}
        for state in sorted(self._touched, key=lambda state: state.statement):
            before, same = state.shown, state.low
            after = state.view()
            if before[same:] != after[same:]:
                changes[state.statement] = (before, after)
        self._touched.clear()
        return changes

    def _statement(self, statement: str) -> StatementState:
        """Return the statement's state; a new one is linked to its rivals and joins their component."""
        state = self._statements.get(statement)
        if state is not None:
            return state
        state = self._statements[statement] = StatementState(statement)
        for key in dict.fromkeys(self._rivals.slot_keys(statement)):
            state.slots.append(self._slots.setdefault(key, SlotState()))
        for name in sorted(set(self._rivals.pairs(statement))):
            partner = self._statements.get(name)
            if partner is not None and partner is not state:
                state.partners.append(partner)
                partner.partners.append(state)
        self._settle(state)
        return state

    def _settle(self, state: StatementState) -> None:
        """Add a new statement to the component of its rivals; merge the components that it connects."""
        met = [self._component_of_slot[slot] for slot in state.slots if slot in self._component_of_slot]
        met += [self._component_of[partner] for partner in state.partners]
        components = sorted(dict.fromkeys(met), key=len)
        if len(state.slots) > 1 or state.partners:
            full = [self._apply_all_rules(c) if isinstance(c, PlainSlot) else c for c in components]
            component: Component | PlainSlot = self._merge(full) if full else Component(self._touched)
        else:
            component = components[0] if components else PlainSlot(self._touched)
        self._assign([state], component)

    def _assign(self, statements: Sequence[StatementState], component: Component | PlainSlot) -> None:
        component.statements += statements
        for state in statements:
            self._component_of[state] = component
            self._component_of_slot.update(dict.fromkeys(state.slots, component))

    def _apply_all_rules(self, plain: PlainSlot) -> Component:
        """Replace a plain slot by a component, which applies all rules."""
        component = Component(self._touched)
        self._assign(plain.statements, component)
        component.change(plain.dissolve())
        return component

    def _merge(self, components: Sequence[Component]) -> Component:
        """Return the last and longest component, with the claims of the others added."""
        *others, component = components
        for other in others:
            claims = other.dissolve()
            self._assign(other.statements, component)
            component.change(claims)
        return component


def _sift(own: Sequence[OwnClaim]) -> tuple[list[OwnClaim], list[OwnClaim]]:
    """Apply denials (R6): return the claims that count from now on, and those that no longer count."""
    denied = {}
    for claim, state in own:
        if claim.kind == "denied" and (state.denied is None or state.denied < claim.said):
            state.denied = denied[state] = claim.said
    gone = []
    for state, moment in denied.items():
        gone += [(claim, state) for claim in state.claims if claim.said < moment]
        state.claims = [claim for claim in state.claims if claim.said > moment]
    new = []
    for claim, state in own:
        if claim.kind != "denied" and (state.denied is None or claim.said > state.denied):
            state.claims.append(claim)
            new.append((claim, state))
    return new, gone
