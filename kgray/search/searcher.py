"""A search: the first stage, graph steps, fusion, one list over all scopes. Only the embedder is asked.

Everything is deterministic: equal scores are always ordered the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from kgray.derivation.stored import view_now
from kgray.errors import InputError
from kgray.graph import Community, Entity, Fact, FactSpan, Hit
from kgray.ports import (
    Embedder,
    Embedding,
    GraphView,
    Reranker,
    SearchScope,
    SparseEmbedder,
    Store,
    Vector,
    at_one_moment,
    embedded,
)
from kgray.records import Episode
from kgray.search.candidates import Candidate, FoundRow, Ranked, SearchRun, cut_of, gather, steps
from kgray.search.index import (
    MESSAGE_VECTORS,
    NAME_VECTORS,
    STATEMENT_VECTORS,
    Exact,
    GroupIndex,
    Indexes,
    Ints,
    VectorReads,
)
from kgray.search.query import SCOPES, Query, Question, is_scored, read_question
from kgray.search.ranking import FirstStage, Scores
from kgray.search.rerank import fused_by_rank, reranked
from kgray.search.texts import Profiled, Summaries, run_at
from kgray.times import now, to_datetime

ViewAt = Callable[[], GraphView]
Found = dict[SearchScope, list[Candidate]]
_Ranks = dict[str, dict[str, int]]  # id -> method -> rank
_Chosen = tuple[SearchScope, Candidate]
_ByMethod = dict[SearchScope, dict[str, list[Candidate]]]  # what each method found, by its signal
_TEXTS = {"words": "bm25", "vectors": "cosine", "sparse": "sparse"}  # signals of a text itself -> methods
_HELD = 64  # groups whose summaries are held in memory
POOL = 3  # times the limit: what a reranker looks at


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """What a search found, and what it left out."""

    hits: tuple[Hit, ...]
    # (scope, id, text) of what a hit above says: a fact and the messages that support it count once
    said_above: tuple[tuple[SearchScope, str, str], ...]
    floor: float  # the score under which a row is not about the query


class Searcher:
    """Searches the groups of one store; holds an index in memory for each that it was asked about lately."""

    def __init__(self, store: Store, embedder: Embedder, reranker: Reranker | None = None) -> None:
        """Read nothing yet; embedder: that of the store's vectors; reranker: a cross-encoder, if any."""
        self.store, self.embedder, self.reranker = store, embedder, reranker
        self._indexes = Indexes(store, embedder.dimensions)
        self._summaries: dict[str, Summaries] = {}

    async def search(self, query: Query, *, view: ViewAt | None = None) -> list[Hit]:
        """Return what answers the query best, as one list: see `ranking`."""
        return [*(await self.ranking(query, view=view)).hits]

    async def ranking(self, query: Query, *, view: ViewAt | None = None) -> Ranking:
        """Return what answers the query best, and what was left out.

        view    reads, within the snapshot of the search, what the graph knew at query.known_at;
                None = what it knows now

        Facts are those that hold at `as_of`. Entities and episodes have no span: all that the view shows are
        searched (R5). A hit's score is in [0, 1), and comparable over scopes unless the recipe fuses by rank.
        An unknown group reads as empty.

        Raises NotFound for a centre or a seed that the group does not have, InputError where the recipe needs
        a reranker and there is none, ValueError for a `known_at` without a view or a view of another group.
        """
        if query.known_at is not None and view is None:
            raise ValueError("known_at needs a view of the graph as known then")
        ways, group = query.ways, query.group
        self._refuse_what_lacks(query)
        # A lone surrogate (a byte that was no UTF-8 on the command line) is no text to any store.
        text = query.text.encode("utf-8", "replace").decode()
        clock = now()
        with self._indexes.of(group) as index:
            speakers = index.messages.speakers.all()
            # "Last week" of a conversation that ended years ago is the week before its end.
            latest = min(clock, int(index.messages.times.max(initial=0))) or clock
        question = read_question(text, speakers=speakers, now=latest if query.as_of is None else query.as_of)
        topic: Embedding | None = None
        if {"cosine", "sparse"} & {*ways.methods} or ways.reranker == "mmr":
            (topic,) = await embedded(self.embedder, [question.topic])
        with self._indexes.lock:
            told = self._told(query)
            ranked, linked = _first_stage(self.store, index, question, query, topic, told)
        moment = None if query.any_time else query.as_of if query.as_of is not None else clock

        def read() -> Ranking:
            shown = view_now(self.store, group) if view is None else view()
            if shown.group != group:
                raise ValueError(f"the view shows group {shown.group}, the query asks {group}")
            run = SearchRun(
                store=self.store, view=shown, query=query, ways=ways, question=question, moment=moment,
                ranked=ranked, linked=linked, told=told,
            )  # fmt: skip
            return _answer(run, None if topic is None else topic.vector)

        found = at_one_moment(self.store, read)
        if ways.reranker != "cross_encoder" or self.reranker is None or not found.hits:
            return found
        scores = await self.reranker.score(text, [hit.text for hit in found.hits])
        pairs = sorted(zip(scores, found.hits, strict=True), key=lambda pair: -pair[0])[: query.limit]
        return replace(found, hits=tuple(replace(hit, score=float(score)) for score, hit in pairs))

    def _refuse_what_lacks(self, query: Query) -> None:
        ways = query.ways
        if ways.reranker == "cross_encoder" and self.reranker is None:
            raise InputError("this recipe needs a reranker: set reranker.backend", field="recipe")
        methods = {*(query.methods or ()), *(ways.methods if {*ways.methods} <= {"sparse", "bfs"} else ())}
        if "sparse" in methods and not isinstance(self.embedder, SparseEmbedder):
            why = 'only embedder.backend = "bge" with embedder.sparse weighs tokens'
            raise InputError(why, field="methods")

    def _told(self, query: Query) -> Summaries | None:
        """Return the texts of the run that was known then; None where there is none, or none is asked for."""
        group, scopes = query.group, query.ways.scopes
        asked = "community" in scopes or ("entity" in scopes and query.as_of is None)
        if not asked:
            return None
        if (known := run_at(self.store, group, query.known_at)) is None:
            self._summaries.pop(group, None)
            return None
        held = self._summaries.get(group)
        if held is None or not held.stand(self.store, group, known):
            if len(self._summaries) >= _HELD:
                self._summaries.clear()
            load = partial(Summaries, self.store, group, query.known_at, self.embedder.dimensions)
            held = self._summaries[group] = at_one_moment(self.store, load)
        return held


