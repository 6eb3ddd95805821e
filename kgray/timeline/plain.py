"""A cheaper sweep for a slot in which everything was said in the present tense.

Most slots stay like this: prices, statuses, present-tense messages. No start or end is stated, nothing is
denied, and no two rivals share an instant. Then nothing overrules (R10) and nothing is confirmed (R7): each
run of claims of one statement is a span, which the next run ends (R9, R11). A claim changes its neighbours
only, so a late one costs as little as the newest: a history may be read in any order.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from kgray.timeline.claims import Claim
from kgray.timeline.state import OwnClaim, SpanDraft, StatementState, said
from kgray.times import Instant


class _Run(SpanDraft):
    """One span and its statement."""

    __slots__ = ("state",)

    def __init__(self, state: StatementState, support: list[Claim]) -> None:
        super().__init__(support[0], "start", support[0].said[0])
        self.state = state
        self.support = support


class PlainSlot:
    """The runs of one slot, or of one statement that has no rivals, in order of start."""

    def __init__(self, touched: set[StatementState]) -> None:
        """`touched` collects the statements whose spans changed."""
        self.statements: list[StatementState] = []
        self._touched = touched
        self._runs: list[_Run] = []
        self._starts: list[Instant] = []  # of the runs

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self._runs)

    def take(self, own: Sequence[OwnClaim]) -> bool:
        """Add claims; False where one does not fit: the caller then dissolves this slot."""
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
        place = bisect_right(self._starts, at)  # the run before it is the one in force at `at`
        current = self._runs[place - 1] if place else None
        if current is not None and current.state is state:
            current.support.insert(bisect_left(current.support, claim.said, key=said), claim)
            self._settle(place - 1)
            return True
        if current is not None:
            keep = bisect_left(current.support, at, key=_said_at)
            rest = current.support[keep:]
            if rest and rest[0].said[0] == at:
                return False  # two rivals at one instant
            if rest:
                del current.support[keep:]
                self._insert(place, _Run(current.state, rest))
        following = self._runs[place] if place < len(self._runs) else None
        if following is not None and following.state is state:
            following.support.insert(0, claim)
            following.start = self._starts[place] = at
        else:
            self._insert(place, _Run(state, [claim]))
        self._settle(place)
        return True

    def _insert(self, place: int, run: _Run) -> None:
        self._runs.insert(place, run)
        self._starts.insert(place, run.start)
        spans = run.state.spans
        spans.insert(bisect_left(spans, run.start, key=_start), run)

    def _settle(self, place: int) -> None:
        """Set again what opens and what ends the run at `place` and its neighbours."""
        self._runs[place].opened = self._runs[place].support[0]
        for near in range(max(place - 1, 0), min(place + 2, len(self._runs))):
            run = self._runs[near]
            following = self._runs[near + 1] if near + 1 < len(self._runs) else None
            run.end = None if following is None else following.start
            run.ended = None if following is None else following.opened
            state = run.state
            state.low = min(state.low, bisect_left(state.spans, run.start, key=_start))
            self._touched.add(state)


def _said_at(claim: Claim) -> Instant:
    return claim.said[0]


def _start(draft: SpanDraft) -> Instant:
    return draft.start
