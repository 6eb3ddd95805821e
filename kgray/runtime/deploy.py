"""Find, start, compare and stop the named actors of one store; its namespace keeps stores apart.

`kgray up` starts them detached, to stay. Those that a command starts for itself end with it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RaySystemError
from ray.util import list_named_actors
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from kgray.errors import SettingsError, Unavailable
from kgray.runtime.actors import Handle, SequencerActor, WorkingActor, WriterActor, as_actor
from kgray.runtime.outcomes import error_of
from kgray.runtime.profile import Profile, fitting, profile_of
from kgray.runtime.session import listens
from kgray.runtime.terms import Terms, differences
from kgray.runtime.workers import EmbedWorker, ModelWorker

ENDED = "Ray has ended before its actors answered; what was accepted is safe, run it again"
_ANSWER_S = 10.0  # for a control call
_RESTART_S = 60.0  # for an actor that Ray starts again
_PAUSE_S = 0.2


@dataclass(slots=True)
class Deployment:
    """The actors of one store.

    detached  they outlive whoever started them; ours: they were started here, to end with this process
    fresh     they were started just now: all that they tell of is this run's
    """

    terms: Terms
    detached: bool
    ours: bool = False
    fresh: bool = False
    sequencers: list[Handle] = field(default_factory=list)
    writers: list[Handle] = field(default_factory=list)
    models: dict[str, Handle] = field(default_factory=dict)
    embedders: dict[str, Handle] = field(default_factory=dict)

    def all(self) -> Iterator[tuple[str, Handle]]:
        """Yield every actor with its name, the sequencers first: they use the others."""
        yield from ((sequencer_name(i), handle) for i, handle in enumerate(self.sequencers))
        yield from ((writer_name(i), handle) for i, handle in enumerate(self.writers))
        yield from (*self.models.items(), *self.embedders.items())

    async def news(self, since: Sequence[int]) -> list[dict[str, Any]]:
        """Return what each sequencer tells, with its steps after these. Raises Unavailable: one is away."""
        calls = [h.stats.remote(n) for h, n in zip(self.sequencers, since, strict=True)]
        try:
            async with asyncio.timeout(_ANSWER_S):
                return [await call for call in calls]
        except (TimeoutError, RayActorError, RaySystemError) as error:
            raise Unavailable(f"a sequencer does not answer: {type(error).__name__}") from None

    def status(self) -> dict[str, dict[str, Any]]:
        """Return what each actor tells by name, or why it does not."""
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
        calls = [handle.resume.remote() for handle in self.sequencers]
        for call in calls:
            with suppress(Unavailable):  # one that starts anew has no fault
                answer(call)

    def drain(self, grace_s: float) -> None:
        """Have the sequencers commit what is in flight and end."""
        calls = [handle.drain.remote(grace_s) for handle in self.sequencers]
        for call in calls:
            try:
                ray.get(call, timeout=grace_s + _ANSWER_S)
            except (GetTimeoutError, RayActorError, RaySystemError):
                continue  # what it had in hand is pending still

    def stop(self, grace_s: float) -> int:
        """Drain, then end every actor; return how many there were."""
        self.drain(grace_s)
        handles = [handle for _, handle in self.all()]
        for handle in handles:
            ray.kill(handle, no_restart=True)
        return len(handles)


def ensure(terms: Terms, *, detached: bool, chosen: bool) -> Deployment:
    """Return the store's actors, started where they are not there.

    chosen: whether the profile was named; else that of actors that are there will do
    Raises SettingsError where they were started with other settings, versions or another profile, or where
    their settings do not work; Unavailable where they do not come up in time.
    """
    there = find(terms.namespace())
    if there is not None and not there.sequencers:
        there = None
    if there is not None or detached:
        theirs = there.terms if there is not None else _first_of(terms)
        refuse_mixture(terms, theirs, profile=chosen)
        terms = theirs
    found = _started(terms, detached=detached)
    found.fresh = there is None
    found.ours = there is None and not detached
    until = time.monotonic() + terms.profile["limits"]["start_deadline_s"]
    for row in [described(handle, until) for _, handle in found.all()]:
        refuse_mixture(terms, row["terms"], profile=True)
        if row["fault"] is not None:
            if there is None:
                found.stop(0)
            raise error_of(row["fault"])
    return found


def find(namespace: str) -> Deployment | None:
    """Return the actors of a namespace as far as they are there; None where none answers.

    Without a sequencer they are what a start that was killed has left, or end with their command just now.
    """
    rows: list[Any] = list_named_actors(all_namespaces=True)
    handles: dict[str, Handle] = {}
    for name in sorted(row["name"] for row in rows if row["namespace"] == namespace):
        with suppress(ValueError):  # it ended meanwhile, with the command that started it
            handles[name] = ray.get_actor(name, namespace=namespace)
    if sequencer_name(0) in handles:
        terms: Terms | None = described(handles[sequencer_name(0)], time.monotonic() + _RESTART_S)["terms"]
    else:
        terms = next(filter(None, map(_terms_of, handles.values())), None)
    if terms is None:
        return None
    found = Deployment(terms, detached=True)
    for name, handle in handles.items():
        if name.startswith("sequencer-"):
            found.sequencers.append(handle)
        elif name.startswith("writer-"):
            found.writers.append(handle)
        elif name.startswith("models-"):
            found.models[name] = handle
        else:
            found.embedders[name] = handle
    return found


def _terms_of(handle: Handle) -> Terms | None:
    """Return what an actor was built from; None where it does not answer."""
    try:
        terms: Terms = answer(handle.describe.remote())["terms"]
    except Unavailable:
        return None
    return terms


def refuse_mixture(ours: Terms, theirs: Terms, *, profile: bool) -> None:
    """Raise SettingsError, naming the keys, where actors are there that were built from something else."""
    if lines := differences(ours, theirs, profile=profile):
        raise SettingsError(
            f"the actors that are up for this store were started otherwise: {'; '.join(lines)}. "
            f"Use the same, or end them first: kgray down"
        )


def answer(call: Any, timeout_s: float = _ANSWER_S) -> Any:  # noqa: ANN401 - what the actor tells
    """Return what an actor answers. Raises Unavailable where it does not."""
    try:
        return ray.get(call, timeout=timeout_s)
    except (GetTimeoutError, RayActorError, RaySystemError) as error:
        lines = str(error).strip().splitlines() or [""]
        raise Unavailable(f"an actor does not answer: {type(error).__name__}: {lines[-1][:160]}") from None


def described(handle: Handle, until: float) -> dict[str, Any]:
    """Return what an actor was built from; one that starts, or starts again, is waited for until then.

    Raises Unavailable, at once where Ray itself has ended: a process that waits for it for a minute is ended.
    """
    while True:
        left = until - time.monotonic()
        try:
            told: dict[str, Any] = answer(handle.describe.remote())
        except Unavailable:
            if not listens():
                raise Unavailable(ENDED, waited=True) from None
            if left <= 0:
                raise
            time.sleep(_PAUSE_S)
        else:
            return told


def sequencer_name(shard: int) -> str:
    """Return the name of a shard's sequencer."""
    return f"sequencer-{shard}"