def _first_stage(
    store: Store,
    index: GroupIndex,
    question: Question,
    query: Query,
    topic: Embedding | None,
    told: Summaries | None,
) -> tuple[dict[SearchScope, Ranked], list[str]]:
    """Return the first stage of each scope that is searched, and the recorded entities that are named."""
    ways = query.ways
    unused: dict[str, Any] = {weight: 0.0 for weight, method in _TEXTS.items() if method not in ways.methods}
    stage = FirstStage(index, question, replace(ways.weights, **unused), topic)
    works: dict[SearchScope, tuple[Callable[[Exact], Any], VectorReads]] = {
        "fact": (stage.pieces, STATEMENT_VECTORS),
        "entity": (stage.names, NAME_VECTORS),
        "episode": (stage.messages, MESSAGE_VECTORS),
    }
    wanted = {*ways.scopes, *(("entity",) if "fact" in ways.scopes else ())}  # facts: of whom they are
    asked = [scope for scope in works if scope in wanted]

    def score(scope: SearchScope) -> Any:  # noqa: ANN401 - the scores; of names, with those that are named
        work, reads = works[scope]
        return work(reads.exact(store, query.group))

    if store.remote:  # each may wait for 100 vectors of a large group: a server is asked for all at once
        with ThreadPoolExecutor(len(works)) as threads:  # one a search: none outlives a fork, none is shared
            of = dict(zip(asked, threads.map(score, asked), strict=True))
    else:
        of = {scope: score(scope) for scope in asked}
    ranked: dict[SearchScope, Ranked] = {}
    linked: list[str] = []
    if "fact" in of:
        ranked["fact"] = Ranked(scores=of["fact"], records=index.pieces.records)
    if "entity" in of:
        scores, whole = of["entity"]
        linked = list(dict.fromkeys(index.names.records(whole)))
        if "entity" in ways.scopes:
            ranked["entity"] = Ranked(scores=scores, records=index.names.records)
            if told is not None and told.profiles.ids and query.as_of is None:  # they tell of the run's time
                ranked["entity"] = _or_by_profile(ranked["entity"], stage.summaries(told.profiles), told)
    if "episode" in of:
        ranked["episode"] = Ranked(scores=of["episode"], records=index.messages.records)
    if "community" in ways.scopes and told is not None and told.communities.ids:
        scores, ids = stage.summaries(told.communities), told.communities.ids
        ranked["community"] = Ranked(scores=scores, records=lambda places: [ids[n] for n in places])
    return ranked, linked


