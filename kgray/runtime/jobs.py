"""Commands as jobs of a Ray cluster, through its job server: submitted once, found again, followed.

Ray refuses a submission id that it has seen, even of a job that has failed. So a retry needs another id.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import shlex
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from kgray.errors import STOPPED, KgrayError, SettingsError, Unavailable
from kgray.ports.ingest import Stop, never

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

_T = TypeVar("_T")
_NONE = "no Ray job server can be used at {server} ({error}): start one (`kgray up`), or say --job-server"
_WENT = "the Ray job server at {server} went away ({error}); what was accepted is safe, run it again"
_THIS_RAY = "this Ray"  # in messages, where no address is known
_CPUS = 0.1  # of the driver, which only waits; above 0, so that it is not placed on a head without CPUs
_KILLED = (128 + 9, 128 + 15)  # exit codes of a shell whose command was ended by a signal


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTimes:
    """How long a job server is waited for, in seconds."""

    agent_s: float = 60.0  # a submission is tried again: right after Ray's start no agent takes jobs yet
    away_s: float = 30.0  # without an answer: then the server is gone
    pause_s: float = 0.5  # between two tries, and two looks


_TIMES = ServerTimes()


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedJob:
    """How a job ended. code: the exit code for its follower; document: the JSON report it printed last."""

    job: str
    status: str
    code: int
    reason: str = ""
    document: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A command to run as a job; it must hold no secret: everyone who may list jobs can read it.

    command     with its arguments, the interpreter first
    environ     variables of its process
    labels      of the nodes that it may run on
    """

    command: Sequence[str]
    environ: Mapping[str, str]
    labels: Mapping[str, str] | None = None


class JobServer:
    """The job server of a Ray. Every call has a deadline, and fails with one line.

    Methods raise Unavailable where it does not answer, SettingsError where it refuses the token.
    """

    def __init__(
        self, address: str | None = None, *, token: Path | None = None, times: ServerTimes = _TIMES
    ) -> None:
        """Find it. address: None = of the Ray that this process is in; token: None = as the environment says.

        Raises SettingsError where Ray is not installed.
        """
        if find_spec("ray") is None:
            raise SettingsError('a job is submitted by Ray, which is not installed: pip install "kgray[ray]"')
        from ray.job_submission import JobSubmissionClient

        # This logger reports every connection that it closes.
        logging.getLogger("ray.dashboard.modules.job.sdk").setLevel(logging.WARNING)
        self._times, self._server = times, _THIS_RAY if address is None else without_secrets(address)
        with self._in_one_line(_NONE):
            if address is None:  # not left to Ray, which takes any Ray of this machine
                import ray

                address = str(ray.get_runtime_context().gcs_address)
            headers = None if token is None else {"Authorization": f"Bearer {token.read_text().strip()}"}
            self.client = _call_client(partial(JobSubmissionClient, address, headers=headers), times)

    def running(self, prefix: str) -> list[str]:
        """Return the ids of the jobs that have not ended and whose id begins so."""
        return [name for name, has_ended in self._jobs() if name.startswith(prefix) and not has_ended]

    def newest(self, run: str) -> tuple[int, bool]:
        """Return the newest attempt N of the jobs `run-N`, and whether it is running; (0, False): none."""
        form = re.compile(re.escape(run) + r"-(\d+)")
        attempts = [
            (int(match[1]), not has_ended)
            for name, has_ended in self._jobs()
            if (match := form.fullmatch(name))
        ]
        return max(attempts, default=(0, False))

    def details(self, job: str) -> Any | None:  # noqa: ANN401 - Ray's JobDetails
        """Return Ray's details of a job; None where it is not known."""
        with self._in_one_line(_WENT):
            try:
                return _call_client(partial(self.client.get_job_info, job), self._times)
            except RuntimeError as error:
                if "does not exist" in str(error):
                    return None
                raise

    def log(self, job: str) -> str:
        """Return the whole log of a job that has ended."""
        with self._in_one_line(_WENT):
            return _call_client(partial(self.client.get_job_logs, job), self._times)

    def submit(self, name: str, job: Job) -> None:
        """Submit a job under this id, again while no agent takes jobs; where there is such a job, do nothing.

        Raises KgrayError where Ray refuses it.
        """
        with self._in_one_line(_WENT):
            self._submit(name, job)

    def _submit(self, name: str, job: Job) -> None:
        deadline = time.monotonic() + self._times.agent_s
        sent = partial(
            self.client.submit_job,
            entrypoint=shlex.join(job.command),
            submission_id=name,
            runtime_env={"env_vars": dict(job.environ)},
            entrypoint_num_cpus=_CPUS,
            entrypoint_label_selector=dict(job.labels) if job.labels else None,
        )
        while True:
            try:
                _call_client(sent, self._times)
            except Exception as error:
                if self.details(name) is not None:
                    return  # another process submitted it first, or the acknowledgement was lost
                if not isinstance(error, RuntimeError):  # Ray raises it for a refusal
                    raise
                reason = str(error).partition("\n")[0][:300]
                if "No available agent" not in reason:
                    raise KgrayError(f"Ray did not take the job: {reason}") from None
                if time.monotonic() > deadline:
                    line = f"Ray took no job within {self._times.agent_s:g} s: {reason}"
                    raise Unavailable(line, waited=True) from None
                time.sleep(self._times.pause_s)
            else:
                return

    def _jobs(self) -> list[tuple[str, bool]]:
        with self._in_one_line(_WENT):
            jobs = _call_client(self.client.list_jobs, self._times)
            return [(job.submission_id or "", job.status.is_terminal()) for job in jobs]

    @contextmanager
    def _in_one_line(self, line: str) -> Iterator[None]:
        """Turn the client's errors into Unavailable with this line, or SettingsError if it lacks a token."""
        from ray.exceptions import AuthenticationError

        try:
            yield
        except KgrayError:
            raise
        except AuthenticationError:
            raise SettingsError(
                f"the Ray job server at {self._server} asks for a token, and has none or another one of "
                f"this process: set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH to the file that holds it"
            ) from None
        except Exception as error:  # noqa: BLE001 - the client meets Ray's, requests' and the parsers' errors
            # The client's own message holds the whole address, which may contain a password.
            message = line.format(server=self._server, error=type(error).__name__)
            raise Unavailable(message, waited=True) from None


def follow(
    server: JobServer,
    run: str,
    job: Job,
    *,
    tell: Callable[[str], None],
    stop: Stop,
    times: ServerTimes = _TIMES,
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


def _call_client(call: Callable[[], _T], times: ServerTimes, stop: Stop = never) -> _T:
    """Return a client call's result; TimeoutError after `away_s`, or once `stop()` is true."""
    # In a daemon thread, because the client has no timeout.
    result: Future[_T] = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except Exception as error:  # noqa: BLE001 - raised by `result.result`
            result.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    deadline = time.monotonic() + times.away_s
    while not (wait((result,), times.pause_s).done or stop() or time.monotonic() > deadline):
        pass
    return result.result(0)


def without_secrets(server: str) -> str:
    """Return a server's address without user, password, path and query."""
    parts = urlsplit(server)
    try:
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        port = ""
    return f"{parts.scheme}://{parts.hostname or ''}{port}"


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
                details = await asyncio.to_thread(
                    _call_client, partial(client.get_job_info, job), times, stop
                )
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
