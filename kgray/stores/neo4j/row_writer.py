"""Writes a batch of rows, of many entries together: 10 to 20 statements, each a round trip.

In the order drops, patches, puts. Entities are put before the facts between them, and dropped after them. An
episode is retired (a patch) before another with its id is put as the live one. Rows are sent in the order of
their keys, so that all transactions lock in one order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from functools import partial
from typing import Any

from kgray import kinds, times
from kgray.errors import Unwritable
from kgray.kinds import COMMITTED, Key, Kind, Read, Row
from kgray.stores.alike import FoldedBatch, States, Transaction
from kgray.stores.neo4j import groups as grouped
from kgray.stores.neo4j import statements
from kgray.stores.neo4j import statements_by_hand as cypher
from kgray.stores.neo4j.connection import MAX_ROWS, PLANNED_ONCE, Connection, Fetched, Running, Values
from kgray.stores.neo4j.groups import LockedGroup
from kgray.stores.neo4j.mapping import STORED, group_key, named_group
from kgray.stores.neo4j.statements import read_rows

STATE = kinds.EPISODES.names.index("state")


class BatchWriter(Transaction[LockedGroup]):
    """An open transaction, of which the groups are locked."""

    def __init__(
        self, db: Connection, running: Running, dimensions: int, groups: Mapping[str, LockedGroup]
    ) -> None:
        super().__init__(groups)
        self._db, self._running, self._dimensions = db, running, dimensions

    def rows(self, read: Read, group: str, values: Sequence[Any] = ()) -> list[Row]:
        return list(read_rows(partial(self._db.run, self._running), read, named_group(group), values))

    def states(self, entries: Sequence[Entry]) -> States:
        found: States = {}
        rows = ({**asked, "group_key": group_key(str(asked["group_id"]))} for asked in _entries(entries))
        for group, sequence, *states in self._db.run_rows(self._running, cypher.STATES, rows):
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

    def write(self, found: FoldedBatch, *, complete: bool = True) -> None:
        """Write everything. complete: False = more rows of the same entries follow (a copy), then `link`."""
        for kind in reversed(kinds.KINDS):
            if kind not in (kinds.ENTITIES, kinds.FACTS):
                self._send(statements.DROP[kind], _named(kind, found.drops[kind]))
        for kind, stored in STORED.items():
            if patches := sorted(found.patches[kind].items()):
                self._send(statements.PATCH[kind], (
                    stored.key_values(*name) | {"put": {stored.property_of(c): v for c, v in new.items()}}
                    for name, new in patches
                ))  # fmt: skip
        lists = {kind.name: self._values(found, kind) for kind in statements.PLAIN}
        for start in range(0, max(map(len, lists.values())), MAX_ROWS):
            portion = {name: rows[start : start + MAX_ROWS] for name, rows in lists.items()}
            self._db.run(self._running, PLANNED_ONCE + statements.PUT_PLAIN, rows=portion)
        self._send(cypher.PUT_EPISODES, map(_seen_episode, self._values(found, kinds.EPISODES)))
        self._send(cypher.PUT_ENTITIES, self._values(found, kinds.ENTITIES))
        self._change_facts(found)
        self._send(cypher.DROP_ENTITIES, _named(kinds.ENTITIES, found.drops[kinds.ENTITIES]))
        if not complete:
            return
        # The edges of episodes that were committed, and of those whose entities moved.
        put = found.puts[kinds.EPISODES].items()
        committed = {(group, row[0]) for (group, _), row in put if row[STATE] == COMMITTED}
        shown = {*found.puts[kinds.SHOWN_ENTITIES], *found.drops[kinds.SHOWN_ENTITIES]}
        born = {(group, id_) for group, (id_,) in found.puts[kinds.BIRTHS]}
        moved = {(group, key[0]) for group, key in shown} - born
        asked = ({"group_id": group, "id": id_} for group, id_ in sorted(moved))
        again = {(group, sequence) for group, sequence in self._send(cypher.MENTIONED_IN, asked)}
        self.link(again | committed, new=committed)

    def _send(self, statement: str, rows: Iterable[Values]) -> list[Fetched]:
        return self._db.run_rows(self._running, statement, rows)

    def _values(self, found: FoldedBatch, kind: Kind) -> list[Values]:
        ordered = sorted(found.puts[kind].items())  # names differ, so nothing else is compared
        return [STORED[kind].row_values(group, row, self._dimensions) for (group, _), row in ordered]

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
    return [STORED[kind].key_values(*name) for name in sorted(names)]


def _seen_episode(put: Values) -> Values:
    if put["state"] != COMMITTED:
        return put
    return put | {
        "name": put["client_id"] or put["uuid"],
        "source": "json" if put["kind"] == "triples" else put["kind"],  # kgray's own kind stands beside it
        "valid_at": times.to_datetime(put["said"]),
        "created_at": None if put["ended_at"] is None else times.to_datetime(put["ended_at"]),
        "entity_edges": [],
    }


def _seen_fact(put: Values) -> Values:
    for theirs in ("created_at", "valid_at", "invalid_at", "expired_at"):
        instant = put[theirs.removesuffix("_at")]
        put[theirs] = None if instant is None else times.to_datetime(instant)
    return put
