"""Find, start, compare and stop the named actors of one store; its namespace keeps stores apart.

`kgray up` starts them detached, so that they outlive it. Actors that a command starts for itself end with it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any

import ray
from ray import PlacementGroupID
from ray.util import list_named_actors, placement_group_table
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from kgray.errors import KgrayError, SettingsError, Unavailable
from kgray.ports.ingest import OnWait, ignore
from kgray.runtime.actors import Handle, actor_of, answer, reached, submit
from kgray.runtime.pools import Lost
from kgray.runtime.registry import REGISTRY, SeatRegistry
from kgray.runtime.scheduler import Scheduler
from kgray.runtime.sequencer import Sequencer
from kgray.runtime.session import head_listens
from kgray.runtime.spec import (
    MODEL_TABLES,
    POOLS,
    DeploymentSpec,
    SequencerProfile,
    WorkersProfile,
    changed_keys,
    differences,
)
from kgray.runtime.upkeep import Starts
from kgray.runtime.watch import name_of
from kgray.runtime.workers import EmbedWorker, ModelWorker, RerankWorker
from kgray.runtime.writer import GraphWriter
from kgray.settings.engine import EngineLimits

_NEWS_S = 5.0  # for the stats of all sequencers; where Ray has ended, its own deadline is a minute
_DRAIN_S = 10.0  # added to the grace time
_RESTART_S = 60.0  # for an actor that Ray starts again
_PAUSE_S = 0.2
_ANSWER_S = 10.0  # for one call, before it is made again
_TELL_S = 2.0  # between two progress lines
JOIN_S = 10.0  # for more workers once each kind has a worker
_RAY_ENDED = "Ray has ended before its actors answered; what was accepted is safe, run it again"
ENGINE_S = 60.0  # for an engine to end: it takes 5 s
_Plan = dict[str, tuple[type[Any], dict[str, Any], tuple[Any, ...]]]  # class, Ray's options, arguments
_CLASSES: dict[str, type[Any]] = {"embedder": EmbedWorker, "reranker": RerankWorker}  # else ModelWorker


@dataclass(slots=True)
class Deployment:
    """The actors of one store, by name and kind; the sequencers first, because they use the others."""

    spec: DeploymentSpec
    actors: Mapping[str, Handle]
    ours: bool = False  # they were started by this process and end with it
    fresh: bool = False  # they have just started: all their counts belong to this run
    quarantined: Mapping[str, str] = field(default_factory=dict)  # by worker, why its start failed

    @property
    def sequencers(self) -> list[Handle]:
        """The sequencers, by shard."""
        return [handle for name, handle in self.actors.items() if name.startswith("sequencer-")]

    async def news(self, step_counts: Mapping[int, int]) -> list[dict[str, Any]]:
        """Return each sequencer's stats, with the steps after `step_counts`. Raises Unavailable.

        step_counts  the number of steps to leave out, by shard
        """
        named = (name for name in self.actors if name.startswith("sequencer-"))
        calls = [reached(self.actors[name].stats, step_counts.get(order(name)[1], 0)) for name in named]
        try:
            async with asyncio.timeout(_NEWS_S):
                return list(await asyncio.gather(*calls))
        except (TimeoutError, Lost) as error:
            raise Unavailable(f"a sequencer does not answer: {type(error).__name__}") from None

    def status(self, deadline_s: float = _NEWS_S, method: str = "stats") -> dict[str, dict[str, Any]]:
        """Return each actor's stats, or its `describe()`, by name, or the reason that it gives no answer."""
        calls: dict[str, Any] = {}
        rows: dict[str, dict[str, Any]] = {}
        for name, handle in self.actors.items():
            try:
                calls[name] = submit(getattr(handle, method))
            except Lost as error:  # an actor that has not started has too many pending calls
                rows[name] = {"state": "unreachable", "reason": str(error)}
        deadline = time.monotonic() + deadline_s
        for name, call in calls.items():
            try:
                rows[name] = answer(call, max(0.1, deadline - time.monotonic()))
            except Unavailable as error:
                rows[name] = {"state": "unreachable", "reason": str(error)}
        return {name: rows[name] for name in self.actors}

    def resume(self) -> None:
        """Have sequencers that stopped on a fault try again; their stats no longer show it afterwards."""
        for call in [handle.resume.remote() for handle in self.sequencers]:
            with suppress(Unavailable):  # Ray restarts it, which clears its fault
                answer(call)

    def stop(self, grace_s: float) -> int:
        """Have the sequencers commit episodes in flight, then end all actors; return their number."""
        calls = [handle.drain.remote(grace_s) for handle in self.sequencers]
        calls += [handle.retire.remote() for name, handle in self.actors.items() if kind_of(name) == "writer"]
        for call in calls:
            with suppress(Unavailable):
                answer(call, grace_s + _DRAIN_S)
        self.end_engines()
        for _ in range(2):  # twice: a keeper that has not noticed the end may have started an actor again
            for handle in {**self.actors, **_named(self.spec.namespace)}.values():
                ray.kill(handle, no_restart=True)
        for group in groups_of(self.spec.namespace):
            remove_placement_group(group)
        return len(self.actors)

    def end_engines(self) -> None:
        """Have workers end their engines: an engine killed with its actor leaves shared memory behind."""
        if self.spec.values["model.backend"] != "vllm":
            return
        actors = {**self.actors, **_named(self.spec.namespace)}  # with actors started in the meantime
        readers = {
            name: handle for name, handle in actors.items() if POOLS.get(kind_of(name)) in MODEL_TABLES
        }
        rows = Deployment(self.spec, readers).status()  # an actor without a node has no engine
        for call in [handle.stop.remote() for name, handle in readers.items() if "pid" in rows[name]]:
            with suppress(Unavailable):
                answer(call, ENGINE_S)


