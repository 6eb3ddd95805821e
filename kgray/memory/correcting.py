"""Corrections before they are asked for: whether they can be carried out on what is there now.

Only what can be is asked for, so a refusal or a no-op takes no sequence (semantics, section 1). What
changes between the look and its turn is seen then, and the correction ends as refused.
"""

from __future__ import annotations

from kgray.derivation import names
from kgray.derivation.entities import Fold
from kgray.derivation.stored import StoredView, records_of
from kgray.errors import InputError, NotFound
from kgray.graph import Entity
from kgray.ledger import find, sequences_of
from kgray.memory.accepting import standing_ids
from kgray.ports import Store
from kgray.records import Operation


def check(store: Store, operation: Operation) -> bool:
    """Return whether the operation would change anything.

    Raises NotFound or InputError where it cannot be done: of a merge, split or undo with what is
    committed; while anything is pending in the group, that alone cannot tell of an undo.
    """
    with store.reading():
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
    """Whether anything of what a removal names is stored, retracted rows included."""
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
