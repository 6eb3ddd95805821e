"""What connects one run with the next: ids by overlap, and where entities go that came since."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from kgray.communities.graph import Graph, Ints
from kgray.communities.partition import HUB, NOBODY, plurality


def carried(
    old: Mapping[str, Sequence[str]], new: Sequence[Sequence[str]], fresh: Callable[[str], str]
) -> list[str]:
    """Return the ids of the new communities of a level: an old one's where most of both is the same.

    old     id -> its members that are still there
    fresh   makes the id of a community without such a predecessor, from its least member

    The measure is Jaccard's over entities that both runs know. Above 1/2 each has at most one partner.
    """
    owner = {member: id_ for id_, members in old.items() for member in members}
    pairs = []
    for place, members in enumerate(new):
        known = Counter(owner[member] for member in members if member in owner)
        for id_, common in known.items():
            share = common / (len(old[id_]) + known.total() - common)
            if share > 0.5:
                pairs.append((-share, -common, id_, place))
    found: dict[int, str] = {}
    taken: set[str] = set()
    for *_, id_, place in sorted(pairs):
        if place not in found and id_ not in taken:
            found[place] = id_
            taken.add(id_)
    return [found.get(place) or fresh(min(members)) for place, members in enumerate(new)]


def assigned(graph: Graph, labels: Ints, newcomers: Sequence[int], cap: int) -> Ints:
    """Return labels in which those who came since the run have one, in the order in which they came.

    Each takes the plurality of its neighbours; then each neighbour but a hub is asked once, and moves where
    it has strictly more weight. A function of the run and the log alone: nothing of it is stored.
    """
    labels = labels.copy()
    sizes = np.bincount(labels[labels != NOBODY], minlength=graph.nodes)
    degrees = graph.degrees

    def ask(node: int) -> None:
        entries = slice(graph.start[node], graph.start[node + 1])
        near, weights = labels[graph.ends[entries]], graph.weights[entries]
        chosen, own = plurality(near, weights, sizes, graph, cap), int(labels[node])
        if chosen is None or chosen[0] == own:
            return
        if own != NOBODY:
            if chosen[1] <= int(weights[near == own].sum()):
                return
            sizes[own] -= 1
        labels[node] = chosen[0]
        sizes[chosen[0]] += 1

    for node in newcomers:
        ask(node)
        for other in graph.ends[graph.start[node] : graph.start[node + 1]].tolist():
            if labels[other] != NOBODY and degrees[other] <= HUB:
                ask(other)
    return labels
