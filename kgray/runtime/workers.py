"""What runs inside a worker actor: an extractor and a judge, or an embedder, and who asks how it is.

Plain classes: `actors` makes actors of them. A chunk's finished parts go back at once, so that the
slowest call of a chunk holds back nobody. No worker opens the store.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from kgray.errors import KgrayError
from kgray.ports import ExtractionRequest, Matrix
from kgray.runtime import logs
from kgray.runtime.metrics import WorkerMetrics
from kgray.runtime.outcomes import Answered, Fault, Numbered, Outcome, caught, fault_of, value_of
from kgray.runtime.terms import Terms

_TOKENS = 8192  # of one batch of texts, by four characters a token: what an embedding model takes well
_CHARACTERS_A_TOKEN = 4


class Attendance:
    """Whether the loop that does the work still turns: asked from another thread."""

    def __init__(self) -> None:
        """Know no loop before the first work."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self.running = 0
        self.done = 0
        self.since = time.time()

    def here(self) -> None:
        """Note the loop that does the work."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()

    async def health(self) -> int:
        """Return the process's id once the loop of the work has turned; a loop that hangs never answers."""
        if self._loop is not None:
            turned = asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self._loop)
            await asyncio.wrap_future(turned)
        return os.getpid()

    async def drain(self, grace_s: float) -> int:
        """Wait until nothing is in hand, at most so long; return how much still is."""
        until = time.monotonic() + grace_s
        while self.running and time.monotonic() < until:  # noqa: ASYNC110 - it falls in another thread
            await asyncio.sleep(0.02)
        return self.running

    def on_loop(self, call: Callable[..., Any], *args: object) -> None:
        """Have something done in the loop of the work."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(call, *args)


class ModelWorker:
    """Extracts episodes and answers questions; requests are self-contained."""

    def __init__(self, terms: Terms, name: str) -> None:
        """Build the model; what is wrong with the settings is the answer to every request."""
        self.terms, self.name = terms, name
        self._fault: Fault | None = None
        self._running: dict[int, asyncio.Task[Outcome]] = {}
        self._read = 0  # episodes
        self.attendance = Attendance()
        self._metrics = WorkerMetrics()
        try:
            from kgray.wiring import build_models, build_ontology

            settings = terms.settings()
            self._extractor, self._judge = build_models(settings, build_ontology(settings))
        except KgrayError as error:
            self._fault = fault_of(error)

    async def work(self, chunk: Sequence[Numbered]) -> AsyncIterator[list[Answered]]:
        """Carry out a chunk; yield what has ended, as it ends. Nothing is raised: errors are values."""
        self.attendance.here()
        self._metrics.chunk(len(chunk))
        tasks = {asyncio.create_task(self._one(request)): number for number, request in chunk}
        self._running |= {number: task for task, number in tasks.items()}
        self.attendance.running += len(tasks)
        left = set(tasks)
        try:
            while left:
                ended, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                self._leave(len(ended))
                yield [(tasks[task], task.result()) for task in ended if not task.cancelled()]
        finally:
            for task in left:
                task.cancel()
            self._leave(len(left))
            for number in tasks.values():
                self._running.pop(number, None)

    def abandon(self, numbers: Sequence[int]) -> None:
        """End calls that nobody waits for any longer; called from any thread."""
        self.attendance.on_loop(self._cancel, list(numbers))

    def describe(self) -> dict[str, Any]:
        """Return who this is, what it was built from, and what is wrong with it."""
        return {"name": self.name, "pid": os.getpid(), "terms": self.terms, "fault": self._fault}

    def stats(self) -> dict[str, Any]:
        """Return how much is in hand, and how much was done since when."""
        at = self.attendance
        return {
            "name": self.name,
            "pid": os.getpid(),
            "running": at.running,
            "done": at.done,
            "read": self._read,
            "since": at.since,
        }

    def _leave(self, ended: int) -> None:
        self.attendance.running -= ended
        self.attendance.done += ended

    def _cancel(self, numbers: list[int]) -> None:
        for number in numbers:
            if (task := self._running.get(number)) is not None:
                task.cancel()

    async def _one(self, request: Any) -> Outcome:  # noqa: ANN401 - of either kind
        if self._fault is not None:
            return self._fault
        reads = isinstance(request, ExtractionRequest)
        stage = "extract" if reads else "judge"
        since = time.monotonic()
        call: Callable[[], Awaitable[Any]] = partial(
            self._extractor.extract if reads else self._judge.judge, request
        )
        outcome = await caught(call)
        self._read += reads
        took = time.monotonic() - since
        self._metrics.call(stage, took, outcome)
        logs.stage(stage, request.episode.group, request.episode.sequence, seconds=took, outcome=outcome)
        return outcome


class EmbedWorker:
    """Embeds texts; small lists that arrive together are one batch, long ones are cut."""

    def __init__(self, terms: Terms, name: str) -> None:
        """Build the embedder; what is wrong with the settings is the answer to every request."""
        self.terms, self.name = terms, name
        self._fault: Fault | None = None
        self.attendance = Attendance()
        self._metrics = WorkerMetrics()
        self._waiting: list[tuple[str, asyncio.Future[Any]]] = []
        self._pump: asyncio.Task[None] | None = None
        try:
            from kgray.wiring import build_embedder

            self._embedder = build_embedder(terms.settings())
        except KgrayError as error:
            self._fault = fault_of(error)

    async def work(self, chunk: Sequence[Numbered]) -> AsyncIterator[list[Answered]]:
        """Embed the lists of a chunk: (number, texts) in, (number, (n, d)) out."""
        self.attendance.here()
        self.attendance.running += len(chunk)
        try:
            numbers = [number for number, _ in chunk]
            found = await asyncio.gather(*(caught(partial(self.embed, texts)) for _, texts in chunk))
            yield list(zip(numbers, found, strict=True))
        finally:
            self.attendance.running -= len(chunk)
            self.attendance.done += len(chunk)

    async def embed(self, texts: Sequence[str]) -> Matrix:
        """Return (len(texts), dimensions); what others ask for in the same moment shares the batch."""
        import numpy as np

        if self._fault is not None:
            value_of(self._fault)
        if not texts:
            return np.zeros((0, self._embedder.dimensions), dtype=np.float32)
        loop = asyncio.get_running_loop()
        rows = [loop.create_future() for _ in texts]
        self._waiting += zip(texts, rows, strict=True)
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._embed_waiting())
        return np.stack(await asyncio.gather(*rows))

    def describe(self) -> dict[str, Any]:
        """Return who this is, what it was built from, and what is wrong with it."""
        return {"name": self.name, "pid": os.getpid(), "terms": self.terms, "fault": self._fault}

    def stats(self) -> dict[str, Any]:
        """Return how much is in hand, and how much was done since when."""
        at = self.attendance
        return {
            "name": self.name,
            "pid": os.getpid(),
            "running": at.running,
            "done": at.done,
            "since": at.since,
        }

    def abandon(self, numbers: Sequence[int]) -> None:
        """Do nothing: a batch is short, and others share it."""

    async def _embed_waiting(self) -> None:
        await asyncio.sleep(0)  # what is asked for in the same moment goes together
        while self._waiting:
            batch = self._take()
            since = time.monotonic()
            try:
                found = await self._embedder.embed([text for text, _ in batch])
            except Exception as error:  # noqa: BLE001 - each of those who wait is told
                for _, row in batch:
                    if not row.done():
                        row.set_exception(error)
                        row.exception()
                continue
            self._metrics.batch(len(batch), time.monotonic() - since)
            for (_, row), vector in zip(batch, found, strict=True):
                if not row.done():
                    row.set_result(vector)

    def _take(self) -> list[tuple[str, asyncio.Future[Any]]]:
        tokens, count = 0, 0
        for text, _ in self._waiting:
            tokens += len(text) // _CHARACTERS_A_TOKEN + 1
            if count and tokens > _TOKENS:
                break
            count += 1
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        return batch
