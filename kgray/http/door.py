"""What a server holds: the memory, its threads and bounds, the ingest loop, who may come in."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypeVar

from anyio import CapacityLimiter, to_thread
from fastapi import Depends, Request, Response

from kgray.http.appending import Appends
from kgray.http.guard import REFRESH_S, Guard, check_scope
from kgray.http.metrics import Metrics
from kgray.http.problems import Malformed, Overloaded
from kgray.http.webhooks import Posts
from kgray.memory import Memory
from kgray.memory.background import Background
from kgray.ports import GroupHead
from kgray.records import check_group
from kgray.spans import span

T = TypeVar("T")
Verb = Callable[..., Coroutine[Any, Any, T]]  # of a memory
WRITERS = 4  # threads for corrections and removals
MAX_WAITING = 256  # requests that wait for one of these
LONGEST_S = 60.0  # of a read; of `Prefer: wait`
_LONG = frozenset("diff dump duplicates neighbourhood".split())  # reads that may pass over a group
_SEARCHES = frozenset("search explain context".split())
# While reads are in flight, ingestion rests so many times as long as an entry took: it keeps a quarter.
_GIVES_WAY, _LONGEST_PAUSE_S = 3.0, 0.1
_HEADS = 1000  # that are held, before those that are old are dropped
_HEAD_S = 0.25  # a group's head is read again after this time, for all streams together


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a server takes on. max_pending: episodes; max_age_s: of the oldest of them; max_body: bytes.

    readers     threads for reads; as many for long ones, twice as many for short looks. Two where none waits
                for a server: with eight, which take turns at Python, all took longer, health checks too
    """

    readers: int = 2
    max_pending: int = 100_000
    max_age_s: float = 3600.0
    max_body: int = 8 << 20
    max_streams: int = 1000


