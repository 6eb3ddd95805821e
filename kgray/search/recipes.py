"""The named ways to search: one table, which Python, HTTP, MCP, the command line and the evaluation share.

A name maps to a `Recipe`, a value. docs/searching.md prints the table; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, get_args

from kgray.ports import SearchScope

Method = Literal["bm25", "cosine", "sparse", "bfs"]
Fusion = Literal["weighted", "rrf"]
Reranker = Literal["none", "rrf", "mmr", "episode_mentions", "node_distance", "cross_encoder"]
Template = Literal["kgray", "paper"]
METHODS: tuple[Method, ...] = get_args(Method)
RERANKERS: tuple[Reranker, ...] = get_args(Reranker)
TEMPLATES: tuple[Template, ...] = get_args(Template)
SCOPES: tuple[SearchScope, ...] = ("fact", "entity", "episode", "community")
MAX_DEPTH = 4  # graph steps
MAX_RECENT = 64  # newest episodes that graph steps start from


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """The weight of each signal of `ranking`. docs/searching.md describes how they were fitted."""

    words: float = 0.5  # in the weighted sum with `vectors` and `sparse`: each 0 to 1 or a little more
    vectors: float = 0.5
    sparse: float = 0.25  # of token weights, if the embedder gives them
    speaker: float = 1.4  # factor for messages of a named speaker
    dates: float = 2.0  # factor for messages, and facts that began or ended, at a time in the question
    times: float = 1.3  # factor for messages with words of time, if the question asks for a time
    phrase: float = 1.5  # factor for rows with a quoted phrase
    length: float = 0.45  # exponent of the factor (1 + words of a message / mean of the group) / 2
    linked: float = 3.0  # factor for facts of a named entity
    rows: float = 0.5  # factor for episodes of triples, whose facts rank better
    # Shares of the scores of the messages (before, after) at distance 1, then 2, in the session. The message
    # before counts more, because an answer shares few words with its question.
    neighbours: tuple[tuple[float, float], ...] = ((0.38, 0.27), (0.16, 0.09))
    session: float = 0.375  # share of the session's score by words, for messages that have another signal
    communities: float = 0.5  # factor for summaries of communities
    steps: float = 0.35  # factor on the start's score for each graph step
    floor: float = 0.02  # least fit of a scope's best row, 0 to 1; below it the scope has no hits
    tail: float = 0.1  # rows below this share of the best score are dropped; negative: none is


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A way to search; a value that prints itself.

    methods     bm25, cosine and sparse over texts, vectors and weights of tokens (of an embedder that gives
                them); bfs: graph steps from the best hits, the centre and the seeds
    fusion      weighted: one score of all signals, comparable over scopes. rrf: reciprocal rank fusion of the
                methods alone, as Zep's paper has it (arXiv 2501.13956, section 3)
    start       the scopes that the text methods search; graph steps reach the others from their hits.
                () = all of `scopes`
    """

    scopes: tuple[SearchScope, ...] = SCOPES  # unless the query sets them
    methods: tuple[Method, ...] = ("bm25", "cosine", "sparse")
    fusion: Fusion = "weighted"
    reranker: Reranker = "none"  # reorders the fused hits
    weights: Weights = Weights()
    places: Mapping[SearchScope, int] = field(default_factory=lambda: {"community": 2})  # hits at most
    once: bool = True  # a fact and its supporting messages share one place
    facts_first: bool = False  # a fact that answers the question comes before all other hits
    start: tuple[SearchScope, ...] = ()
    only: Mapping[SearchScope, tuple[Method, ...]] = field(default_factory=dict)  # methods of one scope
    depth: int = 2  # graph steps
    recent: int = 0  # newest episodes that graph steps start from, too
    mmr_lambda: float = 0.5  # of mmr: 1.0 ranks by nearness alone, 0.0 by difference alone
    shares: Mapping[SearchScope, float] = field(default_factory=dict)  # of a context's tokens, at most
    source: str = "kgray"  # the publisher
    note: str = ""


_FACTS: tuple[SearchScope, ...] = ("fact",)
_ENTITIES: tuple[SearchScope, ...] = ("entity",)
_COMMUNITIES: tuple[SearchScope, ...] = ("community",)
_TEXT: tuple[Method, ...] = ("bm25", "cosine")
_GRAPH: tuple[Method, ...] = ("bm25", "cosine", "bfs")
# LightRAG divides 30,000 tokens: entities 6,000, relations 8,000, chunks the rest.
_LIGHTRAG_SHARES: Mapping[SearchScope, float] = {"entity": 0.2, "fact": 0.27, "episode": 0.53}
# GraphRAG divides its tokens: reports 15 %, entities and relations 35 %, text units 50 %.
_GRAPHRAG_SHARES: Mapping[SearchScope, float] = {
    "community": 0.15,
    "entity": 0.1,
    "fact": 0.25,
    "episode": 0.5,
}


def _graphiti(note: str, scopes: tuple[SearchScope, ...], reranker: Reranker, **overrides: object) -> Recipe:
    """Return a recipe of Graphiti: its methods are bm25 and cosine, with graph steps for a cross-encoder."""
    fields: dict[str, object] = {"methods": _GRAPH if reranker == "cross_encoder" else _TEXT, "places": {}}
    if "episode" in scopes:
        fields["only"] = {"episode": ("bm25",)}
    fields |= {"scopes": scopes, "fusion": "rrf", "reranker": reranker, "once": False, "mmr_lambda": 1.0}
    return Recipe(**(fields | overrides), source="Graphiti", note=note)  # type: ignore[arg-type]


