"""The reads of `Memory`: of one group, as of any moment, as known at any moment. None asks a model.

Costs: a neighbourhood what is in reach of its centre; a difference one pass over the group; changes, and a
page of the log, their length.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial, wraps
from itertools import groupby
from operator import itemgetter
from typing import Any, Concatenate, ParamSpec, TypeVar

from kgray import kinds, ports, rows, times
from kgray.communities.reading import ShownCommunity, list_of, one_of
from kgray.derivation import dump as dumping
from kgray.derivation.stored import View, in_pieces, view_now
from kgray.errors import InputError, NotFound
from kgray.graph import Community, Entity, Fact, Hit
from kgray.ledger import result, sequences_of
from kgray.memory import answers
from kgray.memory.naming import entities_of, entity_called, id_called
from kgray.memory.reviewing import LikelyPair, likely_pairs
from kgray.ports import Embedder, GraphView, SearchScope, Store, at_one_moment
from kgray.prompting.tokens import Counter as TokenCounter
from kgray.prompting.tokens import count_tokens
from kgray.records import check_group
from kgray.search import Context, Filters, Method, Query, Ranking, Recipe, Reranker, Searcher, spans_of
from kgray.search import context as build_context
from kgray.spans import span
from kgray.times import Instant, from_datetime, show

MAX_DEPTH = 4
MAX_ROWS = 1000
_LOOKED = 20_000  # episodes that one page of the log looks at
_TOLD = ("text", "valid_at", "invalid_at", "source", "relation", "target")
Row = dict[str, Any]
_T = TypeVar("_T")
_P = ParamSpec("_P")
When = str | int | float | datetime  # ISO 8601, epoch seconds, or a datetime
_MOMENTS = ("as_of", "known_at", "said_after", "said_before")
_LISTS = ("scopes", "seeds", "methods")
_VIEWS = 2  # known_at views kept: searches at one moment often follow one another


def _at_one_moment(
    read: Callable[Concatenate[GroupReads, _P], _T],
) -> Callable[Concatenate[GroupReads, _P], Coroutine[Any, Any, _T]]:
    """Make a verb of a method that reads a group: all its reads see one moment."""

    @wraps(read)
    async def verb(self: GroupReads, /, *args: _P.args, **asked: _P.kwargs) -> _T:
        if "group" in asked:  # else the method says what is missing
            group: Any = asked["group"]
            check_group(group)
        return at_one_moment(self.store, partial(read, self, *args, **asked))

    return verb


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
        count: TokenCounter = count_tokens,
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

    @_at_one_moment
    def entities(self, query: str = "", *, group: str, limit: int = 20) -> list[answers.EntityCount]:
        """Return entities with a name like the query, best first; "": those with most facts first."""
        return answers.entities_like(self.store, group, query, limit)

    @_at_one_moment
    def history(
        self, name_or_id: str, *, group: str, as_of: When | None = None, known_at: When | None = None
    ) -> answers.History:
        """Return the spans of an entity's facts, in order of their start.

        name_or_id  a name or an alias that it showed at `known_at`, its id, or the beginning of its id
        as_of       None = the spans of any time
        Raises NotFound, and Ambiguous where several entities have the name.
        """
        moment, known = _instant(as_of, "as_of"), _instant(known_at, "known_at")
        return answers.history_of(self.store, self._view_at(group, known), name_or_id, moment, known)

    async def show(self, identifier: str, *, group: str) -> list[dict[str, Any]]:
        """Return the dump rows of one episode, entity, statement or fact and of all that belongs to it.

        identifier  an id or the beginning of one, an episode's client id, or an entity's name
        Raises NotFound, and Ambiguous where several things are called so.
        """
        return (await self.describe(identifier, group=group)).records

    @_at_one_moment
    def describe(self, identifier: str, *, group: str) -> answers.Shown:
        """Return what `show` returns with texts, names, facts, and the words that facts were read from."""
        return answers.described(self.store, group, id_called(self.store, group, identifier))

    @_at_one_moment
    def duplicates(self, *, group: str, limit: int = 50) -> list[LikelyPair]:
        """Return pairs of entities that may be one, the likeliest first, without those held apart."""
        return likely_pairs(self.store, group, self.embedder, limit)

    @_at_one_moment
    def dump(self, *, group: str, known_at: When | None = None) -> list[str]:
        """Return the lines of the whole graph, sorted, without their newlines."""
        return dumping.lines(answers.dumped(self.store, group, _instant(known_at, "known_at")))

    @_at_one_moment
    def dump_hash(self, *, group: str, known_at: When | None = None) -> str:
        """Return the SHA-256 of the dump, in hex."""
        return dumping.digest(answers.dumped(self.store, group, _instant(known_at, "known_at")))

    @_at_one_moment
    def neighbourhood(
        self,
        centre: str | None = None,
        *,
        group: str,
        as_of: When | None = None,
        known_at: When | None = None,
        depth: int = 1,
        limit: int = 200,
    ) -> Row:
        """Return the entities around one, nearest first, and the facts between them, with both clocks.

        centre  a name or id; None = begin with those that have most facts
        as_of   None = facts of all spans
        The result has "entities", "facts", "truncated" (more than `limit` of either), "total".
        """
        moment, known = _instant(as_of, "as_of"), _instant(known_at, "known_at")
        _check_limit(limit)
        if not 0 <= depth <= MAX_DEPTH:
            raise InputError(f"depth is {depth}: use 0 to {MAX_DEPTH}", field="depth")
        view = self._view_at(group, known)
        if centre is None:
            facts = _facts_at(self.store, view, moment)
            degrees = Counter(end for fact in facts for end in fact.ends)
            everyone = entities_of(self.store, view)
            ordered = sorted(everyone, key=lambda one: (-degrees[one.id], one.born, one.id))
        else:
            steps, facts = _reached(view, entity_called(self.store, view, centre), moment, depth)
            ordered = sorted(view.entities(list(steps)), key=lambda one: (steps[one.id], one.born, one.id))
        kept = {one.id for one in ordered[:limit]}
        between = [fact for fact in facts if kept.issuperset(fact.ends)]
        between.sort(key=lambda f: (f.valid_at is not None, f.valid_at or 0, f.id))
        return {
            "entities": [answers.entity_row(one) for one in ordered[:limit]],
            "facts": _fact_rows(view, between[:limit]),
            "truncated": len(kept) < len(ordered) or min(limit, len(between)) < len(facts),
            "total": {"entities": len(ordered), "facts": len(facts)},
        }

    @_at_one_moment
    def diff(
        self,
        *,
        group: str,
        from_known_at: When | None = None,
        to_known_at: When | None = None,
        from_as_of: When | None = None,
        to_as_of: When | None = None,
        limit: int = 200,
    ) -> Row:
        """Return what a group shows at the second moment and not at the first, and the other way round.

        known_at    what this memory knew then; None = now
        as_of       what was true then; None = facts of all spans
        In the result "changed" is the same fact with another text, span or end. Each list has at most
        `limit`, "total" counts all.
        """
        was, is_ = _instant(from_known_at, "from_known_at"), _instant(to_known_at, "to_known_at")
        moments = _instant(from_as_of, "from_as_of"), _instant(to_as_of, "to_as_of")
        _check_limit(limit)
        return _difference(self.store, (self._view_at(group, was), self._view_at(group, is_)), moments, limit)

    @_at_one_moment
    def changes(self, *, group: str, since: int = 0, limit: int = 200) -> Row:
        """Return the commits after the one with this number: what ended in each, facts opened and ended."""
        return changes(self.store, group, since, limit)

    @_at_one_moment
    def log(self, *, group: str, after: int = 0, state: str | None = None, limit: int = 100) -> Row:
        """Return a page of the episodes that were accepted, by sequence, behind one."""
        return log_page(self.store, group, after, state, limit)

    @_at_one_moment
    def episode(self, identifier: str, *, group: str) -> Row:
        """Return one episode by its id or the client's: text, state, both clocks. Raises NotFound."""
        sequences = sequences_of(self.store, group, [identifier])
        found = [*answers.told_episodes(self.store, group, sequences, set())]
        if not found:
            raise NotFound(f"group {group} has no episode {identifier!r}")
        return _episode_row(found[-1])

    @_at_one_moment
    def operation(self, sequence: int, *, group: str) -> Row:
        """Return a correction or removal with its state and result. Raises NotFound."""
        for row in self.store.rows(kinds.OPERATIONS_AT, group, [sequence]):
            state = ("pending", "done", "refused")[row[3]]
            answer = result(self.store, group, sequence)
            return {"sequence": sequence, "kind": row[1], "state": state, "result": answer}
        raise NotFound(f"group {group} has no operation {sequence}")

    async def communities(
        self, *, group: str, level: int | None = None, known_at: When | None = None
    ) -> list[Community]:
        """Return the communities, by level, the largest first; none where no run was known then."""
        return list_of(self.store, check_group(group), level, _instant(known_at, "known_at"))

    async def community(self, identifier: str, *, group: str, known_at: When | None = None) -> ShownCommunity:
        """Return a community with its members, by its id or its beginning. Raises NotFound, Ambiguous."""
        known = _instant(known_at, "known_at")
        view = None if known is None else self._view_at(check_group(group), known)
        return one_of(self.store, check_group(group), identifier, known, view)

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
            view = answers.derived(self.store, group, known_at)
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


