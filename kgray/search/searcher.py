"""A search: the first stage, graph steps, fusion, one list over all scopes. Only the embedder is asked.

Everything is deterministic: equal scores are always ordered the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from kgray import ports
from kgray.derivation.stored import view_now
from kgray.derivation.summaries import summarised
from kgray.errors import InputError
from kgray.graph import Community, Entity, Fact, Hit
from kgray.ontology import Ontology, shipped
from kgray.records import Episode
from kgray.search import index as indexing
from kgray.search import loading
from kgray.search.around import NOTHING_AROUND, Around, spans_of
from kgray.search.matching import Matcher, StateQuestion, Vocabulary
from kgray.search.query import FoundRow, Query, Question, is_scored, read_question, within
from kgray.search.ranking import OVER_FETCH, Candidate, FirstStage, Profiled, Scores, SearchRun, Summaries
from kgray.search.recipes import SCOPES, Method
from kgray.search.rerank import fused_by_rank, reranked
from kgray.search.steps import Found, steps
from kgray.times import now, to_datetime

ViewAt = Callable[[], ports.GraphView]
_Ranks = dict[str, dict[str, int]]  # id -> method -> rank
_Chosen = tuple[ports.SearchScope, Candidate]
_Sentences = dict[tuple[str, str], set[str]]  # (relation, text) of facts -> their episodes
_ByMethod = dict[ports.SearchScope, dict[str, list[Candidate]]]  # what each method found, by its signal
_TEXTS = {"words": "bm25", "vectors": "cosine", "sparse": "sparse"}  # signals of a text itself -> methods
_HELD = 64  # groups whose summaries are held in memory
POOL = 3  # times the limit: what a reranker looks at
MIN_DEPTH, MAX_DEPTH = 30, 10_000
_LIFT = 0.01  # of the best score: so far apart are facts that come first
_DEEPER = 8  # each further try goes this much deeper: 30, 240, 1920, 10000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """What a search found, and what it left out."""

    hits: tuple[Hit, ...]
    # (scope, id, text) of what a hit above says: a fact and the messages that support it count once
    said_above: tuple[tuple[ports.SearchScope, str, str], ...]
    floor: float  # the score under which a row is not about the query


class Searcher:
    """Searches the groups of one store; holds an index in memory for each that it was asked about lately."""

    def __init__(
        self,
        store: ports.Store,
        embedder: ports.Embedder,
        reranker: ports.Reranker | None = None,
        ontology: Callable[[], Ontology] = shipped,
    ) -> None:
        """Read nothing yet.

        embedder    that of the store's vectors; reranker: a cross-encoder, if any
        ontology    returns the declared relations, whose words questions are matched with
        """
        self.store, self.embedder, self.reranker = store, embedder, reranker
        self._ontology = ontology
        self._indexes = indexing.Indexes(store, embedder.dimensions)
        self._summaries: dict[str, Summaries] = {}

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return Vocabulary(self._ontology())

    async def search(self, query: Query, *, view: ViewAt | None = None) -> list[Hit]:
        """Return what answers the query best, as one list: see `ranking`."""
        return [*(await self.ranking(query, view=view)).hits]

    async def ranking(self, query: Query, *, view: ViewAt | None = None) -> Ranking:
        """Return what answers the query best, and what was left out.

        view    reads, within the snapshot of the search, what the graph knew at query.known_at; None = now
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
            # "Last week" of a conversation that ended years ago is the week before its end.
            latest = min(clock, int(index.messages.times.max(initial=0))) or clock
            counted_from = latest if query.as_of is None else query.as_of
            question = read_question(text, speakers=index.messages.known, now=counted_from)
        topic: ports.Embedding | None = None
        if {"cosine", "sparse"} & {*ways.methods} or ways.reranker == "mmr":
            (topic,) = await ports.embedded(self.embedder, [question.topic])
        with self._indexes.lock:
            told = self._told(query)
            ranked, state_question, near = _first_stage(self.store, index, question, query, topic, told)
            evidence, newest = (
                index.pieces.places(),
                index.messages.newest(ways.recent) if ways.recent else (),
            )
        # Ended facts answer a question about the past of a state.
        any_time = query.any_time or (query.as_of is None and ways.facts_first and state_question.looks_back)
        moment = None if any_time else clock if query.as_of is None else query.as_of

        def read() -> Ranking:
            shown = view_now(self.store, group) if view is None else view()
            if shown.group != group:
                raise ValueError(f"the view shows group {shown.group}, the query asks {group}")
            run = SearchRun(
                store=self.store, view=shown, query=query, ways=ways, question=question, moment=moment,
                ranked=ranked, state_question=state_question, vocabulary=self._vocabulary, near=near, told=told,
                statements=index.pieces.vectors, evidence=evidence, newest=newest,
            )  # fmt: skip
            return _answer(run, None if topic is None else topic.vector)

        found = ports.at_one_moment(self.store, read)
        return await self._reordered(found, text, query.limit) if ways.reranker == "cross_encoder" else found

    async def _reordered(self, found: Ranking, text: str, limit: int) -> Ranking:
        """Order hits by the cross-encoder."""
        if self.reranker is None or not found.hits:
            return found
        scores = await self.reranker.score(text, [hit.text for hit in found.hits])
        pairs = sorted(zip(scores, found.hits, strict=True), key=lambda pair: -pair[0])[:limit]
        return replace(found, hits=tuple(replace(hit, score=float(score)) for score, hit in pairs))

    def _refuse_what_lacks(self, query: Query) -> None:
        ways = query.ways
        if ways.reranker == "cross_encoder" and self.reranker is None:
            raise InputError("this recipe needs a reranker: set reranker.backend", field="recipe")
        methods = {*(query.methods or ()), *(ways.methods if {*ways.methods} <= {"sparse", "bfs"} else ())}
        if "sparse" in methods and not isinstance(self.embedder, ports.SparseEmbedder):
            why = 'only embedder.backend = "bge" with embedder.sparse weighs tokens'
            raise InputError(why, field="methods")

    def _told(self, query: Query) -> Summaries | None:
        """Return the texts of the run that was known then; None where there is none, or none is asked for."""
        store, group, scopes = self.store, query.group, query.ways.scopes
        if "community" not in (*scopes, *query.ways.start) and (
            "entity" not in scopes or query.as_of is not None
        ):
            return None
        if (known := loading.run_at(store, group, query.known_at)) is None:
            self._summaries.pop(group, None)
            return None
        held = self._summaries.get(group)
        if held is None or not held.stand(store, group, known):
            if len(self._summaries) >= _HELD:
                self._summaries.clear()
            load = partial(Summaries, store, group, query.known_at, self.embedder.dimensions)
            held = self._summaries[group] = ports.at_one_moment(store, load)
        return held


