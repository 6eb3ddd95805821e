"""Relations: their meaning, cardinality, and relation to other relations (R17).

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

from kgray.domain.records import MAX_RELATION, clean_relation
from kgray.errors import SettingsError
from kgray.settings.checks import CLOSED, error_line, fault, unknown_key

Cardinality = Literal["single", "single_object", "many", "depends"]
ObjectKind = Literal["entity", "value"]
PairKey = Literal["excludes", "independent", "may_end"]  # keys of a relation that name other relations
PAIR_KEYS: tuple[PairKey, ...] = get_args(PairKey)

_LABEL = re.compile(r"[A-Z][A-Za-z0-9]*")
# The slots at the end of a phrase; `kgray.models.rules` defines them.
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
            'use one of "single" (one object at a time, like WORKS_AT), "single_object" (one subject at a '
            'time: a ship has one captain), "many" (any number, like LIKES), '
            '"depends" (a question for each pair of objects).'
        )
    return value


_Name = Annotated[str, AfterValidator(_relation_name)]
_Label = Annotated[str, AfterValidator(_label)]
_Word = Annotated[str, StringConstraints(min_length=1)]
_Phrases = tuple[Annotated[str, AfterValidator(_phrase)], ...]


@dataclass(frozen=True, slots=True, kw_only=True, config=CLOSED)
class RelationType:
    """A declared relation; None and () = not declared.

    text: its words in the text of a fact (`kgray.graph.texts`).
    phrases, starts, ends, events, nouns and fields are for the rules extractor: see ontology.toml.
    """

    name: _Name  # UPPER_SNAKE, <= 64 characters
    description: str = ""
    text: Annotated[str, AfterValidator(_words)] = ""
    cardinality: Annotated[Cardinality | None, BeforeValidator(_cardinality)] = None
    object: ObjectKind | None = None
    symmetric: StrictBool = False
    excludes: tuple[_Name, ...] = ()
    independent: tuple[_Name, ...] = ()  # names whose statements are never compared with this relation's
    may_end: tuple[_Name, ...] = ()  # states that an event of this name may have ended: they are compared
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
    """A declared type of entity; attributes: useful facts with a value ("birthday")."""

    name: Annotated[str, StringConstraints(min_length=1), AfterValidator(_label)]
    description: Annotated[str, AfterValidator(_single_spaced)] = ""
    attributes: tuple[_Word, ...] = ()


@plain_dataclass(frozen=True, slots=True)
class Ontology:
    """The declared relations and entity types by name, in order of declaration.

    own     the names of the relations that the settings declare
    paired  of these, the names of relations with a declared subject or object type
    """

    relations: Mapping[str, RelationType] = field(default_factory=lambda: MappingProxyType({}))
    entities: Mapping[str, EntityType] = field(default_factory=lambda: MappingProxyType({}))
    own: frozenset[str] = frozenset()
    paired: frozenset[str] = frozenset()

    # Computed once, because every comparison of statements reads them.
    _folds: Mapping[str, tuple[str, bool]] = field(init=False, repr=False, compare=False)
    _listed: frozenset[str] = field(init=False, repr=False, compare=False)
    _pairs: frozenset[tuple[PairKey, str, str]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Compute the folded and the listed names, and the pairs (key, name, another main name)."""
        object.__setattr__(self, "_folds", {name: _fold(name, self.relations) for name in self.relations})
        listed = (relation.name for relation in self if not _says_only_independent(relation))
        object.__setattr__(self, "_listed", frozenset(listed))
        pairs = (
            (key, relation.name, self.main_name(partner))
            for relation in self
            for key in PAIR_KEYS
            for partner in getattr(relation, key)
        )
        object.__setattr__(self, "_pairs", frozenset(pairs))

    def get(self, name: str) -> RelationType | None:
        """Return the declaration of a relation; None if it is not declared."""
        return self.relations.get(name)

    def lists(self, name: str) -> bool:
        """Tell whether a table declares the relation; a table with `independent` only does not."""
        return name in self._listed

    def folded(self, name: str) -> tuple[str, bool]:
        """Return the name at the end of a relation's same_as and inverse_of, and whether ends are exchanged.

        A name without these keys is returned unchanged.
        """
        return self._folds.get(name, (name, False))

    def main_name(self, name: str) -> str:
        """Return the folded name of a relation."""
        return self.folded(name)[0]

    def object_kind(self, name: str) -> ObjectKind | None:
        """Return the kind of a relation's objects: declared by itself, else by its same_as relation."""
        relation = self.relations.get(name)
        while relation is not None and relation.object is None and relation.same_as:
            relation = self.relations.get(relation.same_as)
        return None if relation is None else relation.object

    def are_independent(self, a: str, b: str) -> bool:
        """Tell whether the ontology makes a model's comparison of these two names unnecessary.

        It does for two listed names that fold to different main names (exclusions are declared too), unless
        one may end the other; and if one of the names, or its main name, declares the other `independent`.
        Names that fold to the same main name are never independent.
        """
        if self.main_name(a) == self.main_name(b):
            return False
        if self.declares("independent", a, b) or self.declares("independent", b, a):
            return True
        both_listed = self.lists(a) and self.lists(b)
        return both_listed and not (self.declares("may_end", a, b) or self.declares("may_end", b, a))

    def declares(self, key: PairKey, name: str, partner: str) -> bool:
        """Tell whether `name`, or its main name, has a relation with `partner`'s folded name under a key."""
        main = self.main_name(partner)
        return (key, name, main) in self._pairs or (key, self.main_name(name), main) in self._pairs

    def __iter__(self) -> Iterator[RelationType]:
        return iter(self.relations.values())

    def extended(
        self,
        overrides: Mapping[str, Mapping[str, Any]],
        entities: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> Ontology:
        """Return this ontology, extended by `[ontology.relations.NAME]` and entities of the settings.

        Keys without an override keep their values. Raises SettingsError, with the key in the user's spelling,
        for an unknown key, a wrong value, or a name that leads to itself.
        """
        relations, types = dict(self.relations), dict(self.entities)
        for name, table in overrides.items():
            declared = relations.get(name)
            relations[name] = _read(
                RelationType, "relations", name, table, asdict(declared) if declared else {}
            )
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
        declared_names = self.own | set(overrides)
        paired = self.paired | {name for name, table in overrides.items() if _ENDS & set(table)}
        return Ontology(MappingProxyType(relations), MappingProxyType(types), declared_names, paired)


def _fold(name: str, relations: Mapping[str, RelationType]) -> tuple[str, bool]:
    """Return the name at the end of same_as and inverse_of, and whether its direction is opposite."""
    is_turned, relation = False, relations.get(name)
    while relation is not None and (target := relation.same_as or relation.inverse_of):
        is_turned ^= relation.inverse_of is not None
        name, relation = target, relations.get(target)
    return name, is_turned


def _says_only_independent(relation: RelationType) -> bool:
    declared = relation.independent
    return bool(declared) and relation == RelationType(name=relation.name, independent=declared)


def _check_ends(overrides: Mapping[str, Mapping[str, Any]], types: set[str]) -> None:
    """Refuse an allowed pair with an unknown type: it would drop all facts of known types."""
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
    """Return the matters of a relation name by its words: HAS_A_JOB_AT is about employment.

    They lead to questions only, never to conclusions (R17a).
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


def _read(cls: type[_T], kind: str, name: str, table: object, declared: Mapping[str, Any]) -> _T:
    """Return the declaration of [ontology.KIND.NAME], merged over the earlier declaration."""
    table_name = f"ontology.{kind}.{name}"
    keys = [(spec.name,) for spec in fields(cls) if spec.name != "name"]
    if isinstance(table, Mapping):
        if "name" in table:
            near = [f"{table_name}.{key}" for (key,) in keys]
            raise SettingsError(unknown_key(f"{table_name}.name", "the settings", near, "a key"))
        table = {**declared, **table, "name": name}
    try:
        return TypeAdapter(cls).validate_python(table)
    except ValidationError as error:

        def spelled(place: Sequence[str]) -> str:
            return ".".join((table_name, *(step for step in place if step != "name")))

        raise SettingsError(
            error_line(error, "the settings", keys, spelled=spelled, subject="a key")
        ) from None


def _check_cycles(relations: Mapping[str, RelationType]) -> None:
    """Refuse names that lead to themselves by same_as and inverse_of, or name themselves in a pair key."""
    for name, relation in relations.items():
        for key in PAIR_KEYS:
            if name in getattr(relation, key):
                raise SettingsError(f"ontology.relations.{name}.{key} names itself: take it out.")
        visited = {name}
        step = relation.same_as or relation.inverse_of
        while step is not None:
            if step in visited:
                raise SettingsError(
                    f"ontology.relations.{name}: same_as and inverse_of lead from {name} back to {step}: "
                    "name one of them as the relation and leave it without."
                )
            visited.add(step)
            target = relations.get(step)
            step = (target.same_as or target.inverse_of) if target else None
