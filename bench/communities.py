"""How well and how fast communities are found in graphs whose communities are known, beside networkx.

The graphs are like those of Lancichinetti, Fortunato and Radicchi (2008): degrees and sizes of communities
follow power laws (exponents 2.5 and 1.5), the share mu of each node's edges leads anywhere. A third of the
pairs have two or three facts.
"""

from __future__ import annotations

import resource
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.tables import Column, aligned
from kgray.communities.detection import HOLDS, WEIGHTS, Cluster, Snapshot, communities
from kgray.communities.partition import NOBODY, Graph, Ints, cap_for, from_arrays, levels_of, partition
from kgray.communities.texts import Text, Validity, request_of
from kgray.domain.graph import Community, Entity, Fact
from kgray.domain.times import Instant
from kgray.errors import Cost
from kgray.models.prompting.prompts import load
from kgray.ports import SummaryRequest
from kgray.schema.kinds import CommunityRunRow
from kgray.settings import Settings

_MIN_DEGREE, _MOST_DEGREE, _MEMBERS = 4, 200, (20, 500)
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
    degrees = np.clip(
        (_MIN_DEGREE * dice.random(nodes) ** (-1 / 1.5)).astype(np.int64), _MIN_DEGREE, _MOST_DEGREE
    )
    low, high = (bound**-0.5 for bound in _MEMBERS)
    sizes: list[int] = []
    while sum(sizes) < nodes:
        sizes.append(int((low + dice.random() * (high - low)) ** -2))
    community_of = np.repeat(np.arange(len(sizes)), sizes)[:nodes]
    dice.shuffle(community_of)
    inner = (degrees * (1 - mu) + dice.random(nodes)).astype(np.int64)
    stubs = np.repeat(np.arange(nodes), inner)
    inner_stubs = stubs[np.lexsort((dice.random(len(stubs)), community_of[stubs]))]
    outer_degrees = np.repeat(np.arange(nodes), degrees - inner)
    dice.shuffle(outer_degrees)
    pairs = [
        (part[0 : len(part) // 2 * 2 : 2], part[1 : len(part) // 2 * 2 : 2])
        for part in (inner_stubs, outer_degrees)
    ]
    is_inside = community_of[pairs[0][0]] == community_of[pairs[0][1]]
    a = np.concatenate((pairs[0][0][is_inside], pairs[1][0]))
    b = np.concatenate((pairs[0][1][is_inside], pairs[1][1]))
    facts = np.where(dice.random(len(a)) < 1 / 3, dice.integers(2, 4, len(a)), 1)
    hashes = dice.permutation(np.arange(1, nodes + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    graph = from_arrays(a, b, HOLDS * facts, hashes)
    return replace(graph, weights=np.array(WEIGHTS)[np.minimum(graph.weights, 6)]), community_of


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
    """Return Newman's modularity, with weights; a node without a community is its own community."""
    labels = np.where(labels == NOBODY, np.arange(graph.nodes), labels)
    heads, total = graph.heads, graph.weights.sum()
    inner_share = graph.weights[labels[heads] == labels[graph.ends]].sum() / total
    strength = np.bincount(labels, np.bincount(heads, graph.weights, graph.nodes), graph.nodes) / total
    return float(inner_share - (strength**2).sum())


def _ours(graph: Graph) -> Iterator[tuple[str, Ints]]:
    labels = partition(graph, cap_for(graph.nodes))
    yield "kgray", labels
    levels = levels_of(graph, labels)
    for level, groups in enumerate(levels[1:], 1):
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
    algorithms: dict[str, Callable[[], object]] = {
        "fast_label_propagation": lambda: nx.community.fast_label_propagation_communities(
            drawn, weight="weight", seed=1
        ),
        "asyn_lpa": lambda: nx.community.asyn_lpa_communities(drawn, weight="weight", seed=1),
        "louvain": lambda: nx.community.louvain_communities(drawn, weight="weight", seed=1),
    }
    for name in names:
        labels = np.arange(graph.nodes)
        for members in algorithms[name]():  # type: ignore[attr-defined]
            labels[list(members)] = min(members)
        yield f"networkx {name}", labels


def run(nodes: int, mus: Sequence[float], seed: int, rivals: Sequence[str]) -> list[Measured]:
    """Measure every algorithm on a graph for each mu; the time of building the graph is not counted."""
    results = []
    for mu in mus:
        graph, truth = planted(nodes, mu, seed)
        for algorithm in (_ours(graph), _networkx(graph, rivals)):
            started = time.process_time()
            for name, labels in algorithm:
                spent = time.process_time() - started
                is_assigned = labels != NOBODY
                results.append(
                    Measured(
                        what=name,
                        nodes=nodes,
                        edges=len(graph.ends) // 2,
                        mu=mu,
                        communities=len(np.unique(labels[is_assigned])),
                        planted=len(np.unique(truth)),
                        nmi=agreement(labels[is_assigned], truth[is_assigned]),
                        modularity=modularity(graph, labels),
                        cpu_s=spent,
                        peak_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
                    )
                )
                started = time.process_time()
    return results


@dataclass(frozen=True, slots=True, kw_only=True)
class Grown:
    """The share of a run that survives after new entities have arrived, in any order, with all their facts.

    members, shown, kept  of the new communities of all levels the share whose members are as before, of
                          which a writer would be shown the same, and whose text stays without a call
    """

    nodes: int
    mu: float
    grown: float
    communities: int
    members: float
    shown: float
    kept: float
    cpu_s: float


_GROWN = (
    ("nodes", "nodes", ",d"), ("mu", "mu", ".1f"), ("grown", "grown", ".2f"), ("communities", "found", ",d"),
    ("members", "same members", ".3f"), ("shown", "same input", ".3f"), ("kept", "kept", ".3f"),
    ("cpu_s", "CPU s", ".2f"),
)  # fmt: skip


def grow(nodes: int, mu: float, seed: int, share: float) -> Grown:
    """Find communities, let entities come with all their facts, find them again from there."""
    full_graph, _ = planted(round(nodes * (1 + share)), mu, seed)
    late = np.zeros(full_graph.nodes, bool)
    late[np.random.default_rng(seed).permutation(full_graph.nodes)[nodes:]] = True
    first_graph = _snapshot(full_graph, late, _FIRST)
    first_levels = communities(first_graph, cold=True)
    texts = _texts(first_levels)
    keeping = Validity(first_graph, load)
    notes = {cluster.id: keeping.note(cluster, texts) for level in first_levels for cluster in level}
    inputs = {
        cluster.id: request_of(first_graph, cluster, texts, (), load).data
        for level in first_levels
        for cluster in level
    }
    first_members = {cluster.id: set(cluster.members) for level in first_levels for cluster in level}
    listed = [_listed(cluster) for level in first_levels for cluster in level]
    parent = CommunityRunRow(
        run=1, watermark=1, recorded_at=_FIRST, made_at=_FIRST, cold=True, entities=nodes,
        cold_entities=nodes, writer="",
    )  # fmt: skip
    second_graph = replace(_snapshot(full_graph, late, _SECOND), parent=parent, communities=listed)
    started = time.process_time()
    second_levels = communities(second_graph, cold=False)
    spent = time.process_time() - started
    keeping = Validity(second_graph, load)
    everyone = [cluster for level in second_levels for cluster in level]
    kept_flags, shown_flags = [], []
    for cluster in everyone:  # level by level: a new text changes the input of the level above
        texts.setdefault(cluster.id, _text(cluster))
        shown_flags.append(inputs.get(cluster.id) == request_of(second_graph, cluster, texts, (), load).data)
        kept_flags.append(
            cluster.id in notes and keeping.valid_at(notes[cluster.id], cluster, texts) is not None
        )
        if not kept_flags[-1]:
            texts[cluster.id] = replace(texts[cluster.id], name="Another")
    members = [first_members.get(cluster.id) == set(cluster.members) for cluster in everyone]
    shares = {
        name: sum(flags) / len(flags)
        for name, flags in (("members", members), ("shown", shown_flags), ("kept", kept_flags))
    }
    return Grown(nodes=nodes, mu=mu, grown=share, communities=len(everyone), cpu_s=spent, **shares)


_FIRST, _SECOND = 1_000_000, 2_000_000  # moments of the two runs


def _snapshot(graph: Graph, late: NDArray[np.bool_], at: Instant) -> Snapshot:
    """Return a graph as a group; late entities are present from the second moment on."""
    present = np.flatnonzero(~late) if at == _FIRST else np.arange(graph.nodes)
    ids = [str(uuid.UUID(int=int(number))) for number in graph.hashes]
    entities = {ids[n]: Entity(id=ids[n], name=f"E{n}", born=(1 + int(late[n]), 0)) for n in present.tolist()}
    heads = graph.heads
    facts = []
    for entry in np.flatnonzero(heads < graph.ends).tolist():
        a, b = int(heads[entry]), int(graph.ends[entry])
        learned_at = _SECOND if late[a] or late[b] else _FIRST
        if learned_at <= at:
            count = int(graph.weights[entry]) // HOLDS - HOLDS  # the first weighs three times as much
            facts += [_fact(ids[a], ids[b], n, learned_at) for n in range(count)]
    ordered = dict(sorted(entities.items()))
    return Snapshot(group="g", watermark=at, recorded_at=at, entities=ordered, facts=facts)


def _fact(source: str, target: str, number: int, learned_at: Instant) -> Fact:
    """Return one of the facts of a pair, as old as its younger end."""
    id_ = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{source} {target} {number}"))
    return Fact(
        id=id_, statement=id_, source=source, target=target, relation="KNOWS",
        text=f"{source} knows {target}", created_at=learned_at, valid_at=learned_at, episodes=("e",),
    )  # fmt: skip


def _text(cluster: Cluster) -> Text:
    return Text(name=cluster.id[:8], summary="A text of a model. " * 30, writer="", content="")


def _texts(levels: Sequence[Sequence[Cluster]]) -> dict[str, Text]:
    return {cluster.id: _text(cluster) for level in levels for cluster in level}


def _listed(cluster: Cluster) -> Community:
    return Community(
        run=1, id=cluster.id, level=cluster.level, parent=cluster.parent, size=len(cluster.members), name="",
        summary="", report={}, writer="", content="", members=tuple(cluster.members), sources=b"", vector=b"",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ManyGroups:
    """Many small groups, refreshed twice by tasks of Ray with a writer that answers at once."""

    groups: int
    entities: int
    communities: int
    calls: int
    seconds: float
    calls_again: int
    seconds_again: float


_MANY_COLUMNS = tuple(
    (name, name.replace("_", " "), ".1f" if name.startswith("seconds") else ",d")
    for name in ManyGroups.__dataclass_fields__
)


class _AtOnce:
    identity = "bench 1"
    head = staticmethod(load)

    async def write(self, request: SummaryRequest) -> tuple[Mapping[str, Any], Cost]:
        summary: Mapping[str, Any] = {"name": request.data[:60], "summary": request.data[:400]}
        report = {"rating": 5, "reason": "", "findings": []} if request.task == "community_report" else {}
        return {**summary, **report}, Cost(1, len(request.data) // 4, 100)


def many_groups(folder: Path, groups: int, entities: int, seed: int) -> ManyGroups:
    """Ingest groups with communities of about 10 entities, and refresh them through Ray."""
    import kgray
    from kgray.runtime import session
    from kgray.runtime.spec import Profile

    dice = np.random.default_rng(seed)
    with kgray.open(folder, create=True) as memory:
        rows = []
        for group in range(groups):
            ends = dice.integers(0, 10, (entities, 3)) + 10 * (np.arange(entities)[:, None] // 10)
            pairs = [(a, int(b)) for a in range(entities) for b in ends[a] if a != b < entities]
            triples = [{"source": f"P{a}", "relation": "KNOWS", "target": f"P{b}"} for a, b in pairs]
            rows.append({"group": f"g{group}", "id": "1", "at": "2026-01-01", "triples": triples})
        memory.add_many(rows)
    ray = session.start(Settings(), Profile())
    try:
        opened = kgray.open(
            folder, create=True, settings={"runtime_backend": "ray", "runtime_address": ray.address}
        )
        opened.asynchronous._summarizer = _AtOnce  # noqa: SLF001 - a model that costs nothing
        with opened as blocking:
            spent, refreshes = [], []
            for _ in range(2):
                started = time.monotonic()
                refreshes.append(blocking.communities.refresh().groups)
                spent.append(time.monotonic() - started)
    finally:
        ray.close()
    calls = [sum(result.calls for result in each.values()) for each in refreshes]
    return ManyGroups(
        groups=groups, entities=entities, communities=sum(result.communities for result in
        refreshes[0].values()), calls=calls[0], seconds=spent[0], calls_again=calls[1],
        seconds_again=spent[1],
    )  # fmt: skip


def table(results: Sequence[Any]) -> str:
    """Return the figures in lines."""
    columns_by_type: dict[type, Sequence[Column]] = {Grown: _GROWN, ManyGroups: _MANY_COLUMNS}
    return "\n".join(aligned(columns_by_type.get(type(results[0]), _COLUMNS), results))
