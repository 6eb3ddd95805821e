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

from kgray.errors import InvalidAnswer
from kgray.ports import SummaryTask
from kgray.records import canonical, clean_text

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


# ---------------------------------------------------------------- communities and entities

_NAME, _SUMMARY, _REASON, _FINDINGS = 160, 2000, 400, 7  # characters, characters, characters, items
_FINDING = object_of(summary=_TEXT, explanation=_TEXT, facts=listed_of(_INDEX))
SCHEMAS: Mapping[SummaryTask, Schema] = {
    "profile": object_of(summary=_TEXT),
    "community": object_of(name=_TEXT, summary=_TEXT),
    "community_report": object_of(
        name=_TEXT, summary=_TEXT, rating=_INDEX, reason=_TEXT, findings=listed_of(_FINDING)
    ),
}


def parse_summary(reply: Mapping[str, Any], task: SummaryTask, facts: int) -> dict[str, Any]:
    """Return what a reply says, cleaned and cut; facts: how many were shown.

    A finding that cites a fact which was not shown loses that citation; one without a summary goes. Raises
    InvalidAnswer for a text that is missing or empty, and for a rating outside 0 to 10.
    """
    lengths = {"summary": _SUMMARY} if task == "profile" else {"name": _NAME, "summary": _SUMMARY}
    found: dict[str, Any] = {name: _text(reply, name, most) for name, most in lengths.items()}
    for name, text in found.items():
        if not text:
            raise InvalidAnswer(f"the reply has no {name!r}", raw=canonical(reply))
    if task != "community_report":
        return found
    rating, items = reply.get("rating"), reply.get("findings")
    if type(rating) is not int or not 0 <= rating <= 10:
        raise InvalidAnswer(f"the rating is {rating!r}: use a whole number, 0 to 10", raw=canonical(reply))
    listed = [item for item in (items if isinstance(items, list) else []) if isinstance(item, dict)]
    findings = [
        {
            "summary": _text(item, "summary", _REASON),
            "explanation": _text(item, "explanation", _SUMMARY),
            "facts": _cited(item.get("facts"), facts),
        }
        for item in listed[:_FINDINGS]
    ]
    reason = _text(reply, "reason", _REASON)
    return found | {"rating": rating, "reason": reason, "findings": [f for f in findings if f["summary"]]}


def _cited(cited: object, facts: int) -> list[int]:
    shown = (at for at in (cited if isinstance(cited, list) else []) if type(at) is int and 0 <= at < facts)
    return list(dict.fromkeys(shown))


def _text(reply: Mapping[str, Any], name: str, most: int) -> str:
    text = reply.get(name)
    return clean_text(text)[:most] if isinstance(text, str) else ""
