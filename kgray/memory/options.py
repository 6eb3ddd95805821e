"""The arguments that several methods of a memory share: moments, limits, and keyword options as types."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypedDict

from kgray.domain import times
from kgray.domain.times import Instant
from kgray.errors import InputError
from kgray.models.prompting.tokens import Counter
from kgray.ports import SearchScope
from kgray.search import Filters, Method, Recipe, Reranker, Template

MAX_ROWS = 1000
When = str | int | float | datetime  # ISO 8601, epoch seconds, or a datetime


def instant_of(value: When | None, field: str) -> Instant | None:
    """Return the instant of an argument. Raises InputError with the argument's name."""
    return None if value is None else times.given(value, field)[0]


def check_limit(limit: int, maximum: int = MAX_ROWS) -> None:
    """Raise InputError for a limit that is not 1 to `maximum`."""
    if not 1 <= limit <= maximum:
        raise InputError(f"limit is {limit}: use 1 to {maximum}", field="limit")


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
