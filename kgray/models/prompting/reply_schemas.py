"""JSON schemas of the replies that language models give.

They are in the form that constrained decoders and OpenAI's strict mode accept: every property is required,
no other is allowed, no $ref, no bounds. Some decoders cannot write an escape in a bounded string, others
unroll a bounded list and take minutes over it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Schema = dict[str, Any]
OTHER_TYPE = "Other"  # of things that are none of the others: it says nothing about identity
ENTITY_TYPES = ("Person", "Organization", "Place", "Product", "Event", OTHER_TYPE)
STATUSES = ("current", "ended", "event", "denied")


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


def choice_of(names: Sequence[str]) -> Schema:
    """Return the schema of a text that has to be among these names."""
    return {"type": "string", "enum": list(names)}


TEXT: Schema = {"type": "string"}
INDEX: Schema = {"type": "integer"}
_TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
_INDEX_OR_NULL: Schema = {"type": ["integer", "null"]}
_DATES = {"start": _TEXT_OR_NULL, "end": _TEXT_OR_NULL}
_FACT = {"subject": TEXT, "relation": TEXT, "object": TEXT, "fact": TEXT, "status": choice_of(STATUSES)}


def extraction_schemas(types: Sequence[str] = ENTITY_TYPES) -> Mapping[str, Schema]:
    """Return the schema of each extraction task. types: the names that an entity's type may have."""
    entities = listed_of(object_of(name=TEXT, type=choice_of(types)))
    combined = object_of(entities=entities, facts=listed_of(object_of(**_FACT, **_DATES)))
    return {
        "combined": combined,
        "reflect": combined,
        "extract_entities": object_of(entities=entities),
        "extract_facts": object_of(facts=listed_of(object_of(**_FACT))),
        "date_facts": object_of(facts=listed_of(object_of(id=INDEX, **_DATES))),
    }


_ANSWERS: Mapping[str, Mapping[str, Schema]] = {
    "entity": {"duplicate_of": _INDEX_OR_NULL},
    # The reason comes first: a small model decides while it writes it. A candidate in none is independent.
    "compare": {
        "reason": TEXT,
        "same": _INDEX_OR_NULL,
        "contradicts": listed_of(INDEX),
        "ends": listed_of(INDEX),
    },
}


def answers_schema(kinds: Iterable[str]) -> Schema:
    """Return the schema of replies to these kinds of question.

    Equal sets of kinds have equal schemas, which servers cache. An answer names its kind before its content:
    small models copy it from the question, and then the decoder allows no content of another kind.
    """
    requested = set(kinds)
    items = [
        object_of(id=INDEX, kind=choice_of([kind]), **content)
        for kind, content in _ANSWERS.items()
        if kind in requested
    ]
    return object_of(answers=listed_of(items[0] if len(items) == 1 else {"anyOf": items}))


def reply_fields(schema: Schema) -> list[str]:
    """Return the names of all fields that a reply with this schema has, each once, in order."""
    names: dict[str, None] = {}
    for name, inner in schema.get("properties", {}).items():
        names[name] = None
        names |= dict.fromkeys(reply_fields(inner))
    names |= dict.fromkeys(name for inner in schema.get("anyOf", ()) for name in reply_fields(inner))
    if "items" in schema:
        names |= dict.fromkeys(reply_fields(schema["items"]))
    return list(names)
