"""Reading: what is pending, declared reads, and facts at entities."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from kgray.graph import Fact
from kgray.kinds import EPISODES_AT, FACTS_OF, Read, Row
from kgray.ports import GroupCounts, GroupHead
from kgray.records import Episode
from kgray.rows import episode as episode_of
from kgray.rows import fact as fact_of
from kgray.stores.alike import Reads, counted
from kgray.stores.sqlite import statements as sql
from kgray.stores.sqlite.database import Database, array, read_rows, restored
from kgray.times import Instant


class StoreReads(Reads):
    """Reads; each sees one snapshot, or that of `reading` around it."""

    def __init__(self, db: Database) -> None:
        """Read nothing yet."""
        self._db = db

    def reading(self) -> AbstractContextManager[None]:
        """Hold one snapshot for the reads inside it; nests."""
        return self._db.snapshot()

    # ------------------------------------------------------------------------------- pending

    def newly_pending(self, mark: Instant) -> tuple[dict[str, bool], Instant]:
        """Return the groups with anything pending that was appended since a mark, sorted, and the next."""
        found = self._db.rows(sql.PENDING_GROUPS, (mark,))
        newest = max((waiting for *_, waiting in found), default=mark)  # in the order of commits
        return {name: bool(live) for name, live, _ in found}, newest

    def withdrawing(self) -> list[str]:
        """Return the groups with a retraction or removal that was not carried out yet, sorted."""
        return [name for (name,) in self._db.rows(sql.WITHDRAWING)]

    def pending_sequences(self, group: str, after: int, limit: int) -> list[tuple[int, bool]]:
        """Return what is next behind a sequence, at most `limit`: (sequence, whether it is an episode)."""
        no = self._db.number(group)
        if no is None or limit <= 0:
            return []
        found = self._db.rows(sql.SEQUENCES_PENDING, (no, after, limit))
        return [(sequence, bool(is_episode)) for sequence, is_episode in found]

    def pending_count(self, group: str | None = None, *, most: int = 1 << 62) -> int:
        """Return how many episodes and operations have not ended."""
        ((count,),) = self._db.rows(sql.PENDING_COUNT, (group, most))
        return int(count)

    def said_before(self, episode: Episode, limit: int) -> list[Episode]:
        """Return the live episodes of its source said no later, newest first (R22)."""
        no = self._db.number(episode.group)
        if no is None or limit <= 0:
            return []
        values = (no, episode.source, episode.reference_time, episode.sequence, limit)
        with self.reading():
            before = [sequence for (sequence,) in self._db.rows(sql.SAID_BEFORE, values)]
            return [episode_of(episode.group, row) for row in self.rows(EPISODES_AT, episode.group, before)]

    # ------------------------------------------------------------------------------- rows

    def heads(self, groups: Collection[str] | None = None) -> dict[str, GroupHead]:
        """Return the counters of these groups, or of all that exist, sorted by name."""
        if groups is None:
            found = self._db.rows(sql.GROUPS)
            return {
                name: GroupHead(named=True, last=last, last_recorded=at, removals=removals)
                for name, _, last, at, removals in found
            }
        with self._db.snapshot():
            return {group: self._head(group) for group in sorted(groups)}

    def _head(self, group: str) -> GroupHead:
        no = self._db.number(group)
        for name, last, last_recorded, removals in self._db.rows(sql.GROUP_HEAD, (no,)):
            named = name is not None or self._db.is_staged(group)
            return GroupHead(named=named, last=last, last_recorded=last_recorded, removals=removals)
        return GroupHead()

    def rows(self, read: Read, group: str, values: Sequence[Any] = ()) -> Iterator[Row]:
        """Return the rows of a declared read, read page by page; see `ports.Store`."""
        no = self._db.number(group)
        return iter(()) if no is None else read_rows(self._db.rows, read, no, values)

    def everywhere(self, read: Read, values: Sequence[Any] = ()) -> list[tuple[str, Row]]:
        """Return (group, row) of a read in all groups, by group."""
        found = self._db.rows(sql.EVERYWHERE[read], (array(values),))
        return list(zip((row[0] for row in found), restored(read, [row[1:] for row in found]), strict=True))

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

    def _counted(self, group: str | None) -> dict[str, GroupCounts]:
        no = None if group is None else self._db.number(group)
        if group is not None and no is None:
            return {group: GroupCounts()}
        found = counted(*(self._db.rows(each, (no,)) for each in (sql.COUNT_STATES, sql.COUNT_REST)))
        return found if group is None else {group: next(iter(found.values()))}
