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

_DRAIN_S = 10.0  # added to the grace time
_PAUSE_S = 0.1
_LOOK_S = 5.0  # for the answers of all actors
_MOVE_S = 60.0  # for the owner of slots to hand them over: a large removal may take this long
_TRIES = 5  # of one move: its owner may be replaced during it


@dataclass(slots=True)
class Replacement:
    """The replaced actors, each with its changed keys, and the ended actors."""

    spec: DeploymentSpec
    replaced: dict[str, list[str]] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)


def roll(spec: DeploymentSpec, shards: int | None, *, chosen: bool, tell: OnWait) -> Replacement:
    """Replace the actors of a running deployment that were built from another spec, one by one.

    shards  their number; None: the store's number
    chosen  the settings name a profile; if not, the profile of the running actors is kept
    Raises SettingsError, before any change, for keys that cannot change while actors run; SettingsError or
    Unavailable if a new actor does not come up: then it does not touch the remaining actors.
    """
    running = find(spec.namespace)
    if running is None or not running.sequencers:
        return Replacement(spec)
    former = running.spec
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
    return _Roll(spec, running, tell).carried_out()


class _Roll:
    """One replacement of actors."""

    def __init__(self, spec: DeploymentSpec, running: Deployment, tell: OnWait) -> None:
        self._spec, self._tell, self._actors = spec, tell, dict(running.actors)
        self._new = set[str]()  # actors of the new spec
        rows = running.status(_LOOK_S, "describe")
        # Workers that could not load their models before. The first keeper also knows silent ones.
        known = Deployment(spec, {name_of(0): running.sequencers[0]}).status(_LOOK_S)[name_of(0)]
        self._unfit = {name for name, row in rows.items() if kind_of(name) in POOLS and row.get("fault")}
        self._unfit |= known.get("quarantined", {}).keys()
        # An actor that waits for a node does not answer; it probably has the spec of the other actors.
        specs = {name: rows[name].get("spec", running.spec) for name in running.actors}
        plan = plan_of(spec, detached=True, surplus=True)
        self._plan = plan_of(spec, detached=True).keys()
        keys = {name: changed_keys(spec, actor_spec, kind_of(name)) for name, actor_spec in specs.items()}
        self._result = Replacement(
            spec,
            {name: changed for name, changed in keys.items() if changed and name in plan},
            [name for name in running.actors if name not in plan],
        )

    def carried_out(self) -> Replacement:
        result = self._result
        if result.replaced:
            for name, handle in self._actors.items():  # an old keeper would restore actors with the old spec
                if kind_of(name) in ("sequencer", "writer"):
                    with suppress(Unavailable):
                        answer(handle.retire.remote())
        for name in sorted(result.ended, key=order):  # the sequencers before their writers
            self._end(name)
        for shard in range(self._spec.cluster.sequencer.shards):
            self._renew(name_of(shard), f"writer-{shard}")
        # A replaced worker may be a surplus worker, which is not in the plan.
        for name in sorted({*result.replaced, *self._plan}, key=order):
            if kind_of(name) in POOLS:
                self._renew(name)
        self._renew(*self._plan)
        return result

    def _renew(self, *names: str) -> None:
        """Replace the named actors that have changed, start missing actors, and wait until they work."""
        replaced = self._result.replaced
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
            if name not in self._unfit:  # it had no work, so that no call waits for it
                self._wait_for(name)

    def _end(self, name: str) -> None:
        """Have an actor finish its work, within the grace time, and end it for good."""
        handle, kind, grace_s = self._actors.pop(name), kind_of(name), self._spec.cluster.limits.grace_s
        with suppress(Unavailable):  # it has no node, or Ray restarts it: it has no work
            if kind in ("sequencer", "writer", *POOLS):
                answer(handle.drain.remote(grace_s), grace_s + _DRAIN_S)
            if kind in POOLS:
                answer(handle.stop.remote(), ENGINE_S)
        ray.kill(handle, no_restart=True)
        for group in groups_of(f"{self._spec.namespace}/{name}") if kind in POOLS else ():
            remove_placement_group(group)
        deadline = time.monotonic() + self._spec.cluster.limits.start_deadline_s
        while name in names_in(self._spec.namespace):
            if time.monotonic() > deadline:
                raise Unavailable(f"{name} does not end; {_UNTOUCHED}", waited=True)
            time.sleep(_PAUSE_S)

    def _wait_for(self, name: str) -> None:
        """Wait until a new actor serves, or has loaded its model. Raises its fault, or Unavailable."""
        profile, table = self._spec.cluster, POOLS.get(kind_of(name))
        limit_s = getattr(profile, table).start_deadline_s if table else profile.limits.start_deadline_s
        deadline, row = time.monotonic() + limit_s, dict[str, Any]()
        while time.monotonic() < deadline:
            row = Deployment(self._spec, {name: self._actors[name]}).status(_LOOK_S)[name]
            if isinstance(fault := row.get("fault"), Exception):
                error_type = type(fault) if isinstance(fault, SettingsError | Unavailable) else Unavailable
                raise error_type(f"{name} does not come up: {fault}; {_UNTOUCHED}")
            works = row["state"] == "serving" if kind_of(name) == "sequencer" else row.get("loaded", True)
            if works and "pid" in row:
                return
            time.sleep(_PAUSE_S)
        why = row.get("waits_for") or row.get("reason") or "is there a node with room for it?"
        raise Unavailable(f"{name} has not come up within {limit_s:g} s: {why}; {_UNTOUCHED}", waited=True)


