"""Errors of meaning, keyed by the question: the same in every mode, in every order, at every try."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import timedelta

from kgray.domain import times
from kgray.domain.records import canonical
from kgray.graph.names import key
from tests.world.dice import Dice
from tests.world.history import Act
from tests.world.schema import COMMON_RELATIONS, values_of
from tests.world.telling import UNKNOWN, ToldFact, WorldEpisode, said_of
from tests.world.things import WorldEntity

_SHIFT = timedelta(days=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """How often a reader is wrong; rates of 1.

    missed_fact, wrong_date   of the facts told (of the dated ones)
    spurious_fact             of the episodes: one fact that nobody told
    missed_merge, false_merge of entity questions with, without a true candidate among those shown
    wrong_comparison          share of comparisons with a wrong word for a candidate
    """

    seed: int = 0
    missed_fact: float = 0.0
    spurious_fact: float = 0.0
    wrong_date: float = 0.0
    missed_merge: float = 0.0
    false_merge: float = 0.0
    wrong_comparison: float = 0.0

    @classmethod
    def of_meaning(cls, rate: float = 0.0, *, answers: float = 0.0, seed: int = 0) -> Errors:
        """Return errors with a rate for readings, and a rate for answers to questions of both kinds."""
        return cls(
            seed=seed,
            missed_fact=rate,
            spurious_fact=rate,
            wrong_date=rate,
            missed_merge=answers,
            false_merge=answers,
            wrong_comparison=answers,
        )

    @property
    def any(self) -> bool:
        """Tell whether this reader makes errors."""
        return any(rate for name, rate in asdict(self).items() if name != "seed")

    @property
    def identity(self) -> str:
        """A name that no reader with other errors has."""
        return hashlib.sha256(canonical(asdict(self)).encode()).hexdigest()[:8] if self.any else "true"

    def wrong(self, rate: float, *keys: object) -> bool:
        """Tell whether the answer to this question is wrong."""
        return rate > 0 and Dice("error", self.seed, *keys).flip(rate)

    def read(
        self, episode: WorldEpisode, entities: Mapping[str, WorldEntity]
    ) -> tuple[WorldEpisode, tuple[ToldFact, ...]]:
        """Return the episode as this reader sees it; its inventions are also mentions."""
        if not (self.missed_fact or self.spurious_fact or self.wrong_date):
            return episode, episode.said
        text = episode.draft.text
        facts = []
        for place, fact in enumerate(episode.said):
            if self.wrong(self.missed_fact, "missed", text, place):
                continue
            dated = fact.until or fact.since not in {"", UNKNOWN}
            if dated and self.wrong(self.wrong_date, "date", text, place):
                later = Dice("error", self.seed, "shift", text, place).flip(0.5)
                facts.append(_shifted(fact, _SHIFT if later else -_SHIFT))
            else:
                facts.append(fact)
        mentions = episode.mentions
        if self.wrong(self.spurious_fact, "spurious", text):
            invented = _invented(Dice("error", self.seed, "invented", text), episode, entities)
            if invented is not None:
                fact, added = invented
                facts.append(fact)
                mentions += added
        return replace(episode, said=tuple(facts), mentions=mentions), tuple(facts)


def _shifted(fact: ToldFact, shift: timedelta) -> ToldFact:
    return replace(fact, since=_moved(fact.since, shift), until=_moved(fact.until, shift))


def _moved(iso: str, shift: timedelta) -> str:
    if iso in {"", UNKNOWN}:
        return iso
    instant, precision = times.parse_iso(iso)
    moment = times.to_datetime(instant) + shift
    return f"{moment:%Y-%m}" if precision == "month" else f"{moment:%Y-%m-%d}"


def _invented(
    dice: Dice, episode: WorldEpisode, entities: Mapping[str, WorldEntity]
) -> tuple[ToldFact, tuple[tuple[str, str, str], ...]] | None:
    """Return a fact about something that the episode mentions, and the mentions that it adds."""
    surface, entity, _ = dice.pick(episode.mentions)
    subject = entities[entity]
    fitting = [r for r in COMMON_RELATIONS.values() if r.subject == subject.kind]
    if not fitting:
        return None
    relation = dice.pick(fitting)
    if any((fact.subject, fact.relation) == (entity, relation.name) for fact in episode.said):
        return None
    if relation.object is None:
        value = values_of(relation, dice.number_below(1000))
        act = Act(subject=subject, relation=relation, object=value, form="holds", why="spurious")
        return said_of(act, surface, value.shown()), ()
    names = {name: entity_id for name, entity_id, _ in episode.mentions}
    target = dice.pick([t for t in entities.values() if t.kind == relation.object and t.id != entity])
    surface_of_target = next((name for name, entity_id in names.items() if entity_id == target.id), None)
    if surface_of_target is None and key(target.name) in {key(name) for name in names}:
        return None
    act = Act(subject=subject, relation=relation, object=target, form="holds", why="spurious")
    added = () if surface_of_target is not None else ((target.name, target.id, target.kind),)
    return said_of(act, surface, surface_of_target or target.name), added