def _check_limit(limit: int) -> None:
    if not 1 <= limit <= MAX_ROWS:
        raise InputError(f"limit is {limit}: use 1 to {MAX_ROWS}", field="limit")


def _fact_rows(view: GraphView, facts: Sequence[Fact]) -> list[Row]:
    """Return facts in the form of `History.as_dict`, in the order given."""
    spans, _ = spans_of(view, facts)
    return [{"id": f.id, "statement": f.statement, "text": f.text} | spans[f.id].as_dict() for f in facts]


def _facts_at(store: Store, view: GraphView, as_of: Instant | None) -> list[Fact]:
    """Return all facts that hold at a moment; None = of all spans."""
    found = map(rows.fact, store.rows(kinds.ALL["facts"], view.group))
    every = view.all_facts() if isinstance(view, View) else found
    return [fact for fact in every if as_of is None or fact.holds_at(as_of)]


def _reached(
    view: GraphView, centre: Entity, as_of: Instant | None, depth: int
) -> tuple[dict[str, int], list[Fact]]:
    """Return entity -> steps from the centre, and all facts that were walked over."""
    steps, facts, edge = {centre.id: 0}, dict[str, Fact](), [centre.id]
    for step in range(1, depth + 1):
        met = view.facts_at(edge, as_of, None) if edge else []
        facts.update((fact.id, fact) for fact in met)
        edge = [e for e in dict.fromkeys(end for fact in met for end in fact.ends) if e not in steps]
        steps.update(dict.fromkeys(edge, step))
    return steps, list(facts.values())


