"""Hostile clients: no leaks, no failures, and other clients are served."""

from __future__ import annotations

import json
import socket
import time
from contextlib import ExitStack, contextmanager, suppress

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

from kgray.server import door, protocol
from kgray.server.door import Bounds
from tests.doors.served import serving
from tests.waiting import HANGS_S, wait_for

TEAM = "/v1/groups/team"
STORED_TEXT = "The word at the gate is swordfish."


@pytest.fixture
def served(tmp_path):
    with serving(tmp_path / "data", ingests=False) as server:
        yield server


@pytest.fixture(scope="module")
def closed(tmp_path_factory):
    """Serve a group with a secret; because a key for another group exists, requests need a key."""
    with serving(tmp_path_factory.mktemp("closed"), ingests=False) as server:
        client = server.client()
        assert client.post(f"{TEAM}/episodes", json={"text": STORED_TEXT, "id": "s"}).status_code == 202
        server.other_key = server.key("other", "read,add,correct,remove,admin")
        yield server


@contextmanager
def connected(served):
    with socket.create_connection(("127.0.0.1", int(served.url.rpartition(":")[2])), HANGS_S) as connection:
        yield connection


def answered(served, sent: bytes, quiet_s: float = HANGS_S) -> bytes:
    """Return the answer to these bytes, until the server closes or is silent for `quiet_s` seconds."""
    with connected(served) as connection:
        connection.sendall(sent)
        connection.settimeout(quiet_s)
        result = b""
        with suppress(OSError):
            while piece := connection.recv(65536):
                result += piece
        return result


def test_every_route_refuses_a_body_of_10_mb(served):
    client, large = served.client(), b'{"text": "' + b"x" * (10 << 20) + b'"}'
    for path in ("episodes", "search", "remove", "merge", "retry"):
        assert client.post(f"{TEAM}/{path}", content=large).status_code == 413, path
        chunks = (large[start : start + 65536] for start in range(0, len(large), 65536))
        assert client.post(f"{TEAM}/{path}", content=chunks).status_code == 413, path
    assert client.post(f"{TEAM}/backfill", content=large[:-2] + b" " * (9 << 20)).status_code in (202, 413)
    assert client.get(f"{TEAM}/status").json()["groups"]["team"]["accepted"] <= 1
    assert client.get("/healthz").status_code == 200


def test_an_unfinished_request_head_times_out(served, monkeypatch):
    monkeypatch.setattr(protocol, "HEAD_S", 0.3)
    with connected(served) as silent, connected(served) as slow, connected(served) as good:
        slow.sendall(b"GET /healthz HTTP/1.1\r\nHo")
        for _ in range(2):  # the limit holds for each request of a connection
            good.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"200" in good.recv(1000)
        assert (silent.recv(1000), slow.recv(1000)) == (b"", b"")
        good.sendall(b"GET /hea")
        assert good.recv(1000) == b""


def test_an_endless_request_head_is_refused(served):
    result = answered(
        served, b"GET /healthz HTTP/1.1\r\n" + b"X-Much: " + b"y" * 60_000 + b"\r\nX-More: " + b"z" * 60_000
    )
    many_headers = answered(
        served, b"GET /healthz HTTP/1.1\r\n" + b"".join(b"X-%d: y\r\n" % n for n in range(20_000))
    )
    assert result.startswith(b"HTTP/1.1 400")
    assert many_headers.startswith(b"HTTP/1.1 400")


def test_endless_trailers_are_refused(closed):
    head = f"POST {TEAM}/search HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
    result = answered(closed, head.encode() + b"".join(b"X-%d: y\r\n" % n for n in range(20_000)), quiet_s=5)
    assert result.startswith(b"HTTP/1.1 40")
    assert b" 400 " in result


