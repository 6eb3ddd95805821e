"""The outline of a graph: the ends, spans and wordings of all its facts as arrays.

A read that chooses among all facts of a group, for example the facts of the most connected entities, or the
differences between two moments, chooses in the arrays, and reads the rows of its answer alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kgray.domain.graph import Fact
from kgray.domain.times import Instant
from kgray.graph.stored import View
from kgray.ports import GraphView, Store
from kgray.schema import reads
from kgray.schema.reads import FactOutlineRow
from kgray.system.garbage import garbage_not_collected

Ints = NDArray[np.int64]
Numbers = NDArray[np.int32]
Mask = NDArray[np.bool_]
Ids = NDArray[np.bytes_]
_ALWAYS, _NEVER = -(1 << 62), 1 << 62  # the start and the end of a fact that has none


@dataclass(frozen=True, slots=True)
class Outline:
    """Entities by birth, facts by start and id; an entity's number is its position.

    sources, targets    numbers of entities; targets: -1 where the object is a value
    wordings, names     hashes of relation and text, and of the names of entities, of this process
    """

    entities: Ids
    names: Ints
    facts: Ids
    sources: Numbers
    targets: Numbers
    created: Ints
    starts: Ints
    ends: Ints
    wordings: Ints

    @classmethod
    def read(cls, store: Store, view: GraphView) -> Outline:
        """Read the outline of a view, in one pass over its facts and entities."""
        with garbage_not_collected():
            if isinstance(view, View):
                born = [(entity.born, entity.id, entity.name) for entity in view.all_entities()]
                facts: Iterable[FactOutlineRow | Fact] = sorted(view.all_facts(), key=lambda fact: fact.id)
            else:
                entities = store.rows(reads.ENTITY_OUTLINES, view.group)
                born = [((row.born_sequence, row.born_ordinal), row.id, row.name) for row in entities]
                facts = store.rows(reads.FACT_OUTLINES, view.group)
            born.sort()
            numbers = {id_: number for number, (_, id_, _) in enumerate(born)}
            columns = _columns(facts, numbers)
        order = np.argsort(columns[4], kind="stable")
        names = np.array([hash(name) for _, _, name in born], np.int64)
        return cls(_packed([*numbers]), names, *(column[order] for column in columns))

    def holding(self, as_of: Instant | None) -> Mask:
        """Return which facts hold at a moment; None: all."""
        if as_of is None:
            return np.ones(len(self.facts), bool)
        return (self.starts <= as_of) & (as_of < self.ends)

    def degrees(self, chosen: Mask) -> Ints:
        """Return the number of the chosen facts at each entity."""
        ends = np.concatenate((self.sources[chosen], self.targets[chosen]))
        return np.bincount(ends[ends >= 0], minlength=len(self.entities) + 1)[: len(self.entities)]

    def connecting(self, entities: Mask) -> Mask:
        """Return which facts connect these entities alone."""
        marked = np.append(entities, [False, True])  # an unknown end; the last, of number -1: a value
        return np.asarray(marked[self.sources] & marked[self.targets])

    def touching(self, entities: Mask) -> Mask:
        """Return a mask of the facts that end at one or two of these entities."""
        marked = np.append(entities, [False, False])
        return np.asarray(marked[self.sources] | marked[self.targets])

    def links(self, owners: Mapping[str, str], communities: Sequence[str]) -> list[tuple[str, str, int]]:
        """Return how many facts connect each two of these communities, most first: (id, id, facts).

        owners      entity -> its community
        """
        count, numbers = len(communities), {id_: number for number, id_ in enumerate(sorted(communities))}
        of_entity = [numbers.get(owners.get(id_, ""), -1) for id_ in texts(self.entities)]
        community = np.array([*of_entity, -1, -1])  # of an unknown end, and of a value
        pair = np.sort(np.stack((community[self.sources], community[self.targets])), axis=0)
        low, high = pair[:, (pair[0] >= 0) & (pair[0] != pair[1])]
        pairs, facts = np.unique(low * count + high, return_counts=True)
        ids = [*numbers]
        order = np.argsort(-facts, kind="stable")
        return [
            (ids[p // count], ids[p % count], n)
            for p, n in zip(*(each[order].tolist() for each in (pairs, facts)), strict=True)
        ]

    def by_creation(self, chosen: Mask) -> Ints:
        """Return the positions of the chosen facts, by creation and id."""
        at = np.flatnonzero(chosen)
        return at[np.lexsort((self.facts[at], self.created[at]))]

    def most_connected(
        self, as_of: Instant | None, limit: int, members: Sequence[str] | None
    ) -> tuple[Ids, Ids, dict[str, int]]:
        """Return the entities with most facts at a moment, the facts among them, and the total of both.

        members     choose among these entities, and count the facts at them; None = all
        """
        chosen = self.holding(as_of)
        ordered = np.argsort(-self.degrees(chosen), kind="stable")
        if members is not None:
            is_member = np.isin(self.entities, _packed(members))
            ordered = ordered[is_member[ordered]]
            chosen &= self.touching(is_member)
        chosen_entities = np.zeros(len(self.entities), bool)
        chosen_entities[ordered[:limit]] = True
        total = {"entities": len(ordered), "facts": int(chosen.sum())}
        return self.entities[ordered[:limit]], self.facts[chosen & self.connecting(chosen_entities)], total

    def facts_in(self, reference: Outline) -> tuple[Ints, Mask]:
        """Return the position of each fact in another outline, -1 = none, and which facts differ there."""
        if reference is self:
            return np.arange(len(self.facts)), np.zeros(len(self.facts), bool)
        at = positions(self.facts, reference.facts)
        if not len(reference.facts):
            return at, at > 0
        entities = np.append(
            positions(self.entities, reference.entities), [-2, -1]
        )  # an unknown end; a value
        differ = (entities[self.sources] != reference.sources[at]) | (
            entities[self.targets] != reference.targets[at]
        )
        for name in ("starts", "ends", "wordings"):
            differ |= getattr(self, name) != getattr(reference, name)[at]
        return at, differ & (at >= 0)


@dataclass(frozen=True, slots=True)
class Differences:
    """The ids of facts and entities that differ between two outlines; facts by creation, entities by birth.

    former, current the facts that differ in wording, span or ends, as they were and as they are
    """

    opened: Ids
    ended: Ids
    former: Ids
    current: Ids
    entities_new: Ids
    entities_gone: Ids
    entities_renamed: Ids


def differences(
    earlier: tuple[Outline, Instant | None], later: tuple[Outline, Instant | None]
) -> Differences:
    """Return the facts that hold at one moment and not at the other; None = at any moment."""
    (old, first), (new, second) = earlier, later
    holding_first, holding_second = old.holding(first), new.holding(second)
    old_positions, differ = new.facts_in(old)
    both = holding_second & (old_positions >= 0)
    both[both] = holding_first[old_positions[both]]
    ended = holding_first.copy()
    ended[old_positions[both]] = False
    changed = new.by_creation(both & differ)
    old_entities = positions(new.entities, old.entities)
    renamed = old_entities >= 0
    renamed[renamed] = new.names[renamed] != old.names[old_entities[renamed]]
    return Differences(
        opened=new.facts[new.by_creation(holding_second & ~both)],
        ended=old.facts[old.by_creation(ended)],
        former=old.facts[old_positions[changed]],
        current=new.facts[changed],
        entities_new=new.entities[old_entities < 0],
        entities_gone=old.entities[positions(old.entities, new.entities) < 0],
        entities_renamed=new.entities[renamed],
    )


def positions(ids: Ids, pool: Ids) -> Ints:
    """Return the position of each id among others; -1: it is not there."""
    if not len(pool):
        return np.full(len(ids), -1)
    order = np.argsort(pool)
    near = order[np.minimum(np.searchsorted(pool, ids, sorter=order), len(pool) - 1)]
    return np.where(pool[near] == ids, near, -1)


def texts(ids: Ids) -> list[str]:
    """Return ids of an outline as texts."""
    return [id_.decode() for id_ in ids.tolist()]


def facts_of(view: GraphView, ids: Ids) -> list[Fact]:
    """Return the facts with these ids of an outline, in the order given."""
    ids_of_facts = texts(ids)
    by_id = {fact.id: fact for fact in view.facts(ids_of_facts)}
    return [by_id[id_] for id_ in ids_of_facts]


def _columns(facts: Iterable[FactOutlineRow | Fact], numbers: Mapping[str, int]) -> tuple[Any, ...]:
    """Return the columns of an outline's facts, in the order given."""
    unknown = len(numbers)  # the number of an end that the view does not show
    rows = [
        (
            fact.id,
            numbers.get(fact.source, unknown),
            -1 if fact.target is None else numbers.get(fact.target, unknown),
            fact.created_at,
            _ALWAYS if fact.valid_at is None else fact.valid_at,
            _NEVER if fact.invalid_at is None else fact.invalid_at,
            hash((fact.relation, fact.text)),
        )
        for fact in facts
    ]
    ids, sources, targets, *values = zip(*rows, strict=True) if rows else ((),) * 7
    ends = (np.array(each, np.int32) for each in (sources, targets))
    return (_packed(ids), *ends, *(np.array(each, np.int64) for each in values))


def _packed(ids: Sequence[str]) -> Ids:
    return np.array([id_.encode() for id_ in ids], np.bytes_)