def ensure(spec: DeploymentSpec, *, detached: bool, chosen: bool, tell: OnWait = ignore) -> Deployment:
    """Return the store's actors; start missing actors.

    detached: start them so that they outlive this process
    chosen: the settings name a profile; if not, the profile of running actors is accepted
    Raises SettingsError if running actors have other settings, versions or another profile, or if no worker
    of a kind can work with them; Unavailable if they do not come up in time. One worker of each kind is
    enough: missing workers, and workers quarantined because their start failed, are reported.
    """
    running = find(spec.namespace)
    fresh = running is None or not running.sequencers
    theirs = None if running is None or fresh else running.spec
    if fresh and detached:
        # The name of the first writer serves as a lock: if two processes start detached actors at the same
        # moment, one creates it; the second joins it, or is refused before it has started an actor.
        first = start_actors(spec, "writer-0", detached=True).actors["writer-0"]
        theirs = described(first, time.monotonic() + spec.cluster.limits.start_deadline_s)["spec"]
    if theirs is not None:
        _refuse_mixture(spec, theirs, profile=chosen)
        spec = theirs
    if fresh:
        planned = plan_of(spec, detached=detached)
        tell(f"starting {len(planned)} actors: {', '.join(planned)}")
    deployment = start_actors(spec, detached=detached)
    deployment.fresh, deployment.ours = fresh, fresh and not detached
    try:
        for name, row in _come_up(deployment, tell if fresh else ignore).items():
            if changed_keys(spec, row["spec"], kind_of(name)):
                _refuse_mixture(spec, row["spec"], profile=True)
    except SettingsError:
        if fresh:
            deployment.stop(0)
        raise
    return deployment


@dataclass(slots=True)
class _Arrivals:
    """The actors of a deployment that have come up, and the workers that cannot.

    An actor that was up once counts as up: a machine that stalls may miss the next look, and a later death is
    no matter of the start.
    """

    deployment: Deployment
    starts: Starts
    up: dict[str, dict[str, Any]] = field(default_factory=dict)
    faults: dict[str, Exception] = field(default_factory=dict)
    loading: dict[str, float] = field(default_factory=dict)  # kind of worker -> time of the first answer

    def see(self) -> float:
        """Look at all actors, and have fresh workers load their models; return the time.monotonic() of it."""
        status = self.deployment.status(_TELL_S, "describe")
        rows = {name: row for name, row in status.items() if "spec" in row}
        instant = time.monotonic()
        self.up |= {name: row for name, row in rows.items() if row.get("loaded", True)}
        workers = {name: row for name, row in rows.items() if kind_of(name) in POOLS}
        self.faults |= {name: row["fault"] for name, row in workers.items() if row["fault"] is not None}
        self.loading = {kind_of(name): instant for name in workers} | self.loading
        # A queued worker has not begun to load, so the kind's deadline moves.
        self.loading |= {kind_of(name): instant for name, row in workers.items() if row["queued"]}
        load, _ = self.starts.update(
            {n: rows.get(n, {}) for n in self.deployment.actors if kind_of(n) in POOLS}, instant
        )
        for name in load if self.deployment.fresh else ():  # the keeper has later workers load
            self.deployment.actors[name].ready.remote()
        return instant

    @property
    def quarantined(self) -> dict[str, str]:
        """Workers whose start failed, and the reason."""
        return {name: why for name, why in self.starts.quarantined().items() if name not in self.up}

    def lacking(self) -> set[str]:
        """Return the kinds without enough actors: workers of a kind need one, other kinds all their actors.

        Raises the fault of a kind's workers if each of them has a fault.
        """
        present = {kind_of(name) for name in self.up} & POOLS.keys()
        lacking = {kind_of(name) for name in self.deployment.actors if name not in self.up} - present
        for kind in lacking:
            faults = [self.faults.get(name) for name in self.deployment.actors if kind_of(name) == kind]
            if (fault := faults[0]) is not None and None not in faults:
                raise fault
        return lacking


