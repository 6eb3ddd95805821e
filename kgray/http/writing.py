"""The routes that add, correct and remove."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, Literal

from anyio import to_thread
from fastapi import Header, Query, Request, Response
from starlette.responses import JSONResponse

from kgray import kinds, times
from kgray.errors import InputError
from kgray.http.appending import bounded, drafted, rows_of
from kgray.http.door import LONGEST_S, At, Door, check_known
from kgray.http.guard import check_scope
from kgray.http.managing import noted
from kgray.http.models import Merge, Retry, Split, Undo, Withdrawal
from kgray.http.problems import PROBLEMS, Conflict, TooLarge, problem_of, told
from kgray.http.reading import Group, Identifier
from kgray.intake.drafts import Refusal
from kgray.intake.files import Submitted
from kgray.intake.formats import MAX_LINE, json_lines
from kgray.ledger import Acceptance, Foresight, NoneAccepted
from kgray.ledger import retry as retried
from kgray.records import OperationKind, check_group

Prefer = Annotated[
    str | None, Header(max_length=200, description="wait=N: answer when it is done, at most N s")
]
_ENCODER = json.JSONEncoder(separators=(",", ":"))  # made once: appends are many
_WAIT = re.compile(r"(?:^|[,;\s])wait=(\d{1,4})(?:$|[,;\s])")
_LOOK_S = 0.5  # between two looks where another process ingests
_LARGE = 1 << 14  # bytes of a body that is not parsed in the event loop
_SHOWN = 100  # refusals of a backfill that are told
_PORTION = 500  # rows of a backfill that are appended together
_APPENDS = ("replace", "again", "dry_run")  # how `append` may be asked to
_FLAGS = {"true": True, "1": True, "false": False, "0": False}


def wait_of(prefer: str | None) -> float | None:
    """Return the seconds of `Prefer: wait=N` (RFC 7240); None = not asked for."""
    found = _WAIT.search(prefer or "")
    return None if found is None else min(float(found[1]), LONGEST_S)


# ------------------------------------------------------------------------------------- appending


async def append(request: Request) -> Response:
    """Append an object, an array or NDJSON of input rows; durable when it is answered."""
    door: Door = request.app.state.door
    group, headers, asked = request.path_params["group"], request.headers, request.query_params
    check_scope(request.scope["state"].get("key"), "add", group)
    check_known(request, (*_APPENDS, "on_error"))
    check_group(group)
    door.check_room()
    body, kind = await request.body(), headers.get("content-type", "application/json")
    flags = {name: asked.get(name, "false").lower() for name in _APPENDS}
    if unclear := [name for name, said in flags.items() if said not in _FLAGS]:
        raise InputError(f"{unclear[0]}: say true or false", field=unclear[0])
    replace, again, dry_run = (_FLAGS[said] for said in flags.values())
    if (on_error := asked.get("on_error", "skip")) not in ("skip", "stop"):
        raise InputError("on_error: say skip or stop", field="on_error")

    def parsed() -> list[Submitted | Refusal]:
        return bounded(drafted(rows_of(body, kind), group, headers.get("idempotency-key")))

    items = parsed() if len(body) < _LARGE else await to_thread.run_sync(parsed)
    how = {"whole": on_error == "stop", "replace": replace, "again": again}
    pairs, refused = await _appended(door, items, dry_run=dry_run, **how)
    if dry_run:
        return _answered(request, pairs, refused, ended={"pending": 0, "dry_run": True})
    wait = wait_of(headers.get("prefer"))
    ended = None if wait is None else await _ended(door, group, [one for _, one in pairs], wait)
    return _answered(request, pairs, refused, ended=ended)


async def _appended(
    door: Door,
    items: Sequence[Submitted | Refusal],
    *,
    dry_run: bool = False,
    whole: bool = False,
    **how: bool,
) -> tuple[list[tuple[Submitted, Acceptance]], list[Refusal]]:
    """Append what can be accepted; return each row with its outcome, and what was refused.

    dry_run: append nothing, and return what would be; whole: append all, or nothing where a row is refused
    """
    refused = [one for one in items if isinstance(one, Refusal)]
    rows = [one for one in items if isinstance(one, Submitted) and not (whole and refused)]
    drafts = [row.draft for row in rows]
    if dry_run:
        answers = await door.call(lambda: Foresight(door.memory.store, **how).of(drafts, now=times.now()))
    else:
        try:
            answers = await door.appends.accept(drafts, whole=whole, **how) if rows else []
        except NoneAccepted as stopped:
            answers = [one for one in stopped.found if one.status == "conflict"]
            rows = [row for row, one in zip(rows, stopped.found, strict=True) if one.status == "conflict"]
        door.ingesting.appended(sum(one.status == "accepted" for one in answers))
    pairs = list(zip(rows, answers, strict=True))
    for row, one in pairs:
        if one.status == "conflict":
            refused.append(Refusal(file="", line=row.line, field="id", reason=one.reason))
    return ([] if whole and refused else pairs), refused


def _answered(
    request: Request, pairs: Sequence[tuple[Submitted, Acceptance]], refused: Sequence[Refusal], *,
    ended: dict[str, int] | None = None,
) -> Response:  # fmt: skip
    """Return 202, 200 where it was waited for, or the problem where every row was refused."""
    told_of: dict[str, list[dict[str, Any]]] = {"accepted": [], "duplicate": [], "conflict": []}
    for row, one in pairs:
        told_of[one.status].append({"id": one.id, "client_id": row.draft.client_id, "sequence": one.sequence})
    if refused and not (told_of["accepted"] or told_of["duplicate"]):
        taken = all(one.field == "id" and "is taken" in one.reason for one in refused)
        kind = Conflict if taken else InputError
        faults = [
            {"pointer": f"/{(one.line or 1) - 1}/{one.field or ''}", "detail": one.reason} for one in refused
        ]
        detail = f"{len(refused)} refused, nothing was accepted: {refused[0].reason}"
        return told(request, PROBLEMS[kind], problem_of(kind(""))[0], detail, faults=faults)
    rows = [{"line": one.line, "field": one.field, "reason": one.reason} for one in refused]
    counts = {"duplicate": len(told_of["duplicate"]), "refused": len(rows), "refusals": rows}
    answer = {"accepted": told_of["accepted"], **counts, "duplicates": told_of["duplicate"], **(ended or {})}
    done = ended is not None and not ended["pending"]
    return Response(_ENCODER.encode(answer), 200 if done else 202, media_type="application/json")


async def _ended(door: Door, group: str, answers: Sequence[Acceptance], wait_s: float) -> dict[str, int]:
    """Wait until these rows are committed or failed, at most so long; return how many are."""
    left = {one.sequence for one in answers if one.sequence is not None and one.status != "conflict"}
    ended = {"committed": 0, "failed": 0}
    until = time.monotonic() + wait_s
    while True:
        found = await door.call(
            lambda: list(door.memory.store.rows(kinds.EPISODE_HEADS_AT, group, sorted(left)))
        )
        for row in found:
            if row[5] >= kinds.COMMITTED:
                ended["failed" if row[5] == kinds.FAILED else "committed"] += 1
                left.discard(row[0])
        if not left or (pause := until - time.monotonic()) <= 0:
            return ended | {"pending": len(left)}
        await door.ingesting.step(min(pause, _LOOK_S))


async def backfill(door: At, request: Request, group: Group, again: bool = False) -> Response:
    """Append streamed NDJSON of any length to the bulk lane; rows with ids can be sent again."""
    check_group(group)
    door.check_room()
    counts = {"accepted": 0, "duplicate": 0, "refused": 0}
    refusals: list[dict[str, Any]] = []
    async for first, block in _blocks(request):
        rows = ((n or 0, row) for n, row in json_lines(io.BytesIO(block), first))
        items = list(drafted(rows, group, None))
        for start in range(0, len(items), _PORTION):
            pairs, refused = await _appended(door, items[start : start + _PORTION], again=again, bulk=True)
            for status in ("accepted", "duplicate"):
                counts[status] += sum(one.status == status for _, one in pairs)
            counts["refused"] += len(refused)
            refusals += [{"line": one.line, "field": one.field, "reason": one.reason} for one in refused]
            del refusals[_SHOWN:]
    return JSONResponse(counts | {"refusals": refusals}, 202)


async def _blocks(request: Request) -> AsyncIterator[tuple[int, bytes]]:
    """Yield (number of its first line, whole lines) as a body arrives."""
    held, first = b"", 1
    async for chunk in request.stream():
        whole, newline, held = (held + chunk).rpartition(b"\n")
        if len(held) > MAX_LINE:
            raise TooLarge(f"line {first} is longer than {MAX_LINE >> 20} MiB")
        if newline:
            yield first, whole
            first += whole.count(b"\n") + 1
    if held.strip():
        yield first, held


async def retry(door: At, group: Group, body: Retry) -> Response:
    """Take failed episodes up again: all, or these."""
    check_group(group)
    count = await door.call(lambda: retried(door.memory.store, group, body.episodes, now=times.now()))
    door.ingesting.appended(count)
    return JSONResponse({"accepted": count}, 202)


# ------------------------------------------------------------------------------------- corrections


async def merge(door: At, request: Request, group: Group, body: Merge, prefer: Prefer = None) -> Response:
    """Make one entity of two."""
    return await _correct(door, request, group, prefer, "merge", entities=tuple(body.entities))


async def distinct(door: At, request: Request, group: Group, body: Merge, prefer: Prefer = None) -> Response:
    """Hold two entities apart."""
    return await _correct(door, request, group, prefer, "distinct", entities=tuple(body.entities))


async def split(door: At, request: Request, group: Group, body: Split, prefer: Prefer = None) -> Response:
    """Make the mentions with these names another entity."""
    what = {"entities": (body.entity,), "surfaces": tuple(body.surfaces)}
    return await _correct(door, request, group, prefer, "split", **what)


async def undo(door: At, request: Request, group: Group, body: Undo, prefer: Prefer = None) -> Response:
    """Take a merge, split or distinction back."""
    return await _correct(door, request, group, prefer, "undo", target=body.sequence)


async def _correct(
    door: Door, request: Request, group: str, prefer: str | None, kind: OperationKind, **what: Any  # noqa: ANN401
) -> Response:  # fmt: skip
    """Request a correction, which has its place in the group's order; 200 = it was waited for."""
    await noted(door, request, kind, check_group(group), what)
    sequence = await door.change(door.memory.request, kind, group=group, **what)
    door.ingesting.appended(1)
    until = time.monotonic() + (wait_of(prefer) or 0.0)
    while True:
        found = await door.read(door.memory.operation, sequence, group=group)
        if found["state"] == "refused":
            raise InputError(str(found["result"]["error"]))
        if found["state"] == "done":
            return JSONResponse({"sequence": sequence, "state": "done", **found["result"]})
        if (pause := until - time.monotonic()) <= 0:
            where = {"location": f"/v1/groups/{group}/operations/{sequence}"}
            return JSONResponse({"sequence": sequence, "state": "pending"}, 202, where)
        await door.ingesting.step(min(pause, _LOOK_S))


