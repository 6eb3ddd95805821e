"""A world without an end: one small world after another, so that a group grows evenly to any size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from kgray.domain import times
from tests.world.plan import WorldPlan
from tests.world.telling import WorldEpisode
from tests.world.world import World

FACTS_AN_EPISODE = 1.62  # on average
# 1,000 facts about 500 entities, by full names. Each fact is new: it opens a span, or replaces one.
_PART = WorldPlan(
    episodes=617,
    entities=500,
    alias_rate=0.0,
    returns=0.0,
    ends=0.0,
    late=0.0,
    futures=0.0,
    denials=0.0,
    interruptions=0.0,
    restated=0.0,
    delayed=0.0,
)


def growing(group: str, *, seed: int = 1) -> Iterator[WorldEpisode]:
    """Yield episodes of a group for ever; of one seed always the same."""
    number = count(1)
    for part in count():
        start = _PART.start + part * _PART.episodes * _PART.step_s * times.SECOND
        for episode in World(plan=replace(_PART, seed=1000 * seed + part, start=start)):
            draft = replace(episode.draft, group=group, client_id=f"{group}-{next(number)}")
            yield replace(episode, draft=draft)
