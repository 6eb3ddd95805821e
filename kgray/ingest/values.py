"""The values that pass between the steps of deciding."""

from __future__ import annotations

from dataclasses import dataclass, field

from kgray.ingest.known import KnownState
from kgray.ontology import Ontology
from kgray.ports import Answer, Question, Vector
from kgray.records import Episode, Extraction


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadEpisode:
    """An episode with what its text says."""

    episode: Episode
    extraction: Extraction


@dataclass(slots=True)
class Answers:
    """What is known of an episode's own rounds so far: vectors by text, answers by question (R21)."""

    vectors: dict[str, Vector] = field(default_factory=dict)
    said: dict[Question, Answer] = field(default_factory=dict)


@dataclass(slots=True)
class Questions:
    """What is missing before an episode can be decided: one request, and texts to embed."""

    texts: list[str] = field(default_factory=list)
    open: list[Question] = field(default_factory=list)
    early: bool = False  # on a view: the questions hang on a guess, and will change with its answer

    def ask(self, question: Question) -> None:
        """Add a question once."""
        if question not in self.open:
            self.open.append(question)

    def __bool__(self) -> bool:
        """Whether anything is missing."""
        return bool(self.texts or self.open)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What deciding goes by, besides state and answers: fixed for a run."""

    ontology: Ontology
    judge: str  # identity of the judge, recorded with what it rules
    judging: str = "relation"  # or "statement": every compared pair is asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One episode before the steps of deciding.

    extraction  as the ontology lets it stand
    state       what is known of the group
    asked       takes what is open
    """

    episode: Episode
    extraction: Extraction
    state: KnownState
    answers: Answers
    rules: Rules
    asked: Questions

    @property
    def sequence(self) -> int:
        """The episode's place in the group's order."""
        return self.episode.sequence

    def answer(self, question: Question) -> Answer | None:
        """Return the answer to a question; where there is none yet, the question is asked."""
        answer = self.answers.said.get(question)
        if answer is None:
            self.asked.ask(question)
        return answer
