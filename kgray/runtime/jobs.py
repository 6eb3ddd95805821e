"""A command as a job of a Ray cluster: submitted once, followed to its end, by whoever asks.

Ray refuses a submission id that it has seen, failed jobs included, so ids are `kgray-<run>-<attempt>`: the
newest one is looked up first and followed while it goes on; once it has ended, the next attempt is submitted.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import shlex
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from kgray.errors import KgrayError, SettingsError, Unavailable

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

_GOES_ON = frozenset({"PENDING", "RUNNING"})
_AGENT_S = 60.0  # right after Ray's start no agent takes jobs yet
_AWAY_S = 30.0  # a server that does not answer for so long is gone
_PAUSE_S = 0.5
_NONE = "no Ray job server can be used at {server} ({error}): start one (`kgray up`), or say --job-server"
_WENT = "the Ray job server at {server} went away ({error}) before a job was followed; run it again"
_CPUS = 0.1  # of the driver, which waits: more than none, so that a head without CPUs is not where it runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a job ended. code: for the process that followed it; document: the JSON line that it ended with."""

    job: str
    status: str
    code: int
    reason: str = ""
    document: dict[str, Any] | None = None


def follow(
    server: str,
    run: str,
    words: Sequence[str],
    environ: Mapping[str, str],
    *,
    tell: Callable[[str], None],
    stop: Callable[[], bool],
    token: Path | None = None,
) -> Ended | None:
    """Submit a command as the run's next attempt, or find the one that goes on; follow its log to its end.

    server    the job server's address, http or https
    words     the command, the interpreter first; environ: what is set for it. Neither may hold a secret:
              whoever may list jobs reads both
    tell      told every line of its log; stop: True ends the following, not the job (then None)
    token     the file of the server's token; None = as the environment says
    Raises SettingsError where Ray is not installed, Unavailable where no job server answers.
    """
    if find_spec("ray") is None:
        raise SettingsError('a job is submitted by Ray, which is not installed: pip install "kgray[ray]"')
    if token is not None:
        from kgray.runtime.session import use_token

        use_token(token)
    with _told(server, _NONE):
        client = _client(server)
    with _told(server, _WENT):
        job, status = _newest(client, run)
        goes_on = status in _GOES_ON
        if not goes_on:
            job = _submitted(client, run, job + 1, words, environ)
    if not goes_on:
        tell(f"kgray: job {_id(run, job)} is submitted")
    else:
        tell(f"kgray: job {_id(run, job)} goes on already, and is followed")
    return asyncio.run(_followed(client, _id(run, job), tell, stop))


def _id(run: str, attempt: int) -> str:
    return f"kgray-{run}-{attempt}"


