"""A list of triples `[{"source", "relation", "target", ...}]` as canonical JSON and as an Extraction.

No model reads triples. The canonical JSON is the text of a `triples` episode, so the content hash (R19) does
not depend on spelling: key order, spaces, epoch seconds or ISO 8601, "works at" or WORKS_AT.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping
from typing import Any

from kgray import records, times
from kgray.errors import InputError
from kgray.times import Instant

MAX_TRIPLES = 10_000  # of one episode: it is one transaction
MAX_NAME = 1_000  # characters of a name
_READ = frozenset({"source", "relation", "target", "value", "text", "valid_at", "invalid_at", "denied"})


def normalise(items: object, reference_time: Instant | None = None) -> str:
    """Return the canonical JSON of a list of triples. Raises InputError, whose field is `triples[i].key`.

    An absent `valid_at` means the reference time, null an unknown start. Unknown keys have no effect.
    """
    if not isinstance(items, list | tuple):
        raise InputError("triples must be a list", field="triples")
    if not items:
        raise InputError("the list of triples is empty", field="triples")
    if len(items) > MAX_TRIPLES:
        raise InputError(f"{len(items)} triples in one episode: at most {MAX_TRIPLES}", field="triples")
    return records.canonical([_item(item, f"triples[{i}]", reference_time) for i, item in enumerate(items)])


def to_extraction(text: str, reference_time: Instant) -> records.Extraction:
    """Return the extraction of a canonical list; an item with an end before its start goes to `dropped`."""
    ordinals: dict[str, int] = {}  # names in order of first appearance
    facts: list[records.ExtractedFact] = []
    dropped: list[str] = []
    for number, item in enumerate(json.loads(text)):
        valid_at, ended = item.get("valid_at"), item.get("invalid_at")
        start, start_precision = times.parse(valid_at) if valid_at is not None else (None, None)
        end, end_precision = times.parse(ended) if ended is not None else (None, None)
        if "valid_at" not in item:
            start = reference_time
        span: dict[str, Any] = {"valid_to": end, "to_precision": end_precision}
        if item.get("denied"):
            span = {"kind": "denied"}
        elif start is None and end is not None:
            span["kind"] = "ended"
        elif start is not None and end is not None and end <= start:
            dropped.append(f"triples[{number}]: the end is not after the reference time, which is its start")
            continue
        else:
            # A stated start equal to the reference time counts as inferred (R3).
            known_start = {"valid_from": start, "from_precision": start_precision}
            span |= known_start | {"inferred": start == reference_time}
        value = records.Value(**item["value"]) if "value" in item else None
        source = ordinals.setdefault(item["source"], len(ordinals))
        target = None if value is not None else ordinals.setdefault(item["target"], len(ordinals))
        object_text, relation = value.shown() if value is not None else item["target"], item["relation"]
        wording = item.get("text") or f"{item['source']} {relation.replace('_', ' ').lower()} {object_text}"
        fact = records.ExtractedFact(
            source=source, relation=relation, text=wording, target=target, value=value, **span
        )
        facts.append(fact)
    entities = tuple(records.ExtractedEntity(name=name) for name in ordinals)
    return records.Extraction(entities=entities, facts=tuple(facts), dropped=tuple(dropped), model="triples")


def check_name(value: object, field: str) -> str:
    """Return a clean name (NFC, single spaces). Raises InputError if it is not a usable name."""
    if not isinstance(value, str):
        raise InputError(f"{field} must be a text", field=field)
    if any(unicodedata.category(c) in {"Cc", "Cs"} for c in value):
        raise InputError(f"{field} contains a control character", field=field)
    name = records.clean_text(value)
    if not name:
        raise InputError(f"{field} is an empty name", field=field)
    if len(name) > MAX_NAME:
        raise InputError(f"{field} has {len(name)} characters: at most {MAX_NAME}", field=field)
    return name


def _item(item: object, place: str, reference_time: Instant | None) -> dict[str, Any]:
    if not isinstance(item, Mapping):
        raise InputError(f"{place} is not an object", field=place)
    row: dict[str, Any] = {key: value for key, value in item.items() if key not in _READ}
    row["source"] = check_name(item.get("source"), f"{place}.source")
    relation = check_name(item.get("relation"), f"{place}.relation")
    try:
        row["relation"] = records.clean_relation(relation)
    except ValueError as error:
        raise InputError(f"{place}.relation: {error}", field=f"{place}.relation") from None
    row |= _object(item, place)
    if row.get("target", "").casefold() == row["source"].casefold():
        raise InputError(f"{place}: source and target are the same name", field=f"{place}.target")
    text = item.get("text")
    if text is not None and (not isinstance(text, str) or "\0" in text):
        raise InputError(f"{place}.text must be a text without U+0000", field=f"{place}.text")
    if text and text.strip():
        row["text"] = text.strip()
    row |= _span(item, place, reference_time)
    denied = item.get("denied", False)
    if denied is not None and not isinstance(denied, bool):
        raise InputError(f"{place}.denied must be true or absent", field=f"{place}.denied")
    if denied:
        row["denied"] = True
    return row


def _object(item: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return {"target": name} or {"value": value}; both spellings of a value are equal."""
    target, value = item.get("target"), item.get("value")
    if target is not None and value is not None:
        raise InputError(f"{place} has both a target and a value", field=f"{place}.value")
    if isinstance(target, str):
        return {"target": check_name(target, f"{place}.target")}
    field, value = (f"{place}.target", target) if value is None else (f"{place}.value", value)
    if value is None:
        raise InputError(f"{place}.target is missing", field=field)
    if isinstance(value, dict) and "value" not in value:
        raise InputError(f'{field} is an object without "value"', field=field)
    try:
        read = records.as_value(value)
    except ValueError as error:
        raise InputError(f"{field}: {str(error)[:200]}", field=field) from None
    if any(unicodedata.category(c) in {"Cc", "Cs"} for c in read.shown()):
        raise InputError(f"{field} contains a control character", field=field)
    return {"value": read.as_dict()}


def _span(item: Mapping[str, Any], place: str, reference_time: Instant | None) -> dict[str, Any]:
    row: dict[str, Any] = {}
    start, end = reference_time, None
    if "valid_at" in item:
        row["valid_at"] = start = None
        if item["valid_at"] is not None:
            start, precision = times.given(item["valid_at"], f"{place}.valid_at")
            row["valid_at"] = times.show_as(start, precision)
    if item.get("invalid_at") is not None:
        end, precision = times.given(item["invalid_at"], f"{place}.invalid_at")
        row["invalid_at"] = times.show_as(end, precision)
    if start is not None and end is not None and end <= start:
        raise InputError(
            f"{place}: the end is not after the start {times.show(start)}", field=f"{place}.invalid_at"
        )
    return row
