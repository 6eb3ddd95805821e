"""Contradictions inside an ontology that people extended: the report of `kgray ontology check`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from kgray.domain.ontology import PAIR_KEYS, Ontology, PairKey, RelationType, shipped

_FLIPPED = {"single": "single_object", "single_object": "single"}
_SMALL_WORDS = frozenset("A AN ARE IS THE WAS".split())
_ENDING = re.compile(
    r"(?<=..)(?:INGS?|EDS?|ES?|S|YS?|IES|IED)$"
)  # of FEEDS as of FEED, of STUDIES as of STUDY
_RIVALS: tuple[PairKey, ...] = ("excludes", "may_end")  # they say the contrary of `independent`


@dataclass(frozen=True, slots=True, kw_only=True)
class OntologyFault:
    """One contradiction. key: ontology.relations.NAME.KEY; message: the contradiction, then the remedy."""

    key: str
    message: str
    is_note: bool = False  # nothing is wrong, but it may surprise


def faults_of(ontology: Ontology) -> list[OntologyFault]:
    """Return the contradictions that the settings brought into an ontology, by key; the notes last."""
    faults = dict.fromkeys(_Check(ontology, shipped()).faults())
    return sorted(faults, key=lambda fault: (fault.is_note, fault.key, fault.message))


@dataclass(frozen=True, slots=True)
class _Check:
    """An ontology, and the ontology that it extends."""

    ontology: Ontology
    base: Ontology

    def faults(self) -> Iterator[OntologyFault]:
        for relation in self.ontology:
            target = relation.same_as or relation.inverse_of
            if target:
                yield from self._fold_faults(relation, target)
            for key in PAIR_KEYS:
                for partner in getattr(relation, key):
                    yield from self._pair_faults(relation, key, partner)
        yield from self._type_faults()
        yield from self._likeness_faults()
        for name in sorted(self.ontology.own):
            old, new = self.base.get(name), self.ontology.relations[name]
            if old is not None and (old.cardinality, new.cardinality) == ("many", "single"):
                yield _fault(
                    name,
                    "cardinality",
                    f'"single" where the shipped ontology has "many": each new object of {name} ends the '
                    "former one.",
                    is_note=True,
                )

    def _is_own(self, name: str, key: str) -> bool:
        """Return whether the settings set this key."""
        new, old = self.ontology.get(name), self.base.get(name) or RelationType(name=name)
        return new is not None and getattr(new, key) != getattr(old, key)

    def _first_own(self, *places: tuple[str, str]) -> tuple[str, str] | None:
        """Return the first of these places that the settings wrote, as (relation, key)."""
        return next((place for place in places if self._is_own(*place)), None)

    def _fold_faults(self, relation: RelationType, target: str) -> Iterator[OntologyFault]:
        name, key = relation.name, "same_as" if relation.same_as else "inverse_of"
        if self.ontology.get(target) is None:
            if self._is_own(name, key):
                yield _fault(
                    name,
                    key,
                    f"{target} is not listed: add [ontology.relations.{target}], or name a relation that is.",
                )
            return
        yield from self._cardinality_faults(relation, key, target)
        main = self.ontology.relations[target]
        if relation.inverse_of and (relation.symmetric or main.symmetric):
            both = ((name, "symmetric"), (name, key), (target, "symmetric"))
            if (place := self._first_own(*both)) is not None:
                symmetric = name if relation.symmetric else target
                words = f"{symmetric} is symmetric, so it is its own inverse: use same_as for {name}."
                yield _fault(*place, words)
        elif relation.symmetric != main.symmetric and relation.symmetric and self._is_own(name, "symmetric"):
            yield _fault(
                name,
                "symmetric",
                f"{name} is the same as {target}, which is not symmetric: declare it of {target}.",
            )

    def _cardinality_faults(self, relation: RelationType, key: str, target: str) -> Iterator[OntologyFault]:
        """Report a cardinality that differs from the cardinality of the main name."""
        bound = next(((r, turned) for r, turned in self._chain(target) if r.cardinality is not None), None)
        if relation.cardinality is None or bound is None:
            return
        main, is_turned = bound
        is_turned ^= key == "inverse_of"
        expected = _FLIPPED.get(str(main.cardinality), main.cardinality) if is_turned else main.cardinality
        leaves_open = is_turned and "many" in (relation.cardinality, main.cardinality)
        if relation.cardinality == expected or leaves_open:
            return
        places = ((relation.name, "cardinality"), (relation.name, key), (main.name, "cardinality"))
        if (place := self._first_own(*places)) is not None:
            tie = "the inverse of" if is_turned else "the same as"
            yield _fault(
                *place,
                f'{relation.name} is "{relation.cardinality}" and {tie} {main.name}, which is '
                f'"{main.cardinality}": {relation.name} would be "{expected}"; leave one of the two out.',
            )

    def _chain(self, name: str) -> Iterator[tuple[RelationType, bool]]:
        """Yield a relation and the relations that it folds to, each with whether its ends are exchanged."""
        is_turned, relation = False, self.ontology.get(name)
        while relation is not None:
            yield relation, is_turned
            is_turned ^= relation.inverse_of is not None
            relation = self.ontology.get(relation.same_as or relation.inverse_of or "")

    def _pair_faults(self, relation: RelationType, key: PairKey, partner: str) -> Iterator[OntologyFault]:
        """Report contrary declarations of a pair that `key` names."""
        name = relation.name
        if self.ontology.main_name(name) == self.ontology.main_name(partner):
            places = (
                (name, key),
                *((each, fold) for each in (name, partner) for fold in ("same_as", "inverse_of")),
            )
            if (place := self._first_own(*places)) is not None:
                words = f"{name} and {partner} fold to one relation, so {key} has no meaning: take one out."
                yield _fault(*place, words)
        if key != "independent":
            return
        for rival in _RIVALS:
            for first, second in ((name, partner), (partner, name)):
                if (
                    self.ontology.declares(rival, first, second)
                    and (place := self._first_own((name, key), (first, rival))) is not None
                ):
                    yield _fault(
                        *place,
                        f"{name} and {partner} are independent, and {rival} of {first} names {second} or its "
                        "main name: keep one.",
                    )

    def _type_faults(self) -> Iterator[OntologyFault]:
        """Report types that no relation takes, where all that the settings declare have both ends."""
        names = sorted(name for name in self.ontology.own if self.ontology.lists(name))
        relations = [self.ontology.relations[name] for name in names if self.ontology.main_name(name) == name]
        ends = {end for relation in relations for end in (relation.subject_type, relation.object_type)}
        if not relations or any(not _has_both_ends(relation) for relation in relations):
            return
        for name, kind in self.ontology.entities.items():
            if name not in ends:
                words = (
                    "no relation that the settings declare has an end of this type: add one, or take it out."
                )
                yield OntologyFault(key=f"ontology.entities.{kind.name}", message=words)

    def _likeness_faults(self) -> Iterator[OntologyFault]:
        """Report names of the settings that differ from a listed name in an ending or a small word."""
        alike: dict[tuple[str, ...], list[str]] = {}
        for name in self.ontology.relations:
            alike.setdefault(_stems(name), []).append(name)
        for name in sorted(self.ontology.own):
            for partner in alike[_stems(name)]:
                is_reported = partner in self.ontology.own and partner < name
                if partner == name or is_reported or self._is_settled(name, partner):
                    continue
                yield OntologyFault(
                    key=f"ontology.relations.{name}",
                    message=f'it looks like {partner}: if it is, write same_as = "{partner}"; if not, '
                    f'independent = ["{partner}"].',
                )

    def _is_settled(self, name: str, partner: str) -> bool:
        """Return whether the ontology relates these two names."""
        if self.ontology.main_name(name) == self.ontology.main_name(partner):
            return True
        pairs = ((name, partner), (partner, name))
        return any(self.ontology.declares(key, *pair) for key in PAIR_KEYS for pair in pairs)


def _has_both_ends(relation: RelationType) -> bool:
    return bool(relation.subject_type and (relation.object_type or relation.object == "value"))


def _fault(name: str, key: str, message: str, *, is_note: bool = False) -> OntologyFault:
    return OntologyFault(key=f"ontology.relations.{name}.{key}", message=message, is_note=is_note)


def _stems(name: str) -> tuple[str, ...]:
    """Return a name's words without endings, and no small words: WORKS_AT and WORK_AT are (WORK, AT)."""
    words = name.split("_")
    return tuple(_ENDING.sub("", word) for word in words if word not in _SMALL_WORDS) or tuple(words)
