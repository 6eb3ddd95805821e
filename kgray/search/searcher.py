"""A search: the first stage, graph steps, fusion, and one list over all scopes.

It calls the embedder, and perhaps a cross-encoder, but no language model. Equal scores have a fixed order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from kgray import ports
from kgray.domain.graph import Community, Entity, Fact, FactSpan, Hit
from kgray.domain.ontology import Ontology, shipped
from kgray.domain.records import Episode
from kgray.domain.times import now, to_datetime
from kgray.errors import InputError
from kgray.graph.stored import view_now
from kgray.graph.texts import summarised
from kgray.ports.ingest import query_embedding
from kgray.search import index as indexing
from kgray.search import loading
from kgray.search.matching import Matcher, StateQuestion, Vocabulary
from kgray.search.query import FoundRow, Query, Question, read_question, within
from kgray.search.ranking import OVER_FETCH, Candidate, FirstStage, Scores, SearchRun
from kgray.search.recipes import SCOPES, Method
from kgray.search.rerank import fused_by_rank, reranked
from kgray.search.steps import ByScope, steps
from kgray.search.summaries import Profiled, Summaries

Chosen = tuple[ports.SearchScope, Candidate]
Sentences = dict[tuple[str, str], set[str]]  # (relation, text) of facts -> their episodes
ViewAt = Callable[[], ports.GraphView]
_Ranks = dict[str, dict[str, int]]  # id -> method -> rank
_ByMethod = dict[ports.SearchScope, dict[str, list[Candidate]]]  # by the signal of a method
_METHOD_OF = {
    "words": "bm25",
    "vectors": "cosine",
    "sparse": "sparse",
}  # signal of a text itself -> method
_MAX_SUMMARIES = 64  # groups whose summaries are cached
POOL = 3  # times the limit: candidates of a reranker
MIN_DEPTH, MAX_DEPTH = 30, 10_000
_LIFT = 0.01  # share of the best score between two facts that come first
_DEEPER = 4  # factor on the depth of the next try: 30, 120, 480, 1920, 7680, 10000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The hits of a search, and the rows that hits above made redundant."""

    hits: tuple[Hit, ...]
    # (scope, id, text) of rows that repeat a hit: a fact and its supporting messages share one place
    said_above: tuple[tuple[ports.SearchScope, str, str], ...]
    floor: float  # `Weights.floor`: the minimum fit of a scope's best row, below which the scope has no hits


