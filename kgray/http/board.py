"""Routes for boards and pages: the key's own rights, ingestion as a stream, schedules, previews, uploads."""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import PurePath
from typing import Annotated, Any

from anyio import to_thread
from fastapi import Depends, Query, Request, Response
from starlette.responses import JSONResponse, StreamingResponse

from kgray import times
from kgray.errors import InputError
from kgray.http import models
from kgray.http.door import At, Door, holder_of
from kgray.http.handlers import appended
from kgray.http.models import Group
from kgray.http.problems import Overloaded
from kgray.intake.drafts import Defaults, Refusal, draft_from
from kgray.intake.files import EXTENSIONS, Submitted, read_file, spooled
from kgray.memory.access import SCOPES
from kgray.memory.ingesting import ledger_of
from kgray.records import check_group

_LOOK_S, _SILENT_S = 1.0, 15.0  # between two looks of a stream; after which it says that it lives
_MAX_CHANGES = 500  # rows of a preview
_MAX_REFUSALS = 100
_PORTION = 500  # rows that are appended together
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


async def own_key(door: At, request: Request) -> Response:
    """Return what the caller may do: scopes, groups, end; without a key those of the command line."""
    key = holder_of(request)
    own: dict[str, Any] = {
        "id": None,
        "groups": ["*"],
        "scopes": list(SCOPES),
        "rate": None,
        "expires_at": None,
    }
    told = own if key is None else {name: key.as_dict()[name] for name in own}
    if "admin" in told["scopes"]:
        told["scopes"] = list(SCOPES)
    return JSONResponse(told | {"can_answer": door.memory.can_answer}, headers=_HEADERS)


async def schedules(door: At, request: Request) -> Response:
    """Return when communities are refreshed, and how the last runs ended; of groups that the key reaches."""
    key, now = holder_of(request), times.now()
    found = [one.as_dict(now) for one in await door.call(door.memory.admin.schedules.every)]
    if key is not None:
        bounds = [({*one["groups"]} or {"*"}, one) for one in found]
        found = [one for groups, one in bounds if key.covers([*groups])]
    return JSONResponse({"schedules": found})


async def server_status(door: At, request: Request) -> Response:
    """Return the ledger of all groups that the key reaches, what waits, and the processes that ingest."""
    return JSONResponse(await _board(door, request))


async def _board(door: Door, request: Request) -> dict[str, Any]:
    counts, key = await door.read(door.memory.status), holder_of(request)
    told = ledger_of({name: one for name, one in counts.items() if key is None or key.reaches(name)})
    waits = door.ingesting
    waiting = {"pending": waits.pending, "oldest_s": round(waits.oldest_s), "fault": waits.fault or None}
    runtime = {"backend": "none"} if door.runtime is None else await door.call(door.runtime)
    return {**told, "ingesting": waiting, "runtime": runtime, "at": times.show(times.now())}


async def _place(door: At) -> AsyncIterator[None]:
    with door.stream():
        yield


async def status_events(door: At, request: Request, _: Annotated[None, Depends(_place)]) -> Response:
    """Stream the same as server-sent events `status`, whenever it changes; looked at every second."""
    return StreamingResponse(_statuses(door, request), headers=_HEADERS, media_type="text/event-stream")


async def _statuses(door: Door, request: Request) -> AsyncIterator[str]:
    last: dict[str, Any] = {}
    spoke = time.monotonic()
    while not door.ending:
        try:
            found = await _board(door, request)
        except Overloaded:
            found = last
        if {**found, "at": ""} != {**last, "at": ""}:
            last, spoke = found, time.monotonic()
            yield f"event: status\ndata: {json.dumps(found)}\n\n"
        elif time.monotonic() - spoke > _SILENT_S:
            spoke = time.monotonic()
            yield ": nothing new\n\n"
        await asyncio.sleep(_LOOK_S)


async def preview(door: At, group: Group, body: models.Preview) -> Response:
    """Return what an episode, a correction or a retraction would change, as rows of the dump with `op`.

    Nothing is kept. Reading an episode may cost calls of a model. At most 500 rows, facts and entities
    first; `total` counts all.
    """
    kind, what = body.change()
    if kind == "episode":
        draft = draft_from(what, Defaults(group=check_group(group)))
        if draft.group != group:
            raise InputError("an episode's group must be the one of the address", field="episode/group")
        previews = await door.call(partial(door.memory.admin.preview, again=body.again))
        rows = await door.read(previews.rows, draft)
    else:
        rows = await door.read(door.memory.foresee, kind, group=group, **what)
    rows.sort(
        key=lambda row: ("fact", "entity").index(row["type"]) if row["type"] in ("fact", "entity") else 2
    )
    return JSONResponse({"changes": rows[:_MAX_CHANGES], "total": len(rows)})


async def upload(
    door: At, request: Request, group: Group, name: Annotated[str, Query(min_length=1, max_length=200)]
) -> Response:
    """Append the rows of a file by its name's ending: JSON lines, JSON, CSV, Parquet, text; 8 MiB at most."""
    check_group(group)
    door.check_room()
    ending = PurePath(name).suffix.lower()
    if ending not in EXTENSIONS:
        raise InputError(
            f"{name!r} has no ending that is known: {', '.join(sorted(EXTENSIONS))}", field="name"
        )
    body = await request.body()

    def rows() -> list[Submitted | Refusal]:
        with spooled(io.BytesIO(body), suffix=ending) as path:
            return list(read_file(path, Defaults(group=group), name=name))

    found = await to_thread.run_sync(rows)
    foreign = [one for one in found if isinstance(one, Submitted) and one.draft.group != group]
    said = f"the row's group is not {group}"
    refusals = [Refusal(file=name, line=one.line, field="group", reason=said) for one in foreign]
    counts = {"accepted": 0, "duplicate": 0}
    kept = [one for one in found if one not in foreign]
    for start in range(0, len(kept), _PORTION):
        pairs, refused = await appended(door, kept[start : start + _PORTION])
        for status in counts:
            counts[status] += sum(one.status == status for _, one in pairs)
        refusals += refused
    told = [one.as_dict() for one in refusals[:_MAX_REFUSALS]]
    return JSONResponse({**counts, "refused": len(refusals), "refusals": told}, 202)
