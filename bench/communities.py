"""How well and how fast communities are found in graphs whose communities are known, beside networkx.

The graphs are like those of Lancichinetti, Fortunato and Radicchi (2008): degrees and sizes of communities
follow power laws (exponents 2.5 and 1.5), the share mu of each node's edges leads anywhere. A third of the
pairs have two or three facts.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.tables import Column, aligned
from kgray.communities.graph import Graph, Ints, from_arrays, without
from kgray.communities.partition import NOBODY, cap_for, levels_of, partition
from kgray.errors import Cost
from kgray.ports import SummaryRequest
from kgray.settings import Settings

_LEAST, _MOST_DEGREE, _MEMBERS = 4, 200, (20, 500)
_COLUMNS = (
    ("what", "what", ""), ("nodes", "nodes", ",d"), ("edges", "edges", ",d"), ("mu", "mu", ".1f"),
    ("communities", "found", ",d"), ("planted", "planted", ",d"), ("nmi", "NMI", ".3f"),
    ("modularity", "Q", ".3f"), ("cpu_s", "CPU s", ".2f"), ("peak_mb", "peak MB", ",d"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One algorithm on one graph. peak_mb: of the process, so far."""

    what: str
    nodes: int
    edges: int
    mu: float
    communities: int
    planted: int
    nmi: float
    modularity: float
    cpu_s: float
    peak_mb: int


