"""The parts of a server: memory, threads and bounds, access checks, group commit, ingestion, metrics."""

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

from kgray import __version__
from kgray.domain import times
from kgray.domain.records import Draft, check_group
from kgray.errors import Cost, Denied
from kgray.memory import AsyncMemory
from kgray.memory.access import Access, AccessKey, presented
from kgray.memory.background import Background
from kgray.memory.results import Changes
from kgray.ports import GroupHead, Store
from kgray.server.problems import Forbidden, Malformed, Misdirected, Overloaded, TooMany
from kgray.server.webhooks import Posts
from kgray.storage.ledger import Acceptance, accept
from kgray.system.spans import span

T = TypeVar("T")
Verb = Callable[..., Coroutine[Any, Any, T]]  # of a memory
WRITERS = 4  # threads for corrections and removals
MAX_WAITING = 256  # requests that wait for a thread
LONGEST_S = 60.0  # for a read or a correction; for `Prefer: wait`, and the wait for an export
# Reads that may scan a whole group.
_LONG = frozenset("complete diff dump duplicates foresee neighbourhood overview relation_suggestions".split())
_SEARCHES = frozenset("search explain context".split())
HEADS = 1000  # cached heads; beyond this number, old heads are dropped
HEAD_S = 0.25  # a group's head is read again after this time, for all streams together
GATHER_S, GATHER_ROWS = 0.005, 200  # a transaction waits this long for rows; it takes about this number
_ANSWERED = 8  # requests answered in a pass of the event loop; more would delay all others
MAX_HELD = 20_000  # rows that wait for a transaction
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_ROWS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
OPEN = frozenset({"/healthz", "/readyz", "/openapi.json", "/"})  # paths that need no key, as all of /page/
_RUNTIME_S = 5.0  # the status of Ray's actors is read again after this time
_REFRESH_S = 1.0  # within this time the server knows a key that was added or revoked


