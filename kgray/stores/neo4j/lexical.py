"""BM25 over evidence, names and episodes, as Lucene computes it.

Each indexed word bears its group's mark, and so does each word of a query: the index itself keeps
groups apart. Frequent words are not left out as they are on SQLite: Lucene skips what cannot reach
the best (block-max WAND), and tells no frequencies.
"""

from __future__ import annotations

from kgray.ports import SearchScope
from kgray.records import Place
from kgray.stores.neo4j import queries as cypher
from kgray.stores.neo4j import rows
from kgray.stores.neo4j.connection import Connection, Row
from kgray.stores.words import query_words, term

# Of more rows with one and the same score the oldest are not looked for.
_MOST_ROWS = 10_000


def find_words(db: Connection, group: str, scope: SearchScope, query: str, limit: int) -> list[str | Place]:
    """Return what bears any of the query's words, best first, ties by age; see `ports.Store.lexical`."""
    asked = _query(group, query)
    if not asked:
        return []
    take = 2 * limit + 10  # an entity has a row for each of its surfaces
    while True:
        found = db.rows(cypher.FIND_WORDS[scope], query=asked, group=group, take=take)
        found.sort(key=lambda row: (-row[0], row[2]))
        whole = len(found) < take
        # More of those with the lowest score may be behind, older ones among them.
        sure = found if whole else [row for row in found if row[0] > found[-1][0]]
        best = _each_once(sure)
        if whole or len(best) >= limit:
            return best[:limit]
        if take >= _MOST_ROWS:
            return _each_once(found)[:limit]
        take *= 4


def _query(group: str, text: str) -> str:
    """Return the query in Lucene's language: quoted terms joined by OR; "" where no word is left.

    The terms hold letters, digits and the group's mark only (words.py), so no quote can close them.
    """
    mark = rows.mark(group)
    return " OR ".join([f'"{term(word, mark)}"' for word in query_words(text)])


def _each_once(found: list[Row]) -> list[str | Place]:
    """Return what the rows found; lists are places."""
    return list(dict.fromkeys(tuple(row[1]) if isinstance(row[1], list) else row[1] for row in found))