class Searcher:
    """Searches the groups of one store; it caches the indexes of recently searched groups."""

    def __init__(
        self, store: ports.Store, embedder: ports.Embedder, reranker: ports.Reranker | None = None,
        ontology: Callable[[], Ontology] = shipped,
    ) -> None:  # fmt: skip
        """Read nothing yet.

        embedder    the embedder of the store's vectors; reranker: a cross-encoder, if any
        ontology    returns the declared relations; questions are matched with their words
        """
        self.store, self.embedder, self.reranker = store, embedder, reranker
        self._ontology = ontology
        self._indexes = indexing.Indexes(store, embedder.dimensions)
        self._summaries: dict[str, Summaries] = {}

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return Vocabulary(self._ontology())

    async def search(self, query: Query, *, view: ViewAt | None = None) -> list[Hit]:
        """Return the best hits of all scopes as one list: see `ranking`."""
        return [*(await self.ranking(query, view=view)).hits]

    async def ranking(self, query: Query, *, view: ViewAt | None = None) -> Ranking:
        """Return the best hits, and the redundant rows that were left out.

        view    opens, within the snapshot of the search, the graph as known at query.known_at; None = now
        Only facts that hold at `as_of` are searched; entities and episodes have no span, so all in the view
        are searched (R5). A hit's score is in [0, 1), and comparable over scopes unless the recipe fuses by
        rank. An unknown group reads as empty.
        Raises NotFound for an unknown centre or seed, InputError if the recipe needs a reranker and there is
        none, ValueError for a `known_at` without a view or a view of another group.
        """
        if query.known_at is not None and view is None:
            raise ValueError("known_at needs a view of the graph as known then")
        recipe, group = query.effective_recipe, query.group
        self._check_models(query)
        # No store takes a lone surrogate (from a byte on the command line that is not UTF-8).
        text = query.text.encode("utf-8", "replace").decode()
        clock = now()
        with self._indexes.open(group) as index:
            # In a conversation that ended years ago, "last week" is the week before its end.
            latest = min(clock, int(index.messages.times.max(initial=0))) or clock
            counted_from = latest if query.as_of is None else query.as_of
            question = read_question(text, speakers=index.messages.known, clock=counted_from)
        by_vectors = {"cosine", "sparse"} & {*recipe.methods} or recipe.reranker == "mmr"
        topic = await query_embedding(self.embedder, question.topic) if by_vectors else None
        with self._indexes.lock:
            summaries = self._current_summaries(query)
            ranked, state_question, near = _first_stage(self.store, index, question, query, topic, summaries)
            evidence = index.pieces.places()
            newest = index.messages.newest(recipe.recent) if recipe.recent else ()
        # Ended facts answer a question about the past of a state.
        looks_back = recipe.facts_first and query.as_of is None and state_question.looks_back
        any_time = query.any_time or looks_back
        moment = None if any_time else clock if query.as_of is None else query.as_of

        def read() -> Ranking:
            graph = view_now(self.store, group) if view is None else view()
            if graph.group != group:
                raise ValueError(f"the view shows group {graph.group}, the query asks {group}")
            run = SearchRun(
                store=self.store, view=graph, query=query, recipe=recipe, question=question, moment=moment,
                ranked=ranked, state_question=state_question, vocabulary=self._vocabulary, near=near,
                summaries=summaries, statements=index.pieces.vectors, evidence=evidence, newest=newest,
            )  # fmt: skip
            return _answer(run, None if topic is None else topic.vector)

        ranking = ports.at_one_moment(self.store, read)
        is_reordered = recipe.reranker == "cross_encoder"
        return await self._reordered(ranking, text, query.limit) if is_reordered else ranking

    async def _reordered(self, ranking: Ranking, text: str, limit: int) -> Ranking:
        """Order hits by the cross-encoder."""
        if self.reranker is None or not ranking.hits:
            return ranking
        scores = await self.reranker.score(text, [hit.text for hit in ranking.hits])
        pairs = sorted(zip(scores, ranking.hits, strict=True), key=lambda pair: -pair[0])[:limit]
        return replace(ranking, hits=tuple(replace(hit, score=float(score)) for score, hit in pairs))

    def _check_models(self, query: Query) -> None:
        """Raise InputError if the query needs a model that this searcher does not have."""
        recipe = query.effective_recipe
        if recipe.reranker == "cross_encoder" and self.reranker is None:
            raise InputError("this recipe needs a reranker: set reranker.backend", field="recipe")
        required = recipe.methods if {*recipe.methods} <= {"sparse", "bfs"} else ()
        methods = {*(query.methods or ()), *required}
        if "sparse" in methods and not isinstance(self.embedder, ports.SparseEmbedder):
            why = 'only embedder.backend = "bge" with embedder.sparse weighs tokens'
            raise InputError(why, field="methods")

    def _current_summaries(self, query: Query) -> Summaries | None:
        """Return the texts of the run current at `known_at`; None if there is no run or no need of it."""
        store, group, recipe = self.store, query.group, query.effective_recipe
        profiles = "entity" in recipe.scopes and query.as_of is None
        if "community" not in (*recipe.scopes, *recipe.start) and not profiles:
            return None
        if (run := loading.run_at(store, group, query.known_at)) is None:
            self._summaries.pop(group, None)
            return None
        cached = self._summaries.get(group)
        if cached is None or not cached.are_current(store, group, run):
            if len(self._summaries) >= _MAX_SUMMARIES:
                self._summaries.clear()
            load = partial(Summaries, store, group, query.known_at, self.embedder.dimensions)
            cached = self._summaries[group] = ports.at_one_moment(store, load)
        return cached


_ScoreRows = Callable[[loading.Exact], Scores]


