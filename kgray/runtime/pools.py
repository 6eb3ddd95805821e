"""The router over a pool of workers, and the model ports over it, which look like local models.

This module does not use Ray. The outcomes of a chunk come back one by one. Calls whose worker is lost are
sent to another worker here, not by Ray: a generator that Ray retries may yield other outcomes in another
order. So a request may be carried out twice; only the first outcome counts (R21).

An outcome may be an error. Ray wraps an exception that it transports, and makes it hard to tell from one of
its own. So an actor returns kgray's errors, which can be pickled, and raises nothing.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from kgray import ports
from kgray.errors import KgrayError, Unavailable
from kgray.outages import OUTAGES
from kgray.ports import Embedder, Embedding, Matrix, Reranker, SparseEmbedder, SummaryRequest, embedded
from kgray.runtime.spec import POOLS, DeploymentSpec, WorkersProfile

if TYPE_CHECKING:
    from kgray.runtime.actors import RemoteWorker

_T = TypeVar("_T")
Outcome = Any  # a value of the port's own, or a KgrayError; a RuntimeError stands for a bug of ours
Numbered = tuple[int, Any]  # a request, or its outcome
TOLD = -1  # in place of a number: the outcome is what the worker waits for itself, a tuple of Outage
CALLS = 4  # model calls that one request may need in sequence: the call, repairs of its reply, a retry
_DO = {"models": "read", "judges": "judge", "embedder": "embed"}  # what the workers of a kind do
_FULL = 0.9  # of what the workers take: chunks do not divide it evenly
_LOOKS = 2  # in a row at which all are full, before more are started
_FIRST_DELAY_S = 0.1
_LONGEST_DELAY_S = 5.0
_LATE_S = 0.1  # for what came meanwhile to be read


class RerankRequest(NamedTuple):
    """Asks a reranker for the scores of texts."""

    query: str
    texts: Sequence[str]


async def answered(model: Any, request: Any) -> Any:  # noqa: ANN401 - as the ports have them
    """Return what an embedder, a reranker or a summariser makes of a request."""
    if isinstance(request, SummaryRequest):
        return await model.write(request)
    if isinstance(request, RerankRequest):
        return await model.score(*request)
    return together(await embedded(model, request))


def together(found: Sequence[Embedding]) -> tuple[Matrix, list[bytes] | None]:
    """Return what an embedder said of several texts as it is sent: vectors, and weights of tokens if any."""
    vectors = np.stack([one.vector for one in found])
    weights = [one.weights for one in found if one.weights is not None]
    return vectors, weights or None


class Lost(Exception):
    """A call got no answer: the process ended, hangs, or is out of reach."""


class Gone(Lost):
    """The very actor that was asked has ended for good; another one may have its name."""


def portable(error: Exception) -> Exception:
    """Return the error; a RuntimeError that names it where it is not one of kgray's, and may not pickle."""
    if isinstance(error, KgrayError):
        return error.with_traceback(None)
    return RuntimeError(f"{type(error).__name__}: {error}")


async def within(call: Awaitable[_T], seconds: float) -> _T:
    """Return what a call returns. Raises TimeoutError, and cancels it, where it takes longer.

    Unlike `asyncio.wait_for`, which from Python 3.12 on forgets an answer that came while this event loop
    stood still, it reads what has come once the time is over.
    """
    task = asyncio.ensure_future(call)
    try:
        for wait_s in (seconds, _LATE_S):
            await asyncio.wait((task,), timeout=wait_s)
            if task.done():
                return task.result()
        raise TimeoutError
    finally:
        task.cancel()


async def outcome_of(call: Awaitable[_T]) -> _T | Exception:
    """Return what a call returns, or the error that it raises as a value."""
    try:
        return await call
    except Exception as error:  # noqa: BLE001 - the other side decides what it means
        return portable(error)


@dataclass(slots=True, eq=False)
class PoolCall:
    """One request on its way."""

    number: int
    request: Any
    answer: asyncio.Future[Any]
    lost_at: float | None = None  # when it first lost its worker
    times_lost: int = 0
    faults: int = 0  # how often a worker failed over it in a way that nobody knows
    holder: RemoteWorker | None = None  # the worker that has it

    def fail(self, error: Exception) -> None:
        """Have its caller meet an error, unless it was answered or given up."""
        if not self.answer.done():
            self.answer.set_exception(error)


