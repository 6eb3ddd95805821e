"""Relations: what each means, how many objects it takes, what it is to others (R17).

The shipped ontology is data, `ontology.toml` beside this file; settings add to it and override it.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

from kgray.errors import SettingsError
from kgray.records import MAX_RELATION, clean_relation

Cardinality = Literal["single", "single_object", "many", "depends"]
ObjectKind = Literal["entity", "value"]

_LABEL = re.compile(r"(?:[A-Z][A-Za-z0-9]*)?")
# The slots that a phrase may end in; backends/rules gives them their meaning.
SLOTS = frozenset(
    {
        "name",
        "thing",
        "person",
        "someone",
        "org",
        "employer",
        "place",
        "group",
        "language",
        "belonging",
        "problem",
        "role",
        "status",
        "price",
    }
)
_PHRASE = re.compile(r"(?:[a-z][a-z'|-]* )+\{([a-z]+)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RelationType:
    """One declared relation; None and () = not declared.

    phrases, starts, ends, nouns and fields are what the rules extractor reads: see ontology.toml.
    """

    name: str  # UPPER_SNAKE, <= 64 characters
    description: str = ""
    cardinality: Cardinality | None = None
    object: ObjectKind | None = None
    symmetric: bool = False
    excludes: tuple[str, ...] = ()
    same_as: str | None = None
    inverse_of: str | None = None
    subject_type: str = ""  # CamelCase label; "" = any
    object_type: str = ""
    phrases: tuple[str, ...] = ()
    starts: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    nouns: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityType:
    """One declared type of entity. Once any is declared, others count as unknown (ingest/shape.py).

    attributes: what is worth knowing of such an entity ("birthday"): facts with a value.
    """

    name: str  # a CamelCase label
    description: str = ""
    attributes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ontology:
    """The declared relations and entity types by name, in order of declaration.

    own     the names of the relations that the settings declare
    paired  those of them whose ends the settings declare, one end at least
    """

    relations: Mapping[str, RelationType] = field(default_factory=lambda: MappingProxyType({}))
    entities: Mapping[str, EntityType] = field(default_factory=lambda: MappingProxyType({}))
    own: frozenset[str] = frozenset()
    paired: frozenset[str] = frozenset()

    def get(self, name: str) -> RelationType | None:
        """Return the declaration of a relation, None where there is none."""
        return self.relations.get(name)

    def __iter__(self) -> Iterator[RelationType]:
        """Yield the relations in the order of declaration."""
        return iter(self.relations.values())

    def extended(
        self,
        overrides: Mapping[str, Mapping[str, Any]],
        entities: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> Ontology:
        """Return this ontology with `[ontology.relations.NAME]` of the settings added and overriding.

        Keys that an override does not name keep their shipped values; `[ontology.entities.NAME]` adds
        entity types. Raises SettingsError, with the key as the user typed it, for an unknown key, a
        wrong value, or a name that leads to itself.
        """
        relations, types = dict(self.relations), dict(self.entities)
        for name, table in overrides.items():
            relations[name] = _read(name, table, relations.get(name))
        for name, table in (entities or {}).items():
            types[name] = _read_entity(name, table)
        _check_cycles(relations)
        if types:
            ends = {end for kind in self for end in (kind.subject_type, kind.object_type) if end}
            _check_ends(overrides, {*types, *ends})
        own = self.own | set(overrides)
        paired = self.paired | {name for name, table in overrides.items() if _ENDS & set(table)}
        return Ontology(MappingProxyType(relations), MappingProxyType(types), own, paired)


def _check_ends(overrides: Mapping[str, Mapping[str, Any]], types: set[str]) -> None:
    """Refuse an allowed pair that names no known type: by it all facts of known types would be dropped."""
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


# ------------------------------------------------------------------------- reading one table

_KEYS = tuple(spec.name for spec in fields(RelationType) if spec.name != "name")
_TEXTS = ("description", "subject_type", "object_type")
_ENDS = frozenset(_TEXTS[1:])
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "cardinality": get_args(Cardinality),
    "object": get_args(ObjectKind),
}
_NAMES = ("same_as", "inverse_of")
_LISTS = ("excludes", "phrases", "starts", "ends", "nouns", "fields")


def _read(name: str, table: object, known: RelationType | None) -> RelationType:
    """Return the relation that a table describes, over what was declared before."""
    where = f"ontology.relations.{name}"
    _check_name(name, where)
    if not isinstance(table, Mapping):
        raise SettingsError(f"{where} = {table!r} is not a table: write [{where}] and its keys below it.")
    for key in table:
        if key not in _KEYS:
            near = difflib.get_close_matches(str(key), _KEYS, n=1, cutoff=0.0)
            raise SettingsError(f"{where}.{key} is not a key. The nearest one is {near[0]!r}.")
    changes = {key: _value(f"{where}.{key}", key, value) for key, value in table.items()}
    relation = replace(known or RelationType(name=name), **changes)
    if relation.same_as and relation.inverse_of:
        raise SettingsError(f"{where} cannot be both same_as and inverse_of another relation: keep one.")
    return relation


def _read_entity(name: str, table: object) -> EntityType:
    """Return the entity type that a table describes."""
    where = f"ontology.entities.{name}"
    if not name or not _LABEL.fullmatch(name):
        raise SettingsError(f"{where}: {name!r} is not a label such as Person: one word in CamelCase.")
    if not isinstance(table, Mapping):
        raise SettingsError(f"{where} = {table!r} is not a table: write [{where}] and its keys below it.")
    keys = ("description", "attributes")
    for key in table:
        if key not in keys:
            near = difflib.get_close_matches(str(key), keys, n=1, cutoff=0.0)
            raise SettingsError(f"{where}.{key} is not a key. The nearest one is {near[0]!r}.")
    description = table.get("description", "")
    if not isinstance(description, str):
        raise SettingsError(f"{where}.description = {description!r} is not a text: put it in quotes.")
    attributes = _strings(f"{where}.attributes", "attributes", table.get("attributes", []))
    return EntityType(name=name, description=" ".join(description.split()), attributes=attributes)


def _value(where: str, key: str, value: object) -> Any:  # noqa: ANN401 - one type a key
    """Return a checked value in the form of its field."""
    if key in _CHOICES:
        if value not in _CHOICES[key]:
            options = ", ".join(repr(option) for option in _CHOICES[key])
            raise SettingsError(f"{where} = {value!r} is not one of {options}.")
        return value
    if key == "symmetric":
        if not isinstance(value, bool):
            raise SettingsError(f"{where} = {value!r} is not true or false.")
        return value
    if key in _LISTS:
        return _strings(where, key, value)
    if not isinstance(value, str):
        raise SettingsError(f"{where} = {value!r} is not a text: put it in quotes.")
    if key in _NAMES:
        _check_name(value, where)
    elif key in _TEXTS[1:] and not _LABEL.fullmatch(value):
        raise SettingsError(f"{where} = {value!r} is not a label such as Person.")
    return value


def _strings(where: str, key: str, value: object) -> tuple[str, ...]:
    """Return a list of texts as a tuple, each checked."""
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) and item for item in value):
        raise SettingsError(f"{where} = {value!r} is not a list of texts.")
    for item in value:
        if key == "excludes":
            _check_name(item, where)
        elif key in {"phrases", "starts", "ends"}:
            _check_phrase(where, item)
    return tuple(value)


def _check_phrase(where: str, phrase: str) -> None:
    match = _PHRASE.fullmatch(phrase)
    if not match or match[1] not in SLOTS:
        raise SettingsError(
            f"{where}: {phrase!r} is not a phrase: write a verb in its base form, words, and a slot, "
            f"such as 'work at {{name}}'; the slots are {', '.join(sorted(SLOTS))}."
        )


def _check_name(name: object, where: str) -> None:
    try:
        clean = clean_relation(name) if isinstance(name, str) else None
    except ValueError:
        clean = None
    if clean is None or clean != name:
        raise SettingsError(
            f"{where}: {name!r} is not a relation name: use capitals, digits and _, "
            f"at most {MAX_RELATION} characters, such as WORKS_AT."
        )


def _check_cycles(relations: Mapping[str, RelationType]) -> None:
    """Refuse names that lead to themselves by same_as and inverse_of, or exclude themselves."""
    for name, relation in relations.items():
        if name in relation.excludes:
            raise SettingsError(f"ontology.relations.{name}.excludes names itself: take it out.")
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
