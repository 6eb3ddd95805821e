"""Conversations with questions whose evidence or answers are known, read from files that a user brings.

LoCoMo, LongMemEval, DMR (MSC-Self-Instruct), and JSON lines of kgray's form.

A file's form is told by its first row. What cannot be measured is left out and counted in the notes.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from kgray.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message. at: ISO 8601; session: the part of the conversation that it belongs to."""

    id: str
    text: str
    speaker: str | None = None
    at: str | None = None
    session: str = ""
    source: str = "default"

    def row(self) -> dict[str, Any]:
        """Return the row that `Memory.add_many` takes."""
        names = ("id", "text", "speaker", "at", "source")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question.

    type        of the data set's own naming
    evidence    ids of the messages that answer it; () = nothing does, or it is not known
    answer      the right answer, "" = not given
    at          when it is asked, ISO 8601; None = now
    after       id of the message after which memory is asked as it was known then; "" = as it is known now
    fact        the object of the fact that holds at that moment; outdated: those of facts that do not
    apart       no part of overall figures: it asks for what is not there, or of the wrong person
    """

    id: str
    text: str
    type: str
    evidence: tuple[str, ...] = ()
    answer: str = ""
    at: str | None = None
    after: str = ""
    fact: str = ""
    outdated: tuple[str, ...] = ()
    apart: bool = False


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """One conversation, a group of its own."""

    name: str
    messages: tuple[Message, ...]
    questions: tuple[Question, ...]

    @cached_property
    def texts(self) -> dict[str, str]:
        """Message id -> its text."""
        return {message.id: message.text for message in self.messages}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """What a file holds; notes: what of it could not be used, one line each."""

    conversations: tuple[Conversation, ...]
    notes: tuple[str, ...] = ()


_Row = Mapping[str, Any]
_Parts = Iterator[tuple[str, Message | Question]]  # with the name of their conversation
_LOCOMO = {1: "1 multi-hop", 2: "2 temporal", 3: "3 open-domain", 4: "4 single-hop", 5: "5 adversarial"}
_APART = frozenset({"adversarial", "none", "abstention", _LOCOMO[5]})
_DMR_ASKED = datetime(2024, 1, 1, tzinfo=UTC)  # it gives no dates, only the time between sessions
_UNITS = {"minute": 1 / 1440, "hour": 1 / 24, "week": 7.0}  # days; any other unit is a day


def read_dataset(path: Path, *, most: int | None = None) -> Dataset:
    """Return the first `most` conversations of a file (None: all). Raises InputError that names the row."""
    messages: dict[str, list[Message]] = defaultdict(list)
    questions: dict[str, list[Question]] = defaultdict(list)
    for name, part in _parts(path):
        if isinstance(part, Message):
            messages[name].append(part)
        else:
            questions[name].append(part)
    if silent := sorted(questions.keys() - messages.keys()):
        raise InputError(f"{path}: the conversation {silent[0]} has questions and no message")
    notes: Counter[str] = Counter()
    found = []
    for name, told in islice(messages.items(), most):
        known = {message.id for message in told}
        if len(known) < len(told):
            raise InputError(f"{path}: two messages of the conversation {name} have one id")
        asked = tuple(_usable(questions[name], known, notes))
        found.append(Conversation(name=name, messages=tuple(told), questions=asked))
    if not any(talk.questions for talk in found):
        raise InputError(f"{path} holds no question with evidence or an answer")
    lines = tuple(f"{count} {what}" for what, count in notes.items())
    return Dataset(conversations=tuple(found), notes=lines)


def _usable(asked: list[Question], known: set[str], notes: Counter[str]) -> Iterator[Question]:
    for question in asked:
        if missing := set(question.evidence) - known:
            notes["ids of evidence name no message"] += len(missing)
        evidence = tuple(dict.fromkeys(name for name in question.evidence if name in known))
        if evidence or question.apart or question.answer or question.fact:
            yield replace(question, evidence=evidence)
        else:
            notes["questions have neither evidence nor an answer"] += 1


def _parts(path: Path) -> _Parts:
    """Yield the messages and questions of a file. Raises InputError."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        as_array = text.lstrip().startswith("[")
        lines = [text] if as_array else text.split("\n")
        rows = [json.loads(line.strip() or "null") for line in lines]
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"{path} is no JSON in UTF-8: {error}") from None
    read: _Reader | None = None
    for number, row in enumerate(rows[0] if as_array else rows, 1):
        if row is None:
            continue
        try:
            read = read or _reader(row)
            yield from read(row, path.stem if read is _own else f"{path.stem}-{number}")
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            where = f"{'item' if as_array else 'line'} {number}"
            raise InputError(f"{path}, {where} is not as its data set has it: {why}") from None


_Reader = Callable[[_Row, str], _Parts]


def _reader(row: _Row) -> _Reader:
    for fields, read in (
        ({"conversation", "qa"}, _locomo),
        ({"haystack_sessions"}, _longmemeval),
        ({"self_instruct"}, _dmr),
        ({"question"}, _own),
        ({"text"}, _own),
    ):
        if fields <= row.keys():
            return read
    raise ValueError(
        "a row of LoCoMo has conversation and qa, of LongMemEval haystack_sessions, of DMR self_instruct, of "
        "kgray's form text or question"
    )


# -------------------------------------------------------------------------------------------- the forms


