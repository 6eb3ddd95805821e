"""The log face: what is pending, what was extracted and answered, failures, counts (R19, R21-R24)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from kgray.ports import Answer, FailedEpisode, Failure, GroupCounts
from kgray.records import Episode, Extraction, Operation
from kgray.stores import packing
from kgray.stores.neo4j import rows
from kgray.stores.neo4j import statements as cypher
from kgray.stores.neo4j.appending import AppendingFace, pending_removals
from kgray.stores.neo4j.connection import Running
from kgray.stores.neo4j.groups import ended_mark, group_id
from kgray.times import Instant


class LogFace(AppendingFace):
    """Short reads, from any process."""

    def standing(self, group: str, ids: Sequence[str]) -> dict[str, str]:
        """Return episode id -> content hash of the live rows with these ids, whatever their state.

        A row that a pending retraction or removal takes away is not live: see `accept`.
        """
        asked = [{"group_id": group, "uuid": id_} for id_ in dict.fromkeys(ids) if rows.is_text(id_)]

        def work(running: Running) -> dict[str, str]:
            removals = pending_removals(self._db, running, [group])[group]
            return {
                row[1]: row[5]
                for portion in rows.portions(asked)
                for row in self._db.run(running, cypher.EPISODES_BY_ID, rows=portion)
                if row[6] is None and not removals.cover(row[2], (row[1], row[3]), row[4])
            }

        found = self._db.read(work) if asked else {}
        return {id_: found[id_] for id_ in ids if id_ in found}

    def result(self, group: str, sequence: int) -> Mapping[str, Any] | None:
        """Return what an operation answered; None while it is pending or where there is none."""
        if not 0 < sequence < 1 << 63:
            return None
        names = [group, ended_mark(group)]
        found = self._db.row(cypher.OPERATION_STATE, groups=names, sequence=sequence)
        if found is None or found[0] == rows.PENDING:
            return None
        answer: Mapping[str, Any] = rows.parsed(found[1])
        return answer

    # ------------------------------------------------------------------------------- pending

    def pending_groups(self) -> dict[str, bool]:
        """Return the groups with anything that has not ended, sorted; True = some of it is live."""
        return {row[0]: row[1] for row in self._db.rows(cypher.PENDING_GROUPS)}

    def pending(self, group: str, limit: int, *, after: int = 0) -> list[Episode | Operation]:
        """Return what is next in the group's order behind a sequence, at most `limit`."""
        if limit <= 0:
            return []
        found: list[Episode | Operation] = []
        asked = {"group": group, "after": max(0, after), "limit": limit}
        for *row, is_operation, payload in self._db.rows(cypher.PENDING, **asked):
            if is_operation:
                found.append(rows.operation(group, (row[0], row[3], payload)))
            else:
                found.append(rows.episode(group, row))
        return found

    def pending_sequences(self, group: str, after: int, limit: int) -> list[tuple[int, bool]]:
        """Return what is next behind a sequence, at most `limit`: (sequence, whether it is an episode)."""
        if limit <= 0:
            return []
        found = self._db.rows(cypher.SEQUENCES_PENDING, group=group, after=max(0, after), limit=limit)
        return [(sequence, not is_operation) for sequence, is_operation in found]

    def next_sequence(self, group: str) -> int:
        """Return the sequence that the group would give next; it is not taken."""
        return self._group(group)[0] + 1

    def pending_count(self, group: str | None = None) -> int:
        """Return how many episodes and operations have not ended."""
        if group is None:
            found = self._db.row(cypher.PENDING_COUNT_ALL)
        else:
            found = self._db.row(cypher.PENDING_COUNT, group=group)
        return int(found[0]) if found else 0

    def previous(self, episode: Episode, limit: int) -> list[Episode]:
        """Return the previous context (R22), oldest first.

        An episode that a pending retraction or removal, asked before this one was accepted, takes
        away is left out already: the plain loop would not see it either.
        """
        if limit <= 0:
            return []

        def work(running: Running) -> list[Episode]:
            removals = pending_removals(self._db, running, [episode.group])[episode.group]
            take = limit
            while True:
                read = self._db.run(
                    running, cypher.EPISODES_BEFORE, group=episode.group, source=episode.source,
                    said=episode.reference_time, before=episode.sequence, limit=take,
                )  # fmt: skip
                found = [rows.episode(episode.group, row) for row in read]
                kept = [
                    item
                    for item in found
                    if not removals.cover(
                        item.sequence, (item.id, item.client_id), item.source, episode.sequence
                    )
                ]
                if len(kept) >= limit or len(found) < take:
                    return kept[:limit][::-1]
                take *= 4

        return self._db.read(work)

    # -------------------------------------------------------------------- extractions, answers

    def extraction(self, group: str, sequence: int) -> Extraction | None:
        """Return the stored extraction."""
        row = self._db.row(cypher.EXTRACTION, group=group, sequence=sequence)
        if row is None:
            return None
        return packing.extraction(row[3], calls=row[0], prompt_tokens=row[1], completion_tokens=row[2])

    def recall(self, group: str, key: str) -> tuple[Answer, ...] | None:
        """Return the journaled answers of a request (R21)."""
        row = self._db.row(cypher.ANSWERS, group=group, request=key)
        return None if row is None else tuple(rows.parsed(row[0]))

    # ---------------------------------------------------------------------- failures and counts

    def failures(self, group: str | None = None) -> list[FailedEpisode]:
        """Return the failed episodes that were not retried or retracted, by group and sequence."""
        found = []
        for name in self._named(group):
            for row in self._db.rows(cypher.EPISODES_FAILED, group=name):
                kind, message, raw, attempts = row[12:]
                failure = Failure(kind=kind, message=message, raw=raw, attempts=attempts)
                found.append(FailedEpisode(episode=rows.episode(name, row), failure=failure))
        return found

    def counts(self, group: str | None = None) -> dict[str, GroupCounts]:
        """Return the ledger by group, sorted: episodes that were not retracted or retried, by state.

        A group that is asked for and not there counts nothing.
        """
        with self._db.reading():
            found = {name: self._counted(name) for name in self._named(group)}
        return found if group is None or found else {group: GroupCounts()}

    def _counted(self, group: str) -> GroupCounts:
        states = {row[0]: row[1] for row in self._db.rows(cypher.COUNT_STATES, group=group)}
        ((entities, facts),) = self._db.rows(cypher.COUNT_DERIVED, group=group)
        spent = self._db.rows(cypher.COUNT_CALLS, group=group)
        calls, prompt, completion = (sum(column) for column in zip(*spent, strict=True))
        return GroupCounts(
            accepted=states.get(rows.ACCEPTED, 0),
            extracted=states.get(rows.EXTRACTED, 0),
            committed=states.get(rows.COMMITTED, 0),
            failed=states.get(rows.FAILED, 0),
            entities=entities,
            facts=facts,
            calls=calls,
            prompt_tokens=prompt,
            completion_tokens=completion,
        )

    def groups(self) -> list[str]:
        """Return the groups that exist, sorted."""
        return [name for (name,) in self._db.rows(cypher.GROUPS)]

    def last_recorded(self, group: str) -> Instant:
        """Return the group's newest record time; 0 for an empty group."""
        return self._group(group)[1]

    def last_recorded_of(self, groups: Collection[str]) -> dict[str, Instant]:
        """Return the newest record time of each of these groups, 0 for an empty one."""
        ids = {group: group_id(group) for group in groups}
        times: dict[str, Instant] = {}
        if ids:
            found = self._db.rows(cypher.GROUPS_RECORDED, ids=list(ids.values()))
            times = {row[0]: row[1] for row in found}
        return {group: times.get(id_, 0) for group, id_ in ids.items()}

    def _group(self, group: str) -> tuple[int, Instant]:
        """Return the group's last sequence and record time."""
        row = self._db.row(cypher.GROUP, id=group_id(group))
        return (0, 0) if row is None else (row[0], row[1])

    def _named(self, group: str | None) -> list[str]:
        return [name for name in self.groups() if group is None or name == group]
