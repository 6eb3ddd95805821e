"""What deciding works with: an episode, what is known of its group, answers so far, and open questions.

`KnownState` and `KnownGraph` are what deciding may read of a group: `GroupState` and `GroupGraph` implement
them with the true state, `AheadState` and `AheadGraph` with uncommitted episodes added.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from kgray.derivation.entities import EntityNote, Fold
from kgray.derivation.group import SlotKey
from kgray.derivation.relations import Relations
from kgray.derivation.statements import Statement, StatementKey
from kgray.ingest.candidates import NameLookUp, Nearest
from kgray.ontology import Ontology
from kgray.ports import Answer, Question, Vector
from kgray.records import Episode, Extraction, Place, Value

K = TypeVar("K", bound=Hashable)
V_co = TypeVar("V_co", covariant=True)


class LookUp(Protocol[K, V_co]):
    """What a dict and a view over one have in common. It has no length."""

    def get(self, key: K, /) -> V_co | None:
        """Return the value of a key; None = there is none."""
        ...

    def __getitem__(self, key: K, /) -> V_co:
        """Return the value of a key; raises KeyError where there is none."""
        ...

    def __contains__(self, key: object, /) -> bool:
        """Whether a key has a value."""
        ...

    def __iter__(self) -> Iterator[K]:
        """Yield the stored keys, without those that a view adds."""
        ...


class KnownGraph(Protocol):
    """The part of a `GroupGraph` that deciding reads."""

    @property
    def fold(self) -> Fold: ...  # noqa: D102 - each as in GroupGraph
    @property
    def births(self) -> LookUp[str, Place]: ...  # noqa: D102
    @property
    def entities(self) -> LookUp[str, EntityNote]: ...  # noqa: D102
    @property
    def statements(self) -> LookUp[str, Statement]: ...  # noqa: D102
    @property
    def buckets(self) -> LookUp[StatementKey, list[str]]: ...  # noqa: D102
    @property
    def slots(self) -> LookUp[SlotKey, list[str]]: ...  # noqa: D102
    @property
    def by_relation(self) -> LookUp[str, list[str]]: ...  # noqa: D102
    @property
    def by_ends(self) -> LookUp[tuple[str, str | Value], list[str]]: ...  # noqa: D102
    @property
    def relations(self) -> Relations: ...  # noqa: D102

    def verdict(self, a: str, b: str) -> bool | None:
        """Return whether two statements were found exclusive; None = never judged."""
        ...


class KnownState(Protocol):
    """The part of a `GroupState` that deciding reads.

    ontology_settled: whether the ontology's rulings were compared with the stored ones in this run.
    """

    @property
    def graph(self) -> KnownGraph: ...  # noqa: D102
    @property
    def names(self) -> NameLookUp: ...  # noqa: D102
    @property
    def nearest(self) -> Nearest: ...  # noqa: D102
    @property
    def ontology_settled(self) -> bool: ...  # noqa: D102
    @property
    def statement_vectors(self) -> Mapping[str, Vector]: ...  # noqa: D102

    def is_guess(self, entity: str) -> bool:
        """Whether an entity stands for an open question; never true of the true state."""
        ...

    def near_scored(self, vector: Vector, floor: float, limit: int) -> list[tuple[float, str]]:
        """Return (cosine, shown entity) of at most `limit` near names, nearest first."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadEpisode:
    """An episode with what its text says."""

    episode: Episode
    extraction: Extraction


@dataclass(slots=True)
class Answers:
    """What an episode's earlier rounds gave: vectors by text, answers by question (R21)."""

    vectors: dict[str, Vector] = field(default_factory=dict)
    said: dict[Question, Answer] = field(default_factory=dict)


@dataclass(slots=True)
class Questions:
    """What is missing before an episode can be decided: questions, and texts to embed."""

    texts: list[str] = field(default_factory=list)
    open: list[Question] = field(default_factory=list)
    early: bool = False  # on a view: they depend on a guess, and may change with its answer

    def ask(self, question: Question) -> None:
        """Add a question once."""
        if question not in self.open:
            self.open.append(question)

    def __bool__(self) -> bool:
        """Whether anything is missing."""
        return bool(self.texts or self.open)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The settings that deciding depends on; fixed for a run."""

    ontology: Ontology
    judge: str  # identity of the judge, recorded with its rulings and verdicts
    judging: str = "relation"  # or "statement": every compared pair is asked about


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One episode's input to the steps of deciding.

    extraction  as shaped to the ontology
    asked       collects the open questions
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
        """Return the answer to a question; where there is none yet, note it as open and return None."""
        answer = self.answers.said.get(question)
        if answer is None:
            self.asked.ask(question)
        return answer
