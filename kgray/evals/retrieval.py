"""Searches and contexts of a memory, measured against questions whose evidence is known.

The questions come from the user's files: LoCoMo, LongMemEval, DMR (MSC-Self-Instruct), or JSON lines of
kgray's form; the first row decides the form. Notes count the items that cannot be measured.
A ranking is a sequence of sets, best first: the messages that a hit represents; an entity represents none.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import islice
from pathlib import Path
from statistics import NormalDist, fmean
from typing import Any

import numpy as np

from kgray.domain.graph import Hit
from kgray.errors import InputError
from kgray.memory import AsyncMemory
from kgray.ports import SearchScope
from kgray.search import SCOPES


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message of a conversation."""

    id: str
    text: str
    speaker: str | None = None
    at: str | None = None  # ISO 8601
    session: str = ""  # the part of the conversation that it belongs to
    source: str = "default"

    def row(self) -> dict[str, Any]:
        """Return the row that `Memory.add_many` takes."""
        names = ("id", "text", "speaker", "at", "source")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question about a conversation, with its evidence."""

    id: str
    text: str
    type: str  # in the data set's own terms
    evidence: tuple[str, ...] = ()  # messages that answer it; () = none does, or unknown
    answer: str = ""  # the right answer; "" = unknown
    at: str | None = None  # the time of the question, ISO 8601; None = now
    after: str = ""  # id of a message: search the memory as known after it; "" = as known now
    fact: str = ""  # the object of the fact that holds at that moment
    outdated: tuple[str, ...] = ()  # objects of facts that no longer hold
    apart: bool = False  # not in overall figures: its answer is absent, or it names the wrong person


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """A conversation, which is a group of its own."""

    name: str
    messages: tuple[Message, ...]
    questions: tuple[Question, ...]

    @cached_property
    def texts(self) -> dict[str, str]:
        """Message id -> its text."""
        return {message.id: message.text for message in self.messages}


Talks = Sequence[tuple[str, Conversation]]  # (group, conversation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """The content of a file; notes: a line for each kind of unusable item."""

    conversations: tuple[Conversation, ...]
    notes: tuple[str, ...] = ()


_Row = Mapping[str, Any]
_Parts = Iterator[tuple[str, Message | Question]]  # with the name of their conversation
_LOCOMO = {1: "1 multi-hop", 2: "2 temporal", 3: "3 open-domain", 4: "4 single-hop", 5: "5 adversarial"}
_APART = frozenset({"adversarial", "none", "abstention", _LOCOMO[5]})
_DMR_ASKED = datetime(2024, 1, 1, tzinfo=UTC)  # assumed: DMR has only the time between sessions
RECALL = "fact recall"  # the type of DMR's questions
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
    conversations = []
    for name, listed in islice(messages.items(), most):
        ids, valid = {message.id for message in listed}, []
        if len(ids) < len(listed):
            raise InputError(f"{path}: two messages of the conversation {name} have one id")
        for question in questions[name]:
            if missing := set(question.evidence) - ids:
                notes["ids of evidence name no message"] += len(missing)
            evidence = tuple(dict.fromkeys(id_ for id_ in question.evidence if id_ in ids))
            if evidence or question.apart or question.answer or question.fact:
                valid.append(replace(question, evidence=evidence))
            else:
                notes["questions have neither evidence nor an answer"] += 1
        conversations.append(Conversation(name=name, messages=tuple(listed), questions=tuple(valid)))
    if not any(talk.questions for talk in conversations):
        raise InputError(f"{path} holds no question with evidence or an answer")
    lines = tuple(f"{count} {note}" for note, count in notes.items())
    return Dataset(conversations=tuple(conversations), notes=lines)


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
    read = None
    for number, row in enumerate(rows[0] if as_array else rows, 1):
        if row is None:
            continue
        try:
            read = read or _reader(row)
            yield from read(row, path.stem if read is _kgray else f"{path.stem}-{number}")
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            place = f"{'item' if as_array else 'line'} {number}"
            raise InputError(f"{path}, {place} is not as its data set has it: {why}") from None


def _reader(row: _Row) -> Callable[[_Row, str], _Parts]:
    forms = {"qa": _locomo, "haystack_sessions": _longmemeval, "self_instruct": _dmr}
    for name, read in (forms | {"question": _kgray, "text": _kgray}).items():
        if name in row and (name != "qa" or "conversation" in row):
            return read
    raise ValueError(
        "a row of LoCoMo has conversation and qa, of LongMemEval haystack_sessions, of DMR self_instruct, of "
        "kgray's form text or question"
    )


def _kgray(row: _Row, stem: str) -> _Parts:
    """Read a message in the format of `kgray add`, or a question; "group" names the conversation."""
    name = str(row.get("group") or stem)
    if "question" not in row:
        names = ("speaker", "at", "session", "source")
        options = {key: str(row[key]) for key in names if row.get(key)}
        yield name, Message(id=str(row["id"]), text=_text(row, "text"), **options)
        return
    text, kind = _text(row, "question"), str(row.get("type") or "any")
    fields: dict[str, Any] = {key: str(row.get(key) or "") for key in ("answer", "after", "fact")}
    fields |= {key: tuple(map(str, row.get(key) or ())) for key in ("evidence", "outdated")}
    fields |= {"id": str(row.get("id") or text), "at": row.get("at"), "apart": kind in _APART}
    yield name, Question(text=text, type=kind, **fields)


def _locomo(row: _Row, name: str) -> _Parts:
    """Read LoCoMo; types include their number, because some harnesses swap the names."""
    name, talk = str(row.get("sample_id") or name), row["conversation"]
    for number in sorted(int(key[8:]) for key in talk if re.fullmatch(r"session_\d+", key)):
        at = _moment(talk[f"session_{number}_date_time"], "%I:%M %p on %d %B, %Y")
        for turn in talk[f"session_{number}"]:
            text, picture = _text(turn, "text"), turn.get("blip_caption")
            text += f" [picture: {picture}]" if picture else ""
            spoken = {"speaker": turn["speaker"], "at": at, "session": str(number)}
            yield name, Message(id=turn["dia_id"], text=text, **spoken)
    for place, item in enumerate(row["qa"], 1):
        kind = _LOCOMO.get(item["category"], str(item["category"]))
        # Some texts have several ids ("D8:6; D9:17"), some have another spelling ("D30:05").
        turns = re.findall(r"D:?(\d+):(\d+)", " ".join(map(str, item.get("evidence") or ())))
        evidence = tuple(f"D{int(session)}:{int(turn)}" for session, turn in turns)
        fields: dict[str, Any] = {"text": _text(item, "question"), "type": kind, "apart": kind in _APART}
        answer = "" if kind in _APART else str(item.get("answer", ""))
        yield name, Question(id=f"{name}-q{place}", evidence=evidence, answer=answer, **fields)


def _longmemeval(row: _Row, name: str) -> _Parts:
    """Read LongMemEval: each question has its own sessions, sorted here by date."""
    name, form, evidence = str(row["question_id"]), "%Y/%m/%d %H:%M", []
    dates = [_moment(date, form) for date in row["haystack_dates"]]
    if not len(dates) == len(row["haystack_session_ids"]) == len(row["haystack_sessions"]):
        raise ValueError("haystack_dates, haystack_session_ids and haystack_sessions differ in length")
    sessions = zip(dates, row["haystack_session_ids"], row["haystack_sessions"], strict=True)
    for place, (at, session, turns) in enumerate(sorted(sessions, key=lambda item: item[0])):
        for number, turn in enumerate(turns, 1):
            text, message = _text(turn, "content"), f"{place}:{session}:{number}"
            if text.strip():
                spoken = {"speaker": turn["role"], "at": at, "session": str(session)}
                yield name, Message(id=message, text=text, **spoken)
                evidence += [message] if turn.get("has_answer") else []
    absent = name.endswith("_abs")
    fields: dict[str, Any] = {
        "type": "abstention" if absent else row["question_type"],
        "text": _text(row, "question"),
    }
    fields |= {"answer": str(row["answer"]), "at": _moment(row["question_date"], form)}
    yield name, Question(id=name, evidence=() if absent else tuple(evidence), apart=absent, **fields)


def _dmr(row: _Row, name: str) -> _Parts:
    """Read DMR: earlier sessions, the current session, and a question with an answer and no evidence."""
    at, sessions = _DMR_ASKED, [(_DMR_ASKED, row["dialog"])]
    for earlier in reversed(row["previous_dialogs"]):
        unit = str(earlier.get("time_unit") or "day").removesuffix("s")
        at -= timedelta(days=float(earlier.get("time_num") or 1) * _UNITS.get(unit, 1.0))
        sessions.insert(0, (at, earlier["dialog"]))
    for number, (moment, turns) in enumerate(sessions, 1):
        for place, turn in enumerate(turns, 1):
            spoken = {"speaker": f"Speaker {2 - place % 2}", "at": moment.isoformat(), "session": str(number)}
            yield name, Message(id=f"{number}:{place}", text=_text(turn, "text"), **spoken)
    item, today = row["self_instruct"], _DMR_ASKED.isoformat()
    yield name, Question(id=name, text=_text(item, "B"), type=RECALL, answer=_text(item, "A"), at=today)


def _text(row: _Row, field: str) -> str:
    if not isinstance(row[field], str):
        raise TypeError(f"{field} is no text")
    return str(row[field])


def _moment(text: str, form: str) -> str:
    """Return a data set's date, without "(Mon)", as ISO 8601 in UTC, because it has no zone."""
    plain = re.sub(r" *\(\w+\)", "", text).strip()
    return datetime.strptime(plain, form).replace(tzinfo=UTC).isoformat()


