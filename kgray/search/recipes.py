"""Recipes: which methods find, and what orders what they found. Data, never changed in place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Method = Literal["bm25", "cosine", "bfs"]
Reranker = Literal["rrf", "mmr", "episode_mentions", "node_distance"]
METHODS: tuple[Method, ...] = ("bm25", "cosine", "bfs")
RERANKERS: tuple[Reranker, ...] = ("rrf", "mmr", "episode_mentions", "node_distance")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How to search. Source: the search and reranker functions of Zep, arXiv 2501.13956, section 3."""

    methods: tuple[Method, ...] = METHODS
    reranker: Reranker = "rrf"


RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "hybrid": Recipe(),
        "lexical": Recipe(methods=("bm25",)),
        "semantic": Recipe(methods=("cosine",)),
        "neighbours": Recipe(methods=("bfs",)),  # what lies around a centre or seeds, nearest first
        "diverse": Recipe(reranker="mmr"),
        "mentions": Recipe(reranker="episode_mentions"),
        "nearby": Recipe(reranker="node_distance"),  # hybrid, then by distance from the centre
    }
)
