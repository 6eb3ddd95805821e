"""Labelled sets as files.

A file holds JSON lines. A line with `entities` opens a conversation; the lines after it are its messages in
order. The page docs/evaluation.md describes every field.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, get_args

from bench.labelled_set.labels import (
    Conversation,
    Ending,
    FactEnd,
    FactStatus,
    LabelledEntity,
    LabelledFact,
    LabelledMessage,
    MessageKind,
    Part,
)
from bench.labelled_set.spelling import tokens_of
from kgray.domain.records import check_group
from kgray.errors import InputError

SHIPPED_SET = Path(__file__).parents[1] / "data" / "reading.jsonl"
_DATE = re.compile(r"\d{4}(-\d{2}(-\d{2})?)?")


def load_set(path: Path, part: str = "all", limit: int | None = None) -> list[Conversation]:
    """Return the conversations of one part ("all": of both), cut after `limit` messages in all.

    Raises InputError with the line and the field where the file breaks the format.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    conversations = [item for item in _conversations(path, lines) if part in ("all", item.part)]
    chosen: list[Conversation] = []
    budget = sum(len(item.messages) for item in conversations) if limit is None else limit
    for conversation in conversations:
        if messages := conversation.messages[:budget]:
            budget -= len(messages)
            chosen.append(replace(conversation, messages=messages))
    if not chosen:
        raise InputError(f"{path} holds no message of the part {part!r}")
    return chosen


def _conversations(path: Path, lines: Iterable[str]) -> Iterator[Conversation]:
    """Yield the conversations of a file's lines. Raises InputError."""
    header: dict[str, Any] | None = None
    messages: list[LabelledMessage] = []
    ids: set[str] = set()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if "entities" in row:
                if header is not None:
                    yield Conversation(**header, messages=tuple(messages))
                header, messages = _header(row), []
                name = header["id"]
            elif header is None:
                raise ValueError("a line with `entities` must come before the first message")
            else:
                messages.append(_message(row, header["entities"]))
                name = messages[-1].id
            if name in ids:
                raise ValueError(f"the id {name!r} is taken")
            ids.add(name)
        except KeyError as error:
            raise InputError(f"{path}, line {number}: the field {error} is missing") from None
        except (ValueError, TypeError, AttributeError, InputError) as error:
            raise InputError(f"{path}, line {number}: {error}") from None
    if header is not None:
        yield Conversation(**header, messages=tuple(messages))


def _header(row: Mapping[str, Any]) -> dict[str, Any]:
    entities = {
        id_: LabelledEntity(id_, entity["type"], tuple(entity["names"]), tuple(entity.get("spellings", ())))
        for id_, entity in row["entities"].items()
    }
    if nameless := [id_ for id_, entity in entities.items() if not entity.names]:
        raise ValueError(f"the entity {nameless[0]!r} has no name")
    return {
        "id": check_group(row["conversation"]),
        "part": _choice(row["part"], Part, "part"),
        "entities": entities,
    }


def _message(row: Mapping[str, Any], entities: Mapping[str, LabelledEntity]) -> LabelledMessage:
    datetime.fromisoformat(row["at"])
    for id_ in row.get("mentions", ()):
        _entity(id_, entities)
    kind, text = _choice(row["kind"], MessageKind, "kind"), row["text"]
    if kind == "json" and isinstance(text, str):
        text = json.loads(text)
    elif kind != "json" and not isinstance(text, str):
        raise ValueError(f"the text of the kind {kind} is not a string")
    return LabelledMessage(
        id=row["id"],
        kind=kind,
        at=row["at"],
        speaker=row.get("speaker"),
        text=text,
        mentions=tuple(row.get("mentions", ())),
        facts=tuple(_fact(fact, entities, ends=False) for fact in row.get("facts", ())),
        ends=tuple(_fact(fact, entities, ends=True) for fact in row.get("ends", ())),
    )


def _fact(row: Mapping[str, Any], entities: Mapping[str, LabelledEntity], *, ends: bool) -> LabelledFact:
    for name in ("start", "end"):
        if (date := row.get(name)) is not None:
            if not _DATE.fullmatch(date):
                raise ValueError(f"{name} {date!r} is not a date such as 2018, 2018-03 or 2018-03-01")
            datetime.fromisoformat(f"{date}-01-01"[:10])
    if not row["cues"] or not all(map(tokens_of, row["cues"])):
        raise ValueError("a fact needs at least one cue, and each cue a word")
    statuses = () if ends else tuple(_choice(status, FactStatus, "status") for status in row["status"])
    if not (statuses or ends):
        raise ValueError("a fact needs at least one status")
    return LabelledFact(
        subject=_end(row["subject"], entities),
        object=_end(row["object"], entities),
        cues=tuple(row["cues"]),
        statuses=statuses,
        start=row.get("start"),
        end=row.get("end"),
        optional=bool(row.get("optional", False)),
        ending=_choice(row["ending"], Ending, "ending") if ends else None,
    )


def _end(listed: Sequence[str], entities: Mapping[str, LabelledEntity]) -> FactEnd:
    if not listed or isinstance(listed, str):
        raise ValueError("subject and object are lists of at least one @entity or value")
    ids = tuple(name[1:] for name in listed if name.startswith("@"))
    names = [_entity(id_, entities).accepted for id_ in ids]
    values = tuple(name for name in listed if not name.startswith("@"))
    if unnamed := [value for value in values if not tokens_of(value)]:
        raise ValueError(f"the value {unnamed[0]!r} has no word and no number")
    return FactEnd(ids, frozenset().union(*names), values)


def _entity(id_: str, entities: Mapping[str, LabelledEntity]) -> LabelledEntity:
    if id_ not in entities:
        raise ValueError(f"{id_!r} is not an entity of the conversation")
    return entities[id_]


def _choice(value: Any, kind: Any, field: str) -> Any:  # noqa: ANN401 - a literal of `kind`
    if value not in get_args(kind):
        raise ValueError(f"{field} {value!r} is none of {', '.join(get_args(kind))}")
    return value