def _come_up(deployment: Deployment, tell: OnWait) -> dict[str, dict[str, Any]]:
    """Return each actor's `describe()` once enough are up; set `deployment.quarantined`."""
    began = last = reported_at = time.monotonic()
    up_count, limits = -1, deployment.spec.cluster
    arrivals = _Arrivals(deployment, Starts(limits.limits.health_every_s))
    while True:
        instant, up = arrivals.see(), arrivals.up
        if len(up) > up_count or instant - reported_at > _TELL_S:
            reported_at = instant
            tell(f"{len(up)} of {len(deployment.actors)} actors have started after {instant - began:.0f} s")
        if len(up) > up_count:
            up_count, last = len(up), instant
        lacking, deployment.quarantined = arrivals.lacking(), arrivals.quarantined
        missing = [
            name for name in deployment.actors if name not in up and name not in deployment.quarantined
        ]
        if not (missing or lacking):
            break
        if not head_listens():
            raise Unavailable(_RAY_ENDED, waited=True)
        if not lacking and instant - last > JOIN_S:
            line = "no node has room for them, or they load: they join when they come"
            tell(f"not up yet: {', '.join(missing)}; {line}")
            break
        loading, all_s = arrivals.loading, limits.limits.start_deadline_s
        in_s = {kind: getattr(limits, POOLS[kind]).start_deadline_s for kind in loading}
        if late := {kind for kind in lacking if instant - loading.get(kind, began) > in_s.get(kind, all_s)}:
            names = ", ".join(name for name in deployment.actors if name not in up)
            why = "; ".join(
                [_missing_reason(deployment.spec, late, loading), *set(deployment.quarantined.values())]
            )
            raise Unavailable(f"not up in time: {names}; {why}", waited=True)
        time.sleep(_PAUSE_S)
    for name, why in deployment.quarantined.items():
        tell(f"{name} is quarantined: it gets no work, and is started again after growing pauses ({why})")
    return up


def _missing_reason(spec: DeploymentSpec, kinds: Collection[str], loading: Collection[str]) -> str:
    """Return the reason that no actor of these kinds is up. loading: kinds with a worker that answered."""
    if all(kind in loading for kind in kinds):
        tables = ", ".join(sorted(f"{POOLS[kind]}.start_deadline_s" for kind in kinds))
        return f"they run, and have not loaded their models within {tables}"
    engine = spec.cluster.engine
    nodes: Any = ray.nodes()  # type: ignore[no-untyped-call]  # Ray's
    largest = max((node["Resources"].get("GPU", 0.0) for node in nodes if node["Alive"]), default=0.0)
    reads = any(POOLS.get(kind) in MODEL_TABLES for kind in kinds)
    if not reads or engine.placement != "STRICT_PACK" or engine.cards <= max(1.0, largest):
        return "is there a node with room for them?"
    return (
        f"engine.tensor_parallel = {engine.tensor_parallel} needs {engine.cards} cards on one node, and the "
        f'largest has {largest:g}: with engine.placement = "PACK" several nodes share one'
    )


def seats_of(deployment: Deployment) -> int:
    """Return the seats of the running engines; while the registry does not answer, those of the profile."""
    row = Deployment(deployment.spec, _named(deployment.spec.namespace, kind_of(REGISTRY))).status(_TELL_S)
    return int(row.get(REGISTRY, {}).get("seats", deployment.spec.seats))