def _or_by_profile(named: Ranked, scores: Scores, told: Summaries) -> Ranked:
    """Return the first stage of entities by their names, and by what a model wrote of them."""
    count = len(named.scores.score)

    def records(places: Ints) -> list[str]:
        by_name = iter(named.records(places[places < count]))
        return [
            next(by_name) if n < count else Profiled(told.profiles.ids[n - count]) for n in places.tolist()
        ]

    return Ranked(scores=named.scores.beside(scores), records=records)


def _answer(run: SearchRun, vector: Vector | None) -> Ranking:
    ways, limit = run.ways, run.query.limit
    if ways.fusion == "weighted" and ways.reranker == "none" and "bfs" not in ways.methods:
        cut, least = cut_of(run, limit)  # few rows are read, and more only where these do not decide it
        ranking, last = _ranking(run, vector, least)
        if len(ranking.hits) == limit and last >= cut:
            return ranking
    return _ranking(run, vector)[0]


def _ranking(run: SearchRun, vector: Vector | None, least: float = 0.0) -> tuple[Ranking, float]:
    """Return the hits among rows whose first stage's score is `least`, and the score of the last."""
    limit, ways = run.query.limit, run.ways
    weighted = ways.fusion == "weighted"
    wanted = limit if ways.reranker == "none" else POOL * limit
    by_method: _ByMethod = {}
    found: Found = {}
    for scope, ranked in run.ranked.items():
        if weighted:
            found[scope] = gather(run, scope, wanted, least=least) if ways.methods != ("bfs",) else []
        else:
            of = {name: of for name, of in ranked.scores.signals.items() if name in _TEXTS}
            by_method[scope] = {name: gather(run, scope, wanted, Scores(score=of[name])) for name in of}
            found[scope] = fused_by_rank(by_method[scope])
    for scope, walked in (steps(run, found) if "bfs" in ways.methods else {}).items():
        by_method.setdefault(scope, {})["steps"] = walked
        if scope in found:
            found[scope] = _with_steps(found[scope], walked) if weighted else fused_by_rank(by_method[scope])
    if ways.reranker not in {"none", "cross_encoder"}:
        found = {scope: reranked(run, vector, rows[: POOL * limit]) for scope, rows in found.items()}
    length = wanted if ways.reranker == "cross_encoder" else limit
    once, then = ways.once and "episode" in found, run.query.as_of is not None
    chosen, said = one_list(found, length, ways.places, once=once, facts_first=then)
    ranking = Ranking(
        hits=tuple(_hits(run, chosen, _ranks(run, chosen, by_method))),
        said_above=tuple((scope, candidate.row.id, _text(candidate.row)) for scope, candidate in said),
        floor=ways.weights.floor,
    )
    return ranking, chosen[-1][1].score if chosen else 0.0


def _with_steps(found: Sequence[Candidate], reached: Sequence[Candidate]) -> list[Candidate]:
    """Add to each candidate the score of the steps by which it was reached too."""
    joined = {candidate.row.id: candidate for candidate in found}
    for step in reached:
        own = joined.get(step.row.id, replace(step, score=0.0))
        signals = {**own.signals, **step.signals}
        joined[step.row.id] = replace(own, score=own.score + step.score, signals=signals)
    return sorted(joined.values(), key=lambda candidate: -candidate.score)


def one_list(
    found: Mapping[SearchScope, Sequence[Candidate]],
    limit: int,
    places: Mapping[SearchScope, int],
    *,
    once: bool,
    facts_first: bool = False,
) -> tuple[list[_Chosen], list[_Chosen]]:
    """Return the best `limit` of all scopes by score, ties fact, entity, episode; and what a hit above says.

    once: a message says what its facts say, so a fact goes with its messages, and a message with the first of
    its facts. Two facts of one message say two things.
    facts_first: of a fact and a message that support it the fact is shown, at the better place, for what is
    asked of one moment: a message has no span.
    """
    rows = [
        (-candidate.score, SCOPES.index(scope), place, scope, candidate)
        for scope, candidates in found.items()
        for place, candidate in enumerate(candidates)
    ]
    chosen: list[_Chosen] = []
    said: list[_Chosen] = []
    left = {scope: places.get(scope, limit) for scope in found}
    shown: set[str] = set()  # episodes that are hits
    told: set[str] = set()  # and those that a fact above is supported by
    for _, _, _, scope, candidate in sorted(rows, key=lambda row: row[:3]):
        if len(chosen) >= limit:
            break
        row = candidate.row
        sources: set[str] = set()
        if once and isinstance(row, Fact | Episode):
            sources = {row.id} if isinstance(row, Episode) else set(row.episodes)
        if facts_first and scope == "fact" and left[scope] and sources & shown:
            _stand_for(candidate, sources, chosen, said)
            left[scope] -= 1
            left["episode"] += len(sources & shown)
            told |= sources
            shown -= sources
        elif sources and sources <= (told if scope == "episode" else shown):
            said.append((scope, candidate))
        elif left[scope]:
            left[scope] -= 1
            told |= sources
            shown |= sources if scope == "episode" else set()
            chosen.append((scope, candidate))
    return chosen, said