DEPTHS = (5, 10, 20, 50)
LEAST_WORDS = 0.6  # share of a message's words, in order, in a line that repeats it
_EXACT_WORDS = 4  # messages up to this length must match exactly, because chance matches are likely
_RESAMPLES = 1000
_WORD = re.compile(r"\w+")

Ranking = Sequence[Collection[str]]


def of_ranking(
    ranking: Ranking, evidence: Collection[str], depths: Sequence[int] = DEPTHS
) -> dict[str, float]:
    """Return fraction@k, any@k, all@k and ndcg@k for each depth, and mrr. Raises ValueError without evidence.

    fraction    share of the evidence among the first k hits
    ndcg        a hit gains 1 if it has evidence that no hit above has; the ideal ranking has one new message
                a hit (Järvelin and Kekäläinen 2002, binary gains)
    mrr         1 / the rank of the first hit with evidence; 0 for none
    """
    if not evidence:
        raise ValueError("a ranking is measured against at least one message of evidence")
    ranks = dict.fromkeys(evidence, math.inf)  # message -> rank of its first hit
    for rank, messages in enumerate(ranking, 1):
        for message in ranks.keys() & set(messages):
            ranks[message] = min(ranks[message], rank)
    scores: dict[str, float] = {}
    gains = [1 / math.log2(rank + 1) for rank in range(1, max(depths) + 1)]
    for depth in depths:
        ranks_in_depth = [int(rank) for rank in ranks.values() if rank <= depth]
        scores[f"fraction@{depth}"] = len(ranks_in_depth) / len(ranks)
        scores[f"any@{depth}"] = float(bool(ranks_in_depth))
        scores[f"all@{depth}"] = float(len(ranks_in_depth) == len(ranks))
        gained = sum(gains[rank - 1] for rank in set(ranks_in_depth))
        scores[f"ndcg@{depth}"] = gained / sum(gains[: min(depth, len(ranks))])
    return scores | {"mrr": 1 / min(ranks.values())}


