"""Replace the actors of a running deployment one by one, and change its number of shards.

Episodes are ingested meanwhile: a sequencer commits its episodes in flight before it ends, a worker gives its
unfinished requests back, and everything else is in the store. After each step every group has a sequencer, so
a command that was killed can be run again, and goes on.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import ray
from ray.util.placement_group import remove_placement_group

from kgray.errors import KgrayError, SettingsError, StaleWriter, Unavailable
from kgray.ports import Store
from kgray.ports.ingest import OnWait
from kgray.runtime.actors import Handle, answer, submit
from kgray.runtime.balance import Move, moves
from kgray.runtime.deploy import (
    ENGINE_S,
    Deployment,
    find,
    groups_of,
    kind_of,
    names_in,
    order,
    plan_of,
    start_actors,
)
from kgray.runtime.pools import Lost
from kgray.runtime.spec import FIXED, POOLS, DeploymentSpec, changed_keys, differences
from kgray.runtime.watch import name_of

_DRAIN_S = 10.0  # beyond the grace time
_PAUSE_S = 0.1
_LOOK_S = 5.0  # for the answers of all actors
_MOVE_S = 60.0  # for the owner of slots to hand them over; a large removal may take it so long
_TRIES = 5  # of one move: its owner may be replaced meanwhile


@dataclass(slots=True)
class Replacement:
    """Which actors were replaced, each with the keys that have changed, and which were ended."""

    spec: DeploymentSpec
    replaced: dict[str, list[str]] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)


def roll(spec: DeploymentSpec, shards: int | None, *, chosen: bool, tell: OnWait) -> Replacement:
    """Replace the actors of a running deployment that were built from another spec, one by one.

    shards  their number; None: as many as the store has
    chosen  whether the profile was named in the settings; if not, the profile of the running actors is kept
    Raises SettingsError, before anything has changed, for keys that cannot change while actors run; that, or
    Unavailable, where a new actor does not come up: the others are left as they are.
    """
    there = find(spec.namespace)
    if there is None or not there.sequencers:
        return Replacement(spec)
    former = there.spec
    if not chosen:
        spec = replace(spec, profile=former.profile)
    if shards is None:
        with closing(spec.open_store()) as store:
            shards = store.shard_map().shards
        if shards != spec.cluster.sequencer.shards:
            tell(
                f"there are {shards} shards, and the profile has sequencer.shards = "
                f"{spec.cluster.sequencer.shards}: their number stays; to change it: kgray scale --shards N"
            )
    spec = spec.with_shards(shards)
    if fixed := [line for line in differences(spec, former) if line.startswith(FIXED)]:
        raise SettingsError(
            f"this cannot change while the actors run: {'; '.join(fixed)}. Use the same, or end them first: "
            f"kgray down"
        )
    return _Roll(spec, there, tell).carried_out()


class _Roll:
    """One replacement of actors."""

    def __init__(self, spec: DeploymentSpec, there: Deployment, tell: OnWait) -> None:
        self._spec, self._tell, self._actors = spec, tell, dict(there.actors)
        self._new = set[str]()  # actors of the new spec
        rows = there.status(_LOOK_S, "describe")
        # An actor that waits for a node says nothing; it was probably built from the spec of the others.
        specs = {name: rows[name].get("spec", there.spec) for name in there.actors}
        plan = plan_of(spec, detached=True, most=True)
        self._plan = plan_of(spec, detached=True).keys()
        keys = {name: changed_keys(spec, of, kind_of(name)) for name, of in specs.items()}
        self._made = Replacement(
            spec,
            {name: changed for name, changed in keys.items() if changed and name in plan},
            [name for name in there.actors if name not in plan],
        )

    def carried_out(self) -> Replacement:
        made = self._made
        if made.replaced or made.ended:
            for name, handle in self._actors.items():  # an old keeper would restore actors with the old spec
                if kind_of(name) in ("sequencer", "writer"):
                    with suppress(Unavailable):
                        answer(handle.retire.remote())
            for name in sorted(made.ended, key=order):  # the sequencers before their writers
                self._end(name)
            for shard in range(self._spec.cluster.sequencer.shards):
                self._renew(name_of(shard), f"writer-{shard}")
            # A worker may be replaced that is not always there.
            for name in sorted({*made.replaced, *self._plan}, key=order):
                if kind_of(name) in POOLS:
                    self._renew(name)
            self._renew(*self._plan)
        return made

    def _renew(self, *names: str) -> None:
        """Replace those actors that must be, start those that are missing, and wait until they work."""
        replaced = self._made.replaced
        due = [
            name
            for name in names
            if name not in self._new and (name in replaced if name in self._actors else name in self._plan)
        ]
        for name in (name for name in due if name in self._actors):
            self._tell(f"replacing {name}: {', '.join(replaced[name])} changed")
            self._end(name)
        if due:  # the writer first
            self._actors |= start_actors(self._spec, *reversed(due), detached=True).actors
            self._new.update(due)
        for name in due:
            self._wait_for(name)

    def _end(self, name: str) -> None:
        """Have an actor finish its work, within the grace time, and end it for good."""
        handle, kind, grace_s = self._actors.pop(name), kind_of(name), self._spec.cluster.limits.grace_s
        with suppress(Unavailable):  # it has no node, or Ray starts it again: it has nothing in hand
            if kind in ("sequencer", "writer", *POOLS):
                answer(handle.drain.remote(grace_s), grace_s + _DRAIN_S)
            if kind in POOLS:
                answer(handle.stop.remote(), ENGINE_S)
        ray.kill(handle, no_restart=True)
        for group in groups_of(f"{self._spec.namespace}/{name}") if kind in POOLS else ():
            remove_placement_group(group)
        until = time.monotonic() + self._spec.cluster.limits.start_deadline_s
        while name in names_in(self._spec.namespace):
            if time.monotonic() > until:
                raise Unavailable(f"{name} does not end; {_LEFT}", waited=True)
            time.sleep(_PAUSE_S)

    def _wait_for(self, name: str) -> None:
        """Wait until a new actor serves, or has loaded its model. Raises its fault, or Unavailable."""
        profile, table = self._spec.cluster, POOLS.get(kind_of(name))
        limit_s = getattr(profile, table).start_deadline_s if table else profile.limits.start_deadline_s
        until, row = time.monotonic() + limit_s, dict[str, Any]()
        while time.monotonic() < until:
            row = Deployment(self._spec, {name: self._actors[name]}).status(_LOOK_S)[name]
            if isinstance(fault := row.get("fault"), Exception):
                made = type(fault) if isinstance(fault, SettingsError | Unavailable) else Unavailable
                raise made(f"{name} does not come up: {fault}; {_LEFT}")
            works = row["state"] == "serving" if kind_of(name) == "sequencer" else row.get("loaded", True)
            if works and "pid" in row:
                return
            time.sleep(_PAUSE_S)
        why = row.get("waits_for") or row.get("reason") or "is there a node with room for it?"
        raise Unavailable(f"{name} has not come up within {limit_s:g} s: {why}; {_LEFT}", waited=True)


_LEFT = "the other actors are left as they are: run it again"


def scale(spec: DeploymentSpec, shards: int, *, tell: OnWait) -> Mapping[str, int]:
    """Change the number of shards of a running deployment; return the keys from, to, moved (slots).

    New shards exist before they have a sequencer, and have a sequencer before they get slots. A shard loses
    its slots before it is dropped, and is dropped before its sequencer ends. Raises as `roll` does.
    """
    there = find(spec.namespace)
    assert there is not None  # noqa: S101 - the caller has looked
    with closing(spec.open_store()) as store:
        # The first sequencers that serve a store may still divide it.
        until = time.monotonic() + spec.cluster.limits.start_deadline_s
        while not all(row.get("state") == "serving" for row in _served(there, store)):
            if time.monotonic() > until:
                raise Unavailable("not all sequencers serve: see kgray status", waited=True)
            time.sleep(_PAUSE_S)
        before, moved = store.shard_map().shards, 0
        if shards > before:
            store.set_shards(shards)
        elif shards < before:
            moved += _balanced(store, spec, shards, tell)
            store.set_shards(shards)
        roll(spec, shards, chosen=True, tell=tell)
        moved += _balanced(store, spec, shards, tell)
    return {"from": before, "to": shards, "moved": moved}


def _served(there: Deployment, store: Store) -> list[Mapping[str, Any]]:
    """Return the stats of the sequencers of the shards that there are."""
    shards = store.shard_map().shards
    rows = Deployment(there.spec, dict(zip(there.actors, there.sequencers, strict=False))).status(_LOOK_S)
    return [rows.get(name_of(shard), {}) for shard in range(shards)]


def _balanced(store: Store, spec: DeploymentSpec, shards: int, tell: OnWait) -> int:
    """Move slots until so many shards have equal shares; return how many were moved."""
    planned = list(moves(store.shard_map().owners, shards))
    total, moved, handles = sum(len(move.slots) for move in planned), 0, dict[int, Handle]()
    told = time.monotonic()
    for move in planned:
        _handed_over(move, spec, handles)
        moved += len(move.slots)
        if time.monotonic() - told > 2:
            told = time.monotonic()
            tell(f"{moved} of {total} slots have moved")
    return moved


def _handed_over(move: Move, spec: DeploymentSpec, handles: dict[int, Handle]) -> None:
    """Have the owner of slots hand them over; again where it was replaced meanwhile. Raises its error."""
    fault: Exception | None = None
    for _ in range(_TRIES):
        try:
            if move.source not in handles:
                handles[move.source] = ray.get_actor(name_of(move.source), namespace=spec.namespace)
            call = handles[move.source].hand_over.remote(move.slots, move.target)
            fault = answer(call, _MOVE_S)
        except (Unavailable, ValueError) as error:
            handles.pop(move.source, None)
            fault = error
        if fault is None:
            _tell_owner(move.target, spec, handles)
            return
        if not isinstance(fault, Unavailable | StaleWriter | ValueError):
            break
        time.sleep(1.0)
    if isinstance(fault, KgrayError):
        raise fault
    raise Unavailable(f"sequencer-{move.source} does not run, so its slots stay: run it again")


def _tell_owner(shard: int, spec: DeploymentSpec, handles: dict[int, Handle]) -> None:
    """Have a sequencer look for pending entries in its new slots: by itself it looks half a minute later."""
    with suppress(Lost, ValueError):
        if shard not in handles:
            handles[shard] = ray.get_actor(name_of(shard), namespace=spec.namespace)
        submit(handles[shard].look, True)
