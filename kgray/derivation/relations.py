"""What the rulings make of a group's relation names (R17)."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import NamedTuple

from kgray.records import Place, Ruling
from kgray.times import Instant

UNKNOWN = "unknown"  # a cardinality that the ontology declared once and no longer does
_FLIPPED = {"single": "single_object", "single_object": "single"}


class Folded(NamedTuple):
    """What a name shows as: the name of its class that was used first, its ends swapped or not."""

    name: str
    flipped: bool
    since: Instant  # record time of the last ruling needed to fold it; 0 = it shows as itself


@dataclass(frozen=True, slots=True)
class Traits:
    """What the rulings say of a class of names, with subject and object as in the shown name."""

    cardinality: str | None  # None = no ruling: counts as many-valued
    cardinality_since: Instant
    cardinality_judge: str | None
    symmetric: bool
    excludes: frozenset[str]  # shown names
    excludes_since: dict[str, Instant]


_NO_TRAITS = Traits(None, 0, None, False, frozenset(), {})


class Relations:
    """The relation names of a group, with their uses and the rulings on them."""

    def __init__(self) -> None:
        """Start without names and rulings."""
        self._uses: dict[str, Place] = {}
        self._aspects: dict[tuple[str, str], list[tuple[Ruling, Instant]]] = {}  # all, by place
        self._pairs: dict[tuple[str, str], tuple[Ruling, Instant]] = {}
        self._links: dict[str, dict[str, tuple[str, Instant]]] = {}  # name -> other -> (ruling, recorded)
        self._folded: dict[str, Folded] = {}
        self._traits: dict[str, Traits] = {}

    def use(self, name: str, place: Place) -> None:
        """Note that the evidence at `place` uses `name`; in any order."""
        known = self._uses.get(name)
        if known is None or place < known:
            self._uses[name] = place
            self._forget(name)

    def rule(self, ruling: Ruling, recorded: Instant) -> None:
        """Take a ruling; the newest by place holds, for each aspect and each pair of names."""
        place = (ruling.sequence, ruling.ordinal)
        if ruling.aspect != "pair":
            history = self._aspects.setdefault((ruling.name, ruling.aspect), [])
            history.append((ruling, recorded))
            history.sort(key=lambda item: (item[0].sequence, item[0].ordinal))
            self._forget(ruling.name)
            return
        held = self._pairs.get(self._pair(ruling.name, ruling.other))
        if held is not None and (held[0].sequence, held[0].ordinal) > place:
            return
        self._pairs[self._pair(ruling.name, ruling.other)] = (ruling, recorded)
        self._links.setdefault(ruling.name, {})[ruling.other] = (ruling.value, recorded)
        self._links.setdefault(ruling.other, {})[ruling.name] = (ruling.value, recorded)
        if held is not None or ruling.value != "independent":
            self._folded.clear()
            self._traits.clear()

    def copy(self) -> Relations:
        """Return an independent copy, to try rulings on."""
        twin = Relations()
        twin._uses = dict(self._uses)
        twin._aspects = {key: list(history) for key, history in self._aspects.items()}
        twin._pairs = dict(self._pairs)
        twin._links = {name: dict(ties) for name, ties in self._links.items()}
        return twin

    def names(self) -> list[str]:
        """Return the names in use, oldest first."""
        return sorted(self._uses, key=lambda name: (self._uses[name], name))

    def in_use(self, name: str) -> bool:
        """Whether live evidence uses the name."""
        return name in self._uses

    def born(self, name: str) -> Place:
        """Return the place of the name's first use."""
        return self._uses[name]

    def pair_ruling(self, a: str, b: str) -> Ruling | None:
        """Return the ruling on two names, in either order."""
        held = self._pairs.get(self._pair(a, b))
        return held[0] if held else None

    def aspect(self, name: str, aspect: str) -> Ruling | None:
        """Return the ruling in force on one name's "cardinality" or "symmetric"."""
        history = self._aspects.get((name, aspect))
        return history[-1][0] if history else None

    def declared(self) -> list[Ruling]:
        """Return the rulings in force that the ontology declared, oldest first."""
        newest = [history[-1][0] for history in self._aspects.values()]
        newest += [ruling for ruling, _ in self._pairs.values()]
        return sorted((r for r in newest if r.judge == "ontology"), key=lambda r: (r.sequence, r.ordinal))

    def folded(self, name: str) -> Folded:
        """Return what a name shows as."""
        if name not in self._folded:
            self._fold_class(name)
        return self._folded[name]

    def traits(self, shown: str) -> Traits:
        """Return what holds of the class of names that shows as `shown`."""
        if shown not in self._traits:
            self._traits[shown] = self._find_traits(shown)
        return self._traits[shown]

    def _forget(self, name: str) -> None:
        """Drop the cached results of `name`; all of them where it is tied to other names."""
        if any(value != "independent" for value, _ in self._links.get(name, {}).values()):
            self._folded.clear()
            self._traits.clear()
        else:
            self._folded.pop(name, None)
            self._traits.pop(name, None)

    @staticmethod
    def _pair(a: str, b: str) -> tuple[str, str]:
        return (a, b) if a <= b else (b, a)

    def _fold_class(self, name: str) -> None:
        """Cache what each name tied to `name` by same_as or inverse_of shows as: the one used first."""
        members = self._class_of(name)
        used = [n for n in members if n in self._uses]
        shown = min(used, key=lambda n: (self._uses[n], n), default=name)
        # Shortest paths from the shown name, by the latest record time on a path: so `since` is the last
        # ruling that a member needs to be folded, whichever name was asked about.
        waiting: list[tuple[Instant, str, bool]] = [(0, shown, False)]
        while waiting:
            since, member, flipped = heapq.heappop(waiting)
            if member in self._folded and self._folded[member].name == shown:
                continue
            self._folded[member] = Folded(shown, flipped, since)
            for other, (value, recorded) in self._links.get(member, {}).items():
                if value in {"same_as", "inverse_of"}:
                    heapq.heappush(waiting, (max(since, recorded), other, flipped != (value == "inverse_of")))

    def _class_of(self, name: str) -> set[str]:
        """Return all names tied to one by same_as and inverse_of, itself included."""
        seen = {name}
        waiting = [name]
        while waiting:
            for other, (value, _) in self._links.get(waiting.pop(), {}).items():
                if other not in seen and value in {"same_as", "inverse_of"}:
                    seen.add(other)
                    waiting.append(other)
        return seen

    def _find_traits(self, shown: str) -> Traits:
        if shown not in self._folded:
            self._fold_class(shown)
        members = {n: f.flipped for n, f in self._folded.items() if f.name == shown}
        said: list[tuple[Place, str, Instant, str]] = []
        symmetric: tuple[Place, bool] | None = None
        for member, flipped in sorted(members.items()):
            for ruling, recorded in self._aspects.get((member, "cardinality"), ()):
                value = as_flipped(ruling.value) if flipped else ruling.value
                said.append(((ruling.sequence, ruling.ordinal), value, recorded, ruling.judge))
            for ruling, _ in self._aspects.get((member, "symmetric"), ())[-1:]:
                saying = ((ruling.sequence, ruling.ordinal), ruling.value == "yes")
                symmetric = max(symmetric, saying) if symmetric else saying
        cardinality = _in_force(sorted(said))
        excluded: dict[str, Instant] = {}
        for member in sorted(members):
            for other, (value, recorded) in self._links.get(member, {}).items():
                rival = self.folded(other).name
                if value == "excludes" and rival != shown:
                    excluded[rival] = max(recorded, excluded.get(rival, 0))
        if cardinality is None and symmetric is None and not excluded:
            return _NO_TRAITS
        paired = bool(symmetric and symmetric[1])
        if cardinality is None:
            return Traits(None, 0, None, paired, frozenset(excluded), excluded)
        value, since, judge = cardinality
        return Traits(value, since, judge, paired, frozenset(excluded), excluded)


def as_flipped(cardinality: str) -> str:
    """Return what a cardinality says of the inverse relation."""
    return _FLIPPED.get(cardinality, cardinality)


def _in_force(said: list[tuple[Place, str, Instant, str]]) -> tuple[str, Instant, str] | None:
    """Return (value, since when it has held without a break, judge) of the newest ruling.

    A ruling that repeats the one in force changes nothing, so the earlier one counts as needed (R2).
    """
    if not said or said[-1][1] == UNKNOWN:
        return None
    _, value, since, judge = said[-1]
    for _, earlier, recorded, _ in reversed(said[:-1]):
        if earlier != value:
            break
        since = min(since, recorded)
    return value, since, judge