_Work = Callable[[loading.Exact], Scores]


def _first_stage(
    store: ports.Store,
    index: indexing.GroupIndex,
    question: Question,
    query: Query,
    topic: ports.Embedding | None,
    told: Summaries | None,
) -> tuple[dict[ports.SearchScope, Scores], StateQuestion, Callable[[str], float]]:
    """Return the first stage of each scope that is searched, and the question as facts match it."""
    ways = query.ways

    def stage_of(methods: Sequence[Method]) -> FirstStage:
        unused: dict[str, Any] = {weight: 0.0 for weight, method in _TEXTS.items() if method not in methods}
        return FirstStage(index, question, replace(ways.weights, **unused), topic)

    stage = stage_of(ways.methods)
    stages = {scope: stage_of(methods) for scope, methods in ways.only.items()}
    works: dict[ports.SearchScope, tuple[_Work, Callable[[ports.Store, str], loading.Exact]]] = {
        "fact": (stage.pieces, loading.read_text_vectors),
        "entity": (stage.names, loading.read_name_vectors),
        "episode": (stages.get("episode", stage).messages, loading.read_text_vectors),
    }
    searched = ways.start or ways.scopes
    asked = [scope for scope in works if scope in searched]

    def score(scope: ports.SearchScope) -> Scores:
        work, reads_vectors = works[scope]
        return work(reads_vectors(store, query.group))

    if store.remote:  # each may wait for 100 vectors of a large group: a server is asked for all at once
        with ThreadPoolExecutor(len(works)) as threads:  # one a search: none outlives a fork, none is shared
            ranked = dict(zip(asked, threads.map(score, asked), strict=True))
    else:
        ranked = {scope: score(scope) for scope in asked}
    if told is not None:
        if told.profiles.ids and "entity" in ranked and query.as_of is None:  # they tell of the run's time
            ranked["entity"] = ranked["entity"].beside(stage.summaries(told.profiles))
        if told.communities.ids and "community" in searched:
            ranked["community"] = stage.summaries(told.communities)
    return (
        ranked,
        stage.state_question() if "fact" in ranked else StateQuestion(words=(), names=()),
        stage.near(),
    )


