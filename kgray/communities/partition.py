"""A group's graph to communities, level by level: whole numbers in arrays; each step ends.

Label propagation (Raghavan, Albert and Kumara 2007, with an order that makes it end): each round every node
looks for the community to which it has most weight, then the largest, then the one of the greatest hash. Of
neighbours that want to move only one does. So the weight inside communities never falls, and where it stays
the same the sum of their squared sizes rises: a round repeats no earlier state. No order of rows matters.
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
Levels = list[
    list[Ints]
]  # communities by level, each the nodes in it, rising; one below is wholly in one above
SALT = b"kgray communities 1:"  # another salt would move every tie: never change it between runs
_WEDGES = 4_000_000  # pairs of neighbours that are looked up at once


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """n nodes; the neighbours of v are `ends[start[v]:start[v + 1]]`, rising, with their weights.

    hashes  one a node, all different, made of its id alone: what orders nodes and breaks ties
    """

    start: Ints
    ends: Ints
    weights: Ints
    hashes: Hashes

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
        return len(self.start) - 1

    @property
    def degrees(self) -> Ints:
        """The number of neighbours of each node."""
        return np.diff(self.start)

    @property
    def heads(self) -> Ints:
        """The node that each entry of `ends` is a neighbour of."""
        return np.repeat(np.arange(self.nodes), self.degrees)

    def entries(self, nodes: Ints) -> tuple[Ints, Ints]:
        """Return the entries of some nodes, node by node: (index into `nodes`, index into `ends`)."""
        counts = self.degrees[nodes]
        rows = np.repeat(np.arange(len(nodes)), counts)
        first = np.repeat(self.start[nodes] - np.concatenate(([0], np.cumsum(counts)[:-1])), counts)
        return rows, first + np.arange(len(rows))


def graph_of(ids: Sequence[str], pairs: Iterable[tuple[str, str, int]]) -> Graph:
    """Return the graph of some ids, which are sorted and distinct. pairs: (a, b, weight >= 1), any order.

    Equal pairs are added up; one of an id with itself, or of an id that is not among `ids`, is left out.
    """
    place = {id_: number for number, id_ in enumerate(ids)}
    known = [(place[a], place[b], w) for a, b, w in pairs if a != b and a in place and b in place]
    table = np.array(known, np.int64).reshape(-1, 3)
    hashes = np.fromiter(map(hash_of, ids), np.uint64, len(ids))
    order = np.argsort(hashes, kind="stable")
    apart = hashes[order]  # equal ones, in the order of the ids, are told apart
    while (twice := np.flatnonzero(apart[1:] <= apart[:-1])).size:
        apart[twice + 1] = apart[twice] + np.uint64(1)
    hashes[order] = apart
    return from_arrays(table[:, 0], table[:, 1], table[:, 2], hashes)


def hash_of(id_: str) -> int:
    """Return the first 8 bytes of BLAKE2b of an id."""
    return int.from_bytes(hashlib.blake2b(SALT + id_.encode(), digest_size=8).digest(), "big")


def from_arrays(a: Ints, b: Ints, weights: Ints, hashes: Hashes) -> Graph:
    """Return the graph of pairs of nodes; none of a node with itself, equal pairs added up."""
    nodes = len(hashes)
    apart = a != b
    heads, ends = np.concatenate((a[apart], b[apart])), np.concatenate((b[apart], a[apart]))
    codes, both = _summed(heads * nodes + ends, np.concatenate((weights[apart], weights[apart])))
    heads, ends = np.divmod(codes, max(nodes, 1))
    start = np.concatenate(([0], np.cumsum(np.bincount(heads, minlength=nodes)))).astype(np.int64)
    return Graph(start, ends, both, hashes)


def _summed(codes: Ints, weights: Ints) -> tuple[Ints, Ints]:
    """Return the distinct codes, rising, and the sum of the weights of each."""
    order = np.argsort(codes, kind="stable")  # what is nearly in order takes a fifth of the time so
    codes = codes[order]
    first = np.flatnonzero(np.concatenate((codes[:1] == codes[:1], codes[1:] != codes[:-1])))
    return codes[first], np.add.reduceat(weights[order], first) if len(first) else weights


def shared(graph: Graph) -> Ints:
    """Return for each entry of `ends` how many neighbours its two ends have in common."""
    heads = graph.heads
    found = np.zeros(len(heads), np.int64)
    codes = heads * graph.nodes + graph.ends  # rising
    degrees = graph.degrees
    # Each edge looks up the neighbours of its end with fewer of them among those of the other.
    edges = np.flatnonzero(heads < graph.ends)
    small = np.where(degrees[heads[edges]] <= degrees[graph.ends[edges]], heads[edges], graph.ends[edges])
    other = heads[edges] + graph.ends[edges] - small
    steps = np.cumsum(degrees[small])
    at = 0
    while at < len(edges):
        done = steps[at - 1] if at else 0
        to = max(at + 1, int(np.searchsorted(steps, done + _WEDGES, side="right")))
        rows, entries = graph.entries(small[at:to])
        wanted = other[at:to][rows] * graph.nodes + graph.ends[entries]
        places = np.minimum(np.searchsorted(codes, wanted), len(codes) - 1)
        found[edges[at:to]] = np.bincount(rows[codes[places] == wanted], minlength=to - at)
        at = to
    reverse = np.searchsorted(codes, graph.ends * graph.nodes + heads)
    return np.maximum(found, found[reverse])


def components(graph: Graph, labels: Ints) -> Ints:
    """Return for each node the least node that it reaches by edges between nodes of one label."""
    heads = graph.heads
    inside = labels[heads] == labels[graph.ends]
    a, b = heads[inside], graph.ends[inside]
    least = np.arange(graph.nodes)
    while True:
        found = least.copy()
        np.minimum.at(found, least[a], least[b])  # the first of each part so far learns of those beside it
        while not np.array_equal(further := found[found], found):
            found = further
        if np.array_equal(found, least):
            return least
        least = found


def propagate(graph: Graph, labels: Ints, cap: int, active: Ints | None = None) -> Ints:
    """Return the label of each node once nobody wants to move; no community grows beyond `cap`.

    labels  at the start: a node each, that stands for the community
    active  nodes that are looked at first; None = all. Later those whose neighbourhood has changed
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
        again = np.zeros(graph.nodes, bool)
        again[graph.ends[entries]] = again[wanting] = True
        nodes = np.flatnonzero(again)
        turn += 1
    return labels


