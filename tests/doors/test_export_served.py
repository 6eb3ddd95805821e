"""Exports over HTTP: tags, ranges, and the client that resumes."""

from __future__ import annotations

import io
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

import httpx2

import kgray
from kgray.errors import NoSpace
from kgray.io.interchange import gexf
from kgray.io.interchange.formats import FORMATS
from tests.doors.served import serving
from tests.waiting import HANGS_S, wait_for

EXPORT = "/v1/groups/team/export"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("exports") / "served") as server:
        with kgray.connect(server.url) as memory:
            memory.add("I work at Acme.", group="team", speaker="Alice", at="2026-01-01")
        yield server


def test_a_download_is_resumed_if_the_group_is_unchanged(served):
    client = served.client()
    complete = client.get(EXPORT, params={"to": "graphml"})
    tag = complete.headers["etag"]
    part = {"range": "bytes=100-", "if-range": tag}

    assert (complete.status_code, tag[0], complete.headers["content-type"]) == (
        200,
        '"',
        "application/graphml+xml",
    )
    resumed = client.get(EXPORT, params={"to": "graphml"}, headers=part)
    assert (resumed.status_code, resumed.content) == (206, complete.content[100:])
    assert client.get(EXPORT, params={"to": "graphml"}, headers={"if-none-match": tag}).status_code == 304
    other_format = client.get(EXPORT, params={"to": "gexf"}, headers=part)
    assert (other_format.status_code, other_format.headers["etag"] != tag) == (200, True)
    assert (
        client.get(EXPORT, params={"to": "graphml"}, headers={"range": "bytes=9999999-"}).status_code == 416
    )


@pytest.mark.parametrize("to", [name for name, form in FORMATS.items() if form.writer])
def test_the_ranges_of_each_format_form_the_complete_file(served, to):
    client = served.client()
    complete = client.get(EXPORT, params={"to": to})
    half = len(complete.content) // 2
    parts = [
        client.get(EXPORT, params={"to": to}, headers={"range": bytes_, "if-range": complete.headers["etag"]})
        for bytes_ in (f"bytes=0-{half - 1}", f"bytes={half}-")
    ]

    assert [part.status_code for part in parts] == [206, 206]
    assert b"".join(part.content for part in parts) == complete.content


def test_a_folder_is_downloaded_as_a_tar_of_the_same_bytes(served):
    client = served.client()
    first, second = (client.get(EXPORT, params={"to": "okf"}).content for _ in range(2))

    assert first == second
    with tarfile.open(fileobj=io.BytesIO(first)) as packed:
        assert {"index.md", "entities/index.md"} < set(packed.getnames())


def test_an_invalid_export_is_refused_in_one_line(served):
    client = served.client()
    for query, status in (
        ({"to": "word"}, 422), ({}, 422), ({"to": "okf", "as_of": "spring"}, 422),
        ({"to": "parquet", "as_of": "2026-01-01"}, 422),
    ):  # fmt: skip
        answer = client.get(EXPORT, params=query)
        assert (answer.status_code, answer.json()["detail"].count("\n")) == (status, 0), query
    assert client.get("/v1/groups/nobody/export", params={"to": "okf"}).status_code == 404
    reader = served.key("other", "read")
    assert served.client(reader).get(EXPORT, params={"to": "okf"}).status_code == 403


@pytest.mark.parametrize("to", ["okf", "jsonl", "graphrag"])
def test_the_client_and_the_library_write_equal_files(served, tmp_path, to):
    key = served.key("team", "read")
    with kgray.connect(served.url, key) as remote:
        remote_report = remote.export(tmp_path / "there", to=to, group="team", as_of="2026-02-01")
        with pytest.raises(kgray.InputError, match=r"is not empty|is there already"):
            remote.export(tmp_path / "there", to=to, group="team")
    with served.memory_now() as memory:
        local_report = memory.export(tmp_path / "here", to=to, group="team", as_of="2026-02-01")

    assert remote_report == local_report
    both = [
        {p.relative_to(tmp_path / side): p.read_bytes() for p in (tmp_path / side).rglob("*") if p.is_file()}
        or (tmp_path / side).read_bytes()
        for side in ("there", "here")
    ]
    assert both[0] == both[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "there"]