def _answer(run: SearchRun, vector: ports.Vector | None) -> Ranking:
    ways, limit = run.ways, run.query.limit
    first = _facts_first(run)
    if ways.fusion == "weighted" and ways.reranker == "none" and "bfs" not in ways.methods:
        # Few rows are read, and more only where these do not decide it. What is left out below `least` has,
        # boosted or not, no score above the cut: that of about the last that may be among the best.
        most, weights = OVER_FETCH * limit, ways.weights
        scores = [ranked.score[ranked.best(most)] for ranked in run.ranked.values()]
        best = np.sort(np.concatenate(scores))[::-1] if scores else ()
        cut = float(best[most - 1]) if len(best) >= most else 0.0
        least = cut / (max(1.0, weights.linked) * max(1.0, weights.dates) * max(1.0, weights.rows))
        ranking, last = _ranking(run, vector, first, least)
        if len(ranking.hits) == limit and last >= cut:
            return ranking
    return _ranking(run, vector, first)[0]


def _facts_first(run: SearchRun) -> list[Fact]:
    """Return the facts that answer the question, best first (`matching`); none where the recipe has none."""
    if not run.ways.facts_first or "fact" not in run.ranked or not run.state_question.names:
        return []
    ranked = run.ranked["fact"]

    def others() -> list[Fact]:
        shown = _shown(run, "fact", ranked.records(ranked.best(MIN_DEPTH)))
        return [fact for facts in shown for fact in facts if isinstance(fact, Fact)]

    matcher = Matcher(question=run.state_question, vocabulary=run.vocabulary, view=run.view, near=run.near)
    found = matcher.first(run.moment, others)
    kept = {row.id for row in run.keep(found)}
    return [fact for fact in found if fact.id in kept]


def _lifted(first: Sequence[Fact], found: Found) -> Found:
    """Return the candidates with these facts above all others, in their order."""
    known = {candidate.row.id: candidate for candidate in found.get("fact", ())}
    top = max((rows[0].score for rows in found.values() if rows), default=0.0) or 1.0
    lifted = []
    for place, fact in enumerate(first):
        own = known.pop(fact.id, Candidate(row=fact, score=0.0))
        score = top * (1 + _LIFT * (len(first) - place))
        lifted.append(replace(own, score=score, signals={**own.signals, "answers": 1.0 + len(first) - place}))
    return {**found, "fact": [*lifted, *known.values()]}


def _ranking(
    run: SearchRun, vector: ports.Vector | None, first: Sequence[Fact], least: float = 0.0
) -> tuple[Ranking, float]:
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
            of = {
                name: replace(ranked, score=ranked.signals[name], signals={}, floor=0.0)
                for name in ranked.signals
                if name in _TEXTS
            }
            by_method[scope] = {name: gather(run, scope, wanted, of[name]) for name in of}
            found[scope] = fused_by_rank(by_method[scope])
    for scope, walked in (steps(run, found) if "bfs" in ways.methods else {}).items():
        by_method.setdefault(scope, {})["steps"] = walked
        if scope in found and weighted:  # each has the score of the steps by which it was reached, too
            joined = {candidate.row.id: candidate for candidate in found[scope]}
            for step in walked:
                own = joined.get(step.row.id, replace(step, score=0.0))
                signals = {**own.signals, **step.signals}
                joined[step.row.id] = replace(own, score=own.score + step.score, signals=signals)
            found[scope] = sorted(joined.values(), key=lambda candidate: -candidate.score)
        elif scope in found:
            found[scope] = fused_by_rank(by_method[scope])
        else:
            found[scope] = walked if weighted else fused_by_rank(by_method[scope])
    found = {scope: rows for scope, rows in found.items() if scope in ways.scopes}
    if ways.reranker not in {"none", "cross_encoder"}:
        found = {scope: reranked(run, vector, rows[: POOL * limit]) for scope, rows in found.items()}
    if first:
        found = _lifted(first, found)
    length = wanted if ways.reranker == "cross_encoder" else limit
    once, then = ways.once and "episode" in found, run.query.as_of is not None
    chosen, said = one_list(found, length, ways.places, once=once, facts_first=then)
    ranking = Ranking(
        hits=tuple(_hits(run, chosen, _ranks(run, chosen, by_method))),
        said_above=tuple((scope, candidate.row.id, _text(candidate.row)) for scope, candidate in said),
        floor=ways.weights.floor,
    )
    return ranking, chosen[-1][1].score if chosen else 0.0


