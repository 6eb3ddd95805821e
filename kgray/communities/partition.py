"""Community detection on integer arrays, level by level; every step terminates.

Label propagation (Raghavan, Albert and Kumara 2007, with an order that makes it terminate): in each round a
node prefers the community with the most weight to it, then the largest, then the greatest hash, and among
neighbours that want to move only one moves. So the weight inside communities never falls, and if it stays
equal, the sum of their squared sizes rises: no state repeats. The order of rows does not matter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, MutableSequence, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Hashes = NDArray[np.uint64]
# Communities by level, each with its nodes in ascending order; upper communities are unions of lower ones.
Levels = list[list[Ints]]
SALT = b"kgray communities 1:"  # never change it: another salt would change every tie between runs
_WEDGES = 4_000_000  # most neighbours that an array look-up tests at once


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """n nodes; the neighbours of v are `ends[start[v]:start[v + 1]]`, in ascending order, with their weights.

    hashes  a distinct number for each node, from its id alone; it orders nodes and breaks ties
    """

    start: Ints
    ends: Ints
    weights: Ints
    hashes: Hashes

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return len(self.start) - 1

    @property
    def degrees(self) -> Ints:
        """The number of neighbours of each node."""
        return np.diff(self.start)

    @property
    def heads(self) -> Ints:
        """The node at the other side of each entry of `ends`."""
        return np.repeat(np.arange(self.nodes), self.degrees)

    def entries(self, nodes: Ints) -> tuple[Ints, Ints]:
        """Return the entries of some nodes, node by node: (index into `nodes`, index into `ends`)."""
        counts = self.degrees[nodes]
        rows = np.repeat(np.arange(len(nodes)), counts)
        first = np.repeat(self.start[nodes] - np.concatenate(([0], np.cumsum(counts)[:-1])), counts)
        return rows, first + np.arange(len(rows))


def graph_of(ids: Sequence[str], pairs: Iterable[tuple[str, str, int]]) -> Graph:
    """Return the graph of ids, which are sorted and distinct. pairs: (a, b, weight >= 1), in any order.

    Weights of equal pairs are added; loops, and pairs with an unknown id, are left out.
    """
    place = {id_: number for number, id_ in enumerate(ids)}
    valid = [(place[a], place[b], w) for a, b, w in pairs if a != b and a in place and b in place]
    table = np.array(valid, np.int64).reshape(-1, 3)
    hashes = np.fromiter(map(hash_of, ids), np.uint64, len(ids))
    order = np.argsort(hashes, kind="stable")
    distinct = hashes[order]  # equal hashes are made distinct, in the order of the ids
    while (twice := np.flatnonzero(distinct[1:] <= distinct[:-1])).size:
        distinct[twice + 1] = distinct[twice] + np.uint64(1)
    hashes[order] = distinct
    return from_arrays(table[:, 0], table[:, 1], table[:, 2], hashes)


def hash_of(id_: str) -> int:
    """Return the first 8 bytes of BLAKE2b of an id."""
    return int.from_bytes(hashlib.blake2b(SALT + id_.encode(), digest_size=8).digest(), "big")


def from_arrays(a: Ints, b: Ints, weights: Ints, hashes: Hashes) -> Graph:
    """Return the graph of pairs of nodes, without loops; weights of equal pairs are added."""
    nodes = len(hashes)
    is_edge = a != b
    heads, ends = np.concatenate((a[is_edge], b[is_edge])), np.concatenate((b[is_edge], a[is_edge]))
    codes, both = _summed(heads * nodes + ends, np.concatenate((weights[is_edge], weights[is_edge])))
    heads, ends = np.divmod(codes, max(nodes, 1))
    start = np.concatenate(([0], np.cumsum(np.bincount(heads, minlength=nodes)))).astype(np.int64)
    return Graph(start, ends, both, hashes)


def _summed(codes: Ints, weights: Ints) -> tuple[Ints, Ints]:
    """Return the distinct codes in ascending order, and the sum of the weights of each."""
    order = np.argsort(codes, kind="stable")  # a stable sort takes a fifth of the time on nearly sorted codes
    codes = codes[order]
    first = np.flatnonzero(np.concatenate((codes[:1] == codes[:1], codes[1:] != codes[:-1])))
    return codes[first], np.add.reduceat(weights[order], first) if len(first) else weights


def common_neighbours(graph: Graph) -> Ints:
    """Return for each entry of `ends` the number of common neighbours of its two ends."""
    heads = graph.heads
    counts = np.zeros(len(heads), np.int64)
    codes = heads * graph.nodes + graph.ends  # in ascending order
    degrees = graph.degrees
    # For each edge, look up the neighbours of the end of lower degree among the neighbours of the other end.
    edges = np.flatnonzero(heads < graph.ends)
    small = np.where(degrees[heads[edges]] <= degrees[graph.ends[edges]], heads[edges], graph.ends[edges])
    large = heads[edges] + graph.ends[edges] - small
    steps = np.cumsum(degrees[small])
    at = 0
    while at < len(edges):
        offset = steps[at - 1] if at else 0
        to = max(at + 1, int(np.searchsorted(steps, offset + _WEDGES, side="right")))
        rows, entries = graph.entries(small[at:to])
        targets = large[at:to][rows] * graph.nodes + graph.ends[entries]
        places = np.minimum(np.searchsorted(codes, targets), len(codes) - 1)
        counts[edges[at:to]] = np.bincount(rows[codes[places] == targets], minlength=to - at)
        at = to
    reverse = np.searchsorted(codes, graph.ends * graph.nodes + heads)
    return np.maximum(counts, counts[reverse])


def components(graph: Graph, labels: Ints) -> Ints:
    """Return for each node the least node that it reaches by edges within a label."""
    heads = graph.heads
    is_inner = labels[heads] == labels[graph.ends]
    a, b = heads[is_inner], graph.ends[is_inner]
    lowest = np.arange(graph.nodes)
    while True:
        lower = lowest.copy()
        np.minimum.at(lower, lowest[a], lowest[b])  # the roots take the minimum of their neighbours
        while not np.array_equal(jumped := lower[lower], lower):
            lower = jumped
        if np.array_equal(lower, lowest):
            return lowest
        lowest = lower


def propagate(graph: Graph, labels: Ints, cap: int, active: Ints | None = None) -> Ints:
    """Return the label of each node once no node wants to move; no community grows beyond `cap`.

    labels  initial labels; a label is a node
    active  nodes of the first round, None = all; a later round has the nodes with changed neighbourhoods
    """
    labels = labels.copy()
    sizes = np.bincount(labels, minlength=graph.nodes)
    nodes = np.flatnonzero(graph.degrees) if active is None else active
    turn = 0
    while len(nodes):
        wanting, moving, targets = _moves(graph, labels, sizes, cap, nodes, turn)
        np.subtract.at(sizes, labels[moving], 1)
        np.add.at(sizes, targets, 1)
        labels[moving] = targets
        _, entries = graph.entries(moving)
        is_active = np.zeros(graph.nodes, bool)
        is_active[graph.ends[entries]] = is_active[wanting] = True
        nodes = np.flatnonzero(is_active)
        turn += 1
    return labels


def _moves(
    graph: Graph, labels: Ints, sizes: Ints, cap: int, nodes: Ints, turn: int
) -> tuple[Ints, Ints, Ints]:
    """Return the nodes that prefer another community, the nodes among them that move, and their targets."""
    rows, entries = graph.entries(nodes)
    labels_now = labels[nodes]
    # Add the node's own label with weight 0, because a node alone in its community has no neighbour with it.
    alone = np.arange(len(nodes)) * graph.nodes + labels_now
    codes = np.concatenate((rows * graph.nodes + labels[graph.ends[entries]], alone))
    codes, weight = _summed(codes, np.concatenate((graph.weights[entries], np.zeros(len(nodes), np.int64))))
    row, label = np.divmod(codes, graph.nodes)
    mine = label == labels_now[row]
    having = weight[mine]  # each row has its own label once
    allowed = mine | (sizes[label] < cap)
    row, label, weight = row[allowed], label[allowed], weight[allowed]
    best_weight = np.maximum.reduceat(weight, np.searchsorted(row, np.arange(len(nodes))))
    top = weight == best_weight[row]
    row, label, weight = row[top], label[top], weight[top]
    order = np.lexsort((graph.hashes[label], sizes[label], row))
    best = order[np.flatnonzero(np.concatenate((row[order][1:] != row[order][:-1], [True])))]
    best = best[label[best] != labels_now[row[best]]]
    wanting, targets, gains = nodes[row[best]], label[best], weight[best] - having[row[best]]
    # A node moves if its number of this round is greater than the numbers of all its wanting neighbours.
    numbers = np.zeros(graph.nodes, np.uint64)
    with np.errstate(over="ignore"):  # a new order each round by splitmix64, a bijection (Steele et al. 2014)
        z = graph.hashes[wanting] + np.uint64(turn + 1) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        numbers[wanting] = z ^ (z >> np.uint64(31))
    rows, entries = graph.entries(wanting)
    beaten = rows[numbers[graph.ends[entries]] > numbers[wanting][rows]]
    free = np.bincount(beaten, minlength=len(wanting)) == 0
    moving, targets, gains = wanting[free], targets[free], gains[free]
    # Each target accepts nodes up to its cap, by greatest gain, then hash.
    order = np.lexsort((graph.hashes[moving], gains, targets))[::-1]
    _, first, group_of = np.unique(targets[order], return_index=True, return_inverse=True)
    allowed = order[np.arange(len(order)) - first[group_of] < cap - sizes[targets[order]]]
    return wanting, moving[allowed], targets[allowed]


NOBODY = -1  # the label of a node that belongs to no community
MIN_MEMBERS = 5  # a smaller community joins a neighbouring community
CAP, LARGE, LARGE_CAP = 500, 1_000_000, 1000  # most members; nodes of a large graph; most members there
HUB, HUB_TIMES = 200, 20  # a hub has more neighbours than HUB and than HUB_TIMES x the median
NEAR = 5  # a near community has more than 1/NEAR of its inner weight to its neighbour (`folded`)
_FEWER = 0.9  # an upper level has at most this share of the communities of the level below


def cap_for(nodes: int) -> int:
    """Return the most members of a community in a graph of `nodes` nodes."""
    return CAP if nodes < LARGE else LARGE_CAP


def partition(
    graph: Graph, cap: int, previous: Ints | None = None, touched: NDArray[np.bool_] | None = None
) -> Ints:
    """Return the community of each node as its least member.

    NOBODY for a node without neighbours, and for one (not a hub) whose neighbouring communities are all full.

    previous    labels of the last run (NOBODY for new nodes) for a warm run; None for a cold run
    touched     in a warm run the nodes with changed edges; None = all
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
        stays[stays] = sizes[previous[stays]] <= cap  # larger communities start again from single nodes
        labels[stays] = previous[stays]
        if touched is not None:
            active = np.flatnonzero((touched | ~stays) & (plain.degrees > 0))
    common = common_neighbours(plain)
    close, closer = (replace(plain, weights=plain.weights * (1 + common) ** power) for power in (1, 3))
    labels = folded(plain, components(plain, propagate(closer, labels, cap, active)), cap)
    labels = folded(plain, components(plain, propagate(close, labels, cap, active)), cap)
    labels = folded(close, labels, cap, near=True)
    labels = folded(plain, components(plain, propagate(close, labels, cap, active)), cap)
    return _with_hubs(graph, labels, hubs, cap)


