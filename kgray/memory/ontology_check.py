"""Contradictions inside an ontology that people extended: what `kgray ontology check` reports."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from kgray.ontology import PAIR_KEYS, Ontology, PairKey, RelationType, shipped

_FLIPPED = {"single": "single_object", "single_object": "single"}
_SMALL_WORDS = frozenset("A AN ARE IS THE WAS".split())
_ENDING = re.compile(
    r"(?<=..)(?:INGS?|EDS?|ES?|S|YS?|IES|IED)$"
)  # of FEEDS as of FEED, of STUDIES as of STUDY
_RIVALS: tuple[PairKey, ...] = ("excludes", "may_end")  # they say the contrary of `independent`


@dataclass(frozen=True, slots=True, kw_only=True)
class OntologyFault:
    """One contradiction. key: ontology.relations.NAME.KEY; message: what and why, then what to do."""

    key: str
    message: str
    is_note: bool = False  # nothing is wrong, but it may surprise


def faults_of(ontology: Ontology) -> list[OntologyFault]:
    """Return the contradictions that the settings brought into an ontology, by key; the notes last."""
    found = _Check(ontology, shipped()).faults()
    return sorted(dict.fromkeys(found), key=lambda one: (one.is_note, one.key, one.message))


@dataclass(frozen=True, slots=True)
class _Check:
    """An ontology beside the one that it extends."""

    ontology: Ontology
    known: Ontology

    def faults(self) -> Iterator[OntologyFault]:
        for relation in self.ontology:
            target = relation.same_as or relation.inverse_of
            if target:
                yield from self._of_fold(relation, target)
            for key in PAIR_KEYS:
                for other in getattr(relation, key):
                    yield from self._of_pair(relation, key, other)
        yield from self._of_types()
        yield from self._of_likeness()
        for name in sorted(self.ontology.own):
            before, now = self.known.get(name), self.ontology.relations[name]
            if before is not None and (before.cardinality, now.cardinality) == ("many", "single"):
                yield _fault(
                    name,
                    "cardinality",
                    f'"single" where the shipped ontology has "many": each new object of {name} ends the '
                    "former one.",
                    is_note=True,
                )

    def _is_own(self, name: str, key: str) -> bool:
        """Whether the settings gave this key its value."""
        now, before = self.ontology.get(name), self.known.get(name) or RelationType(name=name)
        return now is not None and getattr(now, key) != getattr(before, key)

    def _blamed(self, *places: tuple[str, str]) -> tuple[str, str] | None:
        """Return the first of these places that the settings wrote, as (relation, key)."""
        return next((place for place in places if self._is_own(*place)), None)

    def _of_fold(self, relation: RelationType, target: str) -> Iterator[OntologyFault]:
        name, key = relation.name, "same_as" if relation.same_as else "inverse_of"
        if self.ontology.get(target) is None:
            if self._is_own(name, key):
                yield _fault(
                    name,
                    key,
                    f"{target} is not listed: add [ontology.relations.{target}], or name a relation that is.",
                )
            return
        yield from self._of_cardinalities(relation, key, target)
        main = self.ontology.relations[target]
        if relation.inverse_of and (relation.symmetric or main.symmetric):
            both = ((name, "symmetric"), (name, key), (target, "symmetric"))
            if (place := self._blamed(*both)) is not None:
                which = name if relation.symmetric else target
                words = f"{which} is symmetric, so it is its own inverse: use same_as for {name}."
                yield _fault(*place, words)
        elif relation.symmetric != main.symmetric and relation.symmetric and self._is_own(name, "symmetric"):
            yield _fault(
                name,
                "symmetric",
                f"{name} is the same as {target}, which is not symmetric: declare it of {target}.",
            )

    def _of_cardinalities(self, relation: RelationType, key: str, target: str) -> Iterator[OntologyFault]:
        """Report a cardinality that differs from that of the relation which the name folds to."""
        bound = next(((r, turned) for r, turned in self._chain(target) if r.cardinality is not None), None)
        if relation.cardinality is None or bound is None:
            return
        main, is_turned = bound
        is_turned ^= key == "inverse_of"
        wanted = _FLIPPED.get(str(main.cardinality), main.cardinality) if is_turned else main.cardinality
        leaves_open = is_turned and "many" in (relation.cardinality, main.cardinality)
        if relation.cardinality == wanted or leaves_open:
            return
        places = ((relation.name, "cardinality"), (relation.name, key), (main.name, "cardinality"))
        if (place := self._blamed(*places)) is not None:
            how = "the inverse of" if is_turned else "the same as"
            yield _fault(
                *place,
                f'{relation.name} is "{relation.cardinality}" and {how} {main.name}, which is '
                f'"{main.cardinality}": {relation.name} would be "{wanted}"; leave one of the two out.',
            )

    def _chain(self, name: str) -> Iterator[tuple[RelationType, bool]]:
        """Yield a relation and those it folds to, each with whether its ends are exchanged."""
        is_turned, relation = False, self.ontology.get(name)
        while relation is not None:
            yield relation, is_turned
            is_turned ^= relation.inverse_of is not None
            relation = self.ontology.get(relation.same_as or relation.inverse_of or "")

    def _of_pair(self, relation: RelationType, key: PairKey, other: str) -> Iterator[OntologyFault]:
        """Report what else is declared of a pair that `key` names."""
        name = relation.name
        if self.ontology.main_name(name) == self.ontology.main_name(other):
            places = (
                (name, key),
                *((one, fold) for one in (name, other) for fold in ("same_as", "inverse_of")),
            )
            if (place := self._blamed(*places)) is not None:
                words = f"{name} and {other} fold to one relation, so {key} has no meaning: take one out."
                yield _fault(*place, words)
        if key != "independent":
            return
        for rival in _RIVALS:
            for one, another in ((name, other), (other, name)):
                if (
                    self.ontology.declares(rival, one, another)
                    and (place := self._blamed((name, key), (one, rival))) is not None
                ):
                    yield _fault(
                        *place,
                        f"{name} and {other} are independent, and {rival} of {one} names {another} or its "
                        "main name: keep one.",
                    )

    def _of_types(self) -> Iterator[OntologyFault]:
        """Report types that no relation takes, where all that the settings declare have both ends."""
        own = [self.ontology.relations[name] for name in sorted(self.ontology.own)]
        own = [one for one in own if not (one.same_as or one.inverse_of) and self.ontology.lists(one.name)]
        ends = {end for one in own for end in (one.subject_type, one.object_type)}
        if not own or any(
            not one.subject_type or not (one.object_type or one.object == "value") for one in own
        ):
            return
        for name, kind in self.ontology.entities.items():
            if name not in ends:
                words = (
                    "no relation that the settings declare has an end of this type: add one, or take it out."
                )
                yield OntologyFault(key=f"ontology.entities.{kind.name}", message=words)

    def _of_likeness(self) -> Iterator[OntologyFault]:
        """Report names of the settings that differ from another listed one in an ending or a small word."""
        alike: dict[tuple[str, ...], list[str]] = {}
        for name in self.ontology.relations:
            alike.setdefault(_stems(name), []).append(name)
        for name in sorted(self.ontology.own):
            for other in alike[_stems(name)]:
                both_own = other in self.ontology.own
                if other == name or (both_own and other < name) or self._is_settled(name, other):
                    continue
                yield OntologyFault(
                    key=f"ontology.relations.{name}",
                    message=f'it looks like {other}: if it is, write same_as = "{other}"; if not, '
                    f'independent = ["{other}"].',
                )

    def _is_settled(self, name: str, other: str) -> bool:
        """Whether somebody said what these two names are to each other."""
        if self.ontology.main_name(name) == self.ontology.main_name(other):
            return True
        pairs = ((name, other), (other, name))
        return any(self.ontology.declares(key, one, another) for key in PAIR_KEYS for one, another in pairs)


def _fault(name: str, key: str, message: str, *, is_note: bool = False) -> OntologyFault:
    return OntologyFault(key=f"ontology.relations.{name}.{key}", message=message, is_note=is_note)


def _stems(name: str) -> tuple[str, ...]:
    """Return a name's words without endings, and no small words: WORKS_AT and WORK_AT are (WORK, AT)."""
    words = name.split("_")
    return tuple(_ENDING.sub("", word) for word in words if word not in _SMALL_WORDS) or tuple(words)