def is_repeated(message: str, lines: Sequence[Sequence[str]]) -> bool:
    """Return whether a line (as `words`) repeats a message: at least 60 % of its words, in order.

    A message of at most four words must occur exactly.
    """
    message_words = words(message)
    minimum = math.ceil(LEAST_WORDS * len(message_words))
    if len(message_words) <= _EXACT_WORDS:
        phrase = f" {' '.join(message_words)} "
        return bool(message_words) and any(phrase in f" {' '.join(line)} " for line in lines)
    return any(len(line) >= minimum and _common(message_words, line) >= minimum for line in lines)


def words(text: str) -> list[str]:
    """Return the words of a text, casefolded, without punctuation."""
    return _WORD.findall(text.casefold())


def of_context(context: str, supported: Collection[str], evidence: Mapping[str, str]) -> float:
    """Return the share of the evidence (message -> text) in a context; supported: sources of its facts."""
    lines = list(map(words, context.splitlines()))
    return fmean(float(name in supported or is_repeated(text, lines)) for name, text in evidence.items())


def _common(sequence: Sequence[str], line: Sequence[str]) -> int:
    """Return the length of the longest common subsequence, bit-parallel (Hyyrö 2004)."""
    places: dict[str, int] = {}
    for at, word in enumerate(sequence):
        places[word] = places.get(word, 0) | 1 << at
    full = (1 << len(sequence)) - 1
    state = full
    for word in line:
        matched = state & places.get(word, 0)
        state = (state + matched | state - matched) & full
    return len(sequence) - state.bit_count()


