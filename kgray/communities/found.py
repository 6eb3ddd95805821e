"""A group as one moment shows it, and its communities: found, numbered, with what each is about."""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from kgray import kinds, reads, rows
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
from kgray.derivation.names import Fold
from kgray.derivation.stored import in_pieces, records_of
from kgray.errors import Unavailable
from kgray.garbage import garbage_not_collected
from kgray.graph import PROFILE, Community, Entity, Fact
from kgray.kinds import CommunityRunRow, OperationRow
from kgray.ports import Appending, Store, at_one_moment
from kgray.search.context import TOLD
from kgray.search.loading import texts_of
from kgray.times import Instant

HOLDS, ENDED = 2, 1  # what a fact counts between its ends
# Of a pair, by what its facts count: that two are connected says more than how often (docs/communities.md).
WEIGHTS = (0, 3, 6, 7, 8, 9, 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A group up to its watermark."""

    group: str
    watermark: int
    recorded_at: Instant
    entities: Mapping[str, Entity]  # in the order of their ids
    facts: Sequence[Fact]
    places: Mapping[str, int] = field(default_factory=dict)  # episode id -> sequence
    mentioned: Mapping[str, set[int]] = field(default_factory=dict)  # entity -> the sequences that mention it
    named: Mapping[str, int] = field(default_factory=dict)  # entity -> the first of them that has its name
    withdrawn: tuple[int, ...] = ()  # what was retracted or removed: a run made from other ones is void
    parent: CommunityRunRow | None = None  # the current run; the next two are of it
    listed: Sequence[Community] = ()
    profiles: Mapping[str, Community] = field(default_factory=dict)  # of the entities that a model wrote of
    corrected: bool = False  # something was merged, split, undone, retracted or removed since

    def pairs(self) -> list[tuple[str, str, int]]:
        """Return (entity, entity, weight) for each pair that facts connect."""
        counts = defaultdict[tuple[str, str], int](int)
        for fact in self.facts:
            if fact.target is not None and fact.target != fact.source:
                counts[min(fact.ends), max(fact.ends)] += HOLDS if fact.holds_at(self.recorded_at) else ENDED
        return [(a, b, WEIGHTS[min(count, 6)]) for (a, b), count in counts.items()]

    def news(self) -> float:
        """Return the share of its entities that are new since the current run, or have new facts."""
        if self.parent is None or not self.entities:
            return float(self.parent is None)
        new = {id_ for id_, entity in self.entities.items() if entity.born[0] > self.parent.watermark}
        known = self.entities.keys() & self.touched(self.parent.recorded_at)
        return len(new | known) / len(self.entities)

    def touched(self, since: Instant) -> set[str]:
        """Return the entities whose facts were learned, or learned to have ended, after a record time."""
        return {
            end
            for fact in self.facts
            if fact.created_at > since or (fact.expired_at or 0) > since
            for end in fact.ends
        }


def snapshot(store: Store, group: str, *, texts: bool = True) -> Snapshot:
    """Read a group at one moment; Unavailable during a large removal. texts: with what only writing needs."""
    return at_one_moment(store, partial(_read, store, group, texts=texts))


@garbage_not_collected()
def _read(store: Store, group: str, *, texts: bool) -> Snapshot:
    if in_pieces(store, group):
        raise Unavailable(f"a removal of group {group} is being carried out: run it again")
    head = store.heads([group])[group]
    first = store.pending_sequences(group, 0, 1)
    entities = {one.id: one for one in map(rows.entity, store.rows(kinds.ENTITIES.all, group))}
    parent = current(store, group)
    listed, profiles = texts_of(store, group, parent.run) if parent else ([], {})
    heads = store.rows(reads.EPISODE_HEADS, group) if texts else ()
    operations = list(store.rows(kinds.OPERATIONS.all, group))
    mentioned, named = _mentioned(store, group, entities) if texts else ({}, {})
    return Snapshot(
        group=group,
        watermark=first[0][0] - 1 if first else head.last,
        recorded_at=head.last_recorded,
        entities=dict(sorted(entities.items())),
        facts=[rows.fact(row) for row in store.rows(kinds.FACTS.all, group)],
        places={
            row.id: row.sequence for row in heads if row.state == kinds.COMMITTED and row.retired_at is None
        },
        mentioned=mentioned,
        named=named,
        withdrawn=withdrawn(operations),
        corrected=parent is not None and any(row.sequence > parent.watermark for row in operations),
        parent=parent,
        listed=listed,
        profiles=profiles,
    )


def _mentioned(
    store: Store, group: str, entities: Mapping[str, Entity]
) -> tuple[dict[str, set[int]], dict[str, int]]:
    found, named, records = defaultdict[str, set[int]](set), dict[str, int](), records_of(store, group)
    fold = Fold(records.operations, records.births, records.recorded)
    for mention in records.mentions:
        id_, _ = fold.shown(mention.entity, mention.surface, mention.sequence)
        found[id_].add(mention.sequence)
        if id_ in entities and mention.surface == entities[id_].name:
            named.setdefault(id_, mention.sequence)
    return found, named


def withdrawn(operations: Iterable[OperationRow]) -> tuple[int, ...]:
    """Return the sequences of the retractions and removals that were carried out, or begun."""
    out = (row for row in operations if row.kind in {"retract", "remove"})
    return tuple(row.sequence for row in out if row.recorded_at is not None)


def runs(store: Store | Appending, group: str) -> list[CommunityRunRow]:
    """Return the runs that are kept, the current one last."""
    return list(store.rows(kinds.COMMUNITY_RUNS.all, group))


def current(store: Store | Appending, group: str) -> CommunityRunRow | None:
    """Return the current run; None before the first."""
    return found[-1] if (found := runs(store, group)) else None


_NAMESPACE = uuid.UUID("5e0c9f0e-93c4-5d1b-9a2e-2f6d4f9b7a10")


@dataclass(slots=True, kw_only=True)
class Found:
    """A community, and what is known of it."""

    id: str
    level: int
    members: Sequence[str]  # the most central first
    # Between its members, or of one and a value; above level 0 between its children.
    facts: list[Fact] = field(default_factory=list)
    parent: str | None = None
    children: list[Found] = field(default_factory=list)
    is_part: bool = False  # it is what one prompt shows of a larger one
    rested: set[int] = field(default_factory=set)  # the sequences on which a text rests that it keeps

    def sources(self, snapshot: Snapshot) -> set[int]:
        """Return the sequences of the episodes from which a text on it may have words."""
        own = {snapshot.places.get(episode, 0) for fact in self.facts for episode in fact.episodes}
        own |= {snapshot.named.get(end, 0) for fact in self.facts for end in fact.ends}  # told by name
        told = own.union(self.rested, *(snapshot.mentioned.get(member, set()) for member in self.members))
        return told.union(*(child.sources(snapshot) for child in self.children)) - {0}


class Problem(NamedTuple):
    """What `partition` is called with."""

    graph: Graph
    cap: int
    previous: Ints | None
    touched: np.ndarray | None


Clustering = Callable[[Problem], Levels]  # `clustered`, here or elsewhere


def clustered(problem: Problem) -> Levels:
    """Return a graph's communities by level: all that takes long, a function of arrays alone."""
    return levels_of(problem.graph, partition(*problem))


def communities(snapshot: Snapshot, *, cold: bool, cluster: Clustering = clustered) -> list[list[Found]]:
    """Return the communities of a group by level, each level in the order of ids."""
    ids = list(snapshot.entities)
    graph = graph_of(ids, snapshot.pairs())
    previous, touched = None, None
    if not cold and snapshot.parent is not None:
        previous = labels_then(snapshot, ids)
        news = snapshot.touched(snapshot.parent.recorded_at)
        if not snapshot.corrected:  # a correction may change any fact, also one that was learned long ago
            touched = np.fromiter((id_ in news for id_ in ids), bool, len(ids))
    levels = cluster(Problem(graph, cap_for(graph.nodes), previous, touched))
    found = _numbered(snapshot, ids, levels, graph)
    owner = {member: one for one in found[0] for member in one.members}
    by_id = {one.id: one for level in found for one in level}
    for fact in snapshot.facts:  # each goes to the lowest community in which all its ends are
        ends: list[Found | None] = [owner.get(end) for end in fact.ends]
        while None not in ends and len({id(end) for end in ends}) > 1:
            ends = [by_id.get(end.parent or "") for end in ends if end is not None]
        if ends[0] is not None and None not in ends:
            ends[0].facts.append(fact)
    return [sorted(level, key=lambda one: one.id) for level in _without_only_children(found)]


def profiled(snapshot: Snapshot, *, every: bool) -> list[Found]:
    """Return the entities of which a model wrote, as communities; every: and of 5 facts that hold."""
    facts: dict[str, list[Fact]] = {id_: [] for id_ in snapshot.entities}
    for fact in snapshot.facts:
        for end in set(fact.ends) & facts.keys():
            facts[end].append(fact)
    chosen = (
        id_
        for id_, of in facts.items()
        if id_ in snapshot.profiles or (every and sum(f.holds_at(snapshot.recorded_at) for f in of) >= TOLD)
    )
    return [Found(id=id_, level=PROFILE, members=[id_], facts=facts[id_]) for id_ in chosen]


def labels_then(snapshot: Snapshot, ids: Sequence[str]) -> Ints:
    """Return the level-0 community of each entity in the current run, as its least member that is there."""
    place = {id_: at for at, id_ in enumerate(ids)}
    labels = np.full(len(ids), NOBODY)
    for one in snapshot.listed:
        if one.level == 0 and (members := [place[m] for m in one.members if m in place]):
            labels[members] = min(members)
    return labels


def placed(snapshot: Snapshot) -> dict[str, str]:
    """Return entity -> its level-0 community as of now: the run's, with who has come since."""
    ids = list(snapshot.entities)
    labels = labels_then(snapshot, ids)
    by_member = {m: one.id for one in snapshot.listed if one.level == 0 for m in one.members}
    owner = {label: by_member[ids[label]] for label in set(labels.tolist()) - {NOBODY}}
    run = snapshot.parent
    if run is not None and run.recorded_at < snapshot.recorded_at:
        born = {e.id: e.born for e in snapshot.entities.values() if e.id not in by_member}
        place = {id_: at for at, id_ in enumerate(ids)}
        newcomers = [place[id_] for id_ in sorted(born, key=lambda id_: (born[id_], id_))]
        labels = assigned(graph_of(ids, snapshot.pairs()), labels, newcomers, cap_for(len(ids)))
    return {id_: owner[label] for id_, label in zip(ids, labels.tolist(), strict=True) if label != NOBODY}


def _numbered(snapshot: Snapshot, ids: Sequence[str], levels: Levels, graph: Graph) -> list[list[Found]]:
    """Return the communities with ids, those of the current run where most of both is the same."""
    label, heads = np.full(graph.nodes, NOBODY), graph.heads
    for number, members in enumerate(levels[0]):
        label[members] = number
    inside = (label[heads] == label[graph.ends]) & (label[heads] != NOBODY)
    central = np.bincount(heads[inside], graph.weights[inside], graph.nodes).astype(np.int64)
    found: list[list[Found]] = []
    listed = {one.id: one for one in snapshot.listed}
    then: dict[int, dict[str, list[str]]] = {}  # level -> community of the current run -> who is still there
    for one in (one for one in snapshot.listed if not one.level):
        upper: Community | None = one
        while upper is not None:
            there = then.setdefault(upper.level, {}).setdefault(upper.id, [])
            there += [member for member in one.members if member in snapshot.entities]
            upper = listed.get(upper.parent or "")
    for level, groups in enumerate(levels):
        named = [
            [ids[n] for n in members[np.lexsort((members, -central[members]))].tolist()] for members in groups
        ]
        fresh = partial(_fresh, f"{snapshot.group}\n{snapshot.watermark}\n{level}\n")
        pairs = zip(carried(then.get(level, {}), named, fresh), named, strict=True)
        found.append([Found(id=id_, level=level, members=members) for id_, members in pairs])
    for below, above in pairwise(found):
        owner = {member: one for one in above for member in one.members}
        for child in below:
            owner[child.members[0]].children.append(child)
            child.parent = owner[child.members[0]].id
    return found


def _fresh(place: str, least: str) -> str:
    return str(uuid.uuid5(_NAMESPACE, place + least))


def _without_only_children(found: Sequence[Sequence[Found]]) -> Iterable[list[Found]]:
    """Leave out communities that hold one other alone: it stands for both."""
    by_id: Mapping[str, Found] = {one.id: one for level in found for one in level}
    for level in reversed(found[1:]):
        for one in level:
            if len(one.children) == 1:
                (child,) = one.children
                child.parent = one.parent
                if one.parent is not None:
                    upper = by_id[one.parent]
                    upper.children[upper.children.index(one)] = child
    levels = [[one for one in level if not one.level or len(one.children) > 1] for level in found]
    return [level for level in levels if level]


def carried(
    old: Mapping[str, Sequence[str]], new: Sequence[Sequence[str]], fresh: Callable[[str], str]
) -> list[str]:
    """Return the ids of the new communities of a level: an old one's where most of both is the same.

    old     id -> its members that are still there
    fresh   makes the id of a community without such a predecessor, from its least member
    The measure is Jaccard's over entities that both runs know. Above 1/2 each has one partner at most.
    """
    owner = {member: id_ for id_, members in old.items() for member in members}

    def id_of(members: Sequence[str]) -> str:
        known = Counter(owner[member] for member in members if member in owner)
        for id_, common in known.items():
            if 2 * common > len(old[id_]) + known.total() - common:
                return id_
        return fresh(min(members))

    return [id_of(members) for members in new]


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
