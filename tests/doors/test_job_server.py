"""A job server that fails while a refresh is submitted: one line and its exit code, whenever it does."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from typing import Any

import pytest

from kgray.errors import KgrayError
from kgray.runtime.job_log import EndedJob, follow
from kgray.runtime.jobs import Job, JobServer, ServerTimes
from tests.doors.shell import Shell
from tests.waiting import HANGS_S

# Looked for, not imported: Ray reads the variables of its token when it is imported.
pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason='Ray is missing: pip install "kgray[ray]"')

JOB = Job(command=["kgray"], environ={})
# Where nothing is to be waited for, none is too slow; else what comes before must be answered in time, too.
LONG = ServerTimes(away_s=HANGS_S, agent_s=0.2, pause_s=0.02)
SHORT = replace(LONG, away_s=1.0)
Reply = Callable[["Jobs"], Any]  # None: the connection breaks; bytes: a body that is no JSON; (status, body)


class Jobs(ThreadingHTTPServer):
    """A job server on loopback that knows what was submitted, until the test has it fail."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.taken: list[str] = []
        self.replies: dict[str, Reply] = {"version": version, "list": listed, "submit": taken, "job": running}
        self.ended = threading.Event()

    def handle_error(self, request: object, client_address: object) -> None:
        """Pass over a connection that broke."""

    def die(self) -> None:
        """Take no connection any more."""
        if not self.ended.is_set():
            self.ended.set()
            self.socket.close()


class Handler(BaseHTTPRequestHandler):
    server: Jobs

    def do_GET(self) -> None:
        self.answer({"/api/version": "version", "/api/jobs/": "list"}.get(self.path, "job"))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.taken.append(body["submission_id"])
        self.answer("submit")

    def answer(self, asked: str) -> None:
        results = self.server.replies[asked](self.server)
        if results is None:
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        status, body = results if isinstance(results, tuple) else (200, results)
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def version(_: Jobs) -> Any:
    return {"ray_version": "2.60.0", "version": "4", "ray_commit": "", "session_name": ""}


def row(job: str) -> dict[str, Any]:
    return {"type": "SUBMISSION", "submission_id": job, "status": "RUNNING", "entrypoint": "kgray"}


def listed(jobs: Jobs) -> Any:
    return [row(job) for job in jobs.taken]


def taken(jobs: Jobs) -> Any:
    return {"job_id": jobs.taken[-1], "submission_id": jobs.taken[-1]}


def running(jobs: Jobs) -> Any:
    return row(jobs.taken[-1])


def missing(_: Jobs) -> Any:
    return 404, b"Job r-1 does not exist."


def followed(jobs: Jobs, times: ServerTimes) -> EndedJob | None:
    server = JobServer(jobs.url, times=times)
    return follow(server, "r", JOB, tell=lambda _: None, stop=lambda: False, times=times)


def broken(_: Jobs) -> Any:
    return None


def dead(jobs: Jobs) -> Any:
    jobs.die()


def silent(jobs: Jobs) -> Any:
    jobs.ended.wait(HANGS_S)


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Jobs]:
    for name in ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    import ray.job_submission  # noqa: F401 - now: it takes seconds, and would count as the server's

    server = Jobs()
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    serving.start()
    yield server
    server.ended.set()
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("replies", "code", "line"),
    [
        ({"version": dead}, 75, "no Ray job server can be used at "),
        ({"version": lambda _: b"<html>"}, 75, "no Ray job server can be used at "),
        ({"version": silent}, 75, "no Ray job server can be used at "),
        ({"list": dead}, 75, "went away"),
        ({"list": broken}, 75, "went away"),
        ({"list": silent}, 75, "went away"),
        ({"list": lambda _: (502, b"bad gateway")}, 75, "went away"),
        ({"list": lambda _: [{"type": "none of Ray's"}]}, 75, "went away"),
        ({"list": lambda _: (401, b"who are you?")}, 2, "RAY_AUTH_TOKEN_PATH"),
        ({"submit": dead}, 75, "went away"),
        ({"submit": lambda _: (500, b"No such resource")}, 2, "Ray did not take the job"),
        ({"submit": lambda _: (500, b"No available agent")}, 75, "Ray took no job within"),
        ({"submit": lambda _: (403, b"not you")}, 2, "RAY_AUTH_TOKEN_PATH"),
        ({"job": dead}, 75, "went away"),
        ({"job": broken}, 75, "went away"),
        ({"job": lambda _: (404, b"no such job")}, 75, "went away"),
    ],
)
def test_a_job_server_that_fails_is_told_of_in_one_line(
    jobs: Jobs, replies: dict[str, Reply], code: int, line: str
) -> None:
    """Also where it fails between two requests; where it refused for good, a later try is no remedy."""
    if "submit" in replies:
        jobs.replies["job"] = missing
    jobs.replies |= replies

    times = SHORT if "job" in replies or silent in replies.values() else LONG

    with pytest.raises(KgrayError) as error:
        followed(jobs, times)

    assert (error.value.exit_code, line in str(error.value)) == (code, True)
    assert "\n" not in str(error.value)


def test_the_command_says_the_line(kgray: Shell, jobs: Jobs) -> None:
    jobs.replies["version"] = lambda _: b"<html>"

    answer = kgray("communities", "refresh", "--submit", "--job-server", jobs.url)

    assert (answer.code, answer.out, answer.err.count("\n")) == (75, "", 1)
    assert answer.err.startswith("kgray: no Ray job server can be used at ")


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["--submit"], "--job-server"),
        (["--submit", "--job-server", "127.0.0.1:8265"], "--job-server"),
        (["--submit", "--job-server", "http://x", "--dry-run"], "--dry-run"),
        (["--job-server", "http://x"], "--submit"),
    ],
)
def test_wrong_usage_is_one_line(kgray: Shell, args: list[str], line: str) -> None:
    answer = kgray("communities", "refresh", *args)

    assert (answer.code, answer.out, answer.err.count("\n"), line in answer.err) == (2, "", 1, True)


@pytest.mark.parametrize("reply", [broken, silent], ids=["broken", "silent"])
def test_a_job_that_was_taken_though_its_answer_was_lost_is_followed(jobs: Jobs, reply: Reply) -> None:
    jobs.replies["submit"] = reply
    jobs.replies["job"] = lambda server: running(server) | {"status": "SUCCEEDED", "driver_exit_code": 0}

    times = SHORT if reply is silent else LONG
    ended = followed(jobs, times)

    assert ended == EndedJob(job="r-1", status="SUCCEEDED", code=0)
    assert jobs.taken == ["r-1"]
