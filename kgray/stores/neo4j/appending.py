"""What any process may append while another ingests: episodes, operations, retries (R19, R24, R25)."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from kgray.ports import Acceptance, conflict
from kgray.records import Draft, Operation
from kgray.stores import packing
from kgray.stores.neo4j import groups as grouped
from kgray.stores.neo4j import rows
from kgray.stores.neo4j import statements as cypher
from kgray.stores.neo4j.connection import Connection, Row, Running
from kgray.stores.neo4j.groups import Group
from kgray.stores.removals import Removals, check_group
from kgray.times import Instant


class AppendingFace:
    """Short transactions; each locks its groups first, so sequences are taken one after the other."""

    _db: Connection

    def accept(
        self, drafts: Sequence[Draft], *, now: Instant, replace: bool = False, bulk: bool = False
    ) -> list[Acceptance]:
        """Append drafts in order, in one durable transaction; see `ports.Store`."""
        for draft in drafts:
            check_group(draft.group)
        if not drafts:
            return []
        call = str(uuid.uuid4())

        def work(running: Running, _: int) -> list[Acceptance]:
            accepting = Accepting(self._db, running, drafts, now=now, bulk=bulk, call=call)
            return accepting.carry_out(replace=replace)

        return self._db.write(work)

    def request(self, operation: Operation, *, now: Instant) -> int:  # noqa: ARG002 - timed when carried out
        """Append a correction and return its sequence."""
        check_group(operation.group)
        call = str(uuid.uuid4())

        def work(running: Running, unknown: int) -> int:
            group = grouped.locked(self._db, running, [operation.group], make=True)[operation.group]
            if unknown:
                values = {"group": operation.group, "call": call}
                for (sequence,) in self._db.run(running, cypher.OPERATION_OF_CALL, **values):
                    return int(sequence)
            row = _operation_row(group, operation, call)
            self._db.run(running, cypher.NEW_OPERATIONS, rows=[row])
            grouped.keep(self._db, running, [group])
            return group.last

        return self._db.write(work)

    def retry(self, group: str | None, ids: Sequence[str], *, now: Instant) -> int:
        """Give failed episodes new sequences; the failed rows stay as history until now; return how many.

        One that a pending correction takes away anyway is left to it.
        """
        call = str(uuid.uuid4())

        def work(running: Running, unknown: int) -> int:
            names = [name for (name,) in self._db.run(running, cypher.GROUPS) if group in {None, name}]
            groups = grouped.locked(self._db, running, names, make=False)
            return sum(
                self._retry(running, groups[name], set(ids), now, call, again=unknown > 0) for name in names
            )

        return self._db.write(work)

    def _retry(
        self, running: Running, group: Group, wanted: set[str], now: Instant, call: str, *, again: bool
    ) -> int:
        if again:
            values = {"group": group.name, "call": call}
            (done,) = self._db.run(running, cypher.RETRIED_BY_CALL, **values)[0]
            if done:
                return int(done)
        removals = pending_removals(self._db, running, [group.name])[group.name]
        found = self._db.run(running, cypher.EPISODES_FAILED, group=group.name)
        chosen = [
            row
            for row in found
            if (not wanted or row[1] in wanted or row[8] in wanted)
            and not removals.cover(row[0], (row[1], row[8]), row[2])
        ]
        if not chosen:
            return 0
        retired_at = group.take_record_time(now)
        retired = [{"group_id": group.name, "sequence": row[0], "at": retired_at} for row in chosen]
        for portion in rows.portions(retired):
            self._db.run(running, cypher.RETIRE_EPISODES, rows=portion)
        for portion in rows.portions(_again(group, row, call) for row in chosen):
            self._db.run(running, cypher.NEW_EPISODES, rows=portion)
        grouped.keep(self._db, running, [group])
        return len(chosen)


def _again(group: Group, row: Row, call: str) -> rows.Values:
    """Return the properties of a failed episode's new row; it starts with the attempts of the old one."""
    names = (
        "uuid", "source_description", "kind", "content", "said", "content_sha256", "speaker", "client_id",
        "metadata",
    )  # fmt: skip
    kept = dict(zip(names, row[1:10], strict=True))
    return {
        **kept,
        "group_id": group.name,
        "sequence": group.take_sequence(),
        "state": rows.ACCEPTED,
        "bulk": row[11],
        "attempts": row[15],
        "call": call,
    }


