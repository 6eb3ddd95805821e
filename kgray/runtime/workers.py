"""Worker actors for language models, embedders and rerankers. They never open the store.

They carry out chunks of requests. They yield each outcome at once, so that a chunk's slowest call delays no
other call. Errors are returned as values.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial
from itertools import accumulate, takewhile
from pathlib import Path
from typing import Any

from kgray.errors import ContentError, Cost, Garbled, KgrayError, SettingsError, StoreError, Unavailable
from kgray.ingest.steps import made_by
from kgray.models.engine_args import strip_secrets
from kgray.models.prompting.tokens import count_tokens
from kgray.ports import AnswerRequest, SummaryRequest
from kgray.ports.ingest import NextCall, embedded
from kgray.runtime import telemetry
from kgray.runtime.actors import control, streaming
from kgray.runtime.draining import when_draining
from kgray.runtime.pooled import QueryText, RerankRequest, answered, together
from kgray.runtime.pools import LEAVING, OUTAGES_CHANGED, UNFIT, Numbered, Outcome, outcome_of
from kgray.runtime.spec import DeploymentSpec, WorkersProfile
from kgray.system import locks
from kgray.system.garbage import collect_garbage_rarely
from kgray.system.outages import OUTAGES, Outage

_TOKENS = 8192  # of one batch of texts: a size that embedding models handle well
BEHIND_S, LOOK_S = 30.0, 0.05  # the longest wait of a summary for ingestion; interval of its checks
_GIVE_BACK_S = 2.0  # for cancelled calls to end, and their callers to notice
MAX_QUERIES = 256  # of users, at one worker; a door answers 503 to further ones
TELL_S = 0.5  # between two looks at this process's outages

_Row = tuple[str, asyncio.Future[Any]]  # a text, and the future of its vector


class _PooledActor(ABC):
    """The common part of all workers. Control calls come from another thread than the work."""

    def __init__(self, spec: DeploymentSpec, name: str) -> None:
        telemetry.start(name)
        self._spec, self._name = spec, name
        self._fault: KgrayError | None = None  # the error of its start; then it carries out nothing
        self._loads: Any = None  # the model to load in this process, if any
        self._loading: asyncio.Task[None] | None = None
        self._is_queued = False  # another process loads its model onto the same card
        self._loop: asyncio.AbstractEventLoop | None = None  # of the work; None before the first chunk
        self._running: dict[int, asyncio.Task[Outcome]] = {}
        self._queries = 0  # that are being carried out
        self._ended_count = self._read = 0  # ended requests; episodes among them
        self._is_loaded = self._ending = False
        self._idle_since = time.monotonic()
        self._started_at = time.time()
        try:
            self._build(spec)
        except Exception as error:  # noqa: BLE001 - an actor whose creation fails is never started again
            self._fail(error)
        collect_garbage_rarely()
        when_draining(self._leave_node)

    @abstractmethod
    def _build(self, spec: DeploymentSpec) -> None: ...

    async def ready(self) -> Exception | None:
        """Load the model, once, in the loop of the work; return the error of the start, if any."""
        self._loop = asyncio.get_running_loop()
        if self._loading is None and not self._ending:
            self._loading = asyncio.create_task(self._load())
        if self._loading is not None:
            await asyncio.shield(self._loading)
        return self._fault

    async def _load(self) -> None:
        if self._fault is not None:
            return
        try:
            if hasattr(self._loads, "start"):
                async with self._card():
                    await self._loads.start()
        except Exception as error:  # noqa: BLE001 - a library's own error: no memory on the card
            self._fail(error)
        else:
            self._is_loaded, self._idle_since = True, time.monotonic()

    @asynccontextmanager
    async def _card(self) -> AsyncIterator[None]:
        """Hold the locks of this process's cards: an engine measures the free memory of a card."""
        with ExitStack() as lock_stack:
            self._is_queued = True
            for card in sorted(filter(str.isalnum, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(","))):
                path = Path(tempfile.gettempdir()) / f"kgray-{os.getuid()}-card-{card}.lock"
                with suppress(StoreError):  # no lock is no reason not to start
                    lock = locks.held(path, lambda _: time.sleep(LOOK_S))
                    await asyncio.to_thread(lock_stack.enter_context, lock)
            self._is_queued = False
            yield

    def _fail(self, error: Exception) -> None:
        telemetry.LOGGER.error("the start failed", exc_info=error)
        if not isinstance(error, KgrayError):
            fault_text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            error = SettingsError(
                f"{self._name} cannot load its model ({fault_text}): its log says more, and "
                f"`kgray doctor --profile FILE` says what fits on a card."
            )
        self._fault = error

    async def stop(self, idle_s: float = 0.0) -> bool:
        """End an engine's processes; take no more work. False: it had work within `idle_s`, and goes on."""
        if idle_s and self._idle_s() < idle_s:
            return False
        self._ending = True
        if hasattr(self._loads, "stop"):
            await self._loads.stop()
        return True

    @control
    async def drain(self, grace_s: float) -> None:
        """Take no more work, wait `grace_s` for running calls, then give the remaining calls back."""
        await asyncio.to_thread(self._leave, grace_s)

    def _leave(self, grace_s: float) -> None:
        self._ending, deadline = True, time.monotonic() + grace_s
        while self._running and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        for task in [*self._running.values()]:
            task.get_loop().call_soon_threadsafe(task.cancel)
        while self._running and time.monotonic() < deadline + _GIVE_BACK_S:
            time.sleep(LOOK_S)

    def _leave_node(self, left_s: float) -> None:
        self._leave(max(0.0, left_s - _GIVE_BACK_S))
        if self._loop is not None and hasattr(self._loads, "stop"):
            with suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(self._loads.stop(), self._loop).result(left_s)

    def _state(self) -> dict[str, Any]:
        """Return the state of the model: loaded (or none to load), loading, queued; and the start's fault."""
        up = self._fault is None and (self._is_loaded or not hasattr(self._loads, "start"))
        loading = not up and self._loading is not None and not self._loading.done()
        return {
            "pid": os.getpid(),
            "loaded": up,
            "loading": loading,
            "queued": self._is_queued,
            "fault": self._fault,
        }

    def _tell_engine(self) -> None:
        for counter, count in getattr(self._loads, "counts", {}).items():
            telemetry.measure("kgray_engine", count, worker=self._name, of=counter)

    def _idle_s(self) -> float:
        return 0.0 if self._running else time.monotonic() - self._idle_since

    @abstractmethod
    async def _outcome(self, request: Any) -> Outcome: ...  # noqa: ANN401 - the port's request

    async def _query(self, work: Callable[[], Awaitable[Outcome]]) -> Outcome:
        """Return the outcome of what a user waits for; refuse it where too many users wait."""
        if self._queries >= MAX_QUERIES:
            return Unavailable(f"{MAX_QUERIES} queries wait at {self._name}: try again")
        self._queries += 1
        try:
            return await outcome_of(work())
        finally:
            self._queries -= 1

    @streaming
    async def work(self, chunk: Sequence[Numbered]) -> AsyncIterator[list[Numbered]]:
        """Carry out a chunk; yield the outcomes of calls as they end. A worker that ends yields LEAVING."""
        if (fault := await self.ready()) is not None:
            yield [(UNFIT, fault)]
        if self._ending:
            yield [(LEAVING, None)]
        if self._ending or fault is not None:
            return
        self._loop = asyncio.get_running_loop()
        telemetry.measure("kgray_batch_size", len(chunk), of="chunk")
        tasks = {asyncio.create_task(self._outcome(request)): number for number, request in chunk}
        self._running |= {number: task for task, number in tasks.items()}
        running, reported = (
            set(tasks),
            tuple[Outage, ...](),
        )  # of this chunk: another router may send other chunks
        try:
            while running:
                ended, running = await asyncio.wait(
                    running, timeout=TELL_S, return_when=asyncio.FIRST_COMPLETED
                )
                if (waits := tuple(OUTAGES.current())) != reported:
                    reported = waits
                    yield [(OUTAGES_CHANGED, waits)]
                self._ended_count, self._idle_since = self._ended_count + len(ended), time.monotonic()
                self._tell_engine()
                for task in ended:
                    self._running.pop(tasks[task], None)
                if ended:
                    yield [(tasks[task], task.result()) for task in ended if not task.cancelled()]
            yield [(LEAVING, None)] * self._ending  # if it began to end during the chunk
        finally:
            for task in running:
                task.cancel()
                self._running.pop(tasks[task], None)
            # Measure later: the engine counts a step after it has returned its replies.
            self._loop.call_later(TELL_S, self._tell_engine)

    @control
    async def health(self) -> bool | Exception:
        """Return whether it takes work, or its start's error. No answer if the work's loop hangs."""
        if self._loop is not None:
            turned = asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self._loop)
            await asyncio.wrap_future(turned)
        return self._fault or (bool(self._state()["loaded"]) and not self._ending)

    @control
    async def stats(self) -> dict[str, Any]:
        """Return the numbers of requests in flight and done, and the start time (wall clock)."""
        engine = getattr(self._loads, "counts", None)
        return (
            self._state()
            | {
                "name": self._name,
                "running": len(self._running),
                "done": self._ended_count,
                "read": self._read,
                "since": self._started_at,
                "idle_s": self._idle_s(),
            }
            | ({"engine": dict(engine)} if engine else {})
        )

    @control
    async def describe(self) -> dict[str, Any]:
        """Return the actor's spec and state."""
        return self._state() | {"spec": self._spec}

    @control
    async def abandon(self, numbers: Sequence[int]) -> None:
        """Cancel the calls with these numbers."""
        for number in numbers:
            if self._loop is not None and (task := self._running.get(number)) is not None:
                self._loop.call_soon_threadsafe(task.cancel)


