"""The topics of invented people, read from topics.txt and smalltalk.txt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent
FILES = (_FOLDER / "topics.txt", _FOLDER / "smalltalk.txt")


@dataclass(slots=True)
class Topic:
    """A topic; the fields are the kinds of lines that topics.txt explains at its top."""

    name: str
    values: list[tuple[str, str]] = field(default_factory=list)
    say: list[str] = field(default_factory=list)
    ask: list[tuple[str, str]] = field(default_factory=list)  # question of the other, reply
    follow_ups: list[tuple[str, str, str]] = field(
        default_factory=list
    )  # and the later question about the reply
    q: list[str] = field(default_factory=list)
    near: list[str] = field(default_factory=list)
    when: list[str] = field(default_factory=list)
    infer: list[str] = field(default_factory=list)


@cache
def topics() -> tuple[Topic, ...]:
    """Return all topics."""
    parsed: list[Topic] = []
    for kind, text in _lines(FILES[0]):
        if kind == "topic":
            parsed.append(Topic(text))
            continue
        topic = parsed[-1]
        if kind == "x":
            for value in text.split(" | "):
                first, _, second = value.partition("; ")
                topic.values.append((first, second))
        elif kind == "ask":
            question, reply = text.split(" => ")
            topic.ask.append((question, reply))
        elif kind == "more":
            question, reply_and_question = text.split(" => ")
            reply, later_question = reply_and_question.split(" ? ")
            topic.follow_ups.append((question, reply, later_question))
        else:
            getattr(topic, kind).append(text)
    return tuple(parsed)


@cache
def small_talk() -> Mapping[str, tuple[str, ...]]:
    """Return turns that tell nothing, by their place."""
    texts: dict[str, tuple[str, ...]] = {}
    for place, text in _lines(FILES[1]):
        texts[place] = (*texts.get(place, ()), text)
    return texts


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            kind, _, text = line.partition(": ")
            yield kind, text
