"""Routes for boards and pages: the key's own rights, ingestion as a stream, schedules, previews, uploads."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from functools import partial
from pathlib import PurePath
from typing import Annotated, Any

from anyio import to_thread
from fastapi import Depends, Query, Request, Response

from kgray.domain import times
from kgray.domain.json_form import as_json
from kgray.domain.records import check_group
from kgray.errors import InputError
from kgray.io.intake.drafts import Defaults, Refusal, draft_from
from kgray.io.intake.files import EXTENSIONS, Submitted, read_file, spooled
from kgray.memory.access import SCOPES
from kgray.memory.reads import ledger_of
from kgray.server import models
from kgray.server.door import At, Door, holder_of
from kgray.server.handlers import appended
from kgray.server.models import Group
from kgray.server.problems import Overloaded
from kgray.server.streams import Events, event, streamed
from kgray.storage import ledger

_LOOK_S = 1.0  # between two reads of a stream
_MAX_CHANGES = 500  # rows of a preview
_MAX_REFUSALS = 100
_PORTION = 500  # rows that are appended together


async def own_key(door: At, request: Request, response: Response) -> Any:  # noqa: ANN401 - `replies.Rights`
    """Return the caller's rights: scopes, groups, end; without a key the rights of the command line."""
    key = holder_of(request)
    rights: dict[str, Any] = {
        "id": None,
        "groups": ["*"],
        "scopes": list(SCOPES),
        "rate": None,
        "expires_at": None,
    }
    answer = rights if key is None else {name: key.as_dict()[name] for name in rights}
    if "admin" in answer["scopes"]:
        answer["scopes"] = list(SCOPES)
    response.headers["cache-control"] = "no-store"
    return answer | {"can_answer": door.memory.can_answer}


async def schedules(door: At, request: Request) -> Any:  # noqa: ANN401 - `replies.Schedules`
    """Return the schedules of refreshes, with their last outcomes, for groups that the key reaches."""
    key, clock = holder_of(request), times.now()
    rows = [row.as_dict(clock) for row in await door.call(door.memory.admin.schedules.every)]
    if key is not None:
        bounds = [({*row["groups"]} or {"*"}, row) for row in rows]
        rows = [row for groups, row in bounds if key.covers([*groups])]
    return {"schedules": rows}


async def server_status(door: At, request: Request) -> Any:  # noqa: ANN401 - `replies.Board`
    """Return the ledger of all groups that the key reaches, pending work, and the ingesting processes."""
    return await _board(door, request)


async def _board(door: Door, request: Request) -> dict[str, Any]:
    counts, key = await door.call(ledger.counts, door.memory.store), holder_of(request)
    status = ledger_of({name: count for name, count in counts.items() if key is None or key.reaches(name)})
    waits = door.ingesting
    waiting = {"pending": waits.pending, "oldest_s": round(waits.oldest_s), "fault": waits.fault or None}
    runtime = {"backend": "none"} if door.runtime is None else await door.call(door.runtime)
    return {**as_json(status), "ingesting": waiting, "runtime": runtime, "at": times.show(times.now())}


async def _place(door: At) -> AsyncIterator[None]:
    with door.stream():
        yield


async def status_events(door: At, request: Request, _: Annotated[None, Depends(_place)]) -> Response:
    """Stream the status as server-sent events `status` on every change; it is read every second."""
    return streamed(_statuses(door, request))


async def _statuses(door: Door, request: Request) -> Events:
    last: dict[str, Any] = {}
    while not door.ending:
        try:
            current = await _board(door, request)
        except Overloaded:
            current = last
        if {**current, "at": ""} != {**last, "at": ""}:
            last = current
            yield event("status", current)
        await asyncio.sleep(_LOOK_S)


async def preview(door: At, group: Group, body: models.Preview) -> Any:  # noqa: ANN401 - `replies.Previewed`
    """Return the changes that an episode, a correction or a retraction would make: dump rows with `op`.

    Nothing is stored. Reading an episode may cost calls of a model. At most 500 rows, facts and entities
    first; `total` counts all rows.
    """
    kind, subject = body.change()
    if kind == "episode":
        draft = draft_from(subject, Defaults(group=check_group(group)))
        if draft.group != group:
            raise InputError("an episode's group must be the group of the address", field="episode/group")
        previews = await door.call(partial(door.memory.admin.preview, again=body.again))
        rows = await door.read(previews.rows, draft)
    else:
        rows = await door.read(door.memory.foresee, kind, group=group, **subject)
    rows.sort(
        key=lambda row: ("fact", "entity").index(row["type"]) if row["type"] in ("fact", "entity") else 2
    )
    return {"changes": rows[:_MAX_CHANGES], "total": len(rows)}


async def upload(
    door: At, request: Request, response: Response, group: Group,
    name: Annotated[str, Query(min_length=1, max_length=200)],
) -> Any:  # noqa: ANN401 - `replies.Uploaded`  # fmt: skip
    """Append the rows of a file; its extension names the format: JSON lines, JSON, CSV, Parquet, text.

    At most 8 MiB.
    """
    check_group(group)
    door.check_room()
    ending = PurePath(name).suffix.lower()
    if ending not in EXTENSIONS:
        raise InputError(
            f"{name!r} has no known extension: use {', '.join(sorted(EXTENSIONS))}", field="name"
        )
    body = await request.body()

    def rows() -> list[Submitted | Refusal]:
        with spooled(io.BytesIO(body), suffix=ending) as path:
            return list(read_file(path, Defaults(group=group), name=name))

    items = await to_thread.run_sync(rows)
    foreign = [item for item in items if isinstance(item, Submitted) and item.draft.group != group]
    reason = f"the row's group is not {group}"
    refusals = [Refusal(file=name, line=item.line, field="group", reason=reason) for item in foreign]
    counts = {"accepted": 0, "duplicate": 0}
    accepted_items = [item for item in items if item not in foreign]
    for start in range(0, len(accepted_items), _PORTION):
        pairs, refused = await appended(door, accepted_items[start : start + _PORTION])
        for status in counts:
            counts[status] += sum(item.status == status for _, item in pairs)
        refusals += refused
    listed = [item.as_dict() for item in refusals[:_MAX_REFUSALS]]
    response.status_code = 202
    return {**counts, "refused": len(refusals), "refusals": listed}
