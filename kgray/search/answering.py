"""An answer from a context: its citations checked, also while it still arrives. No model is called here."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kgray.errors import Cost, InputError
from kgray.ports import AnswerRequest
from kgray.prompting.prompts import answer_data
from kgray.prompting.tokens import count_tokens
from kgray.search.context import Context

NOT_IN_MEMORY = "NOT IN MEMORY"  # what the prompt asks for; a person is shown the sentence below
_SAID_SO = "Not in memory."
ROOM, LEAST_ROOM = 1024, 32  # tokens of a reply
_CITED = re.compile(r"\s*\[(\d{1,6}(?:\s*[,;]\s*\d{1,6})*)\]")
_OPEN = re.compile(r"\s*\[[\d\s,;]*$|\s+$")  # what may yet become a citation

NO_COST = Cost()
OnText = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """An answer and where it is from."""

    text: str
    found: bool  # False: the memory does not hold it, and `text` says so
    context: Context
    # (number in the text, episode id, the client's id), by number; or (number, community id, its name)
    citations: tuple[tuple[int, str, str | None], ...] = ()
    dropped: tuple[int, ...] = ()  # cited numbers that the context does not have; `text` is without them
    cost: Cost = NO_COST

    def as_dict(self) -> dict[str, Any]:
        """Return the form that `kgray ask --json` prints."""
        names = ("community", "name") if "community" in self.context.numbered else ("episode", "client_id")
        cited = [dict(zip(("number", *names), row, strict=True)) for row in self.citations]
        head = {"answer": self.text, "found": self.found, "citations": cited, "dropped": list(self.dropped)}
        return head | self.cost._asdict()


def request_of(
    task: str,
    question: str,
    lines: Sequence[str],
    *,
    head: str,
    max_calls: int | None,
    max_tokens: int | None,
) -> AnswerRequest:
    """Return the request to a model. Raises InputError where a bound does not pay for one call."""
    if max_calls is not None and max_calls < 1:
        raise InputError(f"max_calls is {max_calls}: an answer needs 1 call", field="max_calls")
    data = answer_data(question, lines)
    room = ROOM
    if max_tokens is not None:
        prompt = prompt_of(head, question, lines)
        room = min(ROOM, max_tokens - prompt)
        if room < LEAST_ROOM:
            raise InputError(
                f"max_tokens is {max_tokens}, but the prompt alone takes about {prompt}: allow "
                f"{prompt + LEAST_ROOM} or more, or a smaller context (tokens)",
                field="max_tokens",
            )
    return AnswerRequest(task=task, question=question, head=head, data=data, room=room, max_calls=max_calls)


def prompt_of(head: str, question: str, lines: Sequence[str]) -> int:
    """Return about how many tokens a prompt takes."""
    return count_tokens(head) + count_tokens(answer_data(question, lines))


class Checked:
    """A reply as it arrives: what is shown of it has only citations that exist."""

    def __init__(self, context: Context, on_text: OnText) -> None:
        """on_text: called with each piece that is sure."""
        self._context, self._on_text = context, on_text
        self._raw, self._shown = "", 0
        self._cited, self._dropped = set[int](), set[int]()

    def take(self, piece: str) -> None:
        """Take a piece; pass on what can no longer change."""
        self._raw += piece
        if not NOT_IN_MEMORY.startswith(self._bare()):
            self._show(_OPEN.sub("", self._raw))

    def end(self, cost: Cost = NO_COST) -> Answered:
        """Return the answer, all of which has been passed on; "Not in memory." where no model was asked."""
        if not self._raw or self._bare().startswith(NOT_IN_MEMORY):
            self._on_text(_SAID_SO)
            return Answered(text=_SAID_SO, found=False, context=self._context, cost=cost)
        text = self._show(self._raw.rstrip())
        cited = [(number, self._context.cited[number - 1].told_by) for number in sorted(self._cited)]
        citations = tuple((number, *episode) for number, told_by in cited for episode in told_by)
        seen, dropped = self._context, tuple(sorted(self._dropped))
        return Answered(
            text=text.strip(), found=True, context=seen, citations=citations, dropped=dropped, cost=cost
        )

    def _bare(self) -> str:
        return self._raw.lstrip(" \n*\"'")[: len(NOT_IN_MEMORY)].upper()

    def _show(self, raw: str) -> str:
        text = _CITED.sub(self._existing, raw.lstrip())
        if more := text[self._shown :]:
            self._on_text(more)
            self._shown = len(text)
        return text

    def _existing(self, found: re.Match[str]) -> str:
        """Return a citation without the numbers that no line has; "" for one that has no other."""
        numbers = list(dict.fromkeys(map(int, re.findall(r"\d+", found[1]))))
        kept = [number for number in numbers if 1 <= number <= len(self._context.cited)]
        self._cited.update(kept)
        self._dropped.update(set(numbers) - set(kept))
        blank = found[0][: len(found[0]) - len(found[0].lstrip())]
        return f"{blank}[{', '.join(map(str, kept))}]" if kept else ""
