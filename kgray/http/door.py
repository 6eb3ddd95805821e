"""What a server holds: the memory, threads and bounds, who may ask, group commit, ingestion, metrics."""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Annotated, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from anyio import CapacityLimiter, to_thread
from fastapi import Depends, Request, Response
from opentelemetry import trace
from opentelemetry.context import Context
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

from kgray import __version__, times
from kgray.errors import Cost, Denied
from kgray.http.problems import Forbidden, Malformed, Misdirected, Overloaded, TooMany
from kgray.http.webhooks import Posts
from kgray.ledger import Acceptance, accept
from kgray.memory import AsyncMemory
from kgray.memory.access import Access, AccessKey, presented
from kgray.memory.background import Background
from kgray.ports import GroupHead, Store
from kgray.records import Draft, check_group
from kgray.spans import span

T = TypeVar("T")
Verb = Callable[..., Coroutine[Any, Any, T]]  # of a memory
WRITERS = 4  # threads for corrections and removals
MAX_WAITING = 256  # requests that wait for one of these
LONGEST_S = 60.0  # of a read; of `Prefer: wait`
# Reads that may pass over a group.
_LONG = frozenset(
    "complete diff dump duplicates export foresee neighbourhood overview relation_suggestions".split()
)
_SEARCHES = frozenset("search explain context".split())
_HEADS = 1000  # that are held, before those that are old are dropped
_HEAD_S = 0.25  # a group's head is read again after this time, for all streams together
GATHER_S, GATHER_ROWS = 0.005, 200  # what one transaction waits for, and holds
_ANSWERED = 8  # requests in one pass of the event loop, whose answers would hold up all others
MAX_HELD = 20_000  # rows that wait for a transaction
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_ROWS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
OPEN = frozenset({"/healthz", "/readyz", "/openapi.json", "/"})  # paths that need no key, as all of /page/
_RUNTIME_S = 5.0  # the actors of Ray are asked again after this time
_REFRESH_S = 1.0  # within this time the server knows of a key that was added or revoked