@dataclass(slots=True, eq=False)
class _Member:
    """A worker of the pool."""

    worker: RemoteWorker
    further: bool = False  # it is beyond the least: it exists only while there is work for it
    in_flight: int = 0
    missing: bool = True  # its process does not answer: it has ended, hangs, or never came up
    met: bool = False  # it has answered since it was started; until then it may be loading a model
    restarts: int = 0
    probing: asyncio.Task[None] | None = None
    carrying: set[asyncio.Task[None]] = field(default_factory=set)


@dataclass(eq=False)
class Pool:
    """Sends chunks to workers and hands their outcomes to the callers; used from one event loop."""

    workers: Sequence[RemoteWorker]
    _: KW_ONLY
    patience_s: float  # how long a lost call is sent again before its caller gets Unavailable
    # Without an answer for so long a call counts as lost. A worker that is alive waits less for a model.
    answer_deadline_s: float
    least: int | None = None  # so many of them exist at any time, the others as there is work for; None = all
    health_every_s: float = 5.0  # how often workers are asked whether they are alive, while there is work
    health_deadline_s: float = 60.0  # a worker that does not answer that for so long is restarted
    what: str = "the workers"  # where an outage of them is told of

    def __post_init__(self) -> None:
        least = len(self.workers) if self.least is None else self.least
        self._members = [_Member(one, further=number >= least) for number, one in enumerate(self.workers)]
        # Routers share workers, and a router that was killed leaves calls behind: numbers must not repeat.
        self._numbers = count(secrets.randbits(62))
        self._tasks: set[asyncio.Task[Any]] = set()
        self._watching: asyncio.Task[None] | None = None  # one of these
        self._closed = False

    def call(self, request: object) -> PoolCall:
        """Return a call for a request. Sends nothing."""
        return PoolCall(next(self._numbers), request, asyncio.get_running_loop().create_future())

    def send(self, calls: Sequence[PoolCall], *, avoid: Collection[RemoteWorker] = ()) -> None:
        """Send a chunk to the worker with the least in flight; the first of equals."""
        member = min(
            self._members, key=lambda m: (m.missing, m.missing and m.further, m.worker in avoid, m.in_flight)
        )
        member.in_flight += len(calls)
        for call in calls:
            call.holder = member.worker
        self._spawn(self._carry(member, calls), member.carrying)
        if self._watching is None or self._watching.done():
            self._watching = self._spawn(self._watch())

    def abandon(self, call: PoolCall) -> None:
        """Drop a call and cancel it at its worker."""
        call.answer.cancel()
        if call.holder is not None:
            call.holder.abandon([call.number])

    def stats(self) -> list[dict[str, Any]]:
        """Return each worker's name, what it has in hand, whether it is missing, how often it hung."""
        return [
            {"name": m.worker.name, "in_flight": m.in_flight, "missing": m.missing, "restarts": m.restarts}
            for m in self._members
            if not m.further or m.in_flight or not m.missing
        ]

    def up(self) -> int:
        """Return how many workers there are to share the work: the least, and further ones that answer."""
        return sum(not member.further or not member.missing for member in self._members)

    async def close(self) -> None:
        """End all calls; their callers are cancelled."""
        self._closed = True
        for task in (tasks := [*self._tasks]):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None], *more: set[asyncio.Task[None]]) -> asyncio.Task[None]:
        """Start a task; it is in `_tasks`, and in the other sets, until it ends."""
        task = asyncio.create_task(work)
        for tasks in (self._tasks, *more):
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        return task

    async def _carry(self, member: _Member, calls: Sequence[PoolCall]) -> None:
        left = {call.number: call for call in calls}
        try:
            reason = await self._carried(member, left)
        except Exception as error:  # noqa: BLE001 - a bug of ours: every caller meets it
            for call in left.values():
                call.fail(error)
            return
        finally:
            member.in_flight -= len(left)
            if not member.in_flight:  # nobody is left who would tell of the end of what it waits for
                OUTAGES.tell(member.worker.name, ())
        if lost := [call for call in left.values() if not call.answer.done()]:
            self._spawn(self._send_again(lost, member.worker, reason))

    async def _carried(self, member: _Member, left: dict[int, PoolCall]) -> str:
        """Settle calls as outcomes arrive, removing them from `left`; return why the rest was lost."""
        worker, unknown = member.worker, ""
        try:
            async with asyncio.timeout(self.answer_deadline_s):
                async for ended in worker.work([(call.number, call.request) for call in left.values()]):
                    for number, outcome in ended:
                        unknown = self._take(member, left, number, outcome) or unknown
        except Gone:
            raise  # the caller of the pool finds others
        except Lost as error:
            member.missing = True
            return str(error)
        except TimeoutError:
            worker.abandon(list(left))
            return f"{worker.name} lives, and gave no answer within {self.answer_deadline_s:g} s"
        except asyncio.CancelledError:
            if self._closed:
                raise
            return f"{worker.name} did not answer within {self.health_deadline_s:g} s"
        if unknown:
            self._restart(member)
        return unknown or f"{worker.name} ended its work without an answer"

    def _take(self, member: _Member, left: dict[int, PoolCall], number: int, outcome: Outcome) -> str:
        """Settle one call; of the first failure over it that nobody knows, return what was said instead."""
        member.missing, member.met = False, True
        call = left.get(number)
        if number == TOLD:
            OUTAGES.tell(member.worker.name, outcome)
        elif call is not None:
            if isinstance(outcome, Exception) and not isinstance(outcome, KgrayError) and not call.faults:
                call.faults += 1  # a worker that is started anew may do better
                return f"{member.worker.name} failed: {outcome}"
            del left[number]
            member.in_flight -= 1
            OUTAGES.answered(self.what)
            if isinstance(outcome, Exception):
                call.fail(outcome)
            elif not call.answer.done():
                call.answer.set_result(outcome)
        return ""

    async def _send_again(self, calls: list[PoolCall], lost: RemoteWorker, reason: str) -> None:
        now = time.monotonic()
        OUTAGES.failed(self.what, f"do not answer ({reason})", since=time.time(), patience_s=self.patience_s)
        times = 0
        for call in calls:
            call.lost_at = now if call.lost_at is None else call.lost_at
            call.times_lost += 1
            call.holder = None
            if call.times_lost > 1 and now - call.lost_at >= self.patience_s:
                call.fail(Unavailable(f"no worker answers: {reason}", waited=True))
            else:
                times = max(times, call.times_lost)
        if times and (all(member.missing for member in self._members) or times > len(self._members)):
            await asyncio.sleep(min(_FIRST_DELAY_S * 2 ** min(times, 10), _LONGEST_DELAY_S))
        if again := [call for call in calls if not call.answer.done()]:
            self.send(again, avoid=(lost,))

    async def _watch(self) -> None:
        """Probe workers that are busy or missing, again and again; restart those that hang."""
        while any(m.in_flight or (m.missing and not m.further) for m in self._members):
            for member in self._members:
                due = member.in_flight or member.missing or member.further
                if due and (member.probing is None or member.probing.done()):
                    member.probing = self._spawn(self._probe(member))
            await asyncio.sleep(self.health_every_s)

    def _restart(self, member: _Member) -> None:
        member.missing, member.met = True, False
        member.restarts += 1
        member.worker.restart()

    async def _probe(self, member: _Member) -> None:
        """Ask a worker whether it lives; one that was never met is not restarted: it may load a model."""
        try:
            patient_s = self.health_deadline_s if member.met else self.health_every_s
            await within(member.worker.health(), patient_s)
        except TimeoutError:
            if member.met:
                self._restart(member)
            elif not any(other.met for other in self._members):
                return  # nobody else could do its work
            member.missing = True
            for carrying in list(member.carrying):
                carrying.cancel()  # its calls go to others: a process that hangs may not end its streams
        except Lost:
            member.missing = True
        else:
            member.missing, member.met = False, True


