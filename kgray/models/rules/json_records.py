"""JSON to a graph by its structure: objects are entities, fields are relations to values or entities.

    {"id": "P-2", "name": "Aero 2", "type": "phone", "price": 499, "maker": {"name": "Aero"}}

gives Aero 2 COSTS 499 and Aero 2 MADE_BY Aero: a field is the ontology's relation with its name, else
HAS_<FIELD>. Every fact holds from the reference time, inferred.

identity    an object is identified by its key, if any: a field of `records.keys`, `id` and similar fields, or
            a first field such as `account_id`; a known key with a new name is a rename. Without a key the
            name decides
fields      a field has a single value at a time, which supersedes the former value; a list has many
references  `account_id` next to another key is a relation to the object with that key

Fields that are not understood are left out with a line in the report.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import NamedTuple

from kgray.domain.ontology import Ontology, RelationType
from kgray.domain.records import MAX_RELATION, ExtractedFact, Value, clean_number, clean_relation, clean_text
from kgray.domain.times import Instant, parse, show_as
from kgray.models.rules.extractor import MAX_ITEMS, ExtractionBuilder
from kgray.models.rules.marking import LISTS, WORDS, find_prices, third_person

MAX_VALUE = 200  # characters
_MAX_DEPTH = 12
_MAX_LABEL = 60  # characters; a longer type is a sentence
_DATE = re.compile(r"\d{4}-\d\d(?:-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?)?")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@dataclass(slots=True, kw_only=True)
class _Record:
    """An object with a name: its identity, and the position while its fields are read."""

    name: str
    key: str  # "" = no key
    label: str
    name_fields: frozenset[str]  # its fields with names, in lower snake case: they are no facts
    person: bool  # it is certainly a person
    currency: str | None  # of its prices, if a field has it
    depth: int = 0
    number: int = 0  # its index among the entities
    # relation -> the field that it was first used for: "price_usd" and "price_eur" are different
    named: dict[str, str] = field(default_factory=dict)


class _Field(NamedTuple):
    """A field of an object."""

    relation: str
    key: str  # in lower snake case
    unit: str | None  # of a number
    is_list: bool  # it is a list


class JsonReader:
    """Adds the facts of a JSON value to a builder."""

    def __init__(
        self, builder: ExtractionBuilder, ontology: Ontology, reference: Instant, keys: Sequence[str]
    ) -> None:
        """keys: fields that identify an object, before `id` and similar fields."""
        self.builder, self.ontology, self.reference = builder, ontology, reference
        self.keys = [_snake(key) for key in keys]
        self.fields: dict[str, RelationType] = {}
        for relation in ontology:
            for key in relation.fields:
                self.fields.setdefault(key, relation)

    def read(self, content: object, key: str, depth: int = 0) -> None:
        """Read a top-level object or list of objects; never raises, for any value.

        key: its field, or for the whole the table ("products"): equal numbers of two tables are different
        keys
        """
        if isinstance(content, list | Mapping) and depth > _MAX_DEPTH:
            self._drop(key or "the content", "it is nested too deep")
        elif isinstance(content, list):
            for item in content:
                self.read(item, key, depth + 1)
        elif isinstance(content, Mapping) and content:
            if record := self._record(content, key):
                self._entity(content, record, key, depth)
                return
            inner = {k: v for k, v in content.items() if isinstance(v, Mapping | list)}
            plain = (k for k, v in content.items() if k not in inner and v not in (None, ""))
            if unread := [k for k in plain if _snake(k) not in WORDS["no_facts"]]:
                listed = ", ".join(unread[:8]) + (", ..." if len(unread) > 8 else "")
                self._drop(key or "an object", f"it has no key and no name, so this was not read: {listed}")
            for inner_key, value in inner.items():
                self.read(value, inner_key, depth + 1)
        elif content not in ({}, None):
            self._drop(key or "the content", "a value alone belongs to no object")

    def _record(self, content: Mapping[str, object], container: str) -> _Record | None:
        """Return an object's identity; None without a name. container: its field or table."""
        if not content:
            return None
        fields: dict[str, object] = {}
        for written, value in content.items():
            fields.setdefault(_snake(written), value)
        key_field = next(
            (key for key in (*self.keys, *LISTS["record_keys"]) if _is_name(fields.get(key))), ""
        )
        first = _snake(next(iter(content)))
        if not key_field and first.endswith(tuple(LISTS["key_ends"])) and _is_name(fields[first]):
            key_field = first
        # The name never depends on the type: a prospect becomes a customer.
        kind = _label_of_key(container) or _label_of_key(key_field.rpartition("_")[0])
        label = next((label for t in LISTS["record_types"] if (label := _camel(fields.get(t)))), kind)
        name, named = _name_of(fields, kind)
        key = _key_surface(fields[key_field], kind or label) if key_field else ""
        if name.isdigit():
            name = f"{label} {name}".strip()
        if key_field and not name:
            named = tuple(title for title in LISTS["record_titles"] if _is_name(fields.get(title)))[:1]
            name = clean_text(str(fields[named[0]])) if named else key or clean_text(str(fields[key_field]))
        person = label in WORDS["persons"] or not WORDS["fields_of_persons"].isdisjoint(fields)
        currency_field = content.get("currency")
        currency, called = (
            currency_field if isinstance(currency_field, str) else None,
            frozenset({key_field, *named}),
        )
        record = _Record(
            name=name, key=key, label=label, name_fields=called, person=person, currency=currency
        )
        return record if name else None

    def _entity(self, content: Mapping[str, object], record: _Record, key: str, depth: int) -> int | None:
        """Read an object that is an entity; return its index, None if it cannot be an entity."""
        if len(self.builder.entities) >= MAX_ITEMS or depth > _MAX_DEPTH:
            self._drop(key or "an object", "it has no name, or there are too many")
            return None
        record.depth, record.number = depth, self.builder.entity(record.name, record.label, key=record.key)
        self._fields(content, record, "")
        return record.number

    def _fields(
        self, content: Mapping[str, object], record: _Record, prefix: str, *, is_list: bool = False
    ) -> None:
        """Read the fields of an object. prefix: for a nameless object inside a record, its key and "_"."""
        priced = any(_snake(key) in self.fields for key in content)
        for key, value in content.items():
            snake = _snake(key)
            names_it = not prefix and (snake in record.name_fields or snake in LISTS["record_types"][:3])
            no_fact = snake in WORDS["no_facts"] or snake.endswith(("_at", "_url", "_uri"))
            if value is None or names_it or no_fact or (snake == "currency" and priced):
                continue
            items = value if isinstance(value, list) else [value]
            field = self._field_of(prefix + snake, record, is_list=is_list or isinstance(value, list))
            for item in items:
                if isinstance(item, list) or record.depth >= _MAX_DEPTH:
                    self._drop(prefix + snake, "it is nested too deep")
                elif field is None:
                    limit = f"(UPPER_SNAKE, at most {MAX_RELATION} characters)"
                    self._drop(prefix + snake, f"no relation can be named after it {limit}")
                else:
                    self._value_of_field(item, record, field)

    def _value_of_field(self, item: object, record: _Record, field: _Field) -> None:
        declared = self.ontology.get(field.relation)
        if isinstance(item, Mapping):
            self._nested(item, record, field)
        elif field.key.endswith("_id") and _is_name(item):
            label = _label_of_key(field.key[:-3])
            surface = _key_surface(item, label)
            self._add(record, field, surface, self.builder.entity(surface, label, key=surface))
        elif not isinstance(item, str) or not declared or declared.object == "value":
            self._scalar(item, record, field)
        elif name := clean_text(item):  # a text that names another entity
            if not _is_name(name) or len(self.builder.entities) >= MAX_ITEMS:
                self._drop(field.key, f"{name[:40]!r} is no name, or there are too many")
                return
            label = "" if declared.object_type == "Thing" else declared.object_type
            self._add(record, field, name, self.builder.entity(name, label))

    def _nested(self, content: Mapping[str, object], record: _Record, field: _Field) -> None:
        """Read an object inside an object: an amount, an entity, or more fields of the outer one."""
        amount = next((content[key] for key in LISTS["amounts"] if key in content), None)
        unit = content.get("currency") or content.get("unit")
        is_amount = amount is not None and not isinstance(amount, Mapping | list)
        if is_amount and len(content) <= 2:  # an amount and its unit
            plain = replace(record, currency=None)
            self._scalar(amount, plain, field._replace(unit=str(unit or "")))
            return
        if (nested_record := self._record(content, field.key)) is None:
            inner = replace(record, label="", person=False, depth=record.depth + 1)
            self._fields(content, inner, f"{field.key}_", is_list=field.is_list)
            return
        declared = self.ontology.get(field.relation)
        if declared and declared.object == "value":
            relation = f"HAS_{clean_relation(field.key)}"[:MAX_RELATION]
            field = field._replace(relation=relation if relation != field.relation else "HAS")
        target = self._entity(content, nested_record, field.key, record.depth + 1)
        if target is not None:
            self._add(record, field, self.builder.entities[target].name, target)

    def _scalar(self, item: object, record: _Record, field: _Field) -> None:
        unit = field.unit or (record.currency if field.relation == "COSTS" else None)
        unit = clean_text(unit or "").upper()[:16] or None
        try:
            value = _value(item, unit, is_price=field.relation == "COSTS")
        except ValueError as error:
            self._drop(field.key, str(error))
            return
        if value is not None:
            self._add(record, field, value.shown(), value)

    def _field_of(self, key: str, record: _Record, *, is_list: bool) -> _Field | None:
        """Return the relation of a field, and the unit at the end of its key; None = no relation."""
        full = key
        stem, _, last = key.rpartition("_")
        unit = last.upper() if stem and last in WORDS["currencies"] else None
        if stem and key not in self.fields and (unit or last in WORDS["units"]):
            key, unit = stem, last.upper()
        relation, person = self.fields.get(key), record.person
        if key == "title" and person:
            relation = self.ontology.get("HAS_ROLE")
        if relation and relation.name == "LIVES_IN" and not person:
            relation = self.ontology.get("LOCATED_IN")
        if relation and (person or relation.subject_type != "Person"):
            if record.named.setdefault(relation.name, full) == full:
                return _Field(relation.name, full, unit, is_list)
            key = full  # two fields of an object are two slots
        single = _single(key) if is_list else key
        single = single.removesuffix("_id")
        try:
            named = clean_relation(single if single.startswith(("is_", "has_", "can_")) else f"has_{single}")
        except ValueError:
            return None
        return _Field(named, full, unit, is_list) if any(map(str.isalpha, key)) else None

    def _add(self, record: _Record, field: _Field, value_text: str, end: int | Value) -> None:
        """Add a fact with a sentence: "Aero 2 costs 499 EUR", "The colour of Aero 2 is blue"."""
        declared = self.ontology.get(field.relation)
        key = _single(field.key) if field.is_list else field.key.removesuffix("_id")
        spoken = key.replace("_", " ").strip()
        value = end if isinstance(end, Value) else None
        target = None if isinstance(end, Value) else end
        if declared and declared.phrases:
            verb, *words_after = (word.partition("|")[0] for word in declared.phrases[0].split()[:-1])
            text = " ".join([record.name, third_person(verb), *words_after, value_text])
        elif value_text in {"true", "false"}:
            text = f"{record.name}: {spoken} is {value_text}"
        else:
            text = f"The {spoken} of {record.name} is {value_text}"
        self.builder.fact(
            ExtractedFact(
                source=record.number, relation=field.relation, text=text, target=target, value=value,
                valid_from=self.reference, from_precision="instant", inferred=True, only=not field.is_list,
            )
        )  # fmt: skip

    def _drop(self, key: str, reason: str) -> None:
        if len(self.builder.dropped) < MAX_ITEMS:
            self.builder.dropped.append(f"{key[:80]}: {reason}")


