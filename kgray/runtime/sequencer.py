"""The sequencer of a shard: an actor that runs the runner as a service over the groups of its shard.

It decides, in order; workers call the models; the writer writes. Nothing it holds is durable: if it is
killed, the next one takes a new epoch, reads the store and continues; no journaled answer is asked for again
(R21, R23).
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import ray

from kgray.domain.records import Episode, Extraction
from kgray.errors import KgrayError, Locked, NoSpace, StaleWriter, Unavailable
from kgray.ingest.calls import Parts, tell_lag
from kgray.ingest.runner import Runner, WindowedRun
from kgray.ingest.steps import Reading, Stepping, resolve_node
from kgray.ports import Judged, QuestionRequest
from kgray.ports.ingest import Gate, NextCall, Reply, Totals
from kgray.runtime import telemetry
from kgray.runtime.actors import Handle, control, reached
from kgray.runtime.draining import when_draining
from kgray.runtime.pooled import Chunker, PooledEmbedder
from kgray.runtime.pools import Pool, outcome_of, pool_of, portable
from kgray.runtime.registry import RENEW_S, SeatHolder
from kgray.runtime.spec import POOLS, DeploymentSpec
from kgray.runtime.tasks import StepTasks
from kgray.runtime.watch import LogWatch
from kgray.runtime.writer import RemoteWriter
from kgray.system.outages import OUTAGES

# runtime.chunk_episodes and runtime.chunk_requests if they are not set. Calls of a model take seconds and are
# spread over the workers; steps and texts take milliseconds, less than Ray takes to send them.
CALLS_PER_CHUNK, STEPS_PER_CHUNK = 8, 32
_KEPT_ENDS = 4096  # the newest ended entries, kept for clients that follow the run
_MEASURE_S = 0.5  # between two measures of the lag
_PAUSE_S = 0.2  # between two tries to hold a store that another process holds
_AFTER_OUTAGE_S = 5.0  # before the next try, after the patience is spent
_LONGEST_PAUSE_S = 60.0  # between two tries after a fault; the first is _AFTER_OUTAGE_S


class Sequencer:
    """Serves one shard. It starts to serve by itself, so that it needs no command after a restart by Ray.

    The service runs in the event loop of the constructor; control calls come from another thread and read
    plain fields. Errors appear in `stats`; they do not fail the start.
    """

    async def __init__(  # type: ignore[misc]  # Ray awaits it in the loop that the service then has
        self, spec: DeploymentSpec, shard: int, is_detached: bool, writer: str
    ) -> None:
        """Begin to serve. is_detached: of the deployment; then this process restores missing actors."""
        from kgray.runtime.keeper import Keeper  # it imports this module

        context = ray.get_runtime_context()
        self._spec, self._shard, self._name = spec, shard, context.get_actor_name() or ""
        telemetry.start(self._name)
        self._me = context.get_worker_id()
        self._profile, self._patience_s = spec.cluster, spec.values["model.patience_s"]
        # Other actors are known by name: a handle dies with the process that sent it.
        find, deadline_s = partial(self._actor, writer), self._profile.limits.write_deadline_s
        self._writer = RemoteWriter(find, shard, deadline_s=deadline_s, patience_s=self._patience_s)
        self._parts: Parts | None = None  # built by the service, so that a failure can be retried
        self._pools: list[Pool] = []
        self._tasks: StepTasks | None = None
        self._seats: SeatHolder | None = None  # leases seats of engines; None: the workers share a server
        if spec.seats:
            self._seats = SeatHolder(
                self._actor,
                self._name,
                self._me,
                lambda: max(1, spec.seats // self._keeper.spec.cluster.sequencer.shards),
            )
        self._runner: Runner | None = None
        self._totals = Totals()  # of all runs of this process
        self._ended_entries: deque[tuple[str, int, str]] = deque(maxlen=_KEPT_ENDS)
        self._ended_count = 0
        self._guard = threading.Lock()
        self._ended = threading.Event()
        self._exported: dict[tuple[str, str], float] = {}
        self._stopping = False
        self._state = "starting"  # serving | waiting | out | faulty | replaced | stopped
        self._waits_for = ""  # the process that holds the store
        self._given_up = 0  # outages that lasted longer than the patience, and full disks
        self._reason = ""  # of the last of these
        self._fault: Exception | None = None
        self._pause_s = _AFTER_OUTAGE_S  # after the next fault
        # Pending entries of its shard; estimated size of the groups' states in memory.
        self._pending = self._held_bytes = 0
        self._watch = LogWatch(lambda: None if self._parts is None else self._parts.store, self._actor)
        self._loop = asyncio.get_running_loop()
        self._nudge = asyncio.Event()  # set by control calls: end the sleep
        self._service = asyncio.create_task(self._serve())
        self._keeper = Keeper(spec, is_detached=is_detached, has_workers=shard == 0)
        when_draining(self._leave)

    def _actor(self, name: str) -> Handle:
        return ray.get_actor(name, namespace=self._spec.namespace)

    async def _serve(self) -> None:
        lag = partial(telemetry.measure, "kgray_loop_lag_seconds")
        upkeep = [self._measure(), self._lease(), tell_lag(lag)]
        if self._shard == 0:
            upkeep.append(self._watch.run())
        measuring = asyncio.gather(*upkeep)
        try:
            while not self._stopping:
                await self._serve_once()
        finally:
            measuring.cancel()
            if self._seats is not None:
                self._seats.end()
            for pool in self._pools:
                await pool.close()
            if self._tasks is not None:
                await self._tasks.close()
            if self._state != "replaced":
                self._state = "stopped"
            self._ended.set()

    async def _serve_once(self) -> None:
        try:
            if self._parts is None:
                self._parts = self._build_parts()
            if self._runner is None:
                if not await self._begin():
                    return
                self._runner = Runner(replace(self._parts, writer=self._writer))
                self._runner.totals = self._totals
                if self._seats is not None:
                    self._runner.widen(self._seats.width)
            self._state = "serving"
            await self._runner.serve(
                shard=self._shard,
                stop=lambda: self._stopping,
                on_step=self._step,
                is_watched=lambda: self._shard > 0 or self._watch.shards > 1,
            )
        except StaleWriter:
            self._runner = None  # the next runner takes a new epoch
            if await self._replaced():
                self._state, self._stopping = "replaced", True
                telemetry.LOGGER.warning("replaced by a newer sequencer", extra={"epoch": self._writer.epoch})
        except (Unavailable, NoSpace) as error:
            self._given_up, self._reason, self._state = self._given_up + 1, str(error), "out"
            telemetry.LOGGER.warning("out of reach: %s", error)
            # A server comes back by itself. A full disk does not, and each try would pay the model again for
            # results that cannot be written: the service waits for the next command.
            await self._sleep(_AFTER_OUTAGE_S if isinstance(error, Unavailable) else None)
        except Exception as error:  # noqa: BLE001 - a command that waits gets it from `stats`
            # For example, a model's server refuses the key or the model's name. The fault concerns no single
            # group, and a person may repair it without a command to kgray.
            telemetry.LOGGER.exception("the sequencer failed; it tries again in %g s", self._pause_s)
            self._fault, self._state = portable(error), "faulty"
            self._runner = None  # the next runner takes a new epoch
            await self._sleep(self._pause_s)
            self._pause_s, self._fault = min(2 * self._pause_s, _LONGEST_PAUSE_S), None

    def _build_parts(self) -> Parts:
        """Open the store; return its parts with the pools in place of the models."""
        settings, local, profile = self._spec.settings(), self._spec.parts(), self._profile
        chunked = partial(Chunker, linger_s=profile.limits.linger_ms / 1000)
        limits = settings.runtime
        chunk_sizes = limits.chunk_episodes, limits.chunk_requests
        episodes, requests = (size or CALLS_PER_CHUNK for size in chunk_sizes)
        reading_steps, resolving_steps = (size or STEPS_PER_CHUNK for size in chunk_sizes)
        kinds = [kind for kind in ("models", "embedder", "judges") if getattr(profile, POOLS[kind]).maximum]
        pools = {kind: pool_of(self._spec, kind) for kind in kinds}
        self._pools, models = [*pools.values()], pools["models"]
        judging, embedder = pools.get("judges", models), local.embedder
        if "embedder" in pools:
            embedder = PooledEmbedder(chunked(pools["embedder"], size=resolving_steps), embedder)
        sizes = {"resolve_node": resolving_steps, "extract_episode": reading_steps}  # the most urgent first
        tasks = self._tasks = StepTasks(self._spec, sizes)

        linger_s, judge = profile.tasks.linger_ms / 1000, local.judge
        reading = Chunker(tasks.of("extract_episode"), reading_steps, linger_s)
        resolving = Chunker(tasks.of("resolve_node"), resolving_steps, linger_s)

        async def extract(request: Reading, replies: Sequence[Reply]) -> NextCall | Extraction:
            step: NextCall | Extraction = await reading.ask((request, tuple(replies)))
            return step

        async def resolve(request: QuestionRequest, replies: Sequence[Reply]) -> NextCall | Judged:
            if not replies:
                # This process renders the prompt anyway, for the key of the request.
                return resolve_node(judge, request, ())
            step: NextCall | Judged = await resolving.ask((request, tuple(replies)))
            return step

        return replace(
            local,
            watch=_log_stage,
            extracting=Stepping(extract, chunked(models, size=episodes).ask),
            resolving=Stepping(resolve, chunked(judging, size=requests).ask),
            embedder=embedder,
        )

    async def _begin(self) -> bool:
        """Take a new epoch; wait while another process holds the store. False: a stop was requested first."""
        deadline = time.monotonic() + self._patience_s
        while not self._stopping:
            outcome = await self._writer.begin()
            if isinstance(outcome, RemoteWriter):
                self._writer, self._waits_for = outcome, ""
                telemetry.LOGGER.info("serves", extra={"epoch": self._writer.epoch})
                return True
            if isinstance(outcome, Locked):
                deadline = (
                    time.monotonic() + self._patience_s
                )  # it ingests the pending entries, which may take long
            elif not isinstance(outcome, Unavailable) or time.monotonic() >= deadline:
                raise outcome
            self._waits_for, self._state = str(outcome), "waiting"
            await self._sleep(_PAUSE_S)
        return False

    async def _replaced(self) -> bool:
        """Return True if the actor's name belongs to another process; retry while Ray does not answer."""
        while not self._stopping:
            try:
                namesake = await asyncio.to_thread(self._actor, self._name)
                return bool((await reached(namesake.describe))["worker"] != self._me)
            except Exception as error:  # noqa: BLE001 - any error of Ray while its head is away
                telemetry.LOGGER.warning(
                    "cannot ask Ray whether this sequencer was replaced: %s", type(error).__name__
                )
                await self._sleep(_AFTER_OUTAGE_S)
        return False

    async def _sleep(self, seconds: float | None) -> None:
        """Sleep until a control call wakes the service, or the seconds are over; None = no bound."""
        if self._stopping:
            return
        self._nudge.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._nudge.wait(), seconds)

    def _step(self, group: str, sequence: int, outcome: str) -> None:
        with self._guard:
            self._ended_entries.append((group, sequence, outcome))
            self._ended_count += 1
        self._pause_s = _AFTER_OUTAGE_S

    async def _measure(self) -> None:
        while True:
            began = time.monotonic()
            is_busy = (run := self._run()) is None or not run.rests
            if self._parts is not None and (is_busy or self._pending):  # a count costs the store a round trip
                count = partial(self._parts.store.pending_count, shard=self._shard)
                with suppress(KgrayError):  # the run meets the error too, and reports it
                    self._pending = await asyncio.to_thread(count)
            if self._parts is not None:
                telemetry.measure("kgray_log_lag", self._pending, shard=self._shard)
                telemetry.measure("kgray_in_flight", self._in_flight(), shard=self._shard)
                telemetry.export(self._totals, self._exported)
            if self._runner is not None:
                self._held_bytes = self._runner.committer.size()
            # Counting a long log takes long: count it less often.
            await asyncio.sleep(max(_MEASURE_S, 20 * (time.monotonic() - began)))

    async def _lease(self) -> None:
        """Limit the calls in flight to the leased seats of engines; a server has its own limit."""
        while self._seats is not None:
            gate = Gate(0) if (run := self._run()) is None else run.traffic.gate
            width = await self._seats.renew(gate.demand, gate.in_flight, self._pending, gate.bulk_in_flight)
            telemetry.measure("kgray_seats", width, shard=self._shard)
            if self._runner is not None:
                self._runner.widen(width)
            await asyncio.sleep(RENEW_S)

    def _run(self) -> WindowedRun | None:
        runner = self._runner  # read once: the service may set it to None at any moment
        return None if runner is None else runner.current

    def _in_flight(self) -> int:
        run = self._run()
        return 0 if run is None else run.in_flight

    @control
    async def stats(self, start: int = 0) -> dict[str, Any]:
        """Return state, counts and fault. steps: after the first `start`; only the latest 4096 exist."""
        with self._guard:
            ended_count, ended = self._ended_count, list(self._ended_entries)
        runner = self._runner
        return {
            "pid": os.getpid(),
            "shard": self._shard,
            "state": self._state,
            "epoch": self._writer.epoch,
            "window": self._spec.values["runtime.window"],
            "in_flight": self._in_flight(),
            "posting": runner is not None and not runner.committer.outbox.idle,
            "lag": self._pending,
            "held_bytes": self._held_bytes,
            "totals": asdict(self._totals),
            "waits": [asdict(outage) for outage in OUTAGES.current()],
            "given_up": self._given_up,
            "reason": self._reason,
            "waits_for": self._waits_for,
            "fault": self._fault,
            "quarantined": dict(self._keeper.quarantined),
            "workers": [row for pool in self._pools for row in pool.stats()],
            "stepped": ended_count,
            "steps": ended[-(ended_count - start) :] if ended_count > start else [],
        }

    @control
    async def describe(self) -> dict[str, Any]:
        """Return the actor's spec and process."""
        return {"pid": os.getpid(), "worker": self._me, "spec": self._keeper.spec, "fault": None}

    @control
    async def resume(self) -> None:
        """Try again after a fault, or at once after an outage: somebody may have repaired the cause."""
        self._fault = None
        self._loop.call_soon_threadsafe(self._nudge.set)

    @control
    async def look(self, everything: bool = False) -> None:
        """Look at the log: this shard got entries, or (everything) slots with pending entries."""
        if (run := self._run()) is not None:  # else the next run begins with a look at everything
            self._loop.call_soon_threadsafe(partial(run.look, everything=everything))

    @control
    async def hand_over(self, slots: Collection[int], shard: int) -> Exception | None:
        """Move slots of this shard to another shard (`Store.moving`); return the error if nothing moved.

        If this process dies during the move, the next process takes the shard, which ends the move.
        """
        return await outcome_of(asyncio.to_thread(self._hand_over, slots, shard))

    def _hand_over(self, slots: Collection[int], shard: int) -> None:
        parts = self._parts or self._spec.parts()
        with parts.store.moving(slots, shard):
            if (runner := self._runner) is not None:
                asyncio.run_coroutine_threadsafe(runner.leave(slots), self._loop).result()

    @control
    async def retire(self) -> None:
        """Stop restoring missing actors, before actors are replaced or ended."""
        await asyncio.to_thread(self._keeper.end)

    @control
    async def drain(self, grace_s: float) -> int:
        """Take nothing new, commit episodes in flight, and end; return the number still in flight."""
        await asyncio.to_thread(self._keeper.end)
        await asyncio.to_thread(self._leave, grace_s)
        return self._in_flight()

    def _leave(self, grace_s: float) -> None:
        self._stopping = True
        self._loop.call_soon_threadsafe(self._nudge.set)
        self._ended.wait(grace_s)


def _log_stage(stage: str, seconds: float, episode: Episode | None) -> None:
    if episode is not None and stage in {"taken", "decide"}:  # the workers log the other stages
        telemetry.stage(stage, episode.group, episode.sequence, seconds=seconds)