def pool_of(spec: DeploymentSpec, kind: str) -> Pool:
    """Return the pool of a deployment's workers of a kind."""
    from kgray.runtime.actors import RemoteWorker  # it imports ray, and this module does without

    of: WorkersProfile = getattr(spec.cluster, POOLS[kind])
    limits, patience_s = spec.cluster.limits, spec.values["model.patience_s"]
    return Pool(
        [RemoteWorker(f"{kind}-{number}", spec.namespace) for number in range(of.most)],
        least=of.least,
        patience_s=patience_s,
        answer_deadline_s=patience_s + CALLS * spec.values["model.timeout_s"],
        health_every_s=limits.health_every_s,
        health_deadline_s=limits.health_deadline_s,
        what=f"the workers that {_DO[kind]}",
    )


@dataclass(slots=True)
class PoolSize:
    """How many workers of a kind there are to be: more while all are full, fewer where some have no work."""

    least: int
    most: int
    takes: int  # requests that one works on at a time
    idle_s: float  # without work for so long, one beyond the least ends
    full_at: float = field(default_factory=time.monotonic)  # when all were full last
    _full: int = 0  # looks in a row at which they were

    def looked(self, rows: Mapping[int, Mapping[str, Any]], now: float) -> tuple[list[int], list[int]]:
        """Return the numbers of the workers to start, and of those to end.

        rows: the stats of each worker that exists, by number; of one that loads, or has no node, not "loaded"
        """
        up = [row for row in rows.values() if row.get("loaded")]
        full = bool(up) and sum(row["running"] for row in up) >= _FULL * self.takes * len(up)
        self.full_at = now if full else self.full_at
        self._full = self._full + 1 if full and len(up) == len(rows) else 0  # none while some come up
        start: list[int] = []
        if self._full >= _LOOKS:
            self._full, start = 0, [number for number in range(self.most) if number not in rows][: len(up)]
        idle = {n: row["idle_s"] if row.get("loaded") else now - self.full_at for n, row in rows.items()}
        return start, [number for number in rows if number >= self.least and idle[number] >= self.idle_s]


