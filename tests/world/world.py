"""The world itself: episodes in order, and apart from them their truth."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kgray.domain import times
from kgray.domain.records import EpisodeKind
from kgray.domain.times import DAY, Instant
from tests.world.dice import Dice
from tests.world.history import Act, WorldHistory
from tests.world.naming import Namer
from tests.world.plan import WorldPlan
from tests.world.telling import Occasion, Register, Teller, WorldEpisode
from tests.world.things import WorldEntity, things_of
from tests.world.truth import Truth

_KINDS: tuple[EpisodeKind, ...] = ("message", "text", "json")
_FACTS = {1: 0.5, 2: 0.35, 3: 0.15}  # facts an episode: 1.65 on average


@dataclass(slots=True)
class _Group:
    """One group on its way through time."""

    name: str
    number: int
    entities: list[WorldEntity]
    history: WorldHistory
    teller: Teller
    namer: Namer
    count: int = 0


class World:
    """A seeded stream of episodes. Every iteration gives the same episodes; nothing is cached between.

    World(seed=1, episodes=1000) or World(Plan(...)); `for episode in world`, `world.truth("world-0")`.
    """

    def __init__(
        self, seed: int = 1, episodes: int = 1000, *, plan: WorldPlan | None = None, **parameters: float
    ) -> None:
        """Take a plan, or the parameters of one."""
        self.plan = plan or WorldPlan(seed=seed, episodes=episodes, **parameters)  # type: ignore[arg-type]

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups' names."""
        return tuple(f"world-{number}" for number in range(self.plan.groups))

    def __len__(self) -> int:
        """Return how many episodes there are."""
        return self.plan.episodes

    def entities(self, group: str) -> list[WorldEntity]:
        """Return the entities of a group."""
        return things_of(self.plan, self.groups.index(group))

    def __iter__(self) -> Iterator[WorldEpisode]:
        """Yield the episodes in order of arrival; groups take turns."""
        register = Register()
        groups = [self._group(number, name, register) for number, name in enumerate(self.groups)]
        for number in range(self.plan.episodes):
            yield self._episode(groups[number % len(groups)], number)

    def truth(self, group: str | None = None) -> Truth:
        """Return the truth of one group (the first)."""
        chosen = group or self.groups[0]
        readings = ((e, e.said) for e in self if e.draft.group == chosen)
        return Truth.of_readings(self.entities(chosen), readings)

    def end(self) -> Instant:
        """Return an instant after the last episode and before whatever was announced by it."""
        return self.plan.start + (self.plan.episodes + 1) * self.plan.step_s * times.SECOND

    def _group(self, number: int, name: str, register: Register) -> _Group:
        entities = things_of(self.plan, number)
        teller = Teller(self.plan, name, entities, register)
        namer = Namer(self.plan.seed, name, self.plan.relations)
        return _Group(name, number, entities, WorldHistory(self.plan, entities), teller, namer)

    def _episode(self, group: _Group, number: int) -> WorldEpisode:
        plan, place = self.plan, group.count
        group.count += 1
        dice = Dice(plan.seed, "episode", group.number, place)
        at = (
            plan.start
            + number * plan.step_s * times.SECOND
            + dice.number_below(plan.step_s // 2) * times.SECOND
        )
        delayed = place > 0 and dice.flip(plan.delayed)
        if delayed:
            at = max(plan.start, at - dice.between(1, 10) * DAY)
        kind = dice.weighted(dict(zip(_KINDS, plan.kinds, strict=True)))
        source = f"{'feed' if kind == 'json' else 'talk'}-{dice.number_below(plan.sources)}"
        people = [t for t in group.entities if t.kind == "Person"]
        speaker = dice.pick(people) if kind == "message" else None
        acts: list[Act] = []
        for _ in range(dice.weighted(_FACTS)):
            act = group.history.tell(dice, at, speaker, delayed=delayed)
            if all((a.subject.id, a.relation.name) != (act.subject.id, act.relation.name) for a in acts):
                acts.append(act)
        return group.teller.tell(
            Occasion(
                number=place,
                at=at,
                source=source,
                kind=kind,
                speaker=speaker,
                acts=acts,
                namings=[group.namer.name(act, place, ordinal) for ordinal, act in enumerate(acts)],
            )
        )