def _first_stage(
    store: ports.Store, index: indexing.GroupIndex, question: Question, query: Query,
    topic: ports.Embedding | None, summaries: Summaries | None,
) -> tuple[dict[ports.SearchScope, Scores], StateQuestion, Callable[[str], float]]:  # fmt: skip
    """Return the first stage of each scope, the question for matching facts, and `FirstStage.near`."""
    recipe = query.effective_recipe

    def stage_of(methods: Sequence[Method]) -> FirstStage:
        unused: dict[str, Any] = {name: 0.0 for name, method in _METHOD_OF.items() if method not in methods}
        return FirstStage(index, question, replace(recipe.weights, **unused), topic)

    stage = stage_of(recipe.methods)
    stages = {scope: stage_of(methods) for scope, methods in recipe.only.items()}
    works: dict[ports.SearchScope, tuple[_ScoreRows, Callable[[ports.Store, str], loading.Exact]]] = {
        "fact": (stage.pieces, loading.read_text_vectors),
        "entity": (stage.names, loading.read_name_vectors),
        "episode": (stages.get("episode", stage).messages, loading.read_text_vectors),
    }
    searched = recipe.start or recipe.scopes
    scopes = [scope for scope in works if scope in searched]

    def score(scope: ports.SearchScope) -> Scores:
        work, reads_vectors = works[scope]
        return work(reads_vectors(store, query.group))

    if store.remote:  # each scope may wait for 100 vectors of a large group, so the reads run in parallel
        with ThreadPoolExecutor(len(works)) as threads:  # one pool a search, because no pool survives a fork
            ranked = dict(zip(scopes, threads.map(score, scopes), strict=True))
    else:
        ranked = {scope: score(scope) for scope in scopes}
    if summaries is not None:
        if summaries.profiles.ids and "entity" in ranked and query.as_of is None:  # profiles have no `as_of`
            ranked["entity"] = ranked["entity"].concatenated(stage.summaries(summaries.profiles))
        if summaries.communities.ids and "community" in searched:
            ranked["community"] = stage.summaries(summaries.communities)
    state_question = stage.state_question() if "fact" in ranked else StateQuestion(words=(), names=())
    return ranked, state_question, stage.near()


def _answer(run: SearchRun, vector: ports.Vector | None) -> Ranking:
    recipe, limit = run.recipe, run.query.limit
    first = _facts_first(run)
    if recipe.fusion == "weighted" and recipe.reranker == "none" and "bfs" not in recipe.methods:
        # Read few rows first, and more only if these do not decide the result. `cut` is the score at rank
        # `depth`. Even with all factors a row below `minimum` cannot exceed it.
        depth, weights = OVER_FETCH * limit, recipe.weights
        scores = [ranked.score[ranked.best(depth)] for ranked in run.ranked.values()]
        best = np.sort(np.concatenate(scores))[::-1] if scores else ()
        cut = float(best[depth - 1]) if len(best) >= depth else 0.0
        minimum = cut / (max(1.0, weights.linked) * max(1.0, weights.dates) * max(1.0, weights.rows))
        ranking, last = _ranking(run, vector, first, minimum)
        if len(ranking.hits) == limit and last >= cut:
            return ranking
    return _ranking(run, vector, first)[0]


def _facts_first(run: SearchRun) -> list[Fact]:
    """Return the facts that answer the question, best first (`matching`); [] without `Recipe.facts_first`."""
    if not run.recipe.facts_first or "fact" not in run.ranked or not run.state_question.names:
        return []
    ranked = run.ranked["fact"]

    def top_facts() -> list[Fact]:
        visible = _visible(run, "fact", ranked.records(ranked.best(MIN_DEPTH)))
        return [fact for facts in visible for fact in facts if isinstance(fact, Fact)]

    matcher = Matcher(question=run.state_question, vocabulary=run.vocabulary, view=run.view, near=run.near)
    answers = matcher.first(run.moment, top_facts)
    passing = {row.id for row in run.keep(answers)}
    return [fact for fact in answers if fact.id in passing]


def _lifted(first: Sequence[Fact], by_scope: ByScope) -> ByScope:
    """Return the candidates with the facts of `first` above all others, in their order."""
    candidates = {row.row.id: row for row in by_scope.get("fact", ())}
    top = max((rows[0].score for rows in by_scope.values() if rows), default=0.0) or 1.0
    lifted = []
    for place, fact in enumerate(first):
        replaced = candidates.pop(fact.id, Candidate(row=fact, score=0.0))
        score = top * (1 + _LIFT * (len(first) - place))
        signals = {**replaced.signals, "answers": 1.0 + len(first) - place}
        lifted.append(replace(replaced, score=score, signals=signals))
    return {**by_scope, "fact": [*lifted, *candidates.values()]}