class Door:
    """The parts of one server; `opened` starts and ends them."""

    def __init__(
        self, memory: Memory, *, host: str, names: Collection[str], bounds: Bounds, ingests: bool,
        webhook_key: bytes | None = None, private_webhooks: bool = False,
    ) -> None:  # fmt: skip
        """Serve a memory, whose owner closes it; see `create_app`."""
        self.memory, self.bounds, self._ingests = memory, bounds, ingests
        self.metrics = Metrics()
        memory.on_stage, memory.on_call = self.metrics.stage, self.metrics.called
        memory.on_view = self.metrics.views.inc
        self.access = memory.access  # the keys and the audit log
        self.guard = Guard(self.access, host=host, names=names)
        self.appends = Appends(memory.store, self.metrics)
        self.ingesting = Background(memory, self._ended)
        self._ended_at = 0.0
        self.posts = Posts(self, key=webhook_key, private=private_webhooks) if webhook_key else None
        self.ending = False  # streams end then
        self.streams = 0
        self._heads: dict[str, tuple[float, asyncio.Task[dict[str, GroupHead]]]] = {}
        self._shared: dict[tuple[str, int, int], asyncio.Task[dict[str, Any]]] = {}

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Run the loops while the server serves; at the end what was taken is appended."""
        self._readers, self._long = (CapacityLimiter(self.bounds.readers) for _ in range(2))
        self._writers, self._lookers = CapacityLimiter(WRITERS), CapacityLimiter(2 * self.bounds.readers)
        appending = asyncio.create_task(self.appends.run())
        loops = [asyncio.create_task(one.run()) for one in (self.posts,) if one]
        loops.append(asyncio.create_task(self._watch()))
        if self._ingests:
            self.ingesting.start()
        try:
            yield
        finally:
            self.ending = True
            for loop in loops:
                loop.cancel()
            await self.appends.close()
            await appending
            await to_thread.run_sync(self.ingesting.stop)

    async def _watch(self) -> None:
        while True:
            await to_thread.run_sync(self._look)
            await asyncio.sleep(REFRESH_S)

    def _look(self) -> None:
        self.guard.refresh()
        self.ingesting.look()
        self.metrics.pending.set(self.ingesting.pending)
        self.metrics.oldest.set(self.ingesting.oldest_s)

    def _ended(self, outcome: str) -> None:
        """Count what became of an entry; called in the thread that ingests, which gives way to reads."""
        self.metrics.episodes.labels(outcome).inc()
        if self._readers.borrowed_tokens + self._long.borrowed_tokens:
            time.sleep(min(_GIVES_WAY * (time.monotonic() - self._ended_at), _LONGEST_PAUSE_S))
        self._ended_at = time.monotonic()

    def check_room(self) -> None:
        """Raise Overloaded where too much waits to be ingested, or for too long."""
        waits, bounds = self.ingesting, self.bounds
        if waits.pending >= bounds.max_pending:
            raise Overloaded(
                f"{waits.pending} episodes are pending: add more when they are ingested", wait_s=10
            )
        if waits.oldest_s > bounds.max_age_s:
            why = waits.fault or "try again"
            raise Overloaded(f"what is pending waits for {waits.oldest_s:.0f} s: {why}", wait_s=30)

    # ------------------------------------------------------------------------------ in threads

    async def read(self, verb: Verb[T], *args: Any, **how: Any) -> T:  # noqa: ANN401
        """Return what a verb of the memory returns, run in a thread for reads. Raises Overloaded."""
        name = verb.__name__
        threads = self._long if name in _LONG or how.get("known_at") else self._readers
        scopes = "+".join(sorted({*(how.get("scopes") or ())})) or "all"

        def work() -> T:
            with self.metrics.searches.labels(scopes).time() if name in _SEARCHES else nullcontext():
                return asyncio.run(verb(*args, **how))

        return await self._within(threads, work, name)

    async def change(self, verb: Verb[T], *args: Any, **how: Any) -> T:  # noqa: ANN401
        """Do the same in threads for corrections, which are done even if the client goes away."""
        return await self._within(self._writers, lambda: asyncio.run(verb(*args, **how)), verb.__name__)

    async def call(self, work: Callable[..., T], *args: Any) -> T:  # noqa: ANN401
        """Return what a short read of the store returns."""
        return await self._within(self._lookers, partial(work, *args), "read")

    async def _within(self, threads: CapacityLimiter, work: Callable[[], T], name: str) -> T:
        if threads.statistics().tasks_waiting >= MAX_WAITING:
            raise Overloaded(f"{MAX_WAITING} requests wait for a thread: try again")
        with span(f"kgray {name}"):
            try:
                async with asyncio.timeout(LONGEST_S):
                    return await to_thread.run_sync(work, limiter=threads, abandon_on_cancel=True)
            except TimeoutError:
                raise Overloaded(
                    f"not done within {LONGEST_S:.0f} s; it may be done later", wait_s=30
                ) from None

    # ------------------------------------------------------------------------------ what is shared

    async def head(self, group: str) -> GroupHead:
        """Return a group's counters, read at most four times a second for all who ask."""
        at, reading = self._heads.get(group, (0.0, None))
        if reading is None or (reading.done() and time.monotonic() - at > _HEAD_S):
            now = time.monotonic()
            if len(self._heads) >= _HEADS:
                self._heads = {name: one for name, one in self._heads.items() if now - one[0] <= _HEAD_S}
            reading = asyncio.create_task(self.call(self.memory.store.heads, [group]))
            self._heads[group] = now, reading
        return (await asyncio.shield(reading))[group]

    async def changes(self, group: str, since: int, upto: int) -> dict[str, Any]:
        """Return `Memory.changes`; streams that are equally far share one read."""
        key = (group, since, upto)
        if key not in self._shared:
            self._shared = {k: task for k, task in self._shared.items() if not task.done()}
            self._shared[key] = asyncio.create_task(self.read(self.memory.changes, group=group, since=since))
        return await asyncio.shield(self._shared[key])

    async def known(self, request: Request, group: str) -> tuple[Response | None, dict[str, str]]:
        """Return 304 where the client has this answer already, and the headers of one without a clock.

        Its weak ETag is of the group's last commit and the arguments; it is asked again each time, because a
        removal must show.
        """
        head = (await self.call(self.memory.store.heads, [check_group(group)]))[group]
        about = f"{head} {request.scope['path']}?{request.scope['query_string']!r}"
        tag = f'W/"{hashlib.sha256(about.encode()).hexdigest()[:24]}"'
        headers = {"etag": tag, "cache-control": "private, no-cache"}
        same = tag in (request.headers.get("if-none-match") or "")
        return Response(status_code=304, headers=headers) if same else None, headers


async def door_of(request: Request) -> Door:
    """Return the server's parts."""
    found: Door = request.app.state.door
    return found


def check_known(request: Request, known: Collection[str]) -> None:
    """Raise Malformed for another parameter than these: a filter that is misspelt would filter nothing."""
    if unknown := [name for name in request.query_params if name not in known]:
        there = f"known are {', '.join(known)}" if known else "the route takes none"
        raise Malformed(f"there is no parameter {unknown[0]!r}: {there}", field=unknown[0])


def needs(scope: str) -> Any:  # noqa: ANN401 - a FastAPI dependency
    """Return the check of a route: the key that was presented must have the scope, and reach the group."""

    async def check(request: Request) -> None:
        check_scope(request.scope["state"].get("key"), scope, request.path_params.get("group"))

    return Depends(check)


At = Annotated[Door, Depends(door_of)]