class ModelWorker(_PooledActor):
    """Makes the calls of a language model; they are self-contained."""

    def _build(self, spec: DeploymentSpec) -> None:
        from kgray.runtime.wiring import (
            build_answerer,
            build_engine,
            build_models,
            build_ontology,
            build_summarizer,
        )

        settings, profile = spec.settings(), spec.cluster
        ontology = build_ontology(settings)
        # A dead engine does not recover: Ray restarts the process, and its calls go elsewhere.
        self._loads = build_engine(settings, ontology, profile.engine, on_dead=lambda: os._exit(1))
        self._extractor, self._judge = build_models(settings, ontology, engine=self._loads)
        self._summarizer = build_summarizer(settings, self._loads)
        self._answerer = build_answerer(settings, self._loads) if self._loads else None
        shared = settings.model.max_concurrency // profile.extraction.maximum  # of a server
        if self._loads:
            # vLLM hands its environment to its workers as an argument of a call.
            strip_secrets(os.environ)
        self._share = profile.engine.max_num_seqs if self._loads else max(1, shared)
        self._waiting_summaries = 0

    async def _outcome(self, request: NextCall | SummaryRequest) -> Outcome:
        start = time.monotonic()
        if isinstance(request, SummaryRequest):
            return await self._written(request)
        stage, outcome = request.stage, None
        if stage == "extract":
            self._read += 1
            outcome = await outcome_of(made_by(self._extractor, self._extractor.extract, request))
        else:
            outcome = await outcome_of(made_by(self._judge, self._judge.judge, request))
        took = time.monotonic() - start
        telemetry.count_call(stage, took, outcome)
        telemetry.stage(stage, request.group, request.sequence, seconds=took, outcome=outcome)
        return outcome

    @streaming
    async def answer(self, request: AnswerRequest) -> AsyncIterator[str | Cost | Exception]:
        """Yield the pieces of a reply to a user as the engine writes them, then its cost; or an error."""
        if (fault := await self.ready()) is not None or self._answerer is None:
            yield fault or SettingsError("no engine answers where Ray's workers run")
            return
        pieces: asyncio.Queue[str | None] = asyncio.Queue()
        writing = asyncio.create_task(outcome_of(self._answerer.answer(request, pieces.put_nowait)))
        writing.add_done_callback(lambda _: pieces.put_nowait(None))
        self._running[-id(writing)] = writing  # numbered calls have numbers above 0
        try:
            while (piece := await pieces.get()) is not None:
                yield piece
            yield writing.result()
        finally:
            writing.cancel()
            self._running.pop(-id(writing), None)
            self._ended_count, self._idle_since = self._ended_count + 1, time.monotonic()

    async def _written(self, request: SummaryRequest) -> Outcome:
        """Summarise once ingestion leaves room, or after BEHIND_S: reading and judging come first."""
        self._waiting_summaries += 1  # these are in `_running`, and do nothing yet
        try:
            for _ in range(round(BEHIND_S / LOOK_S)):
                if len(self._running) - self._waiting_summaries < self._share:
                    break
                await asyncio.sleep(LOOK_S)
        finally:
            self._waiting_summaries -= 1
        if self._summarizer is None:
            return SettingsError("no language model is configured where Ray's workers run")
        start = time.monotonic()
        outcome = await outcome_of(self._summarizer.write(request))
        telemetry.count_call("summarize", time.monotonic() - start, outcome)
        return outcome


