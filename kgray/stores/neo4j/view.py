"""The stored derived graph of one group, as known now."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kgray.graph import Entity, Fact
from kgray.records import Episode, Place
from kgray.stores.neo4j import queries as cypher
from kgray.stores.neo4j import rows
from kgray.stores.neo4j.connection import Connection, Row
from kgray.times import Instant

_NO_LIMIT = (1 << 31) - 1


class StoredView:
    """`ports.GraphView` by indexed look-ups; each call reads what is committed then."""

    def __init__(self, db: Connection, group: str) -> None:
        """Nothing is read here: a group may appear later."""
        self._db = db
        self.group = group

    def facts_of(self, statements: Sequence[str], as_of: Instant | None) -> list[Fact]:
        """Return the facts of what these recorded statements show as, in the order asked, then by start."""
        return self._facts(cypher.FACTS_OF, _storable(statements), as_of=as_of)

    def facts_of_evidence(self, places: Sequence[Place], as_of: Instant | None) -> list[Fact]:
        """Return the facts of the statements that these pieces of evidence speak of, in the order asked."""
        asked = [list(place) for place in dict.fromkeys(places)]
        return self._facts(cypher.FACTS_OF_EVIDENCE, asked, as_of=as_of)

    def facts_at(self, entities: Sequence[str], as_of: Instant | None, limit: int | None) -> list[Fact]:
        """Return facts whose subject or object is one of these, newest first, then by id."""
        asked = _storable(entities)
        if not asked or limit == 0:
            return []
        with self._db.reading():
            shown = [entity for (entity,) in self._db.rows(cypher.SHOWN_IDS, group=self.group, asked=asked)]
            take = _NO_LIMIT if limit is None else limit
            found = self._db.rows(
                cypher.FACTS_AT, group=self.group, asked=shown, as_of=as_of, limit=take
            )  # fmt: skip
        return [rows.fact(row) for row in found]

    def facts(self, ids: Sequence[str]) -> list[Fact]:
        """Return the facts with these ids, in the order asked."""
        return self._facts(cypher.FACTS, _storable(ids))

    def entities(self, recorded: Sequence[str]) -> list[Entity]:
        """Return the entities that these recorded ids show as, in the order asked, each once."""
        asked = _storable(recorded)
        if not asked:
            return []
        found = self._db.rows(cypher.SHOWN, group=self.group, asked=asked)
        return [rows.entity(row) for row in _first(found)]

    def episodes(self, sequences: Sequence[int]) -> list[Episode]:
        """Return the committed, live episodes with these sequences, in the order asked."""
        asked = list(dict.fromkeys(sequences))
        if not asked:
            return []
        found = self._db.rows(cypher.EPISODES_SHOWN, group=self.group, asked=asked)
        return [rows.episode(self.group, row[1:]) for row in found]

    def supporters(self, ids: Sequence[str]) -> dict[str, str | None]:
        """Return episode id -> client id."""
        asked = _storable(ids)
        if not asked:
            return {}
        found = self._db.rows(cypher.SUPPORTERS, group=self.group, asked=asked)
        return {row[0]: row[1] for row in found}

    def _facts(self, statement: str, asked: list[Any], **values: Instant | None) -> list[Fact]:
        """Return the facts of rows (place, fact): by place, start and id, each once."""
        if not asked:
            return []
        found = self._db.rows(statement, group=self.group, asked=asked, **values)
        # 1: the id, 11: the start, of which none is first.
        found.sort(key=lambda row: (row[0], row[11] is not None, row[11] or 0, row[1]))
        return [rows.fact(row) for row in _first(found)]


def _storable(ids: Iterable[str]) -> list[str]:
    """Return the ids that a store can hold, each once."""
    return [id_ for id_ in dict.fromkeys(ids) if rows.is_text(id_)]


def _first(found: Iterable[Row]) -> list[Row]:
    """Return the rows without their place, the first of each id."""
    seen: dict[str, Row] = {}
    for row in found:
        seen.setdefault(row[1], row[1:])
    return list(seen.values())
