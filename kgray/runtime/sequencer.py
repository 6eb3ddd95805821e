"""The runner as a service: it owns the groups of one shard, and has workers and the writer do the work.

It decides; workers read and answer; the writer writes. Nothing it holds is durable: where it is killed,
the next one takes a new epoch, reads the store and goes on, and nothing is asked twice (R21, R23).
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import zlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from kgray.errors import KgrayError, Locked, NoSpace, StaleWriter, Unavailable
from kgray.ingest.parts import Parts, Totals
from kgray.ingest.runner import Runner
from kgray.memory.ingesting import joined
from kgray.records import Episode
from kgray.runtime import logs
from kgray.runtime.metrics import SequencerMetrics
from kgray.runtime.models import PooledEmbedder, PooledExtractor, PooledJudge
from kgray.runtime.outcomes import Fault, Lost, error_of, fault_of
from kgray.runtime.pools import Gathering, Pool, Worker
from kgray.runtime.profile import Profile, profile_of
from kgray.runtime.terms import Terms
from kgray.runtime.writer import RemoteWriter, WriterLink
from kgray.settings import Settings

CHUNK = 8  # runtime.chunk_episodes and runtime.chunk_requests, where they are not set
_STEPS = 4096  # the latest, for those who follow
_LOOK_S = 0.5  # between two measures of the lag
_PAUSE_S = 0.2  # between two tries to hold a store that another process holds
_CALLS = 4  # of a model that one request may make, one after the other: read, repaired, asked once more
_AFTER_OUTAGE_S = 5.0  # the patience was spent already


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """The processes that work for a sequencer. newest: whether it is still the one that its name finds."""

    writer: WriterLink
    models: Sequence[Worker]
    embedders: Sequence[Worker]
    newest: Callable[[], Awaitable[bool]]


class Sequencer:
    """Serves one shard from `serve()` on; what is asked of it from other threads reads plain fields."""

    def __init__(self, terms: Terms, shard: int, links: Links) -> None:
        """Open nothing yet: what is wrong is told by `stats`, not by a failed start."""
        self.terms, self._shard, self._links = terms, shard, links
        self._profile: Profile = profile_of(terms.profile, "the deployment")
        self._parts: Parts | None = None
        self._pools: tuple[Pool, ...] = ()
        self._runner: Runner | None = None
        self._writer: RemoteWriter | None = None
        self._past = Totals()  # of the runs before the one that goes on
        self._steps: deque[tuple[str, int, str]] = deque(maxlen=_STEPS)
        self._stepped = 0
        self._guard = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._nudge = asyncio.Event()  # of the service's loop: look what was asked from outside
        self._ended = threading.Event()
        self._metrics = SequencerMetrics(shard)
        self.stopping = False
        self.state = "starting"  # serving | waiting | out | faulty | replaced | stopped
        self.waits_for = ""  # who holds the store
        self.given_up = 0  # outages that lasted longer than the patience, and full disks
        self.reason = ""  # of the last one
        self.fault: Fault | None = None
        self.epoch = self.lag = 0
        self.held_bytes = 0  # about what the states of the groups in memory take

    # ----------------------------------------------------------------------------- the service

    async def serve(self) -> None:
        """Carry out what is pending and what comes, until it is drained or replaced."""
        self._loop = asyncio.get_running_loop()
        measuring = asyncio.create_task(self._measure())
        try:
            while not self.stopping:
                await self._serve_once()
        finally:
            measuring.cancel()
            for pool in self._pools:
                await pool.close()
            self.state = "replaced" if self.state == "replaced" else "stopped"
            self._ended.set()

    async def _serve_once(self) -> None:
        try:
            parts = self._built()
            if self._runner is None:
                self._writer = await self._begin()
                if self._writer is None:
                    return
                self._runner = Runner(replace(parts, writer=self._writer))
            self.state = "serving"
            await self._runner.serve(mine=self._mine, stop=self._stops, on_step=self._step)
        except StaleWriter:
            await self._superseded()
        except (Unavailable, NoSpace) as error:
            self.given_up, self.reason, self.state = self.given_up + 1, str(error), "out"
            logs.LOGGER.warning("out of reach: %s", error)
            # A server comes back by itself. A full disk does not, and each try would ask the model anew for
            # what cannot be written: it waits for whoever comes next.
            await self._sleep(_AFTER_OUTAGE_S if isinstance(error, Unavailable) else None)
        except Exception as error:  # noqa: BLE001 - whoever waits is told, and may have it tried again
            logs.LOGGER.exception("the service stands still")
            self.fault, self.state = fault_of(error), "faulty"
            self._account()
            self._runner = None
            await self._while_faulty()
        finally:
            if self._runner is not None:
                self._account()

    def _built(self) -> Parts:
        if self._parts is not None:
            return self._parts
        settings = self.terms.settings()
        local = self.terms.parts()
        models, embedders = (self._pool(w, settings) for w in (self._links.models, self._links.embedders))
        self._pools = tuple(pool for pool in (models, embedders) if pool is not None)
        assert models is not None  # noqa: S101 - a profile has at least one
        chunk_requests = settings.runtime.chunk_requests or CHUNK
        reading = self._gathering(models, settings.runtime.chunk_episodes or CHUNK)
        judging = self._gathering(models, chunk_requests)
        self._parts = replace(
            local,
            watch=_tell,
            extractor=PooledExtractor(reading, local.extractor),
            judge=PooledJudge(judging, local.judge),
            embedder=local.embedder
            if embedders is None
            else PooledEmbedder(self._gathering(embedders, chunk_requests), local.embedder),
        )
        return self._parts

    def _pool(self, workers: Sequence[Worker], settings: Settings) -> Pool | None:
        if not workers:
            return None
        limits = self._profile.limits
        return Pool(
            workers,
            patience_s=settings.model.patience_s,
            answer_deadline_s=settings.model.patience_s + _CALLS * settings.model.timeout_s,
            health_every_s=limits.health_every_s,
            health_deadline_s=limits.health_deadline_s,
        )

    def _gathering(self, pool: Pool, size: int) -> Gathering:
        return Gathering(pool, size=size, linger_s=self._profile.limits.linger_ms / 1000)

    async def _begin(self) -> RemoteWriter | None:
        """Take a new epoch; wait where another process holds the store. None: asked to stop meanwhile.

        Raises Unavailable where the writer, or its store, is out of reach beyond the patience.
        """
        patience_s = self.terms.values["model.patience_s"]
        until = time.monotonic() + patience_s
        while not self.stopping:
            try:
                found = await self._links.writer.begin()
            except Lost as lost:
                found = Fault(kind=Unavailable.__name__, message=f"the writer is out of reach: {lost}")
            if isinstance(found, int):
                self.epoch, self.waits_for = found, ""
                logs.LOGGER.info("serves", extra={"epoch": found})
                return RemoteWriter(self._links.writer, found, patience_s=patience_s)
            if found.kind == Locked.__name__:
                until = time.monotonic() + patience_s  # it ingests what is there: that may take its time
            elif found.kind != Unavailable.__name__ or time.monotonic() >= until:
                raise error_of(found)
            self.waits_for, self.state = found.message, "waiting"
            await self._sleep(_PAUSE_S)
        return None

    async def _superseded(self) -> None:
        """Another run took the store: end where it is a newer sequencer, else begin anew."""
        self._account()
        self._runner = None
        if not await self._newest():
            self.state, self.stopping = "replaced", True
            logs.LOGGER.warning("replaced by a newer sequencer", extra={"epoch": self.epoch})

    async def _newest(self) -> bool:
        """Whether it is not replaced; asked again while Ray cannot tell: the service must not end of that."""
        while not self.stopping:
            try:
                return await self._links.newest()
            except Exception as error:  # noqa: BLE001 - whatever Ray raises while its head is away
                logs.LOGGER.warning("cannot ask who is the newest: %s", type(error).__name__)
                await self._sleep(_AFTER_OUTAGE_S)
        return True

    async def _while_faulty(self) -> None:
        while self.fault is not None and not self.stopping:
            await self._sleep(None)

    async def _sleep(self, seconds: float | None) -> None:
        """Sleep until something is asked from outside, at most so long."""
        if self.stopping:
            return
        self._nudge.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._nudge.wait(), seconds)

    def _mine(self, group: str) -> bool:
        return shard_of(group, self._profile.sequencer.shards) == self._shard

    def _stops(self) -> bool:
        return self.stopping

    def _step(self, group: str, sequence: int, outcome: str) -> None:
        with self._guard:
            self._steps.append((group, sequence, outcome))
            self._stepped += 1

    def _account(self) -> None:
        """Add the run's totals to those before it; each run starts its own."""
        if self._runner is not None:
            self._past, self._runner.totals = joined(self._past, self._runner.totals), Totals()

    def _totals(self) -> Totals:
        runner = self._runner  # read once: this is asked from other threads too
        return self._past if runner is None else joined(self._past, runner.totals)

    async def _measure(self) -> None:
        while True:
            if self._parts is not None:
                with suppress(KgrayError):  # the run meets it too, and says so
                    self.lag = self._parts.store.pending_count()
                self._metrics.tell(self._totals(), lag=self.lag, in_flight=self._in_flight())
            if self._runner is not None:
                self.held_bytes = self._runner.committer.size()
            await asyncio.sleep(_LOOK_S)

    def _in_flight(self) -> int:
        runner = self._runner
        return runner.in_flight() if runner is not None else 0

    # ------------------------------------------------------------------------ asked from outside

    def stats(self, since: int = 0) -> dict[str, Any]:
        """Return how it goes; steps: those after the `since`-th, as far as they are kept."""
        with self._guard:
            stepped, steps = self._stepped, list(self._steps)
        writer = self._writer
        outages = [pool.outage for pool in self._pools]
        outages += [writer.outage] if writer is not None else []
        outage = min((found for found in outages if found is not None), default=None)
        return {
            "pid": os.getpid(),
            "shard": self._shard,
            "state": self.state,
            "epoch": self.epoch,
            "window": self.terms.values["runtime.window"],
            "in_flight": self._in_flight(),
            "posting": self._runner is not None and not self._runner.committer.outbox.idle,
            "lag": self.lag,
            "held_bytes": self.held_bytes,
            "totals": asdict(self._totals()),
            "outage": None if outage is None else {"since": outage[0], "reason": outage[1]},
            "given_up": self.given_up,
            "reason": self.reason,
            "waits_for": self.waits_for,
            "fault": self.fault,
            "workers": [row for pool in self._pools for row in pool.standing()],
            "stepped": stepped,
            "steps": steps[-(stepped - since) :] if stepped > since else [],
        }

    def describe(self) -> dict[str, Any]:
        """Return who this is and what it was built from."""
        return {"name": f"sequencer {self._shard}", "pid": os.getpid(), "terms": self.terms, "fault": None}

    def resume(self) -> None:
        """Try again after a fault, or at once after an outage: what was wrong may have been put right."""
        self.fault = None
        self._wake()

    async def drain(self, grace_s: float) -> int:
        """Take nothing new, commit what is in flight, and end; return how many are still in flight."""
        self.stopping = True
        self._wake()
        await asyncio.to_thread(self._ended.wait, grace_s)
        return self._in_flight()

    def _wake(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._nudge.set)


def shard_of(group: str, shards: int) -> int:
    """Return the shard that owns a group: the same in every process."""
    return zlib.crc32(group.encode()) % shards


def _tell(stage: str, seconds: float, episode: Episode | None) -> None:
    if episode is not None:
        logs.stage(stage, episode.group, episode.sequence, seconds=seconds)