def _lightrag(note: str, *start: SearchScope) -> Recipe:
    """Return a recipe of LightRAG: a search of the scopes in `start`, and one graph step to the others."""
    return Recipe(
        scopes=("fact", "entity", "episode"),
        methods=("cosine", "bfs"),
        start=start,
        depth=1,
        once=False,
        shares=_LIGHTRAG_SHARES,
        source="LightRAG",
        note=note,
    )


RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "hybrid": Recipe(facts_first=True, note="the default: one weighted score, facts first"),
        "mix": Recipe(methods=METHODS, facts_first=True, note="hybrid, and graph steps from its hits"),
        "naive": Recipe(scopes=("episode",), note="messages alone"),
        "local": Recipe(
            scopes=("fact", "entity"), methods=METHODS, facts_first=True, note="entities and their facts"
        ),
        "lexical": Recipe(methods=("bm25",), note="words alone"),
        "semantic": Recipe(methods=("cosine",), note="vectors alone"),
        "neighbours": Recipe(
            scopes=("fact", "entity"), methods=("bfs",),
            note="the facts around a centre, seeds or recent messages",
        ),
        "diverse": Recipe(reranker="mmr", note="hits unlike the hits above"),
        "mentions": Recipe(reranker="episode_mentions", note="by the number of supporting messages"),
        "nearby": Recipe(methods=METHODS, reranker="node_distance", note="by distance from the centre"),
        "reranked": Recipe(reranker="cross_encoder", note="by a cross-encoder (reranker.backend)"),
        "paper": Recipe(
            scopes=("fact", "entity"),
            methods=_GRAPH,
            fusion="rrf",
            places={"fact": 20, "entity": 20},
            source="Zep",
            note="20 facts and 20 entities by reciprocal rank (arXiv 2501.13956)",
        ),
        "combined_hybrid_search_rrf": _graphiti("all scopes by reciprocal rank", SCOPES, "rrf"),
        "combined_hybrid_search_mmr": _graphiti("all scopes by MMR", SCOPES, "mmr"),
        "combined_hybrid_search_cross_encoder": _graphiti(
            "all scopes by a cross-encoder", SCOPES, "cross_encoder"
        ),
        "edge_hybrid_search_rrf": _graphiti("facts by reciprocal rank", _FACTS, "rrf"),
        "edge_hybrid_search_mmr": _graphiti("facts by MMR", _FACTS, "mmr"),
        "edge_hybrid_search_node_distance": _graphiti(
            "facts by distance from the centre", _FACTS, "node_distance"
        ),
        "edge_hybrid_search_episode_mentions": _graphiti(
            "facts by supporting messages", _FACTS, "episode_mentions"
        ),
        "edge_hybrid_search_cross_encoder": _graphiti("facts by a cross-encoder", _FACTS, "cross_encoder"),
        "node_hybrid_search_rrf": _graphiti("entities by reciprocal rank", _ENTITIES, "rrf"),
        "node_hybrid_search_mmr": _graphiti("entities by MMR", _ENTITIES, "mmr"),
        "node_hybrid_search_node_distance": _graphiti(
            "entities by distance from the centre", _ENTITIES, "node_distance"
        ),
        "node_hybrid_search_episode_mentions": _graphiti(
            "entities by supporting messages", _ENTITIES, "episode_mentions"
        ),
        "node_hybrid_search_cross_encoder": _graphiti(
            "entities by a cross-encoder", _ENTITIES, "cross_encoder"
        ),
        "community_hybrid_search_rrf": _graphiti("communities by reciprocal rank", _COMMUNITIES, "rrf"),
        "community_hybrid_search_mmr": _graphiti("communities by MMR", _COMMUNITIES, "mmr"),
        "community_hybrid_search_cross_encoder": _graphiti(
            "3 communities by a cross-encoder", _COMMUNITIES, "cross_encoder",
            methods=_TEXT, places={"community": 3},
        ),
        "lightrag_local": _lightrag("entities, then their relations and messages", "entity"),
        "lightrag_global": _lightrag("relations, then their ends and messages", "fact"),
        "lightrag_hybrid": _lightrag("entities and relations, then their messages", "entity", "fact"),
        "lightrag_mix": _lightrag("hybrid, and messages by vectors", "entity", "fact", "episode"),
        "graphrag_local": Recipe(
            methods=("cosine", "bfs"), start=_ENTITIES, depth=1, once=False, places={},
            shares=_GRAPHRAG_SHARES, source="GraphRAG",
            note="entities, then their reports, relations and messages",
        ),
        "graphrag_global": Recipe(
            scopes=_COMMUNITIES, methods=("cosine",), places={}, source="GraphRAG", note="reports alone"
        ),
        "graphrag_drift": Recipe(
            methods=("cosine", "bfs"), start=_COMMUNITIES, depth=2, once=False, places={"community": 5},
            shares=_GRAPHRAG_SHARES, source="GraphRAG",
            note="reports, then what lies around their members",
        ),
    }
)  # fmt: skip
