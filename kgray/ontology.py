"""Relations: what each means, how many objects it takes, how it relates to others (R17).

The shipped ontology is data, `ontology.toml`; settings add to it and override it.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, field, fields
from dataclasses import dataclass as plain_dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    StrictBool,
    StringConstraints,
    TypeAdapter,
    ValidationError,
)
from pydantic.dataclasses import dataclass

from kgray.errors import SettingsError
from kgray.records import MAX_RELATION, clean_relation
from kgray.settings.checks import CLOSED, fault, one_line, unknown

Cardinality = Literal["single", "single_object", "many", "depends"]
ObjectKind = Literal["entity", "value"]
PairKey = Literal["excludes", "independent", "may_end"]  # keys of a relation that name others
PAIR_KEYS: tuple[PairKey, ...] = get_args(PairKey)

_LABEL = re.compile(r"[A-Z][A-Za-z0-9]*")
# The slots that a phrase may end in; backends/rules gives them their meaning.
_SLOTS = (
    "before belonging employer group language name org person place price problem role someone status thing"
).split()
_PHRASE = re.compile(r"(?:[a-z][a-z'|-]* )+\{([a-z]+)\}")
_MOST_WORDS = 80  # characters of a relation's words
_ENDS = frozenset({"subject_type", "object_type"})


def _relation_name(name: str) -> str:
    try:
        clean = clean_relation(name)
    except ValueError:
        clean = ""
    if not clean or clean != name:
        raise fault(
            f"a relation name is needed: capitals, digits and _, at most {MAX_RELATION} characters, such as "
            "WORKS_AT."
        )
    return name


def _label(text: str) -> str:
    if text and not _LABEL.fullmatch(text):
        raise fault("a label such as Person is needed: one word in CamelCase.")
    return text


def _phrase(phrase: str) -> str:
    match = _PHRASE.fullmatch(phrase)
    if not match or match[1] not in _SLOTS:
        raise fault(
            "a phrase is needed: a verb in its base form, words, and a slot, such as 'work at {name}'; the "
            f"slots are {', '.join(_SLOTS)}."
        )
    return phrase


def _single_spaced(text: str) -> str:
    return " ".join(text.split())


def _words(text: str) -> str:
    text = _single_spaced(text)
    if re.sub(r"\{object\}", "", text, count=1).count("{") or len(text) > _MOST_WORDS:
        raise fault(
            "the words between subject and object are needed, such as 'works at'; {object} may stand in them "
            "once."
        )
    return text


def _cardinality(value: object) -> object:
    if value is not None and value not in get_args(Cardinality):
        raise fault(
            'use one of "single" (one object at a time, as WORKS_AT), "single_object" (one subject at a '
            'time: a ship has one captain), "many" (any number, as LIKES), '
            '"depends" (asked of each pair of objects).'
        )
    return value


_Name = Annotated[str, AfterValidator(_relation_name)]
_Label = Annotated[str, AfterValidator(_label)]
_Word = Annotated[str, StringConstraints(min_length=1)]
_Phrases = tuple[Annotated[str, AfterValidator(_phrase)], ...]


@dataclass(frozen=True, slots=True, kw_only=True, config=CLOSED)
class RelationType:
    """One declared relation; None and () = not declared.

    text: its words in the text of a fact (derivation/statements.py).
    phrases, starts, ends, events, nouns and fields are what the rules extractor reads: see ontology.toml.
    """

    name: _Name  # UPPER_SNAKE, <= 64 characters
    description: str = ""
    text: Annotated[str, AfterValidator(_words)] = ""
    cardinality: Annotated[Cardinality | None, BeforeValidator(_cardinality)] = None
    object: ObjectKind | None = None
    symmetric: StrictBool = False
    excludes: tuple[_Name, ...] = ()
    independent: tuple[_Name, ...] = ()  # names that a statement of this one is never compared with
    may_end: tuple[_Name, ...] = ()  # states that an event of this name may have ended: those are compared
    same_as: _Name | None = None
    inverse_of: _Name | None = None
    subject_type: _Label = ""  # CamelCase label; "" = any
    object_type: _Label = ""
    phrases: _Phrases = ()
    starts: _Phrases = ()
    ends: _Phrases = ()
    events: _Phrases = ()
    nouns: tuple[_Word, ...] = ()
    fields: tuple[_Word, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, config=CLOSED)
class EntityType:
    """A declared type of entity; attributes: facts with a value that are worth knowing ("birthday")."""

    name: Annotated[str, StringConstraints(min_length=1), AfterValidator(_label)]
    description: Annotated[str, AfterValidator(_single_spaced)] = ""
    attributes: tuple[_Word, ...] = ()


@plain_dataclass(frozen=True, slots=True)
class Ontology:
    """The declared relations and entity types by name, in order of declaration.

    own     the names of the relations that the settings declare
    paired  those of them whose ends the settings declare, one end at least
    """

    relations: Mapping[str, RelationType] = field(default_factory=lambda: MappingProxyType({}))
    entities: Mapping[str, EntityType] = field(default_factory=lambda: MappingProxyType({}))
    own: frozenset[str] = frozenset()
    paired: frozenset[str] = frozenset()

    # Computed, because each pair of statements that may be compared asks for them.
    _folds: Mapping[str, tuple[str, bool]] = field(init=False, repr=False, compare=False)
    _listed: frozenset[str] = field(init=False, repr=False, compare=False)
    _pairs: frozenset[tuple[PairKey, str, str]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Compute where names fold to, which are listed, and the pairs (key, name, main name of another)."""
        object.__setattr__(self, "_folds", {name: _fold(name, self.relations) for name in self.relations})
        listed = (one.name for one in self if not _says_only_independent(one))
        object.__setattr__(self, "_listed", frozenset(listed))
        pairs = (
            (key, one.name, self.main_name(other))
            for one in self
            for key in PAIR_KEYS
            for other in getattr(one, key)
        )
        object.__setattr__(self, "_pairs", frozenset(pairs))

    def get(self, name: str) -> RelationType | None:
        """Return the declaration of a relation, None where there is none."""
        return self.relations.get(name)

    def lists(self, name: str) -> bool:
        """Whether a table says what the relation is; one that names nothing but `independent` does not."""
        return name in self._listed

    def folded(self, name: str) -> tuple[str, bool]:
        """Return the name at the end of a relation's same_as and inverse_of, and whether ends are exchanged.

        A name that has neither is returned as it is.
        """
        return self._folds.get(name, (name, False))

    def main_name(self, name: str) -> str:
        """Return the name that a relation folds to."""
        return self.folded(name)[0]

    def object_kind(self, name: str) -> ObjectKind | None:
        """Return the kind of a relation's objects: its own, else that of the relation it is the same as."""
        relation = self.relations.get(name)
        while relation is not None and relation.object is None and relation.same_as:
            relation = self.relations.get(relation.same_as)
        return None if relation is None else relation.object

    def are_independent(self, a: str, b: str) -> bool:
        """Whether no model compares statements of these two names, because the ontology answers.

        It answers for two listed names that fold to different main names (what excludes what is declared
        too), unless one may end the other; and where one of the names, or its main name, declares the other
        `independent`. Names that fold to one main name are never independent.
        """
        if self.main_name(a) == self.main_name(b):
            return False
        if self.declares("independent", a, b) or self.declares("independent", b, a):
            return True
        both_listed = self.lists(a) and self.lists(b)
        return both_listed and not (self.declares("may_end", a, b) or self.declares("may_end", b, a))

    def declares(self, key: PairKey, name: str, other: str) -> bool:
        """Whether `name`, or its main name, names under this key a relation with the main name of `other`."""
        main = self.main_name(other)
        return (key, name, main) in self._pairs or (key, self.main_name(name), main) in self._pairs

    def __iter__(self) -> Iterator[RelationType]:
        return iter(self.relations.values())

    def extended(
        self,
        overrides: Mapping[str, Mapping[str, Any]],
        entities: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> Ontology:
        """Return this ontology with `[ontology.relations.NAME]`, and entities, of the settings over it.

        Keys that an override does not name keep their values. Raises SettingsError, with the key as the user
        typed it, for an unknown key, a wrong value, or a name that leads to itself.
        """
        relations, types = dict(self.relations), dict(self.entities)
        for name, table in overrides.items():
            known = relations.get(name)
            relations[name] = _read(RelationType, "relations", name, table, asdict(known) if known else {})
            if relations[name].same_as and relations[name].inverse_of:
                raise SettingsError(
                    f"ontology.relations.{name} cannot be both same_as and inverse_of another relation: "
                    "keep one."
                )
        for name, table in (entities or {}).items():
            types[name] = _read(EntityType, "entities", name, table, {})
        _check_cycles(relations)
        if types:
            ends = {end for kind in self for end in (kind.subject_type, kind.object_type) if end}
            _check_ends(overrides, {*types, *ends})
        own = self.own | set(overrides)
        paired = self.paired | {name for name, table in overrides.items() if _ENDS & set(table)}
        return Ontology(MappingProxyType(relations), MappingProxyType(types), own, paired)


def _fold(name: str, relations: Mapping[str, RelationType]) -> tuple[str, bool]:
    """Return the name at the end of same_as and inverse_of, and whether that has the other direction."""
    is_turned, relation = False, relations.get(name)
    while relation is not None and (target := relation.same_as or relation.inverse_of):
        is_turned ^= relation.inverse_of is not None
        name, relation = target, relations.get(target)
    return name, is_turned


def _says_only_independent(relation: RelationType) -> bool:
    declared = relation.independent
    return bool(declared) and relation == RelationType(name=relation.name, independent=declared)


def _check_ends(overrides: Mapping[str, Mapping[str, Any]], types: set[str]) -> None:
    """Refuse an allowed pair that names an unknown type: it would drop all facts of known types."""
    for name, table in overrides.items():
        for key in sorted(_ENDS & set(table)):
            if table[key] and table[key] not in types:
                near = difflib.get_close_matches(str(table[key]), sorted(types), n=1, cutoff=0.0)
                raise SettingsError(
                    f"ontology.relations.{name}.{key} = {table[key]!r} is no declared entity type. "
                    f"The nearest one is {near[0]!r}."
                )


@cache
def shipped() -> Ontology:
    """Return the ontology that comes with kgray."""
    text = Path(__file__).with_name("ontology.toml").read_text(encoding="utf-8")
    return Ontology(Ontology().extended(tomllib.loads(text)["relations"]).relations)


@cache
def matters_of(name: str) -> frozenset[str]:
    """Return the matters that a relation name speaks of by its words: HAS_A_JOB_AT is about employment.

    They lead to questions only; nothing follows from them (R17a).
    """
    words = set(name.casefold().split("_"))
    return frozenset(
        matter for matter, its_words in words_of_matter().items() if not its_words.isdisjoint(words)
    )


@cache
def words_of_matter() -> Mapping[str, frozenset[str]]:
    """Return the words of each matter of the shipped ontology."""
    text = Path(__file__).with_name("ontology.toml").read_text(encoding="utf-8")
    return {matter: frozenset(words.split()) for matter, words in tomllib.loads(text)["matters"].items()}


_T = TypeVar("_T", RelationType, EntityType)


def _read(cls: type[_T], kind: str, name: str, table: object, known: Mapping[str, Any]) -> _T:
    """Return what [ontology.KIND.NAME] describes, over what was declared before."""
    where = f"ontology.{kind}.{name}"
    keys = [(spec.name,) for spec in fields(cls) if spec.name != "name"]
    if isinstance(table, Mapping):
        if "name" in table:
            near = [f"{where}.{key}" for (key,) in keys]
            raise SettingsError(unknown(f"{where}.name", "the settings", near, "a key"))
        table = {**known, **table, "name": name}
    try:
        return TypeAdapter(cls).validate_python(table)
    except ValidationError as error:

        def spelled(place: Sequence[str]) -> str:
            return ".".join((where, *(step for step in place if step != "name")))

        raise SettingsError(one_line(error, "the settings", keys, spelled=spelled, what="a key")) from None


def _check_cycles(relations: Mapping[str, RelationType]) -> None:
    """Refuse names that lead to themselves by same_as and inverse_of, or exclude themselves and the like."""
    for name, relation in relations.items():
        for key in PAIR_KEYS:
            if name in getattr(relation, key):
                raise SettingsError(f"ontology.relations.{name}.{key} names itself: take it out.")
        seen = {name}
        step = relation.same_as or relation.inverse_of
        while step is not None:
            if step in seen:
                raise SettingsError(
                    f"ontology.relations.{name}: same_as and inverse_of lead from {name} back to {step}: "
                    "name one of them as the relation and leave it without."
                )
            seen.add(step)
            target = relations.get(step)
            step = (target.same_as or target.inverse_of) if target else None