@pytest.mark.parametrize(
    ("first_request", "stray"),
    [
        ("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\r\n"),
        (f"POST {TEAM}/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n", b"x"),
    ],
)
def test_stray_bytes_do_not_hold_a_connection_after_an_answer(closed, monkeypatch, first_request, stray):
    with connected(closed) as connection:
        connection.sendall(first_request.encode())
        assert connection.recv(10_000)
        monkeypatch.setattr(protocol, "HEAD_S", 0.3)
        connection.settimeout(5)
        for _ in range(3):
            connection.sendall(stray)
            time.sleep(0.05)
        while connection.recv(10_000):
            pass


def test_slow_clients_do_not_delay_other_clients(served):
    with ExitStack() as stack:
        for n in range(100):
            slow = stack.enter_context(connected(served))
            head = f"POST {TEAM}/episodes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{{"
            slow.sendall(head[: 20 + n % 60].encode() if n % 2 else head.encode())
        client, began = served.client(), time.monotonic()
        assert client.post(f"{TEAM}/episodes", json={"text": "Hello"}).status_code == 202
        assert client.get("/healthz").status_code == 200
        assert time.monotonic() - began < 5


def open_streams(served, stack, count):
    """Open streams of events; return them."""
    results = []
    for _ in range(count):
        result = stack.enter_context(connected(served))
        result.sendall(f"GET {TEAM}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        results.append(result)
    for result in results:
        assert b" 200 " in result.recv(200)
    return results


@pytest.mark.parametrize("count", [40, pytest.param(1000, marks=pytest.mark.slow)])
def test_streams_are_bounded_and_other_requests_are_served(tmp_path, count):
    with serving(tmp_path / "data", bounds=Bounds(max_streams=count), ingests=False) as served:
        client = served.client()
        with ExitStack() as stack:
            open_streams(served, stack, count)
            one_more = client.get(f"{TEAM}/events")
            assert (one_more.status_code, one_more.json()["code"]) == (503, "overloaded")
            at_fault = (
                client.get(f"{TEAM}/events?since=x").status_code,
                client.get("/v1/groups/a b/events").status_code,
            )
            assert at_fault == (422, 422), "a retry would not help them"
            assert client.post(f"{TEAM}/episodes", json={"text": "Hello"}).status_code == 202
            assert client.get("/healthz").status_code == 200
        wait_for(lambda: served.door.streams == 0)
        with ExitStack() as stack:
            open_streams(served, stack, 1)


def test_concurrent_streams_are_bounded(tmp_path):
    with (
        serving(tmp_path / "data", bounds=Bounds(max_streams=5), ingests=False) as served,
        ExitStack() as stack,
    ):
        connections = [stack.enter_context(connected(served)) for _ in range(30)]
        for items in connections:
            items.sendall(f"GET {TEAM}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        heads = [item.recv(12).decode() for item in connections]
        assert (heads.count("HTTP/1.1 200"), heads.count("HTTP/1.1 503")) == (5, 25)


def test_the_cache_of_requested_groups_is_bounded(served, monkeypatch):
    monkeypatch.setattr(door, "HEADS", 10)
    monkeypatch.setattr(door, "HEAD_S", 0.0)
    monkeypatch.setattr(served.door, "ending", True)  # a stream ends after its first look
    client = served.client()
    for n in range(30):
        assert client.get(f"/v1/groups/g{n}/events").status_code == 200
    assert len(served.door._heads) <= 10


TARGETS = """
/v1/groups/team/status //v1/groups/team/status /v1//groups/team/status /v1/groups/team/status/
/v1/groups/other/../team/status /v1/groups/other%2f..%2fteam/status /v1/groups/other/%2e%2e/team/status
/v1/groups/team%00/status /v1/groups/team;other/status /v1/groups/%74eam/status /v1/groups/te%61m/episodes/s
/v1/groups/other/episodes/s /v1/groups/other/show/s /healthz/../v1/groups/team/episodes/s
/healthz/v1/groups/team/episodes/s /openapi.json/../v1/groups/team/dump /v1/groups/team/dump
/v1/groups/team/dump?group=other /v1/groups/other/dump?group=team /v1/groups/team/events
http://localhost/v1/groups/team/dump http://localhost/healthz/../v1/groups/team/dump
/v1/../v1/groups/team/dump
/mcp/team /mcp/../v1/groups/team/dump /mcp/other/../team /v1/groups/other%0d%0ax/dump * /metrics
""".split()


@pytest.mark.parametrize("target", TARGETS)
def test_no_path_bypasses_the_key(closed, target):
    for key in ("", f"Authorization: Bearer {closed.other_key}\r\n"):
        sent = f"GET {target} HTTP/1.1\r\nHost: localhost\r\n{key}Connection: close\r\n\r\n"
        result = answered(closed, sent.encode())
        status = int(result.split()[1])
        assert b"swordfish" not in result
        assert status < 500
        if not key:
            assert status in (400, 401, 404), result
        elif "/team" in target:
            assert status != 200, result


HEADERS = [
    "Host: localhost/healthz?", "Host: localhost/healthz#", "Host: localhost\r\nX-Original-URL: /healthz",
    "Host: localhost\r\nX-Rewrite-URL: /healthz", "Host: localhost\r\nX-HTTP-Method-Override: GET",
    "Host: localhost\r\nX-Forwarded-For: 127.0.0.1", "Host: localhost\r\nX-Forwarded-Prefix: /healthz",
    "Host: localhost\r\nAuthorization: Bearer", "Host: localhost\r\nAuthorization: Bearer kg__",
    "Host: localhost\r\nAuthorization: Basic a2c6a2c=", "Host: localhost\r\nAuthorization: Bearer \xff\xfe",
    "Host: localhost\r\nCookie: key=kg", "Host: localhost\r\nForwarded: for=127.0.0.1;host=localhost",
]  # fmt: skip


@pytest.mark.parametrize("headers", HEADERS)
def test_no_header_bypasses_the_key(closed, headers):
    for path in ("/dump", "/episodes/s", "/status"):
        sent = f"GET {TEAM}{path} HTTP/1.1\r\n{headers}\r\nConnection: close\r\n\r\n"
        result = answered(closed, sent.encode("latin-1"))
        assert int(result.split()[1]) in (400, 401, 421), result
        assert b"swordfish" not in result


ELSEWHERE = [
    "Host: evil.example", "Host: localhost@evil.example", "Host: localhost, evil.example", "Host:", "",
    "Host: localhost.evil.example", "Host: localhost\r\nOrigin: null",
    "Host: localhost\r\nOrigin: https://evil.example",
    "Host: localhost\r\nOrigin: http://localhost.evil.example", "Host: 127.0.0.1.nip.io",
    "Host: [::ffff:10.0.0.1]",
]  # fmt: skip


def test_other_origins_are_refused_without_a_key(served):
    body = json.dumps({"text": "x"})
    for headers in ELSEWHERE:
        head = "\r\n".join((f"POST {TEAM}/episodes HTTP/1.1", *headers.splitlines(), "Connection: close"))
        sent = f"{head}\r\nContent-Length: {len(body)}\r\n\r\n{body}"
        assert int(answered(served, sent.encode()).split()[1]) in (400, 421), headers
    assert served.memory.store.heads(["team"])["team"].last == 0


@pytest.mark.parametrize(
    "lengths",
    [
        "Content-Length: 5\r\nTransfer-Encoding: chunked", "Content-Length: 5\r\nContent-Length: 50",
        "Content-Length: -1", "Content-Length: 1e3", "Transfer-Encoding: xchunked",
    ],
)  # fmt: skip
def test_a_request_of_two_lengths_is_not_read_as_two_requests(closed, lengths):
    inner = f"GET {TEAM}/dump HTTP/1.1\r\nHost: localhost\r\n\r\n"
    sent = f"POST {TEAM}/search HTTP/1.1\r\nHost: localhost\r\n{lengths}\r\n\r\n0\r\n\r\n{inner}"
    result = answered(closed, sent.encode(), 1.0)
    assert b"swordfish" not in result
    assert b" 200 " not in result.partition(b"\r\n")[0]
