"""Writes a batch of rows, of many entries together: about ten statements, each a round trip.

In the order drops, patches, puts. Entities are put before the relationships between them, and dropped after
them. An episode is retired (a patch) before another with its id is put as the live one. Rows are sent in the
order of their keys, so that all transactions lock in one order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from kgray import kinds, times
from kgray.errors import Unwritable
from kgray.kinds import COMMITTED, Kind, R, Read
from kgray.stores.alike import FoldedBatch, RowName, States, Transaction
from kgray.stores.neo4j import groups as grouped
from kgray.stores.neo4j import statements
from kgray.stores.neo4j import statements_by_hand as cypher
from kgray.stores.neo4j.connection import MAX_ROWS, PLANNED_ONCE, Connection, Fetched, Running, Values
from kgray.stores.neo4j.groups import LockedGroup
from kgray.stores.neo4j.mapping import STORED, group_key, named_group
from kgray.stores.neo4j.statements import read_rows


class BatchWriter(Transaction[LockedGroup]):
    """An open transaction, of which the groups are locked."""

    def __init__(self, db: Connection, running: Running, groups: Mapping[str, LockedGroup]) -> None:
        super().__init__(groups)
        self._db, self._running = db, running

    def rows(self, read: Read[R], group: str, values: Sequence[Any] = ()) -> list[R]:
        return list(read_rows(partial(self._db.run, self._running), read, named_group(group), values))

    def states(self, entries: Sequence[tuple[str, int]]) -> States:
        found: States = {}
        asked = ({"group_id": g, "group_key": group_key(g), "sequence": n} for g, n in sorted(entries))
        for (entry_states,) in self._send(cypher.STATES, asked):
            for group, sequence, *states in entry_states:
                for ledger, (state, ended_at) in zip((kinds.EPISODES, kinds.OPERATIONS), states, strict=True):
                    if state is not None:
                        found[ledger, group, sequence] = state, ended_at
        return found

    def clear(self, group: LockedGroup, sequence: int) -> None:
        group.named, group.clearing = False, sequence  # `groups.finish` goes on, in transactions of its own

    def keep(self, groups: Iterable[LockedGroup]) -> None:
        grouped.keep(self._db, self._running, groups)

    def settle(self, groups: Sequence[str]) -> None:
        if groups:
            self._db.run(self._running, cypher.SETTLE, ids=list(map(group_key, groups)))

    def write(self, found: FoldedBatch) -> None:
        for kind in reversed(kinds.KINDS):
            if kind is not kinds.ENTITIES:
                gone = found.drops[kind]
                # A fact that is put anew goes first: its ends may be others.
                self._drop(kind, {**gone, **found.puts[kind]} if kind is kinds.FACTS else gone)
        for kind, stored in STORED.items():
            if patches := sorted(found.patches[kind].items()):
                self._send(statements.PATCH[kind], (
                    stored.key_values(*name) | {"put": {stored.property_of(c): v for c, v in new.items()}}
                    for name, new in patches
                ))  # fmt: skip
        edges = _entity_edges(found)
        lists = {kind.name: _values(found, kind) for kind in statements.NODES}
        lists[kinds.EPISODES.name] = [_seen_episode(row, edges) for row in lists[kinds.EPISODES.name]]
        for start in range(0, max(map(len, lists.values())), MAX_ROWS):
            portion = {name: rows[start : start + MAX_ROWS] for name, rows in lists.items()}
            self._db.run(self._running, PLANNED_ONCE + statements.PUT_NODES, rows=portion)
        facts = list(map(_seen_fact, _values(found, kinds.FACTS)))
        self._connect(cypher.NEW_FACTS, [row for row in facts if row["target"] is not None])
        self._connect(cypher.NEW_VALUE_FACTS, [row for row in facts if row["target"] is None])
        self._connect(cypher.PUT_MENTIONS, _values(found, kinds.MENTIONS))
        self._drop(kinds.ENTITIES, found.drops[kinds.ENTITIES])

    def copy(self, found: FoldedBatch) -> None:
        """Write a portion of a copy, whose facts come after their episodes."""
        self.write(found)
        edges = sorted(_entity_edges(found).items())
        self._send(cypher.ADD_EDGES, ({"group_id": g, "uuid": id_, "edges": ids} for (g, id_), ids in edges))

    def _send(self, statement: str, rows: Iterable[Values]) -> list[Fetched]:
        return self._db.run_rows(self._running, statement, rows)

    def _drop(self, kind: Kind[Any], names: Iterable[RowName]) -> None:
        self._send(statements.DROP[kind], (STORED[kind].key_values(*name) for name in sorted(names)))

    def _connect(self, statement: str, rows: Sequence[Values]) -> None:
        """Put relationships; Unwritable where an end is not stored."""
        made = sum(count for (count,) in self._send(statement, rows))
        if made != len(rows):
            ends = sorted({str(row[end]) for row in rows for end in ("source", "target", "entity") if row.get(end)})
            raise Unwritable(
                f"{len(rows) - made} of {len(rows)} relationships end at an entity that is not stored "
                f"({', '.join(ends[:4])}): nothing was changed"
            )


def _values(found: FoldedBatch, kind: Kind[Any]) -> list[Values]:
    ordered = sorted(found.puts[kind].items())  # names differ, so nothing else is compared
    return [STORED[kind].row_values(group, row) for (group, _), row in ordered]


def _entity_edges(found: FoldedBatch) -> dict[tuple[str, str], list[str]]:
    """Return the facts that are put, sorted, by the group and id of each episode that they name."""
    edges: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for (group, _), row in sorted(found.puts[kinds.FACTS].items()):
        for episode in row[_EPISODES]:
            edges[group, episode].append(row[0])
    return edges


_EPISODES = kinds.FACTS.names.index("episodes")


def _seen_episode(put: Values, edges: Mapping[tuple[str, str], list[str]]) -> Values:
    """Return the properties of an episode with those that Graphiti's readers find on a committed one."""
    if put["state"] != COMMITTED:
        return put
    return put | {
        "name": put["client_id"] or put["uuid"],
        "source": "json" if put["kind"] == "triples" else put["kind"],  # kgray's own kind stands beside it
        "valid_at": times.to_datetime(put["said"]),
        "created_at": None if put["ended_at"] is None else times.to_datetime(put["ended_at"]),
        "entity_edges": edges.get((put["group_id"], put["uuid"]), []),
    }


def _seen_fact(put: Values) -> Values:
    for theirs in ("created_at", "valid_at", "invalid_at", "expired_at"):
        instant = put[theirs.removesuffix("_at")]
        put[theirs] = None if instant is None else times.to_datetime(instant)
    return put