def find(namespace: str) -> Deployment | None:
    """Return the actors of a namespace that exist (a start that was killed has no sequencer); else None."""
    handles = _named(namespace)
    if "sequencer-0" in handles:
        spec = described(handles["sequencer-0"], time.monotonic() + _RESTART_S)["spec"]
        return Deployment(with_current_shards(spec, handles), handles)
    for handle in handles.values():
        with suppress(Unavailable):
            return Deployment(answer(handle.describe.remote())["spec"], handles)
    return None


def with_current_shards(spec: DeploymentSpec, names: Collection[str]) -> DeploymentSpec:
    """Return the spec with the store's number of shards if the existing actors' names differ from the spec's.

    An actor keeps the spec that it was started with, also after `kgray scale`. The store is read only after
    the names, because a command changes it before it starts or ends actors.
    """
    number = sum(kind_of(name) == "sequencer" for name in names)
    if number == spec.cluster.sequencer.shards:
        return spec
    try:
        with closing(spec.open_store()) as store:
            return spec.with_shards(store.shard_map().shards)
    except KgrayError:  # no store yet, or it is away
        return spec


def joined(spec: DeploymentSpec) -> Deployment | None:
    """Return the store's actors, if they are up. Raises SettingsError if they have other settings."""
    if (deployment := find(spec.namespace)) is not None:
        _refuse_mixture(spec, deployment.spec, profile=False)
    return deployment


def workers(spec: DeploymentSpec, kind: str) -> Deployment:
    """Return the worker actors of a kind that exist; some may not have come up."""
    return Deployment(spec, _named(spec.namespace, kind))


def _named(namespace: str, kind: str = "") -> dict[str, Handle]:
    """Return the actors of a namespace that exist, of a kind or all, by name, the sequencers first."""
    handles: dict[str, Handle] = {}
    for name in (name for name in names_in(namespace) if kind in ("", kind_of(name))):  # each is a call
        with suppress(ValueError):  # it has just ended, with the command that started it
            handles[name] = ray.get_actor(name, namespace=namespace)
    return handles


def names_in(namespace: str) -> list[str]:
    """Return the names of the actors of a namespace, the sequencers first, by one call to Ray's head."""
    rows: list[Any] = list_named_actors(all_namespaces=True)
    return sorted((row["name"] for row in rows if row["namespace"] == namespace), key=order)


def described(handle: Handle, deadline: float) -> dict[str, Any]:
    """Return an actor's `describe()`, repeating the call while it starts. deadline: by `time.monotonic`.

    Raises Unavailable then, or at once if Ray has ended: its client kills a process that waits a minute.
    """
    while True:
        try:
            remaining_s = deadline - time.monotonic()
            return dict(answer(handle.describe.remote(), max(0.1, min(_ANSWER_S, remaining_s))))
        except Unavailable:
            if not head_listens():
                raise Unavailable(_RAY_ENDED, waited=True) from None
            if time.monotonic() >= deadline:
                raise
            time.sleep(_PAUSE_S)


def _refuse_mixture(ours: DeploymentSpec, theirs: DeploymentSpec, *, profile: bool) -> None:
    """Raise SettingsError, naming the keys, if running actors were built from another spec."""
    if lines := differences(ours, theirs, profile=profile):
        raise SettingsError(
            f"the actors that are up for this store were started otherwise: {'; '.join(lines)}. "
            f"Use the same, or have the actors use these: kgray up"
        )


