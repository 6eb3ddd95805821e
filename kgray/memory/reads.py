"""The reads of `Memory`: of one group, as of any moment, as known at any moment. None asks a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from kgray import ports, times
from kgray.communities.reading import ShownCommunity, list_of, one_of
from kgray.derivation import dump as dumping
from kgray.derivation.stored import view_now
from kgray.derivation.view import View
from kgray.graph import Community, Hit
from kgray.memory import windows
from kgray.memory.answers import EntityCount, History, Shown, described, entities_like, history_of
from kgray.memory.naming import id_called
from kgray.memory.reports import derived, dumped, shown
from kgray.memory.reviewing import LikelyPair, likely_pairs
from kgray.ports import Embedder, GraphView, SearchScope, Store, at_one_moment
from kgray.prompting.tokens import Counter, count_tokens
from kgray.records import check_group
from kgray.search import Context, Filters, Method, Query, Ranking, Recipe, Reranker, Searcher
from kgray.search import context as build_context
from kgray.spans import span
from kgray.times import Instant

_T = TypeVar("_T")
When = str | int | float | datetime  # ISO 8601, epoch seconds, or a datetime
_MOMENTS = ("as_of", "known_at", "said_after", "said_before")
_LISTS = ("scopes", "seeds", "methods")
_VIEWS = 2  # known_at views kept: searches at one moment often follow one another


class GroupReads:
    """Reads of one store."""

    def __init__(self, store: Store, embedder: Embedder, model: ports.Reranker | None = None) -> None:
        self.store = store
        self.embedder = embedder
        self._searcher = Searcher(store, embedder, model)
        self._views: dict[tuple[str, Instant, Instant], View] = {}
        self.on_view: Callable[[], None] = lambda: None  # called when a past view is derived

    async def search(
        self,
        query: str,
        *,
        group: str,
        as_of: When | None = None,
        known_at: When | None = None,
        said_after: When | None = None,
        said_before: When | None = None,
        scopes: Sequence[SearchScope] = (),
        limit: int = 10,
        recipe: str | Recipe = "hybrid",
        filters: Filters | None = None,
        methods: Sequence[Method] | None = None,
        reranker: Reranker | None = None,
        centre: str | None = None,
        seeds: Sequence[str] = (),
        any_time: bool = False,
    ) -> list[Hit]:
        """Return ranked hits, best first; facts that hold at `as_of` (now), as known at `known_at` (now).

        said_after, said_before     episodes said at this time or later; before it. as_of hides none (R5)
        The other arguments are the fields of kgray.search.Query.
        """
        found = await self.explain(
            query, group=group, as_of=as_of, known_at=known_at, said_after=said_after,
            said_before=said_before, scopes=scopes, limit=limit, recipe=recipe, filters=filters,
            methods=methods, reranker=reranker, centre=centre, seeds=seeds, any_time=any_time,
        )  # fmt: skip
        return [*found.hits]

    async def explain(self, query: str, **how: Any) -> Ranking:  # noqa: ANN401 - the arguments of `search`
        """Return the hits of a search with the signals that ranked them, and what was left out."""
        asked = _query(query, **how)
        with span("kgray search"):
            return await self._searcher.ranking(asked, view=self._view_for(asked))

    async def context(
        self,
        query: str,
        *,
        group: str,
        tokens: int = 1500,
        limit: int | None = None,
        count: Counter = count_tokens,
        **how: Any,  # noqa: ANN401 - the other arguments of `search`
    ) -> Context:
        """Return the text to put into a prompt, at most `tokens` long.

        limit   hits that are looked at; None = as many as the budget may hold, at most 1,000
        count   the tokens of a text as your model counts them; by default an estimate
        The other arguments are those of `search`: as_of, known_at, scopes, filters, ...
        """
        asked, searcher = _query(query, group=group, **how), self._searcher
        view = self._view_for(asked)
        with span("kgray context"):
            return await build_context(searcher, asked, tokens=tokens, limit=limit, count=count, view=view)

    async def entities(self, query: str = "", *, group: str, limit: int = 20) -> list[EntityCount]:
        """Return entities with a name like the query, best first; "": those with most facts first."""
        return self._at_one_moment(group, lambda: entities_like(self.store, group, query, limit))

    async def history(
        self, name_or_id: str, *, group: str, as_of: When | None = None, known_at: When | None = None
    ) -> History:
        """Return the spans of an entity's facts, in order of their start.

        name_or_id  a name or an alias that it showed at `known_at`, its id, or the beginning of its id
        as_of       None = the spans of any time
        Raises NotFound, and Ambiguous where several entities have the name.
        """
        moment, known = _instant(as_of, "as_of"), _instant(known_at, "known_at")
        return self._at_one_moment(
            group, lambda: history_of(self.store, self._view_at(group, known), name_or_id, moment, known)
        )

    async def show(self, identifier: str, *, group: str) -> list[dict[str, Any]]:
        """Return the dump rows of one episode, entity, statement or fact and of all that belongs to it.

        identifier  an id or the beginning of one, an episode's client id, or an entity's name
        Raises NotFound, and Ambiguous where several things are called so.
        """
        return (await self.describe(identifier, group=group)).records

    async def describe(self, identifier: str, *, group: str) -> Shown:
        """Return what `show` returns with texts, names, facts, and the words that facts were read from."""

        def read() -> Shown:
            called = id_called(self.store, group, identifier)
            return described(self.store, group, called, shown(self.store, group, called))

        return self._at_one_moment(group, read)

    async def duplicates(self, *, group: str, limit: int = 50) -> list[LikelyPair]:
        """Return pairs of entities that may be one, the likeliest first, without those held apart."""
        return self._at_one_moment(group, lambda: likely_pairs(self.store, group, self.embedder, limit))

    async def dump(self, *, group: str, known_at: When | None = None) -> list[str]:
        """Return the lines of the whole graph, sorted, without their newlines."""
        return dumping.lines(self._dumped(group, known_at))

    async def dump_hash(self, *, group: str, known_at: When | None = None) -> str:
        """Return the SHA-256 of the dump, in hex."""
        return dumping.digest(self._dumped(group, known_at))

    async def neighbourhood(
        self,
        centre: str | None = None,
        *,
        group: str,
        as_of: When | None = None,
        known_at: When | None = None,
        depth: int = 1,
        limit: int = 200,
    ) -> dict[str, Any]:
        """Return the entities around one, nearest first, and the facts between them, with both clocks.

        centre  a name or id; None = begin with those that have most facts
        as_of   None = facts of all spans
        The result has "entities", "facts", "truncated" (more than `limit` of either), "total".
        """
        moment, known = _instant(as_of, "as_of"), _instant(known_at, "known_at")
        chosen = (centre, moment, depth, limit)
        return self._at_one_moment(
            group, lambda: windows.neighbourhood(self.store, self._view_at(group, known), *chosen)
        )

    async def diff(
        self,
        *,
        group: str,
        from_known_at: When | None = None,
        to_known_at: When | None = None,
        from_as_of: When | None = None,
        to_as_of: When | None = None,
        limit: int = 200,
    ) -> dict[str, Any]:
        """Return what differs between two moments, on either clock or on both.

        known_at    what this memory knew then; None = now
        as_of       what was true then; None = facts of all spans
        """
        was, is_ = _instant(from_known_at, "from_known_at"), _instant(to_known_at, "to_known_at")
        moments = _instant(from_as_of, "from_as_of"), _instant(to_as_of, "to_as_of")

        def read() -> dict[str, Any]:
            views = self._view_at(group, was), self._view_at(group, is_)
            return windows.difference(self.store, views, moments, limit)

        return self._at_one_moment(group, read)

    async def changes(self, *, group: str, since: int = 0, limit: int = 200) -> dict[str, Any]:
        """Return the commits after the one with this number: what ended in each, facts opened and ended."""
        return self._at_one_moment(group, lambda: windows.changes(self.store, group, since, limit))

    async def log(
        self, *, group: str, after: int = 0, state: str | None = None, limit: int = 100
    ) -> dict[str, Any]:
        """Return a page of the episodes that were accepted, by sequence, behind one."""
        return self._at_one_moment(group, lambda: windows.log_page(self.store, group, after, state, limit))

    async def episode(self, identifier: str, *, group: str) -> dict[str, Any]:
        """Return one episode by its id or the client's: text, state, both clocks. Raises NotFound."""
        return self._at_one_moment(group, lambda: windows.episode(self.store, group, identifier))

    async def operation(self, sequence: int, *, group: str) -> dict[str, Any]:
        """Return a correction or removal with its state and result. Raises NotFound."""
        return windows.operation(self.store, check_group(group), sequence)

    async def communities(
        self, *, group: str, level: int | None = None, known_at: When | None = None
    ) -> list[Community]:
        """Return the communities, by level, the largest first; none where no run was known then."""
        return list_of(self.store, check_group(group), level, _instant(known_at, "known_at"))

    async def community(self, identifier: str, *, group: str, known_at: When | None = None) -> ShownCommunity:
        """Return a community with its members; identifier: its id, or the beginning of it.

        Raises NotFound, Ambiguous.
        """
        known = _instant(known_at, "known_at")
        view = None if known is None else self._view_at(check_group(group), known)
        return one_of(self.store, check_group(group), identifier, known, view)

    def _at_one_moment(self, group: str, read: Callable[[], _T]) -> _T:
        check_group(group)
        return at_one_moment(self.store, read)

    def _dumped(self, group: str, known_at: When | None) -> list[dumping.DumpRow]:
        return dumped(self.store, check_group(group), _instant(known_at, "known_at"))

    def _view_for(self, asked: Query) -> Callable[[], GraphView] | None:
        return None if asked.known_at is None else partial(self._view_at, asked.group, asked.known_at)

    def _view_at(self, group: str, known_at: Instant | None) -> GraphView:
        """Return the graph as known then (None: now); to be called within the snapshot that reads it."""
        if known_at is None:
            return view_now(self.store, group)
        last = self.store.heads([group])[group].last_recorded
        if known_at >= last:  # nothing was recorded since: the store holds what was known then
            return view_now(self.store, group)
        # A view is valid until the group's next record, because what is removed since must not show.
        key = (group, known_at, last)
        if (view := self._views.pop(key, None)) is None:
            self.on_view()
            view = derived(self.store, group, known_at)
        self._views[key] = view
        for old in list(self._views)[:-_VIEWS]:
            self._views.pop(old, None)  # another thread may read too
        return view


def _instant(value: When | None, field: str) -> Instant | None:
    """Return a caller's moment as an instant. Raises InputError that names the argument."""
    return None if value is None else times.given(value, field)[0]


def _query(text: str, **how: Any) -> Query:  # noqa: ANN401 - the arguments of `search`
    """Return the query; the range of reference times that is asked for becomes a filter."""
    how |= {name: _instant(how.get(name), name) for name in _MOMENTS}
    how |= {name: tuple(how[name]) for name in _LISTS if how.get(name) is not None}
    said, filters = (how.pop("said_after"), how.pop("said_before")), how.pop("filters", None) or Filters()
    return Query(text=text, filters=filters if said == (None, None) else replace(filters, said=said), **how)
