"""`ports.ingest.Ingest` through Ray: the driver appends to the store and waits for the sequencers.

The store alone says which entries have ended; the sequencers' stats are used for progress and reasons. So
the driver or a sequencer may die, and the next look shows the true state.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kgray.communities.detection import Problem, detect_levels
from kgray.communities.partition import Levels
from kgray.errors import KgrayError, SettingsError, Unavailable
from kgray.ingest.local import Awaited, last_sequences, pending_now
from kgray.ports import Answerer, Embedder, Reranker, Store, Summarizer
from kgray.ports import ingest as port
from kgray.runtime import session as rays
from kgray.runtime.pooled import (
    OnWorkers,
    PooledAnswerer,
    PooledEmbedder,
    PooledReranker,
    PooledSummarizer,
)
from kgray.runtime.pools import MAX_MODEL_CALLS, Pool
from kgray.runtime.spec import Profile, spec_of
from kgray.runtime.wiring import build_answerer, build_prompt_files, build_summarizer
from kgray.settings import Settings
from kgray.system.outages import OUTAGES, Outage

if TYPE_CHECKING:
    from kgray.runtime.actors import RemoteWorker
    from kgray.runtime.deploy import Deployment

_LOOK_S = 0.1  # between two looks at the store and the sequencers
_LOST_S = 10.0  # after this time without an answer, a sequencer is looked up, or started, again
_SEQUENCER = "the sequencer in Ray"
WATCH_S = 5.0  # between two checks if Ray has ended, while this process follows no actors
_LAST_LOOK_S = 5.0  # limit for durable steps to appear in the sequencers' stats


class RayIngest:
    """`ports.ingest.Ingest` through Ray, which is started, or joined, when there is something to do."""

    def __init__(self, settings: Settings, data: Path, store: Store) -> None:
        """Start nothing: reading never needs Ray."""
        self._settings, self._data, self._store = settings, data, store
        self._session: rays.Session | None = None
        self._joining = threading.RLock()  # held while actors start, too: concurrent calls start them once
        self._workers: dict[str, tuple[float, list[RemoteWorker]]] = {}  # kind -> time of look-up, workers
        self._deployment: Deployment | None = None
        self._next_count = 0.0  # time.monotonic() of the next look at the number of shards

    async def carry_out(
        self,
        queued: Mapping[str, port.Queued] | None,
        *,
        groups: Collection[str] | None = None,
        before: Mapping[str, int] | None = None,
        more: port.Stop = port.never,
        stop: port.Stop = port.never,
        room: port.Room = port.boundless,  # noqa: ARG002 - the actors serve others too
        on_step: port.OnStep = port.ignore,
        on_wait: port.OnWait = port.ignore,
    ) -> port.IngestOutcome:
        """Have the actors carry out all pending entries; detached actors stay up."""
        before = last_sequences(self._store) if before is None else before
        queue = {} if queued is None else queued  # not a copy: the caller may still add to it
        wait = Awaited(self._store, queue, _earlier_entries(self._store, before, queue, groups))
        if not wait.has_pending() and not more():
            return wait.outcome()  # nothing to do is no reason to start Ray
        follower = Follower(self._up(on_wait), wait.has, on_step, on_wait)
        while True:
            coming = more()
            remaining = wait.has_pending()
            reason = await follower.look() if remaining or coming else ""
            if follower.away_s and (session := self._session) is not None:
                if await asyncio.to_thread(session.ended):
                    self._leave()
                    ended = f"the Ray at {session.address} has ended"
                    return replace(wait.outcome(), stopped=True, reason=ended, totals=follower.run_totals)
                if follower.away_s > _LOST_S and session.silent_since is None:
                    await asyncio.to_thread(lambda: follower.follow(self._looked_up_again(on_wait)))
            elif not follower.away_s and await asyncio.to_thread(self._has_other_shards):
                await asyncio.to_thread(lambda: follower.follow(self._looked_up_again(on_wait)))
            if stop() or reason or not (remaining or coming):
                break
            await asyncio.sleep(_LOOK_S)
        totals = await follower.totals()
        if stop():
            if (ours := self._deployment) is not None and ours.ours:  # others' go on
                ours.stop(ours.spec.cluster.limits.grace_s)
                self._deployment = None
            remaining = wait.has_pending()
        stopped = remaining or coming
        reason = reason or (OUTAGES.why() if stopped else "")
        return replace(wait.outcome(), stopped=stopped, reason=reason, totals=totals)

    def _has_other_shards(self) -> bool:
        """Tell, every WATCH_S, whether the number of shards differs from the followed sequencers."""
        deployment, instant = self._deployment, time.monotonic()
        if deployment is None or instant < self._next_count:
            return False
        self._next_count = instant + WATCH_S
        with suppress(Unavailable):
            return self._store.shard_map().shards != len(deployment.sequencers)
        return False

    def seats(self) -> int:
        """Return how many calls the running engines take at a time, or those of the profile before the start.

        0 without vLLM in the workers.
        """
        if self._settings.model.backend != "vllm":
            return 0
        if (deployment := self._deployment) is not None:
            from kgray.runtime.deploy import seats_of

            return seats_of(deployment)
        rays.require_ray()
        profile = rays.profile_for(self._settings, rays.read_head(self._data))
        return spec_of(self._settings, self._data, profile.values()).seats

    def cluster(self, problem: Problem) -> Levels:
        """Find communities in a task of the running Ray (Unavailable if lost), or here if none runs."""
        if self._join() is None:
            return detect_levels(problem)
        from kgray.runtime.scheduler import clustered_by_a_task

        return clustered_by_a_task(problem)

    def summarizer(self) -> Summarizer | None:
        """Return the model that summarises communities; None if no language model is configured."""
        local = build_summarizer(self._settings)
        return local and PooledSummarizer(OnWorkers(partial(self.pool, "models"), local), local)

    def answerer(self) -> Answerer:
        """Return the model that answers users: an engine of the workers with "vllm", else a client."""
        if self._settings.model.backend != "vllm":
            return build_answerer(self._settings)
        return PooledAnswerer(self._engines, build_prompt_files(self._settings).text)

    def _engines(self) -> list[RemoteWorker]:
        """Return the workers with engines, in random order. Raises SettingsError if none are up.

        It starts none: loading an engine for one question takes minutes.
        """
        try:
            is_up = self._session is not None or self._join() is not None
        except Unavailable:  # Ray does not answer
            is_up = False
        if not is_up or not (engines := self._live_workers("models")):
            raise SettingsError(
                f'model.backend = "vllm" answers in the workers of `kgray up`, and none are up: run '
                f'`kgray up --data {self._data}`, or use a server, model.backend = "openai".'
            )
        random.shuffle(engines)
        return engines

    def embedder(self, local: Embedder) -> Embedder:
        """Return the embedder of searches: the workers' model if they have weights, else the local model."""
        if self._settings.embedder.backend != "bge":
            return local
        return PooledEmbedder(OnWorkers(partial(self.pool, "embedder"), local), local)

    def reranker(self, local: Reranker | None) -> Reranker | None:
        """Return the reranker of searches, chosen as in `embedder`."""
        if self._settings.reranker.backend != "bge" or local is None:
            return local
        return PooledReranker(OnWorkers(partial(self.pool, "reranker"), local), local)

    def _join(self, tell: port.OnWait = port.ignore, *, start: bool = False) -> Profile | None:
        """Join the running Ray and return its profile. If none runs: start one with `start`, else None."""
        with self._joining:
            head = rays.read_head(self._data)
            if not start and not rays.runs_already(self._settings, head):
                return None
            rays.require_ray()
            profile = rays.profile_for(self._settings, head)
            if self._session is None:
                self._session = rays.open_session(self._settings, head, profile, tell)
                threading.Thread(target=self._watch, args=(self._session,), daemon=True).start()
        return profile

    def pool(self, kind: str) -> Pool | None:
        """Return the workers of a kind, for one call; None if no Ray runs, or no such worker.

        It starts reading engines, because no other process has their model. Actors with other settings would
        answer with another model: for searches it returns None, so that the local model answers; for reading
        it raises SettingsError.
        """
        model, reads = self._settings.model, kind == "models"
        if reads and model.backend == "vllm":
            self._up(port.ignore)
        else:
            try:
                if (self._session is None and self._join() is None) or not rays.head_listens():
                    return None
            except KgrayError:  # no Ray answers, or only a job server: reading needs none
                return None
        try:
            workers = self._live_workers(kind)
        except (SettingsError, Unavailable):  # the actors have other, or unknown, settings
            if reads:
                raise
            return None
        random.shuffle(workers)  # a pool of one call does not know what others have sent
        deadline_s = model.patience_s + (MAX_MODEL_CALLS if reads else 1) * model.timeout_s
        return Pool(workers, patience_s=model.patience_s, answer_deadline_s=deadline_s) if workers else None

    def _live_workers(self, kind: str) -> list[RemoteWorker]:
        """Return the live workers of a kind, cached for WATCH_S, or until a worker has ended."""
        from kgray.runtime.actors import RemoteWorker
        from kgray.runtime.deploy import joined as deployed
        from kgray.runtime.deploy import workers

        looked_at, cached = self._workers.get(kind, (0.0, []))
        if not cached or time.monotonic() - looked_at > WATCH_S or any(worker.is_gone for worker in cached):
            spec, checked = spec_of(self._settings, self._data, {}), {worker.only for worker in cached}
            actors = workers(spec, kind).actors
            if not checked.issuperset(actors.values()) and deployed(spec) is None:
                actors = {}
            cached = [RemoteWorker(name, spec.namespace, only=actor) for name, actor in actors.items()]
            self._workers[kind] = time.monotonic(), cached
        return [*cached]

    def _watch(self, session: rays.Session) -> None:
        """Leave a Ray that has ended: its client kills a process that waits a minute for the head.

        A run notices the end by itself, while it starts the actors and while it follows them.
        """

        def has_ended() -> bool:
            return self._session is session and self._deployment is None and session.ended()

        while self._session is session:
            if has_ended():
                with self._joining:  # not while a thread starts actors; it may have a deployment afterwards
                    if has_ended():
                        self._leave()
            time.sleep(WATCH_S)

    def close(self) -> None:
        """Leave Ray, and end the actors and the Ray that this process started. Idempotent."""
        deployment, session = self._deployment, self._session
        self._deployment = self._session = None
        self._workers = {}
        if session is None:
            return
        if deployment is not None and deployment.ours and session.folder is None:
            deployment.stop(0)  # in a Ray that stays
        elif deployment is not None and deployment.ours:
            deployment.end_engines()
        session.close()

    def _up(self, tell: port.OnWait) -> Deployment:
        """Return the actors; start missing actors, and Ray if necessary."""
        with self._joining:
            if self._deployment is None:
                profile = self._join(tell, start=True) or Profile()
                from kgray.runtime.deploy import ensure  # it imports ray, which reads the token's variables

                spec = spec_of(self._settings, self._data, profile.values())
                chosen = self._settings.runtime.profile is not None
                try:
                    self._deployment = ensure(spec, detached=False, chosen=chosen, tell=tell)
                except Unavailable:
                    if not rays.head_listens():
                        self._leave()
                    raise
            return self._deployment

    def _looked_up_again(self, tell: port.OnWait) -> Deployment:
        """Return the actors after a new look-up; this process still ends the actors that it started.

        Detached actors may have got other settings or another number of shards meanwhile: this run goes on.
        """
        former, self._deployment = self._deployment, None
        if former is not None and not former.ours:
            from kgray.runtime.deploy import find

            with self._joining:
                try:
                    present = find(former.spec.namespace)
                except Unavailable:  # its sequencers are being replaced
                    present = former
                if present is not None:
                    self._deployment = present if present.sequencers else former
                    return self._deployment
        deployment = self._up(tell)
        deployment.ours |= former is not None and former.ours
        return deployment

    def _leave(self) -> None:
        """Disconnect from a Ray that has ended: its client would end this process."""
        self._deployment = None
        self.close()