def _value(item: object, unit: str | None, *, is_price: bool) -> Value | None:
    """Return a scalar as a value, None if it is empty. Raises ValueError for a non-scalar."""
    if isinstance(item, bool):
        return Value("boolean", str(item).lower())
    if isinstance(item, int | float | Decimal):
        return Value("number", _number(str(item)), unit)
    text = clean_text(str(item))
    if is_price and text:
        prices = find_prices(text, 0, len(text))
        if len(prices) == 1 and prices[0].end - prices[0].start == len(text):
            return prices[0].price
        with suppress(ValueError):  # "on request" is a text
            return Value("number", _number(text), unit)
    if _DATE.fullmatch(text):
        with suppress(ValueError):
            return Value("date", show_as(*parse(text)))
    if len(text) > MAX_VALUE:
        raise ValueError(f"a text of {len(text)} characters is no value (at most {MAX_VALUE})")
    return Value("text", text, unit) if text else None


def _number(text: str) -> str:
    number = clean_number(text)
    if len(number) > _MAX_LABEL or "E" in number:
        raise ValueError(f"{text[:40]!r} is too large or too small for a number")
    return number


def _name_of(fields: Mapping[str, object], kind: str) -> tuple[str, tuple[str, ...]]:
    """Return the name of an object and its fields; "" = no name."""
    name_keys = [key for key in list(fields)[:2] if key.endswith("_name")]
    name_keys += [key for key in fields if kind and key == f"{_snake(kind)}_name"]
    plain: list[tuple[str, ...]] = [(key,) for key in (*LISTS["record_names"], *name_keys, "email")]
    plain.insert(LISTS["record_names"].index("title"), ("first_name", "last_name"))
    for keys in plain:
        parts = [fields.get(key) for key in keys]
        if all(map(_is_name, parts)):
            return clean_text(" ".join(map(str, parts))), keys
    return "", ()


def _key_surface(value: object, label: str) -> str:
    """Return a key as a name; a bare number names nothing outside its kind, so "Order 42", else ""."""
    text = clean_text(str(value))
    return text if any(map(str.isalpha, text)) else f"{label} {text}" if label else ""


def _is_name(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
        return False
    text = clean_text(str(value))
    return any(map(str.isalnum, text)) and len(text) <= MAX_VALUE and text.isprintable()


def _snake(key: str) -> str:
    return re.sub(r"[\s.-]+", "_", _CAMEL.sub("_", key.strip())).lower()


def _camel(text: object) -> str:
    """Return a label such as SmartPhone; "" if the text is no label."""
    if not isinstance(text, str) or len(text) > _MAX_LABEL:
        return ""
    label = "".join(word[0].upper() + word[1:] for word in re.findall("[A-Za-z0-9]+", text))
    return label if label[:1].isalpha() else ""


def _single(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("sses", "xes", "ches", "shes")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith(("ss", "us", "is")) else word


def _label_of_key(key: str) -> str:
    return _camel(_single(_snake(key)))
