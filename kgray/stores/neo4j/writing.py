"""A run's writes, in order, in one transaction (R21, R23, R24).

Writes of any groups are folded into few statements, 10 to 20 a batch however long it is, because
each costs a round trip and the transaction a commit of three full-text indexes. What erases, and
corrections, stand alone: what came before them is written first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kgray.errors import Outrun, StoreError
from kgray.ports import Answered, Commit, Declined, Extracted, Failed, Write
from kgray.stores import packing
from kgray.stores.neo4j import erasing, fence, rows
from kgray.stores.neo4j import groups as grouped
from kgray.stores.neo4j import statements_commit as cypher
from kgray.stores.neo4j.carrying import Carrying
from kgray.stores.neo4j.collecting import Collected, Key, Standing
from kgray.stores.neo4j.connection import Connection, Running
from kgray.stores.neo4j.fence import Held
from kgray.stores.neo4j.groups import Group


def write(db: Connection, held: Held | None, writes: Sequence[Write], dimensions: int) -> None:
    """Carry out all of them or none; the epoch is checked first. See `ports.Store.write`.

    A large group is not removed in one transaction: then what comes before its removal is written first.
    """
    done = 0
    for at, item in enumerate(writes):
        if isinstance(item, Commit) and item.forgotten and erasing.is_large(db, item):
            if at > done:
                _at_once(db, held, writes[done:at], dimensions)
            erasing.thin(db, held, item)
            done = at
    _at_once(db, held, writes[done:], dimensions)


def _at_once(db: Connection, held: Held | None, writes: Sequence[Write], dimensions: int) -> None:
    def work(running: Running, _: int) -> None:
        fence.check(db, running, held)
        groups = grouped.locked(db, running, (item.group for item in writes), make=False)
        before = {name: (g.last_recorded, g.removals) for name, g in groups.items()}
        for segment in _segments(writes):
            _Segment(db, running, groups, segment, dimensions).carry_out()
        changed = [g for name, g in groups.items() if (g.last_recorded, g.removals) != before[name]]
        grouped.keep(db, running, changed)
        fence.renew_late(db, running, held)

    db.write(work)


def _segments(writes: Sequence[Write]) -> Iterator[list[Write]]:
    """Divide the writes so that what erases or corrects stands alone."""
    gathered: list[Write] = []
    for item in writes:
        if isinstance(item, Commit) and erasing.erases(item):
            if gathered:
                yield gathered
            yield [item]
            gathered = []
        else:
            gathered.append(item)
    if gathered:
        yield gathered


class _Segment:
    """Writes that are folded together."""

    def __init__(
        self,
        db: Connection,
        running: Running,
        groups: dict[str, Group],
        writes: Sequence[Write],
        dimensions: int,
    ) -> None:
        self._db, self._running, self._groups = db, running, groups
        self._writes, self._dimensions = writes, dimensions
        self._collected = Collected()
        self._standing = self._read_standing()

    def carry_out(self) -> None:
        for item in self._writes:
            group = self._groups.get(item.group)
            standing = self._standing.get((item.group, item.sequence), Standing())
            match item:
                case Commit():
                    self._commit(item, group, standing)
                case _ if group is None:
                    continue
                case Extracted():
                    self._extract(item, standing)
                case Answered():
                    self._answer(item, standing)
                case Failed():
                    self._fail(item, group, standing)
                case Declined():
                    self._decline(item, group, standing)
        Carrying(self._db, self._running, self._groups).carry(self._collected)

    def _read_standing(self) -> dict[Key, Standing]:
        asked: dict[Key, rows.Values] = {}
        for item in self._writes:
            named = {"group_id": item.group, "sequence": item.sequence, "text": False}
            asking = asked.setdefault((item.group, item.sequence), named)
            asking["text"] |= isinstance(item, Commit)
        found: dict[Key, Standing] = {}
        for portion in rows.portions(asked[key] for key in sorted(asked)):
            for row in self._db.run(self._running, cypher.STANDING, rows=portion):
                group, sequence, state, id_, kind, client_id, said, speaker, text, operation_state = row
                found[group, sequence] = Standing(
                    state=state, id=id_, kind=kind, client_id=client_id, said=said, speaker=speaker,
                    text=text, operation_state=operation_state,
                )  # fmt: skip
        return found

    def _extract(self, item: Extracted, standing: Standing) -> None:
        if standing.state != rows.ACCEPTED:
            return
        standing.state = rows.EXTRACTED
        key = (item.group, item.sequence)
        named = {"group_id": item.group, "sequence": item.sequence}
        extraction = item.extraction
        self._collected.extractions[key] = named | {
            "calls": extraction.calls,
            "prompt_tokens": extraction.prompt_tokens,
            "completion_tokens": extraction.completion_tokens,
            "body": packing.storable(packing.extraction_body(extraction)),
        }
        self._collected.extracted[key] = named | {"put": {"state": rows.EXTRACTED}}

    def _answer(self, item: Answered, standing: Standing) -> None:
        """Keep the first answers, and note who uses them; nothing for a sequence without a row."""
        if standing.state is None and standing.operation_state is None:
            return
        named = {"group_id": item.group, "request": item.key}
        if item.judged is not None:
            judged = item.judged
            answers = named | {
                "body": packing.storable(packing.pack([dict(answer) for answer in judged.answers])),
                "calls": judged.calls,
                "prompt_tokens": judged.prompt_tokens,
                "completion_tokens": judged.completion_tokens,
            }
            self._collected.answers.setdefault((item.group, item.key), answers)
        use = named | {"sequence": item.sequence}
        self._collected.uses[item.group, item.sequence, item.key] = use

    def _fail(self, item: Failed, group: Group, standing: Standing) -> None:
        if standing.state is None or standing.state >= rows.COMMITTED:
            return
        standing.state = rows.FAILED
        failure = item.failure
        put = {
            "state": rows.FAILED,
            "ended_at": group.take_record_time(item.recorded_at),
            "failure_kind": failure.kind,
            "failure_message": packing.storable(failure.message),
            "failure_raw": packing.storable(failure.raw),
        }
        key = (item.group, item.sequence)
        self._collected.extracted.pop(key, None)
        named = {"group_id": item.group, "sequence": item.sequence}
        self._collected.failed[key] = named | {"put": put, "attempts": failure.attempts}

    def _decline(self, item: Declined, group: Group, standing: Standing) -> None:
        if standing.operation_state != rows.PENDING:
            return
        standing.operation_state = rows.REFUSED
        self._collected.operations[item.group, item.sequence] = {
            "group_id": item.group,
            "sequence": item.sequence,
            "state": rows.REFUSED,
            "recorded_at": group.take_record_time(item.recorded_at),
            "result": packing.pack({"error": packing.storable(item.reason)}),
            # Its names may be of what is removed later, and no removal would look for them here.
            "payload": packing.NOTHING_NAMED,
        }

    def _commit(self, commit: Commit, group: Group | None, standing: Standing) -> None:
        if group is None:
            raise StoreError(f"group {commit.group!r} has no sequence {commit.sequence}: it is empty")
        if _ended(commit, group, standing):
            return
        if commit.recorded_at <= group.last_recorded:
            raise Outrun(
                f"sequence {commit.sequence} of group {commit.group!r} bears the record time "
                f"{commit.recorded_at}, which is not past the group's last: nothing was changed, run it again"
            )
        group.last_recorded = commit.recorded_at
        collected = self._collected
        if commit.forgotten:
            erasing.forget(self._db, self._running, group, commit)
            return
        if erasing.erases(commit):
            erasing.erase(self._db, self._running, group, commit)
        if commit.operation is not None:
            standing.operation_state = rows.DONE
        else:
            standing.state = rows.COMMITTED
            collected.extracted.pop((commit.group, commit.sequence), None)
        collected.record(commit)
        collected.put_vectors(commit, self._dimensions)
        collected.derive(commit)
        collected.retire(commit)
        body = packing.pack(dict(commit.result))
        payload = None if commit.operation is None else packing.operation_payload(commit.operation)
        collected.end(commit, standing, body, payload)


def _ended(commit: Commit, group: Group, standing: Standing) -> bool:
    """Whether the sequence has ended, or was removed since."""
    own, other = standing.state, standing.operation_state
    if commit.operation is not None:
        own, other = other, own
    if own is None:
        if commit.sequence <= group.last and other is None:
            return True
        raise StoreError(f"group {commit.group!r} has no such sequence to commit: {commit.sequence}")
    return own >= (rows.COMMITTED if commit.operation is None else rows.DONE)
