"""A language model's answers to a data set's questions, graded by another one.

The reader sees the memory's context, or the baselines of Zep's paper (arXiv 2501.13956, section 4). A judge
that says yes to everything makes every system look good: it grades the right answer and another one's, too.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from kgray.errors import ContentError, InputError, InvalidAnswer
from kgray.evals.retrieval import RECALL, Asked, Conversation, Dataset, Message, Question, Talks
from kgray.memory import Memory
from kgray.ports import Answerer, AnswerRequest
from kgray.prompting.prompts import PromptFiles, section
from kgray.prompting.reply_schemas import TEXT, object_of
from kgray.search import RECIPES, count_tokens

Way = Literal["memory", "full", "summaries", "recursive"]
WAYS: tuple[Way, ...] = get_args(Way)
_ROOM = 512  # tokens of a reply
# The judge's prompt for a type of questions: LongMemEval has one for each of these, and DMR its own.
GRADES: Mapping[str, str] = {
    "temporal-reasoning": "eval_grade_temporal",
    "knowledge-update": "eval_grade_update",
    "single-session-preference": "eval_grade_preference",
    "abstention": "eval_grade_abstention",
    RECALL: "eval_grade_recall",
}
_SCHEMAS = {
    "grade": object_of(correct={"type": "boolean"}),
    **dict.fromkeys(("answer", "summarise", "recursive"), object_of(answer=TEXT)),
}
PAPERS = ("zep",)
_PAPER_HITS = {True: 10, False: 20}  # facts, and as many entities: of DMR, of LongMemEval (section 4)


def context_of(
    dataset: Dataset, *, paper: str | None, tokens: int | None, recipe: str | None, limit: int | None,
    template: str | None,
) -> dict[str, Any]:  # fmt: skip
    """Return the arguments of `Memory.context`; paper: whose settings fill those that are None.

    limit: hits of each scope. Raises InputError for a recipe that is unknown.
    """
    if paper == "zep":
        is_recall = all(one.type == RECALL for talk in dataset.conversations for one in talk.questions)
        recipe, template, tokens = recipe or "paper", template or "paper", tokens or 8000
        limit = limit or _PAPER_HITS[is_recall]
    name = recipe or "hybrid"
    if name not in RECIPES:
        raise InputError(f"recipe {name!r} is unknown: use {', '.join(RECIPES)}", field="recipe")
    arguments: dict[str, Any] = {"tokens": tokens or 1500, "recipe": RECIPES[name]}
    if limit is not None:
        scopes = RECIPES[name].scopes
        arguments |= {"recipe": replace(RECIPES[name], places=dict.fromkeys(scopes, limit))}
        arguments |= {"limit": limit * len(scopes)}
    return arguments | ({"template": template} if template is not None else {})


class Raw:
    """A file of JSON lines to which each answer is added as it comes: a run can go on after a kill."""

    def __init__(self, path: Path) -> None:
        """Read what is there; a last line that was cut by a kill is dropped."""
        self.path = path
        kept = self.path.read_text(encoding="utf-8").split("\n")[:-1] if self.path.exists() else []
        self.rows: dict[str, dict[str, Any]] = {row["id"]: row for row in map(json.loads, kept)}
        self.path.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")

    def keep(self, row: dict[str, Any]) -> dict[str, Any]:
        """Add a row; return it."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(row, ensure_ascii=False)}\n")
        self.rows[row["id"]] = row
        return row


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """A reader, a judge, the text that the reader sees, and the file of the raw answers."""

    reader: Answerer
    judge: Answerer
    way: Way  # the memory is asked for "memory" alone
    context: Mapping[str, Any]  # arguments of `Memory.context`
    raw: Raw
    files: PromptFiles = field(default_factory=PromptFiles)
    at_once: int = 16  # questions; the clients bound how many requests are under way
    summarising: dict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))

    async def answer(self, memory: Memory, talks: Talks) -> list[dict[str, Any]]:
        """Answer and grade all questions that have an answer; return their raw rows. Raises Unavailable."""
        at_once = asyncio.Semaphore(self.at_once)
        questions = [
            (group, talk, question) for group, talk in talks for question in talk.questions if question.answer
        ]

        async def row_of(place: int) -> dict[str, Any]:
            group, talk, question = questions[place]
            if question.id in self.raw.rows:
                return self.raw.rows[question.id]
            others = (other.answer for _, _, other in [*questions[place + 1 :], *questions[:place]])
            wrong = next((a for a in others if a.casefold() != question.answer.casefold()), None)
            async with at_once:
                seen = None if self.way == "memory" else await self._baseline(talk)
                return self.raw.keep(await self._graded(memory, group, question, seen, wrong))

        return await asyncio.gather(*map(row_of, range(len(questions))))

    async def _baseline(self, talk: Conversation) -> str:
        """Return the text that a baseline shows of a conversation: whole, or the reader's summaries."""
        sessions = defaultdict[str, list[Message]](list)
        for message in talk.messages:
            sessions[message.session].append(message)
        if self.way == "full":
            return "\n\n".join(map(_written, sessions.values()))
        async with self.summarising[talk.name]:  # several questions need the same summaries
            texts: list[str] = []
            for name, messages in sessions.items():
                before = texts[-1] if texts else ""
                texts.append(await self._summary(talk, name, messages, before))
            return texts[-1] if self.way == "recursive" else "\n\n".join(texts)

    async def _summary(self, talk: Conversation, name: str, messages: Sequence[Message], before: str) -> str:
        """Return the summary of a session; in the way "recursive" that of all sessions up to it."""
        key = json.dumps(["summary", talk.name, name])
        if key not in self.raw.rows:
            session = {"SESSION": _written(messages)}
            if self.way == "recursive":
                text = await self._replied(self.reader, "recursive", {"SUMMARY": before} | session)
            else:
                text = await self._replied(self.reader, "summarise", session)
                text = f"{messages[0].at or ''} {text}".strip()
            self.raw.keep({"id": key, "text": text})
        return str(self.raw.rows[key]["text"])

    async def _graded(
        self, memory: Memory, group: str, question: Question, seen: str | None, wrong: str | None
    ) -> dict[str, Any]:
        """Return a question's raw row: the answer, and the judge's verdicts on it and two others.

        seen: the text of a baseline; None = the memory is searched. The clock runs from the question to the
        answer.
        """
        row: dict[str, Any] = {"id": question.id, "type": question.type, "question": question.text}
        started = time.perf_counter()
        if seen is None:
            built = await memory.context(question.text, group=group, as_of=question.at, **self.context)
            seen, row["search_seconds"] = built.text, time.perf_counter() - started
        row |= {"right": question.answer, "context": seen, "tokens": count_tokens(seen)}
        try:
            shown = {"CONTEXT": seen, "QUESTION": {"asked": question.at, "question": question.text}}
            row["answer"] = await self._replied(self.reader, "answer", shown)
        except ContentError as error:  # such as a conversation longer than the reader's window
            return row | {"answer": None, "error": str(error), "correct": False}
        row["seconds"] = time.perf_counter() - started
        about = {"type": question.type, "question": question.text, "right_answer": question.answer}
        graded = {"correct": row["answer"], "judge_accepts_right": question.answer}
        for name, answer in (graded | {"judge_accepts_wrong": wrong}).items():
            if answer is not None:
                row[name] = None  # where the judge's reply cannot be read
                with suppress(InvalidAnswer):
                    row[name] = await self._replied(
                        self.judge, "grade", {"GRADED": about | {"graded_answer": answer}}, question.type
                    )
        return row

    async def _replied(self, model: Answerer, task: str, data: Mapping[str, object], kind: str = "") -> Any:  # noqa: ANN401
        """Return a model's text, or the judge's boolean. Raises Refused, InvalidAnswer, Unavailable.

        kind: the type of the question that is graded
        """
        name, wanted = ("correct", bool) if task == "grade" else ("answer", str)
        head = self.files.text(GRADES.get(kind, f"eval_{task}"))
        request = AnswerRequest(
            task=task, question="", head=head, data="".join(section(*one) for one in data.items()),
            room=_ROOM, schema=_SCHEMAS[task],
        )  # fmt: skip
        pieces: list[str] = []
        await model.answer(request, pieces.append)
        reply = json.loads("".join(pieces))
        if not isinstance(reply[name], wanted):
            raise InvalidAnswer(f"{name!r} is no {wanted.__name__}", raw=str(reply)[:200])
        return reply[name]


def as_asked(rows: Sequence[Mapping[str, Any]]) -> list[Asked]:
    """Return raw rows as what `report` takes. A verdict that could not be read counts for nothing."""
    names = ("correct", "judge_accepts_right", "judge_accepts_wrong", "tokens")
    timed = {"answer": "seconds", "search": "search_seconds"}
    results = []
    for row in rows:
        question = Question(id=row["id"], text=row["question"], type=row["type"])
        marks = {name: float(row[name]) for name in names if row.get(name) is not None}
        seconds = {name: row[key] for name, key in timed.items() if key in row}
        results.append(Asked(conversation="", question=question, marks=marks, seconds=seconds))
    return results


def _written(messages: Sequence[Message]) -> str:
    return "\n".join(f"[{m.at or ''}] {m.speaker or ''}: {m.text}" for m in messages)
