"""`GET /export`: a group in another tool's format, as one file whose download can be resumed.

Requests for the same file share it. A thread writes the file. A request waits for a bounded time, then its
answer is 503, and the thread goes on, so that a later request gets the file. The file stays for a while after
its last download.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from threading import Event
from typing import Annotated, Any

from anyio import CapacityLimiter, to_thread
from fastapi import Query, Request, Response
from starlette.responses import FileResponse
from starlette.types import Receive, Scope, Send

from kgray import __version__
from kgray.errors import KgrayError, Locked
from kgray.io.interchange.exporting import pack, state_of
from kgray.io.interchange.formats import Report, format_called
from kgray.memory import AsyncMemory
from kgray.ports.ingest import Stop
from kgray.server.door import LONGEST_S, At
from kgray.server.handlers import Prefer, wait_of
from kgray.server.models import Group, MomentOf
from kgray.server.problems import Overloaded, Unfinished
from kgray.system import locks
from kgray.system.spans import span

_THREADS = 2  # files that are written at the same time
_MOST = 16  # files that are written or kept
_KEPT_S = 300.0  # a file stays after its last download
# For 10 s after it is written, a file that no request has received serves the next request, even if the group
# has changed.
_CLAIM_S = 10.0
SWEEP_S = 5.0  # between two looks for files to delete
_TAR = "application/x-tar"
Key = tuple[str, str]  # group, query
Write = Callable[[Path, Stop], Report]  # into a new folder


@dataclass(slots=True, eq=False)
class Export:
    """A file that is written or kept. users: the requests that wait for it or read it."""

    key: Key
    path: Path
    work: asyncio.Future[Report]
    since: float = field(default_factory=time.monotonic)
    used_at: float = field(default_factory=time.monotonic)
    users: int = 0
    is_claimed: bool = False

    @property
    def tag(self) -> str:
        """The strong tag of the written file."""
        return tag_of(self.key, self.work.result().state)


class Exports:
    """The exported files of one server, in a folder that only its owner can read."""

    def __init__(self, memory: AsyncMemory) -> None:
        self._memory, self._data = memory, memory.data
        self.wait_s, self.kept_s = LONGEST_S, _KEPT_S
        self._exports: dict[Key, Export] = {}
        self._names, self._ending = count(), Event()
        self._stack = ExitStack()
        self._folder: Path | None = None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Delete unused files while the server serves; at the end, stop all work and delete all files."""
        if self._data is not None:
            for left in self._data.glob("exports-*"):  # by a killed server
                with suppress(KgrayError), locks.staging(left):
                    pass  # `staging` deletes the folder at its end
        self._threads = CapacityLimiter(_THREADS)
        sweeping = asyncio.create_task(self._sweep())
        try:
            yield
        finally:
            sweeping.cancel()
            self._ending.set()
            await asyncio.gather(*(entry.work for entry in self.files()), return_exceptions=True)
            await to_thread.run_sync(self._stack.close)

    async def get(self, key: Key, state: str, write: Write, wait_s: float | None) -> Export:
        """Return the file of a key, and count the request in its `users`; write a missing or stale file.

        Raises Unfinished after `wait_s`, Overloaded, and the errors of `write`.
        """
        export = self._exports.get(key)
        if export is not None and export.work.done() and not _serves(export, tag_of(key, state)):
            self._drop(export)
            export = None
        if export is None:
            export = self._started(key, write)
        export.users += 1
        try:
            async with asyncio.timeout(self.wait_s if wait_s is None else min(wait_s, self.wait_s)):
                await asyncio.shield(export.work)
        except BaseException as error:
            export.users -= 1
            if isinstance(error, TimeoutError) and not export.work.done():
                raise Unfinished(time.monotonic() - export.since) from None
            if export.work.done():  # it failed
                self._drop(export)
            raise
        export.is_claimed = True
        return export

    def _started(self, key: Key, write: Write) -> Export:
        if len(self._exports) >= _MOST:
            unused = [entry for entry in self.files() if entry.work.done() and not entry.users]
            if not unused:
                raise Overloaded(f"{_MOST} exports are written or downloaded: try again", wait_s=30)
            self._drop(min(unused, key=lambda entry: entry.used_at))
        if self._folder is None:
            self._folder = self._own_folder()
        path = self._folder / str(next(self._names))

        work = to_thread.run_sync(write, path, self._ending.is_set, limiter=self._threads)
        started = Export(key, path, asyncio.ensure_future(work))

        def ended(task: asyncio.Future[Report]) -> None:
            started.used_at = time.monotonic()
            _ = task.cancelled() or task.exception()  # perhaps no request waits for it

        started.work.add_done_callback(ended)
        self._exports[key] = started
        return started

    def _own_folder(self) -> Path:
        """Return a folder for this server alone. If this server is killed, a later server deletes it."""
        if self._data is None:
            return Path(self._stack.enter_context(TemporaryDirectory(prefix="kgray-export-")))
        for number in count():
            with suppress(Locked):
                return self._stack.enter_context(locks.staging(self._data / f"exports-{number}"))
        raise AssertionError

    def files(self) -> list[Export]:
        """Return the files that are written or kept."""
        return list(self._exports.values())

    def release(self, export: Export) -> None:
        """End the use of a file by a request."""
        export.users -= 1
        export.used_at = time.monotonic()
        if self._exports.get(export.key) is not export:  # another state has replaced it
            self._drop(export)

    def _drop(self, export: Export) -> None:
        if self._exports.get(export.key) is export:
            del self._exports[export.key]
        if not export.users:
            rmtree(export.path, ignore_errors=True)

    async def _sweep(self) -> None:
        """Delete files without a recent request, and files of an earlier state of their group."""
        while True:
            await asyncio.sleep(min(SWEEP_S, self.kept_s))
            for export in [entry for entry in self.files() if entry.work.done() and not entry.users]:
                with suppress(KgrayError):
                    state = await to_thread.run_sync(state_of, self._memory.store, export.key[0])
                    is_old = time.monotonic() - export.used_at >= self.kept_s
                    if not export.users and (is_old or not _serves(export, tag_of(export.key, state))):
                        self._drop(export)


