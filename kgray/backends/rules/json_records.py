"""JSON to a graph by its structure: objects are entities, fields are relations to values or entities.

    {"name": "Aero 2", "type": "phone", "price": 499, "currency": "EUR", "maker": {"name": "Aero"}}

gives Aero 2 COSTS 499 EUR and Aero 2 MADE_BY Aero: a field is the ontology's relation that names it, else
HAS_<FIELD>. Everything holds from the reference time, inferred. Ids beside a name, addresses of pages and
times of record keeping ("updated_at") are no facts. Texts over 200 characters are dropped, with a note.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import NamedTuple

from kgray.backends.rules.amounts import CODES, find_prices
from kgray.backends.rules.builder import MAX_ITEMS, ExtractionBuilder
from kgray.backends.rules.verbs import third_person
from kgray.ontology import Ontology, RelationType
from kgray.records import MAX_RELATION, ExtractedFact, Value, clean_number, clean_relation, clean_text
from kgray.times import Instant, parse, show

MAX_VALUE = 200  # characters
_MAX_DEPTH = 12
_MAX_LABEL = 60  # characters; a longer type is a sentence
_NAMES = "name title label full_name display_name fullname username subject sku id key".split()
_IDS = frozenset("id _id uuid guid key @id sku username".split())
_TYPES = ("type", "kind", "@type", "category")
_NO_FACTS = frozenset(
    """url uri href link image images photo thumbnail avatar website self timestamp created updated modified
    last_modified created_on updated_on last_updated version""".split()
)
_PERSONS = frozenset(
    "Person Employee Customer User Author Member Contact Manager Student Teacher Colleague".split()
)
_UNITS = frozenset("kg g lb cm mm m km inch in ml l gb tb mb hours minutes days years percent w v hz".split())
_AMOUNTS = ("amount", "value", "price")
_DATE = re.compile(r"\d{4}-\d\d(?:-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?)?")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class _RecordEntity(NamedTuple):
    """The object whose fields are read. number: its index. currency: of its prices, if a field says so."""

    number: int
    name: str
    label: str
    depth: int
    currency: str | None


class _Field(NamedTuple):
    """One field of an object. key: in lower snake case. unit: of a number, or None. many: it is a list."""

    relation: str
    key: str
    unit: str | None
    many: bool


def read_json(content: object, builder: ExtractionBuilder, ontology: Ontology, reference: Instant) -> None:
    """Add what a JSON value says to the builder; never raises, whatever the value is."""
    _JsonReader(builder, ontology, reference).read(content, "", 0)


class _JsonReader:
    """One walk over one JSON value."""

    def __init__(self, builder: ExtractionBuilder, ontology: Ontology, reference: Instant) -> None:
        self.builder, self.ontology, self.reference = builder, ontology, reference
        self.fields: dict[str, RelationType] = {}
        for relation in ontology:
            for key in relation.fields:
                self.fields.setdefault(key, relation)

    def read(self, content: object, key: str, depth: int) -> None:
        """Read an object or a list of objects that nothing points at."""
        if isinstance(content, list | Mapping) and depth > _MAX_DEPTH:
            self._drop(key or "the content", "it is nested too deep")
        elif isinstance(content, list):
            for item in content:
                self.read(item, key, depth + 1)
        elif isinstance(content, Mapping) and content:
            if _name_of(content, _label_of_key(key)) is not None:
                self._entity(content, key, depth)
                return
            inner = {k: v for k, v in content.items() if isinstance(v, Mapping | list)}
            if not inner:
                self._drop(key or "the object", "it has no name, title or id")
            for inner_key, value in inner.items():
                self.read(value, inner_key, depth + 1)
        elif content not in ({}, None):
            self._drop(key or "the content", "a value alone belongs to no object")

    def _entity(self, content: Mapping[str, object], key: str, depth: int) -> int | None:
        """Read an object that is an entity; return its index, None where it cannot be one."""
        label = next((label for t in _TYPES if (label := _camel(content.get(t)))), "") or _label_of_key(key)
        name = _name_of(content, label)
        if name is None or len(self.builder.entities) >= MAX_ITEMS or depth > _MAX_DEPTH:
            self._drop(key or "an object", "it has no name, or there are too many")
            return None
        index = self.builder.entity(name, label)
        currency = content.get("currency")
        entity = _RecordEntity(index, name, label, depth, currency if isinstance(currency, str) else None)
        self._fields(content, entity, "")
        return index

    def _fields(self, content: Mapping[str, object], entity: _RecordEntity, prefix: str) -> None:
        """Read the fields of an object. prefix: of a nameless object inside an entity, its key and "_"."""
        name_key = _name_key(content)
        priced = any(_snake(key) in self.fields for key in content)
        for key, value in content.items():
            snake = _snake(key)
            names_it = not prefix and (key == name_key or snake in _IDS or snake in _TYPES[:3])
            no_fact = snake in _NO_FACTS or snake.endswith(("_at", "_url", "_uri", "_id"))
            if value is None or names_it or no_fact or (snake == "currency" and priced):
                continue
            many = isinstance(value, list)
            field = self._field_of(prefix + snake, entity.label, many=many)
            for item in value if isinstance(value, list) else [value]:
                if isinstance(item, list) or entity.depth >= _MAX_DEPTH:
                    self._drop(prefix + snake, "it is nested too deep")
                elif field is None:
                    limit = f"(UPPER_SNAKE, at most {MAX_RELATION} characters)"
                    self._drop(prefix + snake, f"no relation can be named after it {limit}")
                else:
                    self._value_of_field(item, entity, field)

    def _value_of_field(self, item: object, entity: _RecordEntity, field: _Field) -> None:
        declared = self.ontology.get(field.relation)
        if isinstance(item, Mapping):
            self._nested(item, entity, field)
        elif not isinstance(item, str) or not declared or declared.object == "value":
            self._scalar(item, entity, field)
        elif name := clean_text(item):  # a text that names another entity
            if not _is_name(name) or len(self.builder.entities) >= MAX_ITEMS:
                self._drop(field.key, f"{name[:40]!r} is no name, or there are too many")
                return
            label = "" if declared.object_type == "Thing" else declared.object_type
            self._add(entity, field, name, target=self.builder.entity(name, label))

    def _nested(self, content: Mapping[str, object], entity: _RecordEntity, field: _Field) -> None:
        """Read an object inside an object: an amount, an entity, or more fields of the outer one."""
        amount = next((content[key] for key in _AMOUNTS if key in content), None)
        unit = content.get("currency") or content.get("unit")
        is_amount = amount is not None and not isinstance(amount, Mapping | list)
        if is_amount and len(content) <= 2:  # an amount and its unit
            self._scalar(amount, entity._replace(currency=None), field._replace(unit=str(unit or "")))
            return
        if _name_of(content, _label_of_key(field.key)) is None:
            self._fields(content, entity._replace(label="", depth=entity.depth + 1), f"{field.key}_")
            return
        declared = self.ontology.get(field.relation)
        if declared and declared.object == "value":
            own = f"HAS_{clean_relation(field.key)}"[:MAX_RELATION]
            field = field._replace(relation=own if own != field.relation else "HAS")
        target = self._entity(content, field.key, entity.depth + 1)
        if target is not None:
            self._add(entity, field, self.builder.entities[target].name, target=target)

    def _scalar(self, item: object, entity: _RecordEntity, field: _Field) -> None:
        is_price = field.relation == "COSTS"
        unit = field.unit or (entity.currency if is_price else None)
        try:
            value = _value(item, clean_text(unit or "").upper()[:16] or None, is_price=is_price)
        except ValueError as error:
            self._drop(field.key, str(error))
            return
        if value is not None:
            self._add(entity, field, value.shown(), value=value)

    def _field_of(self, key: str, label: str, *, many: bool) -> _Field | None:
        """Return the relation of a field, and the unit that its key ends in; None = it has none."""
        full = key
        stem, _, last = key.rpartition("_")
        unit = last.upper() if stem and last.upper() in CODES else None
        if stem and key not in self.fields and (unit or last in _UNITS):
            key, unit = stem, last.upper()
        relation, person = self.fields.get(key), label in _PERSONS
        if key == "title" and person:
            relation = self.ontology.get("HAS_ROLE")
        if relation and relation.name == "LIVES_IN" and label and not person:
            relation = self.ontology.get("LOCATED_IN")
        if relation and not (relation.subject_type == "Person" and label and not person):
            return _Field(relation.name, full, unit, many)
        single = _single(key) if many else key
        try:
            named = clean_relation(single if single.startswith(("is_", "has_", "can_")) else f"has_{single}")
        except ValueError:
            return None
        return _Field(named, full, unit, many) if any(map(str.isalpha, key)) else None

    def _add(
        self,
        entity: _RecordEntity,
        field: _Field,
        shown: str,
        target: int | None = None,
        value: Value | None = None,
    ) -> None:
        """Add a fact with one sentence: "Aero 2 costs 499 EUR", "The colour of Aero 2 is blue"."""
        declared = self.ontology.get(field.relation)
        spoken = (_single(field.key) if field.many else field.key).replace("_", " ").strip()
        if declared and declared.phrases:
            verb, *rest = (word.partition("|")[0] for word in declared.phrases[0].split()[:-1])
            text = " ".join([entity.name, third_person(verb), *rest, shown])
        elif shown in {"true", "false"}:
            text = f"{entity.name}: {spoken} is {shown}"
        else:
            text = f"The {spoken} of {entity.name} is {shown}"
        self.builder.fact(
            ExtractedFact(
                source=entity.number, relation=field.relation, text=text, target=target, value=value,
                valid_from=self.reference, from_precision="instant", inferred=True,
            )
        )  # fmt: skip

    def _drop(self, key: str, reason: str) -> None:
        if len(self.builder.dropped) < MAX_ITEMS:
            self.builder.dropped.append(f"{key[:80]}: {reason}")


def _value(item: object, unit: str | None, *, is_price: bool) -> Value | None:
    """Return a scalar as a value, None where it is empty. Raises ValueError for what is none."""
    if isinstance(item, bool):
        return Value("boolean", str(item).lower())
    if isinstance(item, int | float | Decimal):
        return Value("number", _number(str(item)), unit)
    text = clean_text(str(item))
    if is_price and text:
        found = find_prices(text, 0, len(text))
        if len(found) == 1 and found[0].end - found[0].start == len(text):
            return found[0].value
        try:
            return Value("number", _number(text), unit)
        except ValueError:
            pass  # "on request" is a text
    if _DATE.fullmatch(text) and (date := _date(text)):
        return date
    if len(text) > MAX_VALUE:
        raise ValueError(f"a text of {len(text)} characters is no value (at most {MAX_VALUE})")
    return Value("text", text, unit) if text else None


def _number(text: str) -> str:
    number = clean_number(text)
    if len(number) > _MAX_LABEL or "E" in number:
        raise ValueError(f"{text[:40]!r} is too large or too small for a number")
    return number


def _date(text: str) -> Value | None:
    """Return a date at its own precision; None where there is no such day."""
    try:
        instant, precision = parse(text)
    except ValueError:
        return None
    return Value("date", str(show(instant)) if precision == "instant" else text)


# --------------------------------------------------------------------------------- names and keys


def _name_key(content: Mapping[str, object]) -> str | None:
    by_snake = {_snake(key): key for key in reversed(list(content))}
    keys = (by_snake[wanted] for wanted in _NAMES if wanted in by_snake)
    return next((key for key in keys if _is_name(content[key])), None)


def _name_of(content: Mapping[str, object], label: str) -> str | None:
    """Return the name of an object; a bare number names nothing outside its kind, so "Order 42"."""
    key = _name_key(content)
    if key is None:
        return None
    name = clean_text(str(content[key]))
    return f"{label} {name}".strip() if name.isdigit() else name


def _is_name(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
        return False
    text = clean_text(str(value))
    return any(map(str.isalnum, text)) and len(text) <= MAX_VALUE and text.isprintable()


def _snake(key: str) -> str:
    return re.sub(r"[\s.-]+", "_", _CAMEL.sub("_", key.strip())).lower()


def _camel(text: object) -> str:
    """Return a label such as SmartPhone; "" where the text is none."""
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
