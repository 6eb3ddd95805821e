"""The ports: what the engine asks of models and stores. Arrays: (n, d) means n rows of width d.

models   who reads episodes, answers questions, embeds texts; what they are asked
store    log and graph, two faces of one store; row changes; views of the graph
"""

from __future__ import annotations

from kgray.kinds import SearchScope
from kgray.ports.models import (
    Answer,
    Embedder,
    ExtractionRequest,
    Extractor,
    Judge,
    Judged,
    Matrix,
    Question,
    QuestionKind,
    QuestionRequest,
    ResponseCache,
    Vector,
)
from kgray.ports.store import (
    Appending,
    GraphView,
    GroupCounts,
    GroupHead,
    Patch,
    RowChanges,
    Store,
    Writer,
    at_one_moment,
)

__all__ = [
    "Answer",
    "Appending",
    "Embedder",
    "ExtractionRequest",
    "Extractor",
    "GraphView",
    "GroupCounts",
    "GroupHead",
    "Judge",
    "Judged",
    "Matrix",
    "Patch",
    "Question",
    "QuestionKind",
    "QuestionRequest",
    "ResponseCache",
    "RowChanges",
    "SearchScope",
    "Store",
    "Vector",
    "Writer",
    "at_one_moment",
]