@dataclass(slots=True, eq=False)
class Chunker:
    """Gathers calls made in the same moments into chunks of at most `size`."""

    pool: Pool
    size: int
    linger_s: float  # for which the first request of a chunk waits for more
    _waiting: list[PoolCall] = field(default_factory=list)
    _timer: asyncio.TimerHandle | None = None

    async def ask(self, request: object) -> Any:  # noqa: ANN401 - the port's value
        """Return what a worker makes of a request, or raise the error it answers with."""
        call = self.pool.call(request)
        self._waiting.append(call)
        if len(self._waiting) >= self.size:
            self._flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.linger_s, self._flush)
        try:
            return await call.answer
        except asyncio.CancelledError:
            with suppress(ValueError):
                self._waiting.remove(call)
            self.pool.abandon(call)
            raise

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        calls, self._waiting = self._waiting, []
        if calls:
            self.pool.send(calls)


@dataclass(slots=True, eq=False)
class OnWorkers:
    """Sends requests to workers that it looks for with each; without any, to the model of this process."""

    find: Callable[[], Pool | None]  # blocks, and is called in another thread
    local: Any  # a model's port

    async def ask(self, request: object) -> Any:  # noqa: ANN401 - the port's value
        """Return what a model makes of a request, or raise the error it answers with."""
        since: float | None = None  # when it first met workers that had ended
        while (pool := await asyncio.to_thread(self.find)) is not None:
            try:
                return await Chunker(pool, size=1, linger_s=0.0).ask(request)
            except Gone as gone:
                now = time.monotonic()
                since = now if since is None else since
                if now - since >= pool.patience_s:
                    raise Unavailable(f"no worker answers: {gone}", waited=True) from None
                await asyncio.sleep(_FIRST_DELAY_S)
            finally:
                await pool.close()
        return await answered(self.local, request)


_Calls = Chunker | OnWorkers


class PooledReader:
    """`ports.Extractor`, `Judge` and `Summarizer` over a pool: each request has one answer, of its kind."""

    def __init__(self, calls: _Calls, local: ports.Extractor | ports.Judge | ports.Summarizer) -> None:
        self.extract = self.judge = self.write = calls.ask
        self.identity = local.identity  # and keys cost no call
        self.key: Any = getattr(local, "key", None)
        self.head: Any = getattr(local, "head", None)  # of a summarizer


class PooledEmbedder:
    """`ports.Embedder` over a pool; `ports.SparseEmbedder` where the local one is."""

    def __init__(self, calls: _Calls, local: Embedder) -> None:
        self._calls, self.identity, self.dimensions = calls, local.identity, local.dimensions
        if isinstance(local, SparseEmbedder):
            self.embed_both = self._both

    async def embed(self, texts: Sequence[str]) -> Matrix:
        """Return (len(texts), dimensions); one request for the whole list."""
        vectors, _ = await self._both(texts)
        return vectors

    async def _both(self, texts: Sequence[str]) -> tuple[Matrix, Any]:
        if not texts:
            return np.zeros((0, self.dimensions), dtype=np.float32), []
        vectors, weights = await self._calls.ask(tuple(texts))
        # A copy: rows that stay in memory must not pin Ray's shared memory, which is read-only.
        return np.array(vectors, dtype=np.float32), weights


class PooledReranker:
    """`ports.Reranker` over a pool."""

    def __init__(self, calls: _Calls, local: Reranker) -> None:
        self._calls, self.identity = calls, local.identity

    async def score(self, query: str, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return (len(texts),); one request for the whole list. Raises as the port does."""
        if not texts:
            return np.zeros(0, dtype=np.float32)
        return np.array(await self._calls.ask(RerankRequest(query, tuple(texts))), dtype=np.float32)
