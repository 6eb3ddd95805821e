"""`timeline`, and `Sweep`: the same function, kept up to date while claims arrive."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from kgray.timeline.claims import Claim, Rivals, Span
from kgray.timeline.component import Component
from kgray.timeline.plain import PlainSlot
from kgray.timeline.state import OwnClaim, SlotState, StatementState
from kgray.times import Instant

SpanChange = tuple[tuple[Span, ...], tuple[Span, ...]]  # the spans before, the spans after


def timeline(
    evidence: Iterable[Claim], rivals: Rivals, known_at: Instant | None = None
) -> dict[str, tuple[Span, ...]]:
    """Return the spans of every statement with evidence, in order of start (R6-R13).

    known_at: only what was recorded by then counts (R4); None = all of it. Pure: no clock, no
    dependence on the order of `evidence`. Cost: O(n log n) for n claims of one slot.
    """
    claims = [claim for claim in evidence if known_at is None or claim.recorded <= known_at]
    sweep = Sweep(rivals)
    sweep.add(claims)
    return {statement: sweep.spans(statement) for statement in sorted({c.statement for c in claims})}


class Sweep:
    """`timeline`, kept up to date: claims in any order and in any batches give the same spans.

    `rivals` is asked about a statement when its first claim arrives. Where rivalry changes for a statement
    that is held already (a ruling, a merge, a verdict on two old statements), or evidence is taken away,
    make a new sweep of the statements concerned.

    Statements connected by rivalry form a component. `add` sweeps only the touched components, from the
    earliest instant that the claims touch; what lies before that instant costs nothing.
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
        """Return the number of claims held, those set aside by a denial included."""
        return self._size

    def spans(self, statement: str) -> tuple[Span, ...]:
        """Return the statement's spans in order of start; () for one that is not held."""
        state = self._statements.get(statement)
        return () if state is None else state.view()

    def add(self, claims: Sequence[Claim]) -> dict[str, SpanChange]:
        """Take claims in and return, by statement, the spans before and after where they differ."""
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
        for key in dict.fromkeys(self._rivals.cliques(statement)):
            state.slots.append(self._slots.setdefault(key, SlotState(key)))
        for name in sorted(set(self._rivals.pairs(statement))):
            partner = self._statements.get(name)
            if partner is not None and partner is not state:
                state.partners.append(partner)
                partner.partners.append(state)
        self._settle(state)
        return state

    def _settle(self, state: StatementState) -> None:
        """Put a new statement into the component of its rivals; components that it connects become one."""
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
        """Replace a plain slot, whose short way no longer holds, by a component with all the rules."""
        component = Component(self._touched)
        self._assign(plain.statements, component)
        component.change(plain.dissolve())
        return component

    def _merge(self, components: Sequence[Component]) -> Component:
        """Return the last component, the longest, with the claims of the others taken in."""
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
