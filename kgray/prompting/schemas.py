"""JSON schemas of models' replies, and the conversion from that form to the one that `replies` reads.

The schemas are in the form that constrained decoders and OpenAI's strict mode accept: all properties are
required, none additional, no $ref, no bounds: some decoders cannot write an escape in a bounded string, some
unroll a bounded list and take minutes over it. They are part of a cached reply's key, so their bytes must not
change (R21).

Because every key is required, a start that is not stated is null in a reply, and an unknown one is the word
"unknown"; `replies` expects a missing key and null for these two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Schema = dict[str, Any]
UNKNOWN = "unknown"
_ABSENT = frozenset({"", "null", "none", "n/a"})


def object_of(**properties: Schema) -> Schema:
    """Return the schema of an object with exactly these properties."""
    return {
        "type": "object",
        "required": list(properties),
        "properties": properties,
        "additionalProperties": False,
    }


def listed_of(items: Schema) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": items}


def _one_of(*choices: str) -> Schema:
    return {"type": "string", "enum": list(choices)}


_TEXT: Schema = {"type": "string"}
_INDEX: Schema = {"type": "integer"}
_FLAG: Schema = {"type": "boolean"}
_TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
_INDEX_OR_NULL: Schema = {"type": ["integer", "null"]}
_VALUE = object_of(type=_one_of("text", "number", "date", "boolean"), value=_TEXT, unit=_TEXT_OR_NULL)
_DATES = {"valid_at": _TEXT_OR_NULL, "invalid_at": _TEXT_OR_NULL}
_ENTITY = object_of(name=_TEXT, type=_TEXT)
# A fact's ends are indexes only: a model may misspell a name that it writes again.
_FACT = {
    "source": _INDEX,
    "target": _INDEX_OR_NULL,
    "relation": _TEXT,
    "fact": _TEXT,
    "kind": _one_of("holds", "ended", "denied", "happened"),
}
_OBJECT = {"value": {"anyOf": [_VALUE, {"type": "null"}]}}
EXTRACTION_TASKS: Mapping[str, Schema] = {
    "combined": object_of(
        entities=listed_of(_ENTITY), facts=listed_of(object_of(**_FACT, **_DATES, **_OBJECT))
    ),
    "extract_entities": object_of(entities=listed_of(_ENTITY)),
    "reflect": object_of(entities=listed_of(_ENTITY)),
    "extract_facts": object_of(facts=listed_of(object_of(**_FACT, **_OBJECT))),
    "date_facts": object_of(facts=listed_of(object_of(id=_INDEX, **_DATES))),
}
_DUPLICATE = object_of(id=_INDEX, duplicate_of=_INDEX_OR_NULL)
_ANSWERS: Mapping[str, Schema] = {
    "entity": _DUPLICATE,
    "variant": _DUPLICATE,
    "relation": object_of(id=_INDEX, same_as=_FLAG, inverse_of=_FLAG, excludes=_FLAG),
    "cardinality": object_of(
        id=_INDEX, cardinality={"enum": ["single", "single_object", "many", "depends"], "type": "string"}
    ),
    "verdict": object_of(id=_INDEX, reason=_TEXT, contradicts=listed_of(_INDEX)),
}


def answers_schema(kinds: Iterable[str]) -> Schema:
    """Return the schema of replies to these kinds of question; one a set, so that servers cache it."""
    asked = set(kinds)
    items = [schema for kind, schema in _ANSWERS.items() if kind in asked]
    distinct = [item for place, item in enumerate(items) if item not in items[:place]]
    return object_of(answers=listed_of(distinct[0] if len(distinct) == 1 else {"anyOf": distinct}))


# ------------------------------------------------------------------------- from the wire to replies


def plain_entity(item: object) -> object:
    """Return an entity as `replies` reads it; anything else as it is, for the parser to refuse."""
    return {k: v for k, v in item.items() if v is not None} if isinstance(item, dict) else item


def plain_fact(item: object) -> object:
    """Return a fact as `replies` reads it: keys that are null are left out, "unknown" becomes null."""
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
    if fact.get("kind") == "ended" and "valid_at" in fact:
        if fact["valid_at"] is None:
            del fact["valid_at"]  # an end with no known start
        elif "invalid_at" in fact:
            fact["kind"] = "holds"  # a span with both ends
    if fact.get("kind") == "happened":  # an event has one date, whichever key it was written to
        end = fact.pop("invalid_at", None)
        if fact.get("valid_at") is None and end is not None:
            fact["valid_at"] = end
    return fact


def _is_absent(key: str, value: object) -> bool:
    if value is None:
        return True
    if key not in _DATES or not isinstance(value, str):
        return False
    text = value.strip().casefold()
    return text in _ABSENT or (key == "invalid_at" and text == UNKNOWN)
