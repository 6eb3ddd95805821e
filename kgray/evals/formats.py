"""Data sets that a user brings: LoCoMo, LongMemEval, DMR (MSC-Self-Instruct), and JSON lines of kgray's form.

A file's form is told by its first row. Each conversation becomes a group of its own. Questions that cannot be
measured are left out, and the notes say how many.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

from kgray.errors import InputError
from kgray.evals.dataset import Conversation, Dataset, Message, Question

_KNOWN = (
    "a JSON array of LoCoMo (conversation, qa) or LongMemEval (haystack_sessions), or JSON lines of DMR "
    '(previous_dialogs, self_instruct) or of {"id", "text", ...} and {"question", "evidence", ...}'
)
_LOCOMO_TYPES = {
    1: "1 multi-hop",
    2: "2 temporal",
    3: "3 open-domain",
    4: "4 single-hop",
    5: "5 adversarial",
}
_APART = frozenset({"adversarial", "none", "abstention", _LOCOMO_TYPES[5]})
_DMR_ASKED = datetime(2024, 1, 1, tzinfo=UTC)  # it gives no dates, only the time between sessions
_UNITS = {"hour": timedelta(hours=1), "day": timedelta(days=1), "week": timedelta(days=7)}


def read_dataset(path: Path, *, most: int | None = None) -> Dataset:
    """Return the first `most` conversations of a file (None: all). Raises InputError that names the row."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8") from None
    rows = list(_rows(path, text))
    if not rows:
        raise InputError(f"{path} is empty: it should be {_KNOWN}")
    notes: Counter[str] = Counter()
    read = _reader(path, rows[0])
    found = [
        replace(talk, questions=tuple(_usable(talk, notes))) for talk in islice(read(rows, path.stem), most)
    ]
    if not any(talk.questions for talk in found):
        raise InputError(f"{path} holds no question that can be asked")
    told = tuple(f"{count} {what}" for what, count in notes.items())
    return Dataset(conversations=tuple(found), notes=told)


class _Row(dict[str, Any]):
    """A JSON object that says where it stands when a field is missing or of another type."""

    where = ""

    def need(self, name: str, kind: type | tuple[type, ...]) -> Any:  # noqa: ANN401 - as its `kind`
        """Return a field."""
        value = self.get(name)
        if not isinstance(value, kind) or isinstance(value, bool):
            got = "is missing" if name not in self else f"is {json.dumps(value, ensure_ascii=False)[:40]}"
            wanted = " or ".join(each.__name__ for each in (kind if isinstance(kind, tuple) else (kind,)))
            raise InputError(f"{self.where}: {name} {got}: it should be {wanted}", field=name)
        return value

    def rows(self, name: str) -> list[_Row]:
        """Return a field that is a list of objects."""
        return [_row(value, f"{self.where}, {name} {n}") for n, value in enumerate(self.need(name, list), 1)]


def _row(value: object, where: str) -> _Row:
    if not isinstance(value, dict):
        raise InputError(f"{where} is no JSON object")
    row = _Row(value)
    row.where = where
    return row


def _rows(path: Path, text: str) -> Iterator[_Row]:
    """Yield the objects of a JSON array, or of JSON lines."""
    try:
        if text.lstrip().startswith("["):
            for number, value in enumerate(json.loads(text), 1):
                yield _row(value, f"{path}, item {number}")
            return
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                yield _row(json.loads(line), f"{path}, line {number}")
    except ValueError as error:
        raise InputError(f"{path} is no JSON: {error}") from None


def _reader(path: Path, first: _Row) -> Callable[[Sequence[_Row], str], Iterator[Conversation]]:
    if "conversation" in first and "qa" in first:
        return _locomo
    if "haystack_sessions" in first:
        return _longmemeval
    if "self_instruct" in first:
        return _dmr
    if "question" in first or "text" in first:
        return _own
    raise InputError(f"{path} is of no known form: it should be {_KNOWN}")


def _usable(talk: Conversation, notes: Counter[str]) -> Iterator[Question]:
    """Yield the questions with the evidence that the conversation has."""
    for question in talk.questions:
        known = tuple(dict.fromkeys(name for name in question.evidence if name in talk.texts))
        if missing := len(set(question.evidence)) - len(known):
            notes["ids of evidence name no message and are left out"] += missing
        if known or question.apart or question.answer:
            yield replace(question, evidence=known)
        else:
            notes["questions have neither evidence nor an answer and are left out"] += 1


# -------------------------------------------------------------------------------------------- the forms


def _own(rows: Sequence[_Row], stem: str) -> Iterator[Conversation]:
    """Read messages as `kgray add` takes them, and questions; "group" tells conversations apart."""
    messages: dict[str, list[Message]] = defaultdict(list)
    questions: dict[str, list[Question]] = defaultdict(list)
    for row in rows:
        group = str(row.get("group") or stem)
        if "question" not in row:
            messages[group].append(
                Message(
                    id=row.need("id", str),
                    text=row.need("text", str),
                    speaker=row.get("speaker"),
                    at=row.get("at"),
                    session=str(row.get("session") or ""),
                    source=str(row.get("source") or "default"),
                )
            )
            continue
        kind = str(row.get("type") or "any")
        evidence = row.need("evidence", list) if "evidence" in row else []
        questions[group].append(
            Question(
                id=str(row.get("id") or f"{group}-q{len(questions[group]) + 1}"),
                text=row.need("question", str),
                type=kind,
                evidence=tuple(map(str, evidence)),
                answer=str(row.get("answer") or ""),
                at=row.get("at"),
                apart=kind in _APART,
            )
        )
    if unknown := sorted(questions.keys() - messages.keys()):
        raise InputError(f"questions of group {unknown[0]} have no messages")
    for group, told in messages.items():
        yield Conversation(name=group, messages=tuple(told), questions=tuple(questions[group]))