def mean(values: Sequence[float]) -> dict[str, float]:
    """Return {"mean", "low", "high", "count"} of one value a question: the mean and its 95 % interval.

    The interval is Wilson's (1927) if every value is 0 or 1, else the percentile bootstrap's with 1,000
    resamples of a fixed seed. Raises ValueError without values.
    """
    if not values:
        raise ValueError("a mean needs at least one value")
    middle, count = fmean(values), len(values)
    if set(values) <= {0.0, 1.0}:
        z = NormalDist().inv_cdf(0.975)
        scale, centre = 1 + z * z / count, middle + z * z / (2 * count)
        spread = z * math.sqrt(middle * (1 - middle) / count + z * z / (4 * count * count))
        low, high = max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)
    else:
        numbers = np.asarray(values, dtype=np.float64)
        drawn = np.random.default_rng(0).integers(len(numbers), size=(_RESAMPLES, len(numbers)))
        low, high = map(float, np.quantile(numbers[drawn].mean(axis=1), (0.025, 0.975)))
    return {"mean": round(middle, 4), "low": round(low, 4), "high": round(high, 4), "count": count}


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of the values does not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


BUDGETS = (500, 950, 1000, 1500)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The measurements of one question."""

    conversation: str
    question: Question
    marks: Mapping[str, float]  # "nothing" and "context_nothing@N" where nothing answers the question
    seconds: Mapping[str, float] = field(default_factory=dict)  # operation -> seconds
    hits: tuple[tuple[str, ...], ...] = ()  # messages of each hit, best first, for a manual analysis

    def as_dict(self) -> dict[str, Any]:
        """Return the row of --rows."""
        question = self.question
        row: dict[str, Any] = {"conversation": self.conversation, "id": question.id, "type": question.type}
        row |= {"question": question.text, "evidence": question.evidence, "found": self.hits}
        return row | {**self.marks}


def messages_of(hit: Hit) -> tuple[str, ...]:
    """Return the messages that a hit represents: an episode itself, a fact its supporters."""
    if hit.fact is not None:
        return tuple(client for _, client in hit.fact.episodes if client)
    return (hit.client_id,) if hit.client_id else ()


async def ask(
    memory: AsyncMemory,
    conversation: Conversation,
    question: Question,
    *,
    group: str,
    scopes: Sequence[SearchScope] = SCOPES,
    budgets: Sequence[int] = BUDGETS,
) -> Result:
    """Search, build a context for each budget, and measure both, at the moments of the question."""
    options: dict[str, Any] = {"group": group, "scopes": scopes, "as_of": question.at}
    if question.after:
        options["known_at"] = (await memory.episode(question.after, group=group)).recorded_at
    started = time.perf_counter()
    hits = await memory.search(question.text, limit=max(DEPTHS), **options)
    seconds = {"search": time.perf_counter() - started}
    ranking = tuple(map(messages_of, hits))
    marks = marks_of(question, ranking) | _facts_of(question, hits[:10], "{}@10")
    evidence = {name: conversation.texts[name] for name in question.evidence}
    for budget in budgets:
        started = time.perf_counter()
        built = await memory.context(question.text, tokens=budget, **options)
        seconds[f"context@{budget}"] = time.perf_counter() - started
        marks[f"tokens@{budget}"] = float(built.tokens)
        marks |= _facts_of(question, built.hits, f"context_{{}}@{budget}")
        if evidence:
            supported = {name for hit in built.hits if hit.fact for name in messages_of(hit)}
            marks[f"context@{budget}"] = of_context(built.text, supported, evidence)
        elif not question.fact:
            marks[f"context_nothing@{budget}"] = float(not built.hits)
    return Result(
        conversation=conversation.name, question=question, marks=marks, seconds=seconds, hits=ranking
    )


async def ask_all(memory: AsyncMemory, talks: Talks) -> list[Result]:
    """Measure all questions that have evidence, a fact, or no possible answer."""
    return [
        await ask(memory, talk, question, group=group)
        for group, talk in talks
        for question in talk.questions
        if question.evidence or question.apart or question.fact
    ]


def marks_of(question: Question, ranking: Ranking) -> dict[str, float]:
    """Return the marks of a ranking; for a question without an answer, whether the ranking is empty."""
    if question.evidence:
        return of_ranking(ranking, question.evidence)
    return {} if question.fact else {"nothing": float(not ranking)}


def _facts_of(question: Question, hits: Sequence[Hit], name: str) -> dict[str, float]:
    """Return whether the facts have the expected object ("fact") or an outdated object ("stale").

    Only facts count: a message with an outdated object is correct, because it has its date.
    """
    targets = {hit.object.casefold() for hit in hits if hit.object is not None}
    expected = {"fact": (question.fact,) if question.fact else (), "stale": question.outdated}
    return {
        name.format(mark): float(any(text.casefold() in targets for text in objects))
        for mark, objects in expected.items()
        if objects
    }


def report(rows: Sequence[Result], *, whole: bool = False) -> dict[str, Any]:
    """Return {"overall", "by_type"}: each measure's mean with its interval, counts, latency in milliseconds.

    whole: "overall" includes the questions with `Question.apart`
    """
    types = sorted({row.question.type for row in rows})
    return {
        "overall": _figures([row for row in rows if whole or not row.question.apart]),
        "by_type": {name: _figures([row for row in rows if row.question.type == name]) for name in types},
    }


def _figures(rows: Sequence[Result]) -> dict[str, Any]:
    marks, timed = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    for row in rows:
        for name, value in row.marks.items():
            marks[name].append(value)
        for name, value in row.seconds.items():
            timed[name].append(1000 * value)
    shares = {"p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95}
    return {
        "questions": len(rows),
        "measures": {name: mean(values) for name, values in marks.items()},
        "ms": {
            name: {at: round(percentile(values, share), 2) for at, share in shares.items()}
            | {"iqr": round(percentile(values, 0.75) - percentile(values, 0.25), 2)}
            for name, values in timed.items()
        },
    }