class Metrics:
    """The metrics of one server."""

    def __init__(self) -> None:
        self.registry = made = CollectorRegistry()
        counter, gauge = partial(Counter, registry=made), partial(Gauge, registry=made)
        histogram = partial(Histogram, registry=made, buckets=_SECONDS)
        labels = ["route", "method", "status"]
        self.requests = counter("kgray_http_requests", "Requests by route.", labels)
        self.seconds = histogram("kgray_http_request_seconds", "Until the answer began.", ["route"])
        self.accept_seconds = histogram("kgray_accept_seconds", "Of an appending transaction.")
        self.batch_rows = histogram("kgray_accept_batch_rows", "Rows of one.", buckets=_ROWS)
        self.episodes = counter("kgray_episodes", "Episodes by what became of them.", ["state"])
        self.stages = histogram("kgray_stage_seconds", "Of ingestion's stages.", ["stage"])
        self.pending = gauge("kgray_pending_episodes", "What is not ended yet.")
        self.oldest = gauge("kgray_oldest_pending_seconds", "Since when the oldest of it waits.")
        self.calls = counter(
            "kgray_model_calls", "Calls of models: of those that ingest, and answers.", ["task", "outcome"]
        )
        self.tokens = counter("kgray_model_tokens", "Tokens of these.", ["kind"])
        self.searches = histogram("kgray_search_seconds", "Of searches and contexts, by scopes.", ["scope"])
        self.views = counter("kgray_views_derived", "Derivations of what was known at a moment.")
        self.streams = gauge("kgray_sse_clients", "Open streams of events.")
        self.webhooks = counter("kgray_webhook_deliveries", "Posts.", ["outcome"])
        self.mcp_calls = counter("kgray_mcp_calls", "Calls of tools.", ["tool", "outcome"])
        Info("kgray_build", "The version.", registry=made).info({"version": __version__})

    def answered(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count a request. route: its template, of which there are few."""
        self.requests.labels(route, method, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def stage(self, stage: str, seconds: float, _episode: object) -> None:
        """Count a stage of ingestion; "taken" is none, it begins an episode."""
        if stage != "taken":
            self.stages.labels(stage).observe(seconds)

    def called(self, task: str, outcome: str, cost: Cost) -> None:
        """Count a call of a model, with its tokens."""
        self.calls.labels(task, outcome).inc()
        self.tokens.labels("prompt").inc(cost.prompt_tokens)
        self.tokens.labels("completion").inc(cost.completion_tokens)


class _Waiting(NamedTuple):
    drafts: Sequence[Draft]
    how: tuple[tuple[str, bool], ...]
    answered: asyncio.Future[list[Acceptance]]
    asked: trace.SpanContext


class Appends:
    """Appends drafts of concurrent requests together; each request gets the answers of its own."""

    def __init__(self, store: Store, metrics: Metrics) -> None:
        self._store, self._metrics = store, metrics
        self._waiting: asyncio.Queue[_Waiting | None] = asyncio.Queue()  # None: no more come
        self._held = 0  # rows that are not answered yet
        self._closed = False
        self._thread = ThreadPoolExecutor(1, "kgray-append")

    async def accept(self, drafts: Sequence[Draft], **how: bool) -> list[Acceptance]:
        """Return one outcome a draft; durable then (R19). how: options of `ledger.accept`.

        Raises Overloaded where too many rows wait, and what `accept` raises: then nothing was accepted.
        """
        if self._closed or self._held + len(drafts) > MAX_HELD:
            raise Overloaded(f"{self._held} rows wait to be accepted: try again")
        answered: asyncio.Future[list[Acceptance]] = asyncio.get_running_loop().create_future()
        asked = trace.get_current_span().get_span_context()
        self._waiting.put_nowait(_Waiting(drafts, tuple(sorted(how.items())), answered, asked))
        self._held += len(drafts)
        return await answered  # a client that goes away does not take its rows out of a transaction

    async def run(self) -> None:
        """Append until `close`."""
        while one := await self._waiting.get():
            if self._held < GATHER_ROWS:
                await asyncio.sleep(GATHER_S)
            together, rows = [one], len(one.drafts)
            while rows < GATHER_ROWS and not self._waiting.empty():
                if (one := self._waiting.get_nowait()) is None:
                    self._waiting.put_nowait(None)
                    break
                together.append(one)
                rows += len(one.drafts)
            for how in dict.fromkeys(one.how for one in together):
                alike = [one for one in together if one.how == how]
                for part in [[one] for one in alike] if dict(how).get("whole") else [alike]:
                    await self._append(part)  # of one that is accepted whole, the refusal is its own
            self._held -= rows

    async def close(self) -> None:
        """Let `run` end when everything that waits is appended."""
        self._closed = True
        self._waiting.put_nowait(None)

    async def _append(self, together: Sequence[_Waiting]) -> None:
        drafts = [draft for one in together for draft in one.drafts]
        self._metrics.batch_rows.observe(len(drafts))
        loop = asyncio.get_running_loop()

        def work() -> list[Acceptance]:
            return accept(self._store, drafts, now=times.now(), **dict(together[0].how))

        try:
            links = [trace.Link(one.asked) for one in together if one.asked.is_valid]
            about = {"kgray.rows": len(drafts)}
            with (
                self._metrics.accept_seconds.time(),
                span("kgray accept", about, context=Context(), links=links),
            ):
                answers = iter(await loop.run_in_executor(self._thread, work))
        except Exception as error:  # noqa: BLE001 - it is the answer of each request
            for one in together:
                with suppress(asyncio.InvalidStateError):
                    one.answered.set_exception(error)
            return
        for count, one in enumerate(together, 1):
            own = [next(answers) for _ in one.drafts]
            with suppress(asyncio.InvalidStateError):
                one.answered.set_result(own)
            if not count % _ANSWERED:
                await asyncio.sleep(0)


class Guard:
    """Checks requests. Without any key, a caller on loopback may do what the command line may."""

    def __init__(self, access: Access, *, host: str, names: Collection[str] = ()) -> None:
        """Read the keys.

        host    the address that is served; a key is demanded unless it is loopback
        names   further names of this server, for Host and Origin; without any, on another address than
                loopback, all are taken: a key is needed there, which another site's script does not have
        """
        try:
            is_local = ipaddress.ip_address(host.strip("[]")).is_loopback
        except ValueError:
            is_local = host == "localhost"
        self._access, self._only_keys = access, not is_local
        local = ("localhost", "127.0.0.1", "::1", "[::1]", host)
        self._names = {*names, *local} if names or is_local else set()
        self._keys: dict[str, AccessKey] = {}
        self._change = -1
        self._spent: dict[str, tuple[float, float]] = {}  # key -> (requests left, when that was)
        self.refresh()

    def refresh(self) -> None:
        """Read the keys where they have changed; blocks."""
        change = self._access.changes()
        if change != self._change:
            self._keys, self._change = {key.id: key for key in self._access.every()}, change

    def check_names(self, host: str | None, origin: str | None) -> None:
        """Raise Misdirected where Host or Origin is another's (DNS rebinding)."""
        if not self._names:
            return
        if host is None or _name_of(f"//{host}") not in self._names:
            raise Misdirected("this server has another name: `kgray serve --name NAME` adds one")
        if origin is not None and _name_of(origin) not in self._names:
            raise Misdirected("pages of another origin may not ask this server")

    def caller(self, authorization: str | None) -> AccessKey | None:
        """Return the key that is presented; None = none is needed. Raises Denied, TooMany.

        One is needed once there is one, revoked or not, and for any address but loopback.
        """
        if not (self._only_keys or self._keys):
            return None
        kind, _, given = (authorization or "").partition(" ")
        found = presented(self._keys, given.strip(), times.now()) if kind.lower() == "bearer" else None
        if found is None:
            said = "a key is needed that stands: Authorization: Bearer KEY (`kgray keys add` makes one)"
            raise Denied(said)
        if (rate := found.rate) is not None:  # of these requests each second, what is left over lasts one
            now = time.monotonic()
            left, at = self._spent.get(found.id, (rate, now))
            left = min(rate, left + (now - at) * rate)
            if left < 1:
                raise TooMany(rate)
            self._spent[found.id] = left - 1, now
        return found


def check_scope(key: AccessKey | None, scope: str, group: str | None) -> None:
    """Raise Forbidden, alike for groups that exist or not, where a key does not allow this."""
    if key is None:
        return
    if group is not None and not key.reaches(group):
        raise Forbidden("the key does not reach this group")
    if not key.allows(scope):
        raise Forbidden(f"the key lacks the scope {scope}")


@lru_cache(maxsize=256)
def _name_of(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


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
    max_answers: int = 32  # of models, that are written at the same time


class Door:
    """The parts of one server; `opened` starts and ends them."""

    def __init__(
        self, memory: AsyncMemory, *, host: str = "127.0.0.1", names: Collection[str] = (),
        bounds: Bounds | None = None, ingests: bool = True, webhook_key: bytes | None = None,
        private_webhooks: bool = False, runtime: Callable[[], Mapping[str, Any]] | None = None,
    ) -> None:  # fmt: skip
        """Take over a memory, which its owner closes.

        host, names     see `Guard`: the address that is served, further names of the server
        ingests         False: another process ingests what is added here
        webhook_key     secrets of webhooks are derived with it; None: there are none
        runtime         returns the processes that ingest, as `kgray status --json` shows them
        """
        self.memory, self.bounds, self._ingests = memory, bounds or Bounds(), ingests
        self.metrics = Metrics()
        memory.on_stage, memory.on_call = self.metrics.stage, self.metrics.called
        memory.on_view = self.metrics.views.inc
        self.access = memory.admin.access  # the keys and the audit log
        self.guard = Guard(self.access, host=host, names=names)
        self.appends = Appends(memory.store, self.metrics)
        self.ingesting = Background(memory, self._ended)
        self._ended_at = 0.0
        self.posts = Posts(self, key=webhook_key, private=private_webhooks) if webhook_key else None
        self.runtime = None if runtime is None else _held(runtime, _RUNTIME_S)
        self.ending = False  # streams end then
        self.streams = 0
        self._heads: dict[str, tuple[float, asyncio.Task[dict[str, GroupHead]]]] = {}
        self._shared: dict[tuple[str, int, int], asyncio.Task[dict[str, Any]]] = {}

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Run the loops while the server serves; at the end what was taken is appended."""
        self.answers = CapacityLimiter(self.bounds.max_answers)
        self._readers, self._long = (CapacityLimiter(self.bounds.readers) for _ in range(2))
        self._writers, self._lookers = CapacityLimiter(WRITERS), CapacityLimiter(2 * self.bounds.readers)
        appending = asyncio.create_task(self.appends.run())
        loops = [asyncio.create_task(self._watch())]
        loops += [asyncio.create_task(self.posts.run())] if self.posts else []
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
            await to_thread.run_sync(self.guard.refresh)
            await to_thread.run_sync(self.ingesting.look)
            self.metrics.pending.set(self.ingesting.pending)
            self.metrics.oldest.set(self.ingesting.oldest_s)
            await asyncio.sleep(_REFRESH_S)

    def _ended(self, outcome: str) -> None:
        """Count what became of an entry; called in the thread that ingests, which gives way to reads."""
        self.metrics.episodes.labels(outcome).inc()
        if self._readers.borrowed_tokens + self._long.borrowed_tokens:
            # Three times as long as the entry took: ingestion keeps a quarter.
            time.sleep(min(3.0 * (time.monotonic() - self._ended_at), 0.1))
        self._ended_at = time.monotonic()

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Take a place for a stream of events. Raises Overloaded where there is none."""
        if self.streams >= self.bounds.max_streams:
            raise Overloaded(f"{self.streams} streams are open: try again", wait_s=30)
        self.streams += 1
        try:
            with self.metrics.streams.track_inprogress():
                yield
        finally:
            self.streams -= 1

    def check_room(self) -> None:
        """Raise Overloaded where too much waits to be ingested, or for too long.

        Raises what `Memory.check_embedder` raises, too.
        """
        self.memory.check_embedder()
        waits, bounds = self.ingesting, self.bounds
        if waits.pending >= bounds.max_pending:
            raise Overloaded(
                f"{waits.pending} episodes are pending: add more when they are ingested", wait_s=10
            )
        if waits.oldest_s > bounds.max_age_s:
            why = waits.fault or "try again"
            raise Overloaded(f"what is pending waits for {waits.oldest_s:.0f} s: {why}", wait_s=30)

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


def _held(read: Callable[[], T], seconds: float) -> Callable[[], T]:
    """Return a function that reads anew only after so many seconds."""
    known: list[tuple[float, T]] = []

    def latest() -> T:
        now = time.monotonic()
        if not known or now - known[0][0] > seconds:
            known[:] = [(now, read())]
        return known[0][1]

    return latest


def holder_of(request: Request) -> AccessKey | None:
    """Return the key that was presented; None = none is needed."""
    found: AccessKey | None = request.scope["state"].get("key")
    return found


async def noted(door: Door, request: Request, action: str, group: str, asked: Mapping[str, Any]) -> None:
    """Write to the audit log who asks for what, before it is done."""
    key = holder_of(request)
    await door.call(door.access.note, key.id if key else "", action, group, asked)


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
    """Return the check of a route: the key must have the scope, and reach the group; parameters are known.

    scope   "" = any key that stands
    """

    async def check(request: Request) -> None:
        if scope:
            check_scope(holder_of(request), scope, request.path_params.get("group"))
        check_known(request, [one.alias for one in request.scope["route"].dependant.query_params])

    return Depends(check)


At = Annotated[Door, Depends(door_of)]