def _difference(
    store: Store, views: tuple[GraphView, GraphView], as_of: tuple[Instant | None, Instant | None], limit: int
) -> Row:
    before, after = (
        {fact.id: fact for fact in sorted(_facts_at(store, view, at), key=lambda f: (f.created_at, f.id))}
        for view, at in zip(views, as_of, strict=True)
    )
    both = [id_ for id_ in after if id_ in before]
    changed = [i for i in both if any(getattr(before[i], n) != getattr(after[i], n) for n in _TOLD)]
    was, now = ({one.id: one for one in entities_of(store, view)} for view in views)
    facts = {
        "opened": [fact for id_, fact in after.items() if id_ not in before],
        "ended": [fact for id_, fact in before.items() if id_ not in after],
        "changed": [after[id_] for id_ in changed],
    }
    named = {
        "entities_new": [one for one in now.values() if one.id not in was],
        "entities_gone": [one for one in was.values() if one.id not in now],
        "entities_renamed": [one for i, one in now.items() if i in was and one.name != was[i].name],
    }
    total = {name: len(found) for name, found in facts.items()} | {n: len(one) for n, one in named.items()}
    old = _fact_rows(views[0], [before[id_] for id_ in changed[:limit]])
    new = _fact_rows(views[1], facts["changed"][:limit])
    return {
        "opened": _fact_rows(views[1], facts["opened"][:limit]),
        "ended": _fact_rows(views[0], facts["ended"][:limit]),
        "changed": [{"before": was_, "after": is_} for was_, is_ in zip(old, new, strict=True)],
        **{name: [answers.entity_row(one) for one in found[:limit]] for name, found in named.items()},
        "truncated": any(count > limit for count in total.values()),
        "total": total,
    }