def _client(server: str) -> JobSubmissionClient:
    from ray.job_submission import JobSubmissionClient

    class Client(JobSubmissionClient):
        """Ray's, which alone would wait for an answer without end."""

        def _do_request(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as Ray's
            return super()._do_request(*args, **{"timeout": _AWAY_S} | kwargs)

    # It tells of every connection that it closes.
    logging.getLogger("ray.dashboard.modules.job.sdk").setLevel(logging.WARNING)
    return Client(server)


@contextmanager
def _told(server: str, line: str) -> Iterator[None]:
    """Raise Unavailable with this line for whatever the client meets; SettingsError for want of a token.

    line: with places for the server, without what may be secret in its address, and for the error's class
    """
    try:
        yield
    except KgrayError:
        raise
    except Exception as error:  # noqa: BLE001 - the client meets Ray's, requests' and the parsers' errors
        if _wants_token(error):
            raise SettingsError(
                f"the Ray job server at {_shown(server)} asks for a token, and has none or another one of "
                f"this process: set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH to the file that holds it"
            ) from None
        # The client's own words tell the whole address, which may hold a password.
        said = line.format(server=_shown(server), error=type(error).__name__)
        raise Unavailable(said, waited=True) from None


def _wants_token(error: Exception) -> bool:
    return type(error).__name__ == "AuthenticationError"


def _shown(server: str) -> str:
    parts = urlsplit(server)
    try:
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        port = ""
    return f"{parts.scheme}://{parts.hostname or ''}{port}"


def _newest(client: JobSubmissionClient, run: str) -> tuple[int, str]:
    """Return the number and the status of the run's newest attempt; (0, "") where there is none."""
    form = re.compile(re.escape(f"kgray-{run}-") + r"(\d+)")
    newest, status = 0, ""
    for job in client.list_jobs():
        match = form.fullmatch(job.submission_id or "")
        if match and int(match[1]) > newest:
            newest, status = int(match[1]), str(getattr(job.status, "value", job.status))
    return newest, status


def _submitted(
    client: JobSubmissionClient, run: str, attempt: int, words: Sequence[str], environ: Mapping[str, str]
) -> int:
    """Return the attempt that goes on now: another process may have been faster with it, which is as good.

    So is one that was taken while its answer was lost. Raises KgrayError where it was refused.
    """
    deadline = time.monotonic() + _AGENT_S
    while True:
        try:
            client.submit_job(
                entrypoint=shlex.join(words),
                submission_id=_id(run, attempt),
                runtime_env={"env_vars": dict(environ)},
                metadata={"kgray_run": run, "kgray_attempt": str(attempt)},
                entrypoint_num_cpus=_CPUS,
            )
        except Exception as error:
            if _wants_token(error):
                raise
            if _newest(client, run)[0] >= attempt:
                return attempt
            if not isinstance(error, RuntimeError):  # Ray's, for an answer that is a refusal
                raise
            said = str(error).partition("\n")[0][:300]
            if "No available agent" not in said:
                raise KgrayError(f"Ray did not take the job: {said}") from None
            if time.monotonic() > deadline:
                raise Unavailable(f"Ray took no job within {_AGENT_S:g} s: {said}", waited=True) from None
            time.sleep(_PAUSE_S)
        else:
            return attempt


async def _followed(
    client: JobSubmissionClient, job: str, tell: Callable[[str], None], stop: Callable[[], bool]
) -> Ended | None:
    log = _Log(tell)
    reading = asyncio.create_task(_read(client, job, log))
    try:
        while True:
            done, _ = await asyncio.wait({reading}, timeout=_PAUSE_S)
            if stop():
                return None
            if done:
                break
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    info = reading.result()
    log.end()
    status = str(getattr(info.status, "value", info.status))
    code = info.driver_exit_code
    if code is None:
        code = 0 if status == "SUCCEEDED" else 75 if status == "STOPPED" else 1
    # A driver that a signal ended has a negative code; nothing was lost, and the next attempt goes on.
    code = code if 0 <= code <= 255 else 75
    told = "" if status == "SUCCEEDED" or log.document else (info.message or "")
    reason = next(iter(told.splitlines()[-1:]), "")[:300]
    return Ended(job=job, status=status, code=code, reason=reason, document=log.document)


async def _read(client: JobSubmissionClient, job: str, log: _Log) -> Any:  # noqa: ANN401 - Ray's JobDetails
    """Read the log until the job has ended, and return how; a connection that breaks is made anew.

    Raises Unavailable where the server stays away.
    """
    away: float | None = None
    while True:
        log.again()
        try:
            async for piece in _pieces(client, job):
                log.take(piece)
        except Exception:  # noqa: BLE001 - whatever a connection meets: the job's state decides
            await asyncio.sleep(_PAUSE_S)
        try:
            info = await asyncio.to_thread(client.get_job_info, job)
        except Exception as error:  # noqa: BLE001 - the same
            away = away or time.monotonic()
            if time.monotonic() - away > _AWAY_S:
                raise Unavailable(
                    f"the Ray job server went away ({type(error).__name__}) while {job} was followed; "
                    f"what was accepted is safe: the same command follows it, or goes on",
                    waited=True,
                ) from None
        else:
            away = None
            if str(getattr(info.status, "value", info.status)) not in _GOES_ON:
                return info
        await asyncio.sleep(_PAUSE_S)


def _pieces(client: JobSubmissionClient, job: str) -> AsyncIterator[str]:
    found: AsyncIterator[str] = client.tail_job_logs(job)
    return found


class _Log:
    """A log that comes in pieces, and from its start again; lines go on once. The last JSON line is kept."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._seen = self._skip = 0
        self._rest = ""
        self.document: dict[str, Any] | None = None

    def again(self) -> None:
        """Expect what was seen once more."""
        self._skip = self._seen

    def take(self, piece: str) -> None:
        """Take the next piece."""
        new = piece[self._skip :]
        self._skip = max(0, self._skip - len(piece))
        self._seen += len(new)
        *lines, self._rest = (self._rest + new).split("\n")
        for line in lines:
            self._line(line)

    def end(self) -> None:
        """Take what has no end of line."""
        if self._rest:
            self._line(self._rest)
            self._rest = ""

    def _line(self, line: str) -> None:
        if line.startswith("{"):
            try:
                found = json.loads(line)
            except ValueError:
                found = None
            if isinstance(found, dict) and "accepted" in found:
                self.document = found
                return
        self._tell(line)
