"""Commands as jobs of a Ray cluster, through its job server: submitted once, found again.

Ray refuses a submission id that it has seen, even of a job that has failed. So a retry needs another id.
"""

from __future__ import annotations

import logging
import re
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from kgray.errors import KgrayError, SettingsError, Unavailable
from kgray.ports.ingest import Stop, never

_T = TypeVar("_T")
_NONE = "no Ray job server can be used at {server} ({error}): start one (`kgray up`), or say --job-server"
_WENT = "the Ray job server at {server} went away ({error}); what was accepted is safe, run it again"
_CPUS = 0.1  # of the driver, which only waits; above 0, so that it is not placed on a head without CPUs


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTimes:
    """How long a job server is waited for, in seconds."""

    agent_s: float = 60.0  # a submission is tried again: right after Ray's start no agent takes jobs yet
    away_s: float = 30.0  # without an answer: then the server is gone
    pause_s: float = 0.5  # between two tries, and two looks


TIMES = ServerTimes()


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
        self, address: str | None = None, *, token: Path | None = None, times: ServerTimes = TIMES
    ) -> None:
        """Find it. address: None = of the Ray that this process is in; token: None = as the environment says.

        Raises SettingsError where Ray is not installed.
        """
        if find_spec("ray") is None:
            raise SettingsError('a job is submitted by Ray, which is not installed: pip install "kgray[ray]"')
        from ray.job_submission import JobSubmissionClient

        # This logger reports every connection that it closes.
        logging.getLogger("ray.dashboard.modules.job.sdk").setLevel(logging.WARNING)
        self._times, self._server = times, "this Ray" if address is None else without_secrets(address)
        with self._in_one_line(_NONE):
            if address is None:  # not left to Ray, which takes any Ray of this machine
                import ray

                address = str(ray.get_runtime_context().gcs_address)
            headers = None if token is None else {"Authorization": f"Bearer {token.read_text().strip()}"}
            self.client = call_client(partial(JobSubmissionClient, address, headers=headers), times)

    def running(self, prefix: str) -> list[str]:
        """Return the ids of the jobs that have not ended and whose id begins so."""
        return [name for name, has_ended in self._jobs() if name.startswith(prefix) and not has_ended]

    def newest(self, run: str) -> tuple[int, bool]:
        """Return the newest attempt N of the jobs `run-N`, and whether it is running; (0, False): none."""
        form = re.compile(re.escape(run) + r"-(\d+)")
        matches = ((form.fullmatch(name), has_ended) for name, has_ended in self._jobs())
        attempts = [(int(match[1]), not has_ended) for match, has_ended in matches if match]
        return max(attempts, default=(0, False))

    def details(self, job: str) -> Any | None:  # noqa: ANN401 - Ray's JobDetails
        """Return Ray's details of a job; None where it is not known."""
        with self._in_one_line(_WENT):
            try:
                return call_client(partial(self.client.get_job_info, job), self._times)
            except RuntimeError as error:
                if "does not exist" in str(error):
                    return None
                raise

    def log(self, job: str) -> str:
        """Return the whole log of a job that has ended."""
        with self._in_one_line(_WENT):
            return call_client(partial(self.client.get_job_logs, job), self._times)

    def submit(self, name: str, job: Job) -> None:
        """Submit a job under this id, again while no agent takes jobs; where there is such a job, do nothing.

        Raises KgrayError where Ray refuses it.
        """
        with self._in_one_line(_WENT):
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
                    call_client(sent, self._times)
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
            jobs = call_client(self.client.list_jobs, self._times)
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


def call_client(call: Callable[[], _T], times: ServerTimes, stop: Stop = never) -> _T:
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