def _own(row: _Row, stem: str) -> _Parts:
    """Read a message as `kgray add` takes it, or a question; "group" tells conversations apart."""
    name = str(row.get("group") or stem)
    if "question" not in row:
        names = ("speaker", "at", "session", "source")
        more = {key: str(row[key]) for key in names if row.get(key)}
        yield name, Message(id=str(row["id"]), text=_text(row, "text"), **more)
        return
    asked, kind = _text(row, "question"), str(row.get("type") or "any")
    given: dict[str, Any] = {key: str(row.get(key) or "") for key in ("answer", "after", "fact")}
    given |= {key: tuple(map(str, row.get(key) or ())) for key in ("evidence", "outdated")}
    given |= {"id": str(row.get("id") or asked), "at": row.get("at"), "apart": kind in _APART}
    yield name, Question(text=asked, type=kind, **given)


def _locomo(row: _Row, name: str) -> _Parts:
    """Read LoCoMo; types keep their number, because harnesses have swapped the names."""
    name, talk = str(row.get("sample_id") or name), row["conversation"]
    for number in sorted(int(key[8:]) for key in talk if re.fullmatch(r"session_\d+", key)):
        at = _moment(talk[f"session_{number}_date_time"], "%I:%M %p on %d %B, %Y")
        for turn in talk[f"session_{number}"]:
            text, picture = _text(turn, "text"), turn.get("blip_caption")
            text += f" [picture: {picture}]" if picture else ""
            spoken = {"speaker": turn["speaker"], "at": at, "session": str(number)}
            yield name, Message(id=turn["dia_id"], text=text, **spoken)
    for place, asked in enumerate(row["qa"], 1):
        kind = _LOCOMO.get(asked["category"], str(asked["category"]))
        yield (
            name,
            Question(
                id=f"{name}-q{place}",
                text=_text(asked, "question"),
                type=kind,
                evidence=_turn_ids(asked.get("evidence") or ()),
                answer="" if kind in _APART else str(asked.get("answer", "")),
                apart=kind in _APART,
            ),
        )


def _turn_ids(given: Any) -> tuple[str, ...]:  # noqa: ANN401 - texts, of which some pack several ids
    """Return turns' ids; some texts hold several ("D8:6; D9:17"), some differ ("D30:05")."""
    found = re.findall(r"D:?(\d+):(\d+)", " ".join(map(str, given)))
    return tuple(f"D{int(session)}:{int(turn)}" for session, turn in found)


def _longmemeval(row: _Row, name: str) -> _Parts:
    """Read LongMemEval: a question has sessions of its own, here in the order of their dates."""
    name, form, evidence = str(row["question_id"]), "%Y/%m/%d %H:%M", []
    dates = [_moment(re.sub(r" *\(\w+\)", "", date), form) for date in row["haystack_dates"]]
    if not len(dates) == len(row["haystack_session_ids"]) == len(row["haystack_sessions"]):
        raise ValueError("haystack_dates, haystack_session_ids and haystack_sessions differ in length")
    sessions = zip(dates, row["haystack_session_ids"], row["haystack_sessions"], strict=True)
    for place, (at, session, turns) in enumerate(sorted(sessions, key=lambda one: one[0])):
        for number, turn in enumerate(turns, 1):
            text, message = _text(turn, "content"), f"{place}:{session}:{number}"
            if text.strip():
                spoken = {"speaker": turn["role"], "at": at, "session": str(session)}
                yield name, Message(id=message, text=text, **spoken)
                evidence += [message] if turn.get("has_answer") else []
    absent = name.endswith("_abs")
    yield (
        name,
        Question(
            id=name,
            text=_text(row, "question"),
            type="abstention" if absent else row["question_type"],
            evidence=() if absent else tuple(evidence),
            answer=str(row["answer"]),
            at=_moment(re.sub(r" *\(\w+\)", "", row["question_date"]), form),
            apart=absent,
        ),
    )


def _dmr(row: _Row, name: str) -> _Parts:
    """Read DMR: earlier sessions, the one of now, and a question with an answer and no evidence."""
    at, sessions = _DMR_ASKED, [(_DMR_ASKED, row["dialog"])]
    for earlier in reversed(row["previous_dialogs"]):
        unit = str(earlier.get("time_unit") or "day").removesuffix("s")
        at -= timedelta(days=float(earlier.get("time_num") or 1) * _UNITS.get(unit, 1.0))
        sessions.insert(0, (at, earlier["dialog"]))
    for number, (moment, turns) in enumerate(sessions, 1):
        for place, turn in enumerate(turns, 1):
            spoken = {"speaker": f"Speaker {2 - place % 2}", "at": moment.isoformat(), "session": str(number)}
            yield name, Message(id=f"{number}:{place}", text=_text(turn, "text"), **spoken)
    asked, now = row["self_instruct"], _DMR_ASKED.isoformat()
    kind = "fact recall"
    yield name, Question(id=name, text=_text(asked, "B"), type=kind, answer=_text(asked, "A"), at=now)


def _text(row: _Row, field: str) -> str:
    if not isinstance(row[field], str):
        raise TypeError(f"{field} is no text")
    return str(row[field])


def _moment(text: str, form: str) -> str:
    """Return a data set's date as ISO 8601; it names no zone, so it is read as UTC."""
    return datetime.strptime(text.strip(), form).replace(tzinfo=UTC).isoformat()