class Metrics:
    """The metrics of one server."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        histogram = partial(Histogram, registry=registry, buckets=_SECONDS)
        labels = ["route", "method", "status"]
        self.requests = counter("kgray_http_requests", "Requests by route.", labels)
        self.seconds = histogram("kgray_http_request_seconds", "Seconds until the answer began.", ["route"])
        self.accept_seconds = histogram("kgray_accept_seconds", "Seconds of an appending transaction.")
        self.batch_rows = histogram(
            "kgray_accept_batch_rows", "Rows of an appending transaction.", buckets=_ROWS
        )
        self.episodes = counter("kgray_episodes", "Episodes by outcome.", ["state"])
        self.stages = histogram("kgray_stage_seconds", "Seconds of ingestion's stages.", ["stage"])
        self.pending = gauge("kgray_pending_episodes", "Pending episodes.")
        self.oldest = gauge("kgray_oldest_pending_seconds", "Age of the oldest pending episode.")
        self.calls = counter(
            "kgray_model_calls", "Calls of models, for ingestion and answers.", ["task", "outcome"]
        )
        self.tokens = counter("kgray_model_tokens", "Tokens of these calls.", ["kind"])
        self.searches = histogram(
            "kgray_search_seconds", "Seconds of searches and contexts, by scopes.", ["scope"]
        )
        self.views = counter("kgray_views_derived", "Derivations of the graph as known at an earlier moment.")
        self.streams = gauge("kgray_sse_clients", "Open streams of events.")
        self.webhooks = counter("kgray_webhook_deliveries", "Posts.", ["outcome"])
        self.mcp_calls = counter("kgray_mcp_calls", "Calls of tools.", ["tool", "outcome"])
        Info("kgray_build", "The version.", registry=registry).info({"version": __version__})

    def answered(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count a request. route: its template, so labels stay few."""
        self.requests.labels(route, method, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def stage(self, stage: str, seconds: float, _episode: object) -> None:
        """Count a stage of ingestion, except "taken", which begins an episode."""
        if stage != "taken":
            self.stages.labels(stage).observe(seconds)

    def called(self, task: str, outcome: str, cost: Cost) -> None:
        """Count a call of a model, with its tokens."""
        self.calls.labels(task, outcome).inc()
        self.tokens.labels("prompt").inc(cost.prompt_tokens)
        self.tokens.labels("completion").inc(cost.completion_tokens)


class _Waiting(NamedTuple):
    drafts: Sequence[Draft]
    options: tuple[tuple[str, bool], ...]
    answered: asyncio.Future[list[Acceptance]]
    request_span: trace.SpanContext


class Appends:
    """Appends the drafts of concurrent requests together; each request gets the outcomes of its drafts."""

    def __init__(self, store: Store, metrics: Metrics) -> None:
        self._store, self._metrics = store, metrics
        self._waiting: asyncio.Queue[_Waiting | None] = asyncio.Queue()  # None: the end
        self._waiting_rows = 0  # rows without an answer yet
        self._closed = False
        self._thread = ThreadPoolExecutor(1, "kgray-append")

    async def accept(self, drafts: Sequence[Draft], **options: bool) -> list[Acceptance]:
        """Return an outcome for each draft, which is then durable (R19). options: of `ledger.accept`.

        Raises Overloaded if too many rows wait, and the errors of `accept`: then nothing was accepted.
        """
        if self._closed or self._waiting_rows + len(drafts) > MAX_HELD:
            raise Overloaded(f"{self._waiting_rows} rows wait to be accepted: try again")
        answered: asyncio.Future[list[Acceptance]] = asyncio.get_running_loop().create_future()
        request_span = trace.get_current_span().get_span_context()
        self._waiting.put_nowait(_Waiting(drafts, tuple(sorted(options.items())), answered, request_span))
        self._waiting_rows += len(drafts)
        return await answered  # also if the client disconnects: its rows stay in the transaction

    async def run(self) -> None:
        """Append until `close`."""
        while waiting := await self._waiting.get():
            if self._waiting_rows < GATHER_ROWS:
                await asyncio.sleep(GATHER_S)
            together, rows = [waiting], len(waiting.drafts)
            while rows < GATHER_ROWS and not self._waiting.empty():
                if (waiting := self._waiting.get_nowait()) is None:
                    self._waiting.put_nowait(None)
                    break
                together.append(waiting)
                rows += len(waiting.drafts)
            for options in dict.fromkeys(waiting.options for waiting in together):
                alike = [waiting for waiting in together if waiting.options == options]
                for part in [[waiting] for waiting in alike] if dict(options).get("whole") else [alike]:
                    await self._append(part)  # a request with `whole` gets its own refusal
            self._waiting_rows -= rows

    async def close(self) -> None:
        """Let `run` end after it has appended all waiting rows."""
        self._closed = True
        self._waiting.put_nowait(None)

    async def _append(self, together: Sequence[_Waiting]) -> None:
        drafts = [draft for waiting in together for draft in waiting.drafts]
        self._metrics.batch_rows.observe(len(drafts))
        loop = asyncio.get_running_loop()

        def work() -> list[Acceptance]:
            return accept(self._store, drafts, now=times.now(), **dict(together[0].options))

        try:
            links = [
                trace.Link(waiting.request_span) for waiting in together if waiting.request_span.is_valid
            ]
            about = {"kgray.schema.rows": len(drafts)}
            with (
                self._metrics.accept_seconds.time(),
                span("kgray accept", about, context=Context(), links=links),
            ):
                answers = iter(await loop.run_in_executor(self._thread, work))
        except Exception as error:  # noqa: BLE001 - it is the answer of each request
            for waiting in together:
                with suppress(asyncio.InvalidStateError):
                    waiting.answered.set_exception(error)
            return
        for count, waiting in enumerate(together, 1):
            outcomes = [next(answers) for _ in waiting.drafts]
            with suppress(asyncio.InvalidStateError):
                waiting.answered.set_result(outcomes)
            if not count % _ANSWERED:
                await asyncio.sleep(0)


class Guard:
    """Checks requests. If there are no keys, callers on loopback have the rights of the command line."""

    def __init__(self, access: Access, *, host: str, names: Collection[str] = ()) -> None:
        """Read the keys.

        host    the server's address; callers need a key unless it is loopback
        names   additional names of this server, for Host and Origin; without names, an address other than
                loopback accepts all: callers need a key there, which another site's script does not have
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
        # Key -> (remaining requests, time of the count).
        self._allowances: dict[str, tuple[float, float]] = {}
        self.refresh()

    def refresh(self) -> None:
        """Read the keys if they have changed; blocks."""
        change = self._access.changes()
        if change != self._change:
            self._keys, self._change = {key.id: key for key in self._access.every()}, change

    def check_names(self, host: str | None, origin: str | None) -> None:
        """Raise Misdirected if Host or Origin names another server (DNS rebinding)."""
        if not self._names:
            return
        if host is None or _name_of(f"//{host}") not in self._names:
            raise Misdirected("this server has another name: `kgray serve --name NAME` adds one")
        if origin is not None and _name_of(origin) not in self._names:
            raise Misdirected("pages of another origin may not use this server")

    def caller(self, authorization: str | None) -> AccessKey | None:
        """Return the presented key; None = no key is needed. Raises Denied, TooMany.

        A key is needed if any key exists, revoked or not, and on any address but loopback.
        """
        if not (self._only_keys or self._keys):
            return None
        kind, _, secret = (authorization or "").partition(" ")
        key = presented(self._keys, secret.strip(), times.now()) if kind.lower() == "bearer" else None
        if key is None:
            message = "a valid key is needed: Authorization: Bearer KEY (`kgray keys add` makes keys)"
            raise Denied(message)
        if (rate := key.rate) is not None:  # requests each second; unused requests expire after a second
            clock = time.monotonic()
            remaining, at = self._allowances.get(key.id, (rate, clock))
            remaining = min(rate, remaining + (clock - at) * rate)
            if remaining < 1:
                raise TooMany(rate)
            self._allowances[key.id] = remaining - 1, clock
        return key


def check_scope(key: AccessKey | None, scope: str, group: str | None) -> None:
    """Raise Forbidden if a key does not allow this; existing and missing groups get the same answer."""
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
    """Limits of a server. max_pending: episodes; max_age_s: of the oldest of them; max_body: bytes.

    readers     threads for reads; the same number for long reads, twice the number for short reads. Two are
                enough if no read waits for another server: eight threads, which share Python's lock, made
                all reads and health checks slower
    """

    readers: int = 2
    max_pending: int = 100_000
    max_age_s: float = 3600.0
    max_body: int = 8 << 20
    max_streams: int = 1000
    max_answers: int = 32  # answers of models that are written at the same time


class Door:
    """The parts of one server; `opened` starts and ends them."""

    def __init__(
        self, memory: AsyncMemory, *, host: str = "127.0.0.1", names: Collection[str] = (),
        bounds: Bounds | None = None, ingests: bool = True, webhook_key: bytes | None = None,
        private_webhooks: bool = False, runtime: Callable[[], Mapping[str, Any]] | None = None,
    ) -> None:  # fmt: skip
        """Take over a memory, which its owner closes.

        host, names     see `Guard`: the server's address and additional names
        ingests         False: another process ingests the added episodes
        webhook_key     secrets of webhooks are derived from it; None: no webhooks
        runtime         returns the ingesting processes, like `kgray status --json`
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
        self.runtime = None if runtime is None else _cached(runtime, _RUNTIME_S)
        self.ending = False  # streams end then
        self.streams = 0
        self._heads: dict[str, tuple[float, asyncio.Task[dict[str, GroupHead]]]] = {}
        self._shared: dict[tuple[str, int, int], asyncio.Task[Changes]] = {}

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Run the loops while the server serves; at the end, append all waiting requests."""
        self.answers = CapacityLimiter(self.bounds.max_answers)
        readers = self.bounds.readers
        self._readers, self._long_readers = CapacityLimiter(readers), CapacityLimiter(readers)
        self._writers, self._short_readers = CapacityLimiter(WRITERS), CapacityLimiter(2 * readers)
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
        """Count an entry's outcome; called in the ingesting thread, which pauses in favour of reads."""
        self.metrics.episodes.labels(outcome).inc()
        if self._readers.borrowed_tokens + self._long_readers.borrowed_tokens:
            # Ingestion gets a quarter of the time, or more if an entry takes over 33 ms.
            time.sleep(min(3.0 * (time.monotonic() - self._ended_at), 0.1))
        self._ended_at = time.monotonic()

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Reserve a place for a stream of events. Raises Overloaded if all places are taken."""
        if self.streams >= self.bounds.max_streams:
            raise Overloaded(f"{self.streams} streams are open: try again", wait_s=30)
        self.streams += 1
        try:
            with self.metrics.streams.track_inprogress():
                yield
        finally:
            self.streams -= 1

    def check_room(self) -> None:
        """Raise Overloaded if too many episodes are pending, or for too long.

        Raises the errors of `Memory.check_embedder`, too.
        """
        self.memory.check_embedder()
        waits, bounds = self.ingesting, self.bounds
        if waits.pending >= bounds.max_pending:
            raise Overloaded(
                f"{waits.pending} episodes are pending: add more when they are ingested", wait_s=10
            )
        if waits.oldest_s > bounds.max_age_s:
            why = waits.fault or "try again"
            raise Overloaded(f"pending episodes wait for {waits.oldest_s:.0f} s: {why}", wait_s=30)

    async def read(self, verb: Verb[T], *args: Any, **options: Any) -> T:  # noqa: ANN401
        """Run a method of the memory in a thread for reads; return its result. Raises Overloaded."""
        name = verb.__name__
        threads = self._long_readers if name in _LONG or options.get("known_at") else self._readers
        scopes = "+".join(sorted({*(options.get("scopes") or ())})) or "all"

        def work() -> T:
            with self.metrics.searches.labels(scopes).time() if name in _SEARCHES else nullcontext():
                return asyncio.run(verb(*args, **options))

        return await self._run_in(threads, work, name)

    async def change(self, verb: Verb[T], *args: Any, **options: Any) -> T:  # noqa: ANN401
        """Run a correction in a thread; it completes even if the client disconnects."""
        return await self._run_in(self._writers, lambda: asyncio.run(verb(*args, **options)), verb.__name__)

    async def call(self, work: Callable[..., T], *args: Any) -> T:  # noqa: ANN401
        """Run a short read of the store in a thread; return its result."""
        return await self._run_in(self._short_readers, partial(work, *args), "read")

    async def _run_in(self, threads: CapacityLimiter, work: Callable[[], T], name: str) -> T:
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
        """Return a group's counters, read at most four times a second for all callers."""
        at, reading = self._heads.get(group, (0.0, None))
        if reading is None or (reading.done() and time.monotonic() - at > HEAD_S):
            clock = time.monotonic()
            if len(self._heads) >= HEADS:
                self._heads = {k: entry for k, entry in self._heads.items() if clock - entry[0] <= HEAD_S}
            reading = asyncio.create_task(self.call(self.memory.store.heads, [group]))
            self._heads[group] = clock, reading
        return (await asyncio.shield(reading))[group]

    async def changes(self, group: str, since: int, upto: int) -> Changes:
        """Return `Memory.changes`; streams at the same position share a read.

        upto: the last commit that the caller saw; a newer commit starts a new read.
        """
        key = (group, since, upto)
        if key not in self._shared:
            self._shared = {k: task for k, task in self._shared.items() if not task.done()}
            self._shared[key] = asyncio.create_task(self.read(self.memory.changes, group=group, since=since))
        return await asyncio.shield(self._shared[key])

    async def not_modified(self, request: Request, group: str) -> tuple[Response | None, dict[str, str]]:
        """Return 304 if the client has this answer already, and the headers of a timeless answer.

        The weak ETag covers the group's last commit and the arguments; clients must revalidate each time,
        because a removal must take effect.
        """
        head = (await self.call(self.memory.store.heads, [check_group(group)]))[group]
        about = f"{head} {request.scope['path']}?{request.scope['query_string']!r}"
        tag = f'W/"{hashlib.sha256(about.encode()).hexdigest()[:24]}"'
        headers = {"etag": tag, "cache-control": "private, no-cache"}
        unchanged = tag in (request.headers.get("if-none-match") or "")
        return Response(status_code=304, headers=headers) if unchanged else None, headers


def _cached(read: Callable[[], T], seconds: float) -> Callable[[], T]:
    """Return a function that caches the value for this number of seconds."""
    values: list[tuple[float, T]] = []

    def latest() -> T:
        clock = time.monotonic()
        if not values or clock - values[0][0] > seconds:
            values[:] = [(clock, read())]
        return values[0][1]

    return latest


def holder_of(request: Request) -> AccessKey | None:
    """Return the presented key; None = no key is needed."""
    key: AccessKey | None = request.scope["state"].get("key")
    return key


async def noted(door: Door, request: Request, action: str, group: str, details: Mapping[str, Any]) -> None:
    """Write the caller and the request to the audit log, before the work."""
    key = holder_of(request)
    await door.call(door.access.note, key.id if key else "", action, group, details)


async def door_of(request: Request) -> Door:
    """Return the server's parts."""
    door: Door = request.app.state.door
    return door


def check_known(request: Request, names: Collection[str]) -> None:
    """Raise Malformed for a parameter not in `names`: a misspelt filter would filter nothing."""
    if unknown := [name for name in request.query_params if name not in names]:
        message = f"known are {', '.join(names)}" if names else "the route takes none"
        raise Malformed(f"there is no parameter {unknown[0]!r}: {message}", field=unknown[0])


def needs(scope: str) -> Any:  # noqa: ANN401 - a FastAPI dependency
    """Return the check of a route: the key must have the scope and reach the group; parameters must exist.

    scope   "" = any valid key
    """

    async def check(request: Request) -> None:
        if scope:
            check_scope(holder_of(request), scope, request.path_params.get("group"))
        check_known(request, [parameter.alias for parameter in request.scope["route"].dependant.query_params])

    return Depends(check)


At = Annotated[Door, Depends(door_of)]
