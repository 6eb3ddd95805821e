"""Questions about a world: the objects of a slot now, at an earlier time, and as known earlier."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from kgray.domain.records import Value
from kgray.domain.times import DAY, Instant
from tests.world.dice import Dice
from tests.world.truth import TrueFact, Truth

MOMENTS = 8  # how many record times are asked about
AT_A_MOMENT = 60
EARLIEST = 60 * DAY  # questions may be this long before the first episode

TrueSlot = tuple[str, str]  # true subject, relation
TrueObject = str | Value
TrueObjects = frozenset[TrueObject]


@dataclass(frozen=True, slots=True)
class WorldQuestion:
    """A question: the objects of this slot at this instant."""

    slot: TrueSlot
    at: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Questions of a kind. known_at: as known after this number of episodes; None = after all."""

    kind: str
    asked: tuple[WorldQuestion, ...]
    known_at: int | None = None


def slots_of(facts: Iterable[TrueFact]) -> list[TrueSlot]:
    """Return the slots for questions, sorted."""
    return sorted({fact.key[:2] for fact in facts})


def true_answers(facts: Sequence[TrueFact], questions: Sequence[WorldQuestion]) -> list[TrueObjects]:
    """Return the truth's answers."""
    by_slot: dict[TrueSlot, list[TrueFact]] = defaultdict(list)
    for fact in facts:
        by_slot[fact.key[:2]].append(fact)
    return [frozenset(f.key[2] for f in by_slot.get(q.slot, ()) if f.holds_at(q.at)) for q in questions]


def rounds(truth: Truth, seed: int, end: Instant) -> Iterator[Round]:
    """Yield questions about stated facts: each slot now and at a random instant; some at record times.

    end: an instant after the last episode, which is "now".
    """
    slots = slots_of(truth.facts())
    yield Round(kind="now", asked=tuple(WorldQuestion(slot, end) for slot in slots))
    times = [episode.draft.reference_time or 0 for episode, _ in truth.readings]
    if not times:
        return
    start = min(times) - EARLIEST
    yield Round(kind="as-of", asked=_at_random(slots, Dice(seed, "questions", "as-of"), start, end))
    for moment in range(1, MOMENTS + 1):
        known_at = len(times) * moment // (MOMENTS + 1)
        if known_at:
            dice = Dice(seed, "questions", "as-known", moment)
            known_slots = slots_of(truth.facts(known_at))
            chosen = (
                known_slots
                if len(known_slots) <= AT_A_MOMENT
                else [dice.pick(known_slots) for _ in range(AT_A_MOMENT)]
            )
            questions = _at_random(chosen, dice, start, times[known_at - 1] + DAY)
            yield Round(kind="as-known", asked=questions, known_at=known_at)


def _at_random(
    slots: Sequence[TrueSlot], dice: Dice, start: Instant, end: Instant
) -> tuple[WorldQuestion, ...]:
    return tuple(WorldQuestion(slot, start + dice.number_below(max(1, end - start))) for slot in slots)
