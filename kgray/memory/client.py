"""`kgray.connect(url, key)`: the methods of `kgray.open`, over HTTP (docs/serving.md)."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from functools import cached_property, wraps
from http.client import HTTPException
from inspect import getmembers, iscoroutinefunction, signature
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Unpack, cast
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import HTTPHandler, HTTPSHandler, OpenerDirector, ProxyHandler, Request

from kgray import errors
from kgray.domain.times import from_datetime, show
from kgray.errors import Denied, InputError, KgrayError, Unavailable
from kgray.io.intake.drafts import Refusal
from kgray.io.interchange.exporting import check_free, unpack
from kgray.io.interchange.formats import Report as Exported
from kgray.io.interchange.formats import format_called
from kgray.memory import AsyncMemory, Memory, Report
from kgray.memory.admin import AsyncAdmin, AsyncCommunities
from kgray.memory.ingesting import Item
from kgray.memory.options import AskOptions, When
from kgray.memory.remote import VERBS, read_answer, read_result
from kgray.memory.results import GroupSize
from kgray.ports.ingest import OnStep, Stop, ignore, never
from kgray.search import Filters
from kgray.search.answering import Answered
from kgray.system import locks

_WAIT_S = 30  # the longest wait of `add` in a request
_PORTION = 500  # rows of one request
_PIECE = 1 << 20  # bytes of a download at a time
_PARTIAL = 206  # a part was answered, as asked
_COUNTS = ("accepted", "duplicate", "committed", "failed", "pending")
# Codes of problems whose class is the server's own.
_CLASSES: Mapping[str, type[KgrayError]] = {
    "malformed": InputError, "too_large": InputError, "conflict": InputError,
    "forbidden": Denied, "misdirected": Denied, "overloaded": Unavailable, "too_many": Unavailable,
    "unfinished": Unavailable,
}  # fmt: skip

_ORDERED = frozenset({"merge", "distinct", "split", "undo"})  # they take their place in a group's order
_IN_PATH = re.compile(r"{(\w+)}")
_FUNCTIONS = frozenset({"stop", "on_step", "on_group"})  # a server calls none


def connect(
    url: str, key: str | None = None, *, timeout_s: float = 120.0, patience_s: float = 60.0
) -> Memory:
    """Return the memory of a server; its methods block.

        with kgray.connect("http://localhost:8321", key) as memory:
            memory.add("I work at Acme now", group="demo", speaker="Alice")

    timeout_s   seconds to wait for an answer
    patience_s  seconds during which a request is repeated while the server is overloaded
    Raises InputError for an invalid URL. Methods raise the errors of `kgray.open`'s; Denied without a key
    that allows the request, Unavailable without an answer, InputError where the store itself is needed.
    """
    return Memory(connect_async(url, key, timeout_s=timeout_s, patience_s=patience_s))


def connect_async(
    url: str, key: str | None = None, *, timeout_s: float = 120.0, patience_s: float = 60.0
) -> AsyncMemory:
    """Return the memory of a server; its methods are awaited. Arguments and errors: as of `connect`."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(f"{url!r} is no address of a server: use http://HOST:PORT")
    return RemoteMemory(url.rstrip("/"), key, timeout_s=timeout_s, patience_s=patience_s)