def gather(
    run: SearchRun, scope: ports.SearchScope, wanted: int, scores: Scores | None = None, least: float = 0.0
) -> list[Candidate]:
    """Return the best rows of one scope above the floor, best first; `wanted` at least, if there are so many.

    scores: other ones than the first stage's own, of the same rows; as they are, not boosted.
    least: only rows of this score at least, though they be fewer.
    """
    chosen = scores or run.ranked[scope]
    depth = max(MIN_DEPTH, OVER_FETCH * wanted)
    while True:
        rows = chosen.best(depth, least)
        found = _shown(run, scope, chosen.records(rows))
        best: dict[str, Candidate] = {}
        of = zip(found, chosen.score[rows].tolist(), chosen.of(rows), rows.tolist(), strict=True)
        for shown, score, signals, place in of:
            for each in shown:
                if each.id not in best:
                    best[each.id] = Candidate(row=each, score=score, signals=signals, place=place)
        passing = run.keep([candidate.row for candidate in best.values()])
        kept = [best[row.id] for row in passing]
        if len(kept) >= wanted or len(rows) < depth or depth >= MAX_DEPTH:
            return kept if scores else _boosted(run, scope, kept)
        depth = min(depth * _DEEPER, MAX_DEPTH)


def _shown(run: SearchRun, scope: ports.SearchScope, records: Sequence[Any]) -> list[list[FoundRow]]:
    """Return for each record the rows that the view shows for it; one read."""
    view = run.view
    if scope == "episode":
        episodes = {episode.sequence: episode for episode in view.episodes(records)}
        return [[episodes[number]] if number in episodes else [] for number in records]
    # What was written may be gone since it was loaded (R25).
    told = [id_ for id_ in records if scope == "community" or isinstance(id_, Profiled)]
    number = run.told.run if run.told else 0
    listed, profiles = loading.texts_of(run.store, view.group, number, told) if told else ([], {})
    if scope == "community":
        there = {one.id: one for one in listed}
        return [[there[id_]] if id_ in there else [] for id_ in records]
    if scope == "entity":
        pairs = zip(records, view.entities_of([*map(str, records)]), strict=True)
        return [[*shown] if id_ in profiles or not isinstance(id_, Profiled) else [] for id_, shown in pairs]
    return [[*shown] for shown in view.facts_of_evidence(records, run.moment)]


def _boosted(run: SearchRun, scope: ports.SearchScope, found: list[Candidate]) -> list[Candidate]:
    """Order by what rows say: facts of who is named, or that began or ended then; triples count less."""
    weights = run.ways.weights
    named = (
        run.view.entities(run.state_question.entities) if scope == "fact" and run.state_question.names else []
    )
    linked = {entity.id for entity in named}
    boosted = []
    for candidate in found:
        row, factors = candidate.row, dict[str, float]()
        if isinstance(row, Episode) and row.kind == "triples":
            factors["rows"] = weights.rows
        elif isinstance(row, Fact):
            if not linked.isdisjoint(row.ends):
                factors["linked"] = weights.linked
            if any(within(at, span) for at in (row.valid_at, row.invalid_at) for span in run.question.spans):
                factors["dates"] = weights.dates
        told = {name: factor for name, factor in factors.items() if factor != 1}
        score, signals = candidate.score * math.prod(told.values()), {**candidate.signals, **told}
        boosted.append(replace(candidate, score=score, signals=signals) if told else candidate)
    return sorted(boosted, key=lambda candidate: -candidate.score)


