"""The corrections of `Memory`: merge, split, distinct and undo (R16); retractions and removals (R25, R27).

Only a correction that can be carried out is requested, so a refusal or a no-op takes no sequence. A merge,
split or undo first has what is pending ingested, then takes its place behind it and waits for its turn; if
something changes before that, it ends as refused. A retraction or removal is carried out at once, without a
model, before pending entries.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, Unpack

from kgray.domain.graph import Entity, EpisodeRef
from kgray.domain.records import Operation, OperationKind, check_group
from kgray.errors import InputError, Locked, NoSpace, NotFound, Stopped, Unavailable
from kgray.graph import names
from kgray.graph.dump import DumpRow
from kgray.graph.names import Fold
from kgray.graph.stored import records_of, view_now
from kgray.ingest.correct import withdraw_requested
from kgray.memory.access import Webhooks
from kgray.memory.answers import entity_called
from kgray.memory.exploring import Exploration
from kgray.memory.options import CorrectionOptions
from kgray.memory.results import Correction, Rereading, WithdrawalCounts
from kgray.ports import Embedder, Store, at_one_moment
from kgray.ports.ingest import Ingest, IngestOutcome, OnWait, Queued, Sequences, Stop, embedded, never
from kgray.schema.reads import EpisodeHeadRow, TakenRow
from kgray.storage.ledger import (
    episodes_with_context,
    find,
    named_episodes,
    request,
    request_reading_again,
    result,
)
from kgray.system.locks import explained

RUNS = "runs"  # in the data folder, the folder of the folders of backfill runs
# The refused rows of a run, with the reasons; in the data folder, those of the last `kgray add` with many.
REFUSED = "refused.jsonl"
REPORT = "report.json"  # of a run: with the messages of episodes that failed
CorrectionKind = Literal["merge", "distinct", "split", "undo"]
_COUNTED = ("episodes", "statements", "facts_closed", "facts_reopened", "entities")
# Whoever holds the store looks for removals four times a second. Only after 2 seconds is the runtime asked,
# which may have to start, and tells what is wrong.
_LOOKS, _PAUSE_S = 40, 0.05


class Corrections(Exploration):
    """The corrections of one store. data, previous: as of `Memory`."""

    runtime: Ingest
    on_wait: OnWait
    data: Path | None
    _previous: int

    @cached_property
    @abstractmethod
    def embedder(self) -> Embedder:
        """The embedder of the store's vectors."""

    @abstractmethod
    def check_embedder(self) -> None:
        """Raise StoreError or SettingsError where there is no embedder for the store: before a change."""

    async def merge(self, first: str, second: str, *, group: str, stop: Stop = never) -> Correction:
        """Merge two entities (R16), called by name, id or its beginning. Raises NotFound, Ambiguous."""
        return await self._correct("merge", group, stop, entities=(first, second))

    async def split(
        self, entity: str, surfaces: Sequence[str], *, group: str, stop: Stop = never
    ) -> Correction:
        """Make the mentions with these surfaces another entity (R16)."""
        if not surfaces:
            raise InputError("no surface: say which names are another entity", field="surface")
        return await self._correct("split", group, stop, entities=(entity,), surfaces=tuple(surfaces))

    async def distinct(self, first: str, second: str, *, group: str, stop: Stop = never) -> Correction:
        """Record that two entities are not one, until it is undone (R16); called as for `merge`."""
        return await self._correct("distinct", group, stop, entities=(first, second))

    async def undo(self, sequence: int, *, group: str, stop: Stop = never) -> Correction:
        """Undo the merge, split or distinction with this sequence."""
        return await self._correct("undo", group, stop, target=sequence)

    async def request(self, kind: CorrectionKind, *, group: str, **fields: Unpack[CorrectionOptions]) -> int:
        """Request a merge, split, distinct or undo and return its sequence; the process that ingests does it.

        fields  entities, surfaces or target of a `records.Operation`, checked against the committed graph. An
                undo is not checked while entries of the group are pending: the graph cannot decide it yet
        Raises NotFound or InputError.
        """
        check_group(group)
        self.check_embedder()

        def checked() -> Operation:
            operation = Operation(group=group, kind=kind, **fields)
            if kind == "undo":
                _check_undo(self.store, operation)
                return operation
            view = view_now(self.store, group)
            ids = [(name, entity_called(self.store, view, name).id) for name in operation.entities]
            # An id stays itself, even if its entity appears as another entity.
            resolved = [name if find(self.store, group, name).entity else id_ for name, id_ in ids]
            operation = replace(operation, entities=tuple(resolved))
            _check_entities(self.store, operation)
            return operation

        return request(self.store, at_one_moment(self.store, checked))

    async def retract(
        self, *, group: str, episodes: Sequence[str] = (), source: str | None = None,
        everything: bool = False, stop: Stop = never,
    ) -> WithdrawalCounts:  # fmt: skip
        """Retract episodes; reads with an earlier `known_at` still see them (R25).

        Done on return, without a model and before pending entries (R27). Raises Stopped where another process
        holds the store and `stop()` came before it has carried it out.
        """
        selection = {"episodes": tuple(episodes), "source": source, "everything": everything}
        return await self._take_out("retract", group, selection, stop)

    async def remove(
        self, *, group: str, episodes: Sequence[str] = (), source: str | None = None,
        everything: bool = False, reread: bool = False, stop: Stop = never,
    ) -> WithdrawalCounts:  # fmt: skip
        """Erase episodes and every trace of them (R25). Else as `retract`.

        The facts of episodes whose previous context has a removed episode stay, unless `reread`: then these
        episodes are ingested again, which needs the model and is awaited.
        """
        selection = {"episodes": tuple(episodes), "source": source, "everything": everything}
        return await self._take_out("remove", group, selection, stop, reread=reread)

    async def foresee(
        self, kind: OperationKind, *, group: str, **fields: Unpack[CorrectionOptions]
    ) -> list[DumpRow]:  # fmt: skip
        """Return the changes of a correction or retraction, as rows of the dump with "op"; writes nothing.

        fields  as for `request`; of a retraction: episodes. Raises NotFound or InputError.
        """
        from kgray.ingest.preview import correction_rows

        def foreseen() -> list[DumpRow]:
            operation = Operation(group=check_group(group), kind=kind, **fields)
            if not operation.withdraws and kind != "undo":
                view = view_now(self.store, group)
                ids = tuple(entity_called(self.store, view, name).id for name in operation.entities)
                operation = replace(operation, entities=ids)
            return correction_rows(self.store, operation)

        return at_one_moment(self.store, foreseen)

    async def _carry_out(self, queued: Mapping[str, Queued] | None, **options: Any) -> IngestOutcome:  # noqa: ANN401
        return await self.runtime.carry_out(queued, on_wait=self.on_wait, **options)

    async def _correct(self, kind: CorrectionKind, group: str, stop: Stop, **fields: Any) -> Correction:  # noqa: ANN401
        """Request a correction, wait for its result. Raises Stopped, and InputError where it is refused."""
        check_group(group)
        self.check_embedder()
        # This group's alone: a correction does not wait for other groups.
        outcome = await self._carry_out({}, groups={group}, stop=stop)
        if outcome.stopped or stop():
            raise Stopped(f"stopped before the {kind} was asked for{_why(outcome)}; run it again")
        sequence = await self.request(kind, group=group, **fields)
        outcome = await self._carry_out({group: Queued(last=sequence)}, groups={group}, stop=stop)
        answer = self._result(kind, group, sequence, _why(outcome))
        if "error" in answer:
            raise InputError(str(answer["error"]))
        return Correction(**{"sequence": sequence, **answer})

    def _result(self, kind: str, group: str, sequence: int, reason: str) -> Mapping[str, Any]:
        """Return the result of an operation. Raises Stopped where it was not carried out."""
        answer = result(self.store, group, sequence)
        if answer is None:
            raise Stopped(f"stopped before {kind} {sequence} was carried out{reason}; the next add does it")
        return answer

    async def _take_out(
        self,
        kind: OperationKind,
        group: str,
        selection: Mapping[str, Any],
        stop: Stop,
        *,
        reread: bool = False,
    ) -> WithdrawalCounts:
        """Retract or remove episodes; selection: exactly one of `episodes` (ids), `source`, `everything`."""
        operation, hard = Operation(group=check_group(group), kind=kind, **selection), kind == "remove"
        if sum((bool(operation.episodes), operation.source is not None, operation.everything)) != 1:
            raise InputError("say which episodes: their ids, or a source, or everything; one of these")
        self.check_embedder()
        episodes, context_readers = at_one_moment(self.store, lambda: self._chosen_episodes(operation))
        changes = any(hard or row.retired_at is None for row in episodes)
        if hard and operation.everything:
            changes = changes or self.store.heads([group])[group].named
        counts: dict[str, Any] = {"absent": _absent(operation, episodes, exists=changes)}
        to_read: list[int] = []
        if changes:
            self._forget(operation, episodes)  # before the request, which may be carried out at once
            if stop():
                raise Stopped(f"stopped before the {kind} was asked for; run it again")
            if reread and context_readers:
                ids = [row.sequence for row in context_readers]
                sequence, to_read = request_reading_again(self.store, operation, ids)
            else:
                sequence = request(self.store, operation)
            try:
                answer = await self._at_once(operation, sequence, stop)
            finally:
                self._forget(operation, episodes)  # the files that a run has written since
            counts |= {"sequence": sequence} | {name: answer[name] for name in _COUNTED}
            if to_read:
                counts["episodes"] = len(episodes)
        if hard:
            counts["context_of"] = tuple(EpisodeRef(row.id, row.client_id) for row in context_readers)
            try:
                counts["compacted"] = self.store.compact()
            except NoSpace as error:
                message = "what was named is removed, but its bytes are still in the file"
                raise Stopped(f"{message}: {error}") from None
        if reread:
            counts["reread"] = await self._ingested(group, to_read, stop)
        return WithdrawalCounts(**counts)

    def _chosen_episodes(self, operation: Operation) -> tuple[list[TakenRow], list[EpisodeHeadRow]]:
        """Return the chosen episodes, and the episodes whose previous context has a removed episode."""
        episodes = named_episodes(self.store, operation)
        if operation.kind != "remove" or operation.everything:
            return episodes, []
        removed = {row.sequence for row in episodes}
        return episodes, episodes_with_context(self.store, operation.group, removed, self._previous)

    async def _at_once(self, operation: Operation, sequence: int, stop: Stop) -> Mapping[str, Any]:
        """Carry out what is requested, or wait for the process that holds the store, which does it first."""
        group, reason = operation.group, ""

        def carried_out() -> bool:
            return result(self.store, group, sequence) is not None

        try:
            with self.store.writing():
                await withdraw_requested(self.store, partial(embedded, self.embedder), group)
        except Locked:
            for _ in range(_LOOKS):
                if carried_out() or stop():
                    break
                await asyncio.sleep(_PAUSE_S)
            else:
                ends: Stop = lambda: stop() or carried_out()  # noqa: E731
                waited = await self._carry_out({}, groups={group}, more=lambda: not carried_out(), stop=ends)
                reason = _why(waited)
        except (NoSpace, Unavailable) as error:
            reason = f" ({error})"
        return self._result(operation.kind, group, sequence, reason)

    async def _ingested(self, group: str, sequences: Sequence[int], stop: Stop) -> Rereading:
        outcome = IngestOutcome()
        if sequences:
            queued = {group: Queued(sequences=Sequences(sequences), last=sequences[-1])}
            outcome = await self._carry_out(queued, groups={group}, before={}, stop=stop)
        names = ("committed", "failed", "stopped", "reason")
        return Rereading(accepted=len(sequences), **{name: getattr(outcome, name) for name in names})

    def _forget(self, operation: Operation, removed: Sequence[TakenRow]) -> None:
        """Delete a group's webhooks, and texts of removed episodes in files beside the store (R25)."""
        if operation.kind != "remove":
            return
        if operation.everything:
            Webhooks(self.store).drop(operation.group, None)
        if self.data is None:
            return
        quotes = {
            text
            for row in removed
            for text in (row.content_sha256, f"id {row.client_id!r} is taken")
            if row.client_id
        }
        lines = {json.dumps(text, ensure_ascii=escaped)[1:-1] for text in quotes for escaped in (True, False)}
        with explained(self.data):
            (self.data / REFUSED).unlink(missing_ok=True)
        for run in (self.data / RUNS).glob("*/"):
            with explained(run):
                shutil.rmtree(run / "sorted", ignore_errors=True)  # rows that an earlier version sorted there
                (run / REPORT).unlink(missing_ok=True)
                if (run / REFUSED).exists():
                    with (run / REFUSED).open("r+b") as file:  # in place: a run may go on to append
                        content = file.read()
                        for line in lines:
                            for match in re.finditer(re.escape(line.encode()), content):
                                file.seek(match.start())
                                file.write(b"-" * len(match[0]))


