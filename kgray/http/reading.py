"""The routes that read."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, Literal

from fastapi import Header, Path, Query, Request, Response
from opentelemetry import trace
from starlette.responses import JSONResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from kgray.errors import KgrayError
from kgray.http.door import At, Door
from kgray.http.models import ContextOf, Search
from kgray.http.problems import Overloaded
from kgray.http.problems import answer as refused
from kgray.memory import Memory
from kgray.memory.reports import group_rows, ledger_of
from kgray.records import check_group

Group = Annotated[str, Path(description="1 to 128 of A-Z a-z 0-9 _ . -", examples=["team"])]
Identifier = Annotated[str, Path(min_length=1, max_length=1000)]
Moment = Annotated[str | None, Query(max_length=64, description="ISO 8601, or epoch seconds")]
Limit = Annotated[int, Query(ge=1, le=1000)]
_NAMED, _COUNT = Parameter.KEYWORD_ONLY, Annotated[int, Query(ge=0, le=1 << 62)]
# The types of the parameters of verbs; of others: a moment.
_TYPES: Mapping[str, Any] = {
    "group": Group,
    "identifier": Identifier,
    "name_or_id": Identifier,
    "sequence": Annotated[int, Path(ge=1, le=1 << 60)],
    "query": Annotated[str, Query(alias="q", max_length=1000)],
    "centre": Annotated[str | None, Query(max_length=1000)],
    "tokens": Annotated[int, Query(ge=64, le=200_000)],
    "depth": Annotated[int, Query(ge=0, le=4)],
    "limit": Limit,
    "level": Annotated[int | None, Query(ge=0, le=64)],
    "since": _COUNT,
    "after": _COUNT,
    "state": Literal["accepted", "extracted", "committed", "failed", "withdrawn"] | None,
}
TAGGED = frozenset("history show neighbourhood diff dump".split())  # without a clock: they have an ETag
_LINES = 500  # of a dump, at a time
_BEAT_S, _PAUSE_S = 15.0, 0.5  # of a stream without news; between two looks


async def search(door: At, group: Group, body: Search) -> Response:
    """Return ranked hits: facts that hold (now, or as of then), entities, episodes."""
    began = time.perf_counter()
    found = await door.read(door.memory.explain, body.query, group=group, **body.arguments())
    trace.get_current_span().set_attribute("kgray.hits", len(found.hits))
    rows = [hit.as_dict() | ({"signals": dict(hit.signals)} if body.explain else {}) for hit in found.hits]
    answer: dict[str, Any] = {"hits": rows, "took_ms": round((time.perf_counter() - began) * 1000, 3)}
    if body.explain:
        names = ("scope", "id", "text")
        left = [dict(zip(names, one, strict=True)) for one in found.said_above]
        answer |= {"left_out": left, "floor": found.floor}
    return JSONResponse(answer)


async def context(door: At, group: Group, body: ContextOf) -> Response:
    """Return a text to put into a prompt, within a budget of tokens."""
    found = await door.read(door.memory.context, body.query, group=group, **body.arguments())
    return JSONResponse(found.as_dict())


def reads(verb: str, *, gives: str = "") -> Callable[..., Any]:
    """Return the handler of a verb of the memory: with its parameters, it answers as the verb does.

    gives   the name of the part of the answer; "" = it is the whole answer
    """

    async def handle(door: Door, request: Request, **asked: Any) -> Response:  # noqa: ANN401
        same, headers = await door.known(request, asked["group"]) if verb in TAGGED else (None, None)
        if same is not None:
            return same
        found = _plain(await door.read(getattr(door.memory, verb), **asked))
        return JSONResponse({gives: found} if gives else found, headers=headers)

    _, *every = signature(getattr(Memory, verb)).parameters.values()
    own = [one for one in every if one.name in _TYPES or "When" in str(one.annotation)]
    given = [Parameter(name, _NAMED, annotation=kind) for name, kind in (("door", At), ("request", Request))]
    for one in own:
        kind, default = _TYPES.get(one.name, Moment), Parameter.empty if one.name == "group" else one.default
        given.append(Parameter(one.name, _NAMED, annotation=kind, default=default))
    handle.__signature__ = Signature(given)  # type: ignore[attr-defined]
    handle.__name__, handle.__doc__ = verb, getattr(Memory, verb).__doc__
    return handle


def _plain(found: Any) -> Any:  # noqa: ANN401 - JSON, or values that have their form
    if isinstance(found, list):
        return [_plain(one) for one in found]
    return found.as_dict() if hasattr(found, "as_dict") else found


async def status(door: At, group: Group) -> Response:
    """Return the ledger: episodes by state, what models have cost."""
    counts = await door.read(door.memory.status, group=group)
    return JSONResponse(ledger_of(counts) | {"ingesting": {"fault": door.ingesting.fault or None}})


async def groups(door: At, request: Request) -> Response:
    """Return the groups that the key reaches, with counts."""
    counts = await door.read(door.memory.groups)
    key = request.scope["state"].get("key")
    rows = group_rows({name: one for name, one in counts.items() if key is None or key.reaches(name)})
    return JSONResponse({"groups": rows})


async def dump(door: At, request: Request, group: Group, known_at: Moment = None) -> Response:
    """Return the whole graph as sorted JSON lines."""
    same, headers = await door.known(request, group)
    if same is not None:
        return same
    lines = await door.read(door.memory.dump, group=group, known_at=known_at)

    def pieces() -> Iterator[str]:
        for start in range(0, len(lines), _LINES):
            yield "".join(f"{line}\n" for line in lines[start : start + _LINES])

    return StreamingResponse(pieces(), media_type="application/x-ndjson", headers=headers)


async def events(
    door: At, group: Group, last_event_id: Annotated[str | None, Header(max_length=20)] = None,
    since: Annotated[int | None, Query(ge=0, le=1 << 62)] = None,
) -> Response:  # fmt: skip
    """Stream commits as server-sent events; `id` is the commit's number, which `Last-Event-ID` resumes."""
    check_group(group)
    resumed = int(last_event_id) if last_event_id and last_event_id.isdecimal() else since
    at = (await door.head(group)).last_recorded if resumed is None else resumed
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    made = _Events(_stream(door, group, at), headers=headers, media_type="text/event-stream")
    made.door = door
    return made


class _Events(StreamingResponse):
    """A stream, if there is room for it: counted in the same step, because many may come at once."""

    door: Door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        door = self.door
        if door.streams >= door.bounds.max_streams:
            full = Overloaded(f"{door.streams} streams are open: try again", wait_s=30)
            await refused(Request(scope), full)(scope, receive, send)
            return
        door.streams += 1
        try:
            with door.metrics.streams.track_inprogress():
                await super().__call__(scope, receive, send)
        finally:
            door.streams -= 1


async def _stream(door: Door, group: str, at: int) -> AsyncIterator[str]:
    told = time.monotonic()
    try:
        yield f": commits of {group} after {at}\n\n"
        while not door.ending:
            head = await door.head(group)
            if head.last_recorded > at:
                found = await door.changes(group, at, head.last_recorded)
                at, told = max(found["last"], at if found["more"] else head.last_recorded), time.monotonic()
                yield "".join(
                    f"id: {one['commit']}\nevent: commit\ndata: {json.dumps(one)}\n\n"
                    for one in found["commits"]
                )
            elif time.monotonic() - told > _BEAT_S:
                told = time.monotonic()
                yield ": nothing new\n\n"
            await asyncio.sleep(_PAUSE_S)
    except KgrayError as error:  # the answer has begun: the client comes back with Last-Event-ID
        yield f": ended: {error}\n\n"