def planted(nodes: int, mu: float, seed: int) -> tuple[Graph, Ints]:
    """Return a graph and the community of each of its nodes."""
    dice = np.random.default_rng(seed)
    degrees = np.clip((_LEAST * dice.random(nodes) ** (-1 / 1.5)).astype(np.int64), _LEAST, _MOST_DEGREE)
    low, high = (bound**-0.5 for bound in _MEMBERS)
    sizes: list[int] = []
    while sum(sizes) < nodes:
        sizes.append(int((low + dice.random() * (high - low)) ** -2))
    of = np.repeat(np.arange(len(sizes)), sizes)[:nodes]
    dice.shuffle(of)
    inner = (degrees * (1 - mu) + dice.random(nodes)).astype(np.int64)
    stubs = np.repeat(np.arange(nodes), inner)
    own = stubs[np.lexsort((dice.random(len(stubs)), of[stubs]))]
    others = np.repeat(np.arange(nodes), degrees - inner)
    dice.shuffle(others)
    pairs = [(part[0 : len(part) // 2 * 2 : 2], part[1 : len(part) // 2 * 2 : 2]) for part in (own, others)]
    within = of[pairs[0][0]] == of[pairs[0][1]]
    a = np.concatenate((pairs[0][0][within], pairs[1][0]))
    b = np.concatenate((pairs[0][1][within], pairs[1][1]))
    facts = np.where(dice.random(len(a)) < 1 / 3, dice.integers(2, 4, len(a)), 1)
    hashes = dice.permutation(np.arange(1, nodes + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    return from_arrays(a, b, 2 * facts, hashes), of


def agreement(labels: Ints, truth: Ints) -> float:
    """Return the normalised mutual information of two partitions, arithmetic mean (Danon et al. 2005)."""
    _, a = np.unique(labels, return_inverse=True)
    _, b = np.unique(truth, return_inverse=True)
    joint, counts = np.unique(a * (b.max() + 1) + b, return_counts=True)
    x, y = np.divmod(joint, b.max() + 1)
    p, pa, pb = counts / len(a), np.bincount(a) / len(a), np.bincount(b) / len(b)
    shared = float((p * np.log(p / (pa[x] * pb[y]))).sum())
    entropy = -float((pa * np.log(pa)).sum() + (pb * np.log(pb)).sum())
    return 2 * shared / entropy if entropy else 1.0


def modularity(graph: Graph, labels: Ints) -> float:
    """Return Newman's modularity, with weights; who is in no community is one of its own."""
    labels = np.where(labels == NOBODY, np.arange(graph.nodes), labels)
    heads, total = graph.heads, graph.weights.sum()
    inside = graph.weights[labels[heads] == labels[graph.ends]].sum() / total
    strength = np.bincount(labels, np.bincount(heads, graph.weights, graph.nodes), graph.nodes) / total
    return float(inside - (strength**2).sum())


def _ours(graph: Graph) -> Iterator[tuple[str, Ints]]:
    labels = partition(graph, cap_for(graph.nodes))
    yield "kgray", labels
    levels = levels_of(graph, labels)
    for level, groups in enumerate(levels.members[1:], 1):
        upper = np.arange(graph.nodes)
        for members in groups:
            upper[members] = members[0]
        yield f"kgray, level {level}", upper


def _networkx(graph: Graph, names: Sequence[str]) -> Iterator[tuple[str, Ints]]:
    import networkx as nx

    drawn = nx.Graph()
    drawn.add_nodes_from(range(graph.nodes))
    half = graph.heads < graph.ends
    edges = (graph.heads[half].tolist(), graph.ends[half].tolist(), graph.weights[half].tolist())
    drawn.add_weighted_edges_from(zip(*edges, strict=True))
    ways: dict[str, Callable[[], object]] = {
        "fast_label_propagation": lambda: nx.community.fast_label_propagation_communities(
            drawn, weight="weight", seed=1
        ),
        "asyn_lpa": lambda: nx.community.asyn_lpa_communities(drawn, weight="weight", seed=1),
        "louvain": lambda: nx.community.louvain_communities(drawn, weight="weight", seed=1),
    }
    for name in names:
        labels = np.arange(graph.nodes)
        for members in ways[name]():  # type: ignore[attr-defined]
            labels[list(members)] = min(members)
        yield f"networkx {name}", labels


def run(nodes: int, mus: Sequence[float], seed: int, beside: Sequence[str]) -> list[Measured]:
    """Measure every algorithm on a graph for each mu; the time of building the graph is not counted."""
    found = []
    for mu in mus:
        graph, truth = planted(nodes, mu, seed)
        for way in (_ours(graph), _networkx(graph, beside)):
            started = time.process_time()
            for what, labels in way:
                spent = time.process_time() - started
                known = labels != NOBODY
                found.append(
                    Measured(
                        what=what,
                        nodes=nodes,
                        edges=len(graph.ends) // 2,
                        mu=mu,
                        communities=len(np.unique(labels[known])),
                        planted=len(np.unique(truth)),
                        nmi=agreement(labels[known], truth[known]),
                        modularity=modularity(graph, labels),
                        cpu_s=spent,
                        peak_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
                    )
                )
                started = time.process_time()
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Grown:
    """What is left of a run once a share of the entities has come since, in any order.

    members, shown  of the new communities the share whose members, and what a writer is shown, are as before
    """

    nodes: int
    mu: float
    grown: float
    communities: int
    members: float
    shown: float
    cpu_s: float


_GROWN = (
    ("nodes", "nodes", ",d"), ("mu", "mu", ".1f"), ("grown", "grown", ".2f"), ("communities", "found", ",d"),
    ("members", "same members", ".3f"), ("shown", "same input", ".3f"), ("cpu_s", "CPU s", ".2f"),
)  # fmt: skip


def grow(nodes: int, mu: float, seed: int, share: float) -> Grown:
    """Find communities, let entities come with all their edges, find them again from there."""
    whole, _ = planted(round(nodes * (1 + share)), mu, seed)
    late = np.zeros(whole.nodes, bool)
    late[np.random.default_rng(seed).permutation(whole.nodes)[nodes:]] = True
    before, cap = without(whole, late), cap_for(nodes)
    then = partition(before, cap)
    touched = late.copy()
    touched[whole.ends[late[whole.heads]]] = True
    started = time.process_time()
    now = partition(whole, cap, np.where(late, NOBODY, then), touched)
    spent = time.process_time() - started
    old, new = _inputs(before, then), _inputs(whole, now)
    same = [len(ours & theirs) / len(ours) for ours, theirs in zip(new, old, strict=True)]
    return Grown(
        nodes=nodes, mu=mu, grown=share, communities=len(new[0]), members=same[0], shown=same[1], cpu_s=spent
    )


def _inputs(graph: Graph, labels: Ints) -> tuple[set[tuple[int, ...]], set[tuple[int, ...]]]:
    """Return of each community its members; and what is shown: the first 20 of them, and 30 of its edges."""
    heads = graph.heads
    inside = (labels[heads] == labels[graph.ends]) & (labels[heads] != NOBODY)
    weight = np.bincount(heads[inside], graph.weights[inside], graph.nodes)
    edges = np.flatnonzero(inside & (heads < graph.ends))
    ranked = edges[np.lexsort((graph.hashes[heads[edges]], -graph.weights[edges], labels[heads[edges]]))]
    codes = heads * graph.nodes + graph.ends
    told = {int(labels[heads[part[0]]]): codes[part[:30]] for part in _parts(ranked, labels[heads])}
    nodes = np.flatnonzero(labels != NOBODY)
    members, shown = set(), set()
    for part in _parts(nodes[np.lexsort((nodes, -weight[nodes], labels[nodes]))], labels):
        first = np.sort(part[:20]).tolist()
        members.add(tuple(np.sort(part).tolist()))
        shown.add((*first, *sorted(told.get(int(labels[part[0]]), np.zeros(0, int)).tolist())))
    return members, shown


def _parts(ranked: Ints, labels: Ints) -> list[Ints]:
    """Cut what is ordered by label into one part a label."""
    return np.split(ranked, np.flatnonzero(np.diff(labels[ranked])) + 1) if len(ranked) else []


@dataclass(frozen=True, slots=True, kw_only=True)
class ManyGroups:
    """Many small groups, refreshed by the tasks of a Ray with a writer that answers at once, then again."""

    groups: int
    entities: int
    communities: int
    calls: int
    seconds: float
    calls_again: int
    seconds_again: float


_MANY = tuple(
    (name, name.replace("_", " "), ".1f" if name.startswith("seconds") else ",d")
    for name in ManyGroups.__dataclass_fields__
)


class _AtOnce:
    identity = "bench 1"

    async def write(self, request: SummaryRequest) -> tuple[Mapping[str, Any], Cost]:
        summary: Mapping[str, Any] = {"name": request.data[:60], "summary": request.data[:400]}
        report = {"rating": 5, "reason": "", "findings": []} if request.task == "community_report" else {}
        return {**summary, **report}, Cost(1, len(request.data) // 4, 100)


def many_groups(folder: Path, groups: int, entities: int, seed: int) -> ManyGroups:
    """Ingest groups of so many entities in communities of about 10, and refresh them through Ray."""
    import kgray
    from kgray.runtime import profile, session

    dice = np.random.default_rng(seed)
    with kgray.open(folder) as memory:
        rows = []
        for group in range(groups):
            ends = dice.integers(0, 10, (entities, 3)) + 10 * (np.arange(entities)[:, None] // 10)
            pairs = [(a, int(b)) for a in range(entities) for b in ends[a] if a != b < entities]
            told = [{"source": f"P{a}", "relation": "KNOWS", "target": f"P{b}"} for a, b in pairs]
            rows.append({"group": f"g{group}", "id": "1", "at": "2026-01-01", "triples": told})
        memory.add_many(rows)
    ray = session.start(Settings(), profile.Profile())
    try:
        opened = kgray.open(folder, runtime_backend="ray", runtime_address=ray.address)
        opened._summarizer = _AtOnce  # noqa: SLF001 - a model that costs nothing
        with opened as blocking:
            spent, done = [], []
            for _ in range(2):
                started = time.monotonic()
                done.append(blocking.refresh_communities())
                spent.append(time.monotonic() - started)
    finally:
        ray.close()
    calls = [sum(one.calls for one in each.values()) for each in done]
    return ManyGroups(
        groups=groups, entities=entities, communities=sum(one.communities for one in done[0].values()),
        calls=calls[0], seconds=spent[0], calls_again=calls[1], seconds_again=spent[1],
    )  # fmt: skip


def table(found: Sequence[Any]) -> str:
    """Return the figures in lines."""
    of: dict[type, Sequence[Column]] = {Grown: _GROWN, ManyGroups: _MANY}
    return "\n".join(aligned(of.get(type(found[0]), _COLUMNS), found))
