"""Replies to chat requests, from the text of the episode and the requested schema, without hidden ids.

prompts/*.md and kgray/models/prompting/ define a request. The task is the schema's name; a request for text
names its reply schema in the prompt.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from kgray.domain.records import as_value, canonical
from tests.world.dice import Dice
from tests.world.models import wild_answer
from tests.world.oracle import Oracle
from tests.world.telling import UNKNOWN

_SECTION = re.compile(r"^<([A-Z]+)>\n(.*?)\n</\1>$", re.MULTILINE | re.DOTALL)
_NAMED = re.compile(r"Reply schema ([A-Za-z_]+):")
JUDGING = frozenset({"batched", "resolve_entity", "compare"})
_TEXT_KEYS = {"entity": "card", "compare": "fact"}  # by kind of question: of its text and its candidates'


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
    """Return the tagged sections of a prompt's data; sections that are not JSON are skipped."""
    data: dict[str, Any] = {}
    for tag, inner in _SECTION.findall(text):
        try:
            data.setdefault(tag, json.loads(inner))
        except ValueError:
            continue
    return data


def _schema(body: Mapping[str, Any]) -> dict[str, Any]:
    form = body.get("response_format")
    schema = form.get("json_schema") if isinstance(form, dict) else None
    return schema if isinstance(schema, dict) else {}


def _task_in(texts: list[str]) -> str:
    for text in texts:
        if match := _NAMED.search(text):
            return match[1]
    return ""


def _list(data: Mapping[str, Any], tag: str) -> list[dict[str, Any]]:
    items = data.get(tag)
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise UnreadableRequest(f"the request has no section {tag} with a list of objects")
    return items


# ------------------------------------------------------------------------------------ reading


def _extraction(oracle: Oracle, data: Mapping[str, Any]) -> dict[str, Any]:
    episode = data.get("EPISODE")
    if not isinstance(episode, dict):
        raise UnreadableRequest("the request has no section EPISODE")
    text = episode["record"] if "record" in episode else episode.get("text", "")
    return oracle.extraction(text if isinstance(text, str) else canonical(text))


def _combined(oracle: Oracle, data: Mapping[str, Any]) -> dict[str, Any]:
    reply = _extraction(oracle, data)
    return {"entities": reply["entities"], "facts": model_facts(reply)}


def _entities(oracle: Oracle, data: Mapping[str, Any]) -> dict[str, Any]:
    return {"entities": _extraction(oracle, data)["entities"]}


def _missing(oracle: Oracle, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entities and facts that the request does not list."""
    reply = _extraction(oracle, data)
    listed = {str(entity.get("name")) for entity in _list(data, "ENTITIES")}
    sentences = data.get("FACTS")
    listed_facts = set(map(str, sentences)) if isinstance(sentences, list) else set()
    return {
        "entities": [entity for entity in reply["entities"] if entity["name"] not in listed],
        "facts": [fact for fact in model_facts(reply) if fact["fact"] not in listed_facts],
    }


def _facts(oracle: Oracle, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts between the entities that the request lists, without dates."""
    reply = _extraction(oracle, data)
    listed = {str(entity.get("name")) for entity in _list(data, "ENTITIES")}
    facts = []
    for fact, model_fact in zip(reply["facts"], model_facts(reply), strict=True):
        ends = {reply["entities"][fact[end]]["name"] for end in ("source", "target") if end in fact}
        if ends <= listed:
            facts.append({key: model_fact[key] for key in model_fact if key not in {"start", "end"}})
    return {"facts": facts}


def _dates(oracle: Oracle, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the dates of the facts that the request lists; an unknown fact has no dates."""
    facts = {(fact["fact"], fact["status"]): fact for fact in model_facts(_extraction(oracle, data))}
    dated = []
    for row in _list(data, "FACTS"):
        fact = facts.get((row.get("fact"), row.get("status", "current")), {})
        dated.append({"id": row.get("id"), "start": fact.get("start"), "end": fact.get("end")})
    return {"facts": dated}


_STATUSES = {"holds": "current", "ended": "ended", "happened": "event", "denied": "denied"}


def model_facts(reply: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the facts of a reply as a language model writes them: the names of both ends, every field."""
    names = [entity["name"] for entity in reply["entities"]]
    facts = []
    for fact in reply["facts"]:
        start = fact.get("valid_at")
        target = as_value(fact["value"]).shown() if "value" in fact else names[fact["target"]]
        facts.append(
            {
                "subject": names[fact["source"]],
                "relation": fact["relation"],
                "object": target,
                "fact": fact["fact"],
                "status": _STATUSES[fact["kind"]],
                "start": UNKNOWN if "valid_at" in fact and start is None else start,
                "end": fact.get("invalid_at"),
            }
        )
    return facts


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
    if kind not in _TEXT_KEYS:
        raise UnreadableRequest(f"no question is of the kind {kind[:40]!r}")
    text = _TEXT_KEYS[kind]
    candidates = question.get("candidates") or []
    ids = [candidate.get("id") for candidate in candidates]
    if dice is not None:
        reply = wild_answer(dice, kind, len(ids))
    else:
        texts = [str(candidate.get(text)) for candidate in candidates]
        reply = oracle.answer(kind, str(question.get(text)), texts)
    answer: dict[str, Any] = {"id": question.get("id"), "kind": kind}
    if kind == "entity":
        place = reply["duplicate_of"]
        return answer | {"duplicate_of": None if place is None else ids[place]}
    named = {
        word: [id_ for id_, answer_word in zip(ids, reply["answers"], strict=True) if answer_word == word]
        for word in ("same", "contradicts", "ends")
    }
    reason = next((f"one of them {word}" for word in named if named[word]), "all are independent")
    return answer | {"reason": reason} | named | {"same": next(iter(named["same"]), None)}


# ------------------------------------------------------------------------- any other schema


def _instance(schema: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any JSON value
    """Return the smallest value that a schema allows."""
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
