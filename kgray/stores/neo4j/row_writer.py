"""Writes a batch of rows, of many entries together: 10 to 20 statements.

Each statement costs a round trip, and each transaction a commit; so the changes of many episodes share both.
Rows are written in the order drops, patches, puts. Entities are put before the facts between them, and
dropped after them. An episode is retired (a patch) before another with its id is put as the live one. Rows
are sent in the order of their keys, so that all transactions lock in one order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from datetime import datetime
from functools import partial
from operator import or_
from types import MappingProxyType
from typing import Any

from kgray import kinds, times
from kgray.errors import Unwritable
from kgray.kinds import COMMITTED, Key, Kind, Read, Row
from kgray.rows import computed
from kgray.stores.alike import FoldedBatch, Transaction
from kgray.stores.neo4j import groups as grouped
from kgray.stores.neo4j import statements
from kgray.stores.neo4j import statements_by_hand as cypher
from kgray.stores.neo4j.connection import MAX_ROWS, PLANNED_ONCE, Connection, Fetched, Running, Values
from kgray.stores.neo4j.groups import LockedGroup
from kgray.stores.neo4j.mapping import STORED, digest, group_key, named_group
from kgray.stores.neo4j.statements import read_rows
from kgray.times import Instant

_NONE: Mapping[str, LockedGroup] = MappingProxyType({})
STATE = kinds.EPISODES.names.index("state")


class BatchWriter(Transaction[LockedGroup]):
    """An open transaction, of which the groups are locked."""

    def __init__(
        self, db: Connection, running: Running, dimensions: int, groups: Mapping[str, LockedGroup] = _NONE
    ) -> None:
        self._db, self._running, self._dimensions, self.groups = db, running, dimensions, groups

    def rows(self, read: Read, group: str, values: Sequence[Any] = ()) -> list[Row]:
        return list(read_rows(partial(self._db.run, self._running), read, named_group(group), values))

    def states(self, entries: Sequence[Entry]) -> Iterator[tuple[Kind, str, int, tuple[int, Instant | None]]]:
        rows = ({**asked, "group_key": group_key(str(asked["group_id"]))} for asked in _entries(entries))
        for group, sequence, *states in self._db.run_rows(self._running, cypher.STATES, rows):
            for ledger, (state, ended_at) in zip((kinds.EPISODES, kinds.OPERATIONS), states, strict=True):
                if state is not None:
                    yield ledger, group, sequence, (state, ended_at)

    def clear(self, group: LockedGroup, sequence: int) -> None:
        """Begin to delete a group's rows: `groups.finish` goes on, in transactions of its own."""
        group.named, group.clearing = False, sequence

    def keep(self, groups: Iterable[LockedGroup]) -> None:
        grouped.keep(self._db, self._running, groups)

    def settle(self, groups: Sequence[str]) -> None:
        if groups:
            self._db.run(self._running, cypher.SETTLE, ids=list(map(group_key, groups)))

    def write(self, found: FoldedBatch, *, complete: bool = True) -> None:
        """Write everything. complete: False = more rows of the same entries follow (a copy), then `link`."""
        for kind in reversed(kinds.KINDS):
            if kind not in (kinds.ENTITIES, kinds.FACTS):
                self._send(statements.DROP[kind], _named(kind, found.drops[kind]))
        self._patch(found)
        lists = {kind.name: self._values(found, kind) for kind in statements.PLAIN}
        for start in range(0, max(map(len, lists.values())), MAX_ROWS):
            portion = {name: rows[start : start + MAX_ROWS] for name, rows in lists.items()}
            self._db.run(self._running, PLANNED_ONCE + statements.PUT_PLAIN, rows=portion)
        self._send(cypher.PUT_EPISODES, map(_seen_episode, self._values(found, kinds.EPISODES)))
        self._send(cypher.PUT_ENTITIES, self._values(found, kinds.ENTITIES))
        self._change_facts(found)
        self._send(cypher.DROP_ENTITIES, _named(kinds.ENTITIES, found.drops[kinds.ENTITIES]))
        if complete:
            self._link(found)

    def _send(self, statement: str, rows: Iterable[Values]) -> list[Fetched]:
        return self._db.run_rows(self._running, statement, rows)

    def _patch(self, found: FoldedBatch) -> None:
        for kind in kinds.KINDS:
            if patches := sorted(found.patches[kind].items()):
                named = STORED[kind].property_of
                put = ({"put": {named(column): value for column, value in new.items()}} for _, new in patches)
                keys = (key_values(kind, *name) for name, _ in patches)
                self._send(statements.PATCH[kind], map(or_, keys, put))

    def _values(self, found: FoldedBatch, kind: Kind) -> list[Values]:
        ordered = sorted(found.puts[kind].items())  # names differ, so nothing else is compared
        return [row_values(kind, group, row, self._dimensions) for (group, _), row in ordered]

    def _change_facts(self, found: FoldedBatch) -> None:
        puts = found.puts[kinds.FACTS]
        self._send(cypher.DROP_FACTS, _named(kinds.FACTS, {**found.drops[kinds.FACTS], **puts}))
        rows = list(map(_seen_fact, self._values(found, kinds.FACTS)))
        made = self._send(cypher.NEW_FACTS, (row for row in rows if row["target"] is not None))
        made += self._send(cypher.NEW_VALUE_FACTS, (row for row in rows if row["target"] is None))
        there = {id_ for (id_,) in made}
        if lost := [row for row in rows if row["uuid"] not in there]:
            ends = sorted({str(row[end]) for row in lost for end in ("source", "target") if row[end]})
            raise Unwritable(
                f"{len(lost)} of {len(rows)} facts end at an entity that is not stored "
                f"({', '.join(ends[:4])}): nothing was changed"
            )

    def _link(self, found: FoldedBatch) -> None:
        """Rebuild the edges of episodes that were committed, and of those whose entities moved."""
        committed = {
            (group, key[0])
            for (group, key), row in found.puts[kinds.EPISODES].items()
            if row[STATE] == kinds.COMMITTED
        }
        shown = {*found.puts[kinds.SHOWN_ENTITIES], *found.drops[kinds.SHOWN_ENTITIES]}
        moved = {(group, key[0]) for group, key in shown} - {
            (group, key[0]) for group, key in found.puts[kinds.BIRTHS]
        }
        asked = ({"group_id": group, "id": id_} for group, id_ in sorted(moved))
        again = {(group, sequence) for group, sequence in self._send(cypher.MENTIONED_IN, asked)}
        self.link(again | committed, new=committed)

    def link(self, episodes: Collection[Entry], *, new: Set[Entry] = frozenset()) -> None:
        """Make anew what Graphiti's readers follow from episodes; new: those that have no edges yet."""
        asked = _entries(episodes)
        self._send(cypher.DROP_LINKS, _entries(set(episodes) - new))
        self._send(cypher.LINK_MENTIONS, asked)
        self._send(cypher.KNOW_FACTS, asked)