class RemoteMemory(AsyncMemory):
    """A memory behind a server. It sends the methods of VERBS and refuses the others."""

    def __init__(self, url: str, key: str | None, *, timeout_s: float, patience_s: float) -> None:
        self._url, self._key = url, key
        self._timeout_s, self._patience_s = timeout_s, patience_s

    @cached_property
    def communities(self) -> AsyncCommunities:
        """The communities of the groups: list and get."""
        return _RemoteCommunities(self)

    @cached_property
    def admin(self) -> AsyncAdmin:
        """The suggestions for the ontology."""
        return _RemoteAdmin(self)

    async def add_many(
        self, items: Iterable[Item | Mapping[str, Any]], *, group: str | None = None,
        replace: bool = False, again: bool = False, accept_only: bool = False,
        on_step: OnStep = ignore, stop: Stop = never,
    ) -> Report:  # fmt: skip
        """Add rows, and wait until they are ingested unless `accept_only`; see `AsyncMemory.add_many`.

        Raises InputError without a group, and for functions, since a server calls none.
        """
        if group is None:
            raise InputError("a server's memory needs a group: give group=", field="group")
        if (on_step, stop) != (ignore, never):
            raise InputError("a server calls no functions: leave out on_step and stop")
        rows, total, refused = list(items), dict[str, Any](), list[Refusal]()
        headers = {} if accept_only else {"prefer": f"wait={_WAIT_S}"}
        path = f"episodes?replace={str(replace).lower()}&again={str(again).lower()}"
        for start in range(0, len(rows), _PORTION):
            try:
                answer = await self._ask("POST", group, path, rows[start : start + _PORTION], headers)
            except InputError as error:  # each row was refused, or the request is at fault
                answer = {"accepted": (), "refusals": getattr(error, "refusals", ())}
                if not answer["refusals"]:
                    raise
            answer["accepted"] = len(answer["accepted"])
            for name in _COUNTS:
                total[name] = total.get(name, 0) + answer.get(name, 0)
            refused += [Refusal(**row | {"line": row["line"] + start}) for row in answer["refusals"]]
        total |= {"stopped": True, "reason": "still pending"} if total.pop("pending", 0) else {}
        return Report(**total, refusals=tuple(refused))

    async def ask(
        self, question: str, *, group: str, on_text: Callable[[str], None] | None = None,
        **options: Unpack[AskOptions],
    ) -> Answered:  # fmt: skip
        """Return a model's answer, whose pieces are passed on as they arrive; see `AsyncMemory.ask`."""
        loop, tell = asyncio.get_running_loop(), on_text or (lambda _: None)
        fields = {name: value for name, value in _sent("ask", {**options}).items() if value is not None}
        body = json.dumps({"question": question, "stream": True, **fields}, default=_plain).encode()

        def read() -> Answered:
            headers = {"content-type": "application/json", "accept": "text/event-stream"}
            name = ""
            with self._opened("POST", f"/v1/groups/{quote(group, safe='')}/ask", body, headers) as answer:
                for raw in answer:
                    field, _, value = raw.decode().rstrip("\r\n").partition(": ")
                    if field == "event":
                        name = value
                    elif field == "data" and name == "text":
                        loop.call_soon_threadsafe(tell, json.loads(value)["text"])
                    elif field == "data":
                        document = _answer(
                            "application/json", value.encode(), 200 if name == "answer" else 500
                        )
                        return read_answer(document)
            raise Unavailable("the server broke off its answer in the middle: ask again")

        try:
            return await asyncio.to_thread(read)
        except (OSError, HTTPException) as error:
            raise Unavailable(f"the answer broke off ({type(error).__name__}): ask again") from None

    async def groups(self) -> list[GroupSize]:
        """Return the groups that the key reaches, with their sizes."""
        return [GroupSize(**row) for row in (await self._ask("GET", None, "", {}))["groups"]]

    async def export(
        self, path: str | Path, *, to: str, group: str, as_of: When | None = None,
        known_at: When | None = None, stop: Stop = never,
    ) -> Exported:  # fmt: skip
        """Write a group in another tool's format, as `Memory.export`; a broken download is resumed."""
        format_ = format_called(to, "writer")
        check_free(format_, path := Path(path))
        options = {"to": to, "as_of": as_of, "known_at": known_at}
        present = {name: value for name, value in options.items() if value is not None}
        query = urlencode(json.loads(json.dumps(present, default=_plain)))
        target = f"/v1/groups/{quote(group, safe='')}/export?{query}"

        def work() -> Exported:
            with locks.explained(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                with TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
                    part = Path(folder) / "part"
                    report = self._download(target, part, stop)
                    if format_.is_folder:
                        unpack(part, part := Path(folder) / "files")
                    part.replace(path)
            return Exported(**json.loads(report))

        return await asyncio.to_thread(work)

    def _download(self, target: str, part: Path, stop: Stop) -> str:
        """Write what is answered to a file, and resume it while each try brings some; return the report."""
        tag: str | None = None
        had, waits = 0, {"prefer": f"wait={self._timeout_s / 2:.0f}"}
        with open(part, "wb", opener=locks.for_owner) as file:
            while True:
                resumed = {"range": f"bytes={had}-", "if-range": tag} if tag and had else dict[str, str]()
                with self._opened("GET", target, None, {"accept": "*/*", **waits, **resumed}) as answer:
                    if answer.status != _PARTIAL:  # another state of the group: from the beginning
                        file.truncate(file.seek(had := 0))
                    tag, length = answer.headers.get("etag"), int(answer.headers["content-length"])
                    total, start = had + length, had
                    with suppress(ConnectionError, TimeoutError, HTTPException):
                        while piece := answer.read(_PIECE):
                            had += file.write(piece)
                            if stop():
                                raise errors.Stopped(f"the download was stopped after {had} bytes")
                if had == total:
                    return str(answer.headers["kgray-report"])
                if had == start:
                    raise Unavailable(f"the download broke off after {had} bytes: run it again")

    async def call(self, name: str, group: str, arguments: dict[str, Any]) -> Any:  # noqa: ANN401 - its result
        """Send a method of VERBS, and return its result."""
        method, path, kind, part = VERBS[name]
        in_path = {field: quote(str(arguments.pop(field)), safe="") for field in _IN_PATH.findall(path)}
        headers = {"prefer": f"wait={_WAIT_S}"} if name in _ORDERED else {}
        answer = await self._ask(method, group, path.format(**in_path), _sent(name, arguments), headers)
        if name in _ORDERED and answer.pop("state") == "pending":
            raise errors.Stopped(f"{name} {answer['sequence']} is requested; it waits for earlier entries")
        return read_result(kind, answer[part] if part else answer, group)

    async def _ask(
        self, method: str, group: str | None, path: str, arguments: object,
        headers: Mapping[str, str] | None = None,
    ) -> Any:  # noqa: ANN401 - JSON  # fmt: skip
        """Return the answer; arguments: the body of a POST, else the query; group None: of all."""
        if isinstance(arguments, Mapping):  # a row's null is the user's, and goes along
            arguments = {name: value for name, value in arguments.items() if value is not None}
        encoded = json.dumps(arguments, default=_plain)
        target = "/v1/groups" + (f"/{quote(group, safe='')}/{path}" if group is not None else "")
        body = None if method == "GET" else encoded.encode()
        target += f"?{urlencode(json.loads(encoded))}" if method == "GET" else ""
        all_headers = {"content-type": "application/json", **(headers or {})}
        return await asyncio.to_thread(self._send, method, target, body, all_headers)

    def _send(self, method: str, target: str, body: bytes | None, headers: dict[str, str]) -> Any:  # noqa: ANN401
        """Return the answer of a request, which is sent again while the server has too much to do."""
        with self._opened(method, target, body, headers) as answer:
            try:
                answered = answer.read()
            except (OSError, HTTPException) as error:
                raise self._silent(error) from None
        return _answer(answer.headers.get_content_type(), answered, answer.status)

    def _opened(self, method: str, target: str, body: bytes | None, headers: dict[str, str]) -> Any:  # noqa: ANN401
        """Return an open response. Raises the error of a problem where a stream was asked for and refused."""
        headers |= {"authorization": f"Bearer {self._key}"} if self._key else {}
        deadline = time.monotonic() + self._patience_s
        while True:
            request = Request(self._url + target, body, headers, method=method)  # noqa: S310 - checked by `connect`
            try:
                answer = _OPENER.open(request, timeout=self._timeout_s)
            except (OSError, HTTPException) as error:
                raise self._silent(error) from None
            retry_after = answer.headers.get("retry-after", "1")
            pause = float(retry_after) if retry_after.isdecimal() else 1.0
            is_late = time.monotonic() + pause > deadline and "kgray-unfinished" not in answer.headers
            if answer.status not in (429, 503) or is_late:
                if "accept" in headers and answer.status >= 300:
                    with answer:
                        _answer(answer.headers.get_content_type(), answer.read(), answer.status)
                return answer
            answer.close()
            time.sleep(pause)

    def _silent(self, error: Exception) -> Unavailable:
        host = urlsplit(self._url).netloc
        return Unavailable(f"{host} gave no answer ({type(error).__name__}): is it up?")

    def close(self) -> None:
        """Do nothing: no connection is kept."""


# Raises for no status, and follows no redirect, which would carry the key to another host.
_OPENER = OpenerDirector()
for _handler in (ProxyHandler(), HTTPHandler(), HTTPSHandler()):
    _OPENER.add_handler(_handler)


def _answer(kind: str, answered: bytes, status: int) -> Any:  # noqa: ANN401 - JSON, or the text of a dump
    """Return the answer. Raises the error of a problem document; Unavailable for any other document."""
    try:
        if status < 300 and kind == "application/x-ndjson":
            return answered.decode()
        document = json.loads(answered)
        if status < 300 and kind == "application/json":
            return document
        detail, code, faults = str(document["detail"]), str(document["code"]), document["errors"]
        field = next((row["pointer"].strip("/") for row in faults), None)
    except (ValueError, LookupError, TypeError):
        message = f"the server answered {status}, and not as kgray does: is it a kgray server?"
        raise Unavailable(message) from None
    name = "".join(part.title() for part in code.split("_"))
    kind_: Any = _CLASSES.get(code) or getattr(errors, name, KgrayError)
    fault: KgrayError = InputError(detail, field=field) if kind_ is InputError else kind_(detail)
    fault.refusals = document.get("refusals", ())  # type: ignore[attr-defined]
    raise fault


def _sent(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the body or the query of a method's arguments: filters are fields of it."""
    arguments |= arguments.pop("options", {})
    if name in ("entities", "complete"):
        arguments["q"] = arguments.pop("query", "")
    if name in ("merge", "distinct"):
        arguments["entities"] = [arguments.pop("first"), arguments.pop("second")]
    if not isinstance(arguments.get("recipe", ""), str):
        raise InputError("a server takes the name of a recipe, not its settings", field="recipe")
    filters = arguments.pop("filters", None) or Filters()
    if clocks := [name for name in ("valid_at", "invalid_at", "created_at") if getattr(filters, name)]:
        raise InputError(f"a server takes no range of {clocks[0]}: open the folder", field=clocks[0])
    if filters.said is not None:
        arguments |= dict(zip(("said_after", "said_before"), filters.said, strict=True))
    names = ("relations", "labels", "sources", "speakers")
    return arguments | {name: list(values) for name in names if (values := getattr(filters, name))}


def _plain(value: Any) -> Any:  # noqa: ANN401 - a moment, or a mapping or a sequence of another class
    if isinstance(value, datetime):
        return show(from_datetime(value))
    return dict(value) if isinstance(value, Mapping) else list(value)


def original(name: str) -> Callable[..., Any]:
    """Return the method of a name in VERBS, as the class of its part defines it."""
    part, _, method = name.rpartition(".")
    parts = {"": AsyncMemory, "communities": AsyncCommunities, "admin": AsyncAdmin}
    return cast("Callable[..., Any]", getattr(parts[part], method))


def _request(name: str, method: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Return the method that sends a method of VERBS; it takes the same arguments, except functions."""
    accepted = signature(method)
    parameters = [field for field_name, field in accepted.parameters.items() if field_name not in _FUNCTIONS]
    accepted = accepted.replace(parameters=parameters)

    @wraps(method)
    async def call(self: Any, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - the method's own
        arguments = accepted.bind(self, *args, **options).arguments
        del arguments["self"]
        remote: RemoteMemory = self if isinstance(self, RemoteMemory) else self._memory
        return await remote.call(name, arguments.pop("group"), arguments)

    return call


def _refusal(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method that refuses a method that needs the store itself."""

    @wraps(method)
    async def refuse(*_: Any, **__: Any) -> Any:  # noqa: ANN401 - it returns nothing
        raise InputError(f"{name} needs the store itself: use kgray.open, or the command on the server")

    return refuse


class _RemoteCommunities(AsyncCommunities):
    """The methods of communities that VERBS has."""


class _RemoteAdmin(AsyncAdmin):
    """The methods of administration that VERBS has."""


def _forward(part: type, prefix: str) -> None:
    """Give a class the methods that send or refuse, for the coroutines that it inherits."""
    for name, method in getmembers(part, iscoroutinefunction):
        if name.startswith("_") or name in vars(part) or name == "add":  # `add` calls `add_many`
            continue
        full = f"{prefix}{name}"
        setattr(part, name, (_request if full in VERBS else _refusal)(full, method))


_forward(RemoteMemory, "")
_forward(_RemoteCommunities, "communities.")
_forward(_RemoteAdmin, "admin.")
