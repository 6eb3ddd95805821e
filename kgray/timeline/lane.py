"""The rules of semantics section 3, taken instant by instant over statements that may meet.

A lane is a set of statements connected by rivalry. It logs what each instant changed, so that
evidence about the past takes it back to just before that instant and forward again: news costs its
own instant, a late claim the instants after it too.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import Any

from kgray.timeline.claims import Claim, Point, Said
from kgray.timeline.story import ALWAYS, Draft, Story, Told, extended, first_two, last_two, said, until
from kgray.times import Instant

_END, _CONFIRMATION, _START = range(3)  # the order of points at one instant (R7)
_FEW = 8  # new instants up to which inserting each beats sorting all
# Log marks for a list's items, an ended span and a changed one; any other name is an attribute's.
_ADDED, _TAKEN, _OVER, _CHANGED = "+", "-", "over", "changed"


def points(claim: Claim) -> list[tuple[Instant, int]]:
    """Return instant and kind of the points that the evidence gives (R7); none for a denial."""
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
    """All that happens at one instant."""

    __slots__ = ("arranged", "due", "ends", "events", "starts")

    def __init__(self) -> None:
        self.events: list[tuple[int, Said, Told]] = []
        self.due: list[Told] = []  # `holds` whose stated end this is
        self.starts: list[Told] = []
        self.ends: list[Told] = []  # `ended`
        self.arranged = False

    def arrange(self) -> None:
        """Sort the events by (end, confirmation, start; said), an end after own earlier starts."""
        self.starts = [told for rank, _, told in self.events if rank == _START and told[0].kind == "holds"]
        self.ends = [told for _, _, told in self.events if told[0].kind == "ended"]
        if self.ends:  # anew each time: a denial may have set the earlier start aside
            first: dict[Story, Said] = {}
            for claim, story in self.starts:
                first[story] = min(claim.said, first.get(story, claim.said))
            self.events = [
                (_rank(rank, told, first.get(told[1])), moment, told) for rank, moment, told in self.events
            ]
        self.events.sort(key=lambda event: event[:2])
        self.arranged = True


def _rank(rank: int, told: Told, first_start: Said | None) -> int:
    """Return the event's place at its instant; `first_start`: of its statement, there."""
    if told[0].kind != "ended":
        return rank
    return _START if first_start is not None and first_start < told[0].said else _END


