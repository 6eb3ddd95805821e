"""Read the worked cases of docs/semantics.md: the tables of that page are the data of the tests.

The page explains the notation. A row that this module cannot read raises ValueError with the row's name, so
that no row is skipped by mistake.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, get_args

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "semantics.md"
SECTION = "## Worked cases"
HISTORY_HEADER = ["case", "messages", "spans", "arrival"]
STORY_HEADER = ["case", "situation", "result", "tests"]

Arrival = Literal["any order", "this order", "one episode"]
Span = tuple[int | None, int | None, int]  # start (None = unknown), end (None = open), number of episodes

_NAME, _DAY = r"(?P<name>[A-Z]\w*)", r"-?\d+"
_STATED_END, _REFERENCE = rf"(?: until (?P<end>{_DAY}))?", rf" \((?P<day>{_DAY})\)"
_SENTENCE = r'(?: "(?P<sentence>[^"]+)")?'
_MESSAGES = {
    "present": re.compile(rf"{_NAME}@(?P<day>{_DAY}){_STATED_END}{_SENTENCE}"),
    "since": re.compile(rf"{_NAME} since (?P<start>{_DAY}){_STATED_END}{_REFERENCE}{_SENTENCE}"),
    "left": re.compile(rf"left {_NAME} (?P<end>{_DAY}){_REFERENCE}{_SENTENCE}"),
    "never": re.compile(rf"never {_NAME}{_REFERENCE}{_SENTENCE}"),
}
_SPAN = re.compile(rf"\[(?P<start>\?|{_DAY}),(?P<end>-|{_DAY})\)(?: by (?P<episodes>\d+))?")
_STATEMENT = re.compile(rf"{_NAME} (?P<spans>{_SPAN.pattern.replace('?P<', '?P<first_')}(?:, .+)?)")
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


@dataclass(frozen=True, slots=True)
class Message:
    """One piece of evidence about "Alice works at NAME", in days.

    day        the reference time
    start      of a `holds`: its start; equal to `day` for the present tense. None for the other kinds
    end        of a `holds`: its stated end or None; of an `ended`: its instant
    sentence   the wording, where it is not the default one
    """

    kind: Literal["holds", "ended", "denied"]
    name: str
    day: int
    start: int | None = None
    end: int | None = None
    sentence: str = ""


@dataclass(frozen=True, slots=True)
class History:
    """A row of the table of histories: the messages in their order, and the spans by organisation."""

    case: str
    messages: tuple[Message, ...]
    spans: dict[str, list[Span]]
    arrival: Arrival

    @property
    def names_variants(self) -> bool:
        """True if a message has its own wording, so that a key may have several statements (R18)."""
        return any(message.sentence for message in self.messages)


@dataclass(frozen=True, slots=True)
class Story:
    """A row of the table of other cases: the tests that prove it, as (file, function)."""

    case: str
    tests: tuple[tuple[str, str], ...]


@cache
def histories() -> tuple[History, ...]:
    """Return the rows of the table of histories, in the order of the page."""
    return tuple(map(read_history, _rows(HISTORY_HEADER)))


@cache
def stories() -> tuple[Story, ...]:
    """Return the rows of the table of other cases, in the order of the page."""
    return tuple(map(read_story, _rows(STORY_HEADER)))


def section() -> str:
    """Return the text of the section with the worked cases."""
    return PAGE.read_text(encoding="utf-8").split(f"\n{SECTION}\n")[1].split("\n## ")[0]


def _rows(header: list[str]) -> Iterator[list[str]]:
    """Yield the cells of each row of the table with this header."""
    is_inside = False
    for line in section().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if is_inside and cells and set(line) - set("|- "):
            yield cells
        is_inside = cells == header or (is_inside and bool(cells))


def read_history(cells: list[str]) -> History:
    """Return the history that a row describes. Raises ValueError for a cell that is not in the notation."""
    case, messages, spans, arrival = cells
    if arrival not in get_args(Arrival):
        raise ValueError(f"case {case}: the arrival {arrival!r} is none of {get_args(Arrival)}")
    parts = _code(case, messages).split("; ")
    return History(case, tuple(read_message(case, part) for part in parts), _spans(case, spans), arrival)  # type: ignore[arg-type]


def read_message(case: str, text: str) -> Message:
    """Return the message that a part of a row describes. Raises ValueError for any other text."""
    for form, pattern in _MESSAGES.items():
        if (match := pattern.fullmatch(text)) is None:
            continue
        fields = match.groupdict()
        day, sentence = int(fields["day"]), fields["sentence"] or ""
        end = None if fields.get("end") is None else int(fields["end"])
        if form in ("left", "never"):
            kind: Literal["ended", "denied"] = "ended" if form == "left" else "denied"
            return Message(kind, fields["name"], day, end=end, sentence=sentence)
        start = day if form == "present" else int(fields["start"])
        return Message("holds", fields["name"], day, start, end, sentence)
    raise ValueError(f"case {case}: {text!r} is not a message in the notation of {PAGE.name}")


def _spans(case: str, cell: str) -> dict[str, list[Span]]:
    if cell == "none":
        return {}
    spans: dict[str, list[Span]] = {}
    for part in _code(case, cell).split("; "):
        if (statement := _STATEMENT.fullmatch(part)) is None:
            raise ValueError(f"case {case}: {part!r} is not a name with spans")
        for text in statement["spans"].split(", "):
            if (match := _SPAN.fullmatch(text)) is None:
                raise ValueError(f"case {case}: {text!r} is not a span")
            start = None if match["start"] == "?" else int(match["start"])
            end = None if match["end"] == "-" else int(match["end"])
            spans.setdefault(statement["name"], []).append((start, end, int(match["episodes"] or 1)))
    return spans


def _code(case: str, cell: str) -> str:
    if not (cell.startswith("`") and cell.endswith("`") and cell.count("`") == 2):
        raise ValueError(f"case {case}: {cell!r} is not one text between backticks")
    return cell.strip("`")


def read_story(cells: list[str]) -> Story:
    """Return the story that a row describes. Raises ValueError where the row names no test."""
    case, _, _, tests = cells
    named = tuple(_TEST.findall(tests))
    if not named or _TEST.sub("", tests).strip(", "):
        raise ValueError(f"case {case}: {tests!r} is not a list of tests as `tests/FILE.py::test_NAME`")
    return Story(case, named)