def _stand_for(fact: Candidate, sources: set[str], chosen: list[_Chosen], said: list[_Chosen]) -> None:
    """Put a fact at the first place, and with the score, of the messages that support it; these go."""
    messages = [row for row in chosen if row[0] == "episode" and row[1].row.id in sources]
    first = chosen.index(messages[0])
    chosen[first] = "fact", replace(fact, score=messages[0][1].score)
    chosen[:] = [row for row in chosen if row not in messages]
    said += messages


def _ranks(run: SearchRun, chosen: Sequence[_Chosen], by_method: _ByMethod) -> _Ranks:
    """Return id -> the rank (from 1) in its scope that each method gave it, among all rows of the scope.

    Where methods are fused by rank, it is the rank that counted: among what the view shows.
    """
    ranks: _Ranks = {}
    for of_scope in by_method.values():
        for signal, ordered in of_scope.items():
            for rank, candidate in enumerate(ordered, 1):
                ranks.setdefault(candidate.row.id, {})[_TEXTS.get(signal, "bfs")] = rank
    for scope, candidate in chosen:
        if run.ways.fusion == "weighted" and candidate.place is not None:
            for signal, method in _TEXTS.items():
                if place := run.ranked[scope].scores.rank(signal, candidate.place):
                    ranks.setdefault(candidate.row.id, {})[method] = place
    return ranks


# ------------------------------------------------------------------------------------------------- the hits


def _hits(run: SearchRun, chosen: Sequence[_Chosen], ranks: _Ranks) -> list[Hit]:
    """Return the chosen rows as hits, in order, a score s as s / (1 + s); two reads, however many."""
    spans, _ = spans_of(run.view, [c.row for _, c in chosen if isinstance(c.row, Fact)])
    known_at = None if run.told is None else to_datetime(run.told.recorded_at)
    bounded = is_scored(run.ways)

    def shown(candidate: Candidate) -> Hit:
        row, score = candidate.row, candidate.score
        hit = partial(
            Hit,
            id=row.id,
            text=_text(row),
            score=score / (1 + score) if bounded else score,
            group=run.view.group,
            methods=ranks.get(row.id, {}),
            signals=candidate.signals,
        )
        if isinstance(row, Fact):
            return hit(scope="fact", fact=spans[row.id])
        if isinstance(row, Entity):
            return hit(scope="entity", entity=row)
        if isinstance(row, Community):
            return hit(scope="community", community=row, known_at=known_at and row.told_at(known_at))
        own = {name: getattr(row, name) for name in ("client_id", "speaker", "sequence", "kind")}
        at = to_datetime(row.reference_time)
        return hit(scope="episode", reference_time=at, told_in=row.source, **own)

    return [shown(candidate) for _, candidate in chosen]


def _text(row: FoundRow) -> str:
    return row.name if isinstance(row, Entity) else row.text


def spans_of(view: GraphView, facts: Sequence[Fact]) -> tuple[dict[str, FactSpan], Mapping[str, str | None]]:
    """Return fact id -> the fact as callers get it; and episode id -> client's id of all that they name."""
    if not facts:
        return {}, {}
    ends = list(dict.fromkeys(end for fact in facts for end in fact.ends))
    names = {entity.id: entity.name for entity in view.entities(ends)}
    told = {episode for fact in facts for episode in fact.episodes}
    told |= {fact.ended_by[0] for fact in facts if fact.ended_by is not None}
    clients = view.supporters(sorted(told))
    return {fact.id: _span(fact, names, clients) for fact in facts}, clients


def _span(fact: Fact, names: Mapping[str, str], clients: Mapping[str, str | None]) -> FactSpan:
    """Return a fact as callers get it. names: entity id -> name; clients: episode id -> the client's id."""
    same = ("id", "statement", "text", "relation", "ended_by", "event")
    given: dict[str, Any] = {name: getattr(fact, name) for name in same}
    for name in ("valid_at", "invalid_at", "created_at", "expired_at"):
        given[name] = None if (at := getattr(fact, name)) is None else to_datetime(at)
    return FactSpan(
        **given,
        source_id=fact.source,
        source=names.get(fact.source),
        target_id=fact.target,
        target=names.get(fact.target or "") if fact.value is None else fact.value.shown(),
        episodes=tuple((episode, clients.get(episode)) for episode in fact.episodes),
    )
