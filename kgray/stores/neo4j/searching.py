"""What a search asks of the server: cosine, exact in every score, and BM25, as Lucene computes it.

A small group's vectors are all compared. In a larger one the server's vector index (HNSW, Malkov and Yashunin
2016, on quantised vectors) finds candidates, which are scored exactly. A current release filters by group
inside the index. 5.26 cannot: there more and more of the nearest of all groups are fetched, until enough are
of this group; if the group is a tiny part of the database, all its vectors are compared instead.

Each indexed word carries its group's mark, and so does each word of a query: the index itself keeps groups
apart. Frequent words are not left out as they are on SQLite: Lucene skips rows that cannot reach the top
(block-max WAND), and does not report frequencies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kgray.kinds import SearchScope
from kgray.records import Place
from kgray.stores.neo4j import statements_by_hand as cypher
from kgray.stores.neo4j.connection import Connection, Fetched, Running
from kgray.stores.neo4j.mapping import mark
from kgray.words import query_words, term

# Vectors of a group that are compared one by one: 75 ms for 1,000 of 1024 dimensions; by the index 30 ms.
EXACT_ROWS = 1_000
# Candidates that are re-scored. With 20,000 vectors in 1,000 clusters they hold all of the true 20 best
# (50: 0.99, 20: 0.90 on 5.26), and cost 5 ms more than 20.
CANDIDATES = 200
CANDIDATES_A_HIT = 10
_MORE = (2, 8)  # at least and at most times as many, where too few were of the group
_MOST_CANDIDATES = 15_000  # of all groups: 0.2 s
# Of candidates from all groups, twice as many as asked for must be of the group: the index orders by rounded
# vectors, so what it ranks just below the cut may be nearer than what is just above.
_SPARE = 2


class NearestVectors:
    """`Store.nearest` on one connection; holds nothing in memory."""

    def __init__(self, db: Connection, *, filters: bool, exact_rows: int = EXACT_ROWS) -> None:
        """Use a connection; filters: indexes filter by group; exact_rows: up to so many, compare all."""
        self._db, self._filters, self._exact_rows = db, filters, exact_rows

    def find(
        self, named: Mapping[str, Any], scope: SearchScope, vector: list[float], limit: int
    ) -> list[tuple[str | int, float]]:
        """Return (owner, cosine), best first, each owner once by its best vector; ties by age.

        named: the group, as `statements.OPEN` takes it.
        """

        def work(running: Running) -> list[Fetched]:
            return self._found(running, named, scope, vector, limit)

        # The server gives (1 + cosine) / 2.
        return [(owner, min(1.0, max(-1.0, 2 * score - 1))) for owner, score in self._db.read(work)]

    def _found(
        self,
        running: Running,
        named: Mapping[str, Any],
        scope: SearchScope,
        vector: list[float],
        limit: int,
    ) -> list[Fetched]:
        found = self._db.run(running, cypher.COUNT_VECTORS[scope], **named, bound=self._exact_rows + 1)
        count = found[0][0] if found else 0
        if count == 0:
            return []
        take = max(CANDIDATES, CANDIDATES_A_HIT * limit)
        statement = (cypher.NEAREST_INSIDE if self._filters else cypher.NEAREST_AMONG_ALL)[scope]
        wanted = limit if self._filters else _SPARE * limit
        while count > self._exact_rows and take <= _MOST_CANDIDATES:
            found = self._db.run(running, statement, group=named["group"], vector=vector, take=take)
            best = _each_once(found)
            if len(best) >= wanted:
                return best[:limit]
            least, most = _MORE
            take *= min(most, max(least, -(-2 * wanted // max(1, len(best)))))
        return self._db.run(running, cypher.NEAREST_EXACT[scope], **named, vector=vector, limit=limit)


def _each_once(found: list[Fetched]) -> list[Fetched]:
    """Return the first row of each owner."""
    seen: dict[str | int, Fetched] = {}
    for row in found:
        seen.setdefault(row[0], row)
    return list(seen.values())


# Ties are by age only among this many rows: with more of one score, the oldest may be missed.
_MOST_ROWS = 10_000


def find_words(
    db: Connection, named: Mapping[str, Any], scope: SearchScope, query: str, limit: int
) -> list[str | Place]:
    """Return what has any of the query's words, best first, ties by age; see `ports.Store.lexical`.

    named: the group, as `statements.OPEN` takes it.
    """
    asked = _query(named["group"], query)
    if not asked:
        return []
    best: list[Any] = []
    for take in (2 * limit + 10, _MOST_ROWS):  # twice: an entity has a row for each of its surfaces
        found = db.row(cypher.LEXICAL[scope], **named, query=asked, take=take, limit=limit)
        best, rows_taken, lowest = found or ([], 0, None)
        # Where the index's answer was cut off, older rows with the lowest score may be missing.
        if rows_taken < take or (len(best) == limit and best[-1][0] > lowest):
            break
    return [tuple(found) if isinstance(found, list) else found for _, found in best]


def _query(group: str, text: str) -> str:
    """Return the query in Lucene's language: quoted terms joined by OR; "" where no word is left.

    The terms hold letters, digits and the group's mark only (words.py), so no quote can close them.
    """
    return " OR ".join([f'"{term(word, mark(group))}"' for word in query_words(text)])
