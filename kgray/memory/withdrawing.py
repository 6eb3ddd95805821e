"""Retractions and removals: requested and carried out at once, whatever is pending (R25, R27)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kgray.errors import InputError, Locked, NoSpace, Stopped, Unavailable
from kgray.ingest.withdraw import withdraw_requested
from kgray.kinds import Row
from kgray.ledger import named, read_with, request, request_reading_again, result
from kgray.memory.ingesting import why
from kgray.memory.run_files import forget_texts
from kgray.memory.webhooks import Webhooks
from kgray.ports import Embedder, Store, at_one_moment
from kgray.ports.ingest import IngestOutcome, Queued, Sequences, Stop
from kgray.records import Operation, OperationKind, check_group

_COUNTED = ("episodes", "statements", "facts_closed", "facts_reopened", "entities")
# Whoever holds the store looks for removals four times a second. Only after 2 seconds is the runtime asked,
# which may have to start, and tells what is wrong.
_LOOKS, _PAUSE_S = 40, 0.05


class Withdrawals:
    """Retracts and removes episodes of one store."""

    def __init__(
        self,
        store: Store,
        embedder: Embedder,
        carry_out: Callable[..., Awaitable[IngestOutcome]],
        *,
        data: Path | None,
        previous: int,
    ) -> None:
        """carry_out: as `Ingest.carry_out`; data, previous: as of `Memory`."""
        self._store, self._embedder, self._carry_out = store, embedder, carry_out
        self._data, self._previous = data, previous

    async def take_out(
        self, kind: OperationKind, group: str, chosen: Mapping[str, Any], stop: Stop, *, reread: bool = False
    ) -> dict[str, Any]:
        """Retract or remove episodes; chosen: exactly one of `episodes` (ids), `source`, `everything`.

        The result is that of `Memory.remove`. Raises Stopped where another process holds the store and
        `stop()` came before it has carried it out.
        """
        operation = Operation(group=check_group(group), kind=kind, **chosen)
        if sum((bool(operation.episodes), operation.source is not None, operation.everything)) != 1:
            raise InputError("say which episodes: their ids, or a source, or everything; one of these")
        found, followers = at_one_moment(self._store, lambda: self._found(operation))
        hard = operation.kind == "remove"
        changes = bool(found) if hard else any(row[5] is None for row in found)
        if operation.everything:
            changes = changes or (hard and self._store.heads([operation.group])[operation.group].named)
        done: dict[str, Any] = dict.fromkeys(_COUNTED, 0)
        done["absent"] = _absent(operation, found, there=changes)
        again: list[int] = []
        if changes:
            if hard:
                # Before the request: from then on whoever ingests carries it out.
                self._forget(operation, found)
            sequence, again = self._request(operation, followers if reread else [], stop)
            try:
                answer = await self._at_once(operation, sequence, stop)
            finally:
                if hard:
                    self._forget(operation, found)  # what a run has kept since
            done |= {"sequence": sequence} | {name: answer[name] for name in _COUNTED}
            if again:
                done["episodes"] = len(found)
        if hard:
            done["context_of"] = [{"id": row[1], "client_id": row[2]} for row in followers]
            try:
                done["compacted"] = self._store.compact()
            except NoSpace as error:
                left = "what was named is removed, but its bytes are still in the file"
                raise Stopped(f"{left}: {error}") from None
        if reread:
            done["reread"] = await self._ingested(operation.group, again, stop)
        return done

    def _found(self, operation: Operation) -> tuple[list[Row], list[Row]]:
        found = named(self._store, operation)
        if operation.kind != "remove" or operation.everything:
            return found, []
        gone = {row[0] for row in found}
        return found, read_with(self._store, operation.group, gone, self._previous)

    def _request(self, operation: Operation, followers: Sequence[Row], stop: Stop) -> tuple[int, list[int]]:
        """Append the request; return its sequence, and those at which the followers are accepted anew."""
        if stop():
            raise Stopped(f"stopped before the {operation.kind} was asked for; run it again")
        if not followers:
            return request(self._store, operation), []
        return request_reading_again(self._store, operation, [row[0] for row in followers])

    async def _at_once(self, operation: Operation, sequence: int, stop: Stop) -> Mapping[str, Any]:
        """Carry out what is requested, or wait for the process that holds the store, which does it first."""
        group, reason = operation.group, ""

        def carried_out() -> bool:
            return result(self._store, group, sequence) is not None

        try:
            with self._store.writing():
                await withdraw_requested(self._store, self._embedder, group)
        except Locked:
            for _ in range(_LOOKS):
                if carried_out() or stop():
                    break
                await asyncio.sleep(_PAUSE_S)
            else:
                ends: Stop = lambda: stop() or carried_out()  # noqa: E731
                waited = await self._carry_out({}, groups={group}, more=lambda: not carried_out(), stop=ends)
                reason = why(waited)
        except (NoSpace, Unavailable) as error:
            reason = f" ({error})"
        answer = result(self._store, group, sequence)
        if answer is None:
            raise Stopped(
                f"stopped before {operation.kind} {sequence} was carried out{reason}; the next add does it"
            )
        return answer

    async def _ingested(self, group: str, sequences: Sequence[int], stop: Stop) -> dict[str, Any]:
        """Wait until the episodes that are read anew have ended; return what became of them."""
        done = IngestOutcome()
        if sequences:
            queued = {group: Queued(sequences=Sequences(sequences), last=sequences[-1])}
            done = await self._carry_out(queued, groups={group}, before={}, stop=stop)
        ended = {"committed": done.committed, "failed": done.failed}
        return {"accepted": len(sequences)} | ended | {"stopped": done.stopped, "reason": done.reason}

    def _forget(self, operation: Operation, removed: Sequence[Row]) -> None:
        """Delete what backfill runs keep of these: refusals quote ids. Of a group, its webhooks too."""
        if operation.everything:
            Webhooks(self._store).forget(operation.group)
        if self._data is not None:
            quotes = {text for row in removed for text in (row[4], f"id {row[2]!r} is taken") if row[2]}
            forget_texts(self._data, quotes)


def _absent(operation: Operation, found: Sequence[Row], *, there: bool) -> list[str]:
    """Return which of the ids, or the source or the group, are not there; retracted episodes are."""
    if operation.episodes:
        held = {name for row in found for name in row[1:3]}
        return [id_ for id_ in dict.fromkeys(operation.episodes) if id_ not in held]
    if found or there:
        return []
    return [operation.group if operation.source is None else operation.source]