def _ranking(
    run: SearchRun, vector: ports.Vector | None, first: Sequence[Fact], minimum: float = 0.0
) -> tuple[Ranking, float]:
    """Return the hits among rows whose first-stage score is at least `minimum`, and the last hit's score."""
    limit, recipe = run.query.limit, run.recipe
    weighted = recipe.fusion == "weighted"
    count = limit if recipe.reranker == "none" else POOL * limit
    by_method: _ByMethod = {}
    by_scope: ByScope = {}
    for scope, ranked in run.ranked.items():
        if weighted:
            by_scope[scope] = gather(run, scope, count, minimum=minimum) if recipe.methods != ("bfs",) else []
        else:
            by_signal = {
                name: replace(ranked, score=ranked.signals[name], signals={}, floor=0.0)
                for name in ranked.signals
                if name in _METHOD_OF
            }
            by_method[scope] = {name: gather(run, scope, count, by_signal[name]) for name in by_signal}
            by_scope[scope] = fused_by_rank(by_method[scope])
    for scope, walked in (steps(run, by_scope) if "bfs" in recipe.methods else {}).items():
        by_method.setdefault(scope, {})["steps"] = walked
        if scope in by_scope and weighted:  # add the score of the steps to the row's own
            joined = {candidate.row.id: candidate for candidate in by_scope[scope]}
            for step in walked:
                previous = joined.get(step.row.id, replace(step, score=0.0))
                signals = {**previous.signals, **step.signals}
                joined[step.row.id] = replace(previous, score=previous.score + step.score, signals=signals)
            by_scope[scope] = sorted(joined.values(), key=lambda candidate: -candidate.score)
        elif scope in by_scope:
            by_scope[scope] = fused_by_rank(by_method[scope])
        else:
            by_scope[scope] = walked if weighted else fused_by_rank(by_method[scope])
    by_scope = {scope: rows for scope, rows in by_scope.items() if scope in recipe.scopes}
    if recipe.reranker not in {"none", "cross_encoder"}:
        by_scope = {scope: reranked(run, vector, rows[: POOL * limit]) for scope, rows in by_scope.items()}
    if first:
        by_scope = _lifted(first, by_scope)
    length = count if recipe.reranker == "cross_encoder" else limit
    once, has_moment = recipe.once and "episode" in by_scope, run.query.as_of is not None
    chosen, repeated = one_list(by_scope, length, recipe.places, once=once, facts_replace_messages=has_moment)
    ranking = Ranking(
        hits=tuple(_hits(run, chosen, _ranks(run, chosen, by_method))),
        said_above=tuple((scope, candidate.row.id, _text(candidate.row)) for scope, candidate in repeated),
        floor=recipe.weights.floor,
    )
    return ranking, chosen[-1][1].score if chosen else 0.0


def gather(
    run: SearchRun, scope: ports.SearchScope, count: int, scores: Scores | None = None, minimum: float = 0.0
) -> list[Candidate]:
    """Return the best rows of one scope above the floor, best first: at least `count`, if there are as many.

    scores: scores of the same rows instead of the first stage's; they are not boosted.
    minimum: the least score; it may leave fewer than `count` rows.
    """
    chosen = scores or run.ranked[scope]
    depth = max(MIN_DEPTH, OVER_FETCH * count)
    while True:
        rows = chosen.best(depth, minimum)
        visible = _visible(run, scope, chosen.records(rows))
        best: dict[str, Candidate] = {}
        scored = zip(chosen.score[rows].tolist(), chosen.signals_of(rows), rows.tolist(), strict=True)
        for resolved, (score, signals, row_number) in zip(visible, scored, strict=True):
            for each in resolved:
                if each.id not in best:
                    best[each.id] = Candidate(row=each, score=score, signals=signals, row_number=row_number)
        passing = run.keep([candidate.row for candidate in best.values()])
        candidates = [best[row.id] for row in passing]
        if len(candidates) >= count or len(rows) < depth or depth >= MAX_DEPTH:
            return candidates if scores else _boosted(run, scope, candidates)
        depth = min(depth * _DEEPER, MAX_DEPTH)


