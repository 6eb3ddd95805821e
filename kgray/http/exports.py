"""`GET /export`: a group in another tool's format, as one file whose download can be resumed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from threading import Event
from typing import Annotated, Any

from anyio import CancelScope, to_thread
from fastapi import Query, Request, Response
from starlette.responses import FileResponse
from starlette.types import Receive, Scope, Send

from kgray import __version__, kinds
from kgray.http.door import At, Door
from kgray.http.models import Group, MomentOf
from kgray.interchange.exporting import pack
from kgray.interchange.formats import Report, format_called

_TRIES = 3  # while the group is written
_TAR = "application/x-tar"


async def export(
    door: At, request: Request, group: Group, to: Annotated[str, Query(max_length=40)],
    as_of: MomentOf = None, known_at: MomentOf = None,
) -> Response:  # fmt: skip
    """Return a group in a format; several files form a .tar. Range with If-Range resumes a download."""
    chosen = format_called(to, "writer")
    tag = await door.call(_tag, door, request, group)
    if tag in (request.headers.get("if-none-match") or ""):
        return Response(status_code=304, headers=_headers(tag))
    folder, abandoned = Path(mkdtemp(prefix="kgray-export-")), Event()
    file = folder / f"{group}{chosen.suffix or '.tar'}"

    async def export() -> Report:  # `Door.read` finds this name in _LONG
        """Write the file, in a thread that continues if the client disconnects."""
        try:
            part = file if chosen.suffix else folder / "files"
            report = await door.memory.export(part, to=to, group=group, as_of=as_of, known_at=known_at)
            if chosen.is_folder:
                pack(part, file, door.memory.store.heads([group])[group].last_recorded)
                rmtree(part)
            return report
        finally:
            if abandoned.is_set():
                rmtree(folder, ignore_errors=True)

    try:
        for _ in range(_TRIES):
            report = await door.read(export)
            earlier_tag, tag = tag, await door.call(_tag, door, request, group)
            if earlier_tag == tag:
                break
            file.unlink()
        else:  # the group changes all the time: no download can be resumed
            report, tag = await door.read(export), ""
    except BaseException:
        abandoned.set()
        rmtree(folder, ignore_errors=True)
        raise
    headers = _headers(tag) | {"kgray-report": json.dumps(report.as_dict())}
    return _Temporary(file, media_type=chosen.media or _TAR, filename=file.name, headers=headers)


class _Temporary(FileResponse):
    """A file that is deleted with its folder after the answer, also after a failed answer."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, then delete the file."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            with CancelScope(shield=True):
                await to_thread.run_sync(lambda: rmtree(Path(self.path).parent, ignore_errors=True))


def _tag(door: Door, request: Request, group: str) -> str:
    """Return the strong tag of an export: a hash of the group's state and the query."""
    store = door.memory.store
    runs = [row.run for row in store.rows(kinds.COMMUNITY_RUNS.all, group)]
    about = f"{__version__} {store.heads([group])[group]} {runs} {request.scope['query_string']!r} {group}"
    return f'"{hashlib.sha256(about.encode()).hexdigest()[:32]}"'


def _headers(tag: str) -> dict[str, Any]:
    return {"cache-control": "private, no-cache"} | ({"etag": tag} if tag else {})
