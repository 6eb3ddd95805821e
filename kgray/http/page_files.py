"""The page at `/`: the files that `make page` builds into `page/built`, with strict headers."""

from __future__ import annotations

import gzip
import hashlib
from functools import cache
from pathlib import Path

from fastapi import FastAPI, Request, Response
from starlette.responses import PlainTextResponse

BUILT = Path(__file__).parent / "page" / "built"
_MEDIA = {
    ".html": "text/html", ".js": "text/javascript", ".css": "text/css",
    ".txt": "text/plain", ".svg": "image/svg+xml",
}  # fmt: skip
# No third parties, no inline scripts or styles, no frames. `blob:` is for pictures that a user saves.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types kgray"
)
_STRICT = {
    "content-security-policy": _POLICY, "x-content-type-options": "nosniff", "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin", "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache", "vary": "accept-encoding",
}  # fmt: skip


def missing() -> str:
    """Return a line with the remedy if the page was not built; "" = it was built."""
    is_built = (BUILT / "index.html").exists()
    return (
        "" if is_built else "there is no page at /: `make page` in a checkout builds it; the rest is served"
    )


def add(app: FastAPI) -> None:
    """Add the routes of the page, which are not in the OpenAPI document."""

    async def index(request: Request) -> Response:
        return _answer(request, "index.html")

    async def file(request: Request) -> Response:
        return _answer(request, request.path_params["name"])

    app.add_route("/", index)
    app.add_route("/page/{name}", file)


def _answer(request: Request, name: str) -> Response:
    path = BUILT / name
    if not path.is_file() or path.parent != BUILT or path.suffix not in _MEDIA:
        return PlainTextResponse((missing() or f"there is no file {name!r}") + "\n", 404, _STRICT)
    plain, packed, tag = _content(path, path.stat().st_mtime_ns)
    headers = _STRICT | {"etag": tag}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    is_packed = "gzip" in request.headers.get("accept-encoding", "")
    headers |= {"content-encoding": "gzip"} if is_packed else {}
    return Response(packed if is_packed else plain, headers=headers, media_type=_MEDIA[path.suffix])


@cache
def _content(path: Path, _changed: int) -> tuple[bytes, bytes, str]:
    """Return a file's bytes, the compressed bytes, and their ETag."""
    plain = path.read_bytes()
    return plain, gzip.compress(plain, 9, mtime=0), f'W/"{hashlib.sha256(plain).hexdigest()[:24]}"'