_UNTOUCHED = "the other actors are left as they are: run it again"


def scale(spec: DeploymentSpec, shards: int, *, tell: OnWait) -> Mapping[str, int]:
    """Change the number of shards of a running deployment; return the keys from, to, moved (slots).

    New shards exist before they have a sequencer, and have a sequencer before they get slots. A shard loses
    its slots before it is dropped, and is dropped before its sequencer ends. Raises as `roll` does.
    """
    running = find(spec.namespace)
    assert running is not None  # noqa: S101 - the caller has looked
    with closing(spec.open_store()) as store:
        # The first sequencers that serve a store may still divide it.
        deadline = time.monotonic() + spec.cluster.limits.start_deadline_s
        while not all(row.get("state") == "serving" for row in _served(running, store)):
            if time.monotonic() > deadline:
                raise Unavailable("not all sequencers serve: see kgray status", waited=True)
            time.sleep(_PAUSE_S)
        previous, moved = store.shard_map().shards, 0
        if shards > previous:
            store.set_shards(shards)
        elif shards < previous:
            moved += _balance(store, spec, shards, tell)
            store.set_shards(shards)
        roll(spec, shards, chosen=True, tell=tell)
        moved += _balance(store, spec, shards, tell)
    return {"from": previous, "to": shards, "moved": moved}


def _served(running: Deployment, store: Store) -> list[Mapping[str, Any]]:
    """Return the stats of the sequencers of the store's shards."""
    shards = store.shard_map().shards
    rows = Deployment(running.spec, dict(zip(running.actors, running.sequencers, strict=False))).status(
        _LOOK_S
    )
    return [rows.get(name_of(shard), {}) for shard in range(shards)]


def _balance(store: Store, spec: DeploymentSpec, shards: int, tell: OnWait) -> int:
    """Move slots until this number of shards have equal shares; return the number of moved slots."""
    planned = list(moves(store.shard_map().owners, shards))
    total, moved, handles = sum(len(move.slots) for move in planned), 0, dict[int, Handle]()
    reported_at = time.monotonic()
    for move in planned:
        _hand_over(move, spec, handles)
        moved += len(move.slots)
        if time.monotonic() - reported_at > 2:
            reported_at = time.monotonic()
            tell(f"{moved} of {total} slots have moved")
    return moved


def _hand_over(move: Move, spec: DeploymentSpec, handles: dict[int, Handle]) -> None:
    """Have the owner of slots hand them over; repeat it if the owner is replaced. Raises its error."""
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
    """Have a sequencer look for pending entries in its new slots: otherwise it looks half a minute later."""
    with suppress(Lost, ValueError):
        if shard not in handles:
            handles[shard] = ray.get_actor(name_of(shard), namespace=spec.namespace)
        submit(handles[shard].look, True)
