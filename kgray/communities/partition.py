"""A group's graph to communities, level by level: each step has one result, and ends."""

from __future__ import annotations

from collections.abc import MutableSequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kgray.communities.graph import Graph, Ints, components, from_arrays, shared
from kgray.communities.propagate import propagate

NOBODY = -1  # the label of a node that belongs to no community
LEAST = 5  # a smaller community joins a neighbouring one
CAP, LARGE, LARGE_CAP = 500, 1_000_000, 1000  # members; of a graph of so many nodes; there
HUB, HUB_TIMES = 200, 20  # neighbours; times the median: a node with more than both is a hub
NEAR = 5  # `folded` says of what this is the inverse
_FEWER = 0.9  # an upper level has at most so many communities, as a share of the level below


@dataclass(frozen=True, slots=True, eq=False)
class Levels:
    """Communities by level. Each level is a list of communities, each the nodes in it, rising.

    parents     of each community but those of the last level the index of the one above it, or None
    """

    members: list[list[Ints]]
    parents: list[list[int | None]]


def cap_for(nodes: int) -> int:
    """Return how large a community may grow in a graph of so many nodes."""
    return CAP if nodes < LARGE else LARGE_CAP


def partition(
    graph: Graph, cap: int, previous: Ints | None = None, touched: NDArray[np.bool_] | None = None
) -> Ints:
    """Return the community of each node as its least member; NOBODY for a node without neighbours.

    previous    labels of the last run, NOBODY where it had none: a warm run. None: a cold one
    touched     in a warm run the nodes whose edges have changed; None = all
    """
    degrees = graph.degrees
    if not degrees.any():
        return np.full(graph.nodes, NOBODY)
    hubs = degrees > max(HUB, HUB_TIMES * int(np.median(degrees[degrees > 0])))
    plain, heads = graph, graph.heads
    if hubs.any():
        edges = (heads < graph.ends) & ~hubs[heads] & ~hubs[graph.ends]
        plain = from_arrays(heads[edges], graph.ends[edges], graph.weights[edges], graph.hashes)
    labels = np.arange(graph.nodes)
    active: Ints | None = None
    if previous is not None:
        sizes = np.bincount(previous[previous != NOBODY], minlength=graph.nodes)
        stays = (previous != NOBODY) & ~hubs
        stays[stays] = sizes[previous[stays]] <= cap  # one that is too large is taken apart
        labels[stays] = previous[stays]
        if touched is not None:
            active = np.flatnonzero((touched | ~stays) & (plain.degrees > 0))
    common = shared(plain)
    close, closer = (replace(plain, weights=plain.weights * (1 + common) ** power) for power in (1, 3))
    labels = folded(plain, components(plain, propagate(closer, labels, cap, active)), cap)
    labels = folded(plain, components(plain, propagate(close, labels, cap, active)), cap)
    labels = folded(close, labels, cap, near=True)
    labels = folded(plain, components(plain, propagate(close, labels, cap, active)), cap)
    return _with_hubs(graph, labels, hubs, cap)


def folded(graph: Graph, labels: Ints, cap: int, *, near: bool = False) -> Ints:
    """Return labels in which communities of fewer than 5 joined, whole, the neighbour with most weight.

    Then the smaller, then that of the greater hash; only where both together stay within the cap. Each merge
    leaves one community less, so it ends. Labels are least members, before and after.

    near    those join whose weight to the other, beyond what chance gives, is a fifth of their own inside
    """
    strength = np.bincount(graph.heads, graph.weights, graph.nodes).astype(np.int64)
    while True:
        sizes = np.bincount(labels, minlength=graph.nodes)
        heads = graph.heads
        a, b = labels[heads], labels[graph.ends]
        # What can join: small, or near, with a neighbour that has room.
        out = (a != b) & (near | (sizes[a] < LEAST)) & (sizes[a] + sizes[b] <= cap)
        codes, inverse = np.unique(a[out] * graph.nodes + b[out], return_inverse=True)
        weight = np.bincount(inverse, graph.weights[out], len(codes)).astype(np.int64)
        small, target = np.divmod(codes, graph.nodes)
        if near:
            inside = np.bincount(a[a == b], graph.weights[a == b], graph.nodes).astype(np.int64)
            ends = np.bincount(labels, strength, graph.nodes).astype(np.int64)
            those = _near(weight, inside[small], ends[small], ends[target], int(strength.sum()))
            small, target, weight = small[those], target[those], weight[those]
        if not len(small):
            return labels
        order = np.lexsort((graph.hashes[target], -sizes[target], weight, small))
        last = np.flatnonzero(np.concatenate((small[order][1:] != small[order][:-1], [True])))
        into = _joined(small[order][last], target[order][last], sizes, graph, cap)
        labels = into[labels]
        least = np.full(graph.nodes, graph.nodes)
        np.minimum.at(least, labels, np.arange(graph.nodes))
        labels = least[labels]


def _near(weight: Ints, inside: Ints, ends: Ints, others: Ints, all_: int) -> NDArray[np.bool_]:
    """Return of which pairs NEAR * (weight * all_ - ends * others) > inside * all_ - ends**2.

    Products are of Python's integers: in a dense group they are larger than 64 bits hold.
    """
    more, less = NEAR * weight - inside, NEAR * others - ends
    found: NDArray[np.bool_] = more.astype(object) * all_ > ends.astype(object) * less
    return found.astype(bool)


