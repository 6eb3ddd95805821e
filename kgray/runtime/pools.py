"""The router over a pool of workers: who gets which calls, and what becomes of calls whose worker is lost.

This module does not use Ray. The outcomes of a chunk come back one by one. Calls whose worker is lost are
sent to another worker here, not by Ray: a generator that Ray retries may yield other outcomes in another
order. So a request may be carried out twice; only the first outcome counts (R21).

An outcome may be an error. Ray wraps an exception that it transports, and makes it hard to tell from one of
its own. So an actor returns kgray's errors, which can be pickled, and raises nothing.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Collection, Coroutine, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from kgray.errors import KgrayError, SettingsError, Unavailable
from kgray.outages import OUTAGES
from kgray.runtime.spec import POOLS, DeploymentSpec, WorkersProfile

if TYPE_CHECKING:
    from kgray.runtime.actors import RemoteWorker

_T = TypeVar("_T")
Outcome = Any  # a value of the port's own, or a KgrayError; a RuntimeError stands for a bug of ours
Numbered = tuple[int, Any]  # a request, or its outcome
TOLD = -1  # in place of a number: the outcome is what the worker waits for itself, a tuple of Outage
UNFIT = -2  # in place of a number: the outcome is why the worker's start failed; it carries nothing out
LEAVING = -3  # in place of a number: the worker takes no more work, and ends; the outcome is None
CALLS = 4  # model calls that one request may need in sequence: the call, repairs of its reply, a retry
_DO = {"models": "read", "judges": "judge", "embedder": "embed"}  # what the workers of a kind do
FIRST_DELAY_S = 0.1
_LONGEST_DELAY_S = 5.0
_LATE_S = 0.1  # for what came meanwhile to be read
_LONGEST_QUIET_S = 300.0  # for which a worker gets no work whose outcomes are errors of settings
_SHOWN = 3  # quarantined workers in a message
_LOG = logging.getLogger("kgray.runtime")


class Lost(Exception):
    """A call got no answer: the process ended, hangs, or is out of reach."""


class Gone(Lost):
    """The very actor that was asked has ended for good; another one may have its name."""


class Unfit(Exception):
    """The worker lives, and its start failed: it cannot carry out anything."""

    def __init__(self, fault: Exception) -> None:
        super().__init__(str(fault))
        self.fault = fault


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
    refusals: int = 0  # by workers that are quarantined since
    holder: RemoteWorker | None = None  # the worker that has it
    asked_at: float = field(default_factory=time.monotonic)

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
    fault: Exception | None = None  # why it gets no work: its start failed, or it says the settings are wrong
    fault_at: float = 0.0  # when it said so last; 0 = it may get work
    faults: int = 0  # outcomes in a row that were errors of settings
    quiet_until: float = 0.0  # its health alone does not let it have work before
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
        """Send a chunk to the worker with the least in flight; the first of equals.

        One that is quarantined gets it only where all are: then the one that was heard longest ago.
        """
        member = min(
            self._members,
            key=lambda m: (m.fault_at, m.missing, m.missing and m.further, m.worker in avoid, m.in_flight),
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
        """Return each worker's name, what it has in hand, whether it is missing, its restarts, its fault."""
        return [
            {"name": m.worker.name, "in_flight": m.in_flight, "missing": m.missing, "restarts": m.restarts}
            | ({"fault": str(m.fault)} if m.fault_at else {})
            for m in self._members
            if not m.further or m.in_flight or not m.missing
        ]

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
        lost = [call for call in left.values() if not call.answer.done()]
        if member.fault_at:
            self._send_elsewhere(lost, member.worker)
        elif lost:
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
        elif number == UNFIT:
            self._quarantine(member, outcome)
        elif number == LEAVING:  # what it has not answered goes to others at once, as after its end
            member.missing = True
        elif call is not None and isinstance(outcome, SettingsError):
            # Perhaps its node alone lacks a key or a file: the others are asked before it counts.
            pause_s = self.health_every_s * 2 ** min(member.faults, 20)
            member.faults, member.quiet_until = (
                member.faults + 1,
                time.monotonic() + min(pause_s, _LONGEST_QUIET_S),
            )
            self._quarantine(member, outcome)
            member.in_flight -= 1
            self._send_elsewhere([left.pop(number)], member.worker)
        elif call is not None:
            if isinstance(outcome, Exception) and not isinstance(outcome, KgrayError) and not call.faults:
                call.faults += 1  # a worker that is started anew may do better
                return f"{member.worker.name} failed: {outcome}"
            del left[number]
            member.in_flight -= 1
            member.faults, member.fault_at = 0, 0.0
            OUTAGES.answered(self.what)
            if isinstance(outcome, Exception):
                call.fail(outcome)
            elif not call.answer.done():
                call.answer.set_result(outcome)
        return ""

    def _quarantine(self, member: _Member, fault: Exception) -> None:
        if not member.fault_at:
            _LOG.warning("%s gets no work: %s", member.worker.name, fault)
        member.fault, member.fault_at, member.missing = fault, time.monotonic(), False

    def _send_elsewhere(self, calls: Sequence[PoolCall], unfit: RemoteWorker) -> None:
        """Send calls that a worker refused to others; a call fails once all have refused since it was made.

        That is no outage: nobody waits, and no call's patience is spent.
        """
        there = [m for m in self._members if not (m.further and m.missing)]
        latest = max(there, key=lambda m: m.fault_at)
        again = []
        for call in calls:
            call.holder, call.refusals = None, call.refusals + 1
            everywhere = call.refusals >= len(there) or all(m.fault_at >= call.asked_at for m in there)
            if everywhere and latest.fault is not None:
                call.fail(latest.fault)
            elif not call.answer.done():
                again.append(call)
        if again:
            self.send(again, avoid=(unfit,))

    async def _send_again(self, calls: list[PoolCall], lost: RemoteWorker, reason: str) -> None:
        now = time.monotonic()
        if nobody := all(m.missing or m.fault_at for m in self._members):
            failed = f"do not answer ({reason})"
            OUTAGES.failed(self.what, failed, since=time.time(), patience_s=self.patience_s)
        times = 0
        for call in calls:
            call.lost_at = now if call.lost_at is None else call.lost_at
            call.times_lost += 1
            call.holder = None
            if call.times_lost > 1 and now - call.lost_at >= self.patience_s:
                unfit = [f"{m.worker.name} is quarantined ({m.fault})" for m in self._members if m.fault_at]
                said = "; ".join([reason, *unfit[:_SHOWN]])
                call.fail(Unavailable(f"no worker answers: {said}", waited=True))
            else:
                times = max(times, call.times_lost)
        if times and (nobody or times > len(self._members)):
            await asyncio.sleep(min(FIRST_DELAY_S * 2 ** min(times, 10), _LONGEST_DELAY_S))
        if again := [call for call in calls if not call.answer.done()]:
            self.send(again, avoid=(lost,))

    async def _watch(self) -> None:
        """Probe workers that are busy or missing, again and again; restart those that hang."""
        while any(m.in_flight or ((m.missing or m.fault_at) and not m.further) for m in self._members):
            for member in self._members:
                due = member.in_flight or member.missing or member.further or member.fault_at
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
        except Unfit as error:
            self._quarantine(member, error.fault)
        else:
            member.missing, member.met = False, True
            if time.monotonic() >= member.quiet_until:
                member.fault_at = 0.0


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
