"""`timeline`, and the same function kept while claims arrive."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from kgray.timeline.claims import Claim, Rivals, Span
from kgray.timeline.lane import Lane
from kgray.timeline.row import Row
from kgray.timeline.story import Clique, Story, Told
from kgray.times import Instant

Change = tuple[tuple[Span, ...], tuple[Span, ...]]  # the spans before, the spans after


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
    """`timeline`, kept: claims arrive in any order, in any batches, and give the same spans.

    `rivals` is asked about a statement when its first claim arrives; where it changes for a
    statement that is held already (a ruling, a merge, a verdict on two old statements), and where
    evidence is taken away, make a new sweep of the statements concerned. Cost of `add`: the
    instants swept again, which are those from the earliest instant that the claims touch, among
    statements connected by rivalry; the length of what lies before does not count.
    """

    def __init__(self, rivals: Rivals) -> None:
        self._rivals = rivals
        self._stories: dict[str, Story] = {}
        self._cliques: dict[Hashable, Clique] = {}
        self._lanes: dict[Story, Lane | Row] = {}
        self._homes: dict[Clique, Lane | Row] = {}
        self._touched: set[Story] = set()
        self._size = 0

    def __len__(self) -> int:
        """Return the number of claims held, those set aside by a denial included."""
        return self._size

    def spans(self, statement: str) -> tuple[Span, ...]:
        """Return the statement's spans in order of start; () for one that is not held."""
        story = self._stories.get(statement)
        return () if story is None else story.view()

    def add(self, claims: Sequence[Claim]) -> dict[str, Change]:
        """Take claims in and return, by statement, the spans before and after where they differ."""
        told = [(claim, self._story(claim.statement)) for claim in claims]
        new, gone = _sift(told)
        work: dict[Lane | Row, tuple[list[Told], list[Told]]] = {}
        for side, part in enumerate((new, gone)):
            for claim, story in part:
                work.setdefault(self._lanes[story], ([], []))[side].append((claim, story))
        for lane, (arriving, leaving) in work.items():
            if isinstance(lane, Lane):
                lane.change(arriving, leaving)
            elif leaving or not lane.take(arriving):
                self._widen(lane)
        self._size += len(claims)
        return self._changes()

    def _changes(self) -> dict[str, Change]:
        changes: dict[str, Change] = {}
        for story in sorted(self._touched, key=lambda story: story.statement):
            before, same = story.shown, story.low
            after = story.view()
            if before[same:] != after[same:]:
                changes[story.statement] = (before, after)
        self._touched.clear()
        return changes

    def _story(self, statement: str) -> Story:
        """Return the statement's story; a new one is tied to its rivals and joins their lane."""
        story = self._stories.get(statement)
        if story is not None:
            return story
        story = self._stories[statement] = Story(statement)
        for key in dict.fromkeys(self._rivals.cliques(statement)):
            story.cliques.append(self._cliques.setdefault(key, Clique(key)))
        for name in sorted(set(self._rivals.pairs(statement))):
            partner = self._stories.get(name)
            if partner is not None and partner is not story:
                story.partners.append(partner)
                partner.partners.append(story)
        self._settle(story)
        return story

    def _settle(self, story: Story) -> None:
        """Put a new story where its rivals are; lanes that it connects become one."""
        met = [self._homes[clique] for clique in story.cliques if clique in self._homes]
        met += [self._lanes[partner] for partner in story.partners]
        lanes = sorted(dict.fromkeys(met), key=len)
        if len(story.cliques) > 1 or story.partners:
            joined = [self._widen(lane) if isinstance(lane, Row) else lane for lane in lanes]
            lane: Lane | Row = self._join(joined) if joined else Lane(self._touched)
        else:
            lane = lanes[0] if lanes else Row(self._touched)
        self._house([story], lane)

    def _house(self, stories: Sequence[Story], lane: Lane | Row) -> None:
        lane.stories += stories
        for story in stories:
            self._lanes[story] = lane
            self._homes.update(dict.fromkeys(story.cliques, lane))

    def _widen(self, row: Row) -> Lane:
        """Put a lane, with all the rules, in the place of a row."""
        lane = Lane(self._touched)
        self._house(row.stories, lane)
        lane.change(row.dissolve())
        return lane

    def _join(self, lanes: Sequence[Lane]) -> Lane:
        """Make one lane of several: the last one, which is the longest, takes in the others."""
        *others, lane = lanes
        for other in others:
            claims = other.dissolve()
            self._house(other.stories, lane)
            lane.change(claims)
        return lane


def _sift(told: Sequence[Told]) -> tuple[list[Told], list[Told]]:
    """Apply denials (R6): return the claims that count from now on, and those that no longer do."""
    denied = {}
    for claim, story in told:
        if claim.kind == "denied" and (story.denied is None or story.denied < claim.said):
            story.denied = denied[story] = claim.said
    gone = []
    for story, moment in denied.items():
        gone += [(claim, story) for claim in story.claims if claim.said < moment]
        story.claims = [claim for claim in story.claims if claim.said > moment]
    new = []
    for claim, story in told:
        if claim.kind != "denied" and (story.denied is None or claim.said > story.denied):
            story.claims.append(claim)
            new.append((claim, story))
    return new, gone
