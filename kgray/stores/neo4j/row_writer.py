"""Writing collected rows to the database: 10 to 20 statements, however many rows there are.

Each statement costs a round trip, and each transaction a commit of the full-text indexes; so the changes of
many episodes share both. Entities are put before the facts between them, and dropped after them. An episode
is retired (a patch) before another with its id is put as the live one. Rows are sent in the order of their
keys, so that all transactions lock in one order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kgray import kinds
from kgray.errors import StoreError
from kgray.kinds import Kind
from kgray.stores.neo4j import statements, values
from kgray.stores.neo4j import statements_by_hand as cypher
from kgray.stores.neo4j.batch import FoldedBatch, PutRow, RowName
from kgray.stores.neo4j.connection import Connection, Record, Running
from kgray.stores.neo4j.mapping import digest, place_of
from kgray.stores.neo4j.values import MAX_ROWS, Values, portions


class BatchWriter:
    """Writes collected rows in one transaction."""

    def __init__(self, db: Connection, running: Running, dimensions: int) -> None:
        """dimensions: numbers a vector."""
        self._db, self._running, self._dimensions = db, running, dimensions

    def write(self, found: FoldedBatch, *, complete: bool = True) -> None:
        """Write everything; nothing is sent where there is nothing to write.

        complete    False: more rows of the same entries follow (a copy, adoption.py), which then
                    embeds the names of entities and links episodes itself
        """
        for kind in reversed(kinds.KINDS):
            if kind not in (kinds.ENTITIES, kinds.FACTS):
                self._send(statements.DROP[kind], _named(kind, found.drops[kind]))
        self._patch(found)
        self._put_rows(found)
        renamed = self._put_entities(found)
        if complete:
            self.embed_names(renamed)
        self._change_facts(found)
        self._send(cypher.DROP_ENTITIES, _named(kinds.ENTITIES, found.drops[kinds.ENTITIES]))
        if complete:
            self._link(found)

    def _send(self, statement: str, rows: Iterable[Values]) -> list[Record]:
        return [
            row for portion in portions(rows) for row in self._db.run(self._running, statement, rows=portion)
        ]

    def _patch(self, found: FoldedBatch) -> None:
        for kind, statement in statements.PATCH.items():
            ordered = sorted(found.patches[kind].items(), key=_by_name)
            rows = [values.patch_values(kind, group, key, new) for (group, key), new in ordered]
            self._send(statement, rows)
            if kind is kinds.EPISODES:
                retired = [name for name, new in ordered if new.get("retired_at") is not None]
                self._send(cypher.HIDE_EPISODES, _named(kind, retired))

    def _put_rows(self, found: FoldedBatch) -> None:
        lists = {
            kind.name: [values.row_values(kind, group, put.row) for group, put in _ordered(found, kind)]
            for kind in statements.PLAIN
        }
        for start in range(0, max(map(len, lists.values())), MAX_ROWS):
            portion = {name: rows[start : start + MAX_ROWS] for name, rows in lists.items()}
            self._db.run(self._running, statements.PUT_PLAIN, **portion)
        self._send(
            cypher.PUT_EPISODES,
            (
                values.episode_values(group, put.row, put.facts)
                for group, put in _ordered(found, kinds.EPISODES)
            ),
        )
        for kind in statements.VECTORS:
            replaced = self._send(
                statements.PUT_VECTORS[kind],
                (
                    values.vector_values(kind, group, put, dimensions=self._dimensions)
                    for group, put in _ordered(found, kind)
                ),
            )
            if kind is kinds.STATEMENT_VECTORS:
                self._renew(replaced)

    def _renew(self, statements_of: Iterable[Record]) -> None:
        """Give the facts of these statements, (group, id), the statements' vectors."""
        named = ({"group_id": group, "id": id_} for group, id_ in statements_of)
        self._send(cypher.RENEW_FACT_VECTORS, named)

    # ------------------------------------------------------------- what Graphiti's readers see

    def _put_entities(self, found: FoldedBatch) -> list[Values]:
        """Put entities; return (group_id, uuid, digest of the name) of those whose name is new."""
        puts = found.puts[kinds.ENTITIES]
        renamed = self._send(
            cypher.PUT_ENTITIES,
            (values.entity_values(group, put.row, put.at) for group, put in _ordered(found, kinds.ENTITIES)),
        )
        return [
            {"group_id": group, "uuid": id_, "surface_key": digest(puts[group, (id_,)].row[1])}
            for group, id_ in renamed
        ]

    def embed_names(self, entities: Iterable[Values]) -> None:
        """Give these entities the vector of their name."""
        self._send(cypher.NAME_ENTITIES, entities)

    def _change_facts(self, found: FoldedBatch) -> None:
        gone, puts = found.drops[kinds.FACTS], found.puts[kinds.FACTS]
        both: dict[RowName, PutRow | None] = {**dict.fromkeys(gone), **puts}
        rows = {
            (group, key): values.fact_values(group, key[0], None if put is None else put.row)
            for (group, key), put in sorted(both.items(), key=_by_name)
        }
        kept = {
            (group, (id_,)): moved for group, id_, moved in self._send(cypher.CHANGE_FACTS, rows.values())
        }
        new = [row for name, row in rows.items() if name in puts and name not in kept]
        for statement, made in (
            (cypher.NEW_FACTS, [row for row in new if row["put"]["target"] is not None]),
            (cypher.NEW_VALUE_FACTS, [row for row in new if row["put"]["target"] is None]),
        ):
            self._check_ends(made, {row[0] for row in self._send(statement, made)})
        moved = {(name[0], rows[name]["put"]["statement"]) for name, moved in kept.items() if moved}
        self._renew(sorted(map(list, moved)))

    def _check_ends(self, asked: list[Values], made: set[str]) -> None:
        if lost := [row for row in asked if row["uuid"] not in made]:
            ends = sorted({str(row[end]) for row in lost for end in ("source", "end")})
            raise StoreError(
                f"{len(lost)} of {len(asked)} facts end at an entity that is not stored "
                f"({', '.join(ends[:4])}): nothing was changed"
            )

    def _link(self, found: FoldedBatch) -> None:
        """Rebuild the edges of episodes that were committed, and of those whose entities moved."""
        committed = {
            (group, key): {"group_id": group, "sequence": key[0]}
            for (group, key), put in found.puts[kinds.EPISODES].items()
            if put.row[place_of(kinds.EPISODES, "state")] == kinds.COMMITTED
        }
        shown = {*found.puts[kinds.SHOWN_ENTITIES], *found.drops[kinds.SHOWN_ENTITIES]}
        moved = {(group, key[0]) for group, key in shown} - {
            (group, key[0]) for group, key in found.puts[kinds.BIRTHS]
        }
        again = {
            (group, (sequence,)): {"group_id": group, "sequence": sequence}
            for group, sequence in self._send(
                cypher.MENTIONED_IN, ({"group_id": group, "id": id_} for group, id_ in sorted(moved))
            )
        }
        self.link({name: row for name, row in again.items() if name not in committed}, committed)

    def link(self, again: Mapping[RowName, Values], new: Mapping[RowName, Values]) -> None:
        """Make the edges of episodes to what they mention; again: episodes whose edges are replaced."""
        self._send(cypher.DROP_LINKS, (again[name] for name in sorted(again)))
        both = {**again, **new}
        self._send(cypher.LINK_MENTIONS, (both[name] for name in sorted(both)))

    def know_facts(self, episodes: Iterable[Values]) -> None:
        """Set the ids of their facts on episodes (Graphiti's `entity_edges`)."""
        self._send(cypher.KNOW_FACTS, episodes)


def _named(kind: Kind, names: Iterable[RowName]) -> list[Values]:
    return [values.key_values(kind, group, key) for group, key in sorted(names)]


def _ordered(found: FoldedBatch, kind: Kind) -> list[tuple[str, PutRow]]:
    return [(group, put) for (group, _), put in sorted(found.puts[kind].items(), key=_by_name)]


def _by_name(item: tuple[RowName, Any]) -> RowName:
    return item[0]
