"""Collected rows to the database, statement by statement, in an order that suits the graph.

Entities stand before the facts between them, facts go before their entities, and an episode loses
its place as the live one before another with its id takes it.
"""

from __future__ import annotations

from collections.abc import Iterable

from kgray.errors import StoreError
from kgray.stores.neo4j import rows
from kgray.stores.neo4j import statements as log
from kgray.stores.neo4j import statements_commit as cypher
from kgray.stores.neo4j.collecting import Collected, Key, fact_rows
from kgray.stores.neo4j.connection import Connection, Row, Running
from kgray.stores.neo4j.groups import Group
from kgray.stores.neo4j.rows import Values, digest, portions

_RECORDS = ("extractions", "answers", "births", "mentions", "evidence", "rulings", "verdicts")


class Carrying:
    """One transaction that takes what was collected."""

    def __init__(self, db: Connection, running: Running, groups: dict[str, Group]) -> None:
        """Keep what the statements need."""
        self._db, self._running, self._groups = db, running, groups

    def carry(self, collected: Collected) -> None:
        """Write everything; nothing is sent where there is nothing to write."""
        self._record(collected)
        self._put_vectors(collected)
        self._derive(collected)
        self._end(collected)
        self._link(collected)

    def _send(self, statement: str, values: Iterable[Values]) -> list[Row]:
        return [
            row
            for portion in portions(values)
            for row in self._db.run(self._running, statement, rows=portion)
        ]

    def _record(self, collected: Collected) -> None:
        lists = {name: _sorted(getattr(collected, name)) for name in _RECORDS}
        for start in range(0, max(map(len, lists.values())), rows.MAX_ROWS):
            portion = {name: found[start : start + rows.MAX_ROWS] for name, found in lists.items()}
            self._db.run(self._running, cypher.RECORD, **portion)
        self._send(cypher.USE_ANSWERS, _sorted(collected.uses))
        self._send(cypher.USE_NAMES, _sorted(collected.names))

    def _put_vectors(self, collected: Collected) -> None:
        names = self._send(cypher.PUT_NAME_VECTORS, _sorted(collected.name_vectors))
        statements = self._send(cypher.PUT_STATEMENT_VECTORS, _sorted(collected.statement_vectors))
        episodes = self._send(cypher.PUT_EPISODE_VECTORS, _sorted(collected.episode_vectors))
        for group in {row[0] for row in (*names, *statements, *episodes)}:
            self._groups[group].removals += 1
        self._renew(statements)

    def _renew(self, statements: Iterable[Row]) -> None:
        self._send(cypher.RENEW_FACT_VECTORS, ({"group_id": row[0], "id": row[1]} for row in statements))

    def _derive(self, collected: Collected) -> None:
        put, gone = [], []
        for (group, id_), entry in sorted(collected.entities.items()):
            row = {"group_id": group, "uuid": id_}
            if entry is None:
                gone.append(row)
            else:
                put.append(row | {"at": rows.moment(entry[1]), "put": rows.entity_row(group, entry[0])})
        renamed = self._send(cypher.PUT_ENTITIES, put)
        shown = [
            ({"group_id": group, "id": id_}, ids) for (group, id_), ids in sorted(collected.shown.items())
        ]
        self._send(cypher.DROP_SHOWN, (row for row, _ in shown))
        self._send(
            cypher.PUT_SHOWN, (row | {"shown": as_id} for row, ids in shown for as_id in dict.fromkeys(ids))
        )
        names = {(row["group_id"], row["uuid"]): digest(row["put"]["name"]) for row in put}
        self._send(
            cypher.NAME_ENTITIES,
            ({"group_id": group, "uuid": id_, "digest": names[group, id_]} for group, id_ in renamed),
        )
        self._put_facts(collected)
        self._send(cypher.DROP_ENTITIES, gone)
        self._send(cypher.SHOW_EVIDENCE, _sorted(collected.shown_evidence))

    def _put_facts(self, collected: Collected) -> None:
        changed, _, _ = fact_rows(collected.facts, ())
        found = self._send(cypher.CHANGE_FACTS, changed)
        kept: dict[Key, bool] = {(group, id_): moved for group, id_, moved in found}
        _, new, new_values = fact_rows(collected.facts, kept)
        for statement, values in ((cypher.NEW_FACTS, new), (cypher.NEW_VALUE_FACTS, new_values)):
            made = {row[0] for row in self._send(statement, values)}
            if lost := [row for row in values if row["uuid"] not in made]:
                ends = sorted({str(row[end]) for row in lost for end in ("source", "end")})
                raise StoreError(
                    f"{len(lost)} of {len(values)} facts end at an entity that is not stored "
                    f"({', '.join(ends[:4])}): nothing was changed"
                )
        moved = {(group, collected.facts[group, id_]) for (group, id_), moved in kept.items() if moved}
        self._renew(sorted([group, fact.statement] for group, fact in moved if fact is not None))

    def _end(self, collected: Collected) -> None:
        self._send(cypher.EXTRACT_EPISODES, _sorted(collected.extracted))
        self._send(cypher.FAIL_EPISODES, _sorted(collected.failed))
        self._send(log.RETIRE_EPISODES, _sorted(collected.retired))
        self._send(cypher.COMMIT_EPISODES, _sorted(collected.committed))
        self._send(cypher.END_OPERATIONS, _sorted(collected.operations))

    def _link(self, collected: Collected) -> None:
        """Make anew the edges of the episodes that were committed, and of those whose entities moved."""
        moved = [
            {"group_id": group, "id": id_}
            for group, id_ in sorted(collected.shown)
            if (group, id_) not in collected.births
        ]
        linked: dict[Key, Values] = dict(collected.linked)
        again = {
            (group, sequence): {"group_id": group, "sequence": sequence}
            for group, sequence in self._send(cypher.MENTIONED_IN, moved)
            if (group, sequence) not in linked
        }
        self._send(cypher.DROP_LINKS, _sorted(again))
        self._send(cypher.LINK_MENTIONS, _sorted(linked | again))


def _sorted(found: dict[Key, Values]) -> list[Values]:
    """Return the rows by key: one order of locks for all."""
    return [found[key] for key in sorted(found)]
