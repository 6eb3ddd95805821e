"""The stored derived graph of one group, as known now."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kgray.graph import Entity, Fact
from kgray.records import Episode, Place
from kgray.stores.sqlite import rows
from kgray.stores.sqlite import statements as sql
from kgray.stores.sqlite.database import Database, Row, key_of
from kgray.times import Instant


class StoredView:
    """`ports.GraphView` by indexed look-ups; each call sees the snapshot around it, or the newest."""

    def __init__(self, db: Database, group: str) -> None:
        """Nothing is read here: a group may appear later."""
        self._db = db
        self.group = group

    def facts_of(self, statements: Sequence[str], as_of: Instant | None) -> list[Fact]:
        """Return the facts of what these recorded statements show as, in the order asked, then by start."""
        return self._facts(sql.FACTS_OF, rows.array(dict.fromkeys(statements)), as_of)

    def facts_of_evidence(self, places: Sequence[Place], as_of: Instant | None) -> list[Fact]:
        """Return the facts of the statements that these pieces of evidence speak of, in the order asked."""
        return self._facts(sql.FACTS_OF_EVIDENCE, rows.array(dict.fromkeys(places)), as_of)

    def facts_at(self, entities: Sequence[str], as_of: Instant | None, limit: int | None) -> list[Fact]:
        """Return facts whose subject or object is one of these, newest first, then by id."""
        no = self._db.number(self.group)
        if no is None:
            return []
        with self._db.snapshot():
            asked = rows.array(dict.fromkeys(entities))
            shown = [entity for (entity,) in self._db.rows(sql.SHOWN_IDS, (no, asked))]
            take = -1 if limit is None else limit
            newest: set[tuple[Instant, str]] = set()
            for entity in shown:
                for statement in (sql.FACTS_FROM, sql.FACTS_TO):
                    found = self._db.rows(statement, (no, entity, as_of, take))
                    newest.update((-created_at, id_) for created_at, id_ in found)
            return self.facts([id_ for _, id_ in sorted(newest)[:limit]])

    def facts(self, ids: Sequence[str]) -> list[Fact]:
        """Return the facts with these ids, in the order asked."""
        no = self._db.number(self.group)
        if no is None or not ids:
            return []
        found = self._db.rows(sql.FACTS, (no, rows.array(dict.fromkeys(ids))))
        return [rows.fact(row) for row in found]

    def entities(self, recorded: Sequence[str]) -> list[Entity]:
        """Return the entities that these recorded ids show as, in the order asked, each once."""
        no = self._db.number(self.group)
        if no is None or not recorded:
            return []
        found = self._db.rows(sql.SHOWN, (no, rows.array(dict.fromkeys(recorded))))
        return [rows.entity(row) for row in _first(found)]

    def episodes(self, sequences: Sequence[int]) -> list[Episode]:
        """Return the committed, live episodes with these sequences, in the order asked."""
        no = self._db.number(self.group)
        if no is None or not sequences:
            return []
        keys = [key_of(no, sequence) for sequence in dict.fromkeys(sequences)]
        found = self._db.rows(sql.EPISODES_SHOWN, (no, rows.array(keys)))
        return [rows.episode(self.group, row) for row in found]

    def supporters(self, ids: Sequence[str]) -> dict[str, str | None]:
        """Return episode id -> client id."""
        no = self._db.number(self.group)
        if no is None or not ids:
            return {}
        found = self._db.rows(sql.SUPPORTERS, (no, rows.array(dict.fromkeys(ids))))
        return {row[0]: row[1] for row in found}

    def _facts(self, statement: str, asked: str, as_of: Instant | None) -> list[Fact]:
        no = self._db.number(self.group)
        if no is None or asked == "[]":
            return []
        found = self._db.rows(statement, (no, asked, as_of))
        return [rows.fact(row) for row in _first(found)]


def _first(found: Iterable[Row]) -> list[Row]:
    """Keep the first row of each id, the first column."""
    seen: dict[str, Row] = {}
    for row in found:
        seen.setdefault(row[0], row)
    return list(seen.values())