def _operation_row(group: Group, operation: Operation, call: str) -> rows.Values:
    return {
        "group_id": group.name,
        "sequence": group.take_sequence(),
        "kind": operation.kind,
        "payload": packing.operation_payload(operation),
        "call": call,
    }


def pending_removals(db: Connection, running: Running, names: Sequence[str]) -> dict[str, Removals]:
    """Return what pending corrections will take away, by group."""
    found: dict[str, list[Operation]] = {name: [] for name in names}
    for name, *row in db.run(running, cypher.REMOVALS_PENDING, groups=list(names)):
        found[name].append(rows.operation("", row))
    return {name: Removals(tuple(operations)) for name, operations in found.items()}


class Accepting:
    """One call of `accept`, inside its transaction."""

    def __init__(
        self,
        db: Connection,
        running: Running,
        drafts: Sequence[Draft],
        *,
        now: Instant,
        bulk: bool,
        call: str,
    ) -> None:
        """Lock the groups, then read what is there: after the lock nobody changes it."""
        self._db, self._running, self._drafts = db, running, drafts
        self._now, self._bulk, self._call = now, bulk, call
        self._groups = grouped.locked(db, running, (draft.group for draft in drafts), make=True)
        self._removals = pending_removals(db, running, list(self._groups))
        asked = {(draft.group, draft.id): None for draft in drafts}
        # sequence, client id, source, content hash, retired at, call
        self._stored: dict[tuple[str, str], Row] = {
            (row[0], row[1]): row[2:]
            for portion in rows.portions({"group_id": group, "uuid": id_} for group, id_ in asked)
            for row in db.run(running, cypher.EPISODES_BY_ID, rows=portion)
        }
        self._episodes: list[rows.Values] = []
        self._operations: list[rows.Values] = []
        self._answered: set[tuple[str, int]] = set()  # what was answered as accepted

    def carry_out(self, *, replace: bool) -> list[Acceptance]:
        """Answer each draft in order, and write what is new."""
        answers = [self._accept(draft, replace=replace) for draft in self._drafts]
        for portion in rows.portions(self._operations):
            self._db.run(self._running, cypher.NEW_OPERATIONS, rows=portion)
        for portion in rows.portions(self._episodes):
            self._db.run(self._running, cypher.NEW_EPISODES, rows=portion)
        if self._episodes:
            grouped.keep(self._db, self._running, self._groups.values())
        return answers

    def _accept(self, draft: Draft, *, replace: bool) -> Acceptance:
        id_, digest = draft.id, draft.content_sha256
        timed = draft.reference_time is not None
        group = self._groups[draft.group]
        row = self._stored.get((draft.group, id_))
        if row is not None:
            sequence, client_id, source, stored, retired_at, call = row
            removals = self._removals[draft.group]
            live = retired_at is None and not removals.cover(sequence, (id_, client_id), source)
            if live and stored == digest:
                # An earlier try of this call appended it, and its answer was lost on the way.
                if call == self._call and (draft.group, sequence) not in self._answered:
                    self._answered.add((draft.group, sequence))
                    return Acceptance(status="accepted", id=id_, sequence=sequence, timed=timed)
                return Acceptance(status="duplicate", id=id_, sequence=sequence)
            if live and not replace:
                reason = conflict(draft, stored)
                return Acceptance(status="conflict", id=id_, sequence=sequence, reason=reason)
            if live:
                self._retract(group, draft)
        sequence = group.take_sequence()
        time = self._now if draft.reference_time is None else draft.reference_time
        made = rows.new_episode(draft, sequence, time, bulk=self._bulk, call=self._call)
        self._episodes.append(made)
        self._answered.add((draft.group, sequence))
        self._stored[draft.group, id_] = [sequence, draft.client_id, draft.source, digest, None, self._call]
        return Acceptance(status="accepted", id=id_, sequence=sequence, timed=timed)

    def _retract(self, group: Group, draft: Draft) -> None:
        """Append the retraction that `replace` asks for; what comes after it does not count on the row."""
        asked = Operation(group=draft.group, kind="retract", episodes=(draft.id,))
        row = _operation_row(group, asked, self._call)
        self._operations.append(row)
        named = rows.operation(draft.group, (row["sequence"], row["kind"], row["payload"]))
        before = self._removals[draft.group].operations
        self._removals[draft.group] = Removals((*before, named))
