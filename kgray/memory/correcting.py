"""Merge, split, undo: checked against what is there now, requested, and waited for.

Only a correction that can be carried out is requested, so a refusal or a no-op takes no sequence. A merge,
split or undo takes its place behind what is pending; if something changes before its turn, it ends as
refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal

from kgray.derivation import names
from kgray.derivation.names import Fold
from kgray.derivation.stored import records_of, view_now
from kgray.errors import InputError, NotFound, Stopped
from kgray.graph import Entity
from kgray.ledger import request, result
from kgray.memory.ingesting import why
from kgray.memory.naming import entity_ids
from kgray.ports import Store, at_one_moment
from kgray.ports.ingest import IngestOutcome, Queued, Stop
from kgray.records import Operation, check_group

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
