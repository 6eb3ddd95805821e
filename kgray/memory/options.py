"""The keyword options that several methods of a memory share, as types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

from kgray.memory.moments import When
from kgray.models.prompting.tokens import Counter
from kgray.ports import SearchScope
from kgray.search import Filters, Method, Recipe, Reranker, Template


class SelectionOptions(TypedDict, total=False):
    """The options that select hits; their meaning: `kgray.search.Query`."""

    as_of: When | None
    known_at: When | None
    said_after: When | None
    said_before: When | None
    scopes: Sequence[SearchScope]
    recipe: str | Recipe
    filters: Filters | None
    methods: Sequence[Method] | None
    reranker: Reranker | None
    centre: str | None
    seeds: Sequence[str]
    any_time: bool
    recent: int | None
    depth: int | None
    mmr_lambda: float | None


class SearchOptions(SelectionOptions, total=False):
    """The options of `search` and `explain`; their meaning: `kgray.search.Query`."""

    limit: int


class GraphitiOptions(TypedDict, total=False):
    """The options of `import_from` for a Graphiti database. from_group: its group_id; None = the only one."""

    user: str
    password: str
    database: str | None
    from_group: str | None


class AskOptions(SelectionOptions, total=False):
    """The options of `ask`: those of `context` and the fields of `kgray.memory.asking.AnswerOptions`."""

    tokens: int
    limit: int | None
    count: Counter
    template: Template
    mode: str
    max_calls: int | None
    max_tokens: int | None
    history: Sequence[Any]
    history_tokens: int
    general: bool
    form: str
    level: int | None
    min_rating: int
    report_tokens: int
    high: Sequence[str]
    low: Sequence[str]
    suggest: int


class CorrectionOptions(TypedDict, total=False):
    """The fields of `kgray.domain.records.Operation` that a caller of `request` and `foresee` sets."""

    entities: tuple[str, ...]
    surfaces: tuple[str, ...]
    target: int | None
    episodes: tuple[str, ...]
    source: str | None
    everything: bool
