"""The routes that read."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Annotated, Any, Literal

from fastapi import Header, Path, Query, Request, Response
from starlette.responses import JSONResponse, StreamingResponse

from kgray.errors import KgrayError
from kgray.http.door import At, Door, kept, unchanged
from kgray.http.models import ContextOf, Search
from kgray.http.problems import Overloaded
from kgray.memory.reports import group_rows, ledger_of
from kgray.records import check_group

Group = Annotated[str, Path(description="1 to 128 of A-Z a-z 0-9 _ . -", examples=["team"])]
Identifier = Annotated[str, Path(max_length=1000)]
Moment = Annotated[str | None, Query(max_length=64, description="ISO 8601, or epoch seconds")]
Limit = Annotated[int, Query(ge=1, le=1000)]
_LINES = 500  # of a dump, at a time
_BEAT_S, _PAUSE_S = 15.0, 0.5  # of a stream without news; between two looks


async def search(door: At, group: Group, body: Search) -> Response:
    """Return ranked hits: facts that hold (now, or as of then), entities, episodes."""
    began = time.perf_counter()
    found = await door.read(door.memory.explain, body.query, group=group, **body.arguments())
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


async def entities(
    door: At, group: Group, q: Annotated[str, Query(max_length=1000)] = "", limit: Limit = 20
) -> Response:
    """Return entities by name, or those with most facts."""
    found = await door.read(door.memory.entities, q, group=group, limit=limit)
    return JSONResponse({"entities": [entity.as_dict() for entity in found]})


async def history(
    door: At, request: Request, group: Group, name: Identifier, as_of: Moment = None, known_at: Moment = None
) -> Response:
    """Return every span of an entity's facts, ended ones too; 409 lists the ids of an ambiguous name."""

    async def made() -> Any:  # noqa: ANN401 - JSON
        found = await door.read(door.memory.history, name, group=group, as_of=as_of, known_at=known_at)
        return found.as_dict()

    return await _tagged(door, request, group, made)


async def show(door: At, request: Request, group: Group, name: Identifier) -> Response:
    """Return one episode, entity, statement or fact with all that hangs on it."""

    async def made() -> Any:  # noqa: ANN401 - JSON
        return {"records": await door.read(door.memory.show, name, group=group)}

    return await _tagged(door, request, group, made)


async def graph(
    door: At, request: Request, group: Group, centre: Annotated[str | None, Query(max_length=1000)] = None,
    as_of: Moment = None, known_at: Moment = None, depth: Annotated[int, Query(ge=0, le=4)] = 1,
    limit: Limit = 200,
) -> Response:  # fmt: skip
    """Return a neighbourhood with facts of all spans and both clocks; `total` is true where it is cut."""
    given = {"as_of": as_of, "known_at": known_at, "depth": depth, "limit": limit}
    verb = door.memory.neighbourhood
    return await _tagged(door, request, group, lambda: door.read(verb, centre, group=group, **given))


async def diff(
    door: At, request: Request, group: Group, from_known_at: Moment = None, to_known_at: Moment = None,
    from_as_of: Moment = None, to_as_of: Moment = None, limit: Limit = 200,
) -> Response:  # fmt: skip
    """Return what differs between two moments, on either clock."""
    known = {"from_known_at": from_known_at, "to_known_at": to_known_at}
    given = known | {"from_as_of": from_as_of, "to_as_of": to_as_of, "limit": limit}
    return await _tagged(door, request, group, lambda: door.read(door.memory.diff, group=group, **given))


async def changes(
    door: At, group: Group, since: Annotated[int, Query(ge=0, le=1 << 62)] = 0, limit: Limit = 200
) -> Response:
    """Return the commits after one: what ended in each, facts opened and ended."""
    return JSONResponse(await door.read(door.memory.changes, group=group, since=since, limit=limit))


async def log(
    door: At, group: Group, after: Annotated[int, Query(ge=0, le=1 << 62)] = 0,
    state: Literal["accepted", "extracted", "committed", "failed", "withdrawn"] | None = None,
    limit: Limit = 100,
) -> Response:  # fmt: skip
    """Return a page of the log by sequence; `next` is where to go on from."""
    return JSONResponse(await door.read(door.memory.log, group=group, after=after, state=state, limit=limit))


async def episode(door: At, group: Group, name: Identifier) -> Response:
    """Return one episode: its text, its state, when it was said and recorded."""
    return JSONResponse(await door.read(door.memory.episode, name, group=group))


async def operation(door: At, group: Group, sequence: Annotated[int, Path(ge=1, le=1 << 60)]) -> Response:
    """Return where a correction or removal stands, and what it has changed."""
    return JSONResponse(await door.read(door.memory.operation, sequence, group=group))


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


async def failures(door: At, group: Group) -> Response:
    """Return failed episodes with the reasons."""
    found = await door.read(door.memory.failures, group=group)
    return JSONResponse({"failures": [one.as_dict() for one in found]})


async def dump(door: At, request: Request, group: Group, known_at: Moment = None) -> Response:
    """Return the whole graph as sorted JSON lines."""
    tag = await door.tag(request, check_group(group))
    if (same := unchanged(request, tag)) is not None:
        return same
    lines = await door.read(door.memory.dump, group=group, known_at=known_at)

    def pieces() -> Iterator[str]:
        for start in range(0, len(lines), _LINES):
            yield "".join(f"{line}\n" for line in lines[start : start + _LINES])

    return StreamingResponse(pieces(), media_type="application/x-ndjson", headers=kept(tag))


async def events(
    door: At, group: Group, last_event_id: Annotated[str | None, Header(max_length=20)] = None,
    since: Annotated[int | None, Query(ge=0, le=1 << 62)] = None,
) -> Response:  # fmt: skip
    """Stream commits as server-sent events; `id` is the commit's number, which `Last-Event-ID` resumes."""
    check_group(group)
    if door.streams >= door.bounds.max_streams:
        raise Overloaded(f"{door.streams} streams are open: try again", wait_s=30)
    resumed = int(last_event_id) if last_event_id and last_event_id.isdecimal() else since
    at = (await door.head(group)).last_recorded if resumed is None else resumed
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(_stream(door, group, at), media_type="text/event-stream", headers=headers)


async def _stream(door: Door, group: str, at: int) -> AsyncIterator[str]:
    door.streams += 1
    door.metrics.streams.inc()
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
    finally:
        door.streams -= 1
        door.metrics.streams.dec()


async def _tagged(door: Door, request: Request, group: str, made: Callable[[], Awaitable[Any]]) -> Response:
    tag = await door.tag(request, check_group(group))
    if (same := unchanged(request, tag)) is not None:
        return same
    return JSONResponse(await made(), headers=kept(tag))