def _moves(
    graph: Graph, labels: Ints, sizes: Ints, cap: int, nodes: Ints, turn: int
) -> tuple[Ints, Ints, Ints]:
    """Return which of these nodes want to move, as another community has a greater key; who does; where."""
    rows, entries = graph.entries(nodes)
    own = labels[nodes]
    # Its own label, too, with weight 0: of a node that is alone in its community no neighbour has it.
    alone = np.arange(len(nodes)) * graph.nodes + own
    codes = np.concatenate((rows * graph.nodes + labels[graph.ends[entries]], alone))
    codes, weight = _summed(codes, np.concatenate((graph.weights[entries], np.zeros(len(nodes), np.int64))))
    row, label = np.divmod(codes, graph.nodes)
    mine = label == own[row]
    having = weight[mine]  # each row has its own label once
    kept = mine | (sizes[label] < cap)
    row, label, weight = row[kept], label[kept], weight[kept]
    most = np.maximum.reduceat(weight, np.searchsorted(row, np.arange(len(nodes))))
    top = weight == most[row]
    row, label, weight = row[top], label[top], weight[top]
    order = np.lexsort((graph.hashes[label], sizes[label], row))
    best = order[np.flatnonzero(np.concatenate((row[order][1:] != row[order][:-1], [True])))]
    best = best[label[best] != own[row[best]]]
    wanting, targets, gains = nodes[row[best]], label[best], weight[best] - having[row[best]]
    # A node moves whose number of this round beats that of each wanting neighbour.
    numbers = np.zeros(graph.nodes, np.uint64)
    with np.errstate(over="ignore"):  # another order each round: splitmix64, one to one (Steele et al. 2014)
        z = graph.hashes[wanting] + np.uint64(turn + 1) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        numbers[wanting] = z ^ (z >> np.uint64(31))
    rows, entries = graph.entries(wanting)
    beaten = rows[numbers[graph.ends[entries]] > numbers[wanting][rows]]
    free = np.bincount(beaten, minlength=len(wanting)) == 0
    moving, targets, gains = wanting[free], targets[free], gains[free]
    # Of each target so many as there is room for: the greatest gains, then hashes.
    order = np.lexsort((graph.hashes[moving], gains, targets))[::-1]
    _, first, of = np.unique(targets[order], return_index=True, return_inverse=True)
    kept = order[np.arange(len(order)) - first[of] < cap - sizes[targets[order]]]
    return wanting, moving[kept], targets[kept]


