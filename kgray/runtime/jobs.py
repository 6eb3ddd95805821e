"""A command as a job of a Ray cluster: submitted once, and followed to its end by any number of commands.

Ray refuses a submission id that it has seen, even of a failed job, so ids are `kgray-<run>-<attempt>`. If
the newest attempt is still running it is followed; once it has ended, the next attempt is submitted.
"""

from __future__ import annotations

import json
import logging
import re
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
_WENT = "the Ray job server at {server} went away ({error}) before a job was followed; run it again"
_SHARE = 20  # least pause between two looks, in times that the last one took: the log may be long
_CPUS = 0.1  # of the driver, which only waits; above 0, so that it is not placed on a head without CPUs


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
    """What to run as the next attempt of a run; it may hold no secret: whoever may list jobs can read it."""

    run: str
    command: Sequence[str]  # with its arguments, the interpreter first
    environ: Mapping[str, str]

    def id(self, attempt: int) -> str:
        """Return the submission id of an attempt."""
        return f"kgray-{self.run}-{attempt}"


def follow(
    server: str,
    job: Job,
    *,
    tell: Callable[[str], None],
    stop: Stop,
    token: Path | None = None,
    times: ServerTimes = _TIMES,
) -> EndedJob | None:
    """Submit the job, or find the attempt that is running; follow its log, and return how it ended.

    tell      called with every line of the job's log
    stop      polled; once it is true, None is returned and the job goes on
    token     the file of the server's token; None = as the environment says
    Raises SettingsError where Ray is not installed, Unavailable where no job server answers.
    """
    if find_spec("ray") is None:
        raise SettingsError('a job is submitted by Ray, which is not installed: pip install "kgray[ray]"')
    from ray.job_submission import JobSubmissionClient

    # This logger reports every connection that it closes.
    logging.getLogger("ray.dashboard.modules.job.sdk").setLevel(logging.WARNING)
    with _in_one_line(server, _NONE):
        headers = None if token is None else {"Authorization": f"Bearer {token.read_text().strip()}"}
        client = _asked(partial(JobSubmissionClient, server, headers=headers), times)
    with _in_one_line(server, _WENT):
        attempt, goes_on = _newest(client, job, times)
        if not goes_on:
            attempt = _submit(client, job, attempt + 1, times)
    name = job.id(attempt)
    tell(f"kgray: job {name} {'goes on already, and is followed' if goes_on else 'is submitted'}")
    return followed(client, name, tell, stop, times)


def _asked(call: Callable[[], _T], times: ServerTimes, stop: Stop = never) -> _T:
    """Return a client call's result; TimeoutError after `away_s`, or once `stop()` is true."""
    # In a daemon thread, because the client has no timeout.
    found: Future[_T] = Future()

    def run() -> None:
        try:
            found.set_result(call())
        except Exception as error:  # noqa: BLE001 - raised where the result is asked for
            found.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    until = time.monotonic() + times.away_s
    while not (wait((found,), times.pause_s).done or stop() or time.monotonic() > until):
        pass
    return found.result(0)


@contextmanager
def _in_one_line(server: str, line: str) -> Iterator[None]:
    """Turn the client's errors into Unavailable with this line, or SettingsError where a token is missing."""
    from ray.exceptions import AuthenticationError

    try:
        yield
    except KgrayError:
        raise
    except AuthenticationError:
        raise SettingsError(
            f"the Ray job server at {shown(server)} asks for a token, and has none or another one of "
            f"this process: set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH to the file that holds it"
        ) from None
    except Exception as error:  # noqa: BLE001 - the client meets Ray's, requests' and the parsers' errors
        # The client's own message holds the whole address, which may contain a password.
        said = line.format(server=shown(server), error=type(error).__name__)
        raise Unavailable(said, waited=True) from None


def shown(server: str) -> str:
    """Return a server's address without user, password, path and query."""
    parts = urlsplit(server)
    try:
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        port = ""
    return f"{parts.scheme}://{parts.hostname or ''}{port}"