@dataclass(eq=False)
class Follower:
    """Polls the sequencers of a deployment for stats and collects the totals of this run."""

    deployment: Deployment
    mine: Callable[[str, int], bool]  # whether a step (group, sequence) before the first look is ours
    on_step: port.OnStep
    on_wait: port.OnWait

    def __post_init__(self) -> None:
        self._waits = False  # on_wait was called
        self._reported = False  # an outage of the sequencers, which is not over
        self._step_counts: dict[int, int] = {}  # by shard
        self._rows: dict[int, dict[str, Any]] = {}  # each sequencer's stats at the last look, by shard
        self.run_totals = port.Totals()  # of the run, as of the last look
        self.follow(self.deployment)

    def follow(self, deployment: Deployment) -> None:
        """Follow this deployment from now on; sequencers that stopped on a fault try again."""
        self.deployment = deployment
        self._away_since: float | None = None
        deployment.resume()

    @property
    def away_s(self) -> float:
        """Seconds since a sequencer stopped answering; 0 if all answered the last call."""
        return 0.0 if self._away_since is None else time.monotonic() - self._away_since

    async def look(self) -> str:
        """Report new steps; return the reason to stop, or "". Raises a sequencer's fault."""
        try:
            rows = await self.deployment.news(self._step_counts)
        except Unavailable as error:
            self._away_since, self._reported = self._away_since or time.monotonic(), True
            OUTAGES.failed(_SEQUENCER, f"does not answer ({error})", since=time.time(), patience_s=_LOST_S)
            return ""  # it restarts; the store knows the entries that end in the meantime
        if self._reported:
            OUTAGES.answered(_SEQUENCER)
        self._away_since, self._reported = None, False
        OUTAGES.tell(_SEQUENCER, (Outage(**outage) for row in rows for outage in row["waits"]))
        # All steps of fresh actors belong to this run; of older actors, only later steps do.
        fresh, self.deployment.fresh = self.deployment.fresh and not self._rows, False
        reason = ""
        for row in rows:
            shard = row["shard"]
            previous, steps, self._step_counts[shard] = self._rows.get(shard), row["steps"], row["stepped"]
            if previous is None:
                previous = row | (_NOTHING_YET if fresh else {})
                steps = [step for step in steps if fresh or self.mine(*step[:2])]
            elif row["pid"] != previous["pid"]:  # another process: the next look gets its steps
                previous, steps, self._step_counts[shard] = _NOTHING_YET, [], 0
            self._rows[shard] = row
            self.run_totals = port.sum_of(self.run_totals, _gained(previous["totals"], row["totals"]))
            for step in steps:
                self.on_step(*step)
            if row["waits_for"] and not self._waits:
                self._waits = True
                self.on_wait(f"waiting: {row['waits_for']}")
            if row["fault"] is not None:
                raise row["fault"]
            reason = reason or (row["reason"] if row["given_up"] > previous["given_up"] else "")
        return reason

    async def totals(self) -> port.Totals:
        """Return the run's totals after a last look, whose errors are ignored: they are reported already."""
        # The store shows a batch before its acknowledgement reaches the sequencer, whose stats lack it.
        deadline = time.monotonic() + _LAST_LOOK_S
        with suppress(KgrayError, RuntimeError):
            await self.look()
            while time.monotonic() < deadline and (
                self._away_since is not None or any(row["posting"] for row in self._rows.values())
            ):
                await asyncio.sleep(_LOOK_S)
                await self.look()
        return self.run_totals