def _visible(run: SearchRun, scope: ports.SearchScope, records: Sequence[Any]) -> list[list[FoundRow]]:
    """Return for each record the rows that the view shows for it; a search reads each record once."""
    cached = run.visible.setdefault(scope, {})
    # A `Profiled` id equals the bare id.
    keys = [(record, isinstance(record, Profiled)) for record in records]
    fresh = [key for key in dict.fromkeys(keys) if key not in cached]
    rows = _read_visible(run, scope, [record for record, _ in fresh]) if fresh else ()
    cached.update(zip(fresh, rows, strict=True))
    return [cached[key] for key in keys]


def _read_visible(run: SearchRun, scope: ports.SearchScope, records: Sequence[Any]) -> list[list[FoundRow]]:
    """Read for each record the rows that the view shows for it; one read for all."""
    view = run.view
    if scope == "episode":
        episodes = {episode.sequence: episode for episode in view.episodes(records)}
        return [[episodes[number]] if number in episodes else [] for number in records]
    # A summary may have been deleted since it was loaded (R25).
    ids = [id_ for id_ in records if scope == "community" or isinstance(id_, Profiled)]
    number = run.summaries.run if run.summaries else 0
    listed, profiles = loading.texts_of(run.store, view.group, number, ids) if ids else ([], {})
    if scope == "community":
        communities = {community.id: community for community in listed}
        return [[communities[id_]] if id_ in communities else [] for id_ in records]
    if scope == "entity":
        pairs = zip(records, view.entities_of([*map(str, records)]), strict=True)
        return [[*rows] if id_ in profiles or not isinstance(id_, Profiled) else [] for id_, rows in pairs]
    return [[*facts] for facts in view.facts_of_evidence(records, run.moment)]


def _boosted(run: SearchRun, scope: ports.SearchScope, candidates: list[Candidate]) -> list[Candidate]:
    """Apply factors that depend on the rows: linked and dated facts count more, triples less; then sort."""
    weights = run.recipe.weights
    named = run.state_question.entities if scope == "fact" else []
    linked = {entity.id for entity in run.view.entities(named)} if named else set[str]()
    boosted = []
    for candidate in candidates:
        row, factors = candidate.row, dict[str, float]()
        if isinstance(row, Episode) and row.kind == "triples":
            factors["rows"] = weights.rows
        elif isinstance(row, Fact):
            if not linked.isdisjoint(row.ends):
                factors["linked"] = weights.linked
            if any(within(at, span) for at in (row.valid_at, row.invalid_at) for span in run.question.spans):
                factors["dates"] = weights.dates
        applied = {name: factor for name, factor in factors.items() if factor != 1}
        score, signals = candidate.score * math.prod(applied.values()), {**candidate.signals, **applied}
        boosted.append(replace(candidate, score=score, signals=signals) if applied else candidate)
    return sorted(boosted, key=lambda candidate: -candidate.score)


def _ranks(run: SearchRun, chosen: Sequence[Chosen], by_method: _ByMethod) -> _Ranks:
    """Return id -> method -> rank (from 1) among all rows of the scope."""
    ranks: _Ranks = {}  # with fusion by rank: the rank among the visible rows, which the fusion used
    for of_scope in by_method.values():
        for signal, ordered in of_scope.items():
            for rank, candidate in enumerate(ordered, 1):
                ranks.setdefault(candidate.row.id, {})[_METHOD_OF.get(signal, "bfs")] = rank
    for scope, candidate in chosen:
        if run.recipe.fusion == "weighted" and candidate.row_number is not None:
            for signal, method in _METHOD_OF.items():
                if place := run.ranked[scope].rank(signal, candidate.row_number):
                    ranks.setdefault(candidate.row.id, {})[method] = place
    return ranks


