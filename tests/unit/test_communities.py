"""Finding communities: it ends on every graph, keeps the cap, and does not depend on any order."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench import communities as bench
from kgray.communities.detection import Snapshot, assign_newcomers, inherit_ids
from kgray.communities.partition import (
    NOBODY,
    _moves,
    cap_for,
    common_neighbours,
    components,
    folded,
    graph_of,
    levels_of,
    partition,
    propagate,
)
from tests.tries import tries

Pair = tuple[str, str, int]


def ids(count):
    return [f"e{n:04}" for n in range(count)]


def communities_of(count, pairs, cap=500, order=None):
    graph = graph_of(ids(count), pairs if order is None else order)
    labels = partition(graph, cap)
    return {frozenset(np.flatnonzero(labels == label).tolist()) for label in set(labels.tolist()) - {NOBODY}}


def edges(*pairs):
    return [(f"e{a:04}", f"e{b:04}", w) for a, b, w in pairs]


@st.composite
def graphs(draw):
    count = draw(st.integers(2, 14))
    some = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1), st.integers(1, 6))
    return count, edges(*draw(st.lists(some, max_size=40))), draw(st.integers(2, 8))


def test_two_entities_with_two_facts_are_one_community():
    assert communities_of(2, edges((0, 1, 4))) == {frozenset({0, 1})}


@pytest.mark.parametrize(
    "pairs",
    [
        [(0, 1, 1), (1, 2, 1), (0, 2, 1), (0, 3, 1), (1, 4, 1)],  # the bull
        [(a, b, 1) for a in range(4) for b in range(a)],  # K4
        [(0, n, 2) for n in range(1, 9)],  # a star
    ],
)
def test_small_graphs_end_in_one_community(pairs):
    count = 1 + max(max(a, b) for a, b, _ in pairs)
    assert communities_of(count, edges(*pairs)) == {frozenset(range(count))}


def potential(graph, labels):
    heads = graph.heads
    inner_weight = int(graph.weights[labels[heads] == labels[graph.ends]].sum())
    return inner_weight, int((np.bincount(labels, minlength=graph.nodes) ** 2).sum())


@settings(max_examples=tries(60), deadline=None)
@given(graphs())
def test_each_round_increases_the_inner_weight_or_the_squared_sizes(graph_rows):
    rounds_rise(*graph_rows)


def rounds_rise(count, pairs, cap):
    """Propagate round by round: each raises the potential, and the last leaves no wish."""
    graph = graph_of(ids(count), pairs)
    labels, nodes = np.arange(count), np.flatnonzero(graph.degrees)
    for turn in range(200):
        if not len(nodes):
            break
        sizes = np.bincount(labels, minlength=count)
        wanting, nodes_moving, targets = _moves(graph, labels, sizes, cap, nodes, turn)
        if not wanting.size:
            break
        potential_before, labels = potential(graph, labels), labels.copy()
        labels[nodes_moving] = targets
        assert len(nodes_moving) >= 1
        assert potential(graph, labels) > potential_before
    else:
        pytest.fail("it did not end")
    assert np.bincount(labels).max() <= cap


@settings(max_examples=tries(60), deadline=None)
@given(graphs(), st.randoms(use_true_random=False))
def test_the_order_of_rows_and_ends_does_not_matter(graph_rows, dice):
    count, pairs, cap = graph_rows
    shuffled = [(b, a, w) if dice.random() < 0.5 else (a, b, w) for a, b, w in pairs]
    dice.shuffle(shuffled)

    assert communities_of(count, pairs, cap) == communities_of(count, pairs, cap, shuffled)


@settings(max_examples=tries(60), deadline=None)
@given(graphs())
def test_unconnected_entities_do_not_change_communities(graph_rows):
    """Ids decide ties, not places: entities without a connection renumber the rest, and move nothing."""
    count, pairs, cap = graph_rows
    graph = graph_of(sorted([*ids(count), "a", "e0003x", "z"]), pairs)
    labels = partition(graph, cap)
    names = sorted([*ids(count), "a", "e0003x", "z"])
    groups = {}
    for name, label in zip(names, labels.tolist(), strict=True):
        if label != NOBODY:
            groups.setdefault(label, set()).add(int(name[1:]))

    assert {frozenset(group) for group in groups.values()} == communities_of(count, pairs, cap)


@settings(max_examples=tries(50), deadline=None)
@given(graphs())
def test_communities_are_connected_and_capped_and_omit_entities_without_neighbours(graph_rows):
    count, pairs, cap = graph_rows
    graph = graph_of(ids(count), pairs)
    labels = partition(graph, cap)
    drawn = nx.Graph([(a, b) for a, b, _ in pairs if a != b])
    for group in communities_of(count, pairs, cap):
        assert 2 <= len(group) <= cap
        assert nx.is_connected(drawn.subgraph(f"e{n:04}" for n in group))
    assert all(labels[graph.degrees == 0] == NOBODY)


def planted(count, size, mu, seed=3):
    """Communities of one size; a share mu of each node's 10 edges leads anywhere."""
    dice = random.Random(seed)
    pairs = []
    for node in range(count):
        own_start = node // size * size
        for _ in range(5):
            neighbour = dice.randrange(count) if dice.random() < mu else own_start + dice.randrange(size)
            pairs.append((node, min(neighbour, count - 1), dice.choice((2, 2, 4))))
    return edges(*pairs)


