"""A snapshot of a group, and the detection of its communities: members, ids, hierarchy and facts."""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from kgray.communities.partition import (
    HUB,
    NOBODY,
    Graph,
    Ints,
    Levels,
    cap_for,
    graph_of,
    levels_of,
    partition,
    plurality,
)
from kgray.domain.graph import PROFILE, Community, Entity, Fact
from kgray.domain.times import Instant
from kgray.errors import Unavailable
from kgray.graph.names import Fold
from kgray.graph.stored import in_pieces, records_of
from kgray.ports import Appending, Store, at_one_moment
from kgray.schema import kinds, reads, rows
from kgray.schema.kinds import CommunityRunRow, OperationRow
from kgray.search.context import MIN_PROFILE_FACTS
from kgray.search.loading import texts_of
from kgray.system.garbage import garbage_not_collected

HOLDS, ENDED = 2, 1  # what an open fact, and an ended fact, adds to the count of its pair
# The weight of a pair by the sum of its counts, concave: a connection says more than its multiplicity
# (docs/communities.md).
WEIGHTS = (0, 3, 6, 7, 8, 9, 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A group up to its watermark, and its current run of communities."""

    group: str
    watermark: int
    recorded_at: Instant
    entities: Mapping[str, Entity]  # in the order of their ids
    facts: Sequence[Fact]
    places: Mapping[str, int] = field(default_factory=dict)  # episode id -> sequence
    mentions: Mapping[str, set[int]] = field(default_factory=dict)  # entity -> the sequences that mention it
    namings: Mapping[str, int] = field(default_factory=dict)  # entity -> the first sequence that has its name
    withdrawals: tuple[int, ...] = ()  # sequences of retractions and removals; a change of it voids the run
    parent: CommunityRunRow | None = None  # the current run
    communities: Sequence[Community] = ()  # the communities of the current run
    profiles: Mapping[str, Community] = field(default_factory=dict)  # entity -> profile of the current run
    has_corrections: bool = False  # a correction came after the current run

    def pairs(self) -> list[tuple[str, str, int]]:
        """Return (entity, entity, weight) for each pair that facts connect."""
        counts = defaultdict[tuple[str, str], int](int)
        for fact in self.facts:
            if fact.target is not None and fact.target != fact.source:
                counts[min(fact.ends), max(fact.ends)] += HOLDS if fact.holds_at(self.recorded_at) else ENDED
        return [(a, b, WEIGHTS[min(count, 6)]) for (a, b), count in counts.items()]

    def news(self) -> float:
        """Return the share of the entities that are new, or have new facts, since the current run."""
        if self.parent is None or not self.entities:
            return float(self.parent is None)
        new = {id_ for id_, entity in self.entities.items() if entity.born[0] > self.parent.watermark}
        changed = self.entities.keys() & self.changed_entities(self.parent.recorded_at)
        return len(new | changed) / len(self.entities)

    def changed_entities(self, recorded_at: Instant) -> set[str]:
        """Return the entities with facts that were, or whose end was, recorded after a record time."""
        return {
            end
            for fact in self.facts
            if fact.created_at > recorded_at or (fact.expired_at or 0) > recorded_at
            for end in fact.ends
        }


def snapshot(store: Store, group: str, *, texts: bool = True) -> Snapshot:
    """Read a group at one moment; texts: also the fields for writing texts.

    Raises Unavailable during a large removal.
    """
    return at_one_moment(store, partial(_read, store, group, texts=texts))


@garbage_not_collected()
def _read(store: Store, group: str, *, texts: bool) -> Snapshot:
    if in_pieces(store, group):
        raise Unavailable(f"a removal of group {group} is being carried out: run it again")
    head = store.heads([group])[group]
    first = store.pending_sequences(group, 0, 1)
    entities = {entity.id: entity for entity in map(rows.entity, store.rows(kinds.ENTITIES.all, group))}
    parent = newest_run(store, group)
    listed, profiles = texts_of(store, group, parent.run) if parent else ([], {})
    heads = store.rows(reads.EPISODE_HEADS, group) if texts else ()
    operations = list(store.rows(kinds.OPERATIONS.all, group))
    mentions, namings = _mentions(store, group, entities) if texts else ({}, {})
    return Snapshot(
        group=group,
        watermark=first[0][0] - 1 if first else head.last,
        recorded_at=head.last_recorded,
        entities=dict(sorted(entities.items())),
        facts=[rows.fact(row) for row in store.rows(kinds.FACTS.all, group)],
        places={
            row.id: row.sequence for row in heads if row.state == kinds.COMMITTED and row.retired_at is None
        },
        mentions=mentions,
        namings=namings,
        withdrawals=withdrawals(operations),
        has_corrections=parent is not None and any(row.sequence > parent.watermark for row in operations),
        parent=parent,
        communities=listed,
        profiles=profiles,
    )


def _mentions(
    store: Store, group: str, entities: Mapping[str, Entity]
) -> tuple[dict[str, set[int]], dict[str, int]]:
    mentions, namings, records = defaultdict[str, set[int]](set), dict[str, int](), records_of(store, group)
    fold = Fold(records.operations, records.births, records.recorded)
    for mention in records.mentions:
        id_, _ = fold.shown(mention.entity, mention.surface, mention.sequence)
        mentions[id_].add(mention.sequence)
        if id_ in entities and mention.surface == entities[id_].name:
            namings.setdefault(id_, mention.sequence)
    return mentions, namings


def withdrawals(operations: Iterable[OperationRow]) -> tuple[int, ...]:
    """Return the sequences of the retractions and removals that are complete or under way."""
    rows_out = (row for row in operations if row.kind in {"retract", "remove"})
    return tuple(row.sequence for row in rows_out if row.recorded_at is not None)


def runs(store: Store | Appending, group: str) -> list[CommunityRunRow]:
    """Return the stored runs; the current run is the last."""
    return list(store.rows(kinds.COMMUNITY_RUNS.all, group))


def newest_run(store: Store | Appending, group: str) -> CommunityRunRow | None:
    """Return the current run; None before the first."""
    return stored[-1] if (stored := runs(store, group)) else None


_NAMESPACE = uuid.UUID("5e0c9f0e-93c4-5d1b-9a2e-2f6d4f9b7a10")


@dataclass(slots=True, kw_only=True)
class Cluster:
    """A detected community: members, facts, and its place in the hierarchy."""

    id: str
    level: int
    members: Sequence[str]  # the most central first
    # Facts between members, or of a member and a value; above level 0, facts between children.
    facts: list[Fact] = field(default_factory=list)
    parent: str | None = None
    children: list[Cluster] = field(default_factory=list)
    is_part: bool = False  # a part of a larger community, small enough for one prompt
    text_sources: set[int] = field(default_factory=set)  # sequences of the sources of a text that it reuses

    def sources(self, snapshot: Snapshot) -> set[int]:
        """Return the sequences of the episodes that may have contributed words to its text."""
        supporters = {snapshot.places.get(episode, 0) for fact in self.facts for episode in fact.episodes}
        supporters |= {
            snapshot.namings.get(end, 0) for fact in self.facts for end in fact.ends
        }  # ends by name
        mentions = (snapshot.mentions.get(member, set()) for member in self.members)
        lower = (child.sources(snapshot) for child in self.children)
        return supporters.union(self.text_sources, *mentions, *lower) - {0}


class Problem(NamedTuple):
    """The arguments of `partition`."""

    graph: Graph
    cap: int
    previous: Ints | None
    touched: np.ndarray | None


Clustering = Callable[[Problem], Levels]  # `detect_levels`, here or elsewhere


def detect_levels(problem: Problem) -> Levels:
    """Return a graph's communities by level: the expensive step, a pure function of arrays."""
    return levels_of(problem.graph, partition(*problem))


def communities(
    snapshot: Snapshot, *, cold: bool, cluster: Clustering = detect_levels
) -> list[list[Cluster]]:
    """Return the communities of a group by level, each level in the order of ids."""
    ids = list(snapshot.entities)
    graph = graph_of(ids, snapshot.pairs())
    previous, touched = None, None
    if not cold and snapshot.parent is not None:
        previous = labels_of_run(snapshot, ids)
        news = snapshot.changed_entities(snapshot.parent.recorded_at)
        if not snapshot.has_corrections:  # a correction may change any fact, however old
            touched = np.fromiter((id_ in news for id_ in ids), bool, len(ids))
    levels = cluster(Problem(graph, cap_for(graph.nodes), previous, touched))
    levels_of_clusters = _clusters_with_ids(snapshot, ids, levels, graph)
    owner = {member: item for item in levels_of_clusters[0] for member in item.members}
    by_id = {item.id: item for level in levels_of_clusters for item in level}
    for fact in snapshot.facts:  # a fact goes to the lowest community that contains all its ends
        ends: list[Cluster | None] = [owner.get(end) for end in fact.ends]
        while None not in ends and len({id(end) for end in ends}) > 1:
            ends = [by_id.get(end.parent or "") for end in ends if end is not None]
        if ends[0] is not None and None not in ends:
            ends[0].facts.append(fact)
    return [sorted(level, key=lambda item: item.id) for level in _without_only_children(levels_of_clusters)]


def profile_clusters(snapshot: Snapshot, *, every: bool) -> list[Cluster]:
    """Return the entities with a profile as clusters; every: also entities with 5 valid facts or more."""
    facts: dict[str, list[Fact]] = {id_: [] for id_ in snapshot.entities}
    for fact in snapshot.facts:
        for end in set(fact.ends) & facts.keys():
            facts[end].append(fact)
    chosen = (
        id_
        for id_, entity_facts in facts.items()
        if id_ in snapshot.profiles
        or (every and sum(f.holds_at(snapshot.recorded_at) for f in entity_facts) >= MIN_PROFILE_FACTS)
    )
    return [Cluster(id=id_, level=PROFILE, members=[id_], facts=facts[id_]) for id_ in chosen]


def labels_of_run(snapshot: Snapshot, ids: Sequence[str]) -> Ints:
    """Return each entity's level-0 community in the current run: the smallest index of a present member."""
    place = {id_: at for at, id_ in enumerate(ids)}
    labels = np.full(len(ids), NOBODY)
    for community in snapshot.communities:
        if community.level == 0 and (members := [place[m] for m in community.members if m in place]):
            labels[members] = min(members)
    return labels


def owners_now(snapshot: Snapshot) -> dict[str, str]:
    """Return entity -> its level-0 community now: the run's, extended to the newcomers."""
    ids = list(snapshot.entities)
    labels = labels_of_run(snapshot, ids)
    by_member = {m: c.id for c in snapshot.communities if c.level == 0 for m in c.members}
    owner = {label: by_member[ids[label]] for label in set(labels.tolist()) - {NOBODY}}
    run = snapshot.parent
    if run is not None and run.recorded_at < snapshot.recorded_at:
        born = {e.id: e.born for e in snapshot.entities.values() if e.id not in by_member}
        place = {id_: at for at, id_ in enumerate(ids)}
        newcomers = [place[id_] for id_ in sorted(born, key=lambda id_: (born[id_], id_))]
        labels = assign_newcomers(graph_of(ids, snapshot.pairs()), labels, newcomers, cap_for(len(ids)))
    return {id_: owner[label] for id_, label in zip(ids, labels.tolist(), strict=True) if label != NOBODY}


def _clusters_with_ids(
    snapshot: Snapshot, ids: Sequence[str], levels: Levels, graph: Graph
) -> list[list[Cluster]]:
    """Return the clusters, with the ids of similar communities of the current run (`inherit_ids`)."""
    label, heads = np.full(graph.nodes, NOBODY), graph.heads
    for number, members in enumerate(levels[0]):
        label[members] = number
    is_inner = (label[heads] == label[graph.ends]) & (label[heads] != NOBODY)
    central = np.bincount(heads[is_inner], graph.weights[is_inner], graph.nodes).astype(np.int64)
    clusters: list[list[Cluster]] = []
    listed = {community.id: community for community in snapshot.communities}
    previous: dict[int, dict[str, list[str]]] = {}  # level -> community of the current run -> present members
    for community in (community for community in snapshot.communities if not community.level):
        upper: Community | None = community
        while upper is not None:
            members_now = previous.setdefault(upper.level, {}).setdefault(upper.id, [])
            members_now += [member for member in community.members if member in snapshot.entities]
            upper = listed.get(upper.parent or "")
    for level, groups in enumerate(levels):
        named = [
            [ids[n] for n in members[np.lexsort((members, -central[members]))].tolist()] for members in groups
        ]
        fresh = partial(_fresh, f"{snapshot.group}\n{snapshot.watermark}\n{level}\n")
        pairs = zip(inherit_ids(previous.get(level, {}), named, fresh), named, strict=True)
        clusters.append([Cluster(id=id_, level=level, members=members) for id_, members in pairs])
    for lower_level, upper_level in pairwise(clusters):
        owner = {member: community for community in upper_level for member in community.members}
        for child in lower_level:
            owner[child.members[0]].children.append(child)
            child.parent = owner[child.members[0]].id
    return clusters


def _fresh(place: str, member: str) -> str:
    return str(uuid.uuid5(_NAMESPACE, place + member))


def _without_only_children(levels: Sequence[Sequence[Cluster]]) -> Iterable[list[Cluster]]:
    """Leave out communities with a single child: the child replaces them."""
    by_id: Mapping[str, Cluster] = {cluster.id: cluster for level in levels for cluster in level}
    for level in reversed(levels[1:]):
        for cluster in level:
            if len(cluster.children) == 1:
                (child,) = cluster.children
                child.parent = cluster.parent
                if cluster.parent is not None:
                    upper = by_id[cluster.parent]
                    upper.children[upper.children.index(cluster)] = child
    filtered = [[c for c in level if not c.level or len(c.children) > 1] for level in levels]
    return [level for level in filtered if level]


def inherit_ids(
    old: Mapping[str, Sequence[str]], new: Sequence[Sequence[str]], fresh: Callable[[str], str]
) -> list[str]:
    """Return the ids of the new communities of a level; a similar old community passes its id on.

    old     id -> its members that still exist
    fresh   makes the id of a community without a predecessor, from its least member
    Similar means a Jaccard index above 1/2 over the entities of both runs, so each has at most one partner.
    """
    owner = {member: id_ for id_, members in old.items() for member in members}

    def id_of(members: Sequence[str]) -> str:
        owners = Counter(owner[member] for member in members if member in owner)
        for id_, common in owners.items():
            if 2 * common > len(old[id_]) + owners.total() - common:
                return id_
        return fresh(min(members))

    return [id_of(members) for members in new]


def assign_newcomers(graph: Graph, labels: Ints, newcomers: Sequence[int], cap: int) -> Ints:
    """Return labels with a community for each newcomer, in order of arrival.

    A newcomer takes the plurality of its neighbours; then each neighbour except hubs is reconsidered once: it
    moves if it gains weight. The result depends on the run and the log alone, so it is not stored.
    """
    labels = labels.copy()
    sizes = np.bincount(labels[labels != NOBODY], minlength=graph.nodes)
    degrees = graph.degrees

    def reconsider(node: int) -> None:
        entries = slice(graph.start[node], graph.start[node + 1])
        near, weights = labels[graph.ends[entries]], graph.weights[entries]
        chosen, current = plurality(near, weights, sizes, graph, cap), int(labels[node])
        if chosen is None or chosen[0] == current:
            return
        if current != NOBODY:
            if chosen[1] <= int(weights[near == current].sum()):
                return
            sizes[current] -= 1
        labels[node] = chosen[0]
        sizes[chosen[0]] += 1

    for node in newcomers:
        reconsider(node)
        for neighbour in graph.ends[graph.start[node] : graph.start[node + 1]].tolist():
            if labels[neighbour] != NOBODY and degrees[neighbour] <= HUB:
                reconsider(neighbour)
    return labels