def _promised(table: str, pool: WorkersProfile) -> str:
    """Return the key of the profile that promises a card to a worker; "" = none does."""
    return f"{table}.gpus = {pool.gpus:g}" if pool.gpus else ""


class EmbedWorker(_PooledActor):
    """Embeds lists of texts. An embedder that does not merge calls itself gets them in batches.

    A query does not wait for them. Small lists that arrive together are one batch, long ones are cut.
    """

    def _build(self, spec: DeploymentSpec) -> None:
        from kgray.runtime.wiring import build_embedder

        promised = _promised("embedding", spec.cluster.embedding)
        self._embedder = self._loads = build_embedder(spec.settings(), promised=promised)
        self._merges = getattr(self._embedder, "merges_calls", False)
        self._waiting: list[_Row] = []
        self._batching: asyncio.Task[None] | None = None

    async def _outcome(self, request: Sequence[str] | QueryText) -> Outcome:
        if not self._merges and not isinstance(request, QueryText):
            return await outcome_of(self._embedded(request))
        start = time.monotonic()
        is_query = isinstance(request, QueryText)
        work = partial(answered, self._embedder, request)
        outcome = await (self._query(work) if is_query else outcome_of(work()))
        telemetry.measure(
            "kgray_stage_seconds", time.monotonic() - start, stage="embed_query" if is_query else "embed"
        )
        telemetry.measure("kgray_batch_size", 1 if is_query else len(request), of="embed")
        return outcome

    async def _embedded(self, texts: Sequence[str]) -> Outcome:
        loop = asyncio.get_running_loop()
        rows = [loop.create_future() for _ in texts]
        self._waiting += zip(texts, rows, strict=True)
        if self._batching is None or self._batching.done():
            self._batching = asyncio.create_task(self._embed_waiting())
        return together(await asyncio.gather(*rows))

    async def _embed_waiting(self) -> None:
        await asyncio.sleep(0)  # so that the lists of concurrent chunks share a batch
        while self._waiting:
            sizes = accumulate(count_tokens(text) + 1 for text, _ in self._waiting)
            count = max(1, sum(1 for _ in takewhile(lambda size: size <= _TOKENS, sizes)))
            batch, self._waiting = self._waiting[:count], self._waiting[count:]
            await self._embed_batch(batch)

    async def _embed_batch(self, batch: list[_Row]) -> None:
        """Give each text its outcome; split a failing part in halves, so that a bad text fails alone.

        Depth first, so that single texts are tried soon. If `attempts` requests fail in a row, the server is
        at fault: more attempts would be thousands of requests, and a text not tried alone is not to blame.
        """
        parts, attempts = [batch], 4 * len(batch).bit_length()
        outcome: Outcome = None
        while parts:
            if not (part := [(text, row) for text, row in parts.pop() if not row.done()]):
                continue  # nobody waits for these texts any longer
            if is_sent := attempts > 0:
                start = time.monotonic()
                outcome = await outcome_of(embedded(self._embedder, [text for text, _ in part]))
                telemetry.measure("kgray_stage_seconds", time.monotonic() - start, stage="embed")
                telemetry.measure("kgray_batch_size", len(part), of="embed")
            failed = isinstance(outcome, ContentError | Garbled)
            attempts = attempts - 1 if failed else sys.maxsize
            if failed and is_sent and len(part) > 1:
                half = len(part) // 2
                parts += [part[half:], part[:half]]
                continue
            if isinstance(outcome, ContentError) and not is_sent:
                outcome = Garbled(f"the embedder refuses whatever it is sent: {outcome}")
            for at, (_, row) in enumerate(part):
                if isinstance(outcome, Exception) and not row.done():
                    row.set_exception(outcome)
                elif not row.done():
                    row.set_result(outcome[at])


class RerankWorker(_PooledActor):
    """Scores texts against a query; a request's texts are one batch."""

    def _build(self, spec: DeploymentSpec) -> None:
        from kgray.runtime.wiring import build_reranker

        promised = _promised("reranking", spec.cluster.reranking)
        self._loads = build_reranker(spec.settings(), promised=promised)

    async def _outcome(self, request: RerankRequest) -> Outcome:
        start = time.monotonic()
        outcome = await self._query(partial(answered, self._loads, request))
        telemetry.measure("kgray_stage_seconds", time.monotonic() - start, stage="rerank")
        return outcome
