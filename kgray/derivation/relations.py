"""What the rulings make of a group's relation names (R17), and how names read in the text of facts (R18)."""

from __future__ import annotations

import heapq
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from kgray.records import Place, Ruling
from kgray.times import Instant

OBJECT = "{object}"  # where the object stands in a relation's words; it follows them where this is missing
UNKNOWN = "unknown"  # a cardinality that the ontology declared once and no longer does
FOLDS = frozenset({"same_as", "inverse_of"})  # rulings on two names that show them as one
_FLIPPED = {"single": "single_object", "single_object": "single"}

_TABLES = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
WORDS: dict[str, list[str]] = {name: text.split() for name, text in _TABLES.items()}
_THIRD_TO_PAST = dict(pair.split(":") for pair in WORDS["third_to_past"])
_PASTS = frozenset(_THIRD_TO_PAST.values())
_PAST_TO_STATE = dict(pair.split(":") for pair in WORDS["past_to_state"])
_PARTICIPLES, _BASES = frozenset(WORDS["participles"]), frozenset(WORDS["bases"])
_PREPOSITIONS = frozenset(WORDS["prepositions"])
_ADJECTIVES = ("ic", "ible", "able", "ful", "ous", "lar", "ent", "ant")
_NO_VERB = ("ss", "us", "is")  # boss, status, basis: they end in s and are no third person
_IRREGULAR_THIRD = {"be": "is", "have": "has", "do": "does", "go": "goes"}


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
    # shown name -> record time of the last ruling needed for it; of several ways, by the one known first
    excludes: dict[str, Instant]


class Relations:
    """The relation names of a group, with their uses and the rulings on them."""

    def __init__(self) -> None:
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
        if held is not None and held[0].value == ruling.value:
            recorded = held[1]  # one that repeats the one in force changes nothing (R2)
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

    def pair_ruling(self, a: str, b: str) -> Ruling | None:
        """Return the ruling on two names, in either order."""
        held = self._pairs.get(self._pair(a, b))
        return held[0] if held else None

    def aspect(self, name: str, aspect: str) -> Ruling | None:
        """Return the ruling in force on one name's "cardinality" or "symmetric"."""
        history = self._aspects.get((name, aspect))
        return history[-1][0] if history else None

    def refolded(self, rulings: Sequence[Ruling], recorded: Instant) -> bool:
        """Whether these rulings would change how the names in use fold."""
        if not any(r.aspect == "symmetric" or r.value in FOLDS for r in rulings):
            return False
        trial = self.copy()
        for ruling in rulings:
            trial.rule(ruling, recorded)
        for name in self.names():
            old, new = self.folded(name), trial.folded(name)
            if old[:2] != new[:2] or self.traits(old.name).symmetric != trial.traits(new.name).symmetric:
                return True
        return False

    def words(self, shown: str, *, event: bool) -> str:
        """Return how a relation is said between its ends: as the ontology declares, else as its name says."""
        ruling = self.aspect(shown, "text")
        return ruling.value if ruling and ruling.value else verb_phrase(shown, event=event)

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
                if value in FOLDS:
                    heapq.heappush(waiting, (max(since, recorded), other, flipped != (value == "inverse_of")))

    def _class_of(self, name: str) -> set[str]:
        """Return all names tied to one by same_as and inverse_of, itself included."""
        seen, waiting = {name}, [name]
        for known in waiting:  # which grows
            tied = (other for other, (value, _) in self._links.get(known, {}).items() if value in FOLDS)
            fresh = [other for other in tied if other not in seen]
            seen.update(fresh)
            waiting.extend(fresh)
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
                rival, _, folded = self.folded(other)
                if value == "excludes" and rival != shown:
                    needed = max(recorded, folded, self._folded[member].since)
                    excluded[rival] = min(needed, excluded.get(rival, needed))
        newest, since, judge = cardinality or (None, 0, None)
        return Traits(newest, since, judge, bool(symmetric and symmetric[1]), excluded)


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


@lru_cache(maxsize=4_096)
def verb_phrase(relation: str, *, event: bool = False) -> str:
    """Return a relation's name in words: WORKS_AT is "works at", of an event "worked at".

    A name whose first word is no English verb that is known here is only written in lower case.
    """
    first, *rest = relation.lower().split("_")
    # A span tells when: USED_TO_WORK_AT and WILL_START read true inside theirs.
    before = 2 if [first, *rest[:1]] == ["used", "to"] else 1 if first == "will" else 0
    if before and len(rest) >= before:
        base, *rest = rest[before - 1 :]
        first = _third_person(base)
    following = rest[0] if rest else ""
    verb = _state_verb(first, following if following in _PREPOSITIONS else "")
    if event:
        verb[0] = _past(verb[0])
    return " ".join((*verb, *rest))


def _state_verb(first: str, preposition: str) -> list[str]:
    """Return how the first word of a name says a state: ["works"], ["is", "located"]; unknown words stay."""
    is_participle = first in _PARTICIPLES or first in _PASTS or first.endswith("ed")
    is_third = first.endswith("s") and not first.endswith(_NO_VERB)
    if first == "born":
        return ["was", first]
    if preposition and (first in _PARTICIPLES or (preposition == "by" and is_participle)):
        return ["is", first]
    if first in _PAST_TO_STATE:
        return [_PAST_TO_STATE[first]]
    if first in _BASES:
        return [_third_person(first)]
    if is_third or is_participle or first in _THIRD_TO_PAST:
        return [first]
    is_noun = preposition == "of"
    is_adjective = bool(preposition) and first.endswith(_ADJECTIVES)
    if is_noun or is_adjective or first in _PREPOSITIONS or first.endswith("ing"):
        return ["is", first]
    return [first]


def _third_person(base: str) -> str:
    if base in _IRREGULAR_THIRD:
        return _IRREGULAR_THIRD[base]
    if base.endswith("y") and base[-2] not in "aeiou":
        return f"{base[:-1]}ies"
    return base + ("es" if base.endswith(("s", "x", "ch", "sh")) else "s")


def _past(verb: str) -> str:
    """Return a verb in the third person in the past; one that is past already, or no verb, as it is."""
    if verb in _THIRD_TO_PAST:
        return _THIRD_TO_PAST[verb]
    if verb in _PASTS or not verb.endswith("s") or verb.endswith(_NO_VERB):
        return verb
    if verb.endswith("ies"):
        return f"{verb[:-3]}ied"
    base = verb[:-2] if verb.endswith(("sses", "xes", "ches", "shes")) else verb[:-1]
    return f"{base}d" if base.endswith("e") else f"{base}ed"