def one_list(
    found: Mapping[ports.SearchScope, Sequence[Candidate]],
    limit: int,
    places: Mapping[ports.SearchScope, int],
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
    sentences: _Sentences = {}
    for _, _, _, scope, candidate in sorted(rows, key=lambda row: row[:3]):
        if len(chosen) >= limit:
            break
        row = candidate.row
        if once and isinstance(row, Fact) and _is_told(row, sentences):
            said.append((scope, candidate))
            continue
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


def _is_told(fact: Fact, sentences: _Sentences) -> bool:
    """Whether a hit above is of the same hyper-edge: one sentence tells both. Notes the sentence."""
    episodes = sentences.setdefault((fact.relation, fact.text), set())
    known = not episodes.isdisjoint(fact.episodes)
    episodes.update(fact.episodes)
    return known


def _stand_for(fact: Candidate, sources: set[str], chosen: list[_Chosen], said: list[_Chosen]) -> None:
    """Put a fact at the first place, and with the score, of the messages that support it; these go."""
    messages = [row for row in chosen if row[0] == "episode" and row[1].row.id in sources]
    first = chosen.index(messages[0])
    chosen[first] = "fact", replace(fact, score=messages[0][1].score)
    chosen[:] = [row for row in chosen if row not in messages]
    said += messages


def _ranks(run: SearchRun, chosen: Sequence[_Chosen], by_method: _ByMethod) -> _Ranks:
    """Return id -> the rank (from 1) in its scope that each method gave it, among all rows of the scope."""
    ranks: _Ranks = {}  # where methods are fused by rank, that which counted: among what the view shows
    for of_scope in by_method.values():
        for signal, ordered in of_scope.items():
            for rank, candidate in enumerate(ordered, 1):
                ranks.setdefault(candidate.row.id, {})[_TEXTS.get(signal, "bfs")] = rank
    for scope, candidate in chosen:
        if run.ways.fusion == "weighted" and candidate.place is not None:
            for signal, method in _TEXTS.items():
                if place := run.ranked[scope].rank(signal, candidate.place):
                    ranks.setdefault(candidate.row.id, {})[method] = place
    return ranks


def _hits(run: SearchRun, chosen: Sequence[_Chosen], ranks: _Ranks) -> list[Hit]:
    """Return the chosen rows as hits, in order, a score s as s / (1 + s).

    Two reads, however many; as of a moment another for the summary of each entity.
    """
    spans, _ = spans_of(run.view, [c.row for _, c in chosen if isinstance(c.row, Fact)])
    known_at = None if run.told is None else to_datetime(run.told.recorded_at)
    bounded = is_scored(run.ways)
    around = Around.of(run, [c.row for _, c in chosen]) if run.ways.once else NOTHING_AROUND

    hits = []
    for scope, candidate in chosen:
        row, score = candidate.row, candidate.score
        own: dict[str, Any] = {"methods": ranks.get(row.id, {}), "signals": candidate.signals}
        if isinstance(row, Fact):
            own |= {"fact": spans[row.id], "participants": around.participants.get(row.id, ())}
            own["message"] = around.messages.get(row.id)
        elif isinstance(row, Entity):
            (own["entity"],) = summarised(run.view, [row], run.query.as_of)
        elif isinstance(row, Community):
            own |= {"community": row, "known_at": known_at and row.told_at(known_at)}
        else:
            own |= {name: getattr(row, name) for name in ("client_id", "speaker", "sequence", "kind")}
            own |= {"reference_time": to_datetime(row.reference_time), "told_in": row.source}
            own["outdated"] = row.id in around.outdated
        score = score / (1 + score) if bounded else score
        hits.append(Hit(scope=scope, id=row.id, text=_text(row), score=score, group=run.view.group, **own))
    return hits


def _text(row: FoundRow) -> str:
    return row.name if isinstance(row, Entity) else row.text