def plan_of(spec: DeploymentSpec, *, detached: bool, surplus: bool = False) -> _Plan:
    """Return every actor's plan, by name, in start order. surplus: with workers above a pool's minimum."""
    profile, plan = spec.cluster, _Plan()
    for kind, table in POOLS.items():
        if kind == "reranker" and spec.values["reranker.backend"] != "bge":
            continue  # a server reranks, or nothing does
        pool: WorkersProfile = getattr(profile, table)
        # A chunk occupies its place until its last call ends: with fewer places than seats, calls would wait
        # in the actor's queue while the engine has free seats.
        chunks = max(pool.concurrency, 2 * spec.engine_seats(table))
        options = _claims(pool) | {"num_gpus": pool.gpus, "max_concurrency": chunks}
        if pool.env:
            options["runtime_env"] = {"env_vars": dict(pool.env)}
        for name in (f"{kind}-{number}" for number in range(pool.maximum if surplus else pool.minimum)):
            plan[name] = (_CLASSES.get(kind, ModelWorker), options, (spec, name))
    at_store = _claims(profile.sequencer)
    if spec.on_one_node:
        at_store.pop("label_selector", None)
        node = ray.get_runtime_context().get_node_id()
        at_store["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, soft=False)
    bound = {"max_pending_calls": profile.limits.pending_writes}
    for shard in range(profile.sequencer.shards):
        writer = "writer-0" if spec.on_one_node else f"writer-{shard}"  # a file has one writer
        plan[writer] = (GraphWriter, at_store | bound, (spec, writer, detached))
        plan[name_of(shard)] = (Sequencer, at_store, (spec, shard, detached, writer))
    if spec.seats:
        plan[REGISTRY] = (SeatRegistry, at_store, (spec, REGISTRY))
    return plan | ({"scheduler-0": (Scheduler, at_store, (spec,))} if detached else {})


def _claims(table: WorkersProfile | SequencerProfile) -> dict[str, Any]:
    """Return Ray's options for the resources that a table of the profile claims on a node."""
    claims = {"num_cpus": table.cpus, "memory": table.memory_mb << 20, "label_selector": dict(table.labels)}
    return {name: claim for name, claim in claims.items() if claim or name == "num_cpus"}


def start_actors(spec: DeploymentSpec, *names: str, detached: bool) -> Deployment:
    """Start the named actors (default: all) unless they exist; concurrent calls share actors."""
    plan = plan_of(spec, detached=detached, surplus=bool(names))
    engine = spec.cluster.engine
    actors: dict[str, Handle] = {}
    for name in names or plan:
        cls, options, arguments = plan[name]
        if engine.cards > 1 and POOLS.get(kind_of(name)) in MODEL_TABLES:
            options = _on_its_cards(f"{spec.namespace}/{name}", dict(options), engine, detached=detached)
        actor = actor_of(cls).options(
            name=name,
            namespace=spec.namespace,
            lifetime="detached" if detached else None,
            get_if_exists=True,
            max_restarts=-1,
            max_task_retries=0,  # kgray retries calls itself, see `actors`
            **options,
        )
        actors[name] = actor.remote(*arguments)
        if kind_of(name) in POOLS:
            actors[name].ready.remote()  # load the model; if this call is lost, the keeper repeats it
    return Deployment(spec, {name: actors[name] for name in sorted(actors, key=order)})


def _on_its_cards(
    name: str, options: dict[str, Any], engine: EngineLimits, *, detached: bool
) -> dict[str, Any]:
    """Return an actor's options in a placement group of one card a bundle, where vLLM puts its workers."""
    bundles: list[dict[str, float]] = [{"GPU": 1.0} for _ in range(engine.cards)]
    claims = (("CPU", options["num_cpus"]), ("memory", options.get("memory")))
    bundles[0] |= {resource: count for resource, count in claims if count}
    labels = options.pop("label_selector", None)
    group = next(groups_of(name), None) or placement_group(
        bundles,
        strategy=engine.placement,
        name=name,
        lifetime="detached" if detached else None,
        bundle_label_selector=[labels] * len(bundles) if labels else None,
    )
    strategy = PlacementGroupSchedulingStrategy(
        group, placement_group_bundle_index=0, placement_group_capture_child_tasks=True
    )
    return options | {"num_gpus": 0, "scheduling_strategy": strategy}  # the actor itself takes no card


def groups_of(name: str) -> Iterator[PlacementGroup]:
    """Yield the placement groups of a worker, or, by its namespace, of all workers of a deployment."""
    for key, row in placement_group_table().items():
        if f"{row['name']}/".startswith(f"{name}/") and row["state"] != "REMOVED":
            yield PlacementGroup(PlacementGroupID.from_hex(key))


def kind_of(name: str) -> str:
    """Return the kind of an actor."""
    return name.rpartition("-")[0]


def order(name: str) -> tuple[int, int]:
    """Return an actor's sort key: the place of its kind, and its number."""
    return ("sequencer", "writer", *POOLS, "seats", "scheduler").index(kind_of(name)), int(
        name.rpartition("-")[2]
    )
