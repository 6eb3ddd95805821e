"""Exports over HTTP: tags, ranges, and the client that resumes."""

from __future__ import annotations

import io
import tarfile
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

import httpx2

import kgray
from kgray.io.interchange.formats import FORMATS
from tests.doors.served import serving

EXPORT = "/v1/groups/team/export"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("exports") / "served") as server:
        with kgray.connect(server.url) as memory:
            memory.add("I work at Acme.", group="team", speaker="Alice", at="2026-01-01")
        yield server


def test_a_download_is_resumed_while_the_group_is_the_same(served):
    client = served.client()
    whole = client.get(EXPORT, params={"to": "graphml"})
    tag = whole.headers["etag"]
    part = {"range": "bytes=100-", "if-range": tag}

    assert (whole.status_code, tag[0], whole.headers["content-type"]) == (200, '"', "application/graphml+xml")
    resumed = client.get(EXPORT, params={"to": "graphml"}, headers=part)
    assert (resumed.status_code, resumed.content) == (206, whole.content[100:])
    assert client.get(EXPORT, params={"to": "graphml"}, headers={"if-none-match": tag}).status_code == 304
    other = client.get(EXPORT, params={"to": "gexf"}, headers=part)
    assert (other.status_code, other.headers["etag"] != tag) == (200, True)
    assert (
        client.get(EXPORT, params={"to": "graphml"}, headers={"range": "bytes=9999999-"}).status_code == 416
    )


@pytest.mark.parametrize("to", [name for name, form in FORMATS.items() if form.writer])
def test_a_range_of_each_format_is_part_of_the_whole(served, to):
    client = served.client()
    whole = client.get(EXPORT, params={"to": to})
    half = len(whole.content) // 2
    parts = [
        client.get(EXPORT, params={"to": to}, headers={"range": bytes_, "if-range": whole.headers["etag"]})
        for bytes_ in (f"bytes=0-{half - 1}", f"bytes={half}-")
    ]

    assert [part.status_code for part in parts] == [206, 206]
    assert b"".join(part.content for part in parts) == whole.content


def test_a_folder_comes_as_a_tar_of_the_same_bytes(served):
    client = served.client()
    first, second = (client.get(EXPORT, params={"to": "okf"}).content for _ in range(2))

    assert first == second
    with tarfile.open(fileobj=io.BytesIO(first)) as packed:
        assert {"index.md", "entities/index.md"} < set(packed.getnames())


def test_what_cannot_be_exported_is_refused_in_one_line(served):
    client = served.client()
    for asked, status in (
        ({"to": "word"}, 422), ({}, 422), ({"to": "okf", "as_of": "spring"}, 422),
        ({"to": "parquet", "as_of": "2026-01-01"}, 422),
    ):  # fmt: skip
        answer = client.get(EXPORT, params=asked)
        assert (answer.status_code, answer.json()["detail"].count("\n")) == (status, 0), asked
    assert client.get("/v1/groups/nobody/export", params={"to": "okf"}).status_code == 404
    reader = served.key("other", "read")
    assert served.client(reader).get(EXPORT, params={"to": "okf"}).status_code == 403


@pytest.mark.parametrize("to", ["okf", "jsonl", "graphrag"])
def test_the_client_writes_what_the_library_writes(served, tmp_path, to):
    key = served.key("team", "read")
    with kgray.connect(served.url, key) as remote:
        there = remote.export(tmp_path / "there", to=to, group="team", as_of="2026-02-01")
        with pytest.raises(kgray.InputError, match=r"is not empty|is there already"):
            remote.export(tmp_path / "there", to=to, group="team")
    with served.memory_now() as memory:
        here = memory.export(tmp_path / "here", to=to, group="team", as_of="2026-02-01")

    assert there == here
    both = [
        {p.relative_to(tmp_path / side): p.read_bytes() for p in (tmp_path / side).rglob("*") if p.is_file()}
        or (tmp_path / side).read_bytes()
        for side in ("there", "here")
    ]
    assert both[0] == both[1]
    assert sorted(one.name for one in tmp_path.iterdir()) == ["here", "there"]


@contextmanager
def breaking_off(url, asked):
    """Serve what another server answers, of each body the first 1,000 bytes, and note the ranges."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.headers.get("range"))
            there = httpx2.get(
                url + self.path, headers={k: v for k, v in self.headers.items() if k != "Host"}
            )
            self.send_response(there.status_code)
            for name in ("content-length", "content-type", "etag", "kgray-report"):
                self.send_header(name, there.headers[name])
            self.end_headers()
            self.wfile.write(there.content[:1000])

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def test_a_broken_download_goes_on_where_it_was(served, tmp_path):
    key, asked = served.key("team", "read"), []
    with breaking_off(served.url, asked) as url, kgray.connect(url, key) as memory:
        memory.export(tmp_path / "there", to="graphml", group="team")
    with served.memory_now() as local:
        local.export(tmp_path / "here", to="graphml", group="team")

    assert (tmp_path / "there").read_bytes() == (tmp_path / "here").read_bytes()
    assert asked[:3] == [None, "bytes=1000-", "bytes=2000-"]
