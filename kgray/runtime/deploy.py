"""Find, start, compare and stop the named actors of one store; its namespace keeps stores apart.

Here, and nowhere else, actors get their names, namespace, resources and options. `kgray up` starts them
detached, to stay. Those that a command starts for itself end with it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray.util import list_named_actors
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from kgray.errors import SettingsError, Unavailable
from kgray.runtime.actors import Handle, actor_of, answer, reached
from kgray.runtime.faults import Lost, error_of
from kgray.runtime.profile import fitting, profile_of
from kgray.runtime.sequencer import Sequencer
from kgray.runtime.session import head_listens
from kgray.runtime.spec import DeploymentSpec, differences
from kgray.runtime.workers import EmbedWorker, ModelWorker
from kgray.runtime.writer import GraphWriter

_NEWS_S = 5.0  # for the news of all sequencers; where Ray has ended, its own deadline is a minute
_DRAIN_S = 10.0  # beyond the grace time
_RESTART_S = 60.0  # for an actor that Ray starts again
_PAUSE_S = 0.2


@dataclass(slots=True)
class Deployment:
    """The actors of one store, by name and kind; the sequencers first, because they use the others.

    ours    they were started here, to end with this process
    fresh   they were started just now: all that they tell is of this run
    """

    spec: DeploymentSpec
    actors: Mapping[str, Handle]
    ours: bool = False
    fresh: bool = False

    @property
    def sequencers(self) -> list[Handle]:
        """The sequencers, by shard."""
        return [handle for name, handle in self.actors.items() if name.startswith("sequencer-")]

    def all(self) -> Iterator[tuple[str, Handle]]:
        """Yield every actor with its name."""
        yield from self.actors.items()

    async def news(self, since: Sequence[int]) -> list[dict[str, Any]]:
        """Return each sequencer's stats, with its steps after these. Raises Unavailable: one is away."""
        calls = [h.stats.remote(n) for h, n in zip(self.sequencers, since, strict=True)]
        try:
            async with asyncio.timeout(_NEWS_S):
                return [await reached(call) for call in calls]
        except (TimeoutError, Lost) as error:
            raise Unavailable(f"a sequencer does not answer: {type(error).__name__}") from None

    def status(self) -> dict[str, dict[str, Any]]:
        """Return each actor's stats by name, or why it does not answer."""
        asked = [(name, handle.stats.remote()) for name, handle in self.all()]
        found: dict[str, dict[str, Any]] = {}
        for name, call in asked:
            try:
                found[name] = answer(call)
            except Unavailable as error:
                found[name] = {"state": "unreachable", "reason": str(error)}
        return found

    def resume(self) -> None:
        """Have those that stand still try again; what is asked after this sees no old fault."""
        for call in [handle.resume.remote() for handle in self.sequencers]:
            with suppress(Unavailable):  # Ray is starting it again: it has no fault
                answer(call)

    def stop(self, grace_s: float) -> int:
        """Have the sequencers commit what is in flight, then end every actor; return how many there were."""
        for call in [handle.drain.remote(grace_s) for handle in self.sequencers]:
            with suppress(Unavailable):
                answer(call, grace_s + _DRAIN_S)
        for _, handle in self.all():
            ray.kill(handle, no_restart=True)
        return len(self.actors)


def ensure(spec: DeploymentSpec, *, detached: bool, chosen: bool) -> Deployment:
    """Return the store's actors, started where they are not there.

    chosen: whether the profile was named; else that of actors that are there will do
    Raises SettingsError where they were started with other settings, versions or another profile, or where
    their settings do not work; Unavailable where they do not come up in time.
    """
    until = time.monotonic() + spec.profile["limits"]["start_deadline_s"]
    there = find(spec.namespace)
    if there is not None and not there.sequencers:
        there = None
    if there is not None or detached:
        theirs = there.spec if there is not None else _of_first_writer(spec, until)
        _refuse_mixture(spec, theirs, profile=chosen)
        spec = theirs
    found = _start(spec, detached=detached)
    found.fresh = there is None
    found.ours = there is None and not detached
    for row in [described(handle, until) for _, handle in found.all()]:
        _refuse_mixture(spec, row["spec"], profile=True)
        if row["fault"] is not None:
            if there is None:
                found.stop(0)
            raise error_of(row["fault"])
    return found


def _of_first_writer(spec: DeploymentSpec, until: float) -> DeploymentSpec:
    """Start the first writer, to stay, where it is not there; return what it was built from.

    Of two that start actors to stay at the same moment, one makes it: the other one joins it, or is refused
    before it has started anything.
    """
    first = _start(spec, "writer-0", detached=True).actors["writer-0"]
    found: DeploymentSpec = described(first, until)["spec"]
    return found