def _hits(run: SearchRun, chosen: Sequence[Chosen], ranks: _Ranks) -> list[Hit]:
    """Return the chosen rows as hits, in order; comparable scores s become s / (1 + s).

    A few reads serve all hits; with `as_of` each entity needs another read, for its summary.
    """
    spans, _ = loading.spans_of(run.view, [c.row for _, c in chosen if isinstance(c.row, Fact)])
    known_at = None if run.summaries is None else to_datetime(run.summaries.recorded_at)
    bounded = run.recipe.fusion == "weighted" and run.recipe.reranker in {"none", "cross_encoder"}
    around = loading.Around.read(run.view, run.evidence, run.moment, [c.row for _, c in chosen])
    hits = []
    for scope, candidate in chosen:
        row, score = candidate.row, candidate.score
        fields: dict[str, Any] = {"methods": ranks.get(row.id, {}), "signals": candidate.signals}
        if isinstance(row, Fact):
            fields |= {"fact": spans[row.id], "participants": around.participants.get(row.id, ())}
            fields["message"] = around.messages.get(row.id)
        elif isinstance(row, Entity):
            (fields["entity"],) = summarised(run.view, [row], run.query.as_of)
        elif isinstance(row, Community):
            fields |= {"community": row, "known_at": known_at and row.told_at(known_at)}
        else:
            fields |= {name: getattr(row, name) for name in ("client_id", "speaker", "sequence", "kind")}
            fields |= {"reference_time": to_datetime(row.reference_time), "source": row.source}
            fields["outdated"] = row.id in around.outdated
        score = score / (1 + score) if bounded else score
        hits.append(Hit(scope=scope, id=row.id, text=_text(row), score=score, group=run.view.group, **fields))
    return hits


def _text(row: FoundRow) -> str:
    return row.name if isinstance(row, Entity) else row.text


def repeats(sentences: Sentences, fact: Fact | FactSpan, episodes: Collection[str]) -> bool:
    """Return whether an earlier fact has the same relation and sentence and shares an episode; note both."""
    earlier_episodes = sentences.setdefault((fact.relation, fact.text), set())
    is_repeated = not earlier_episodes.isdisjoint(episodes)
    earlier_episodes.update(episodes)
    return is_repeated


def one_list(
    by_scope: Mapping[ports.SearchScope, Sequence[Candidate]], limit: int,
    places: Mapping[ports.SearchScope, int], *, once: bool, facts_replace_messages: bool = False,
) -> tuple[list[Chosen], list[Chosen]]:  # fmt: skip
    """Return the `limit` best rows of all scopes (ties: fact, entity, episode), and the repeated rows.

    once: a fact is repeated if its messages are all hits, and a message if it supports a fact that is a hit.
    Two facts of one message are two statements, so both stay.
    facts_replace_messages: a fact replaces the hits that support it, at their better place. It is for a
    question about one moment, because a message has no span.
    """
    rows = [
        (-candidate.score, SCOPES.index(scope), place, scope, candidate)
        for scope, candidates in by_scope.items()
        for place, candidate in enumerate(candidates)
    ]
    chosen: list[Chosen] = []
    repeated: list[Chosen] = []
    free = {scope: places.get(scope, limit) for scope in by_scope}
    shown_episodes: set[str] = set()  # episodes that are hits
    supporting: set[str] = set()  # these, and the supporters of facts that are hits
    sentences: Sentences = {}
    for _, _, _, scope, candidate in sorted(rows, key=lambda row: row[:3]):
        if len(chosen) >= limit:
            break
        row = candidate.row
        if once and isinstance(row, Fact) and repeats(sentences, row, row.episodes):
            repeated.append((scope, candidate))
            continue
        sources: set[str] = set()
        if once and isinstance(row, Fact | Episode):
            sources = {row.id} if isinstance(row, Episode) else set(row.episodes)
        if facts_replace_messages and scope == "fact" and free[scope] and sources & shown_episodes:
            _replace_by_fact(candidate, sources, chosen, repeated)
            free[scope] -= 1
            free["episode"] += len(sources & shown_episodes)
            supporting |= sources
            shown_episodes -= sources
        elif sources and sources <= (supporting if scope == "episode" else shown_episodes):
            repeated.append((scope, candidate))
        elif free[scope]:
            free[scope] -= 1
            supporting |= sources
            shown_episodes |= sources if scope == "episode" else set()
            chosen.append((scope, candidate))
    return chosen, repeated


def _replace_by_fact(fact: Candidate, sources: set[str], chosen: list[Chosen], surplus: list[Chosen]) -> None:
    """Replace the messages that support a fact by the fact, at the place and with the score of the first."""
    messages = [row for row in chosen if row[0] == "episode" and row[1].row.id in sources]
    first = chosen.index(messages[0])
    chosen[first] = "fact", replace(fact, score=messages[0][1].score)
    chosen[:] = [row for row in chosen if row not in messages]
    surplus += messages
