"""The values of a labelled set: conversations, messages, entities, and the facts that they state."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from bench.labelled_set.spelling import normal_name, resembles

Part = Literal["development", "kept"]
MessageKind = Literal["message", "text", "json"]
FactStatus = Literal["current", "ended", "event", "denied"]
Ending = Literal["ended", "denied"]
CONTEXT = 4  # messages before a message, whose names its facts may use


@dataclass(frozen=True, slots=True)
class LabelledEntity:
    """An entity of one conversation.

    names      the names that occur in the conversation
    spellings  further names that a reader may use
    """

    id: str
    type: str
    names: tuple[str, ...]
    spellings: tuple[str, ...] = ()

    @property
    def accepted(self) -> frozenset[str]:
        """Every accepted name, normalised."""
        return frozenset(map(normal_name, (*self.names, *self.spellings)))


@dataclass(frozen=True, slots=True)
class FactEnd:
    """One end of a labelled fact.

    entities  ids of the entities that are accepted here
    names     their normalised names; a reader's name must be equal to an element
    values    accepted spellings of a value; a reader's text must resemble an element
    """

    entities: tuple[str, ...]
    names: frozenset[str]
    values: tuple[str, ...]

    def accepts(self, text: str) -> bool:
        """Return whether a reader's name or value is accepted here."""
        return normal_name(text) in self.names or any(resembles(value, text) for value in self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledFact:
    """A fact that a message states, or (`ending` is set) an earlier fact that it ends.

    cues      words or stems; a reader's relation name or sentence must contain a cue
    statuses  the accepted statuses; empty beside `ending`
    start, end  ISO dates at the precision that the text states ("2018", "2018-03"); None = not stated
    optional  a reader may list the fact or not
    """

    subject: FactEnd
    object: FactEnd
    cues: tuple[str, ...]
    statuses: tuple[FactStatus, ...] = ()
    start: str | None = None
    end: str | None = None
    optional: bool = False
    ending: Ending | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledMessage:
    """One message. text: a record for the kind json. mentions: ids of the entities that it names."""

    id: str
    kind: MessageKind
    at: str
    speaker: str | None
    text: Any
    mentions: tuple[str, ...]
    facts: tuple[LabelledFact, ...]
    ends: tuple[LabelledFact, ...]

    @property
    def rendered(self) -> str:
        """The text as a reader gets it; a record is JSON."""
        return self.text if isinstance(self.text, str) else json.dumps(self.text, ensure_ascii=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Messages of one source, in order; each becomes an episode of one group."""

    id: str
    part: Part
    entities: Mapping[str, LabelledEntity]
    messages: tuple[LabelledMessage, ...]