@contextmanager
def breaking_off(url, ranges):
    """Forward the answers of a server, only the first 1,000 bytes of each body, and record the ranges."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            ranges.append(self.headers.get("range"))
            answer = httpx2.get(
                url + self.path, headers={k: v for k, v in self.headers.items() if k != "Host"}
            )
            self.send_response(answer.status_code)
            for name in ("content-length", "content-type", "etag", "kgray-report"):
                self.send_header(name, answer.headers[name])
            self.end_headers()
            self.wfile.write(answer.content[:1000])

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def test_a_broken_download_is_resumed(served, tmp_path):
    key, ranges = served.key("team", "read"), []
    with breaking_off(served.url, ranges) as url, kgray.connect(url, key) as memory:
        memory.export(tmp_path / "there", to="graphml", group="team")
    with served.memory_now() as local:
        local.export(tmp_path / "here", to="graphml", group="team")

    assert (tmp_path / "there").read_bytes() == (tmp_path / "here").read_bytes()
    assert ranges[:3] == [None, "bytes=1000-", "bytes=2000-"]


class SlowWriter:
    """The writer of GEXF behind a gate. passes: how many times it has been called."""

    def __init__(self, monkeypatch):
        self.gate, self.passes, self.error, write = threading.Event(), 0, None, gexf.write

        def slow_write(snapshot, path):
            self.passes += 1
            assert self.gate.wait(HANGS_S)
            if self.error is not None:
                raise self.error
            return write(snapshot, path)

        monkeypatch.setattr(gexf, "write", slow_write)


@pytest.fixture
def slow(tmp_path, monkeypatch):
    """Yield a server that waits for an export for 50 ms, and its slow writer."""
    monkeypatch.setattr("kgray.server.exports.SWEEP_S", 0.05)
    with serving(tmp_path / "data") as server:
        with kgray.connect(server.url) as memory:
            memory.add("I work at Acme.", group="team", speaker="Alice", at="2026-01-01")
        server.app.state.exports.wait_s = 0.05
        writer = SlowWriter(monkeypatch)
        yield server, writer
        writer.gate.set()


GEXF = {"to": "gexf"}


def files_in(server):
    """Return the exported files of a server."""
    return [path for path in server.memory.data.glob("exports-*/*/*") if path.is_file()]


def test_a_long_export_continues_after_its_request(slow, tmp_path):
    server, writer = slow
    client = server.client()
    first, second = (client.get(EXPORT, params=GEXF) for _ in range(2))

    assert (first.status_code, second.status_code, writer.passes) == (503, 503, 1)
    assert (first.json()["code"], first.headers["retry-after"]) == ("unfinished", "1")
    writer.gate.set()
    wait_for(lambda: client.get(EXPORT, params=GEXF).status_code == 200)
    complete = client.get(EXPORT, params=GEXF)
    part = {"range": "bytes=50-", "if-range": complete.headers["etag"]}
    assert client.get(EXPORT, params=GEXF, headers=part).content == complete.content[50:]
    assert writer.passes == 1
    with server.memory_now() as local:
        local.export(tmp_path / "here", to="gexf", group="team")
    assert (tmp_path / "here").read_bytes() == complete.content


def test_the_client_waits_for_a_long_export_despite_its_patience(slow, tmp_path):
    server, writer = slow
    with (
        kgray.connect(server.url, patience_s=0) as memory,
        ThreadPoolExecutor() as threads,
    ):
        exporting = threads.submit(memory.export, tmp_path / "out", to="gexf", group="team")
        wait_for(lambda: server.door.metrics.registry.get_sample_value(REQUESTS, UNFINISHED) == 2)
        writer.gate.set()
        assert exporting.result(HANGS_S).rows["statement"] == 1
    assert writer.passes == 1


REQUESTS = "kgray_http_requests_total"
UNFINISHED = {"route": "/v1/groups/{group}/export", "method": "GET", "status": "503"}


def test_concurrent_readers_share_an_export(slow):
    server, writer = slow
    server.app.state.exports.wait_s = HANGS_S
    clients = [server.client() for _ in range(2)]
    with ThreadPoolExecutor() as threads:
        answers = [threads.submit(client.get, EXPORT, params=GEXF) for client in clients]
        wait_for(lambda: sum(export.users for export in server.app.state.exports.files()) == 2)
        writer.gate.set()
        first, second = (answer.result(HANGS_S) for answer in answers)

    assert (first.status_code, first.content) == (200, second.content)
    assert writer.passes == 1


def test_a_changed_group_is_exported_again_instead_of_a_resumed_download(slow):
    server, writer = slow
    client = server.client()
    writer.gate.set()
    server.app.state.exports.wait_s = HANGS_S
    earlier = client.get(EXPORT, params=GEXF)
    with kgray.connect(server.url) as memory:
        memory.add("I live in Bonn.", group="team", speaker="Alice", at="2026-02-01")
    part = {"range": "bytes=50-", "if-range": earlier.headers["etag"]}
    resumed = client.get(EXPORT, params=GEXF, headers=part)

    assert (resumed.status_code, b"Bonn" in resumed.content, writer.passes) == (200, True, 2)
    assert len(files_in(server)) == 1


def test_unused_files_and_files_of_a_removed_group_are_deleted(slow):
    server, writer = slow
    client, exports = server.client(), server.app.state.exports
    writer.gate.set()
    exports.wait_s = HANGS_S
    client.get(EXPORT, params=GEXF)
    assert len(files_in(server)) == 1
    assert client.delete("/v1/groups/team", params={"confirm": "team"}).status_code == 200
    wait_for(lambda: not files_in(server))
    with kgray.connect(server.url) as memory:
        memory.add("I work at Acme.", group="team", speaker="Alice", at="2026-01-01")
    client.get(EXPORT, params=GEXF)
    exports.kept_s = 0.05
    wait_for(lambda: not files_in(server))


def test_an_export_error_is_reported_once_and_the_next_request_retries(slow):
    server, writer = slow
    client, writer.error = server.client(), NoSpace("the disk is full")
    assert client.get(EXPORT, params=GEXF).status_code == 503
    writer.gate.set()
    wait_for(lambda: all(export.work.done() for export in server.app.state.exports.files()))
    failed, writer.error = client.get(EXPORT, params=GEXF), None
    wait_for(lambda: client.get(EXPORT, params=GEXF).status_code == 200)

    assert (failed.status_code, failed.json()["detail"]) == (507, "the disk is full")
    assert writer.passes == 2


def test_an_ending_server_stops_its_exports_and_deletes_their_files(tmp_path, monkeypatch):
    stale_file = tmp_path / "data" / "exports-7" / "0" / "team.gexf"
    stale_file.parent.mkdir(parents=True)
    stale_file.touch()  # by a killed server
    with serving(tmp_path / "data") as server:
        wait_for(lambda: not stale_file.exists())
        with kgray.connect(server.url) as memory:
            memory.add("I work at Acme.", group="team", speaker="Alice", at="2026-01-01")
        writer, exports = SlowWriter(monkeypatch), server.app.state.exports
        exports.wait_s = 0.05
        server.client().get(EXPORT, params=GEXF)
        (export,) = exports.files()
        opened_gate = threading.Timer(0.2, writer.gate.set)
        opened_gate.start()
    opened_gate.join()

    assert isinstance(export.work.exception(), kgray.errors.Stopped)
    assert not list((tmp_path / "data").glob("exports-*"))
