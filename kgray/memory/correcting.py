"""Corrections: checked against what is there now, requested, and waited for.

Only a correction that can be carried out is requested, so a refusal or a no-op takes no sequence. If
something changes between the check and the correction's turn, the correction ends as refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from kgray.derivation import names
from kgray.derivation.entities import Fold
from kgray.derivation.stored import StoredView, records_of
from kgray.errors import InputError, NoSpace, NotFound, Stopped
from kgray.graph import Entity
from kgray.ledger import find, request, result, sequences_of
from kgray.memory.accepting import standing_ids
from kgray.memory.ingesting import queued_at, why
from kgray.memory.run_files import forget_texts
from kgray.ports import Store, at_one_moment
from kgray.ports.ingest import IngestOutcome, Stop
from kgray.records import Operation, OperationKind, check_group


class Corrections:
    """Requests corrections of one store."""

    def __init__(
        self, store: Store, carry_out: Callable[..., Awaitable[IngestOutcome]], data: Path | None
    ) -> None:
        """carry_out: as `Ingest.carry_out`. data: the data folder, whose backfill runs may hold texts."""
        self._store, self._carry_out, self._data = store, carry_out, data

    async def ask(self, group: str, kind: OperationKind, stop: Stop, **what: Any) -> dict[str, Any]:  # noqa: ANN401
        """Request a correction and wait until it is carried out; return its result, {} for a no-op.

        Raises Stopped where `stop()` or an outage came first, InputError where it was refused.
        """
        check_group(group)
        # This group's alone: a correction does not wait for other groups.
        done = await self._carry_out({}, groups={group}, stop=stop)
        if done.stopped or stop():
            raise Stopped(f"stopped before the {kind} was asked for{why(done)}; run it again")
        operation = Operation(group=group, kind=kind, **what)
        if not would_change(self._store, operation):
            return {}
        if kind == "remove":
            self._forget_texts()  # before the request: from then on any process that ingests carries it out
        sequence = request(self._store, operation)
        try:
            done = await self._carry_out(queued_at(group, [sequence]), groups={group}, stop=stop)
        finally:
            if kind == "remove":
                self._forget_texts()  # what a run has kept since
        answer = result(self._store, group, sequence)
        if answer is None:
            raise Stopped(
                f"stopped before {kind} {sequence} was carried out{why(done)}; the next add does it"
            )
        if "error" in answer:
            raise InputError(str(answer["error"]))
        return {"sequence": sequence, **answer}

    async def take_out(
        self,
        kind: OperationKind,
        group: str,
        episodes: Sequence[str],
        source: str | None,
        everything: bool,
        stop: Stop,
    ) -> dict[str, Any]:
        """Retract or remove episodes, chosen in exactly one way: by ids, by source, or `everything`; wait."""
        if sum((bool(episodes), source is not None, everything)) != 1:
            raise InputError("say which episodes: their ids, or a source, or everything; one of these")
        zeros = dict.fromkeys(("episodes", "statements", "facts_closed", "facts_reopened", "entities"), 0)
        chosen = {"episodes": tuple(episodes), "source": source, "everything": everything}
        answer = await self.ask(group, kind, stop, **chosen)
        done = zeros | {key: value for key, value in answer.items() if key in zeros or key == "sequence"}
        if kind == "remove":
            done["compacted"] = self._compacted()
        return done

    def _forget_texts(self) -> None:
        if self._data is not None:
            forget_texts(self._data)

    def _compacted(self) -> bool:
        try:
            return self._store.compact()
        except NoSpace as error:
            left = "what was named is removed, but its bytes are still in the file"
            raise Stopped(f"{left}: {error}") from None


def would_change(store: Store, operation: Operation) -> bool:
    """Return whether the operation would change anything.

    Raises NotFound or InputError where a merge, split or undo is not possible on what is committed. While
    anything is pending in the group, an undo is not checked: what is committed cannot decide it.
    """

    def checked() -> bool:
        match operation.kind:
            case "merge":
                _check_merge(store, operation)
            case "split":
                _check_split(store, operation)
            case "undo":
                _check_undo(store, operation)
            case "remove":
                return _stored(store, operation)
            case "retract":
                return _live(store, operation)
        return True

    return at_one_moment(store, checked)


def _shown(store: Store, group: str, asked: str) -> Entity:
    found = StoredView(store, group).entities([asked])
    for entity in found:
        if entity.id == asked or len(found) == 1:
            return entity
    raise NotFound(f"group {group} has no entity {asked!r}")


def _check_merge(store: Store, operation: Operation) -> None:
    shown = {_shown(store, operation.group, asked).id for asked in operation.entities}
    if len(shown) < 2:
        raise InputError(f"{' and '.join(operation.entities)} are one entity already: nothing to merge")


def _check_split(store: Store, operation: Operation) -> None:
    entity = _shown(store, operation.group, operation.entities[0])
    surfaces = (entity.name, *entity.aliases)
    keys = {names.key(surface) for surface in surfaces}
    for surface in operation.surfaces:
        if names.key(surface) not in keys:
            known = ", ".join(map(repr, surfaces))
            raise InputError(f"{entity.name!r} has no surface {surface!r}: its surfaces are {known}")
    if {names.key(surface) for surface in operation.surfaces} == keys:
        raise InputError(f"a split needs some, not all, of the surfaces of {entity.name!r}")


def _check_undo(store: Store, operation: Operation) -> None:
    if not store.heads([operation.group])[operation.group].named:
        raise NotFound(f"there is no group {operation.group}: nothing to undo")
    if store.pending_count(operation.group):
        return
    records = records_of(store, operation.group)
    Fold(records.operations, records.births, records.recorded).check_undo(operation.target or 0)


def _stored(store: Store, operation: Operation) -> bool:
    """Whether anything that a removal names is stored, retracted rows included."""
    if operation.everything:
        return store.heads([operation.group])[operation.group].named
    return bool(sequences_of(store, operation.group, ids=operation.episodes, source=operation.source))


def _live(store: Store, operation: Operation) -> bool:
    """Whether a retraction names an episode that was not retracted yet, in whatever state it is."""
    group = operation.group
    if operation.everything:
        held = store.counts(group)[group]
        return bool(held.accepted + held.extracted + held.committed + held.failed)
    if operation.source is not None:
        return bool(standing_ids(store, group, operation.source))
    return any(find(store, group, id_).episodes for id_ in operation.episodes)