def folded(graph: Graph, labels: Ints, cap: int, *, near: bool = False) -> Ints:
    """Return labels after each community of fewer than 5 nodes has joined its neighbour of most weight.

    Ties go to the smaller neighbour, then to the greater hash; a merge must stay within the cap. Each merge
    removes a community, so it terminates. Labels are least members, before and after.
    near: instead join communities of any size whose weight to a neighbour, less the expected weight, exceeds
    1/5 of their inner weight, less its expectation
    """
    strength = np.bincount(graph.heads, graph.weights, graph.nodes).astype(np.int64)
    while True:
        sizes = np.bincount(labels, minlength=graph.nodes)
        heads = graph.heads
        a, b = labels[heads], labels[graph.ends]
        # Candidates are small (with `near`: of any size, filtered below) and have a neighbour with room.
        out = (a != b) & (near | (sizes[a] < MIN_MEMBERS)) & (sizes[a] + sizes[b] <= cap)
        codes, weight = _summed(a[out] * graph.nodes + b[out], graph.weights[out])
        small, target = np.divmod(codes, graph.nodes)
        if near:
            inner = np.bincount(a[a == b], graph.weights[a == b], graph.nodes).astype(np.int64)
            ends = np.bincount(labels, strength, graph.nodes).astype(np.int64)
            # NEAR * (weight * all - ends * others) > inner * all - ends**2, in Python's integers, because the
            # products of a dense group exceed 64 bits.
            surplus, surplus_ends = NEAR * weight - inner[small], NEAR * ends[target] - ends[small]
            inner_surplus = surplus.astype(object) * int(strength.sum())
            is_near = (inner_surplus > ends[small].astype(object) * surplus_ends).astype(bool)
            small, target, weight = small[is_near], target[is_near], weight[is_near]
        if not len(small):
            return labels
        order = np.lexsort((graph.hashes[target], -sizes[target], weight, small))
        last = np.flatnonzero(np.concatenate((small[order][1:] != small[order][:-1], [True])))
        into = _joined(small[order][last], target[order][last], sizes, graph, cap)
        labels = into[labels]
        lowest = np.full(graph.nodes, graph.nodes)
        np.minimum.at(lowest, labels, np.arange(graph.nodes))
        labels = lowest[labels]


