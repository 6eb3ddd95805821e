"""Conversations with questions whose evidence or answers are known."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message. at: ISO 8601; session: the part of the conversation that it belongs to."""

    id: str
    text: str
    speaker: str | None = None
    at: str | None = None
    session: str = ""
    source: str = "default"

    def row(self) -> dict[str, Any]:
        """Return the row that `Memory.add_many` takes."""
        names = ("id", "text", "speaker", "at", "source")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question.

    type        of the data set's own naming
    evidence    ids of the messages that answer it; () = nothing does, or it is not known
    answer      the right answer, "" = not given
    at          when it is asked, ISO 8601; None = now
    apart       no part of overall figures: it asks for what is not there, or of the wrong person
    """

    id: str
    text: str
    type: str
    evidence: tuple[str, ...] = ()
    answer: str = ""
    at: str | None = None
    apart: bool = False


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """One conversation, a group of its own."""

    name: str
    messages: tuple[Message, ...]
    questions: tuple[Question, ...]

    @cached_property
    def texts(self) -> dict[str, str]:
        """Message id -> its text."""
        return {message.id: message.text for message in self.messages}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """What a file holds; notes: what of it could not be used, one line each."""

    conversations: tuple[Conversation, ...]
    notes: tuple[str, ...] = ()
