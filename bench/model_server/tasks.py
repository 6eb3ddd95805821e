"""A chat request to its reply: by the text of the episode and the schema asked for, never by hidden ids.

What a request holds: prompts/*.md and kgray/prompting.py. The task is the schema's name; a server
that is asked in text finds it where the prompt names its reply schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from bench.world.dice import Dice
from bench.world.models import wild_answer
from bench.world.oracle import Oracle
from bench.world.telling import UNKNOWN
from kgray.records import canonical

_SECTION = re.compile(r"^<([A-Z]+)>\n(.*?)\n</\1>$", re.MULTILINE | re.DOTALL)
_NAMED = re.compile(r"Reply schema ([A-Za-z_]+):")
JUDGING = frozenset({"batched", "resolve_entity", "resolve_facts", "contradiction", "relate"})
# By kind of question: the key under which it and its candidates are shown.
_SHOWN = {"entity": "card", "variant": "fact", "verdict": "fact", "relation": "name", "cardinality": "name"}
_ASPECTS = ("same_as", "inverse_of", "excludes")


class UnreadableRequest(ValueError):
    """The request is none that this server can answer; the text says why."""


def reply_to(oracle: Oracle, body: Mapping[str, Any], *, wild: bool = False) -> tuple[str, dict[str, Any]]:
    """Return the task of a chat request and the reply to it. wild: questions are answered at random."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
        raise UnreadableRequest("messages is not a list of objects")
    texts = [str(m.get("content", "")) for m in messages]
    schema = _schema(body)
    task = str(schema.get("name") or "") or _task_in(texts)
    data = sections(texts[-1] if texts else "")
    if task in JUDGING:
        dice = Dice("wild", canonical(messages)) if wild else None
        return task, {"answers": [_answer(oracle, question, dice) for question in _list(data, "QUESTIONS")]}
    if task in _READING:
        return task, _READING[task](oracle, data)
    return task, _instance(schema.get("schema") or {})


def sections(text: str) -> dict[str, Any]:
    """Return the tagged sections of a prompt's data; what is no JSON is left out."""
    found: dict[str, Any] = {}
    for tag, inner in _SECTION.findall(text):
        try:
            found.setdefault(tag, json.loads(inner))
        except ValueError:
            continue
    return found


def _schema(body: Mapping[str, Any]) -> dict[str, Any]:
    form = body.get("response_format")
    found = form.get("json_schema") if isinstance(form, dict) else None
    return found if isinstance(found, dict) else {}


def _task_in(texts: list[str]) -> str:
    for text in texts:
        if match := _NAMED.search(text):
            return match[1]
    return ""


def _list(data: Mapping[str, Any], tag: str) -> list[dict[str, Any]]:
    found = data.get(tag)
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise UnreadableRequest(f"the request has no section {tag} with a list of objects")
    return found


# ------------------------------------------------------------------------------------ reading


def _extraction(oracle: Oracle, data: Mapping[str, Any]) -> dict[str, Any]:
    episode = data.get("EPISODE")
    if not isinstance(episode, dict):
        raise UnreadableRequest("the request has no section EPISODE")
    text = episode.get("text", "")
    return oracle.extraction(text if isinstance(text, str) else canonical(text))


def _combined(oracle: Oracle, data: Mapping[str, Any]) -> dict[str, Any]:
    found = _extraction(oracle, data)
    return {"entities": found["entities"], "facts": [wire_fact(fact) for fact in found["facts"]]}


def _entities(oracle: Oracle, data: Mapping[str, Any]) -> dict[str, Any]:
    return {"entities": _extraction(oracle, data)["entities"]}


def _missing(oracle: Oracle, data: Mapping[str, Any]) -> dict[str, Any]:
    listed = {str(entity.get("name")) for entity in _list(data, "ENTITIES")}
    return {"entities": [e for e in _extraction(oracle, data)["entities"] if e["name"] not in listed]}