def agreement(labels, size):
    """Return the share of nodes whose community is, as a set, mostly the planted one."""
    right = 0
    for label in set(labels.tolist()) - {NOBODY}:
        members = np.flatnonzero(labels == label)
        right += int(np.bincount(members // size).max())
    return right / len(labels)


def test_planted_communities_are_found():
    labels = partition(graph_of(ids(5000), planted(5000, 50, 0.2)), 500)

    assert agreement(labels, 50) >= 0.97
    assert 90 <= len(set(labels.tolist()) - {NOBODY}) <= 115


@pytest.mark.parametrize(("count", "mu", "min_agreement"), [(5000, 0.2, 0.98), (10_000, 0.3, 0.96)])
def test_planted_communities_of_unequal_sizes_and_degrees_are_found(count, mu, min_agreement):
    graph, truth = bench.planted(count, mu, seed=5)
    labels = partition(graph, 500)
    assigned_nodes = labels != NOBODY

    assert bench.agreement(labels[assigned_nodes], truth[assigned_nodes]) >= min_agreement


def test_the_first_fact_of_a_pair_weighs_three_times_a_further_fact():
    def pair(number, count, ended):
        facts = [bench._fact(f"a{number}", f"b{number}", n, 1) for n in range(count)]
        return [replace(fact, invalid_at=2 if n < ended else None) for n, fact in enumerate(facts)]

    facts = [
        fact
        for n, (count, ended) in enumerate([(1, 0), (1, 1), (2, 1), (3, 0), (9, 0)])
        for fact in pair(n, count, ended)
    ]
    output = Snapshot(group="g", watermark=1, recorded_at=3, entities={}, facts=facts)

    assert [weight for *_, weight in sorted(output.pairs())] == [6, 3, 7, 10, 10]


def test_an_added_community_does_not_shuffle_the_upper_level():
    """Its members sort before all others, so that every community has another number."""
    graph, _ = bench.planted(5000, 0.3, seed=5)
    half = graph.heads < graph.ends
    pairs = edges(*zip(graph.heads[half], graph.ends[half], graph.weights[half].tolist(), strict=True))
    apart = [(f"a{a}", f"a{b}", 6) for a in range(6) for b in range(a)]

    def top_communities(names, ties):
        levels = levels_of(graph := graph_of(names, ties), partition(graph, 500))
        return {frozenset(names[n] for n in members) for members in levels[1]}

    alone = {frozenset(f"a{n}" for n in range(6))}
    assert (
        top_communities([*sorted(*alone), *ids(5000)], [*pairs, *apart])
        == top_communities(ids(5000), pairs) | alone
    )


@pytest.mark.slow  # the properties above try some of them
def test_rounds_increase_and_order_does_not_matter_on_random_graphs():
    dice = random.Random(11)
    for _ in range(1000):
        count, cap = dice.randrange(2, 40), dice.randrange(2, 20)
        some = [(dice.randrange(count), dice.randrange(count), dice.randint(1, 6)) for _ in range(3 * count)]
        pairs = edges(*some)
        rounds_rise(count, pairs, cap)
        communities = communities_of(count, pairs, cap)
        assert all(len(group) <= cap for group in communities)
        dice.shuffle(pairs)
        assert communities_of(count, pairs, cap) == communities


def test_a_hub_keeps_its_leaves_and_forms_no_giant_community():
    count = 3000
    hub, leaves = count, [count + 1 + n for n in range(5)]
    pairs = planted(count, 50, 0.2) + edges(*((hub, n, 2) for n in range(0, count, 3)))
    pairs += edges(*((hub, leaf, 2) for leaf in leaves))
    labels = partition(graph_of(ids(count + 6), pairs), 500)

    assert np.bincount(labels[labels != NOBODY]).max() < 200
    assert {int(labels[leaf]) for leaf in leaves} == {int(labels[hub])}
    assert agreement(labels[:count], 50) >= 0.95


def test_a_warm_run_moves_only_touched_entities():
    count, size = 2000, 50
    pairs = planted(count, size, 0.2)
    cold = partition(graph_of(ids(count), pairs), 500)
    extra_pairs = [*pairs, *edges((0, 1999, 2))]
    touched = np.zeros(count, bool)
    touched[[0, 1999]] = True
    warm = partition(graph_of(ids(count), extra_pairs), 500, cold, touched)

    assert (warm != cold).sum() <= size


def test_a_community_above_a_lowered_cap_is_split():
    pairs = edges(*((a, b, 2) for a in range(12) for b in range(a)))
    graph = graph_of(ids(12), pairs)
    complete_result = partition(graph, 500)
    labels = partition(graph, 6, complete_result)

    assert np.bincount(complete_result).max() == 12
    assert np.bincount(labels[labels != NOBODY]).max() <= 6


def test_levels_nest_and_upper_levels_are_smaller():
    graph = graph_of(ids(3000), planted(3000, 30, 0.2))
    levels = levels_of(graph, partition(graph, cap_for(3000)))

    assert len(levels) >= 2
    for lower, upper in itertools.pairwise(levels):
        assert len(lower) > len(upper)
        community_of = {node: number for number, members in enumerate(upper) for node in members.tolist()}
        assert all(len({community_of[node] for node in members.tolist()}) == 1 for members in lower)


def test_components_common_neighbours_and_propagation_of_a_small_graph():
    graph = graph_of(ids(5), edges((0, 1, 2), (1, 2, 2), (0, 2, 2), (3, 4, 6)))

    assert components(graph, np.zeros(5, np.int64)).tolist() == [0, 0, 0, 3, 3]
    assert common_neighbours(graph).tolist() == [1, 1, 1, 1, 1, 1, 0, 0]
    assert folded(graph, np.array([0, 1, 0, 3, 3]), 500).tolist() == [0, 0, 0, 3, 3]
    assert np.bincount(propagate(graph, np.arange(5), 2)).max() == 2


@pytest.mark.parametrize(("between", "ends"), [(1, [0, 3]), (8, [0, 3]), (20, [0, 0])])
def test_nearness_of_communities_does_not_depend_on_the_weight_scale(between, ends):
    """Products of large weights are larger than 64 bits hold."""
    rings = [(0, 1, 6), (1, 2, 6), (0, 2, 6), (3, 4, 6), (4, 5, 6), (3, 5, 6), (2, 3, between), (6, 7, 100)]
    labels = np.array([0, 0, 0, 3, 3, 3, 6, 6])
    for power in range(44):
        graph = graph_of(ids(8), edges(*((a, b, weight << power) for a, b, weight in rings)))
        assert folded(graph, labels, 500, near=True)[[0, 3]].tolist() == ends, power


def test_a_community_inherits_the_id_of_most_of_its_members():
    old = {"A": ["a", "b", "c", "d"], "B": ["e", "f"]}
    new = [["a", "b", "c", "n"], ["d", "e"], ["f", "g"]]

    assert inherit_ids(old, new, lambda member: f"new {member}") == ["A", "new d", "new f"]
    assert inherit_ids({}, new, str) == ["a", "d", "f"]


def test_a_new_entity_joins_the_community_of_most_neighbours():
    pairs = edges((0, 1, 2), (2, 3, 2), (4, 0, 2), (4, 1, 2), (4, 2, 1), (5, 3, 4), (5, 4, 1))
    graph = graph_of(ids(7), pairs)
    labels = np.array([0, 0, 2, 2, NOBODY, NOBODY, NOBODY])

    assert assign_newcomers(graph, labels, [4, 5, 6], 500).tolist() == [0, 0, 2, 2, 0, 2, NOBODY]
    assert assign_newcomers(graph, labels, [4, 5, 6], 2).tolist() == labels.tolist()
