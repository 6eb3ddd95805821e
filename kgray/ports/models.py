"""The interfaces of models. Async, because they may be behind a network."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from kgray.errors import Cost
from kgray.records import Episode, Extraction, canonical

Vector = NDArray[np.float32]  # (d,), unit length
Matrix = NDArray[np.float32]  # (n, d), rows of unit length

QuestionKind = Literal["entity", "relation", "cardinality", "variant", "verdict"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One thing that `decide` cannot know by itself; a value, equal by content.

    kind         item                                       answer (`replies` validates it)
    entity       the mention's name                         {"duplicate_of": i or None}
    relation     "NAME" (the newer), candidates: ("OTHER",) {"same_as" | "inverse_of" | "excludes": True} or {}
    cardinality  "NAME"                                     {"cardinality": "single" | "single_object" | "many" | "depends"}
    variant      the new wording                            {"duplicate_of": i or None}; None = a new variant
    verdict      the new wording                            {"contradicts": [i, ...]}, indexes into candidates

    candidates: what indexes point into, oldest first; an entity that bears the mention's name has that one
    here, another one the name that it was first given. cards: for entities one text for the mention,
    then one a candidate (name, type, the sentence that introduced it); for relations and
    cardinality example wordings. Holds only text that can never change (R21).
    """

    kind: QuestionKind
    item: str
    candidates: tuple[str, ...] = ()
    cards: tuple[str, ...] = ()

    def brief(self) -> dict[str, Any]:
        """Return the form that a script matches: {"kind", "items"}; items = [item, [candidates]]."""
        items: list[Any] = [self.item]
        if self.candidates:
            items.append(list(self.candidates))
        return {"kind": self.kind, "items": items}


Answer = Mapping[str, Any]  # as in the table of Question


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractionRequest:
    """One episode with its previous context (R22), oldest first. No graph state."""

    episode: Episode
    previous: tuple[Episode, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionRequest:
    """One episode's open questions in one round, or those about one entity (R21)."""

    episode: Episode
    questions: tuple[Question, ...]

    def key(self, judge: str) -> str:
        """Return its key for a judge without prompts, named with its version: 64 hex digits."""
        content = canonical([judge, [asdict(question) for question in self.questions]])
        return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Answers in the order of the questions, and what they cost."""

    answers: tuple[Answer, ...]
    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def cost(self) -> Cost:
        """The three as one value."""
        return Cost(self.calls, self.prompt_tokens, self.completion_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRequest:
    """A question of a user, with what the memory holds on it.

    task        answer; points, follow_up: steps on the way to one
    head, data  the prompt: instructions; the question and the context, fenced
    room        most tokens of the reply
    max_calls   most calls of the model; None = any number
    """

    task: str
    question: str
    head: str
    data: str
    room: int
    max_calls: int | None = None


class Answerer(Protocol):
    """Answers users' questions in plain text."""

    async def answer(self, request: AnswerRequest, on_text: Callable[[str], None]) -> Cost:
        """Call `on_text` with each piece of the reply as it arrives; return what it cost.

        Raises Refused, InvalidAnswer for an empty reply, Unavailable.
        """


class Extractor(Protocol):
    """Reads episodes."""

    @property
    def identity(self) -> str:
        """Model, parameters and version; stored with each extraction."""

    async def extract(self, request: ExtractionRequest) -> Extraction:
        """Return all that the episode says.

        Raises Refused or InvalidAnswer where the episode itself is at fault, Unavailable where the
        model is. Equal requests may be made again and need not give the same answer.
        """


class Judge(Protocol):
    """Answers the questions of `decide`."""

    identity: str

    def key(self, request: QuestionRequest) -> str:
        """Return the request's key: model, parameters and the bytes of its prompt (R21)."""

    async def judge(self, request: QuestionRequest) -> Judged:
        """Return one validated answer a question. Raises as `Extractor.extract` does."""


class Embedder(Protocol):
    """Texts to unit vectors; equal texts give equal vectors."""

    identity: str  # stored with the data folder, which refuses another
    dimensions: int  # 0 = not known before the first answer

    async def embed(self, texts: Sequence[str]) -> Matrix:
        """Return (len(texts), dimensions); (0, dimensions) for no text; a text of no words is still unit length."""


class Embedding(NamedTuple):
    """What an embedder says of a text.

    weights     of its tokens, as `rows.weight_bytes` gives them (b"" = of no words); None: it weighs none.
                How well two texts fit is the sum, over the tokens of both, of the products of their weights
    """

    vector: Vector
    weights: bytes | None = None


Embed = Callable[[Sequence[str]], Awaitable[list[Embedding]]]


@runtime_checkable
class SparseEmbedder(Protocol):
    """An embedder that weighs a text's tokens too: a lexical signal that the model has learnt."""

    async def embed_both(self, texts: Sequence[str]) -> tuple[Matrix, list[bytes]]:
        """Return the vectors as `Embedder.embed` does, and from the same pass the weights of each text."""


async def embedded(embedder: Embedder, texts: Sequence[str]) -> list[Embedding]:
    """Return what an embedder says of each text, in one pass."""
    if isinstance(embedder, SparseEmbedder):
        return [Embedding(*both) for both in zip(*await embedder.embed_both(texts), strict=True)]
    return [Embedding(vector) for vector in await embedder.embed(texts)]


class Reranker(Protocol):
    """A cross-encoder: reads a query and a text together, and says how well they fit."""

    identity: str

    async def score(self, query: str, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return (len(texts),): each in [0, 1], 1 = the text answers the query. Raises Unavailable."""


class ResponseCache(Protocol):
    """Accepted replies by request, for backfills; bounded: what is evicted is asked again.

    key: model, parameters and the bytes of the prompt. The group of the asking episode is part of it: two
    groups never share a reply. Each entry notes the episodes whose text it was asked or used with
    (context: previous episodes in the prompt), and goes with the first of them that is removed (R25).
    """

    def recall(self, key: str, asking: Episode, context: Sequence[Episode] = ()) -> str | None:
        """Return the reply that was kept; None where there is none."""

    def keep(self, key: str, reply: str, asking: Episode, context: Sequence[Episode] = ()) -> None:
        """Keep a reply that was found valid; of an episode that the store does not hold, nothing is kept."""


SummaryTask = Literal["community", "community_report", "profile"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryRequest:
    """What a model is to summarise.

    task        answer; points, follow_up: steps on the way to one
    head, data  the prompt: instructions; what is shown, fenced
    room        most tokens of the reply
    facts       ids of the facts that are shown, by their index there
    """

    task: SummaryTask
    head: str
    data: str
    room: int
    facts: tuple[str, ...] = ()


class Summarizer(Protocol):
    """Names and summarises communities, and says what is known of an entity."""

    identity: str  # model and parameters: part of the key of what it wrote

    async def write(self, request: SummaryRequest) -> tuple[Mapping[str, Any], Cost]:
        """Return a checked reply (`summaries.parse_summary`) and what it cost.

        Raises Refused, InvalidAnswer, Unavailable; each with what it cost.
        """