def _facts(oracle: Oracle, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts between the entities that the request lists, without dates."""
    found = _extraction(oracle, data)
    ids = {str(entity.get("name")): entity.get("id") for entity in _list(data, "ENTITIES")}
    facts = []
    for fact in found["facts"]:
        ends = {k: ids.get(found["entities"][fact[k]]["name"]) for k in ("source", "target") if k in fact}
        if None not in ends.values():
            whole = wire_fact({**fact, **ends})
            facts.append({key: whole[key] for key in whole if key not in {"valid_at", "invalid_at"}})
    return {"facts": facts}


def _dates(oracle: Oracle, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the dates of the facts that the request lists; a fact that was not told has none."""
    told = {(f["fact"], f["kind"]): wire_fact(f) for f in _extraction(oracle, data)["facts"]}
    dated = []
    for row in _list(data, "FACTS"):
        fact = told.get((row.get("fact"), row.get("kind", "holds")), {})
        dated.append(
            {"id": row.get("id"), "valid_at": fact.get("valid_at"), "invalid_at": fact.get("invalid_at")}
        )
    return {"facts": dated}


def wire_fact(fact: Mapping[str, Any]) -> dict[str, Any]:
    """Return a fact with every key: null = not stated, "unknown" = an unknown start."""
    start = fact.get("valid_at")
    return {
        "source": fact["source"],
        "target": fact.get("target"),
        "relation": fact["relation"],
        "fact": fact["fact"],
        "kind": fact["kind"],
        "valid_at": UNKNOWN if "valid_at" in fact and start is None else start,
        "invalid_at": fact.get("invalid_at"),
        "value": fact.get("value"),
    }


_READING: Mapping[str, Callable[[Oracle, Mapping[str, Any]], dict[str, Any]]] = {
    "combined": _combined,
    "extract_entities": _entities,
    "reflect": _missing,
    "extract_facts": _facts,
    "date_facts": _dates,
}


# ------------------------------------------------------------------------------------ judging


def _answer(oracle: Oracle, question: Mapping[str, Any], dice: Dice | None) -> dict[str, Any]:
    """Return the answer to one question, its candidates named by the ids that the request gives them."""
    kind = str(question.get("kind"))
    if kind not in _SHOWN:
        raise UnreadableRequest(f"no question is of the kind {kind[:40]!r}")
    known = question.get("candidates") or []
    ids = [candidate.get("id") for candidate in known]
    if dice is not None:
        said = wild_answer(dice, kind, len(ids))
    else:
        shown = _SHOWN[kind]
        others = [str(candidate.get(shown)) for candidate in known] or [str(question.get("other"))]
        said = oracle.answer(kind, str(question.get(shown)), others if known or kind == "relation" else [])
    answer: dict[str, Any] = {"id": question.get("id")}
    match kind:
        case "entity" | "variant":
            place = said["duplicate_of"]
            return answer | {"duplicate_of": None if place is None else ids[place]}
        case "verdict":
            return answer | {
                "reason": "one at a time" if said["contradicts"] else "both can hold",
                "contradicts": [ids[place] for place in said["contradicts"]],
            }
        case "relation":
            return answer | {aspect: bool(said.get(aspect)) for aspect in _ASPECTS}
    return answer | said


# ------------------------------------------------------------------------- any other schema


def _instance(schema: Mapping[str, Any]) -> Any:  # noqa: ANN401 - whatever the schema describes
    """Return the smallest value that a schema allows: a server that is made to obey says no more."""
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        return _instance(schema["anyOf"][0])
    kind = schema.get("type", "object")
    match kind[0] if isinstance(kind, list) else kind:
        case "array":
            return [_instance(schema.get("items") or {})] * int(schema.get("minItems", 0))
        case "string":
            return ""
        case "integer" | "number":
            return max(0, schema.get("minimum", 0))
        case "boolean":
            return False
        case "null":
            return None
    return {name: _instance(inner) for name, inner in (schema.get("properties") or {}).items()}