def _serves(export: Export, tag: str) -> bool:
    """Return whether an ended export answers a request for the file with this tag."""
    if not export.is_claimed and time.monotonic() - export.used_at < _CLAIM_S:
        return True  # also a failure: a request must learn it
    return export.work.exception() is None and export.tag == tag


def tag_of(key: Key, state: str) -> str:
    """Return the strong tag of an export: a hash of the group's state and the query."""
    about = f"{__version__} {state} {key}"
    return f'"{hashlib.sha256(about.encode()).hexdigest()[:32]}"'


async def export(
    door: At, request: Request, group: Group, to: Annotated[str, Query(max_length=40)],
    as_of: MomentOf = None, known_at: MomentOf = None, prefer: Prefer = None,
) -> Response:  # fmt: skip
    """Return a group in a format; several files form a .tar. Range with If-Range resumes a download.

    A request waits for the file for a minute, or as `Prefer: wait=N` says; then the answer is 503, and a
    later request finds the work continued.
    """
    format_, exports = format_called(to, "writer"), request.app.state.exports
    key = group, str(request.scope["query_string"])
    state = await door.call(state_of, door.memory.store, group)
    tag = tag_of(key, state)
    if tag in (request.headers.get("if-none-match") or ""):
        return Response(status_code=304, headers=_headers(tag))
    name = f"{group}{format_.suffix or '.tar'}"

    def write(path: Path, stop: Stop) -> Report:
        path.mkdir(mode=locks.OWNER_FOLDER)
        part = path / (name if format_.suffix else "files")
        arguments: dict[str, Any] = {"to": to, "group": group, "as_of": as_of, "known_at": known_at}
        with span("kgray export"):
            report = asyncio.run(door.memory.export(part, stop=stop, **arguments))
            if format_.is_folder:
                pack(part, path / name, report.recorded_at)
                rmtree(part)
        return report

    ready = await exports.get(key, state, write, wait_of(prefer))
    headers = _headers(ready.tag) | {"kgray-report": json.dumps(ready.work.result().as_dict())}
    answer = _Shared(ready.path / name, media_type=format_.media or _TAR, filename=name, headers=headers)
    answer.on_end = partial(exports.release, ready)
    return answer


class _Shared(FileResponse):
    """A file whose use ends with the answer, also with a failed one."""

    on_end: Callable[[], None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, then end the use of the file."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.on_end()


def _headers(tag: str) -> dict[str, Any]:
    return {"cache-control": "private, no-cache", "etag": tag}