def _joined(small: Ints, targets: Ints, sizes: Ints, graph: Graph, cap: int) -> Ints:
    """Return the new label of each label; the smallest merge first, and no label both joins and is joined."""
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
    """Return the labels with each hub in its community of most weight; NOBODY as in `partition`."""
    result = labels.copy()
    sizes = np.bincount(labels, minlength=graph.nodes)
    result[hubs | (sizes[labels] < 2)] = NOBODY
    order = np.argsort(graph.hashes[waiting := np.flatnonzero((result == NOBODY) & (graph.degrees > 0))])
    # Hubs come first, then nodes with hubs as their only neighbours.
    for node in sorted(waiting[order].tolist(), key=lambda node: not hubs[node]):
        entries = slice(graph.start[node], graph.start[node + 1])
        chosen = plurality(result[graph.ends[entries]], graph.weights[entries], sizes, graph, cap)
        if chosen is not None:
            result[node] = chosen[0]
            sizes[chosen[0]] += 1
        elif hubs[node]:
            result[node], sizes[node] = node, 1
    members = np.flatnonzero(result != NOBODY)
    lowest = np.full(graph.nodes, graph.nodes)
    np.minimum.at(lowest, result[members], members)
    result[members] = lowest[result[members]]
    return result


def plurality(labels: Ints, weights: Ints, sizes: Ints, graph: Graph, cap: int) -> tuple[int, int] | None:
    """Return the label with the most weight (then size, then hash) among labels with room, and its weight."""
    is_labelled = labels != NOBODY
    candidates, weight = _summed(labels[is_labelled], weights[is_labelled])
    room = sizes[candidates] < cap
    candidates, weight = candidates[room], weight[room]
    if not len(candidates):
        return None
    best = int(np.lexsort((graph.hashes[candidates], sizes[candidates], weight))[-1])
    return int(candidates[best]), int(weight[best])


