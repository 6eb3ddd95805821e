"""The history of a group, and its statements: acts in order of arrival."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from kgray.domain.records import Value
from kgray.domain.times import DAY, Instant
from kgray.errors import InputError
from tests.world.dates import Date, dated, midnight
from tests.world.dice import Dice
from tests.world.plan import WorldPlan
from tests.world.schema import COMMON_RELATIONS, RELATIONS, Relation, ThingKind, follows, leads, values_of
from tests.world.things import WorldEntity

ActForm = Literal["holds", "changed", "since", "always", "event", "future", "ended", "span", "denied"]
WorldObject = WorldEntity | Value
_TRIES = 20_000  # tries before a group is reported as out of news
_LONG_AGO = 2000 * DAY  # no text states a span before the world's start


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """A planned statement. why: the kind of event, for the truth; since, until: the dates in the text."""

    subject: WorldEntity
    relation: Relation
    object: WorldObject
    form: ActForm
    why: str
    since: Date | None = None
    until: Date | None = None


@dataclass(slots=True)
class HeldSpan:
    """A true span of the world; end None = still holds."""

    object: WorldObject
    start: Instant
    end: Instant | None = None

    def holds_at(self, instant: Instant) -> bool:
        """Tell whether it held at an instant."""
        return self.start <= instant and (self.end is None or instant < self.end)


@dataclass(slots=True)
class WorldSlot:
    """A subject and relation with its spans, oldest first."""

    subject: WorldEntity
    relation: Relation
    spans: list[HeldSpan] = field(default_factory=list)

    @property
    def single(self) -> bool:
        """Tell whether it has a single object at a time."""
        return self.relation.shape == "single"

    def act(
        self,
        form: ActForm,
        why: str,
        chosen: WorldObject,
        *,
        since: Date | None = None,
        until: Date | None = None,
    ) -> Act:
        """Return an act about it."""
        return Act(
            subject=self.subject,
            relation=self.relation,
            object=chosen,
            form=form,
            why=why,
            since=since,
            until=until,
        )


class _CurrentSpan(NamedTuple):
    """A slot and its current span; last: none of its spans is later."""

    slot: WorldSlot
    span: HeldSpan

    @property
    def last(self) -> bool:
        return self.slot.spans[-1] is self.span


class WorldHistory:
    """The world of a group so far: the spans of each slot."""

    def __init__(self, plan: WorldPlan, entities: Sequence[WorldEntity]) -> None:
        """Start with an empty history."""
        self._plan, self._entities = plan, entities
        self._by_kind: dict[ThingKind, list[WorldEntity]] = {}
        for entity in entities:
            self._by_kind.setdefault(entity.kind, []).append(entity)
        spoken_of = RELATIONS if plan.relations == "free" else COMMON_RELATIONS
        self._weights = {relation: relation.weight for relation in spoken_of.values()}
        self._slots: dict[tuple[str, str], WorldSlot] = {}  # by subject's id and relation's name
        self._singles: list[WorldSlot] = []
        self._multiples: list[WorldSlot] = []

    def tell(self, dice: Dice, at: Instant, speaker: WorldEntity | None, *, delayed: bool) -> Act:
        """Return the next act, stated at `at`; its change has happened by that time."""
        plan = self._plan
        events: dict[str, tuple[float, Callable[[Dice, Instant], Act | None]]] = {
            "change": (0 if delayed else plan.change_rate, self._change),
            "ended": (0 if delayed else plan.ends, self._end),
            "late": (plan.late, self._late),
            "future": (0 if delayed else plan.futures, self._announce),
            "denied": (0 if delayed else plan.denials, self._deny),
            "interruption": (plan.interruptions, self._interrupt),
            "restated": (plan.restated, self._restate),
        }
        weights = {name: rate for name, (rate, _) in events.items()}
        weights["fresh"] = max(0.0, 1 - sum(weights.values()))
        event = dice.weighted(weights)
        if event != "fresh":
            for _ in range(6):  # a slot that cannot take this act is passed over
                act = events[event][1](dice, at)
                if act is not None:
                    return act
        return self._fresh(dice, at, speaker)

    # ------------------------------------------------------------------------------ the acts

    def _fresh(self, dice: Dice, at: Instant, speaker: WorldEntity | None) -> Act:
        """State the first object of an empty slot, or another object of a slot with many."""
        slot, chosen = self._unsaid(dice, at, speaker)
        recent = at - 20 * DAY
        if slot.relation.shape == "event":
            since = self._dated(dice, at, recent)
            self._open(slot, chosen, since.instant if since else at)
            return slot.act("event", "fresh", chosen, since=since)
        if not slot.spans and dice.flip(self._plan.always):
            self._open(slot, chosen, self._plan.start - 3650 * DAY)
            return slot.act("always", "fresh", chosen)
        earliest = max([at - 400 * DAY, *(s.end + DAY for s in slot.spans if s.end is not None)])
        since = self._dated(dice, at, earliest if slot.single else recent)
        self._open(slot, chosen, since.instant if since else at)
        return slot.act("since" if since else "holds", "fresh", chosen, since=since)

    def _unsaid(self, dice: Dice, at: Instant, speaker: WorldEntity | None) -> tuple[WorldSlot, WorldObject]:
        """Return a slot that can take one more object, and the object.

        Raises InputError where the group's things have no such slot left.
        """
        for _ in range(_TRIES):
            relation = dice.weighted(self._weights)
            is_about_speaker = speaker is not None and relation.subject == "Person" and dice.flip(0.5)
            subject = (
                speaker
                if is_about_speaker and speaker is not None
                else dice.pick(self._by_kind[relation.subject])
            )
            if relation.symmetric and not leads(subject.id):
                continue
            slot = self._slots.get((subject.id, relation.name)) or WorldSlot(subject, relation)
            if slot.single and any(s.end is None or s.end > at for s in slot.spans):
                continue
            chosen = self._object(dice, slot, [s.object for s in slot.spans])
            if chosen is not None:
                return slot, chosen
        raise InputError(
            f"{len(self._entities)} entities of a group have nothing new to say any longer: a world of "
            f"{self._plan.episodes} episodes needs more entities"
        )

    def _change(self, dice: Dice, at: Instant) -> Act | None:
        """Replace the object of a single-valued relation."""
        current = self._current(dice, at, self._singles)
        if current is None or not current.last or at - current.span.start < DAY:
            return None
        slot, span = current
        olds = [s.object for s in slot.spans if s.object != span.object]
        back = bool(olds) and dice.flip(self._plan.returns)
        chosen = dice.pick(olds) if back else self._object(dice, slot, [span.object])
        if chosen is None:
            return None
        since = self._dated(dice, at, max(span.start + DAY, at - 20 * DAY))
        span.end = since.instant if since else at
        slot.spans.append(HeldSpan(chosen, span.end))
        return slot.act("since" if since else "changed", "return" if back else "change", chosen, since=since)

    def _end(self, dice: Dice, at: Instant) -> Act | None:
        """Say that something no longer holds."""
        current = self._current(dice, at, self._multiples if dice.flip(0.5) else self._singles)
        if (
            current is None
            or current.slot.relation.shape == "event"
            or (current.slot.single and not current.last)
        ):
            return None
        slot, span = current
        until = self._dated(dice, at, max(span.start + DAY, at - 20 * DAY))
        span.end = until.instant if until else at
        return slot.act("ended", "ended", span.object, until=until)

    def _restate(self, dice: Dice, at: Instant) -> Act | None:
        """Repeat a current state, sometimes with its start."""
        current = self._current(dice, at, self._multiples if dice.flip(0.35) else self._singles)
        if current is None:
            return None
        slot, span = current
        since = dated(dice, span.start, at) if span.start < midnight(at) and dice.flip(0.35) else None
        form: ActForm = "event" if slot.relation.shape == "event" else "since" if since else "holds"
        return slot.act(form, "restated", span.object, since=since)

    def _late(self, dice: Dice, at: Instant) -> Act | None:
        """State a dated span before all stated spans of the slot."""
        if not self._singles:
            return None
        slot = dice.pick(self._singles)
        first = min((s.start for s in slot.spans), default=at)
        if first < self._plan.start - _LONG_AGO:
            return None
        chosen = self._object(dice, slot, [s.object for s in slot.spans])
        if chosen is None:
            return None
        end = midnight(min(first, at)) - dice.between(2, 60) * DAY
        start = end - dice.between(20, 300) * DAY
        slot.spans.insert(0, HeldSpan(chosen, start, end))
        since, until = dated(dice, start, at), dated(dice, end, at)
        if dice.flip(0.3):
            return slot.act("ended", "late", chosen, until=until)
        return slot.act("span", "late", chosen, since=since, until=until)

    def _interrupt(self, dice: Dice, at: Instant) -> Act | None:
        """Tell of a span within the present one: another object for a while, then the same again."""
        current = self._current(dice, at, self._singles)
        if current is None:
            return None
        slot, span = current
        days = (midnight(at) - midnight(span.start)) // DAY
        if not current.last or days < 8 or span.start < self._plan.start - _LONG_AGO:
            return None
        chosen = self._object(dice, slot, [span.object])
        if chosen is None:
            return None
        start = midnight(span.start) + dice.between(2, days - 5) * DAY
        end = min(start + dice.between(2, 20) * DAY, midnight(at) - DAY)
        span.end = start
        slot.spans += [HeldSpan(chosen, start, end), HeldSpan(span.object, end)]
        since, until = dated(dice, start, at), dated(dice, end, at)
        return slot.act("span", "interruption", chosen, since=since, until=until)

    def _announce(self, dice: Dice, at: Instant) -> Act | None:
        """Tell of a change that is still to come."""
        current = self._current(dice, at, self._singles)
        if current is None or not current.last:
            return None
        slot, span = current
        chosen = self._object(dice, slot, [span.object])
        if chosen is None:
            return None
        since = dated(dice, at + dice.between(3, 40) * DAY, at)
        span.end = since.instant
        slot.spans.append(HeldSpan(chosen, since.instant))
        return slot.act("future", "future", chosen, since=since)

    def _deny(self, dice: Dice, at: Instant) -> Act | None:
        """Deny the last statement; the earlier state continues."""
        current = self._current(dice, at, self._singles if dice.flip(0.7) else self._multiples)
        if current is None or not current.last or current.slot.relation.shape == "event":
            return None
        slot, span = current
        if sum(s.object == span.object for s in slot.spans) > 1:
            return None
        slot.spans.pop()
        if slot.single and slot.spans:
            slot.spans[-1].end = None
        return slot.act("denied", "denied", span.object)

    # ------------------------------------------------------------------------------ its parts

    def _current(self, dice: Dice, at: Instant, slots: Sequence[WorldSlot]) -> _CurrentSpan | None:
        """Return a slot and its span that holds at `at`; None if the chosen slot has none."""
        slot = dice.pick(slots) if slots else None
        holding = [s for s in slot.spans if s.holds_at(at)] if slot else []
        return _CurrentSpan(slot, dice.pick(holding)) if slot and holding else None

    def _open(self, slot: WorldSlot, chosen: WorldObject, start: Instant) -> None:
        name = (slot.subject.id, slot.relation.name)
        if name not in self._slots:
            self._slots[name] = slot
            (self._singles if slot.single else self._multiples).append(slot)
        slot.spans.append(HeldSpan(chosen, start))

    def _object(self, dice: Dice, slot: WorldSlot, but: Sequence[WorldObject]) -> WorldObject | None:
        """Return an object of the relation's kind that is not in `but`, or None."""
        relation, circle = slot.relation, self._circle(slot)
        for _ in range(8):
            if relation.object is None:
                chosen: WorldObject = values_of(relation, dice.number_below(1000))
            elif not circle:
                return None
            else:
                chosen = dice.pick(circle)
            if chosen != slot.subject and chosen not in but:
                return chosen
        return None

    def _circle(self, slot: WorldSlot) -> Sequence[WorldEntity]:
        """Return the things that the slot can have as objects; none where its objects are values."""
        relation = slot.relation
        if relation.object is None:
            return ()
        candidates = self._by_kind[relation.object]
        if relation.symmetric:
            return [candidate for candidate in candidates if follows(candidate.id, slot.subject.id)]
        return candidates

    def _dated(self, dice: Dice, at: Instant, earliest: Instant) -> Date | None:
        """Return a stated day from `earliest` to the day before `at`; None = the text gives no date."""
        plan, days = self._plan, (midnight(at) - midnight(earliest)) // DAY - 1
        none = max(0.0, 1 - plan.absolute - plan.relative)
        style = dice.weighted({"absolute": plan.absolute, "relative": plan.relative, "none": none})
        if style == "none" or days < 1:
            return None
        if style == "relative":
            return dated(dice, at - dice.between(1, min(days, 28)) * DAY, at, relative=True)
        chosen = at - dice.between(1, days) * DAY
        first = dated(dice, chosen, at, months=True)
        return first if first.instant > earliest else dated(dice, chosen, at)
