"""A real HTTP server on loopback that speaks OpenAI's interface and answers as a test says."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from kgray.models.openai_api.dialects import DIALECTS
from kgray.models.prompting.prompts import REPAIR_LINE

_SECTION = re.compile(r"<([A-Z]+)>\n([^\n]*)\n</\1>(?:\n|$)")


def sections(text: str) -> dict[str, Any]:
    """Return tag -> data of the sections of a text, as `section` makes them. Raises ValueError."""
    text = text.removesuffix(REPAIR_LINE)
    results: dict[str, Any] = {}
    at = 0
    for match in _SECTION.finditer(text):
        if match.start() != at or match[1] in results:
            raise ValueError("a section occurs twice, or there is text between two sections")
        results[match[1]] = json.loads(match[2])
        at = match.end()
    if text[at:].strip():
        raise ValueError("there is text behind the last section")
    return results


class _Server(ThreadingHTTPServer):
    """A server that says nothing of a client that hangs up: a run that ends does."""

    allow_reuse_port = True  # a test may hold the port meanwhile, so that no other process gets it

    def handle_error(self, request: object, client_address: object) -> None:
        """Pass over a connection that broke."""


@dataclass
class Asked:
    """One request as it arrived."""

    path: str
    key: str
    body: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict)  # by names in lower case
    at: float = field(default_factory=time.monotonic)

    @property
    def task(self) -> str:
        schema = self.body.get("response_format", {}).get("json_schema")
        if schema:
            return str(schema["name"])
        told = self.body["messages"][0]["content"].rpartition("Reply schema ")[2]
        return str(told.partition(":")[0])

    @property
    def schema(self) -> dict[str, Any]:
        return self.body["response_format"]["json_schema"]["schema"]

    @property
    def head(self) -> str:
        return str(self.body["messages"][0]["content"])

    @property
    def data(self) -> str:
        return str(self.body["messages"][1]["content"])

    @property
    def sections(self) -> dict[str, Any]:
        return sections(self.data)


@dataclass
class Say:
    """What the server sends. text: the message; raw: a whole body instead; usage None: left out."""

    text: str = ""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    finish: str = "stop"
    usage: tuple[int, int] | None = (100, 20)
    refusal: str | None = None
    raw: bytes | None = None
    delay: float = 0.0
    cut_connection: bool = False
    pieces: Iterable[str] | None = None  # streams these instead of `text`; may wait between two of them

    def events(self) -> Iterator[bytes]:
        """Yield the events of a stream, its usage last."""
        for piece in self.pieces or ():
            yield _event({"choices": [{"index": 0, "delta": {"content": piece}}]})
        yield _event({"choices": [{"index": 0, "delta": {}, "finish_reason": self.finish}]})
        if self.usage:
            prompt, completion = self.usage
            yield _event({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}})
        yield b"data: [DONE]\n\n"

    def body(self) -> bytes:
        if self.raw is not None:
            return self.raw
        if self.status != 200:
            return json.dumps({"error": {"message": self.text or "no", "type": "x", "code": None}}).encode()
        message = {"role": "assistant", "content": self.text, "refusal": self.refusal}
        told: dict[str, Any] = {
            "id": "c",
            "object": "chat.completion",
            "created": 0,
            "model": "m",
            "choices": [{"index": 0, "finish_reason": self.finish, "message": message}],
        }
        if self.usage:
            prompt, completion = self.usage
            told["usage"] = {
                "prompt_tokens": prompt,
                "completion_tokens": completion,
                "total_tokens": prompt + completion,
            }
        return json.dumps(told).encode()


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def as_json(reply: Any) -> Say:
    return Say(json.dumps(reply, ensure_ascii=False))


def at(address: str, section: str = "MODEL") -> dict[str, str]:
    """Return the settings that name a server for the model, the embedder or the reranker."""
    own = {"BACKEND": "openai", "NAME": "m", "BASE_URL": address}
    more = {"EMBEDDER": {"DIMENSIONS": "64"}, "RERANKER": {"BACKEND": "http"}}.get(section, {})
    return {f"KGRAY_{section}_{name}": value for name, value in (own | more).items()}


NOTHING = as_json({"entities": [], "facts": []})
PROBED = {"probe": "kgray-7", "numbers": [1]}
Answerer = Callable[[Asked], Say]


class ChatServer:
    """Serves until `close`; probes are obeyed unless `probe` says otherwise."""

    def __init__(self, answer: Answerer, probe: Answerer | None = None, *, port: int = 0) -> None:
        self.answer = answer
        self.probe = probe or (lambda _: as_json(PROBED))
        self.asked: list[Asked] = []
        self.probes: list[Asked] = []
        self.most_at_once = 0
        self._now = 0
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", port), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        DIALECTS.clear()  # the port may have been another server's, of which something is known

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def tasks(self) -> list[str]:
        return [item.task for item in self.asked]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        door = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers["content-length"]))
                lowered = {name.lower(): text for name, text in self.headers.items()}
                key = lowered.get("authorization", "").removeprefix("Bearer ")
                say = door._say(Asked(self.path, key, json.loads(raw), lowered))
                if say.cut_connection:
                    self.close_connection = True
                    self.connection.close()
                    return
                if say.pieces is not None:
                    self._stream(say)
                    return
                body = say.body()
                self.send_response(say.status)
                for name, value in {"content-type": "application/json", **say.headers}.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                try:
                    self.wfile.write(body)
                except OSError:
                    self.close_connection = True  # the client had waited long enough

            def _stream(self, say: Say) -> None:
                """Send events in chunks; a `pieces` that raises ConnectionError breaks the connection."""
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.send_header("transfer-encoding", "chunked")
                self.end_headers()
                try:
                    for event in say.events():
                        self.wfile.write(b"%x\r\n%b\r\n" % (len(event), event))
                    self.wfile.write(b"0\r\n\r\n")
                except OSError:
                    self.close_connection = True

            def log_message(self, *_: Any) -> None:
                return

        return Handler

    def _say(self, asked: Asked) -> Say:
        chats = asked.path.partition("?")[0].endswith("/chat/completions")
        is_probe = chats and asked.task == "probe"
        with self._lock:
            (self.probes if is_probe else self.asked).append(asked)
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
        try:
            say = (self.probe if is_probe else self.answer)(asked)
            time.sleep(say.delay)
            return say
        finally:
            with self._lock:
                self._now -= 1
