"""What every store keeps as JSON: extractions, answers, what operations name; read and written here alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from kgray.records import ExtractedEntity, ExtractedFact, Extraction, Operation, OperationKind, Value

NOTHING_NAMED = "{}"  # the payload of an operation whose names are not kept
_NAMED = [field for field in fields(Operation) if field.name not in {"group", "sequence", "kind"}]


def pack(value: Any) -> str:  # noqa: ANN401 - any JSON value
    """Return compact JSON."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def storable(text: str) -> str:
    """Return a model's output as valid UTF-8: a lone surrogate becomes a question mark."""
    return text.encode(errors="replace").decode()


def operation_payload(operation: Operation) -> str:
    """Return what an operation names, without what is empty."""
    named = {field.name: getattr(operation, field.name) for field in _NAMED}
    return pack({name: value for name, value in named.items() if value not in ((), "", None, False)})


def operation(group: str, sequence: int, kind: OperationKind, payload: str) -> Operation:
    """Read what `operation_payload` wrote."""
    named: Mapping[str, Any] = json.loads(payload)
    values: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in named.items()}
    return Operation(group=group, sequence=sequence, kind=kind, **values)


def extraction_body(extraction: Extraction) -> str:
    """Return the JSON of an extraction, fields by position."""
    return pack(
        {
            "entities": [(e.name, e.type, e.span) for e in extraction.entities],
            "facts": [
                (
                    f.source, f.relation, f.text, f.kind, f.target,
                    f.value and (f.value.type, f.value.value, f.value.unit),
                    f.valid_from, f.valid_to, f.from_precision, f.to_precision, f.inferred,
                )
                for f in extraction.facts
            ],
            "dropped": extraction.dropped,
            "model": extraction.model,
            "prompts": extraction.prompts,
        }
    )  # fmt: skip


def extraction(text: str, *, calls: int, prompt_tokens: int, completion_tokens: int) -> Extraction:
    """Read what `extraction_body` wrote, with what it cost."""
    body = json.loads(text)
    return Extraction(
        entities=tuple(
            ExtractedEntity(name=name, type=type_, span=span and (span[0], span[1]))
            for name, type_, span in body["entities"]
        ),
        facts=tuple(
            ExtractedFact(
                source=source, relation=relation, text=text, kind=kind, target=target,
                value=value and Value(*value), valid_from=valid_from, valid_to=valid_to,
                from_precision=from_precision, to_precision=to_precision, inferred=inferred,
            )
            for source, relation, text, kind, target, value, valid_from, valid_to, from_precision,
            to_precision, inferred in body["facts"]
        ),
        dropped=tuple(body["dropped"]),
        model=body["model"],
        prompts=tuple(body["prompts"]),
        calls=calls,
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
    )  # fmt: skip