class Lane:
    """The sweep over one set of connected statements."""

    def __init__(self, touched: set[Story]) -> None:
        """`touched` collects the statements whose spans were taken back or changed."""
        self.stories: list[Story] = []
        self._touched = touched
        self._batches: dict[Instant, _Batch] = {}
        self._times: list[Instant] = []
        self._marks: list[int] = []  # for each instant swept: the length of the log before it
        self._log: list[tuple[Any, str, Any]] = []  # (object, attribute or list mark, what it was)

    def __len__(self) -> int:
        """Return the number of instants."""
        return len(self._times)

    # -- in and out

    def change(self, new: Iterable[Told], gone: Iterable[Told] = ()) -> None:
        """Take claims in, and those set aside out; then sweep on from the first instant touched."""
        arriving = [(at, rank, told) for told in new for at, rank in points(told[0])]
        leaving = [(at, rank, told) for told in gone for at, rank in points(told[0])]
        if not arriving and not leaving:
            return
        self._rewind(min(at for at, _, _ in (*arriving, *leaving)))
        for at, rank, told in leaving:
            self._take_out(at, rank, told)
        missing = set()
        for at, rank, told in arriving:
            missing.update(self._put_in(at, rank, told))
        if len(missing) > _FEW:
            self._times = sorted((*self._times, *missing))
        else:
            for at in missing:
                insort(self._times, at)
        self._sweep()

    def dissolve(self) -> list[Told]:
        """Take everything back and return the claims, for another lane to take in."""
        self._rewind(ALWAYS)
        return [(claim, story) for story in self.stories for claim in story.claims]

    def _put_in(self, at: Instant, rank: int, told: Told) -> list[Instant]:
        new = []
        if at not in self._batches:
            new.append(at)
        batch = self._batches.setdefault(at, _Batch())
        batch.events.append((rank, told[0].said, told))
        batch.arranged = False
        end = told[0].end
        if rank == _START and end is not None and end > at:
            if end not in self._batches:
                new.append(end)
            self._batches.setdefault(end, _Batch()).due.append(told)
        return new

    def _take_out(self, at: Instant, rank: int, told: Told) -> None:
        """Forget one point; its instant stays, it costs nothing."""
        batch = self._batches[at]
        batch.events = [event for event in batch.events if event[2][0] is not told[0]]
        batch.arranged = False
        end = told[0].end
        if rank == _START and end is not None and end > at:
            due = self._batches[end]
            due.due = [other for other in due.due if other[0] is not told[0]]

    # -- the log

    def _set(self, target: Any, name: str, value: object) -> None:  # noqa: ANN401 - a story, clique or draft
        self._log.append((target, name, getattr(target, name)))
        setattr(target, name, value)

    def _insert(self, items: list[Any], place: int, item: object) -> None:
        self._log.append((items, _ADDED, place))
        items.insert(place, item)

    def _remove(self, items: list[Any], place: int) -> None:
        self._log.append((items, _TAKEN, (place, items.pop(place))))

    def _touch(self, story: Story) -> None:
        """Note that the story's last span changes: called before each change, and undone with it."""
        self._log.append((story, _CHANGED, None))
        self._spoil(story)

    def _spoil(self, story: Story) -> None:
        self._touched.add(story)
        last = len(story.spans) - 1
        if story.low > last >= 0:
            story.low = last

    def _rewind(self, instant: Instant) -> None:
        """Take back all that was swept at `instant` and later."""
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
                self._spoil(target)
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
        for told in batch.due:
            self._expire(instant, *told)
        for claim, story in batch.ends:
            self._silence(claim, story)
        for claim, story in batch.starts:
            if until(claim) > instant:
                self._hear(story, extended(story.live, claim))
        for rank, _, (claim, story) in batch.events:
            if claim.kind == "ended":
                self._end(instant, claim, story)
            else:
                self._begin(instant, claim, story, "start" if rank == _START else "confirmation")
        for claim, story in batch.starts:
            self._remember(claim, story)

    def _expire(self, instant: Instant, claim: Claim, story: Story) -> None:
        """Silence a claim whose stated end has come; the span ends if that end stands (R9)."""
        if any(other is claim for other in story.live):
            self._hear(story, tuple(other for other in story.live if other is not claim))
        if story.open and story.spans[-1].deadline() <= instant:
            self._close(instant, story, story.spans[-1].stated, cut=False)

    def _silence(self, claim: Claim, story: Story) -> None:
        """Silence what was said before an `ended` and starts before it (R10)."""
        place = bisect_left(story.live, claim.said, key=said)
        if place:
            self._hear(story, story.live[place:])
        if story.ended is None or story.ended.said < claim.said:
            self._set(story, "ended", claim)

    def _hear(self, story: Story, live: tuple[Claim, ...]) -> None:
        """Change what is claimed of a statement now; its slots know the claim said last."""
        if live is story.live:
            return
        old, new = story.live[-1:], live[-1:]
        self._set(story, "live", live)
        if old and new and old[0] is new[0]:
            return
        for clique in story.cliques:
            if old:
                self._remove(clique.voices, bisect_left(clique.voices, (old[0].said, story.statement)))
            if new:
                entry = (new[0].said, story.statement)
                self._insert(clique.voices, bisect_left(clique.voices, entry), (*entry, story))

    def _remember(self, claim: Claim, story: Story) -> None:
        """Count the start among the past ones, for which R8 asks."""
        if claim.end is not None:
            self._set(story, "plans", extended(story.plans, claim))
        elif story.voice is None or story.voice.said < claim.said:
            self._set(story, "voice", claim)

    # -- the rules

    def _end(self, instant: Instant, claim: Claim, story: Story) -> None:
        """R8: an end point."""
        if story.spans:
            self._support(instant, claim, story)
            if story.open and not story.outlives(claim, instant):
                self._close(instant, story, claim, cut=False)
            return
        start, end, ended = ALWAYS, instant, claim
        first = story.first_rival(instant)
        if first is not None and first[0] == ALWAYS:
            is_rival_open = next(story.open_rivals(), None) is not None
            start = instant if is_rival_open else story.last_rival_end()
        elif first is not None and first[0] < instant:
            end, ended = first
        self._keep(Draft(claim, "end", start), end, ended, story)

    def _begin(self, instant: Instant, claim: Claim, story: Story, point: Point) -> None:
        """R9-R11: a start or a confirmation."""
        if story.open:
            self._support(instant, claim, story)
            return
        inferred = claim.start is not None and (claim.inferred or claim.start == claim.said[0])
        if point == "confirmation" or inferred:
            better = story.overruled_by(claim.said)
            if better is not None:
                self._overrule(instant, claim, story, point, better)
                return
        rivals = list(story.open_rivals())
        opens = instant
        if point == "confirmation" and not rivals and story.spans and story.spans[-1].cut:
            last = story.spans[-1].end
            opens = story.last_rival_end() if last is None else max(last, story.last_rival_end())
        for rival in rivals:
            if rival.open:  # a statement may be a rival twice
                self._close(opens, rival, claim, cut=True)
        self._start(opens, claim, point, story)
        self._stand(instant, story)

    def _overrule(self, instant: Instant, claim: Claim, story: Story, point: Point, better: Claim) -> None:
        """R10: something said later knew better."""
        if story.spans:
            self._support(instant, claim, story)
        else:
            self._keep(Draft(claim, point, instant), instant, better, story)

    def _start(self, start: Instant, claim: Claim, point: Point, story: Story) -> None:
        """Open a span."""
        self._insert(story.spans, len(story.spans), Draft(claim, point, start))
        self._touch(story)
        self._set(story, "open", True)
        for clique in story.cliques:
            self._set(clique, "open", story)
        self._weigh(claim, story.spans[-1])

    def _keep(self, draft: Draft, end: Instant, by: Claim, story: Story) -> None:
        """Add a span that is over as it begins: the open rivals stay open."""
        self._insert(story.spans, len(story.spans), draft)
        self._touch(story)
        draft.end, draft.ended = end, by
        if end > draft.start:
            self._mark(draft, end, story)

    def _support(self, instant: Instant, claim: Claim, story: Story) -> None:
        """Add evidence to the last span; where that is open, its stated ends count anew (R9)."""
        self._touch(story)
        draft = story.spans[-1]
        place = bisect_left(draft.support, claim.said, key=said)
        if place == len(draft.support) or draft.support[place].said != claim.said:
            self._insert(draft.support, place, claim)
        if story.open:
            self._weigh(claim, draft)
            self._stand(instant, story)

    def _weigh(self, claim: Claim, draft: Draft) -> None:
        """Keep, of the supporters with and without a stated end, the one said last."""
        if claim.kind == "holds":
            name = "spoken" if claim.end is None else "stated"
            held: Claim | None = getattr(draft, name)
            if held is None or held.said < claim.said:
                self._set(draft, name, claim)

    def _stand(self, instant: Instant, story: Story) -> None:
        """End the open span now if its stated end is not in the future."""
        draft = story.spans[-1]
        if draft.deadline() <= instant:
            self._close(instant, story, draft.stated, cut=False)

    def _close(self, end: Instant, story: Story, by: Claim | None, *, cut: bool) -> None:
        """End the open span."""
        self._touch(story)
        draft = story.spans[-1]
        self._set(story, "open", False)
        for clique in story.cliques:
            self._set(clique, "open", None)
        if end == ALWAYS:
            self._remove(story.spans, len(story.spans) - 1)  # from unknown to unknown: none (R12)
            return
        self._log.append((draft, _OVER, None))
        draft.end, draft.ended, draft.cut = end, by, cut
        if end > draft.start:
            self._mark(draft, end, story)

    def _mark(self, draft: Draft, end: Instant, story: Story) -> None:
        """Note an ended span of positive length where rivals look (R8, R11)."""
        if story.first is None:
            self._set(story, "first", draft)
            for clique in story.cliques:
                if len(clique.firsts) < 2 or draft.start < clique.firsts[1][0]:
                    self._set(clique, "firsts", first_two(clique.firsts, (draft.start, story)))
        if end > story.last_end:
            self._set(story, "last_end", end)
        for clique in story.cliques:
            self._set(clique, "ends", last_two(clique.ends, (end, story)))