def _locomo(rows: Sequence[_Row], stem: str) -> Iterator[Conversation]:
    """Read LoCoMo; the types of questions keep their number, because harnesses have swapped the names."""
    for number, row in enumerate(rows, 1):
        name = str(row.get("sample_id") or f"{stem}-{number}")
        talk = _row(row["conversation"], f"{row.where}, conversation")
        questions = [
            Question(
                id=f"{name}-q{place}",
                text=asked.need("question", str),
                type=_LOCOMO_TYPES.get(kind := asked.need("category", int), str(kind)),
                evidence=tuple(_turn_ids(asked.get("evidence"))),
                answer=str(asked.get("answer", asked.get("adversarial_answer", ""))),
                apart=kind == 5,
            )
            for place, asked in enumerate(row.rows("qa"), 1)
        ]
        yield Conversation(name=name, messages=tuple(_locomo_turns(talk)), questions=tuple(questions))


def _locomo_turns(talk: _Row) -> Iterator[Message]:
    numbers = sorted(int(key[8:]) for key in talk if re.fullmatch(r"session_\d+", key))
    for number in numbers:
        at = _date(talk, f"session_{number}_date_time", "%I:%M %p on %d %B, %Y")
        for turn in talk.rows(f"session_{number}"):
            text, picture = turn.need("text", str), turn.get("blip_caption")
            yield Message(
                id=turn.need("dia_id", str),
                text=f"{text} [picture: {picture}]" if picture else text,
                speaker=turn.need("speaker", str),
                at=at,
                session=str(number),
            )


def _turn_ids(given: object) -> list[str]:
    """Return the ids of turns; some strings pack several ("D8:6; D9:17"), some differ ("D30:05")."""
    packed = " ".join(map(str, given)) if isinstance(given, list) else str(given or "")
    return [f"D{int(session)}:{int(turn)}" for session, turn in re.findall(r"D:?(\d+):(\d+)", packed)]


def _longmemeval(rows: Sequence[_Row], stem: str) -> Iterator[Conversation]:  # noqa: ARG001 - as its siblings
    """Read LongMemEval: each question has sessions of its own, here in the order of their dates."""
    form = "%Y/%m/%d %H:%M"
    for row in rows:
        name = row.need("question_id", str)
        ids, dates = row.need("haystack_session_ids", list), row.need("haystack_dates", list)
        sessions = row.need("haystack_sessions", list)
        if not len(ids) == len(dates) == len(sessions):
            raise InputError(
                f"{row.where}: haystack_sessions, haystack_session_ids and haystack_dates differ in length"
            )
        dated = [_moment(_weekday_off(date), form, row.where) for date in dates]
        messages, evidence = [], []
        for place in sorted(range(len(ids)), key=lambda place: dated[place]):
            session = _row({"turns": sessions[place]}, f"{row.where}, session {ids[place]}")
            for number, turn in enumerate(session.rows("turns"), 1):
                if not (text := turn.need("content", str)).strip():
                    continue
                message = Message(
                    id=f"{place}:{ids[place]}:{number}",
                    text=text,
                    speaker=turn.need("role", str),
                    at=dated[place],
                    session=str(ids[place]),
                )
                messages.append(message)
                if turn.get("has_answer"):
                    evidence.append(message.id)
        absent = name.endswith("_abs")
        question = Question(
            id=name,
            text=row.need("question", str),
            type="abstention" if absent else row.need("question_type", str),
            evidence=() if absent else tuple(evidence),
            answer=str(row.need("answer", (str, int, float))),
            at=_moment(_weekday_off(row.need("question_date", str)), form, row.where),
            apart=absent,
        )
        yield Conversation(name=name, messages=tuple(messages), questions=(question,))


def _dmr(rows: Sequence[_Row], stem: str) -> Iterator[Conversation]:
    """Read DMR: five sessions, the last ends now, and one question with an answer and no evidence."""
    for number, row in enumerate(rows, 1):
        at, messages = _DMR_ASKED, []
        earlier = row.rows("previous_dialogs")
        for dialog in reversed(earlier):
            unit = _UNITS.get(str(dialog.get("time_unit") or "day").removesuffix("s"), _UNITS["day"])
            at -= unit * float(dialog.get("time_num") or 1)
            dialog["at"] = at
        told = [(dialog.rows("dialog"), dialog["at"]) for dialog in earlier]
        told.append((row.rows("dialog"), _DMR_ASKED))
        for session, (turns, moment) in enumerate(told, 1):
            messages += [
                Message(
                    id=f"{session}:{place}",
                    text=turn.need("text", str),
                    speaker=f"Speaker {2 - place % 2}",
                    at=moment.isoformat(),
                    session=str(session),
                )
                for place, turn in enumerate(turns, 1)
            ]
        asked = _row(row["self_instruct"], f"{row.where}, self_instruct")
        name = f"{stem}-{number}"
        question = Question(
            id=name,
            text=asked.need("B", str),
            type="fact recall",
            answer=asked.need("A", str),
            at=_DMR_ASKED.isoformat(),
        )
        yield Conversation(name=name, messages=tuple(messages), questions=(question,))


def _date(row: _Row, field: str, form: str) -> str:
    return _moment(row.need(field, str), form, f"{row.where}, {field}")


def _weekday_off(text: object) -> str:
    return re.sub(r"\s*\(\w+\)", "", str(text))


def _moment(text: str, form: str, where: str) -> str:
    """Return a data set's date as ISO 8601; it names no zone, so it is read as UTC."""
    try:
        return datetime.strptime(text.strip(), form).replace(tzinfo=UTC).isoformat()
    except ValueError:
        raise InputError(f"{where}: {text!r} is no date of the form {form}") from None
