"""A server on loopback that speaks a part of S3's protocol: HEAD, GET of a range, lists, PUT in parts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

CHANGED = 1_780_000_000  # the time of change of every object, in seconds


class Bucket(ThreadingHTTPServer):
    """Objects by "bucket/key", and the requests for them.

    parts    of objects that are being written, by the number of the part: no object before they are joined
    broken   number of bytes sent or received after which every request is answered 503; None = never
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.objects: dict[str, bytes] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        self.sent = 0
        self.broken: int | None = None

    def url(self, path: str) -> str:
        """Return the URL of an object, or of all whose keys begin so."""
        host = f"127.0.0.1%3A{self.server_address[1]}"
        return f"s3://{path}?endpoint_override={host}&scheme=http&region=us-east-1"


class _Request(BaseHTTPRequestHandler):
    server: Bucket
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def path_and_query(self) -> tuple[str, dict[str, list[str]]]:
        """Return "bucket/key", and the parameters."""
        parts = urlsplit(self.path)
        return unquote(parts.path).strip("/"), parse_qs(parts.query, keep_blank_values=True)

    def is_broken(self) -> bool:
        """Return True if the request was answered with an outage."""
        broken = self.server.broken is not None and self.server.sent >= self.server.broken
        if broken:
            self.answer(503, b"<Error><Code>SlowDown</Code></Error>")
        return broken

    def do_PUT(self) -> None:
        path, query = self.path_and_query()
        body = self.content()
        self.server.sent += len(body)
        if self.is_broken():
            return
        self.server.parts[path][int(query["partNumber"][0])] = body
        self.answer(200, b"")

    def do_POST(self) -> None:
        path, query = self.path_and_query()
        self.content()
        if self.is_broken():
            return
        if "uploads" in query:
            self.server.parts[path] = {}
            self.answer(200, _xml("InitiateMultipartUploadResult", "<UploadId>u</UploadId>"))
        else:
            parts = self.server.parts.pop(path)
            self.server.objects[path] = b"".join(parts[number] for number in sorted(parts))
            self.answer(200, _xml("CompleteMultipartUploadResult", "<ETag>e</ETag>"))

    def content(self) -> bytes:
        """Return the body; the client must have AWS_REQUEST_CHECKSUM_CALCULATION=when_required."""
        return self.rfile.read(int(self.headers["Content-Length"]))

    def do_GET(self) -> None:
        path, query = self.path_and_query()
        body = self.server.objects.get(path)
        if self.is_broken():
            return
        if "list-type" in query:
            self.answer(200, self.listed(path, query.get("prefix", [""])[0]))
        elif body is None:
            self.answer(404, b"")
        else:
            first, last = 0, len(body) - 1
            if byte_range := self.headers.get("Range"):
                first, last = (int(n) for n in byte_range.removeprefix("bytes=").split("-"))
            part = body[first : last + 1]
            self.server.sent += len(part) if self.command == "GET" else 0
            self.answer(206 if byte_range else 200, part)

    def listed(self, bucket: str, prefix: str) -> bytes:
        """Return the list of the keys that begin with a prefix."""
        keys = [name.removeprefix(f"{bucket}/") for name in sorted(self.server.objects)]
        matches = [key for key in keys if key.startswith(prefix)]
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.server.objects[f'{bucket}/{key}'])}</Size>"
            f"<LastModified>2026-05-28T20:26:40.000Z</LastModified></Contents>"
            for key in matches
        )
        summary = f"<KeyCount>{len(matches)}</KeyCount><IsTruncated>false</IsTruncated>"
        return f"<ListBucketResult>{summary}{rows}</ListBucketResult>".encode()

    def answer(self, status: int, body: bytes) -> None:
        """Send an answer."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Last-Modified", formatdate(CHANGED, usegmt=True))
        self.send_header("ETag", '"e"')
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _xml(name: str, content: str) -> bytes:
    return f"<{name}>{content}</{name}>".encode()


@contextmanager
def served() -> Iterator[Bucket]:
    """Serve inside the block."""
    server = Bucket()
    serving = threading.Thread(target=server.serve_forever, args=(0.05,))
    serving.start()
    try:
        yield server
    finally:
        server.shutdown()
        serving.join()
        server.server_close()
