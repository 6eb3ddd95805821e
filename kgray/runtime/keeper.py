"""Starts missing actors again, has workers load models, and sizes pools, in a thread of an actor."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.util.placement_group import remove_placement_group

from kgray.errors import Unavailable
from kgray.runtime import telemetry
from kgray.runtime.actors import Handle, answer
from kgray.runtime.deploy import (
    ENGINE_S,
    Deployment,
    groups_of,
    kind_of,
    names_in,
    order,
    plan_of,
    start_actors,
    with_current_shards,
)
from kgray.runtime.registry import REGISTRY
from kgray.runtime.spec import MODEL_TABLES, POOLS, DeploymentSpec, WorkersProfile
from kgray.runtime.upkeep import PoolSize, Starts

# Added to the first interval, because actors that were started together need a while to come up.
FIRST_LOOK_S = 5.0
# For the stats of all workers: a worker that has no node gives no answer.
_STATS_S = 1.0


class Keeper:
    """Restores missing actors of a deployment, and looks after its workers, from a thread.

    Ray restarts an actor that dies, unless the actor was killed for good, or its creation failed while a node
    was away. Every sequencer and every writer of a detached deployment has a keeper; one keeper is enough.
    A keeper compares names, which costs one call to Ray's head. The keeper of the first sequencer also has
    workers load their models, restarts quarantined workers, sizes the pools, and counts the seats of engines.
    """

    def __init__(self, spec: DeploymentSpec, *, is_detached: bool, has_workers: bool = False) -> None:
        """is_detached: restore missing actors; has_workers: look after the workers."""
        self.spec = spec  # with the store's number of shards, as of the last look
        self._is_detached, self._ended = is_detached, threading.Event()
        self._starting = threading.Lock()
        self._existing = set[str]()  # the actors' names at the last look
        profile = spec.cluster
        every_s = profile.limits.health_every_s
        self._workers: dict[str, Handle] = {}  # a cache: each look-up of a handle calls Ray's head
        self._started: dict[str, Any] = {}  # workers that this process has started
        self._starts = Starts(every_s)
        self.quarantined: Mapping[str, str] = {}  # replaced as a whole: other threads read it
        self._sizes = {}
        for kind, table in POOLS.items():
            profile_of_kind: WorkersProfile = getattr(profile, table)
            takes = spec.engine_seats(table) or profile_of_kind.concurrency
            if profile_of_kind.maximum > profile_of_kind.minimum:
                self._sizes[kind] = PoolSize(
                    profile_of_kind.minimum, profile_of_kind.maximum, takes, profile.limits.idle_s
                )
        checks = [self._restore] if is_detached else []
        if has_workers:
            checks.append(self._check_workers)
        if checks:
            threading.Thread(
                target=self._keep, args=(checks, every_s), name="kgray-keeper", daemon=True
            ).start()

    def _keep(self, checks: Sequence[Callable[[], None]], every_s: float) -> None:
        self._ended.wait(FIRST_LOOK_S)
        while not self._ended.wait(every_s):
            for check in checks:  # if a check fails each time, the others still run
                try:
                    check()
                except Exception as error:  # noqa: BLE001 - any error of Ray while its head is away
                    telemetry.LOGGER.warning(
                        "a check of the actors failed, and is repeated: %s", type(error).__name__
                    )

    def end(self) -> None:
        """Stop before actors are replaced or ended. No actor is started after the return."""
        self._ended.set()
        with self._starting:
            pass

    def _restore(self) -> None:
        with self._starting:
            existing = set(names_in(self.spec.namespace))
            # Read the store only if the names have changed: a surplus actor would cause a read at each look.
            if existing != self._existing or self._missing(existing):
                self._existing, self.spec = existing, with_current_shards(self.spec, existing)
            if (missing := self._missing(existing)) and not self._ended.is_set():
                start_actors(self.spec, *missing, detached=True)
                telemetry.LOGGER.warning("missing, and started again: %s", ", ".join(missing))

    def _missing(self, existing: Collection[str]) -> list[str]:
        """Return the names of the plan that do not exist, in start order."""
        return [name for name in plan_of(self.spec, detached=True) if name not in existing]

    def _check_workers(self) -> None:
        namespace, handles = self.spec.namespace, self._workers
        everyone = names_in(namespace)
        for name in (workers := [name for name in everyone if kind_of(name) in POOLS]):
            if name not in handles:
                with suppress(ValueError):  # it has just ended
                    handles[name] = ray.get_actor(name, namespace=namespace)
        workers_by_name = {name: handles[name] for name in workers if name in handles}
        rows = Deployment(self.spec, workers_by_name).status(_STATS_S)
        # A worker that does not answer may have ended for good; then its name has a new handle.
        self._workers = {name: handle for name, handle in workers_by_name.items() if "pid" in rows[name]}
        load, restart = self._starts.update(rows, time.monotonic())
        for name in load:
            workers_by_name[name].ready.remote()
        for name in restart:
            self._end(workers_by_name[name], no_restart=False)
        if REGISTRY in everyone:
            engines = [name for name in self._starts.up() if POOLS[kind_of(name)] in MODEL_TABLES]
            seats = len(engines) * self.spec.cluster.engine.max_num_seqs
            ray.get_actor(REGISTRY, namespace=namespace).resize.remote(seats)
        previous, self.quarantined = self.quarantined, self._starts.quarantined()
        for name in previous.keys() | self.quarantined.keys():
            why = self.quarantined.get(name)
            telemetry.measure("kgray_quarantined", float(why is not None), worker=name)
            if why != previous.get(name):
                change = "works again" if why is None else f"is quarantined: {why}"
                telemetry.LOGGER.warning("%s %s", name, change)
        for kind, size in self._sizes.items():
            self._size(kind, size, {name: row for name, row in rows.items() if kind_of(name) == kind})

    def _end(self, worker: Handle, *, no_restart: bool, idle_s: float = 0.0) -> bool:
        """End a worker, its engine first; return False if it had work in the last `idle_s` seconds."""
        with suppress(Unavailable):  # the worker has no node, so no engine runs
            if not answer(worker.stop.remote(idle_s), ENGINE_S):
                return False
        ray.kill(worker, no_restart=no_restart)
        return True

    def _size(self, kind: str, size: PoolSize, rows: Mapping[str, Mapping[str, Any]]) -> None:
        numbers = size.update({order(name)[1]: row for name, row in rows.items()}, time.monotonic())
        begin, end = ([f"{kind}-{number}" for number in part] for part in numbers)
        with self._starting:
            if begin and not self._ended.is_set():
                # Without room they wait for a node, which Ray's autoscaler then requests. `_started` keeps
                # the handles, because actors that are not detached end with their last handle.
                self._started |= start_actors(self.spec, *begin, detached=self._is_detached).actors
        for name in end:
            worker = self._workers.get(name) or ray.get_actor(name, namespace=self.spec.namespace)
            if self._end(worker, no_restart=True, idle_s=size.idle_s):
                for group in groups_of(f"{self.spec.namespace}/{name}"):
                    remove_placement_group(group)
                self._started.pop(name, None)
        if begin or end:
            telemetry.LOGGER.info("workers started: %s; surplus workers asked to end: %s", begin, end)
