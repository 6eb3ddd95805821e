"""An undirected graph with whole weights, as arrays: exact, whatever the order of rows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Hashes = NDArray[np.uint64]
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

    A pair that is given twice has the sum of its weights; one of an id with itself, or of an id that is not
    among `ids`, is left out.
    """
    place = {id_: number for number, id_ in enumerate(ids)}
    known = [(place[a], place[b], w) for a, b, w in pairs if a != b and a in place and b in place]
    table = np.array(known, np.int64).reshape(-1, 3)
    hashes = np.fromiter(map(hash_of, ids), np.uint64, len(ids))
    return from_arrays(table[:, 0], table[:, 1], table[:, 2], _distinct(hashes))


def hash_of(id_: str) -> int:
    """Return the first 8 bytes of BLAKE2b of an id."""
    return int.from_bytes(hashlib.blake2b(SALT + id_.encode(), digest_size=8).digest(), "big")


def from_arrays(a: Ints, b: Ints, weights: Ints, hashes: Hashes) -> Graph:
    """Return the graph of pairs of nodes; none of a node with itself, equal pairs added up."""
    nodes = len(hashes)
    apart = a != b
    heads, ends = np.concatenate((a[apart], b[apart])), np.concatenate((b[apart], a[apart]))
    codes = heads * nodes + ends
    order = np.argsort(codes, kind="stable")
    codes, both = codes[order], np.concatenate((weights[apart], weights[apart]))[order]
    first = np.flatnonzero(np.concatenate(([True], codes[1:] != codes[:-1]))) if len(codes) else codes
    summed = np.add.reduceat(both, first) if len(codes) else both
    heads, ends = np.divmod(codes[first], nodes) if nodes else (first, first)
    start = np.concatenate(([0], np.cumsum(np.bincount(heads, minlength=nodes)))).astype(np.int64)
    return Graph(start, ends, summed.astype(np.int64), hashes)


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


def _distinct(hashes: Hashes) -> Hashes:
    """Return hashes of which equal ones, in the order of the ids, are told apart."""
    order = np.argsort(hashes, kind="stable")
    found = hashes[order]
    while (twice := np.flatnonzero(found[1:] <= found[:-1])).size:
        found[twice + 1] = found[twice] + np.uint64(1)
    kept = np.empty_like(found)
    kept[order] = found
    return kept
