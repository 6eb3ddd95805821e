"""Writes a batch of rows of many entries; a single statement (`statements_by_hand.WRITE`) does most of it.

The order is: drops except of entities and facts; patches; nodes; facts, each deleted and created again;
mentions; counters of groups; and at the end the dropped entities, which no relationship needs any more. Rows
are sent in the order of their keys, so that all transactions lock in one order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

from kgray.domain import times
from kgray.errors import Unwritable
from kgray.schema import kinds
from kgray.schema.kinds import COMMITTED, Kind, R, Read
from kgray.storage.neo4j import groups as grouped
from kgray.storage.neo4j import statements
from kgray.storage.neo4j import statements_by_hand as cypher
from kgray.storage.neo4j.connection import MAX_ROWS, PLANNED_ONCE, Connection, Fetched, Running, Values
from kgray.storage.neo4j.groups import LockedGroup
from kgray.storage.neo4j.mapping import FACT_TIMES, STORED, group_key, named_group
from kgray.storage.neo4j.statements import read_rows
from kgray.storage.transactions import CombinedBatch, RowName, States, Transaction

_LEDGERS: tuple[Kind[Any], ...] = (kinds.EPISODES, kinds.OPERATIONS)  # as STATES has them


class BatchWriter(Transaction[LockedGroup]):
    """An open transaction whose groups are locked."""

    def __init__(self, db: Connection, running: Running, groups: Mapping[str, LockedGroup]) -> None:
        super().__init__(groups)
        self._db, self._running = db, running

    def rows(self, read: Read[R], group: str, values: Sequence[Any] = ()) -> list[R]:
        return list(read_rows(partial(self._db.run, self._running), read, named_group(group), values))

    def states(self, entries: Sequence[tuple[str, int]]) -> States:
        portions = self._send(cypher.STATES, state_keys(entries))
        return states_of(row for (portion,) in portions for row in portion)

    def clear(self, group: LockedGroup, sequence: int) -> None:
        group.named, group.clearing = (
            False,
            sequence,
        )  # `groups.finish` deletes the rows in later transactions

    def write(
        self, batch: CombinedBatch, *, counters: Sequence[LockedGroup] = (), settled: Sequence[str] = ()
    ) -> None:
        for kind in reversed(kinds.KINDS):
            if kind not in (kinds.ENTITIES, kinds.FACTS):
                self._drop(kind, batch.drops[kind])
        for kind, statement in statements.PATCH.items():
            if kind is not kinds.EPISODES:
                self._send(statement, _patches(batch, kind))
        facts = list(map(_graphiti_fact, _values(batch, kinds.FACTS)))
        facts_of = _entity_edges(facts)
        nodes = {kind.name: _values(batch, kind) for kind in statements.NODES}
        nodes[kinds.EPISODES.name] = [_graphiti_episode(row, facts_of) for row in nodes[kinds.EPISODES.name]]
        nodes["patches"] = _patches(batch, kinds.EPISODES)
        nodes["gone"] = _keys(kinds.FACTS, {**batch.drops[kinds.FACTS], **batch.puts[kinds.FACTS]})
        edges = {
            "relations": [row for row in facts if row["target"] is not None],
            "attributes": [row for row in facts if row["target"] is None],
            "mentions": _values(batch, kinds.MENTIONS),
        }
        is_small = max(map(len, (*nodes.values(), *edges.values()))) <= MAX_ROWS
        stored, mentions = set[str](), 0
        group_updates: dict[str, Sequence[Any]] = {"counters": grouped.group_rows(counters)}
        group_updates["settled"] = sorted(map(group_key, settled))
        # Too many rows for one portion: first all nodes, then all relationships, then the updates of groups.
        parts: Sequence[Mapping[str, Sequence[Any]]] = (nodes, edges, group_updates)
        if is_small:
            parts = ({**nodes, **edges, **group_updates},)
        for portion in chain.from_iterable(map(_portions, parts)):
            ((ids, count),) = self._db.run(self._running, PLANNED_ONCE + cypher.WRITE, rows=portion)
            stored.update(ids)
            mentions += count
        if lost := [row for row in facts if row["uuid"] not in stored]:
            missing = sorted({str(row[end]) for row in lost for end in ("source", "target") if row[end]})
            raise Unwritable(
                f"{len(lost)} of {len(facts)} facts end at an entity that is not stored "
                f"({', '.join(missing[:4])}): nothing was changed"
            )
        if missed := len(edges["mentions"]) - mentions:
            raise Unwritable(f"{missed} mentions are of an entity that is not stored: nothing was changed")
        self._drop(kinds.ENTITIES, batch.drops[kinds.ENTITIES])

    def copy(self, batch: CombinedBatch) -> None:
        """Write a portion of a copy, whose facts come after their episodes."""
        self.write(batch)
        edges = sorted(_entity_edges(_values(batch, kinds.FACTS)).items())
        self._send(cypher.ADD_EDGES, ({"group_id": g, "uuid": id_, "edges": ids} for (g, id_), ids in edges))

    def _send(self, statement: str, rows: Iterable[Values]) -> list[Fetched]:
        return self._db.run_rows(self._running, statement, rows)

    def _drop(self, kind: Kind[Any], names: Iterable[RowName]) -> None:
        self._send(statements.DROP[kind], _keys(kind, names))


def state_keys(entries: Iterable[tuple[str, int]]) -> list[Values]:
    """Return the parameters of STATES for entries (group, sequence), in the common order of locks."""
    return [{"group_id": g, "group_key": group_key(g), "sequence": n} for g, n in sorted(entries)]


def states_of(rows: Iterable[Fetched]) -> States:
    """Return the states in the result of STATES."""
    states: States = {}
    for group, sequence, *by_ledger in rows:
        for ledger, (state, ended_at) in zip(_LEDGERS, by_ledger, strict=True):
            if state is not None:
                states[ledger, group, sequence] = state, ended_at
    return states


def _portions(lists: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Sequence[Any]]]:
    """Divide lists with the same names into portions of at most MAX_ROWS rows a list, without empty lists."""
    for start in range(0, max(map(len, lists.values())), MAX_ROWS):
        parts = {name: rows[start : start + MAX_ROWS] for name, rows in lists.items()}
        yield {name: rows for name, rows in parts.items() if rows}


def _keys(kind: Kind[Any], names: Iterable[RowName]) -> list[Values]:
    return [STORED[kind].key_values(*name) for name in sorted(names)]


def _patches(batch: CombinedBatch, kind: Kind[Any]) -> list[Values]:
    stored = STORED[kind]
    return [
        stored.key_values(*name)
        | {"put": {stored.property_of(column): value for column, value in new.items()}}
        for name, new in sorted(batch.patches[kind].items())
    ]


def _values(batch: CombinedBatch, kind: Kind[Any]) -> list[Values]:
    ordered = sorted(batch.puts[kind].items())  # names differ, so nothing else is compared
    return [STORED[kind].row_values(group, row) for (group, _), row in ordered]


def _entity_edges(facts: Iterable[Values]) -> dict[tuple[str, str], list[str]]:
    """Return the ids of facts, in their order, by the group and id of each episode that they name."""
    ids: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for fact in facts:
        for episode in fact["episodes"]:
            ids[fact["group_id"], episode].append(fact["uuid"])
    return ids


def _graphiti_episode(put: Values, facts_of: Mapping[tuple[str, str], list[str]]) -> Values:
    """Return the properties of an episode; if it is committed, with the properties that Graphiti reads."""
    if put["state"] != COMMITTED:
        return put
    return put | {
        "name": put["client_id"] or put["uuid"],
        "source": "json" if put["kind"] == "triples" else put["kind"],  # `kind` has the original
        "valid_at": times.show(put["said"]),
        "created_at": times.show(put["ended_at"]),
        "entity_edges": facts_of.get((put["group_id"], put["uuid"]), []),
    }


def _graphiti_fact(put: Values) -> Values:
    """Add the times that Graphiti reads to the properties of a fact, in place, and return the properties.

    The statement converts texts to datetimes, because the driver spends 140 us on each datetime.
    """
    for name in FACT_TIMES:
        put[name] = times.show(put[name.removesuffix("_at")])
    return put
