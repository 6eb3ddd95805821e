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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from kgray.backends.openai_api.client import TokensSpent
from kgray.backends.openai_api.structured import Asker, StructuredRequest
from kgray.errors import ContentError, InvalidAnswer
from kgray.evals.retrieval import Asked, Conversation, Message, Question, Talks
from kgray.memory import Memory
from kgray.prompting.prompts import Prompt, PromptFiles, section
from kgray.search import count_tokens

Way = Literal["memory", "full", "summaries"]
_ROOM = 512  # tokens of a reply
_AT_ONCE = 64  # questions; the clients bound how many requests are under way


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
    """Who reads and who grades, what the reader sees (of at most `tokens`, from the memory), what is kept."""

    reader: Asker
    judge: Asker
    way: Way  # the memory is asked for "memory" alone
    tokens: int
    raw: Raw
    files: PromptFiles = field(default_factory=PromptFiles)
    summarising: dict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))

    async def answer(self, memory: Memory | None, talks: Talks) -> list[dict[str, Any]]:
        """Answer and grade all questions that have an answer; return their raw rows. Raises Unavailable."""
        at_once = asyncio.Semaphore(_AT_ONCE)
        asked = [(group, talk, one) for group, talk in talks for one in talk.questions if one.answer]

        async def one(place: int) -> dict[str, Any]:
            group, talk, question = asked[place]
            if question.id in self.raw.rows:
                return self.raw.rows[question.id]
            others = (other.answer for _, _, other in [*asked[place + 1 :], *asked[:place]])
            wrong = next((a for a in others if a.casefold() != question.answer.casefold()), None)
            async with at_once:
                seen = await self._seen(memory, group, talk, question)
                return self.raw.keep(await self._graded(question, seen, wrong))

        return await asyncio.gather(*map(one, range(len(asked))))

    async def _seen(self, memory: Memory | None, group: str, talk: Conversation, question: Question) -> str:
        if memory is not None:
            tokens, at = self.tokens, question.at
            return (await memory.context(question.text, group=group, tokens=tokens, as_of=at)).text
        sessions: dict[str, list[Message]] = defaultdict(list)
        for message in talk.messages:
            sessions[message.session].append(message)
        if self.way == "full":
            return "\n\n".join(map(_written, sessions.values()))
        async with self.summarising[talk.name]:  # several questions need the same summaries
            return "\n\n".join([await self._summary(talk, *session) for session in sessions.items()])

    async def _summary(self, talk: Conversation, name: str, told: Sequence[Message]) -> str:
        key = json.dumps(["summary", talk.name, name])
        if key not in self.raw.rows:
            text = await self._replied(self.reader, "summarise", {"SESSION": _written(told)})
            self.raw.keep({"id": key, "text": f"{told[0].at or ''} {text}".strip()})
        return str(self.raw.rows[key]["text"])

    async def _graded(self, question: Question, seen: str, wrong: str | None) -> dict[str, Any]:
        """Return a question's raw row: the answer, and the judge's verdicts on it and two others."""
        row: dict[str, Any] = {"id": question.id, "type": question.type, "question": question.text}
        row |= {"right": question.answer, "context": seen, "tokens": count_tokens(seen)}
        started = time.perf_counter()
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
                        self.judge, "grade", {"GRADED": about | {"graded_answer": answer}}
                    )
        return row

    async def _replied(self, asker: Asker, task: str, data: Mapping[str, object]) -> Any:  # noqa: ANN401
        """Return a model's text, or the judge's boolean. Raises Refused, InvalidAnswer, Unavailable."""
        name, kind, told = ("correct", bool, "boolean") if task == "grade" else ("answer", str, "string")
        schema: dict[str, Any] = {"type": "object", "properties": {name: {"type": told}}, "required": [name]}

        def accept(reply: Mapping[str, Any]) -> Any:  # noqa: ANN401
            if not isinstance(reply[name], kind):
                raise InvalidAnswer(f"{name!r} is no {told}", raw=str(reply)[:200])
            return reply[name]

        prompt = Prompt(task, self.files.text(f"eval_{task}"))
        shown = "".join(section(*one) for one in data.items())
        schema |= {"additionalProperties": False}
        request = StructuredRequest(prompt=prompt, data=shown, schema=schema, room=_ROOM)
        return (await asker.ask(request, accept, TokensSpent()))[0]


def as_asked(rows: Sequence[Mapping[str, Any]]) -> list[Asked]:
    """Return raw rows as what `report` takes. A verdict that could not be read counts for nothing."""
    names = ("correct", "judge_accepts_right", "judge_accepts_wrong", "tokens")
    found = []
    for row in rows:
        question = Question(id=row["id"], text=row["question"], type=row["type"])
        marks = {name: float(row[name]) for name in names if row.get(name) is not None}
        seconds = {"answer": row["seconds"]} if "seconds" in row else {}
        found.append(Asked(conversation="", question=question, marks=marks, seconds=seconds))
    return found


def _written(told: Sequence[Message]) -> str:
    return "\n".join(f"[{m.at or ''}] {m.speaker or ''}: {m.text}" for m in told)
