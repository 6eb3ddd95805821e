"""An answer from a context: its citations are checked while it arrives. This module calls no model."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kgray.domain.graph import Hit
from kgray.errors import Cost
from kgray.search.context import Context

NOT_IN_MEMORY = "NOT IN MEMORY"  # the model's reply, by the prompt; the user sees the sentence below
_SAID_SO = "Not in memory."
GENERAL = "[general knowledge]"  # the mark after statements that are not in the memory
ROOM, LEAST_ROOM = 1024, 32  # tokens of a reply
_CITED = re.compile(r"\s*\[(\d{1,6}(?:\s*[,;]\s*\d{1,6})*)\]")
_OPEN = re.compile(r"\s*\[[\d\s,;]*$|\s+$")  # the beginning of a possible citation

NO_COST = Cost()
OnText = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """An answer and its sources."""

    text: str
    found: bool  # False: the memory has no answer, and `text` says so
    sources: tuple[tuple[int, Hit], ...] = ()  # (number in the text, cited hit), by number
    dropped: tuple[int, ...] = ()  # cited numbers that the context does not have; `text` is without them
    general: bool = False  # some statements are general knowledge, and have its mark
    suggestions: tuple[str, ...] = ()  # follow-up questions
    keywords: Mapping[str, tuple[str, ...]] | None = None  # high_level, low_level: used for the search
    reports: Mapping[str, int] | None = None  # of mode global: read, left_out, points
    cost: Cost = NO_COST

    @property
    def citations(self) -> tuple[tuple[int, str, str | None], ...]:
        """(number, episode id, the client's id) by number; of a community (number, its id, its name)."""
        return tuple((number, *teller) for number, hit in self.sources for teller in hit.told_by)

    def as_dict(self) -> dict[str, Any]:
        """Return the form that `kgray ask --json` prints."""
        cited = []
        for number, hit in self.sources:
            names = ("community", "name") if hit.scope == "community" else ("episode", "client_id")
            cited += [{"number": number, **dict(zip(names, row, strict=True))} for row in hit.told_by]
        head = {"answer": self.text, "found": self.found, "citations": cited, "dropped": list(self.dropped)}
        head["sources"] = [{"number": number, **hit.as_dict()} for number, hit in self.sources]
        head |= {"general_knowledge": self.general, "suggestions": list(self.suggestions)}
        extras = {"keywords": self.keywords, "reports": self.reports}
        head |= {name: dict(value) for name, value in extras.items() if value is not None}
        return head | self.cost._asdict()


def without_citations(text: str) -> str:
    """Return the text of an answer without its numbers, which are valid for its own context only."""
    return _CITED.sub("", text)


class Checked:
    """A reply as it arrives, without citations that the context does not have."""

    def __init__(self, context: Context, on_text: OnText) -> None:
        """on_text: called with each piece of final text."""
        self._context, self._on_text = context, on_text
        self._raw, self._length = "", 0
        self._cited, self._dropped = set[int](), set[int]()

    def take(self, piece: str) -> None:
        """Take a piece; pass on the text that is final."""
        self._raw += piece
        if not NOT_IN_MEMORY.startswith(self._bare()):
            self._show(_OPEN.sub("", self._raw))

    def end(self) -> Answered:
        """Pass on the rest and return the answer; it is "Not in memory." if no piece arrived."""
        if not self._raw or self._bare().startswith(NOT_IN_MEMORY):
            self._on_text(_SAID_SO)
            return Answered(text=_SAID_SO, found=False)
        text = self._show(self._raw.rstrip()).strip()
        sources = tuple((number, self._context.cited[number - 1]) for number in sorted(self._cited))
        return Answered(
            text=text,
            found=True,
            sources=sources,
            dropped=tuple(sorted(self._dropped)),
            general=GENERAL in text.casefold(),
        )

    def _bare(self) -> str:
        return self._raw.lstrip(" \n*\"'[(")[: len(NOT_IN_MEMORY)].upper()

    def _show(self, raw: str) -> str:
        text = _CITED.sub(self._existing, raw.lstrip())
        if new := text[self._length :]:
            self._on_text(new)
            self._length = len(text)
        return text

    def _existing(self, match: re.Match[str]) -> str:
        """Return a citation without its unknown numbers; "" if no number remains."""
        numbers = list(dict.fromkeys(map(int, re.findall(r"\d+", match[1]))))
        valid = [number for number in numbers if 1 <= number <= len(self._context.cited)]
        self._cited.update(valid)
        self._dropped.update(set(numbers) - set(valid))
        blank = match[0][: len(match[0]) - len(match[0].lstrip())]
        return f"{blank}[{', '.join(map(str, valid))}]" if valid else ""
