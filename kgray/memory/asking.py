"""Answers that take several calls: over all communities (`global`), or by asking on (`drift`); suggestions.

global  the reports of the coarsest communities, some at a time, give points; the best of them are what the
        answer is written from (GraphRAG's global search, arXiv 2404.16130)
drift   reports and a first context give further questions; what is found for them joins the context, twice
        (after GraphRAG's DRIFT; no partial answer is written, so it takes 3 calls)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from operator import add
from typing import Any, Literal, get_args

from kgray.errors import Cost, InputError
from kgray.graph import Community, Hit, Scope
from kgray.memory.face import Memory
from kgray.ports import Answerer
from kgray.prompting.tokens import Counter, count_tokens
from kgray.search.answering import LEAST_ROOM, NO_COST, ROOM, OnText, prompt_of, request_of
from kgray.search.context import Context, safe, write
from kgray.times import given, to_datetime

Mode = Literal["local", "global", "drift"]
MODES: tuple[Mode, ...] = get_args(Mode)
MAP_CALLS = 7  # with the answer 8 calls at most
_REPORTS = 4000  # tokens of reports a call
_ROUNDS = 2
_FURTHER = 4  # questions a round
_TOKENS = 1500  # of a context, as `Memory.context` has it
_FAINTER = 0.7  # what is found for a further question counts so much of what its question found
_POINT = re.compile(r"^\W*(\d{1,3})\W*\[([\d,; ]+)\]\s*(\S.*)$")
_NUMBERED = re.compile(r"^\W*(?:\d{1,2}[.)])?\s*(\S.*\S)\s*$")


@dataclass(slots=True)
class Spending:
    """A model, and what its calls for one question may still cost; None = any number."""

    model: Answerer
    calls: int | None = None
    tokens: int | None = None
    cost: Cost = NO_COST

    async def ask(
        self, task: str, question: str, lines: Sequence[str], on_text: OnText, *, kept: int = 0
    ) -> None:
        """Ask once, with `kept` calls left for the answer. Raises InputError: the rest pays for no call."""
        calls = None if self.calls is None else self.calls - kept
        head = self.model.head(task)
        request = request_of(task, question, lines, head=head, max_calls=calls, max_tokens=self.tokens)
        found = await self.model.answer(request, on_text)
        self.cost = Cost(*map(add, self.cost, found))
        self.calls = None if self.calls is None else self.calls - found.calls
        if self.tokens is not None:
            self.tokens -= found.prompt_tokens + found.completion_tokens

    def lacks(self, task: str, question: str, lines: Sequence[str], tokens: int) -> str:
        """Return what one more call and an answer from so many tokens take, if that is more than is left."""
        if self.calls is not None and self.calls < 2:
            return "2 calls"
        answer = tokens + prompt_of(self.model.head("answer"), question, ()) + LEAST_ROOM
        least = prompt_of(self.model.head(task), question, lines) + ROOM + answer
        return f"{least} tokens" if self.tokens is not None and self.tokens < least else ""

    async def lines(self, task: str, question: str, lines: Sequence[str], *, kept: int) -> list[str]:
        """Ask once; return the lines of the reply, none for NONE. kept: as of `ask`."""
        pieces: list[str] = []
        await self.ask(task, question, lines, pieces.append, kept=kept)
        found = [line for line in "".join(pieces).splitlines() if line.strip()]
        return [] if found and found[0].strip(" .\"'*").upper() == "NONE" else found


@dataclass(frozen=True, slots=True)
class Asked:
    """A question to a group's memory; chosen: the arguments of `Memory.context`."""

    memory: Memory
    spending: Spending
    question: str
    group: str
    chosen: dict[str, Any]

    async def seen(self, mode: Mode) -> Context:
        """Return what an answer is written from. Raises InputError where a mode has nothing."""
        if mode not in MODES:
            raise InputError(f"mode {mode!r} is unknown: use {', '.join(MODES)}", field="mode")
        if mode == "global":
            return await self._points()
        context = await self.context()
        return await self._drifted(context) if mode == "drift" and context.hits else context

    async def context(self) -> Context:
        """Return the context of the question itself."""
        return await self.memory.context(self.question, group=self.group, **self.chosen)

    async def suggested(self, lines: Sequence[str], *, kept: int = 0) -> list[str]:
        """Return questions that go on from this one, at most 4. kept: as of `Spending.ask`."""
        if not lines:
            return []
        replied = await self.spending.lines("follow_up", self.question, lines, kept=kept)
        return [one[1] for one in map(_NUMBERED.match, replied) if one][:_FURTHER]

    @property
    def _budget(self) -> tuple[int, Counter]:
        return self.chosen.get("tokens", _TOKENS), self.chosen.get("count", count_tokens)

    @property
    def _narrows(self) -> bool:
        filters = self.chosen.get("filters")
        limits = any(self.chosen.get(name) for name in ("scopes", "said_after", "said_before"))
        return limits or (filters is not None and filters.narrows)

    async def _points(self) -> Context:
        """Return the best points of the reports as a context whose lines all have a number."""
        if self.chosen.get("as_of") is not None:
            raise InputError("mode global takes no as_of: a report tells of its run's own time", field="mode")
        if self._narrows:
            raise InputError("mode global takes no scope and no filter: a report tells of all", field="mode")
        group, known_at, (tokens, count) = self.group, self.chosen.get("known_at"), self._budget
        everyone = await self.memory.communities(group=group, known_at=known_at)
        top = sorted((one for one in everyone if one.parent is None), key=lambda one: (-one.size, one.id))
        if not top:
            raise InputError(
                f"group {group} has no communities: run `kgray communities refresh --group {group}` first",
                field="mode",
            )
        found: list[tuple[int, Hit]] = []
        for round_, reports in enumerate(islice(_batches(top), MAP_CALLS)):
            lines = [f"[{number}] {_report(one)}" for number, one in enumerate(reports, 1)]
            if lacks := self.spending.lacks("points", self.question, lines, tokens):
                if not round_:
                    raise InputError(f"mode global takes {lacks} at least: allow more", field="mode")
                break
            points = map(_POINT.match, await self.spending.lines("points", self.question, lines, kept=1))
            for worth, numbers, text in (point.groups() for point in points if point):
                cited = dict.fromkeys(int(n) for n in re.findall(r"\d+", numbers))
                if named := [reports[n - 1] for n in cited if 1 <= n <= len(reports)]:
                    hit = partial(Hit, scope="community", id=named[0].id, text=text, score=1.0, group=group)
                    found.append((int(worth), hit(community=named[0], besides=tuple(named[1:]))))
        hits = [hit for _, hit in sorted(found, key=lambda point: -point[0])]
        lines = [f"- [{number}] {safe(hit.text)}" for number, hit in enumerate(hits, 1)]
        while lines and count("\n".join(lines)) > tokens:
            lines.pop()
        text = "\n".join(lines)
        numbered: frozenset[Scope] = frozenset({"community"})
        return Context(text=text, tokens=count(text), hits=tuple(hits[: len(lines)]), numbered=numbered)

    async def _drifted(self, context: Context) -> Context:
        """Return a context with what is found for further questions."""
        asked, hits = {self.question}, {(hit.scope, hit.id): hit for hit in context.hits}
        as_of, known_at = self.chosen.get("as_of"), self.chosen.get("known_at")
        told = {"as of": ("as_of", as_of), "as known on": ("known_at", known_at)}
        moments = {
            word: to_datetime(given(one, name)[0]) for word, (name, one) in told.items() if one is not None
        }
        lines, (tokens, count) = context.lines, self._budget
        if as_of is None and not self._narrows:
            # A report tells of its run's own time, and of the whole group.
            near = {"known_at": known_at, "scopes": ["community"]}
            lines = [*(await replace(self, chosen=near).context()).lines, *lines]
        for depth in range(1, _ROUNDS + 1):
            if self.spending.lacks("follow_up", self.question, lines, tokens):
                break
            further = [one for one in await self.suggested(lines, kept=1) if one not in asked]
            if not further:
                break
            asked.update(further)
            for one in further:
                for hit in (await replace(self, question=one).context()).hits:
                    score = hit.score * _FAINTER**depth
                    known = hits.get((hit.scope, hit.id))
                    hits[hit.scope, hit.id] = replace(hit, score=max(score, known.score if known else 0.0))
            context = write([*hits.values()], tokens, query=self.question, count=count, moments=moments)
            lines = context.lines
        return context


def _batches(reports: Sequence[Community]) -> Iterator[list[Community]]:
    batch: list[Community] = []
    for one in reports:
        if batch and count_tokens(" ".join(map(_report, [*batch, one]))) > _REPORTS:
            yield batch
            batch = []
        batch.append(one)
    if batch:
        yield batch


def _report(one: Community) -> str:
    return safe(" ".join([one.text, *(str(found["summary"]) for found in one.report.get("findings", ()))]))
