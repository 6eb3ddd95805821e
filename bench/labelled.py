"""Messages with the facts that they state, labelled by a person: the format of `python -m bench reading`.

A file holds JSON lines. A line with `entities` opens a conversation; the lines after it are its messages in
order. The page docs/evaluation.md describes every field.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, get_args

from bench.spelling import normal_name, resembles, tokens_of
from kgray.errors import InputError

Part = Literal["development", "kept"]
MessageKind = Literal["message", "text", "json"]
FactStatus = Literal["current", "ended", "event", "denied"]
Ending = Literal["ended", "denied"]
SHIPPED_SET = Path(__file__).parent / "data" / "reading.jsonl"
CONTEXT = 4  # messages before a message, whose names its facts may use
_DATE = re.compile(r"\d{4}(-\d{2}(-\d{2})?)?")


@dataclass(frozen=True, slots=True)
class LabelledEntity:
    """An entity of one conversation.

    names      the names that occur in the conversation
    spellings  further names that a reader may use
    """

    id: str
    type: str
    names: tuple[str, ...]
    spellings: tuple[str, ...] = ()

    @property
    def accepted(self) -> frozenset[str]:
        """Every accepted name, normalised."""
        return frozenset(map(normal_name, (*self.names, *self.spellings)))


@dataclass(frozen=True, slots=True)
class FactEnd:
    """One end of a labelled fact.

    entities  ids of the entities that are accepted here
    names     their normalised names; a reader's name must be equal to an element
    values    accepted spellings of a value; a reader's text must resemble an element
    """

    entities: tuple[str, ...]
    names: frozenset[str]
    values: tuple[str, ...]

    def accepts(self, text: str) -> bool:
        """Return whether a reader's name or value is accepted here."""
        return normal_name(text) in self.names or any(resembles(value, text) for value in self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledFact:
    """A fact that a message states, or (`ending` is set) an earlier fact that it ends.

    cues      words or stems; a reader's relation name or sentence must contain a cue
    statuses  the accepted statuses; empty beside `ending`
    start, end  ISO dates at the precision that the text states ("2018", "2018-03"); None = not stated
    optional  a reader may list the fact or not
    """

    subject: FactEnd
    object: FactEnd
    cues: tuple[str, ...]
    statuses: tuple[FactStatus, ...] = ()
    start: str | None = None
    end: str | None = None
    optional: bool = False
    ending: Ending | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledMessage:
    """One message. text: a record for the kind json. mentions: ids of the entities that it names."""

    id: str
    kind: MessageKind
    at: str
    speaker: str | None
    text: Any
    mentions: tuple[str, ...]
    facts: tuple[LabelledFact, ...]
    ends: tuple[LabelledFact, ...]

    @property
    def rendered(self) -> str:
        """The text as a reader gets it; a record is JSON."""
        return self.text if isinstance(self.text, str) else json.dumps(self.text, ensure_ascii=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Messages of one source, in order; each becomes an episode of one group."""

    id: str
    part: Part
    entities: Mapping[str, LabelledEntity]
    messages: tuple[LabelledMessage, ...]


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
        except (ValueError, TypeError, AttributeError) as error:
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
        "id": row["conversation"],
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
