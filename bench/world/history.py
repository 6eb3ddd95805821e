"""What happens in one group, and what is said of it: one act after another, in order of arrival."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from bench.world.dates import Date, midnight, told
from bench.world.dice import Dice
from bench.world.plan import Plan
from bench.world.schema import RELATIONS, Kind, Relation, values_of
from bench.world.things import Thing
from kgray.errors import InputError
from kgray.records import Value
from kgray.times import DAY, Instant

Form = Literal["holds", "changed", "since", "always", "event", "future", "ended", "span", "denied"]
Slot = tuple[str, str]  # subject's id, relation
Object = Thing | Value
_TRIES = 20_000  # before a group is told to be out of news


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One statement to be told.

    why    what it is in the world: fresh, change, return, restated, ended, late, future, denied, interruption
    since, until  dates that are told; None = none is
    """

    subject: Thing
    relation: Relation
    object: Object
    form: Form
    why: str
    since: Date | None = None
    until: Date | None = None


@dataclass(slots=True)
class Span:
    """What held, as the world has it; end None = still."""

    object: Object
    start: Instant
    end: Instant | None = None

    def holds_at(self, instant: Instant) -> bool:
        """Whether it held then."""
        return self.start <= instant and (self.end is None or instant < self.end)


@dataclass(slots=True)
class History:
    """The world so far: what each slot of a single-valued relation held, and what many-valued ones hold."""

    plan: Plan
    group: int
    things: Sequence[Thing]
    slots: dict[Slot, list[Span]] = field(default_factory=dict)
    _by_kind: dict[Kind, list[Thing]] = field(default_factory=dict)
    _by_id: dict[str, Thing] = field(default_factory=dict)
    _singles: list[Slot] = field(default_factory=list)
    _others: list[Slot] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Sort the things."""
        for thing in self.things:
            self._by_kind.setdefault(thing.kind, []).append(thing)
            self._by_id[thing.id] = thing

    def tell(self, dice: Dice, at: Instant, speaker: Thing | None, *, delayed: bool) -> Act:
        """Return the next act, said at `at`; what it changes has happened then."""
        plan = self.plan
        ways: dict[str, tuple[float, Callable[[Dice, Instant], Act | None]]] = {
            "change": (0 if delayed else plan.change_rate, self._change),
            "ended": (0 if delayed else plan.ends, self._end),
            "late": (plan.late, self._late),
            "future": (0 if delayed else plan.futures, self._announce),
            "denied": (0 if delayed else plan.denials, self._deny),
            "interruption": (plan.interruptions, self._interrupt),
            "restated": (plan.restated, self._restate),
        }
        weights = {name: rate for name, (rate, _) in ways.items()}
        weights["fresh"] = max(0.0, 1 - sum(weights.values()))
        way = dice.weighted(weights)
        if way != "fresh":
            for _ in range(6):  # a slot that cannot take this act is passed over
                act = ways[way][1](dice, at)
                if act is not None:
                    return act
        return self._fresh(dice, at, speaker)

    # ------------------------------------------------------------------------------ the acts

    def _fresh(self, dice: Dice, at: Instant, speaker: Thing | None) -> Act:
        """Say something of a slot that is empty, or one more of what may be many."""
        subject, relation, spans, chosen = self._unsaid(dice, at, speaker)
        if relation.shape == "event":
            since = self._dated(dice, at, at - 20 * DAY)
            self._open(subject, relation, chosen, since.instant if since else at)
            return Act(
                subject=subject, relation=relation, object=chosen, form="event", why="fresh", since=since
            )
        if not spans and dice.flip(self.plan.always):
            self._open(subject, relation, chosen, self.plan.start - 3650 * DAY)
            return Act(subject=subject, relation=relation, object=chosen, form="always", why="fresh")
        earliest = max([at - 400 * DAY, *(s.end + DAY for s in spans if s.end is not None)])
        since = self._dated(dice, at, earliest if relation.shape == "single" else at - 20 * DAY)
        self._open(subject, relation, chosen, since.instant if since else at)
        form: Form = "since" if since else "holds"
        return Act(subject=subject, relation=relation, object=chosen, form=form, why="fresh", since=since)

    def _unsaid(
        self, dice: Dice, at: Instant, speaker: Thing | None
    ) -> tuple[Thing, Relation, list[Span], Object]:
        """Return a slot that can take one more object, its spans, and the object.

        Raises InputError where the group's things have no such slot left.
        """
        for _ in range(_TRIES):
            relation = dice.weighted({r: r.weight for r in RELATIONS.values()})
            own = speaker is not None and relation.subject == "Person" and dice.flip(0.5)
            subject = speaker if own and speaker is not None else dice.pick(self._by_kind[relation.subject])
            spans = self.slots.get((subject.id, relation.name), [])
            if relation.shape == "single" and any(s.end is None or s.end > at for s in spans):
                continue
            chosen = self._object(dice, subject, relation, [s.object for s in spans])
            if chosen is not None:
                return subject, relation, spans, chosen
        raise InputError(
            f"{len(self.things)} entities of a group have nothing new to say any longer: a world of "
            f"{self.plan.episodes} episodes needs more entities"
        )

    def _change(self, dice: Dice, at: Instant) -> Act | None:
        """Replace the object of a single-valued relation."""
        found = self._current(dice, at, self._singles)
        if found is None:
            return None
        (subject, relation), spans, now = found
        if spans[-1] is not now or at - now.start < DAY:
            return None
        olds = [s.object for s in spans if s.object != now.object]
        back = bool(olds) and dice.flip(self.plan.returns)
        chosen = dice.pick(olds) if back else self._object(dice, subject, relation, [now.object])
        if chosen is None:
            return None
        since = self._dated(dice, at, max(now.start + DAY, at - 20 * DAY))
        now.end = since.instant if since else at
        spans.append(Span(chosen, now.end))
        why = "return" if back else "change"
        form: Form = "since" if since else "changed"
        return Act(subject=subject, relation=relation, object=chosen, form=form, why=why, since=since)

    def _end(self, dice: Dice, at: Instant) -> Act | None:
        """Say that something no longer holds."""
        found = self._current(dice, at, self._others if dice.flip(0.5) else self._singles)
        if found is None:
            return None
        (subject, relation), spans, now = found
        if relation.shape == "event" or (relation.shape == "single" and spans[-1] is not now):
            return None
        until = self._dated(dice, at, max(now.start + DAY, at - 20 * DAY))
        now.end = until.instant if until else at
        return Act(
            subject=subject, relation=relation, object=now.object, form="ended", why="ended", until=until
        )

    def _restate(self, dice: Dice, at: Instant) -> Act | None:
        """Repeat what holds, sometimes with its start."""
        found = self._current(dice, at, self._others if dice.flip(0.35) else self._singles)
        if found is None:
            return None
        (subject, relation), _, now = found
        since = None
        if now.start < midnight(at) and dice.flip(0.35):
            since = told(dice, now.start, at)
        form: Form = "event" if relation.shape == "event" else "since" if since else "holds"
        return Act(
            subject=subject, relation=relation, object=now.object, form=form, why="restated", since=since
        )

    def _late(self, dice: Dice, at: Instant) -> Act | None:
        """Tell of a time before anything that was told of the slot, with its dates."""
        if not self._singles:
            return None
        slot = dice.pick(self._singles)
        subject, relation = self._by_id[slot[0]], RELATIONS[slot[1]]
        spans = self.slots[slot]
        first = min((s.start for s in spans), default=at)
        if first < self.plan.start - 2000 * DAY:
            return None
        chosen = self._object(dice, subject, relation, [s.object for s in spans])
        if chosen is None:
            return None
        end = midnight(min(first, at)) - dice.between(2, 60) * DAY
        start = end - dice.between(20, 300) * DAY
        spans.insert(0, Span(chosen, start, end))
        since, until = told(dice, start, at), told(dice, end, at)
        if dice.flip(0.3):
            return Act(
                subject=subject, relation=relation, object=chosen, form="ended", why="late", until=until
            )
        return Act(
            subject=subject,
            relation=relation,
            object=chosen,
            form="span",
            why="late",
            since=since,
            until=until,
        )

    def _interrupt(self, dice: Dice, at: Instant) -> Act | None:
        """Tell of a span within the present one: another object for a while, then the same again."""
        found = self._current(dice, at, self._singles)
        if found is None:
            return None
        (subject, relation), spans, now = found
        room = (midnight(at) - midnight(now.start)) // DAY
        if spans[-1] is not now or room < 8 or now.start < self.plan.start - 2000 * DAY:
            return None
        chosen = self._object(dice, subject, relation, [now.object])
        if chosen is None:
            return None
        start = midnight(now.start) + dice.between(2, room - 5) * DAY
        end = min(start + dice.between(2, 20) * DAY, midnight(at) - DAY)
        now.end = start
        spans += [Span(chosen, start, end), Span(now.object, end)]
        since, until = told(dice, start, at), told(dice, end, at)
        return Act(
            subject=subject,
            relation=relation,
            object=chosen,
            form="span",
            why="interruption",
            since=since,
            until=until,
        )

    def _announce(self, dice: Dice, at: Instant) -> Act | None:
        """Tell of a change that is still to come."""
        found = self._current(dice, at, self._singles)
        if found is None:
            return None
        (subject, relation), spans, now = found
        if spans[-1] is not now:
            return None
        chosen = self._object(dice, subject, relation, [now.object])
        if chosen is None:
            return None
        since = told(dice, at + dice.between(3, 40) * DAY, at)
        now.end = since.instant
        spans.append(Span(chosen, since.instant))
        return Act(
            subject=subject, relation=relation, object=chosen, form="future", why="future", since=since
        )

    def _deny(self, dice: Dice, at: Instant) -> Act | None:
        """Say that what was told last was wrong; what held before it holds on."""
        found = self._current(dice, at, self._singles if dice.flip(0.7) else self._others)
        if found is None:
            return None
        (subject, relation), spans, now = found
        if (
            spans[-1] is not now
            or relation.shape == "event"
            or sum(s.object == now.object for s in spans) > 1
        ):
            return None
        spans.pop()
        if relation.shape == "single" and spans:
            spans[-1].end = None
        return Act(subject=subject, relation=relation, object=now.object, form="denied", why="denied")

    # ------------------------------------------------------------------------------ its parts

    def _current(
        self, dice: Dice, at: Instant, slots: Sequence[Slot]
    ) -> tuple[tuple[Thing, Relation], list[Span], Span] | None:
        """Return a slot, its spans, and one that holds at `at`."""
        if not slots:
            return None
        slot = dice.pick(slots)
        holding = [s for s in self.slots[slot] if s.holds_at(at)]
        if not holding:
            return None
        return (self._by_id[slot[0]], RELATIONS[slot[1]]), self.slots[slot], dice.pick(holding)

    def _open(self, subject: Thing, relation: Relation, chosen: Object, start: Instant) -> None:
        slot = (subject.id, relation.name)
        if slot not in self.slots:
            self.slots[slot] = []
            (self._singles if relation.shape == "single" else self._others).append(slot)
        self.slots[slot].append(Span(chosen, start))

    def _object(self, dice: Dice, subject: Thing, relation: Relation, but: Sequence[Object]) -> Object | None:
        """Return an object of the relation's kind that is none of `but`; None where none was found."""
        for _ in range(8):
            chosen: Object = (
                values_of(relation, dice.below(1000))
                if relation.object is None
                else dice.pick(self._by_kind[relation.object])
            )
            if chosen != subject and chosen not in but:
                return chosen
        return None

    def _dated(self, dice: Dice, at: Instant, earliest: Instant) -> Date | None:
        """Return a told day from `earliest` to the day before `at`; None = the text gives no date."""
        plan, days = self.plan, (midnight(at) - midnight(earliest)) // DAY - 1
        style = dice.weighted(
            {
                "absolute": plan.absolute,
                "relative": plan.relative,
                "none": max(0.0, 1 - plan.absolute - plan.relative),
            }
        )
        if style == "none" or days < 1:
            return None
        if style == "relative":
            return told(dice, at - dice.between(1, min(days, 28)) * DAY, at, relative=True)
        chosen = at - dice.between(1, days) * DAY
        first = told(dice, chosen, at, months=True)
        return first if first.instant > earliest else told(dice, chosen, at)
