"""The short way: a slot in which everything was said in the present tense, each thing at its time.

Most slots stay like this: prices, statuses, present-tense messages. With no stated start, no end, no
denial, and no two rivals at one instant, nothing knows better than what was said (R10) and nothing is
confirmed (R7): each run of one statement is a span, which the next run ends (R9, R11). So a claim
concerns its neighbours only, and arrives as cheaply in the past as in the present: a history that is
read newest first costs no more than one that is read in order.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from kgray.timeline.claims import Claim
from kgray.timeline.story import Draft, Story, Told, said
from kgray.times import Instant


class _Run(Draft):
    """One span, and the statement whose it is."""

    __slots__ = ("story",)

    def __init__(self, story: Story, support: list[Claim]) -> None:
        super().__init__(support[0], "start", support[0].said[0])
        self.story = story
        self.support = support


class Row:
    """The runs of one slot, or of one statement that has no rivals, in order of start."""

    def __init__(self, touched: set[Story]) -> None:
        """`touched` collects the statements whose spans changed."""
        self.stories: list[Story] = []
        self._touched = touched
        self._runs: list[_Run] = []
        self._starts: list[Instant] = []  # of the runs

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self._runs)

    def take(self, told: Sequence[Told]) -> bool:
        """Take claims in; False where one does not fit: then the row is to be dissolved."""
        return all(self._put(claim, story) for claim, story in told)

    def dissolve(self) -> list[Told]:
        """Forget the spans and return the claims, for a lane to take in."""
        for story in self.stories:
            story.spans.clear()
            story.low = 0
            self._touched.add(story)
        self._runs, self._starts = [], []
        return [(claim, story) for story in self.stories for claim in story.claims]

    def _put(self, claim: Claim, story: Story) -> bool:
        at = claim.said[0]
        if claim.kind != "holds" or claim.end is not None or claim.start != at:
            return False
        place = bisect_right(self._starts, at)  # the run before it is the one in force at `at`
        current = self._runs[place - 1] if place else None
        if current is not None and current.story is story:
            current.support.insert(bisect_left(current.support, claim.said, key=said), claim)
            self._settle(place - 1)
            return True
        if current is not None:
            keep = bisect_left(current.support, at, key=_told)
            rest = current.support[keep:]
            if rest and rest[0].said[0] == at:
                return False  # two rivals at one instant
            if rest:
                del current.support[keep:]
                self._insert(place, _Run(current.story, rest))
        following = self._runs[place] if place < len(self._runs) else None
        if following is not None and following.story is story:
            following.support.insert(0, claim)
            following.start = self._starts[place] = at
        else:
            self._insert(place, _Run(story, [claim]))
        self._settle(place)
        return True

    def _insert(self, place: int, run: _Run) -> None:
        self._runs.insert(place, run)
        self._starts.insert(place, run.start)
        spans = run.story.spans
        spans.insert(bisect_left(spans, run.start, key=_start), run)

    def _settle(self, place: int) -> None:
        """Tell the run at `place` and its neighbours who opens and who ends them."""
        self._runs[place].opened = self._runs[place].support[0]
        for near in range(max(place - 1, 0), min(place + 2, len(self._runs))):
            run = self._runs[near]
            following = self._runs[near + 1] if near + 1 < len(self._runs) else None
            run.end = None if following is None else following.start
            run.ended = None if following is None else following.opened
            story = run.story
            story.low = min(story.low, bisect_left(story.spans, run.start, key=_start))
            self._touched.add(story)


def _told(claim: Claim) -> Instant:
    return claim.said[0]


def _start(draft: Draft) -> Instant:
    return draft.start
