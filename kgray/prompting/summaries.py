"""Replies about communities and entities: schemas, and what is kept of one; `prompts/` has the rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kgray.errors import InvalidAnswer
from kgray.ports import SummaryTask
from kgray.prompting.schemas import Schema, listed_of, object_of
from kgray.records import canonical, clean_text

_NAME, _SUMMARY, _REASON, _FINDINGS = 160, 2000, 400, 7  # characters, characters, characters, items
_TEXT: Schema = {"type": "string"}
_INDEX: Schema = {"type": "integer"}
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
