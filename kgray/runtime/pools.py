"""The router over a pool of workers: it chooses the worker of a call, and resends calls of lost workers.

This module does not use Ray. The outcomes of a chunk come back one by one. The router, and not Ray, resends
the calls of a lost worker: a generator that Ray retries may yield other outcomes in another order. So a
request may be carried out twice; only the first outcome counts (R21).

An outcome may be an error. Ray wraps an exception that it transports, so that it looks like an error of Ray.
So an actor returns kgray's errors, which can be pickled, and raises nothing.
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
from kgray.runtime.spec import POOLS, DeploymentSpec, WorkersProfile
from kgray.system.outages import OUTAGES

if TYPE_CHECKING:
    from kgray.runtime.actors import RemoteWorker

_T = TypeVar("_T")
Outcome = Any  # a value of the port, or a KgrayError; a RuntimeError means a bug in kgray
Numbered = tuple[int, Any]  # a request, or its outcome
# Special numbers of outcomes.
OUTAGES_CHANGED = -1  # the outcome is a tuple of Outage: the services that the worker itself waits for
UNFIT = -2  # the outcome is the error of the worker's start; the worker carries nothing out
LEAVING = -3  # the worker takes no more work, and ends; the outcome is None
MAX_MODEL_CALLS = 4  # of a request, one after the other: the call, repairs of its reply, a retry
_VERBS = {"models": "read", "judges": "judge", "embedder": "embed"}  # kind of workers -> its verb in messages
FIRST_DELAY_S = 0.1
_LONGEST_DELAY_S = 5.0
_LATE_S = 0.1  # to read an answer that arrived while the event loop stood still
_LONGEST_QUIET_S = 300.0  # the longest pause of a worker whose outcomes are errors of settings
_MAX_NAMED = 3  # quarantined workers in a message
_LOG = logging.getLogger("kgray.runtime")


class Lost(Exception):
    """A call got no answer: the process ended, hangs, or is out of reach."""


class ActorEnded(Lost):
    """The actor has ended for good; a new actor may have its name."""


class Unfit(Exception):
    """The worker lives, and its start failed: it cannot carry out anything."""

    def __init__(self, fault: Exception) -> None:
        super().__init__(str(fault))
        self.fault = fault


def portable(error: Exception) -> Exception:
    """Return a KgrayError itself; for another error, which may not pickle, a RuntimeError that names it."""
    if isinstance(error, KgrayError):
        return error.with_traceback(None)
    return RuntimeError(f"{type(error).__name__}: {error}")


async def answer_within(call: Awaitable[_T], seconds: float) -> _T:
    """Return a call's result. Raises TimeoutError, and cancels the call, if it takes longer.

    `asyncio.wait_for` of Python 3.12 and later drops an answer that came while the event loop stood still;
    this function reads it after the time is over.
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
    """Return a call's result, or its error as a value."""
    try:
        return await call
    except Exception as error:  # noqa: BLE001 - the receiver decides how to treat it
        return portable(error)


@dataclass(slots=True, eq=False)
class PoolCall:
    """One request on its way."""

    number: int
    request: Any
    answer: asyncio.Future[Any]
    lost_at: float | None = None  # when it first lost its worker
    times_lost: int = 0
    faults: int = 0  # failures of workers on it that are no KgrayError
    refusals: int = 0  # by workers that are now quarantined
    holder: RemoteWorker | None = None  # the worker that has it
    asked_at: float = field(default_factory=time.monotonic)

    def fail(self, error: Exception) -> None:
        """Raise an error in the caller, unless the call has an answer or was abandoned."""
        if not self.answer.done():
            self.answer.set_exception(error)