def _absent(operation: Operation, episodes: Sequence[TakenRow], *, exists: bool) -> tuple[str, ...]:
    if operation.episodes:
        names_found = {name for row in episodes for name in (row.id, row.client_id)}
        return tuple(id_ for id_ in dict.fromkeys(operation.episodes) if id_ not in names_found)
    if episodes or exists:
        return ()
    return (operation.group if operation.source is None else operation.source,)


def _why(outcome: IngestOutcome) -> str:
    """Return the reason in brackets, for a message; "" where there is none."""
    reason = outcome.reason or next(iter(outcome.held.values()), "")
    return f" ({reason})" if reason else ""


def _check_entities(store: Store, operation: Operation) -> None:
    """Raise InputError or NotFound where a merge, distinction or split cannot be carried out."""
    group, called, chosen = operation.group, operation.entities, list[Entity]()
    for identifier in called:
        matching = view_now(store, group).entities([identifier])
        entity = next((entity for entity in matching if entity.id == identifier or len(matching) == 1), None)
        if entity is None:
            raise NotFound(f"group {group} has no entity {identifier!r}")
        chosen.append(entity)
    if operation.kind != "split":
        if len(ids := {entity.id for entity in chosen}) < 2:
            raise InputError(f"{' and '.join(called)} are one entity already: nothing to merge")
        records = records_of(store, group, within=[])
        Fold(records.operations, records.births, records.recorded).check_together(operation, ids)
        return
    surfaces = (chosen[0].name, *chosen[0].aliases)
    keys, requested = (
        set(map(names.key, surfaces)),
        {names.key(entity): entity for entity in operation.surfaces},
    )
    for key, surface in requested.items():
        if key not in keys:
            listed = ", ".join(map(repr, surfaces))
            raise InputError(f"{surfaces[0]!r} has no surface {surface!r}: its surfaces are {listed}")
    if requested.keys() == keys:
        raise InputError(f"a split needs some, not all, of the surfaces of {surfaces[0]!r}")


def _check_undo(store: Store, operation: Operation) -> None:
    if not store.heads([operation.group])[operation.group].named:
        raise NotFound(f"there is no group {operation.group}: nothing to undo")
    if store.pending_count(operation.group):
        return
    records = records_of(store, operation.group)
    Fold(records.operations, records.births, records.recorded).check_undo(operation.target or 0)
