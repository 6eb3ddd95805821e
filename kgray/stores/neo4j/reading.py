"""Reading: the derived graph of a group, the two searches, and look-ups by id, name and source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Literal

from kgray.graph import Entity
from kgray.ports import GraphView, SearchScope, Vector
from kgray.records import Episode, Place
from kgray.stores.neo4j import queries as cypher
from kgray.stores.neo4j import rows
from kgray.stores.neo4j.connection import Connection
from kgray.stores.neo4j.lexical import find_words
from kgray.stores.neo4j.nearest import NearestVectors
from kgray.stores.neo4j.view import StoredView
from kgray.stores.words import folded
from kgray.times import Instant

Found = list[tuple[Literal["episode", "entity", "statement", "fact"], str]]
_PAGE_ROWS = 500  # rows a step of an iterator


class ReadingFace:
    """Reads; each sees what is committed when it runs, see `Connection.reading`."""

    _db: Connection
    _nearest: NearestVectors

    def reading(self) -> AbstractContextManager[None]:
        """Hold one transaction for the reads inside it; nests."""
        return self._db.reading()

    # ------------------------------------------------------------------------------- search

    def view(self, group: str) -> GraphView:
        """Return the graph as known now."""
        return StoredView(self._db, group)

    def lexical(self, group: str, scope: SearchScope, query: str, limit: int) -> list[str | Place]:
        """Return what BM25 finds, best first, ties by age; see `ports.Store`."""
        return find_words(self._db, group, scope, query, limit) if limit > 0 else []

    def nearest(self, group: str, scope: SearchScope, vector: Vector, limit: int) -> list[tuple[str, float]]:
        """Return (id, cosine), best first, ties by insertion; see `ports.Store` and nearest.py."""
        return self._nearest.find(group, scope, vector, limit) if limit > 0 else []

    # ------------------------------------------------------------------------------ look-ups

    def find(self, group: str, identifier: str) -> Found:
        """Return what bears this id; live episodes (by either id) as their sequence."""
        if not rows.is_text(identifier):
            return []
        with self._db.reading():
            live = self._db.rows(cypher.LIVE_EPISODES, group=group, id=identifier)
            ((entity, statement, fact),) = self._db.rows(cypher.BEARERS, group=group, id=identifier)
        found: Found = [("episode", str(sequence)) for (sequence,) in live]
        if entity:
            found.append(("entity", identifier))
        if statement:
            found.append(("statement", identifier))
        if fact:
            found.append(("fact", identifier))
        return found

    def entities_named(self, group: str, name: str) -> list[Entity]:
        """Return the shown entities with this name or alias, case and spacing aside, oldest first."""
        if not rows.is_text(name):
            return []
        wanted = folded(name)
        found = self._db.rows(cypher.ENTITIES_CALLED, group=group, folded=rows.digest(wanted))
        shown = [rows.entity(row) for row in found]
        return [item for item in shown if wanted in map(folded, (item.name, *item.aliases))]

    def episode_rows(self, group: str, known_at: Instant | None = None) -> Iterator[Episode]:
        """Yield the episodes of the dump, by sequence; see `ports.Store`."""
        after = 0
        while page := self._db.rows(
            cypher.EPISODES_ENDED, group=group, after=after, known_at=known_at, limit=_PAGE_ROWS
        ):
            for row in page:
                yield rows.episode(group, row)
            after = page[-1][0]

    def sequences(
        self, group: str, *, ids: Sequence[str] = (), source: str | None = None, everything: bool = False
    ) -> list[int]:
        """Return the sequences of the rows an operation names, sorted; retired ones and all states included.

        Rows accepted after the operation are named too: the caller leaves out greater sequences.
        """
        found: set[int] = set()
        asked = [id_ for id_ in dict.fromkeys(ids) if rows.is_text(id_)]
        with self._db.reading():
            if asked:
                found.update(n for (n,) in self._db.rows(cypher.SEQUENCES_OF_IDS, group=group, ids=asked))
            if source is not None and rows.is_text(source):
                of_source = self._db.rows(cypher.SEQUENCES_OF_SOURCE, group=group, source=source)
                found.update(n for (n,) in of_source)
            if everything:
                found.update(n for (n,) in self._db.rows(cypher.SEQUENCES_ALL, group=group))
        return sorted(found)

    def surfaces(self, group: str, without: Sequence[int]) -> list[str]:
        """Return the surfaces of all stored mentions but those of these sequences, oldest first."""
        left_out = sorted(set(without))
        return [surface for (surface,) in self._db.rows(cypher.SURFACES, group=group, without=left_out)]
