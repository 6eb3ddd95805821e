"""What a model's reply may look like on the wire, and the step from there to what `kgray.replies` reads.

On the wire every key is there (decoders want that), so a start that is not stated is null and one that
is unknown is the word "unknown"; `kgray.replies` tells the two by a missing key and null.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kgray.replies import ANSWER_SCHEMAS, EXTRACTION_SCHEMA

Schema = dict[str, Any]
UNKNOWN = "unknown"
MAX_ITEMS = 100  # bounds a decoder that repeats itself; an episode with more is a document to split
_STRING_BOUNDS = frozenset({"minLength", "maxLength", "pattern", "format"})
_INT_BOUNDS = frozenset({"minimum", "maximum"})
_ABSENT = frozenset({"", "null", "none", "n/a"})
_VALUE: Schema = {
    "type": "object",
    "required": ["type", "value", "unit"],
    "properties": {
        "type": {"type": "string", "enum": ["text", "number", "date", "boolean"]},
        "value": {"type": "string"},
        "unit": {"type": ["string", "null"]},
    },
}
_REASON: Schema = {"type": "string"}
_ID: Schema = {"type": "integer"}


def decodable(schema: Schema) -> Schema:
    """Return a schema in the form that decoders take: all required, nothing extra, no string bounds.

    A key that the schema does not require may be null. Bounds of strings and numbers go (some decoders
    cannot write an escape in a bounded string, or refuse the keyword) and are checked after parsing;
    bounds of lists stay, and a list without one is given one.
    """
    kept = {k: v for k, v in schema.items() if k not in _STRING_BOUNDS | _INT_BOUNDS | {"description"}}
    if "anyOf" in kept:
        return kept | {"anyOf": [decodable(option) for option in kept["anyOf"]]}
    if "enum" in kept and "type" not in kept:
        kept["type"] = "string"
    if kept.get("type") == "array":
        return {"maxItems": MAX_ITEMS} | kept | {"items": decodable(kept["items"])}
    if kept.get("type") != "object":
        return kept
    required = set(kept.get("required", ()))
    properties = {
        name: decodable(inner) if name in required else _nullable(decodable(inner))
        for name, inner in kept["properties"].items()
    }
    return kept | {"properties": properties, "required": list(properties), "additionalProperties": False}


def _nullable(schema: Schema) -> Schema:
    kinds = schema.get("type")
    if "anyOf" in schema:
        return {"anyOf": [*schema["anyOf"], {"type": "null"}]}
    if isinstance(kinds, list) and "null" in kinds:
        return schema
    if "enum" in schema or kinds in ("object", "array"):
        return {"anyOf": [schema, {"type": "null"}]}
    return schema | {"type": [*([kinds] if isinstance(kinds, str) else kinds or []), "null"]}


# ------------------------------------------------------------------------------------ extraction


def _wire_fact() -> Schema:
    """Return the fact item: indexes alone, for a name repeated is a name that can be mistyped."""
    fact = EXTRACTION_SCHEMA["properties"]["facts"]["items"]
    own = {
        "source": _ID,
        "target": _ID,
        "fact": {"type": "string"},
        "kind": {"type": "string", "enum": fact["properties"]["kind"]["enum"]},
        "value": _VALUE,
    }
    required = ["source", "relation", "fact", "kind"]
    return {"type": "object", "required": required, "properties": {**fact["properties"], **own}}


def _without(schema: Schema, *names: str) -> Schema:
    left = {name: inner for name, inner in schema["properties"].items() if name not in names}
    return schema | {"properties": left}


def _lists(**items: Schema) -> Schema:
    listed = {name: {"type": "array", "items": item} for name, item in items.items()}
    return decodable({"type": "object", "required": list(listed), "properties": listed})


_ENTITY = EXTRACTION_SCHEMA["properties"]["entities"]["items"] | {"required": ["name", "type"]}
_DATED: Schema = {
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": _ID,
        **{key: _wire_fact()["properties"][key] for key in ("valid_at", "invalid_at")},
    },
}
EXTRACTION_TASKS: Mapping[str, Schema] = {
    "combined": _lists(entities=_ENTITY, facts=_wire_fact()),
    "extract_entities": _lists(entities=_ENTITY),
    "reflect": _lists(entities=_ENTITY),
    "extract_facts": _lists(facts=_without(_wire_fact(), "valid_at", "invalid_at")),
    "date_facts": _lists(facts=_DATED),
}


def answers_schema(kinds: Iterable[str]) -> Schema:
    """Return the schema of replies to these kinds of question; one a set, so that servers cache it."""
    items = [_answer(kind) for kind in ANSWER_SCHEMAS if kind in set(kinds)]
    distinct = [item for place, item in enumerate(items) if item not in items[:place]]
    return _lists(answers=distinct[0] if len(distinct) == 1 else {"anyOf": distinct})


def _answer(kind: str) -> Schema:
    schema = ANSWER_SCHEMAS[kind]
    reason = {"reason": _REASON} if kind == "verdict" else {}
    properties = {"id": _ID, **reason, **schema["properties"]}
    return {"type": "object", "required": list(properties), "properties": properties}


# ------------------------------------------------------------------------- from the wire to replies


def plain_entity(item: object) -> object:
    """Return an entity as `kgray.replies` reads it; anything else as it is, for the parser to refuse."""
    return {k: v for k, v in item.items() if v is not None} if isinstance(item, dict) else item


def plain_fact(item: object) -> object:
    """Return a fact as `kgray.replies` reads it: keys that are null are left out, "unknown" becomes null."""
    if not isinstance(item, dict):
        return item
    fact = {key: value for key, value in item.items() if not _is_absent(key, value)}
    value = fact.get("value")
    if isinstance(value, dict) and value.get("value") is None:
        del fact["value"]
    if "target" in fact and "value" in fact and not isinstance(fact["value"], dict):
        del fact["value"]  # a target spelled out once more
    start = fact.get("valid_at")
    if isinstance(start, str) and start.strip().casefold() == UNKNOWN:
        fact["valid_at"] = None
    return _settled_kind(fact)


def _settled_kind(fact: dict[str, Any]) -> dict[str, Any]:
    """Say a span with both ends as "holds", an end with no known start as "ended"."""
    if fact.get("kind") != "ended" or "valid_at" not in fact:
        return fact
    if fact["valid_at"] is None:
        return {key: value for key, value in fact.items() if key != "valid_at"}
    return fact | {"kind": "holds"} if "invalid_at" in fact else fact


def _is_absent(key: str, value: object) -> bool:
    if value is None:
        return True
    if key not in ("valid_at", "invalid_at") or not isinstance(value, str):
        return False
    text = value.strip().casefold()
    return text in _ABSENT or (key == "invalid_at" and text == UNKNOWN)
