"""Replies about communities: their schemas, and what is kept of a reply; `prompts/` has the rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kgray.errors import InvalidAnswer
from kgray.ports import SummaryTask
from kgray.prompting.schemas import Schema
from kgray.records import canonical, clean_text

_NAME, _SUMMARY, _REASON, _FINDINGS = 160, 2000, 400, 7  # characters, characters, characters, items
_TEXT: Schema = {"type": "string"}


def _object(**properties: Schema) -> Schema:
    return {
        "type": "object",
        "required": list(properties),
        "properties": properties,
        "additionalProperties": False,
    }


_FINDING = _object(
    summary=_TEXT,
    explanation=_TEXT,
    facts={"maxItems": 30, "type": "array", "items": {"type": "integer"}},
)
SCHEMAS: Mapping[SummaryTask, Schema] = {
    "community": _object(name=_TEXT, summary=_TEXT),
    "community_part": _object(summary=_TEXT),
    "community_report": _object(
        name=_TEXT,
        summary=_TEXT,
        rating={"type": "integer"},
        reason=_TEXT,
        findings={"maxItems": _FINDINGS, "type": "array", "items": _FINDING},
    ),
}


def parse_summary(reply: Mapping[str, Any], task: SummaryTask, facts: int) -> dict[str, Any]:
    """Return what a reply says, cleaned and cut; facts: how many were shown.

    A finding that cites a fact which was not shown loses that citation; one without a summary goes. Raises
    InvalidAnswer for a text that is missing or empty, and for a rating outside 0 to 10.
    """
    found: dict[str, Any] = {"summary": _text(reply, "summary", _SUMMARY)}
    if task == "community_part":
        return found
    found["name"] = _text(reply, "name", _NAME)
    if task == "community":
        return found
    rating = reply.get("rating")
    if type(rating) is not int or not 0 <= rating <= 10:
        raise InvalidAnswer(f"the rating is {rating!r}: use a whole number, 0 to 10", raw=canonical(reply))
    found |= {"rating": rating, "reason": clean_text(str(reply.get("reason") or ""))[:_REASON]}
    items = reply.get("findings")
    found["findings"] = [
        finding
        for item in (items if isinstance(items, list) else [])[:_FINDINGS]
        if (finding := _finding(item, facts)) is not None
    ]
    return found


def _finding(item: object, facts: int) -> dict[str, Any] | None:
    if not isinstance(item, dict) or not isinstance(item.get("summary"), str):
        return None
    if not (summary := clean_text(item["summary"])[:_REASON]):
        return None
    cited = item.get("facts")
    shown = [at for at in (cited if isinstance(cited, list) else []) if type(at) is int and 0 <= at < facts]
    explained = clean_text(str(item.get("explanation") or ""))[:_SUMMARY]
    return {"summary": summary, "explanation": explained, "facts": list(dict.fromkeys(shown))}


def _text(reply: Mapping[str, Any], name: str, most: int) -> str:
    text = reply.get(name)
    if not isinstance(text, str) or not (cleaned := clean_text(text)):
        raise InvalidAnswer(f"the reply has no {name!r}", raw=canonical(reply))
    return cleaned[:most]