def writer_name(shard: int) -> str:
    """Return the name of a shard's writer."""
    return f"writer-{shard}"


def _first_of(terms: Terms) -> Terms:
    """Start the first writer where it is not there; return what it was built from.

    Of two that start actors to stay at the same moment, one makes it: the other one joins it, or is refused
    before it has started anything.
    """
    writer = _writer(terms, _profile(terms), 0, _named(terms, detached=True))
    until = time.monotonic() + terms.profile["limits"]["start_deadline_s"]
    found: Terms = described(writer, until)["terms"]
    return found


def _started(terms: Terms, *, detached: bool) -> Deployment:
    """Start what is not there; where two start at once, both get the same actors."""
    profile, named = _profile(terms), _named(terms, detached=detached)
    found = Deployment(terms, detached=detached)
    working, sequencing = as_actor(WorkingActor), as_actor(SequencerActor)
    for kind, build, of, into in (
        ("models", ModelWorker, profile.extraction, found.models),
        ("embedder", EmbedWorker, profile.embedding, found.embedders),
    ):
        for number in range(of.workers):
            name = f"{kind}-{number}"
            options = {**named, "name": name, "num_cpus": of.cpus, "max_concurrency": of.concurrency}
            into[name] = working.options(**options).remote(build, terms, name)
    holding = named | {"num_cpus": 0} | _place(terms)
    for shard in range(profile.sequencer.shards):
        found.writers.append(_writer(terms, profile, shard, named))
        sequencer = sequencing.options(**holding, name=sequencer_name(shard)).remote(
            terms, shard, writer_name(shard), list(found.models), list(found.embedders)
        )
        found.sequencers.append(sequencer)
    return found


def _writer(terms: Terms, profile: Profile, shard: int, named: dict[str, Any]) -> Handle:
    bound = {"name": writer_name(shard), "max_pending_calls": profile.limits.pending_writes, "num_cpus": 0}
    return as_actor(WriterActor).options(**named, **bound, **_place(terms)).remote(terms, shard)


def _profile(terms: Terms) -> Profile:
    return fitting(profile_of(terms.profile, "the deployment"), terms.values["store.backend"])


def _named(terms: Terms, *, detached: bool) -> dict[str, Any]:
    """Return the options of every actor; with its name, those of one that is started once."""
    return {
        "namespace": terms.namespace(),
        "lifetime": "detached" if detached else None,
        "get_if_exists": True,
        "max_restarts": -1,
        "max_task_retries": 0,
    }


def _place(terms: Terms) -> dict[str, Any]:
    """Return where those that open the store run: an embedded one is a folder of this node's."""
    if terms.values["store.backend"] != "sqlite":
        return {}
    here = ray.get_runtime_context().get_node_id()
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(here, soft=False)}