class _InOrder(Random):
    """Keeps Louvain's order of visits: after a shuffle, one new community could change all."""

    def shuffle(self, x: MutableSequence[Any]) -> None:
        """Keep the order."""


def levels_of(graph: Graph, labels: Ints) -> Levels:
    """Return the communities of a partition, and upper levels by Louvain on the graph of communities."""
    used, codes = np.unique(labels[labels != NOBODY], return_inverse=True)
    nodes = np.flatnonzero(labels != NOBODY)
    number = np.full(graph.nodes, NOBODY)
    number[nodes] = codes
    order = np.argsort(codes, kind="stable")
    lowest = np.split(nodes[order], np.flatnonzero(np.diff(codes[order])) + 1) if len(used) else []
    levels = [lowest]
    heads, count = graph.heads, max(len(used), 1)
    a, b = number[heads], number[graph.ends]
    is_edge = (a != NOBODY) & (b != NOBODY) & (heads < graph.ends)
    low, high = np.minimum(a, b)[is_edge], np.maximum(a, b)[is_edge]
    codes, weight = _summed(low * count + high, graph.weights[is_edge])
    low, high = np.divmod(codes, count)
    partitions: Iterable[Iterable[Iterable[int]]] = []
    if (low != high).any():
        import networkx as nx  # imported here because it is slow and most commands do not need it

        quotient = nx.Graph()
        quotient.add_nodes_from(range(len(used)))
        quotient.add_weighted_edges_from(zip(low.tolist(), high.tolist(), weight.tolist(), strict=True))
        partitions = nx.community.louvain_partitions(quotient, weight="weight", seed=_InOrder(0))
    for groups in (sorted(sorted(group) for group in level) for level in partitions):
        lower = levels[-1]
        if len(groups) > _FEWER * len(lower):
            continue
        group_of = {child: at for at, children in enumerate(groups) for child in children}
        # `groups` consist of lowest communities, and each lower community is a subset of a single group.
        owner = [group_of[int(number[members[0]])] for members in lower]
        members = [[lower[n] for n, at in enumerate(owner) if at == group] for group in range(len(groups))]
        levels.append([np.sort(np.concatenate(parts)) for parts in members])
    return levels
