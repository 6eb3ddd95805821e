"""BM25 over evidence, names and episodes, as Lucene computes it.

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
from kgray.stores.neo4j.connection import Connection
from kgray.stores.neo4j.mapping import mark
from kgray.stores.words import query_words, term

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