async def retract(door: At, request: Request, group: Group, body: Withdrawal) -> Response:
    """Take episodes out of what is believed; reads with an earlier known_at still show them."""
    return await _withdrawn(door, request, group, "retract", body.model_dump())


async def remove(door: At, request: Request, group: Group, body: Withdrawal) -> Response:
    """Erase episodes and every trace of them."""
    return await _withdrawn(door, request, group, "remove", body.model_dump())


async def remove_episode(door: At, request: Request, group: Group, identifier: Identifier) -> Response:
    """Erase one episode and every trace of it."""
    return await _withdrawn(door, request, group, "remove", {"episodes": [identifier]})


async def remove_group(
    door: At, request: Request, group: Group, confirm: Annotated[str, Query(max_length=128)]
) -> Response:
    """Erase a whole group; `confirm` repeats its name."""
    if confirm != group:
        raise InputError("confirm must repeat the name of the group", field="confirm")
    return await _withdrawn(door, request, group, "remove", {"everything": True})


async def _withdrawn(
    door: Door, request: Request, group: str, verb: Literal["retract", "remove"], chosen: dict[str, Any]
) -> Response:
    await noted(door, request, verb, check_group(group), chosen)
    return JSONResponse(await door.change(getattr(door.memory, verb), group=group, **chosen))