def find(namespace: str) -> Deployment | None:
    """Return the actors of a namespace as far as they are there; None where none answers.

    Without a sequencer they are what a start that was killed has left, or end with their command just now.
    """
    rows: list[Any] = list_named_actors(all_namespaces=True)
    handles: dict[str, Handle] = {}
    for name in sorted((row["name"] for row in rows if row["namespace"] == namespace), key=_order):
        with suppress(ValueError):  # it ended meanwhile, with the command that started it
            handles[name] = ray.get_actor(name, namespace=namespace)
    if "sequencer-0" in handles:
        spec = described(handles["sequencer-0"], time.monotonic() + _RESTART_S)["spec"]
        return Deployment(spec, handles)
    for handle in handles.values():
        with suppress(Unavailable):
            spec = answer(handle.describe.remote())["spec"]
            return Deployment(spec, handles)
    return None


def described(handle: Handle, until: float) -> dict[str, Any]:
    """Return what an actor was built from; one that starts, or starts again, is waited for until then.

    Raises Unavailable, at once where Ray itself has ended: a process that waits for it for a minute is ended.
    """
    while True:
        left = until - time.monotonic()
        try:
            found: dict[str, Any] = answer(handle.describe.remote())
        except Unavailable:
            if not head_listens():
                line = "Ray has ended before its actors answered; what was accepted is safe, run it again"
                raise Unavailable(line, waited=True) from None
            if left <= 0:
                raise
            time.sleep(_PAUSE_S)
        else:
            return found


def _refuse_mixture(ours: DeploymentSpec, theirs: DeploymentSpec, *, profile: bool) -> None:
    """Raise SettingsError, naming the keys, where actors are there that were built from something else."""
    if lines := differences(ours, theirs, profile=profile):
        raise SettingsError(
            f"the actors that are up for this store were started otherwise: {'; '.join(lines)}. "
            f"Use the same, or end them first: kgray down"
        )


# ------------------------------------------------------------------- names, resources, options


def _plan(spec: DeploymentSpec) -> dict[str, tuple[type[Any], dict[str, Any], tuple[Any, ...]]]:
    """Return (class, options of its own, arguments) of every actor by name, in the order of their start."""
    profile = fitting(profile_of(spec.profile, "the deployment"), spec.values["store.backend"])
    plan: dict[str, tuple[type[Any], dict[str, Any], tuple[Any, ...]]] = {}
    names: dict[str, list[str]] = {}
    for kind, cls, of in (
        ("models", ModelWorker, profile.extraction),
        ("embedder", EmbedWorker, profile.embedding),
    ):
        names[kind] = [f"{kind}-{number}" for number in range(of.workers)]
        own = {"num_cpus": of.cpus, "max_concurrency": of.concurrency}
        plan |= {name: (cls, own, (spec, name)) for name in names[kind]}
    at_store: dict[str, Any] = {"num_cpus": 0}
    if spec.on_one_node:
        here = ray.get_runtime_context().get_node_id()
        at_store["scheduling_strategy"] = NodeAffinitySchedulingStrategy(here, soft=False)
    for shard in range(profile.sequencer.shards):
        writer = f"writer-{shard}"
        bound = {"max_pending_calls": profile.limits.pending_writes}
        plan[writer] = (GraphWriter, at_store | bound, (spec, shard))
        others = (writer, names["models"], names["embedder"])
        plan[f"sequencer-{shard}"] = (Sequencer, at_store, (spec, shard, *others))
    return plan


def _start(spec: DeploymentSpec, *names: str, detached: bool) -> Deployment:
    """Start what is not there of these actors, or of all; two that start at once get the same actors."""
    plan = _plan(spec)
    found: dict[str, Handle] = {}
    for name in names or plan:
        cls, own, arguments = plan[name]
        actor = actor_of(cls).options(
            name=name,
            namespace=spec.namespace,
            lifetime="detached" if detached else None,
            get_if_exists=True,
            max_restarts=-1,
            max_task_retries=0,  # a call that comes again is sent by us, see `actors`
            **own,
        )
        found[name] = actor.remote(*arguments)
    return Deployment(spec, {name: found[name] for name in sorted(found, key=_order)})


def _order(name: str) -> tuple[int, int]:
    kind, _, number = name.rpartition("-")
    return ("sequencer", "writer", "models", "embedder").index(kind), int(number)