@dataclass(slots=True, eq=False)
class _Member:
    """A worker of the pool."""

    worker: RemoteWorker
    surplus: bool = False  # above the pool's minimum: it exists only while work is queued
    in_flight: int = 0
    missing: bool = True  # its process does not answer: it has ended, hangs, or never came up
    has_answered: bool = False  # it has answered since it was started; until then it may be loading a model
    restarts: int = 0
    fault: Exception | None = None  # the reason for its quarantine: its start, or its settings, failed
    quarantined_at: float = 0.0  # time of its last fault in quarantine; 0 = not quarantined
    faults: int = 0  # outcomes in a row that were errors of settings
    quiet_until: float = 0.0  # good health does not end its quarantine before this time
    probing: asyncio.Task[None] | None = None
    carrying: set[asyncio.Task[None]] = field(default_factory=set)


@dataclass(eq=False)
class Pool:
    """Sends chunks to workers and hands their outcomes to the callers; used from one event loop."""

    workers: Sequence[RemoteWorker]
    _: KW_ONLY
    patience_s: float  # how long a lost call is sent again before its caller gets Unavailable
    # A call without an outcome this long after its chunk was sent is lost. The time exceeds a live worker's
    # waits for a model.
    answer_deadline_s: float
    minimum: int | None = None  # workers that always exist; others exist while work is queued; None = all
    health_every_s: float = 5.0  # how often workers are asked whether they are alive, while there is work
    health_deadline_s: float = 60.0  # after this time without an answer to a probe a worker is restarted
    title: str = "the workers"  # their name in reports of an outage

    def __post_init__(self) -> None:
        minimum = len(self.workers) if self.minimum is None else self.minimum
        self._members = [_Member(w, surplus=number >= minimum) for number, w in enumerate(self.workers)]
        # Routers share workers, and a router that was killed leaves calls behind: numbers must not repeat.
        self._numbers = count(secrets.randbits(62))
        self._tasks: set[asyncio.Task[Any]] = set()
        self._watching: asyncio.Task[None] | None = None  # one of `_tasks`
        self._closed = False

    def call(self, request: object) -> PoolCall:
        """Return a call for a request. Sends nothing."""
        return PoolCall(next(self._numbers), request, asyncio.get_running_loop().create_future())

    def send(self, calls: Sequence[PoolCall], *, avoid: Collection[RemoteWorker] = ()) -> None:
        """Send a chunk to the worker with the fewest calls in flight; the first of equals.

        If all workers are quarantined, the worker with the oldest fault gets it.
        """
        member = min(
            self._members,
            key=lambda m: (
                m.quarantined_at,
                m.missing,
                m.missing and m.surplus,
                m.worker in avoid,
                m.in_flight,
            ),
        )
        member.in_flight += len(calls)
        for call in calls:
            call.holder = member.worker
        self._spawn(self._run_chunk(member, calls), member.carrying)
        if self._watching is None or self._watching.done():
            self._watching = self._spawn(self._watch())

    def abandon(self, call: PoolCall) -> None:
        """Drop a call and cancel it at its worker."""
        call.answer.cancel()
        if call.holder is not None:
            call.holder.abandon([call.number])

    def stats(self) -> list[dict[str, Any]]:
        """Return the state of each worker, except idle surplus workers that are missing."""
        return [
            {"name": m.worker.name, "in_flight": m.in_flight, "missing": m.missing, "restarts": m.restarts}
            | ({"fault": str(m.fault)} if m.quarantined_at else {})
            for m in self._members
            if not m.surplus or m.in_flight or not m.missing
        ]

    async def close(self) -> None:
        """Cancel all calls. Their futures get no result, so call this after the callers have ended."""
        self._closed = True
        for task in (tasks := [*self._tasks]):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None], *sets: set[asyncio.Task[None]]) -> asyncio.Task[None]:
        """Start a task; it is in `_tasks`, and in the given sets, until it ends."""
        task = asyncio.create_task(work)
        for tasks in (self._tasks, *sets):
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        return task

    async def _run_chunk(self, member: _Member, calls: Sequence[PoolCall]) -> None:
        unanswered = {call.number: call for call in calls}
        try:
            reason = await self._settle_outcomes(member, unanswered)
        except Exception as error:  # noqa: BLE001 - a bug of ours, or `ActorEnded`: every caller gets it
            for call in unanswered.values():
                call.fail(error)
            return
        finally:
            member.in_flight -= len(unanswered)
            if not member.in_flight:  # without a call, the end of its outages would not be reported
                OUTAGES.tell(member.worker.name, ())
        lost = [call for call in unanswered.values() if not call.answer.done()]
        if member.quarantined_at:
            self._send_elsewhere(lost, member.worker)
        elif lost:
            self._spawn(self._send_again(lost, member.worker, reason))

    async def _settle_outcomes(self, member: _Member, unanswered: dict[int, PoolCall]) -> str:
        """Settle calls as outcomes arrive, removing them from `unanswered`; return why the rest was lost."""
        worker, unknown = member.worker, ""
        try:
            async with asyncio.timeout(self.answer_deadline_s):
                async for ended in worker.work([(call.number, call.request) for call in unanswered.values()]):
                    for number, outcome in ended:
                        unknown = self._take(member, unanswered, number, outcome) or unknown
        except ActorEnded:
            raise  # every call fails with it, and `OnWorkers` looks for other workers
        except Lost as error:
            member.missing = True
            return str(error)
        except TimeoutError:
            worker.abandon(list(unanswered))
            return f"{worker.name} lives, and gave no answer within {self.answer_deadline_s:g} s"
        except asyncio.CancelledError:
            if self._closed:
                raise
            return f"{worker.name} did not answer within {self.health_deadline_s:g} s"
        if unknown:
            self._restart(member)
        return unknown or f"{worker.name} ended its work without an answer"

    def _take(self, member: _Member, unanswered: dict[int, PoolCall], number: int, outcome: Outcome) -> str:
        """Settle one call, and return ""; at its first unknown failure, return the failure's text instead.

        Special numbers report the worker itself.
        """
        member.missing, member.has_answered = False, True
        call = unanswered.get(number)
        if number == OUTAGES_CHANGED:
            OUTAGES.tell(member.worker.name, outcome)
        elif number == UNFIT:
            self._quarantine(member, outcome)
        elif number == LEAVING:  # its open calls go to other workers at once, as after its end
            member.missing = True
        elif call is not None and isinstance(outcome, SettingsError):
            # Its node alone may lack a key or a file: try the other workers before the call fails.
            pause_s = self.health_every_s * 2 ** min(member.faults, 20)
            member.faults, member.quiet_until = (
                member.faults + 1,
                time.monotonic() + min(pause_s, _LONGEST_QUIET_S),
            )
            self._quarantine(member, outcome)
            member.in_flight -= 1
            self._send_elsewhere([unanswered.pop(number)], member.worker)
        elif call is not None:
            if isinstance(outcome, Exception) and not isinstance(outcome, KgrayError) and not call.faults:
                call.faults += 1  # the call may succeed after a restart of the worker
                return f"{member.worker.name} failed: {outcome}"
            del unanswered[number]
            member.in_flight -= 1
            member.faults, member.quarantined_at = 0, 0.0
            OUTAGES.answered(self.title)
            if isinstance(outcome, Exception):
                call.fail(outcome)
            elif not call.answer.done():
                call.answer.set_result(outcome)
        return ""

    def _quarantine(self, member: _Member, fault: Exception) -> None:
        if not member.quarantined_at:
            _LOG.warning("%s gets no work: %s", member.worker.name, fault)
        member.fault, member.quarantined_at, member.missing = fault, time.monotonic(), False

    def _send_elsewhere(self, calls: Sequence[PoolCall], unfit: RemoteWorker) -> None:
        """Send calls that a worker refused to others; a call fails once all have refused since its start.

        A refusal is no outage: nobody waits, and it does not use up a call's patience.
        """
        present = [m for m in self._members if not (m.surplus and m.missing)]
        latest = max(present, key=lambda m: m.quarantined_at)
        open_calls = []
        for call in calls:
            call.holder, call.refusals = None, call.refusals + 1
            everywhere = call.refusals >= len(present) or all(
                m.quarantined_at >= call.asked_at for m in present
            )
            if everywhere and latest.fault is not None:
                call.fail(latest.fault)
            elif not call.answer.done():
                open_calls.append(call)
        if open_calls:
            self.send(open_calls, avoid=(unfit,))

    async def _send_again(self, calls: list[PoolCall], lost: RemoteWorker, reason: str) -> None:
        instant = time.monotonic()
        if nobody := all(m.missing or m.quarantined_at for m in self._members):
            failed = f"do not answer ({reason})"
            OUTAGES.failed(self.title, failed, since=time.time(), patience_s=self.patience_s)
        times = 0
        for call in calls:
            call.lost_at = instant if call.lost_at is None else call.lost_at
            call.times_lost += 1
            call.holder = None
            if call.times_lost > 1 and instant - call.lost_at >= self.patience_s:
                unfit = [m for m in self._members if m.quarantined_at][:_MAX_NAMED]
                reasons = [reason, *(f"{m.worker.name} is quarantined ({m.fault})" for m in unfit)]
                call.fail(Unavailable(f"no worker answers: {'; '.join(reasons)}", waited=True))
            else:
                times = max(times, call.times_lost)
        if times and (nobody or times > len(self._members)):
            await asyncio.sleep(min(FIRST_DELAY_S * 2 ** min(times, 10), _LONGEST_DELAY_S))
        if open_calls := [call for call in calls if not call.answer.done()]:
            self.send(open_calls, avoid=(lost,))

    async def _watch(self) -> None:
        """Probe busy and missing workers every `health_every_s`; restart hanging workers."""
        while any(m.in_flight or ((m.missing or m.quarantined_at) and not m.surplus) for m in self._members):
            for member in self._members:
                due = member.in_flight or member.missing or member.surplus or member.quarantined_at
                if due and (member.probing is None or member.probing.done()):
                    member.probing = self._spawn(self._probe(member))
            await asyncio.sleep(self.health_every_s)

    def _restart(self, member: _Member) -> None:
        member.missing, member.has_answered = True, False
        member.restarts += 1
        member.worker.restart()

    async def _probe(self, member: _Member) -> None:
        """Probe a worker's health. A worker that never answered is not restarted: it may load a model."""
        try:
            patient_s = self.health_deadline_s if member.has_answered else self.health_every_s
            await answer_within(member.worker.health(), patient_s)
        except TimeoutError:
            if member.has_answered:
                self._restart(member)
            elif not any(rival.has_answered for rival in self._members):
                return  # nobody else could do its work
            member.missing = True
            for carrying in list(member.carrying):
                carrying.cancel()  # a process that hangs may not end its streams; its calls go elsewhere
        except Lost:
            member.missing = True
        except Unfit as error:
            self._quarantine(member, error.fault)
        else:
            member.missing, member.has_answered = False, True
            if time.monotonic() >= member.quiet_until:
                member.quarantined_at = 0.0


def pool_of(spec: DeploymentSpec, kind: str) -> Pool:
    """Return the pool of a deployment's workers of a kind."""
    from kgray.runtime.actors import RemoteWorker  # it imports ray, which this module avoids

    profile: WorkersProfile = getattr(spec.cluster, POOLS[kind])
    limits, patience_s = spec.cluster.limits, spec.values["model.patience_s"]
    return Pool(
        [RemoteWorker(f"{kind}-{number}", spec.namespace) for number in range(profile.maximum)],
        minimum=profile.minimum,
        patience_s=patience_s,
        answer_deadline_s=patience_s + MAX_MODEL_CALLS * spec.values["model.timeout_s"],
        health_every_s=limits.health_every_s,
        health_deadline_s=limits.health_deadline_s,
        title=f"the workers that {_VERBS[kind]}",
    )
