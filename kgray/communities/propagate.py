"""Label propagation that ends on every graph, and does not depend on the order of its rows.

Each round every node looks for the community to which it has most weight, then the largest, then the one of
the greatest hash. Of neighbours that want to move only one does. So the weight inside communities never
falls, and where it stays the same the sum of their squared sizes rises: a round repeats no earlier state.
(Raghavan, Albert and Kumara 2007, with an order that makes it end.)
"""

from __future__ import annotations

import numpy as np

from kgray.communities.graph import Graph, Hashes, Ints

Wishes = Ints  # (3, n): nodes that want to move, where to, and the weight that they gain


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
        wishes = _wishes(graph, labels, sizes, cap, nodes)
        moving, targets, _ = _admitted(_winners(graph, wishes, turn), sizes, cap, graph.hashes)
        np.subtract.at(sizes, labels[moving], 1)
        np.add.at(sizes, targets, 1)
        labels[moving] = targets
        _, entries = graph.entries(moving)
        again = np.zeros(graph.nodes, bool)
        again[graph.ends[entries]] = again[wishes[0]] = True
        nodes = np.flatnonzero(again)
        turn += 1
    return labels


def _wishes(graph: Graph, labels: Ints, sizes: Ints, cap: int, nodes: Ints) -> Wishes:
    """Return which of these nodes want to move: for them another community has a greater key."""
    rows, entries = graph.entries(nodes)
    own = labels[nodes]
    # Its own label, too, with weight 0: of a node that is alone in its community no neighbour has it.
    alone = np.arange(len(nodes)) * graph.nodes + own
    codes = np.concatenate((rows * graph.nodes + labels[graph.ends[entries]], alone))
    order = np.argsort(codes, kind="stable")  # rows are in order already: 5 times as fast as another kind
    codes = codes[order]
    first = np.flatnonzero(np.concatenate(([True], codes[1:] != codes[:-1])))
    weights = np.concatenate((graph.weights[entries], np.zeros(len(nodes), np.int64)))[order]
    weight = np.add.reduceat(weights, first)
    row, label = np.divmod(codes[first], graph.nodes)
    mine = label == own[row]
    having = weight[mine]  # each row has its own label once
    kept = mine | (sizes[label] < cap)
    row, label, weight = row[kept], label[kept], weight[kept]
    most = np.maximum.reduceat(weight, np.searchsorted(row, np.arange(len(nodes))))
    top = weight == most[row]
    row, label, weight = row[top], label[top], weight[top]
    order = np.lexsort((graph.hashes[label], sizes[label], row))
    best = order[np.flatnonzero(np.concatenate((row[order][1:] != row[order][:-1], [True])))]
    wanting = best[label[best] != own[row[best]]]
    return np.stack((nodes[row[wanting]], label[wanting], weight[wanting] - having[row[wanting]]))


def _winners(graph: Graph, wishes: Wishes, turn: int) -> Wishes:
    """Return the wishes of nodes whose number of this round beats that of each wanting neighbour."""
    nodes, numbers = wishes[0], np.zeros(graph.nodes, np.uint64)
    numbers[nodes] = _mixed(graph.hashes[nodes], turn)
    rows, entries = graph.entries(nodes)
    beaten = numbers[graph.ends[entries]] > numbers[nodes][rows]
    return wishes[:, np.bincount(rows[beaten], minlength=len(nodes)) == 0]


def _admitted(wishes: Wishes, sizes: Ints, cap: int, hashes: Hashes) -> Wishes:
    """Return the wishes for which there is room: of each target the greatest gains, then hashes."""
    nodes, targets, gains = wishes
    order = np.lexsort((hashes[nodes], gains, targets))[::-1]
    _, first, of = np.unique(targets[order], return_index=True, return_inverse=True)
    return wishes[:, order[np.arange(len(order)) - first[of] < cap - sizes[targets[order]]]]


def _mixed(hashes: Hashes, turn: int) -> Hashes:
    """Return another order of the nodes each round: splitmix64, one to one (Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        z = hashes + np.uint64(turn + 1) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))
