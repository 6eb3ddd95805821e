"""Reading: what is pending, declared reads, and what a search asks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from kgray.graph import Fact
from kgray.kinds import ACCEPTED, COMMITTED, EXTRACTED, FACTS_OF, FAILED, Read, Row, SearchScope
from kgray.ports import GroupCounts, GroupHead, Vector
from kgray.records import Episode, Operation, Place
from kgray.rows import episode as episode_of
from kgray.rows import fact as fact_of
from kgray.rows import operation as operation_of
from kgray.stores.sqlite import statements as sql
from kgray.stores.sqlite.database import Database, key_of, keys_of, read_rows
from kgray.stores.sqlite.schema import MASK
from kgray.stores.sqlite.vectors import VectorSets
from kgray.times import Instant
from kgray.words import query_words, term

# A word that more than this share of a group's rows bear is left out of a query while others
# remain: it costs 30 times as much (67 ms against 2 ms at 200,000 rows) and ranks next to nothing.
_FREQUENT_SHARE = 0.05
_FREQUENT_FROM_ROWS = 1_000


class StoreReads:
    """Reads; each sees one snapshot, or that of `reading` around it."""

    def __init__(self, db: Database, dimensions: int) -> None:
        """Read nothing yet."""
        self._db = db
        self._vectors = VectorSets(db, dimensions)

    def reading(self) -> AbstractContextManager[None]:
        """Hold one snapshot for the reads inside it; nests."""
        return self._db.snapshot()

    # ------------------------------------------------------------------------------- pending

    def pending_groups(self) -> dict[str, bool]:
        """Return the groups with anything that has not ended, sorted; True = some of it is live."""
        return {name: bool(live) for name, live in self._db.rows(sql.PENDING_GROUPS)}

    def withdrawing(self) -> list[str]:
        """Return the groups with a retraction or removal that was not carried out yet, sorted."""
        return [name for (name,) in self._db.rows(sql.WITHDRAWING)]

    def pending(self, group: str, limit: int, *, after: int = 0) -> list[Episode | Operation]:
        """Return what is next in the group's order behind a sequence, at most `limit`."""
        no = self._db.number(group)
        if no is None or limit <= 0:
            return []
        asked = (no, key_of(no, after), limit)
        with self._db.snapshot():
            found: list[Episode | Operation] = [
                _episode(group, row) for row in self._db.rows(sql.EPISODES_PENDING, asked)
            ]
            found += [operation_of(group, row) for row in self._db.rows(sql.OPERATIONS_PENDING, asked)]
        return sorted(found, key=lambda item: item.sequence)[:limit]

    def pending_sequences(self, group: str, after: int, limit: int) -> list[tuple[int, bool]]:
        """Return what is next behind a sequence, at most `limit`: (sequence, whether it is an episode)."""
        no = self._db.number(group)
        if no is None or limit <= 0:
            return []
        found = self._db.rows(sql.SEQUENCES_PENDING, (no, key_of(no, after), limit))
        return [(key & MASK, bool(is_episode)) for key, is_episode in found]

    def pending_count(self, group: str | None = None) -> int:
        """Return how many episodes and operations have not ended."""
        ((count,),) = self._db.rows(sql.PENDING_COUNT, (group,))
        return int(count)

    def said_before(self, episode: Episode, limit: int) -> list[Episode]:
        """Return the live episodes of its source said no later, newest first (R22)."""
        no = self._db.number(episode.group)
        if no is None or limit <= 0:
            return []
        values = (no, episode.source, episode.reference_time, key_of(no, episode.sequence), limit)
        return [_episode(episode.group, row) for row in self._db.rows(sql.EPISODES_BEFORE, values)]

    # ------------------------------------------------------------------------------- rows

    def heads(self, groups: Collection[str] | None = None) -> dict[str, GroupHead]:
        """Return the counters of these groups, or of all that exist, sorted by name."""
        if groups is None:
            found = self._db.rows(sql.GROUPS)
            return {row[0]: GroupHead(named=True, last=row[2], last_recorded=row[3]) for row in found}
        with self._db.snapshot():
            return {group: self._head(group) for group in sorted(groups)}

    def _head(self, group: str) -> GroupHead:
        no = self._db.number(group)
        row = None if no is None else self._db.row(sql.GROUP_HEAD, (no,))
        if row is None:
            return GroupHead()
        named = row[0] is not None or no == self._db.staged
        return GroupHead(named=named, last=row[1], last_recorded=row[2])

    def rows(self, read: Read, group: str, values: Sequence[Any] = ()) -> Iterator[Row]:
        """Return the rows of a declared read, read page by page; see `ports.Store`."""
        no = self._db.number(group)
        return iter(()) if no is None else read_rows(self._db.rows, read, no, values)

    def facts_at(
        self, group: str, entities: Sequence[str], as_of: Instant | None, limit: int | None
    ) -> list[Fact]:
        """Return the facts that hold at `as_of` and whose source or target is one of these, newest first."""
        no = self._db.number(group)
        if no is None:
            return []
        take = -1 if limit is None else limit
        newest: set[tuple[Instant, str]] = set()
        with self._db.snapshot():
            for entity in dict.fromkeys(entities):
                for statement in (sql.FACTS_FROM, sql.FACTS_TO):
                    found = self._db.rows(statement, (no, entity, as_of, take))
                    newest.update((-created_at, id_) for created_at, id_ in found)
            ids = [id_ for _, id_ in sorted(newest)[:limit]]
            return [fact_of(row) for row in self.rows(FACTS_OF, group, ids)]

    def counts(self, group: str | None = None) -> dict[str, GroupCounts]:
        """Return the ledger by group, sorted; see `ports.Store`."""
        with self._db.snapshot():
            named = [(row[0], row[1]) for row in self._db.rows(sql.GROUPS)]
            found = {name: self._counted(no) for name, no in named if group in (None, name)}
        return found if group is None or found else {group: GroupCounts()}

    def _counted(self, no: int) -> GroupCounts:
        states = {row[0]: row[1] for row in self._db.rows(sql.COUNT_STATES, (no,))}
        entities, facts = self._db.rows(sql.COUNT_DERIVED, (no,))[0]
        calls, prompt, completion = self._db.rows(sql.COUNT_CALLS, (*keys_of(no), no))[0]
        return GroupCounts(
            accepted=states.get(ACCEPTED, 0),
            extracted=states.get(EXTRACTED, 0),
            committed=states.get(COMMITTED, 0),
            failed=states.get(FAILED, 0),
            entities=entities,
            facts=facts,
            calls=calls or 0,
            prompt_tokens=prompt or 0,
            completion_tokens=completion or 0,
        )

    # ------------------------------------------------------------------------------- search

    def lexical(self, group: str, scope: SearchScope, query: str, limit: int) -> list[str | Place]:
        """Return what BM25 finds, best first, ties by age; see `ports.Store`."""
        no = self._db.number(group)
        if no is None or limit <= 0:
            return []
        with self._db.snapshot():
            return _find_words(self._db, no, scope, query, limit)

    def nearest(
        self, group: str, scope: SearchScope, vector: Vector, limit: int
    ) -> list[tuple[str | int, float]]:
        """Return (id, cosine), best first, ties by insertion; see `ports.Store` and vectors.py."""
        no = self._db.number(group)
        if no is None or limit <= 0:
            return []
        with self._db.snapshot():
            if scope != "entity":
                return self._vectors.nearest(no, scope, vector, limit)
            # An entity has a vector for each of its surfaces, and is found once, by its best.
            take = 2 * limit
            while True:
                found = self._vectors.nearest(no, scope, vector, take)
                best: dict[str | int, float] = {}
                for owner, score in found:
                    best.setdefault(owner, score)
                if len(best) >= limit or len(found) < take:
                    return list(best.items())[:limit]
                take *= 4


def _episode(group: str, row: Row) -> Episode:
    """Read a row of kind EPISODES as it is stored."""
    return episode_of(group, (*row[:11], bool(row[11]), *row[12:]))


# BM25 (Robertson and Zaragoza 2009, as FTS5 computes it) over evidence, names and episodes.


def _find_words(db: Database, no: int, scope: SearchScope, query: str, limit: int) -> list[str | Place]:
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