Entry = tuple[str, int]  # group, sequence


def _entries(found: Iterable[Entry]) -> list[Values]:
    return [{"group_id": group, "sequence": sequence} for group, sequence in sorted(found)]


def _named(kind: Kind, names: Iterable[tuple[str, Key]]) -> list[Values]:
    return [key_values(kind, group, key) for group, key in sorted(names)]


def key_values(kind: Kind, group: str, key: Key) -> Values:
    """Return the properties by which a row is matched."""
    stored = STORED[kind]
    return {"group_id": stored.group_id(group)} | {
        prop: digest(value) if column in stored.digested else value
        for column, prop, value in zip(kind.key, stored.key, key, strict=True)
    }


def row_values(kind: Kind, group: str, row: Row, dimensions: int) -> Values:
    """Return all properties of a row, computed ones too; dimensions: numbers a vector."""
    stored = STORED[kind]
    made: Values = {"group_id": stored.group_id(group)}
    for column, value in zip(kind.columns, row, strict=True):
        made[stored.property_of(column.name)] = value
        if column.name in stored.digested:
            made[f"{column.name}_key"] = digest(value)
    if kind.computed:
        names = (column.name for column in kind.computed)
        made.update(zip(names, computed(kind, row, dimensions), strict=True))
    return made


def _seen_episode(put: Values) -> Values:
    if put["state"] != COMMITTED:
        return put
    return put | {
        "name": put["client_id"] or put["uuid"],
        "source": "json" if put["kind"] == "triples" else put["kind"],  # kgray's own kind stands beside it
        "valid_at": times.to_datetime(put["said"]),
        "created_at": _moment(put["ended_at"]),
        "entity_edges": [],
    }


def _seen_fact(put: Values) -> Values:
    for theirs in ("created_at", "valid_at", "invalid_at", "expired_at"):
        put[theirs] = _moment(put[theirs.removesuffix("_at")])
    return put


def _moment(instant: Instant | None) -> datetime | None:
    return None if instant is None else times.to_datetime(instant)
