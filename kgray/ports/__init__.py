"""The ports: what the engine asks of models and stores. Arrays: (n, d) means n rows of width d.

models   extractor, judge, embedder, reply cache, and the requests that they get
store    the store (log and graph); row changes; views of the graph
"""

from __future__ import annotations

from kgray.kinds import SearchScope
from kgray.ports.models import (
    Answer,
    Answerer,
    AnswerRequest,
    Embed,
    Embedder,
    Embedding,
    ExtractionRequest,
    Extractor,
    Judge,
    Judged,
    Matrix,
    Question,
    QuestionKind,
    QuestionRequest,
    Reranker,
    ResponseCache,
    SparseEmbedder,
    Summarizer,
    SummaryRequest,
    SummaryTask,
    Vector,
    embedded,
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
    shard_of,
)

__all__ = [
    "Answer",
    "AnswerRequest",
    "Answerer",
    "Appending",
    "Embed",
    "Embedder",
    "Embedding",
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
    "Reranker",
    "ResponseCache",
    "RowChanges",
    "SearchScope",
    "SparseEmbedder",
    "Store",
    "Summarizer",
    "SummaryRequest",
    "SummaryTask",
    "Vector",
    "Writer",
    "at_one_moment",
    "embedded",
    "shard_of",
]
