"""Corrections: merge, split, distinct and undo (R16); retractions and removals (R25, R27).

Only a correction that can be carried out is requested, so a refusal or a no-op takes no sequence. A merge,
split or undo takes its place behind what is pending; if something changes before its turn, it ends as
refused. A retraction or removal is requested and carried out at once, whatever is pending.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from kgray.derivation import names
from kgray.derivation.names import Fold
from kgray.derivation.stored import records_of, view_now
from kgray.errors import InputError, Locked, NoSpace, NotFound, Stopped, Unavailable
from kgray.graph import Entity
from kgray.ingest.withdraw import withdraw_requested
from kgray.kinds import Row
from kgray.ledger import named, read_with, request, request_reading_again, result
from kgray.memory.ingesting import why
from kgray.memory.naming import entity_ids
from kgray.memory.run_files import forget_texts
from kgray.memory.webhooks import Webhooks
from kgray.ports import Embedder, Store, at_one_moment, embedded
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
                await withdraw_requested(self._store, partial(embedded, self._embedder), group)
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
            Webhooks(self._store).drop(operation.group, None)
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


CorrectionKind = Literal["merge", "distinct", "split", "undo"]


async def corrected(
    store: Store,
    carry_out: Callable[..., Awaitable[IngestOutcome]],
    kind: CorrectionKind,
    group: str,
    stop: Stop,
    **what: Any,  # noqa: ANN401
) -> dict[str, Any]:
    """Request a correction and wait until it is carried out; return its result.

    carry_out, stop: as `Ingest.carry_out`. Raises Stopped where `stop()` or an outage came first, InputError
    where it was refused.
    """
    check_group(group)
    # This group's alone: a correction does not wait for other groups.
    done = await carry_out({}, groups={group}, stop=stop)
    if done.stopped or stop():
        raise Stopped(f"stopped before the {kind} was asked for{why(done)}; run it again")
    sequence = requested(store, kind, group, **what)
    done = await carry_out({group: Queued(last=sequence)}, groups={group}, stop=stop)
    answer = result(store, group, sequence)
    if answer is None:
        raise Stopped(f"stopped before {kind} {sequence} was carried out{why(done)}; the next add does it")
    if "error" in answer:
        raise InputError(str(answer["error"]))
    return {"sequence": sequence, **answer}


def requested(store: Store, kind: CorrectionKind, group: str, **what: Any) -> int:  # noqa: ANN401
    """Check a correction against what is committed, and request it; return its sequence.

    While anything is pending in the group, an undo is not checked: what is committed cannot decide it. Raises
    NotFound or InputError.
    """
    check_group(group)
    if called := what.get("entities"):
        what["entities"] = entity_ids(store, group, called)
    operation = Operation(group=group, kind=kind, **what)
    checks = {"merge": _check_merge, "distinct": _check_merge, "split": _check_split, "undo": _check_undo}
    at_one_moment(store, lambda: checks[kind](store, operation))
    return request(store, operation)


def _shown(store: Store, group: str, asked: str) -> Entity:
    found = view_now(store, group).entities([asked])
    for entity in found:
        if entity.id == asked or len(found) == 1:
            return entity
    raise NotFound(f"group {group} has no entity {asked!r}")


def _check_merge(store: Store, operation: Operation) -> None:
    shown = {_shown(store, operation.group, asked).id for asked in operation.entities}
    if len(shown) < 2:
        raise InputError(f"{' and '.join(operation.entities)} are one entity already: nothing to merge")
    records = records_of(store, operation.group, within=[])
    Fold(records.operations, records.births, records.recorded).check_together(operation, shown)


def _check_split(store: Store, operation: Operation) -> None:
    entity = _shown(store, operation.group, operation.entities[0])
    surfaces = (entity.name, *entity.aliases)
    keys, asked = set(map(names.key, surfaces)), {names.key(one): one for one in operation.surfaces}
    for key, surface in asked.items():
        if key not in keys:
            known = ", ".join(map(repr, surfaces))
            raise InputError(f"{entity.name!r} has no surface {surface!r}: its surfaces are {known}")
    if asked.keys() == keys:
        raise InputError(f"a split needs some, not all, of the surfaces of {entity.name!r}")


def _check_undo(store: Store, operation: Operation) -> None:
    if not store.heads([operation.group])[operation.group].named:
        raise NotFound(f"there is no group {operation.group}: nothing to undo")
    if store.pending_count(operation.group):
        return
    records = records_of(store, operation.group)
    Fold(records.operations, records.births, records.recorded).check_undo(operation.target or 0)
