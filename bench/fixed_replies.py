"""A model's server that gives the same reply to every request: `python -m bench.fixed_replies PORT`."""

from __future__ import annotations

import json
import sys
from typing import Any, Self

from bench.processes import ChildProcess, free_port
from kgray.errors import KgrayError

_FACT = {
    "source": 0, "target": 1, "relation": "WORKS_AT", "fact": "Alice works at Acme", "kind": "holds",
    "valid_at": "2018", "invalid_at": None, "value": None,
}  # fmt: skip
_REPLY = json.dumps({"entities": [{"name": "Alice", "type": "Person"}] * 6, "facts": [_FACT] * 4})
PIECES = 160  # of a stream


class FixedReplies(ChildProcess):
    """The process; ends with the `with` block."""

    def __init__(self) -> None:
        port = free_port()
        super().__init__("bench.fixed_replies", [str(port)])
        self.base_url = f"http://127.0.0.1:{port}/v1"

    def __enter__(self) -> Self:
        """Start it; it answers on return. Raises KgrayError where it does not start."""
        self.start()
        if self._process is None or self._process.stdout is None or not self._process.stdout.readline():
            raise KgrayError("the server of fixed replies did not start: standard error says why")
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def app() -> Any:  # noqa: ANN401 - an application of ASGI
    """Return the application: each reply is complete, or in pieces if the request wants a stream."""
    usage = {"prompt_tokens": 1000, "completion_tokens": PIECES}
    message = {"message": {"role": "assistant", "content": _REPLY}, "finish_reason": "stop"}
    complete = [json.dumps({"choices": [message], "usage": usage}).encode()]
    size = -(-len(_REPLY) // PIECES)
    deltas: list[dict[str, str]] = [{"content": _REPLY[at : at + size]} for at in range(0, len(_REPLY), size)]
    chunks: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    chunks += [{"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}]
    chunks += [{"choices": [], "usage": usage}]
    events = [b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in chunks] + [b"data: [DONE]\n\n"]

    async def answer(_: Any, receive: Any, send: Any) -> None:  # noqa: ANN401 - ASGI
        request, is_open = b"", True
        while is_open:
            part = await receive()
            request, is_open = request + part["body"], part.get("more_body", False)
        streams = b'"stream"' in request
        kind = b"text/event-stream" if streams else b"application/json"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
        for event in events if streams else complete:
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    return answer


def main(port: int) -> None:
    """Serve until the process is ended; prints a line once it answers."""
    import uvicorn

    class _Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:  # noqa: ANN401 - uvicorn's
            await super().startup(sockets)
            print(port, flush=True)  # noqa: T201 - the parent reads it

    _Server(uvicorn.Config(app(), port=port, lifespan="off", log_level="error", access_log=False)).run()


if __name__ == "__main__":
    main(int(sys.argv[1]))