def _joined(small: Ints, targets: Ints, sizes: Ints, graph: Graph, cap: int) -> Ints:
    """Return for each label the one that it becomes: the smallest first, none both joining and joined."""
    into = np.arange(graph.nodes)
    moved, joined = set[int](), set[int]()
    order = np.lexsort((graph.hashes[small], sizes[small]))
    for label, target in zip(small[order].tolist(), targets[order].tolist(), strict=True):
        fits = sizes[label] + sizes[target] <= cap
        if fits and target not in moved and label not in joined:
            into[label] = target
            sizes[target] += sizes[label]
            moved.add(label)
            joined.add(target)
    return into


def _with_hubs(graph: Graph, labels: Ints, hubs: NDArray[np.bool_], cap: int) -> Ints:
    """Return the labels with each hub in the community of most weight; NOBODY for those that are alone."""
    found = labels.copy()
    sizes = np.bincount(labels, minlength=graph.nodes)
    found[hubs | (sizes[labels] < 2)] = NOBODY
    order = np.argsort(graph.hashes[waiting := np.flatnonzero((found == NOBODY) & (graph.degrees > 0))])
    # Then those that only hubs are beside: with the first of them, which else would be alone.
    for node in sorted(waiting[order].tolist(), key=lambda node: not hubs[node]):
        entries = slice(graph.start[node], graph.start[node + 1])
        chosen = plurality(found[graph.ends[entries]], graph.weights[entries], sizes, graph, cap)
        if chosen is not None:
            found[node] = chosen[0]
            sizes[chosen[0]] += 1
        elif hubs[node]:
            found[node], sizes[node] = node, 1
    members = np.flatnonzero(found != NOBODY)
    least = np.full(graph.nodes, graph.nodes)
    np.minimum.at(least, found[members], members)
    found[members] = least[found[members]]
    return found


def plurality(labels: Ints, weights: Ints, sizes: Ints, graph: Graph, cap: int) -> tuple[int, int] | None:
    """Return the label with most weight, then size, then hash, that has room, and its weight."""
    known = labels != NOBODY
    found, inverse = np.unique(labels[known], return_inverse=True)
    weight = np.bincount(inverse, weights[known], len(found)).astype(np.int64)
    room = sizes[found] < cap
    found, weight = found[room], weight[room]
    if not len(found):
        return None
    best = int(np.lexsort((graph.hashes[found], sizes[found], weight))[-1])
    return int(found[best]), int(weight[best])


def levels_of(graph: Graph, labels: Ints) -> Levels:
    """Return the communities of a partition, and those above them: Louvain on the graph of communities."""
    found, codes = np.unique(labels[labels != NOBODY], return_inverse=True)
    nodes = np.flatnonzero(labels != NOBODY)
    number = np.full(graph.nodes, NOBODY)
    number[nodes] = codes
    order = np.argsort(codes, kind="stable")
    lowest = np.split(nodes[order], np.flatnonzero(np.diff(codes[order])) + 1) if len(found) else []
    levels = Levels([lowest], [])
    for groups in _louvain(graph, number, len(found)):
        below = levels.members[-1]
        if len(groups) > _FEWER * len(below):
            continue
        of = {child: at for at, children in enumerate(groups) for child in children}
        # `groups` are of the lowest communities: a community below lies wholly in one of them.
        owner = [of[int(number[members[0]])] for members in below]
        levels.parents.append([*owner])
        members = [[below[n] for n, at in enumerate(owner) if at == group] for group in range(len(groups))]
        levels.members.append([np.sort(np.concatenate(parts)) for parts in members])
    levels.parents.append([None] * len(levels.members[-1]))
    return levels


class _InOrder(Random):
    """What Louvain visits is visited in its order: one community more would shuffle all into another."""

    def shuffle(self, x: MutableSequence[Any]) -> None:
        """Leave it."""


def _louvain(graph: Graph, number: Ints, count: int) -> list[list[list[int]]]:
    """Return Louvain's levels over `count` communities: each a list of groups, sorted, of their numbers."""
    heads = graph.heads
    a, b = number[heads], number[graph.ends]
    kept = (a != NOBODY) & (b != NOBODY) & (heads < graph.ends)
    low, high = np.minimum(a, b)[kept], np.maximum(a, b)[kept]
    codes, inverse = np.unique(low * max(count, 1) + high, return_inverse=True)
    weight = np.bincount(inverse, graph.weights[kept], len(codes)).astype(np.int64)
    low, high = np.divmod(codes, max(count, 1))
    if not (low != high).any():
        return []
    import networkx as nx  # slow to import, and most commands need none of it

    quotient = nx.Graph()
    quotient.add_nodes_from(range(count))
    quotient.add_weighted_edges_from(zip(low.tolist(), high.tolist(), weight.tolist(), strict=True))
    found = nx.community.louvain_partitions(quotient, weight="weight", seed=_InOrder(0))
    return [sorted(sorted(group) for group in level) for level in found]
