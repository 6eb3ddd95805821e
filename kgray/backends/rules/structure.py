"""JSON to a graph by its structure: objects are entities, fields are relations to values or entities.

    {"name": "Aero 2", "type": "phone", "price": 499, "currency": "EUR", "maker": {"name": "Aero"}}

gives Aero 2 COSTS 499 EUR and Aero 2 MADE_BY Aero: a field is the ontology's relation that names it, else
HAS_<FIELD>. Everything holds from the reference time, inferred. Ids beside a name, addresses of pages and
times of record keeping ("updated_at") are no facts; texts over 200 characters are dropped, and said so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal

from kgray.backends.rules import values, verbs
from kgray.backends.rules.ledger import MAX_ITEMS, Ledger
from kgray.ontology import Ontology, RelationType
from kgray.records import MAX_RELATION, ExtractedFact, Value, clean_relation, clean_text
from kgray.times import Instant, parse, show

MAX_VALUE = 200  # characters
_MAX_DEPTH = 12
_NAMES = (
    "name",
    "title",
    "label",
    "full_name",
    "display_name",
    "fullname",
    "username",
    "subject",
    "sku",
    "id",
    "key",
)
_IDS = frozenset({"id", "_id", "uuid", "guid", "key", "@id", "sku", "username"})
_TYPES = ("type", "kind", "@type", "category")
_LINKS = frozenset(
    {"url", "uri", "href", "link", "image", "images", "photo", "thumbnail", "avatar", "website", "self"}
)
_CLOCKS = frozenset(
    {
        "timestamp",
        "created",
        "updated",
        "modified",
        "last_modified",
        "created_on",
        "updated_on",
        "last_updated",
        "version",
    }
)
_PERSONS = frozenset(
    {
        "Person",
        "Employee",
        "Customer",
        "User",
        "Author",
        "Member",
        "Contact",
        "Manager",
        "Student",
        "Teacher",
        "Colleague",
    }
)
_UNITS = frozenset(
    {
        "kg",
        "g",
        "lb",
        "cm",
        "mm",
        "m",
        "km",
        "inch",
        "in",
        "ml",
        "l",
        "gb",
        "tb",
        "mb",
        "hours",
        "minutes",
        "days",
        "years",
        "percent",
        "w",
        "v",
        "hz",
    }
)
_AMOUNTS = ("amount", "value", "price")
_DATE = re.compile(r"\d{4}-\d\d(?:-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?)?")
_WORD = re.compile(r"[A-Za-z0-9]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def read(content: object, ledger: Ledger, ontology: Ontology, reference: Instant) -> None:
    """Add what a JSON value says to the ledger; never raises, whatever the value is."""
    _Structure(ledger, ontology, reference).top(content, "", 0)


class _Structure:
    """One walk over one JSON value."""

    def __init__(self, ledger: Ledger, ontology: Ontology, reference: Instant) -> None:
        self.ledger, self.ontology, self.reference = ledger, ontology, reference
        self.fields: dict[str, RelationType] = {}
        for relation in ontology:
            for key in relation.fields:
                self.fields.setdefault(key, relation)

    def top(self, content: object, key: str, depth: int) -> None:
        """Read an object or a list of objects that nothing points at."""
        if isinstance(content, list):
            if depth > _MAX_DEPTH:
                self._drop(key or "the content", "it is nested too deep")
                return
            for item in content:
                self.top(item, key, depth + 1)
        elif isinstance(content, Mapping) and content:
            if self._name(content, _singular(key)) is not None:
                self.entity(content, key, depth)
                return
            wrapped = {k: v for k, v in content.items() if isinstance(v, Mapping | list)}
            if not wrapped or depth > _MAX_DEPTH:
                self._drop(key or "the object", "it has no name, title or id")
            for inner, value in wrapped.items() if depth <= _MAX_DEPTH else ():
                self.top(value, inner, depth + 1)
        elif content not in ({}, None):
            self._drop(key or "the content", "a value alone belongs to no object")

    def entity(self, content: Mapping[str, object], key: str, depth: int) -> int | None:
        """Read an object that is an entity; return its index, None where it cannot be one."""
        label = self._label(content, key)
        name = self._name(content, label)
        if name is None or len(self.ledger.entities) >= MAX_ITEMS or depth > _MAX_DEPTH:
            self._drop(key or "an object", "it has no name, or there are too many")
            return None
        index = self.ledger.entity(name, label)
        self._fields(content, index, name, label, "", depth)
        return index

    def _fields(
        self, content: Mapping[str, object], index: int, name: str, label: str, prefix: str, depth: int
    ) -> None:
        used = self._name_key(content)
        currency = content.get("currency") if isinstance(content.get("currency"), str) else None
        for key, value in content.items():
            snake = _snake(key)
            if value is None or (not prefix and (key == used or snake in _IDS or snake in _TYPES[:3])):
                continue
            if snake in _LINKS or snake in _CLOCKS or snake.endswith(("_at", "_url", "_uri", "_id")):
                continue
            if snake == "currency" and any(_snake(other) in self.fields for other in content):
                continue
            many = isinstance(value, list)
            for item in value if isinstance(value, list) else [value]:
                self._field(item, f"{prefix}{snake}", index, name, label, currency, depth, many=many)

    def _field(  # one place of one walk: a class for it would be read more slowly
        self,
        value: object,
        key: str,
        index: int,
        name: str,
        label: str,
        currency: object,
        depth: int,
        *,
        many: bool,
    ) -> None:
        """Read one value of one field."""
        if isinstance(value, list) or depth >= _MAX_DEPTH:
            self._drop(key, "it is nested too deep")
            return
        relation, unit = self._relation(key, label, many=many)
        if relation is None:
            self._drop(
                key, f"no relation can be named after it (UPPER_SNAKE, at most {MAX_RELATION} characters)"
            )
            return
        declared = self.ontology.get(relation)
        if isinstance(value, Mapping):
            self._nested(value, key, relation, index, name, depth)
            return
        if isinstance(value, str) and declared and declared.object != "value":
            self._points(value, key, relation, declared, index, name)
            return
        money = relation == "COSTS"
        typed = self._value(value, key, unit or (str(currency) if money and currency else None), money=money)
        if typed is not None:
            shown_key = _single(key) if many else key
            self._add(index, relation, self._wording(name, relation, shown_key, typed.shown()), value=typed)

    def _nested(
        self, value: Mapping[str, object], key: str, relation: str, index: int, name: str, depth: int
    ) -> None:
        """Read an object inside an object: an amount, an entity, or a group of fields of the outer one."""
        amount = next((value[k] for k in _AMOUNTS if k in value), None)
        unit = value.get("currency") or value.get("unit")
        if amount is not None and not isinstance(amount, Mapping | list) and len(value) <= 2:  # amount, unit
            typed = self._value(amount, key, str(unit) if unit else None, money=relation == "COSTS")
            if typed is not None:
                self._add(index, relation, self._wording(name, relation, key, typed.shown()), value=typed)
            return
        if self._name(value, _singular(key)) is None:
            self._fields(value, index, name, "", f"{key}_", depth + 1)
            return
        declared = self.ontology.get(relation)
        if declared and declared.object == "value":
            relation = (
                f"HAS_{clean_relation(key)}"[:MAX_RELATION]
                if f"HAS_{clean_relation(key)}" != relation
                else "HAS"
            )
        target = self.entity(value, key, depth + 1)
        if target is not None:
            shown = self.ledger.entities[target].name
            self._add(index, relation, self._wording(name, relation, key, shown), target=target)

    def _points(
        self, value: str, key: str, relation: str, declared: RelationType, index: int, name: str
    ) -> None:
        """Read a text that names another entity."""
        clean = clean_text(value)
        if not clean:
            return
        if not _nameable(clean):
            self._drop(key, f"{clean[:40]!r} is no name")
            return
        if len(self.ledger.entities) >= MAX_ITEMS:
            self._drop(key, "there are too many entities")
            return
        target = self.ledger.entity(clean, "" if declared.object_type == "Thing" else declared.object_type)
        self._add(index, relation, self._wording(name, relation, key, clean), target=target)

    def _value(self, value: object, key: str, unit: str | None, *, money: bool) -> Value | None:
        """Return a scalar as a value; None where it is empty, or is dropped."""
        unit = clean_text(unit).upper()[:16] or None if unit else None
        if isinstance(value, bool):
            return Value("boolean", "true" if value else "false")
        if isinstance(value, int | float | Decimal):
            try:
                return Value("number", values.number(str(value)), unit)
            except ValueError as error:
                self._drop(key, str(error))
                return None
        text = clean_text(str(value))
        if not text:
            return None
        if money and (amount := _amount(text, unit)):
            return amount
        if _DATE.fullmatch(text) and (date := _date(text)):
            return date
        if len(text) > MAX_VALUE:
            self._drop(key, f"a text of {len(text)} characters is no value (at most {MAX_VALUE})")
            return None
        return Value("text", text, unit)

    # ------------------------------------------------------------------------ names of things

    def _name_key(self, content: Mapping[str, object]) -> str | None:
        by_snake = {_snake(key): key for key in reversed(list(content))}
        for wanted in _NAMES:
            key = by_snake.get(wanted)
            if key is not None and _nameable(content[key]):
                return key
        return None

    def _name(self, content: Mapping[str, object], label: str) -> str | None:
        key = self._name_key(content)
        if key is None:
            return None
        name = clean_text(str(content[key]))
        # A bare number names nothing outside its kind: "Order 42".
        return f"{label} {name}".strip() if name.isdigit() else name

    def _label(self, content: Mapping[str, object], key: str) -> str:
        for wanted in _TYPES:
            value = content.get(wanted)
            if isinstance(value, str) and (label := _camel(value)):
                return label
        return _singular(key)

    def _relation(self, key: str, label: str, *, many: bool) -> tuple[str | None, str | None]:
        """Return the relation of a field, and the unit that its name ends in ("price_usd")."""
        stem, _, last = key.rpartition("_")
        unit = None
        if stem and key not in self.fields and (last in _UNITS or last.upper() in values.CODES):
            key, unit = stem, last.upper()
        elif last.upper() in values.CODES and stem:
            unit = last.upper()
        relation = self.fields.get(key)
        person = label in _PERSONS
        if key == "title" and person:
            relation = self.ontology.get("HAS_ROLE")
        if relation and relation.name == "LIVES_IN" and label and not person:
            relation = self.ontology.get("LOCATED_IN")
        if relation and not (relation.subject_type == "Person" and label and not person):
            return relation.name, unit
        if not any(c.isalpha() for c in key):
            return None, None
        single = _single(key) if many else key
        named = single if single.startswith(("is_", "has_", "can_")) else f"has_{single}"
        try:
            return clean_relation(named), unit
        except ValueError:
            return None, None

    def _wording(self, name: str, relation: str, key: str, shown: str) -> str:
        """Return one sentence: "Aero 2 costs 499 EUR", "The colour of Aero 2 is blue"."""
        declared = self.ontology.get(relation)
        if declared and declared.phrases:
            words = [word.partition("|")[0] for word in declared.phrases[0].rpartition(" ")[0].split()]
            return " ".join([name, verbs.third_person(words[0]), *words[1:], shown])
        spoken = key.replace("_", " ").strip()
        if shown in {"true", "false"}:
            return f"{name}: {spoken} is {shown}"
        return f"The {spoken} of {name} is {shown}"

    def _add(
        self, source: int, relation: str, text: str, *, target: int | None = None, value: Value | None = None
    ) -> None:
        self.ledger.fact(
            ExtractedFact(
                source=source,
                relation=relation,
                text=text,
                target=target,
                value=value,
                valid_from=self.reference,
                from_precision="instant",
                inferred=True,
            )
        )

    def _drop(self, key: str, reason: str) -> None:
        if len(self.ledger.dropped) < MAX_ITEMS:
            self.ledger.dropped.append(f"{key[:80]}: {reason}")


def _nameable(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
        return False
    text = clean_text(str(value))
    return any(c.isalnum() for c in text) and len(text) <= MAX_VALUE and text.isprintable()


def _snake(key: str) -> str:
    return re.sub(r"[\s.-]+", "_", _CAMEL.sub("_", key.strip())).lower()


def _camel(text: str) -> str:
    if len(text) > 60:  # a label, not a sentence
        return ""
    label = "".join(word[0].upper() + word[1:] for word in _WORD.findall(text))
    return label if label[:1].isalpha() else ""


def _single(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:  # "ties" stays
        return word[:-3] + "y"
    if word.endswith(("sses", "xes", "ches", "shes")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith(("ss", "us", "is")) else word


def _singular(key: str) -> str:
    return _camel(_single(_snake(key)))


def _amount(text: str, unit: str | None) -> Value | None:
    """Return an amount written as a text: "$9.99", "9.99"."""
    found = values.prices(text, 0, len(text))
    if len(found) == 1 and found[0].end - found[0].start == len(text):
        return found[0].value
    try:
        return Value("number", values.number(text), unit)
    except ValueError:
        return None


def _date(text: str) -> Value | None:
    """Return a date at its own precision; None where there is no such day."""
    try:
        instant, precision = parse(text)
    except ValueError:
        return None
    if precision == "instant":
        return Value("date", str(show(instant)))
    return Value("date", text)