# The stats of a sequencer before it starts.
_NOTHING_YET: dict[str, Any] = {"totals": asdict(port.Totals()), "given_up": 0}


def _gained(first: Mapping[str, Any], last: Mapping[str, Any]) -> port.Totals:
    """Return the difference between two totals of a sequencer."""
    counts = {name: last[name] - first[name] for name in port.COUNTS}
    seconds = {stage: value - first["seconds"].get(stage, 0.0) for stage, value in last["seconds"].items()}
    # If the service committed before this run, its first claim belongs to another run: count from there.
    claim = last["first_claim"] if first["last_commit"] is None else first["last_commit"]
    return port.Totals(**counts, seconds=seconds, first_claim=claim, last_commit=last["last_commit"])


def _earlier_entries(
    store: Store,
    last_sequences: Mapping[str, int],
    queued: Mapping[str, port.Queued],
    groups: Collection[str] | None,
) -> dict[str, port.Queued]:
    """Return, by group, the entries that were pending at the run's start and that it did not queue itself."""
    queues = {}
    for group, last in last_sequences.items():
        if groups is None or group in groups:
            own_sequences = queued[group].sequences if group in queued else None
            queue = pending_now(store, group, last=last, excluded=own_sequences)
            if queue.last:
                queues[group] = queue
    return queues
