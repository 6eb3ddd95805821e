"""BM25 (Robertson and Zaragoza 2009, as FTS5 computes it) over evidence, names and episodes."""

from __future__ import annotations

from kgray.kinds import SearchScope
from kgray.records import Place
from kgray.stores.sqlite import statements as sql
from kgray.stores.sqlite.database import Database, keys_of
from kgray.stores.sqlite.schema import MASK
from kgray.stores.words import query_words, term

# A word that more than this share of a group's rows bear is left out of a query while others
# remain: it costs 30 times as much (67 ms against 2 ms at 200,000 rows) and ranks next to nothing.
_FREQUENT_SHARE = 0.05
_FREQUENT_FROM_ROWS = 1_000


def find_words(db: Database, no: int, scope: SearchScope, query: str, limit: int) -> list[str | Place]:
    """Return what has any of the query's words, best first; see `ports.Store.lexical`."""
    index = sql.WORDS[scope]
    asked = _match(db, no, index, query)
    if not asked:
        return []
    first, last = keys_of(no)
    if scope == "fact":
        return [(sequence, ordinal) for sequence, ordinal in db.rows(index.find, (asked, first, last, limit))]
    if scope == "episode":
        return [(key & MASK, 0) for (key,) in db.rows(index.find, (asked, first, last, limit))]
    take = 2 * limit  # an entity has a row for each of its surfaces
    while True:
        found = db.rows(index.find, (asked, first, last, take))
        entities: list[str | Place] = list(dict.fromkeys(entity for (entity,) in found))
        if len(entities) >= limit or len(found) < take:
            return entities[:limit]
        take *= 4


def _match(db: Database, no: int, index: sql.WordStatements, query: str) -> str:
    """Return the query in FTS5's language: quoted terms joined by OR; "" where no word is left.

    The terms hold letters, digits and the group's mark only (words.py), so no quote can close them.
    """
    terms = [term(word, no) for word in query_words(query)]
    if len(terms) > 1:
        terms = _rare(db, no, index, terms)
    return " OR ".join([f'"{asked}"' for asked in terms])


def _rare(db: Database, no: int, index: sql.WordStatements, terms: list[str]) -> list[str]:
    """Leave out the words that are frequent in this group, unless all are."""
    first, last = keys_of(no)
    (highest,) = db.row(index.last, (first, last)) or (None,)
    count = 0 if highest is None else highest & MASK
    if count <= _FREQUENT_FROM_ROWS:
        return terms
    bound = _FREQUENT_SHARE * count
    rare = [asked for asked in terms if (db.row(index.frequency, (asked,)) or (0,))[0] <= bound]
    return rare or terms