def _newest(client: JobSubmissionClient, job: Job, times: ServerTimes) -> tuple[int, bool]:
    """Return the run's newest attempt and whether it is still running; (0, False) where there is none."""
    form = re.compile(re.escape(job.id(0)[:-1]) + r"(\d+)")
    attempts = [
        (int(match[1]), not found.status.is_terminal())
        for found in _asked(client.list_jobs, times)
        if (match := form.fullmatch(found.submission_id or ""))
    ]
    return max(attempts, default=(0, False))


def _submit(client: JobSubmissionClient, job: Job, attempt: int, times: ServerTimes) -> int:
    """Submit an attempt, again while no agent takes jobs; return the number of the one that now runs."""
    deadline = time.monotonic() + times.agent_s
    sent = partial(
        client.submit_job,
        entrypoint=shlex.join(job.command),
        submission_id=job.id(attempt),
        runtime_env={"env_vars": dict(job.environ)},
        metadata={"kgray_run": job.run, "kgray_attempt": str(attempt)},
        entrypoint_num_cpus=_CPUS,
    )
    while True:
        try:
            _asked(sent, times)
        except Exception as error:
            if _newest(client, job, times)[0] >= attempt:
                return attempt  # another process submitted it first, or the acknowledgement was lost
            if not isinstance(error, RuntimeError):  # Ray's, for an answer that is a refusal
                raise
            said = str(error).partition("\n")[0][:300]
            if "No available agent" not in said:
                raise KgrayError(f"Ray did not take the job: {said}") from None
            if time.monotonic() > deadline:
                line = f"Ray took no job within {times.agent_s:g} s: {said}"
                raise Unavailable(line, waited=True) from None
            time.sleep(times.pause_s)
        else:
            return attempt


def followed(
    client: JobSubmissionClient, job: str, tell: Callable[[str], None], stop: Stop, times: ServerTimes
) -> EndedJob | None:
    """Follow a job and return how it ended; None where `stop()` became true first. Raises Unavailable."""
    log, heard, look_at = JobLog(tell), time.monotonic(), 0.0
    while not stop():
        began = time.monotonic()
        if began < look_at:
            time.sleep(times.pause_s)
            continue
        try:
            details = _asked(lambda: client.get_job_info(job), times, stop)
        except Exception as error:  # noqa: BLE001 - whatever a connection meets
            if time.monotonic() - heard > times.away_s:
                raise Unavailable(
                    f"the Ray job server went away ({type(error).__name__}) while {job} was followed; "
                    f"what was accepted is safe: the same command follows it, or goes on",
                    waited=True,
                ) from None
        else:
            heard = time.monotonic()
            # After the state: the log of a job that has ended is complete.
            ended = details.status.is_terminal()
            with suppress(Exception):  # the next look, or the next command, has the log
                log.read(_asked(lambda: client.get_job_logs(job), times), complete=ended)
            if ended:
                return _ended(job, details, log.document)
        now = time.monotonic()
        look_at = now + max(times.pause_s, _SHARE * (now - began))
    return None


def _ended(job: str, details: Any, document: dict[str, Any] | None) -> EndedJob:  # noqa: ANN401 - Ray's JobDetails
    status, code = details.status.value, details.driver_exit_code
    if code is None:
        code = {"SUCCEEDED": 0, "STOPPED": STOPPED}.get(status, 1)
    elif not 0 <= code <= 255:
        code = STOPPED  # by a signal; nothing was lost, and the next attempt continues
    said = "" if status == "SUCCEEDED" or document else (details.message or "")
    reason = next(iter(said.splitlines()[-1:]), "")[:300]
    return EndedJob(job=job, status=status, code=code, reason=reason, document=document)


class JobLog:
    """A job's log, which is read as a whole again and again: passes each line on once, reports excepted."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell, self._told = tell, 0
        self.document: dict[str, Any] | None = None  # the last report: a JSON object with "accepted"

    def read(self, text: str, *, complete: bool) -> None:
        """Pass on the lines that are new. complete: no more comes, so a last line without its end is one."""
        *lines, rest = text.split("\n")
        lines += [rest] if complete and rest else []
        for line in lines[self._told :]:
            found = None
            with suppress(ValueError):
                found = json.loads(line) if line.startswith("{") else None
            if isinstance(found, dict) and "accepted" in found:
                self.document = found
            else:
                self._tell(line)
        self._told = max(self._told, len(lines))
