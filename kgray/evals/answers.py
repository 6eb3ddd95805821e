"""Answers of a language model (the reader) to a data set's questions, graded by a second model (the judge).

The reader sees the memory's context, or a baseline of Zep's paper (arXiv 2501.13956, section 4). To detect a
judge that accepts everything, it also grades the right answer and the answer of a different question.
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
from typing import Any, Literal

from kgray.errors import ContentError, InputError, InvalidAnswer
from kgray.evals.retrieval import RECALL, Conversation, Dataset, Message, Question, Result, Talks
from kgray.memory import AsyncMemory
from kgray.models.prompting.prompts import PromptFiles, section
from kgray.models.prompting.reply_schemas import TEXT, object_of
from kgray.ports import Answerer, AnswerRequest
from kgray.search import RECIPES, count_tokens

Way = Literal["memory", "full", "summaries", "recursive"]
_ROOM = 512  # tokens of a reply
# Question type -> the judge's prompt; LongMemEval has a prompt for each type, DMR has its own.
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
_PAPER_HITS = {True: 10, False: 20}  # facts, and as many entities, for DMR and for LongMemEval (section 4)


def context_of(
    dataset: Dataset, *, paper: str | None, tokens: int | None, recipe: str | None, limit: int | None,
    template: str | None,
) -> dict[str, Any]:  # fmt: skip
    """Return the arguments of `Memory.context`; paper: its settings replace arguments that are None.

    limit: hits of each scope. Raises InputError for an unknown recipe.
    """
    if paper == "zep":
        questions = (question for talk in dataset.conversations for question in talk.questions)
        is_recall = all(question.type == RECALL for question in questions)
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
    """A file of JSON lines that receives each reply at once: a run after a kill asks only for the others.

    A row has an `id`; lines with the same id are parts of one row.
    """

    def __init__(self, path: Path) -> None:
        """Read the existing rows; drop an incomplete last line."""
        self.path = path
        lines = self.path.read_text(encoding="utf-8").split("\n")[:-1] if self.path.exists() else []
        self.rows: dict[str, dict[str, Any]] = {}
        for row in map(json.loads, lines):
            self._join(row)
        self.path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def keep(self, part: dict[str, Any]) -> dict[str, Any]:
        """Add a part of a row; return the row."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(part, ensure_ascii=False)}\n")
        return self._join(part)

    def _join(self, part: dict[str, Any]) -> dict[str, Any]:
        row = self.rows[part["id"]] = self.rows.get(part["id"], {}) | part
        return row


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """A reader, a judge, the text that the reader sees, and the file of the raw answers."""

    reader: Answerer
    judge: Answerer
    way: Way  # only "memory" searches the memory
    context: Mapping[str, Any]  # arguments of `Memory.context`
    raw: Raw
    files: PromptFiles = field(default_factory=PromptFiles)
    at_once: int = 16  # concurrent questions; the clients bound the concurrent requests
    summarising: dict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))

    async def answer(self, memory: AsyncMemory, talks: Talks) -> list[dict[str, Any]]:
        """Answer and grade all questions that have an answer; return their raw rows. Raises Unavailable."""
        at_once = asyncio.Semaphore(self.at_once)
        questions = [
            (group, talk, question) for group, talk in talks for question in talk.questions if question.answer
        ]

        async def row_of(place: int) -> dict[str, Any]:
            group, talk, question = questions[place]
            answers = (later.answer for _, _, later in [*questions[place + 1 :], *questions[:place]])
            wrong = next((a for a in answers if a.casefold() != question.answer.casefold()), None)
            async with at_once:
                if question.id not in self.raw.rows:
                    shown_text = None if self.way == "memory" else await self._baseline(talk)
                    self.raw.keep(await self._answered(memory, group, question, shown_text))
                return await self._graded(question, wrong)

        return await asyncio.gather(*map(row_of, range(len(questions))))

    async def _baseline(self, talk: Conversation) -> str:
        """Return the text of a conversation in a baseline: complete, or the reader's summaries."""
        sessions = defaultdict[str, list[Message]](list)
        for message in talk.messages:
            sessions[message.session].append(message)
        if self.way == "full":
            return "\n\n".join(map(_written, sessions.values()))
        async with self.summarising[talk.name]:  # several questions need the same summaries
            texts: list[str] = []
            for name, messages in sessions.items():
                previous = texts[-1] if texts else ""
                texts.append(await self._summary(talk, name, messages, previous))
            return texts[-1] if self.way == "recursive" else "\n\n".join(texts)

    async def _summary(self, talk: Conversation, name: str, messages: Sequence[Message], summary: str) -> str:
        """Return the summary of a session; for "recursive" the summary of all sessions up to it."""
        key = json.dumps(["summary", talk.name, name])
        if key not in self.raw.rows:
            session = {"SESSION": _written(messages)}
            if self.way == "recursive":
                text = await self._replied(self.reader, "recursive", {"SUMMARY": summary} | session)
            else:
                text = await self._replied(self.reader, "summarise", session)
                text = f"{messages[0].at or ''} {text}".strip()
            self.raw.keep({"id": key, "text": text})
        return str(self.raw.rows[key]["text"])

    async def _answered(
        self, memory: AsyncMemory, group: str, question: Question, shown_text: str | None
    ) -> dict[str, Any]:
        """Return a question's raw row without verdicts.

        shown_text: the text of a baseline; None = search the memory. "seconds" cover search and answer.
        """
        row: dict[str, Any] = {"id": question.id, "type": question.type, "question": question.text}
        started = time.perf_counter()
        if shown_text is None:
            built = await memory.context(question.text, group=group, as_of=question.at, **self.context)
            shown_text, row["search_seconds"] = built.text, time.perf_counter() - started
        row |= {"right": question.answer, "context": shown_text, "tokens": count_tokens(shown_text)}
        try:
            data = {"CONTEXT": shown_text, "QUESTION": {"asked": question.at, "question": question.text}}
            row["answer"] = await self._replied(self.reader, "answer", data)
        except ContentError as error:  # such as a conversation longer than the reader's window
            return row | {"answer": None, "error": str(error), "correct": False}
        return row | {"seconds": time.perf_counter() - started}

    async def _graded(self, question: Question, wrong: str | None) -> dict[str, Any]:
        """Return an answered question's row with the verdicts on the answer, the right and a wrong answer."""
        row = self.raw.rows[question.id]
        about = {"type": question.type, "question": question.text, "right_answer": question.answer}
        graded = {"correct": row["answer"], "judge_accepts_right": question.answer}
        for name, answer in (graded | {"judge_accepts_wrong": wrong}).items():
            if answer is not None and row["answer"] is not None and name not in row:
                verdict = None  # stays if the judge's reply is invalid
                with suppress(InvalidAnswer):
                    verdict = await self._replied(
                        self.judge, "grade", {"GRADED": about | {"graded_answer": answer}}, question.type
                    )
                row = self.raw.keep({"id": question.id, name: verdict})
        return row

    async def _replied(self, model: Answerer, task: str, data: Mapping[str, object], kind: str = "") -> Any:  # noqa: ANN401
        """Return a model's text, or the judge's boolean. Raises Refused, InvalidAnswer, Unavailable.

        kind: the type of the graded question
        """
        name, expected = ("correct", bool) if task == "grade" else ("answer", str)
        head = self.files.text(GRADES.get(kind, f"eval_{task}"))
        request = AnswerRequest(
            task=task, question="", head=head, data="".join(section(*item) for item in data.items()),
            room=_ROOM, schema=_SCHEMAS[task],
        )  # fmt: skip
        pieces: list[str] = []
        await model.answer(request, pieces.append)
        reply = json.loads("".join(pieces))
        if not isinstance(reply[name], expected):
            raise InvalidAnswer(f"{name!r} is no {expected.__name__}", raw=str(reply)[:200])
        return reply[name]


def as_asked(rows: Sequence[Mapping[str, Any]]) -> list[Result]:
    """Return raw rows in the form for `report`. An invalid verdict does not count."""
    names = ("correct", "judge_accepts_right", "judge_accepts_wrong", "tokens")
    timed = {"answer": "seconds", "search": "search_seconds"}
    results = []
    for row in rows:
        question = Question(id=row["id"], text=row["question"], type=row["type"])
        marks = {name: float(row[name]) for name in names if row.get(name) is not None}
        seconds = {name: row[key] for name, key in timed.items() if key in row}
        results.append(Result(conversation="", question=question, marks=marks, seconds=seconds))
    return results


def _written(messages: Sequence[Message]) -> str:
    return "\n".join(f"[{m.at or ''}] {m.speaker or ''}: {m.text}" for m in messages)
