"""The log of a job, followed to its end: each line is passed on once, and the last report is kept."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from kgray.errors import STOPPED, Unavailable
from kgray.ports.ingest import Stop
from kgray.runtime.jobs import TIMES, Job, JobServer, ServerTimes, call_client

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

_KILLED = (128 + 9, 128 + 15)  # exit codes of a shell whose command was ended by a signal


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedJob:
    """How a job ended. code: the exit code for its follower; document: the JSON report it printed last."""

    job: str
    status: str
    code: int
    reason: str = ""
    document: dict[str, Any] | None = None


def follow(
    server: JobServer,
    run: str,
    job: Job,
    *,
    tell: Callable[[str], None],
    stop: Stop,
    times: ServerTimes = TIMES,
) -> EndedJob | None:
    """Submit the next attempt of a run, or find a running one; follow its log, and return how it ended.

    tell      called with every line of the job's log
    stop      polled; once it is true, None is returned and the job goes on
    Raises KgrayError where Ray refuses the job, Unavailable where the job server is away.
    """
    attempt, goes_on = server.newest(run)
    name = f"{run}-{attempt if goes_on else attempt + 1}"
    if not goes_on:
        server.submit(name, job)
    tell(f"kgray: job {name} {'goes on already, and is followed' if goes_on else 'is submitted'}")
    return asyncio.run(followed(server.client, name, tell, stop, times))


async def followed(
    client: JobSubmissionClient, job: str, tell: Callable[[str], None], stop: Stop, times: ServerTimes
) -> EndedJob | None:
    """Follow a job and return its end; None if `stop()` became true first. Raises Unavailable.

    It passes on the job's log at once; after a broken connection, the next continues after the last line.
    """
    log, heard = JobLog(tell), time.monotonic()
    tail = asyncio.create_task(log.read(client.tail_job_logs(job)))
    try:
        while not stop():
            if tail.done():
                tail.exception()  # a broken connection: the state says whether the server is away
                tail = asyncio.create_task(log.read(client.tail_job_logs(job)))
            try:
                details = await asyncio.to_thread(call_client, partial(client.get_job_info, job), times, stop)
            except Exception as error:  # noqa: BLE001 - any error of a connection
                if time.monotonic() - heard > times.away_s:
                    raise Unavailable(
                        f"the Ray job server went away ({type(error).__name__}) while {job} was followed; "
                        f"what was accepted is safe: the same command follows it, or goes on",
                        waited=True,
                    ) from None
            else:
                heard = time.monotonic()
                if details.status.is_terminal():
                    await asyncio.wait((tail,), timeout=times.away_s)  # it ends behind the last line
                    if tail.done() and tail.exception() is not None:  # it broke before
                        tail = asyncio.create_task(log.read(client.tail_job_logs(job)))
                        await asyncio.wait((tail,), timeout=times.away_s)
                    log.end()
                    return _ended(job, details, log.document)
            await asyncio.wait((tail,), timeout=times.pause_s)
        return None
    finally:
        tail.cancel()
        await asyncio.gather(tail, return_exceptions=True)


def exit_code_of(details: Any) -> int | None:  # noqa: ANN401 - Ray's JobDetails
    """Return the exit code of a job's command; None if a signal, or the end of its node, ended it."""
    code = details.driver_exit_code
    if code is None and details.status.value == "SUCCEEDED":
        return 0
    return code if code is not None and 0 <= code <= 255 and code not in _KILLED else None


def reason_of(details: Any) -> str:  # noqa: ANN401 - Ray's JobDetails
    """Return the last line of Ray's message on a failed job."""
    return next(iter((details.message or "").splitlines()[-1:]), "")[:300]


def _ended(job: str, details: Any, document: dict[str, Any] | None) -> EndedJob:  # noqa: ANN401 - Ray's JobDetails
    status, code = details.status.value, exit_code_of(details)
    if code is None:  # by a signal: nothing was lost, and the next attempt continues
        code = STOPPED if status == "STOPPED" or details.driver_exit_code is not None else 1
    reason = "" if status == "SUCCEEDED" or document else reason_of(details)
    return EndedJob(job=job, status=status, code=code, reason=reason, document=document)


class JobLog:
    """A job's log, read from its beginning by each connection: passes each line on once, reports excepted."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell, self._characters, self._partial_line = tell, 0, ""
        self.document: dict[str, Any] | None = None  # the last report: a JSON object

    async def read(self, pieces: AsyncIterator[str]) -> None:
        """Pass on the new lines of a connection, which begins with the whole earlier log."""
        position = 0
        async for piece in pieces:
            new = piece[max(0, self._characters - position) :]
            position += len(piece)
            self._characters += len(new)
            *lines, self._partial_line = (self._partial_line + new).split("\n")
            for line in lines:
                self._pass_on(line)

    def end(self) -> None:
        """Pass on a last line that has no end."""
        line, self._partial_line = self._partial_line, ""
        if line:
            self._pass_on(line)

    def _pass_on(self, line: str) -> None:
        document = None
        with suppress(ValueError):
            document = json.loads(line) if line.startswith("{") else None
        if isinstance(document, dict):
            self.document = document
        else:
            self._tell(line)