def changes(store: Store, group: str, since: Instant, limit: int) -> Row:
    """Return the commits after one, in order: about `limit` rows; a commit is never cut in two.

    A commit's number is its record time, in microseconds. "last" is the number to go on from.
    """
    _check_limit(limit)
    if not 0 <= since <= 1 << 62:
        raise InputError("since must be the number of a commit, or 0", field="since")
    ended, done, opened, expired = (store.rows(read, group, [since + 1]) for read in kinds.SINCE)
    if in_pieces(store, group):  # what is stored is not so any more (R27)
        facts = _facts_at(store, view_now(store, group), None)
        opened = iter(sorted((f.created_at, f.id) for f in facts if f.created_at > since))
        expired = iter(sorted((at, f.id) for f in facts if (at := f.expired_at) is not None and at > since))
    found = heapq.merge(
        ((at, "entries", _ended(*row)) for at, *row in ended if row[0] in (kinds.COMMITTED, kinds.FAILED)),
        ((at, "entries", _done(*row)) for at, *row in done),
        ((at, "opened", id_) for at, id_ in opened),
        ((at, "ended", id_) for at, id_ in expired),
        key=itemgetter(0),
    )
    commits, size = list[Row](), 0
    for at, told in groupby(found, key=itemgetter(0)):
        if size >= limit:
            return {"commits": commits, "last": commits[-1]["commit"], "more": True}
        commit: Row = {"commit": at, "at": show(at), "entries": [], "opened": [], "ended": []}
        for _, what, one in told:
            commit[what].append(one)
        size += 1 + sum(map(len, (commit["entries"], commit["opened"], commit["ended"])))
        commits.append(commit)
    return {"commits": commits, "last": commits[-1]["commit"] if commits else since, "more": False}


def _ended(state: int, sequence: int, id_: str, client_id: str | None) -> Row:
    ended = {"type": "episode", "sequence": sequence, "id": id_, "client_id": client_id}
    return ended | {"state": rows.STATES[state]}


def _done(state: int, sequence: int, kind: str) -> Row:
    return {"type": kind, "sequence": sequence, "state": "done" if state == kinds.DONE else "refused"}


def log_page(store: Store, group: str, after: int, state: str | None, limit: int) -> Row:
    """Return episodes of the log by sequence, behind one. "next": where to go on from; None = no more."""
    _check_limit(limit)
    if not 0 <= after <= 1 << 62:
        raise InputError("after must be a sequence, or 0", field="after")
    if state is not None and state not in rows.STATES:
        raise InputError(f"state {state!r} is none of {', '.join(rows.STATES)}", field="state")
    chosen, at, behind = list[int](), after, None
    for looked, row in enumerate(store.rows(kinds.EPISODE_HEADS, group, [at])):
        if looked == _LOOKED or len(chosen) == limit:
            behind = at
            break
        at = row[0]
        if row[7] is None and (state is None or rows.STATES[row[5]] == state):
            chosen.append(at)
    told = answers.told_episodes(store, group, chosen, set())
    return {"episodes": [_episode_row(one) for one in told], "next": behind}


def _episode_row(one: answers.ToldEpisode) -> Row:
    """Return an episode of the log as JSON shows it."""
    moments = {name: getattr(one, name) for name in ("reference_time", "recorded_at")}
    shown = {name: at and show(from_datetime(at)) for name, at in moments.items()}
    return {name: getattr(one, name) for name in answers.KEPT} | shown
