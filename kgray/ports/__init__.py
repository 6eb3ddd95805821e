"""The ports: what the engine asks of models and stores. Arrays: (n, d) means n rows of width d.

models   who reads episodes, answers questions, embeds texts; what they are asked
writes   what a run writes, and what the ledger tells
store    log and graph, two faces of one store; its views
"""

from __future__ import annotations

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
from kgray.ports.store import GraphView, SearchScope, Store, Writer
from kgray.ports.writes import (
    Acceptance,
    Answered,
    Commit,
    Declined,
    Extracted,
    Failed,
    FailedEpisode,
    Failure,
    GroupCounts,
    NamedVector,
    Write,
    conflict,
)

__all__ = [
    "Acceptance",
    "Answer",
    "Answered",
    "Commit",
    "Declined",
    "Embedder",
    "Extracted",
    "ExtractionRequest",
    "Extractor",
    "Failed",
    "FailedEpisode",
    "Failure",
    "GraphView",
    "GroupCounts",
    "Judge",
    "Judged",
    "Matrix",
    "NamedVector",
    "Question",
    "QuestionKind",
    "QuestionRequest",
    "ResponseCache",
    "SearchScope",
    "Store",
    "Vector",
    "Write",
    "Writer",
    "conflict",
]
