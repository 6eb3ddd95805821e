"""The parameters of a world."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from kgray.domain import times
from kgray.domain.times import Instant

RelationNames = Literal["listed", "free"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldPlan:
    """The parameters of a world; rates are of 1. All else follows from them and the seed.

    episodes, entities   of the whole world; groups share them evenly and have no entities in common
    alias_rate           mentions that do not use the full name
    homonyms             persons who bear the full name of another person
    tickers              things that are also called by a code such as TH-ER
    nicknames            persons with a call name, or a married one, that a text gives before others use it
    lookalikes           things whose name is nearly that of another: "Q3 report", "Q4 report"
    change_rate          statements that replace the object of a single-valued relation
    returns              of those, back to an object that held before
    ends, late, futures, denials, interruptions, restated
                         statements that end something, tell a past span with its dates, announce,
                         deny a statement, state a span within the present span, repeat
    delayed              episodes that arrive days after they were said
    always               first statements with an unknown start ("has always lived in")
    absolute, relative   statements with a date as such, with one counted from the reference time;
                         the others have none
    kinds                shares of message, text and json
    filler               episodes with a sentence that says nothing
    step_s               seconds from one episode to the next
    sources              conversations in a group
    relations            the names that a reader gives to relations: "listed" = one name for each;
                         "free" = a name of its choice for each fact, ends as events among them (naming.py)
    """

    seed: int = 1
    episodes: int = 1000
    entities: int = 120
    groups: int = 1
    alias_rate: float = 0.30
    homonyms: float = 0.0
    tickers: float = 0.0
    nicknames: float = 0.0
    lookalikes: float = 0.10
    change_rate: float = 0.25
    returns: float = 0.15
    ends: float = 0.04
    late: float = 0.04
    futures: float = 0.02
    denials: float = 0.015
    interruptions: float = 0.02
    restated: float = 0.20
    delayed: float = 0.03
    always: float = 0.02
    absolute: float = 0.30
    relative: float = 0.15
    kinds: tuple[float, float, float] = (0.6, 0.2, 0.2)
    filler: float = 0.3
    step_s: int = 6 * 3600
    start: Instant = times.parse("2025-01-06")[0]
    sources: int = 5
    relations: RelationNames = "listed"

    def __post_init__(self) -> None:
        """Refuse impossible parameters."""
        if self.episodes < 0 or self.groups < 1 or self.sources < 1 or self.step_s < 60:
            raise ValueError("a world needs episodes >= 0, groups >= 1, sources >= 1, step_s >= 60")
        if self.entities < 20 * self.groups:
            raise ValueError(f"{self.entities} entities are too few: each group needs at least 20")
        rates = (
            *(self.alias_rate, self.homonyms, self.tickers, self.nicknames, self.lookalikes),
            *(self.change_rate, self.ends, self.delayed, self.filler),
        )
        if self.relations not in get_args(RelationNames):
            raise ValueError(f"relations are listed or free, not {self.relations!r}")
        if not all(0 <= rate <= 1 for rate in rates):
            raise ValueError("a rate lies between 0 and 1")