NOBODY = -1  # the label of a node that belongs to no community
LEAST = 5  # a smaller community joins a neighbouring one
CAP, LARGE, LARGE_CAP = 500, 1_000_000, 1000  # members; of a graph of so many nodes; there
HUB, HUB_TIMES = 200, 20  # neighbours; times the median: a node with more than both is a hub
NEAR = 5  # `folded` says of what this is the inverse
_FEWER = 0.9  # an upper level has at most so many communities, as a share of the level below


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
    near: those join whose weight to the other, beyond what chance gives, is a fifth of their own inside
    """
    strength = np.bincount(graph.heads, graph.weights, graph.nodes).astype(np.int64)
    while True:
        sizes = np.bincount(labels, minlength=graph.nodes)
        heads = graph.heads
        a, b = labels[heads], labels[graph.ends]
        # What can join: small, or near, with a neighbour that has room.
        out = (a != b) & (near | (sizes[a] < LEAST)) & (sizes[a] + sizes[b] <= cap)
        codes, weight = _summed(a[out] * graph.nodes + b[out], graph.weights[out])
        small, target = np.divmod(codes, graph.nodes)
        if near:
            inside = np.bincount(a[a == b], graph.weights[a == b], graph.nodes).astype(np.int64)
            ends = np.bincount(labels, strength, graph.nodes).astype(np.int64)
            # NEAR * (weight * all - ends * others) > inside * all - ends**2, of Python's integers: in a dense
            # group the products are larger than 64 bits hold.
            more, less = NEAR * weight - inside[small], NEAR * ends[target] - ends[small]
            those = (more.astype(object) * int(strength.sum()) > ends[small].astype(object) * less).astype(
                bool
            )
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
    found, weight = _summed(labels[known], weights[known])
    room = sizes[found] < cap
    found, weight = found[room], weight[room]
    if not len(found):
        return None
    best = int(np.lexsort((graph.hashes[found], sizes[found], weight))[-1])
    return int(found[best]), int(weight[best])


class _InOrder(Random):
    """What Louvain visits is visited in its order: one community more would shuffle all into another."""

    def shuffle(self, x: MutableSequence[Any]) -> None:
        """Leave it."""


def levels_of(graph: Graph, labels: Ints) -> Levels:
    """Return the communities of a partition, and those above them: Louvain on the graph of communities."""
    found, codes = np.unique(labels[labels != NOBODY], return_inverse=True)
    nodes = np.flatnonzero(labels != NOBODY)
    number = np.full(graph.nodes, NOBODY)
    number[nodes] = codes
    order = np.argsort(codes, kind="stable")
    lowest = np.split(nodes[order], np.flatnonzero(np.diff(codes[order])) + 1) if len(found) else []
    levels = [lowest]
    heads, count = graph.heads, max(len(found), 1)
    a, b = number[heads], number[graph.ends]
    kept = (a != NOBODY) & (b != NOBODY) & (heads < graph.ends)
    low, high = np.minimum(a, b)[kept], np.maximum(a, b)[kept]
    codes, weight = _summed(low * count + high, graph.weights[kept])
    low, high = np.divmod(codes, count)
    partitions: Iterable[Iterable[Iterable[int]]] = []
    if (low != high).any():
        import networkx as nx  # slow to import, and most commands need none of it

        quotient = nx.Graph()
        quotient.add_nodes_from(range(len(found)))
        quotient.add_weighted_edges_from(zip(low.tolist(), high.tolist(), weight.tolist(), strict=True))
        partitions = nx.community.louvain_partitions(quotient, weight="weight", seed=_InOrder(0))
    for groups in (sorted(sorted(group) for group in level) for level in partitions):
        below = levels[-1]
        if len(groups) > _FEWER * len(below):
            continue
        of = {child: at for at, children in enumerate(groups) for child in children}
        # `groups` are of the lowest communities: a community below lies wholly in one of them.
        owner = [of[int(number[members[0]])] for members in below]
        members = [[below[n] for n, at in enumerate(owner) if at == group] for group in range(len(groups))]
        levels.append([np.sort(np.concatenate(parts)) for parts in members])
    return levels
