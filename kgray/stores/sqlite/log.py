"""The log face: acceptance, requests, what is pending, what was kept of it (R19, R21-R24)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import apsw

from kgray.ports import Acceptance, Answer, FailedEpisode, Failure, GroupCounts, conflict
from kgray.records import Draft, Episode, Extraction, Operation
from kgray.stores import packing
from kgray.stores.removals import Removals, check_group
from kgray.stores.sqlite import rows
from kgray.stores.sqlite import statements as sql
from kgray.stores.sqlite.database import MASK, Database, Row, key_of, keys_of, many, one
from kgray.times import Instant


class LogFace:
    """Short transactions, from any process."""

    _db: Database

    # ---------------------------------------------------------------------------- acceptance

    def accept(
        self, drafts: Sequence[Draft], *, now: Instant, replace: bool = False, bulk: bool = False
    ) -> list[Acceptance]:
        """Append drafts in order, in one durable transaction; see `ports.Store`."""
        for draft in drafts:
            check_group(draft.group)
        answers: list[Acceptance] = []
        if not drafts:
            return answers
        with self._db.transaction(durable=True) as connection:
            groups: dict[str, tuple[int, Removals]] = {}
            for draft in drafts:
                if draft.group not in groups:
                    no = self._db.group(connection, draft.group)
                    groups[draft.group] = no, _removals(connection, no)
                no, removals = groups[draft.group]
                answer, asked = self._accept(connection, no, removals, draft, now, replace=replace, bulk=bulk)
                answers.append(answer)
                if asked:
                    groups[draft.group] = no, Removals((*removals.operations, asked))
        return answers

    def _accept(
        self,
        connection: apsw.Connection,
        no: int,
        removals: Removals,
        draft: Draft,
        now: Instant,
        *,
        replace: bool,
        bulk: bool,
    ) -> tuple[Acceptance, Operation | None]:
        """Accept one draft; the operation is the retraction that `replace` asked for."""
        id_, digest = draft.id, draft.content_sha256
        asked: Operation | None = None
        row = one(connection, sql.EPISODE_BY_ID, (no, id_))
        if row is not None:
            key, _, client_id, source, stored, retired_at = row
            live = retired_at is None and not removals.cover(key & MASK, (id_, client_id), source)
            if live and stored == digest:
                return Acceptance(status="duplicate", id=id_, sequence=key & MASK), None
            if live and not replace:
                reason = conflict(draft, stored)
                return Acceptance(status="conflict", id=id_, sequence=key & MASK, reason=reason), None
            if live:
                asked = Operation(group=draft.group, kind="retract", episodes=(id_,))
                asked = _requested(self._db, connection, no, asked)
        sequence = self._db.next_sequence(connection, no)
        time = now if draft.reference_time is None else draft.reference_time
        connection.execute(
            sql.NEW_EPISODE,
            (
                key_of(no, sequence), no, id_, draft.source, draft.kind, draft.text, time, digest,
                draft.speaker, draft.client_id, draft.metadata, int(bulk),
            ),
        )  # fmt: skip
        timed = draft.reference_time is not None
        return Acceptance(status="accepted", id=id_, sequence=sequence, timed=timed), asked

    def standing(self, group: str, ids: Sequence[str]) -> dict[str, str]:
        """Return episode id -> content hash of the live rows with these ids, whatever their state.

        A row that a pending retraction or removal takes away is not live: see `accept`.
        """
        no = self._db.number(group)
        found: dict[str, str] = {}
        if no is None:
            return found
        with self._db.snapshot():
            removals = Removals(
                tuple(rows.operation(group, row) for row in self._db.rows(sql.REMOVALS_PENDING, (no,)))
            )
            for id_ in ids:
                row = self._db.row(sql.EPISODE_BY_ID, (no, id_))
                if row is None or row[5] is not None:
                    continue
                if not removals.cover(row[0] & MASK, (row[1], row[2]), row[3]):
                    found[id_] = row[4]
        return found

    # ---------------------------------------------------------------------------- operations

    def request(self, operation: Operation, *, now: Instant) -> int:  # noqa: ARG002 - timed when carried out
        """Append a correction and return its sequence."""
        check_group(operation.group)
        with self._db.transaction(durable=True) as connection:
            no = self._db.group(connection, operation.group)
            return _requested(self._db, connection, no, operation).sequence

    def result(self, group: str, sequence: int) -> Mapping[str, Any] | None:
        """Return what an operation answered; None while it is pending or where there is none."""
        no = self._db.number(group)
        if no is None or not 0 < sequence <= MASK:
            return None
        row = self._db.row(sql.OPERATION_STATE, (key_of(no, sequence),))
        if row is None or row[0] == rows.PENDING:
            return None
        answer: Mapping[str, Any] = json.loads(row[1])
        return answer

    # ------------------------------------------------------------------------------- pending

    def pending_groups(self) -> dict[str, bool]:
        """Return the groups with anything that has not ended, sorted; True = some of it is live."""
        return {name: bool(live) for name, live in self._db.rows(sql.PENDING_GROUPS)}

    def pending(self, group: str, limit: int, *, after: int = 0) -> list[Episode | Operation]:
        """Return what is next in the group's order behind a sequence, at most `limit`."""
        no = self._db.number(group)
        if no is None or limit <= 0:
            return []
        asked = (no, key_of(no, after), limit)
        with self._db.snapshot():
            found: list[Episode | Operation] = [
                rows.episode(group, row) for row in self._db.rows(sql.EPISODES_PENDING, asked)
            ]
            operations = self._db.rows(sql.OPERATIONS_PENDING, asked)
            found += [rows.operation(group, row) for row in operations]
        return sorted(found, key=lambda item: item.sequence)[:limit]

    def pending_sequences(self, group: str, after: int, limit: int) -> list[tuple[int, bool]]:
        """Return what is next behind a sequence, at most `limit`: (sequence, whether it is an episode)."""
        no = self._db.number(group)
        if no is None or limit <= 0:
            return []
        found = self._db.rows(sql.SEQUENCES_PENDING, (no, key_of(no, after), limit))
        return [(key & MASK, bool(is_episode)) for key, is_episode in found]

    def next_sequence(self, group: str) -> int:
        """Return the sequence that the group would give next; it is not taken."""
        no = self._db.number(group)
        row = None if no is None else self._db.row(sql.GROUP_LAST, (no,))
        return int(row[0]) + 1 if row else 1

    def pending_count(self, group: str | None = None) -> int:
        """Return how many episodes and operations have not ended."""
        if group is None:
            row = self._db.row(sql.PENDING_COUNT_ALL)
        else:
            no = self._db.number(group)
            row = None if no is None else self._db.row(sql.PENDING_COUNT, (no,))
        return int(row[0]) if row else 0

    def previous(self, episode: Episode, limit: int) -> list[Episode]:
        """Return the previous context (R22), oldest first.

        An episode that a pending retraction or removal, asked before this one was accepted, takes
        away is left out already: the plain loop would not see it either.
        """
        no = self._db.number(episode.group)
        if no is None or limit <= 0:
            return []
        with self._db.snapshot():
            removals = Removals(
                tuple(rows.operation("", row) for row in self._db.rows(sql.REMOVALS_PENDING, (no,)))
            )
            before = key_of(no, episode.sequence)
            take = limit
            while True:
                values = (no, episode.source, episode.reference_time, before, take)
                read = self._db.rows(sql.EPISODES_BEFORE, values)
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

    # -------------------------------------------------------------------- extractions, answers

    def extraction(self, group: str, sequence: int) -> Extraction | None:
        """Return the stored extraction."""
        no = self._db.number(group)
        row = None if no is None else self._db.row(sql.EXTRACTION, (key_of(no, sequence),))
        if row is None:
            return None
        return packing.extraction(row[3], calls=row[0], prompt_tokens=row[1], completion_tokens=row[2])

    def recall(self, group: str, key: str) -> tuple[Answer, ...] | None:
        """Return the journaled answers of a request (R21)."""
        no = self._db.number(group)
        row = None if no is None else self._db.row(sql.ANSWERS, (no, key))
        return None if row is None else tuple(json.loads(row[0]))

    # ------------------------------------------------------------------------------- failures

    def failures(self, group: str | None = None) -> list[FailedEpisode]:
        """Return the failed episodes that were not retried or retracted, by group and sequence."""
        found = []
        with self._db.snapshot():
            for name, no in self._named(group):
                for row in self._db.rows(sql.EPISODES_FAILED, (no,)):
                    kind, message, raw, attempts = row[12:]
                    failure = Failure(kind=kind, message=message, raw=raw, attempts=attempts)
                    found.append(FailedEpisode(episode=rows.episode(name, row), failure=failure))
        return found

    def retry(self, group: str | None, ids: Sequence[str], *, now: Instant) -> int:
        """Give failed episodes new sequences; the failed rows stay as history until now; return how many.

        One that a pending correction takes away anyway is left to it.
        """
        wanted = set(ids)
        count = 0
        with self._db.transaction(durable=True) as connection:
            for name, no in many(connection, sql.GROUPS):
                if group is not None and name != group:
                    continue
                removals = _removals(connection, no)
                found = many(connection, sql.EPISODES_FAILED, (no,))
                chosen = [row for row in found if not wanted or row[1] in wanted or row[8] in wanted]
                chosen = [
                    row for row in chosen if not removals.cover(row[0] & MASK, (row[1], row[8]), row[2])
                ]
                if chosen:
                    self._retry(connection, no, chosen, now)
                count += len(chosen)
        return count

    def _retry(self, connection: apsw.Connection, no: int, failed: Sequence[Row], now: Instant) -> None:
        retired_at = self._db.next_record_time(connection, no, now)
        for row in failed:
            connection.execute(sql.RETIRE_EPISODE, (retired_at, row[0]))
            sequence = self._db.next_sequence(connection, no)
            connection.execute(sql.NEW_EPISODE, (key_of(no, sequence), no, *row[1:10], row[11]))
            connection.execute(sql.CARRY_ATTEMPTS, (row[15], key_of(no, sequence)))

    # -------------------------------------------------------------------------------- counts

    def counts(self, group: str | None = None) -> dict[str, GroupCounts]:
        """Return the ledger by group, sorted: episodes that were not retracted or retried, by state.

        A group that is asked for and not there counts nothing.
        """
        with self._db.snapshot():
            found = {name: self._counted(no) for name, no in self._named(group)}
        return found if group is None or found else {group: GroupCounts()}

    def _counted(self, no: int) -> GroupCounts:
        states = {row[0]: row[1] for row in self._db.rows(sql.COUNT_STATES, (no,))}
        entities, facts = self._db.rows(sql.COUNT_DERIVED, (no,))[0]
        calls, prompt, completion = self._db.rows(sql.COUNT_CALLS, (*keys_of(no), no))[0]
        return GroupCounts(
            accepted=states.get(rows.ACCEPTED, 0),
            extracted=states.get(rows.EXTRACTED, 0),
            committed=states.get(rows.COMMITTED, 0),
            failed=states.get(rows.FAILED, 0),
            entities=entities,
            facts=facts,
            calls=calls or 0,
            prompt_tokens=prompt or 0,
            completion_tokens=completion or 0,
        )

    def groups(self) -> list[str]:
        """Return the groups that exist, sorted."""
        return [name for name, _ in self._db.rows(sql.GROUPS)]

    def _named(self, group: str | None) -> list[tuple[str, int]]:
        """Return (name, number) of one group, or of all."""
        return [(name, no) for name, no in self._db.rows(sql.GROUPS) if group is None or name == group]


def _removals(connection: apsw.Connection, no: int) -> Removals:
    found = many(connection, sql.REMOVALS_PENDING, (no,))
    return Removals(tuple(rows.operation("", row) for row in found))


def _requested(db: Database, connection: apsw.Connection, no: int, operation: Operation) -> Operation:
    sequence = db.next_sequence(connection, no)
    payload = packing.operation_payload(operation)
    connection.execute(sql.NEW_OPERATION, (key_of(no, sequence), no, operation.kind, payload))
    return rows.operation(operation.group, (key_of(no, sequence), operation.kind, payload))
