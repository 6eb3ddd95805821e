"""What the routes of a group do: read, append, correct and remove."""

from __future__ import annotations

import asyncio
import io
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from inspect import Parameter, Signature, signature
from itertools import islice
from operator import attrgetter
from typing import Annotated, Any, Literal

from anyio import to_thread
from fastapi import Depends, Header, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from opentelemetry import trace
from pydantic import ValidationError
from starlette.responses import JSONResponse, StreamingResponse

from kgray import kinds, times
from kgray.client import original
from kgray.errors import InputError, KgrayError
from kgray.http import models
from kgray.http.door import LONGEST_S, At, Door, check_known, check_scope, holder_of, noted
from kgray.http.models import Group, Identifier, Limit, MomentOf, Nodes, Number, Withdrawal
from kgray.http.problems import Conflict, Malformed, TooLarge, told
from kgray.intake.drafts import Defaults, Refusal, draft_from, parse_json
from kgray.intake.files import Submitted
from kgray.intake.formats import MAX_LINE, json_lines
from kgray.ledger import Acceptance, Foresight, NoneAccepted
from kgray.ledger import retry as retried
from kgray.memory.ingesting import ledger_of
from kgray.reads import EPISODE_HEADS_AT
from kgray.records import OperationKind, check_group

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
    "around": Annotated[int, Query(ge=0, le=12)],
    "community": Annotated[str | None, Query(max_length=1000)],
    "most_facts": Annotated[int | None, Query(ge=1, le=20_000)],
    "limit": Limit,
    "level": Annotated[int | None, Query(ge=0, le=64)],
    "since": Number,
    "after": Number,
    "state": Literal["accepted", "extracted", "committed", "failed", "withdrawn"] | None,
}
TAGGED = frozenset(
    "history show neighbourhood provenance overview diff dump export".split()
)  # without a clock: they have an ETag
_LINES = 500  # of a dump, at a time
Prefer = Annotated[
    str | None, Header(max_length=200, description="wait=N: answer when it is done, at most N s")
]
_ENCODER = json.JSONEncoder(separators=(",", ":"))  # made once: appends are many
_WAIT = re.compile(r"(?:^|[,;\s])wait=(\d{1,4})(?:$|[,;\s])")
_KEY = re.compile(r"[\x21-\x7e]{1,200}")
_NDJSON = ("application/x-ndjson", "application/jsonl", "application/ndjson", "application/x-jsonlines")
_LOOK_S = 0.5  # between two looks of a stream, and where another process ingests
_MAX_ROWS = 1000  # of one request
Row = Submitted | Refusal


async def search(door: At, group: Group, body: models.Search) -> Response:
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


async def context(door: At, group: Group, body: models.ContextOf) -> Response:
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
        found = _plain(await door.read(attrgetter(verb)(door.memory), **asked))
        return JSONResponse({gives: found} if gives else found, headers=headers)

    given = [Parameter("door", Parameter.KEYWORD_ONLY, annotation=At)]
    given.append(Parameter("request", Parameter.KEYWORD_ONLY, annotation=Request))
    for name, one in signature(original(verb)).parameters.items():
        if name in _TYPES or "When" in str(one.annotation):
            default = Parameter.empty if name == "group" else one.default
            kind = Nodes if verb == "neighbourhood" and name == "limit" else _TYPES.get(name, MomentOf)
            given.append(one.replace(kind=Parameter.KEYWORD_ONLY, annotation=kind, default=default))
    handle.__signature__ = Signature(given)  # type: ignore[attr-defined]
    handle.__name__, handle.__doc__ = verb.replace(".", "_"), original(verb).__doc__
    return handle


def _plain(found: Any) -> Any:  # noqa: ANN401 - JSON, or values that have their form
    if isinstance(found, list):
        return [_plain(one) for one in found]
    return found.as_dict() if hasattr(found, "as_dict") else found


async def status(door: At, group: Group) -> Response:
    """Return the ledger: episodes by state, what models have cost."""
    counts = await door.read(door.memory.status, group=group)
    ingesting = {"fault": door.ingesting.fault or None}
    return JSONResponse(ledger_of(counts) | {"ingesting": ingesting, "embedder": door.memory.admin.vectors()})


async def groups(door: At, request: Request) -> Response:
    """Return the groups that the key reaches, with counts."""
    sizes, key = await door.read(door.memory.groups), holder_of(request)
    rows = [size.as_dict() for size in sizes if key is None or key.reaches(size.group)]
    return JSONResponse({"groups": rows})


async def dump(door: At, request: Request, group: Group, known_at: MomentOf = None) -> Response:
    """Return the whole graph as sorted JSON lines."""
    same, headers = await door.known(request, group)
    if same is not None:
        return same
    lines = await door.read(door.memory.dump, group=group, known_at=known_at)

    def pieces() -> Iterator[str]:
        for start in range(0, len(lines), _LINES):
            yield "".join(f"{line}\n" for line in lines[start : start + _LINES])

    return StreamingResponse(pieces(), media_type="application/x-ndjson", headers=headers)


_Since = Annotated[int | None, Query(ge=0, le=1 << 62)]


async def _counted(door: At, group: Group, since: _Since = None) -> AsyncIterator[None]:  # noqa: ARG001
    """Hold a place for a stream, if there is one: taken in the same step, because many may come at once.

    A request that is at fault is refused first: to come again would not help it.
    """
    check_group(group)
    with door.stream():
        yield


async def events(
    door: At, group: Group, _: Annotated[None, Depends(_counted)],
    last_event_id: Annotated[str | None, Header(max_length=20)] = None,
    since: _Since = None,
) -> Response:  # fmt: skip
    """Stream commits as server-sent events; `id` is the commit's number, which `Last-Event-ID` resumes."""
    resumed = int(last_event_id) if last_event_id and last_event_id.isdecimal() else since
    at = (await door.head(group)).last_recorded if resumed is None else resumed
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(_stream(door, group, at), headers=headers, media_type="text/event-stream")


async def _stream(door: Door, group: str, at: int) -> AsyncIterator[str]:
    spoke = time.monotonic()
    try:
        yield f": commits of {group} after {at}\n\n"
        while not door.ending:
            head = await door.head(group)
            if head.last_recorded > at:
                found = await door.changes(group, at, head.last_recorded)
                at, spoke = max(found["last"], at if found["more"] else head.last_recorded), time.monotonic()
                yield "".join(
                    f"id: {one['commit']}\nevent: commit\ndata: {json.dumps(one)}\n\n"
                    for one in found["commits"]
                )
            elif time.monotonic() - spoke > 15.0:
                spoke = time.monotonic()
                yield ": nothing new\n\n"
            await asyncio.sleep(_LOOK_S)
    except KgrayError as error:  # the answer has begun: the client comes back with Last-Event-ID
        yield f": ended: {error}\n\n"


def _wait_of(prefer: str | None) -> float | None:
    """Return the seconds of `Prefer: wait=N` (RFC 7240)."""
    found = _WAIT.search(prefer or "")
    return None if found is None else min(float(found[1]), LONGEST_S)


async def append(request: Request) -> Response:
    """Append an object, an array or NDJSON of input rows; durable when it is answered."""
    door: Door = request.app.state.door
    group, headers = request.path_params["group"], request.headers
    check_scope(holder_of(request), "add", group)
    check_known(request, models.Appending.model_fields)
    check_group(group)
    door.check_room()
    body, kind = await request.body(), headers.get("content-type", "application/json")
    try:
        how = models.Appending.model_validate(dict(request.query_params))
    except ValidationError as error:
        faults = [{**one, "loc": ("query", *one["loc"])} for one in error.errors()]
        raise RequestValidationError(faults) from None

    def parsed() -> list[Row]:
        rows = _drafted(_rows_of(body, kind), group, headers.get("idempotency-key"))
        found = list(islice(rows, _MAX_ROWS + 1))
        if len(found) > _MAX_ROWS:
            raise TooLarge(f"more than {_MAX_ROWS} rows: send several requests, or use /backfill")
        if not found:
            raise InputError("the body holds no row")
        return found

    rows = parsed() if len(body) < 1 << 14 else await to_thread.run_sync(parsed)  # not in the event loop
    pairs, refused = await appended(
        door, rows, dry_run=how.dry_run, whole=how.on_error == "stop", replace=how.replace, again=how.again
    )
    ended: dict[str, int] | None = {"pending": 0, "dry_run": True} if how.dry_run else None
    if ended is None and (wait := _wait_of(headers.get("prefer"))) is not None:
        ended = await _ended(door, group, [one for _, one in pairs], wait)
    return _answered(request, pairs, refused, ended)


def _rows_of(body: bytes, content_type: str) -> Iterator[tuple[int, object]]:
    """Yield (line from 1, row or InputError) of an object, an array or NDJSON. Raises Malformed."""
    if content_type.partition(";")[0].strip().lower() in _NDJSON:
        yield from ((line or 0, row) for line, row in json_lines(io.BytesIO(body)))
        return
    try:
        found = parse_json(body.decode())
    except UnicodeDecodeError:
        raise Malformed("the body is not valid UTF-8") from None
    except InputError as error:
        hint = "; for one object a line, send content-type application/x-ndjson"
        raise Malformed(f"the body is {error}{hint}", field=error.field) from None
    yield from enumerate(found if isinstance(found, list) else [found], 1)


def _drafted(rows: Iterable[tuple[int, object]], group: str, key: str | None) -> Iterator[Row]:
    """Yield what can be accepted into a group, and what not. key: gives rows an id, `KEY#LINE`."""
    if key is not None and not _KEY.fullmatch(key):
        raise InputError("Idempotency-Key must be 1 to 200 printable ASCII characters without blanks")
    for line, row in rows:
        try:
            if isinstance(row, InputError):
                raise row
            if isinstance(row, dict):
                if row.get("group") not in (None, group):
                    raise InputError("a row's group must be the one of the address", field="group")
                if key is not None and row.get("id") is None:
                    row["id"] = f"{key}#{line}"
            yield Submitted(draft=draft_from(row, Defaults(group=group)), file="", line=line)
        except InputError as error:
            yield Refusal(file="", line=line, field=error.field, reason=str(error))


async def appended(
    door: Door, items: Sequence[Row], *, dry_run: bool = False, whole: bool = False, **how: bool
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
            answers = [one for one in stopped.outcomes if one.status == "conflict"]
            rows = [row for row, one in zip(rows, stopped.outcomes, strict=True) if one.status == "conflict"]
        door.ingesting.appended(sum(one.status == "accepted" for one in answers))
    pairs = list(zip(rows, answers, strict=True))
    for row, one in pairs:
        if one.status == "conflict":
            refused.append(Refusal(file="", line=row.line, field="id", reason=one.reason))
    return ([] if whole and refused else pairs), refused


def _answered(
    request: Request, pairs: Sequence[tuple[Submitted, Acceptance]], refused: Sequence[Refusal],
    ended: dict[str, int] | None,
) -> Response:  # fmt: skip
    """Return 202, 200 where it was waited for, or the problem where every row was refused."""
    rows: dict[str, list[dict[str, Any]]] = {"accepted": [], "duplicate": [], "conflict": []}
    for row, one in pairs:
        rows[one.status].append({"id": one.id, "client_id": row.draft.client_id, "sequence": one.sequence})
    accepted, duplicates = rows["accepted"], rows["duplicate"]
    refusals = [one.as_dict() for one in refused]
    if refused and not (accepted or duplicates):
        taken = all(one.field == "id" and "is taken" in one.reason for one in refused)
        faults = [
            {"pointer": f"/{(one.line or 1) - 1}/{one.field or ''}", "detail": one.reason} for one in refused
        ]
        detail = f"{len(refused)} refused, nothing was accepted: {refused[0].reason}"
        kind = Conflict if taken else InputError
        return told(request, kind, detail, faults=faults, more={"refusals": refusals})
    counts = {"duplicate": len(duplicates), "refused": len(refusals), "refusals": refusals}
    answer = {"accepted": accepted, **counts, "duplicates": duplicates, **(ended or {})}
    done = ended is not None and not ended["pending"]
    return Response(_ENCODER.encode(answer), 200 if done else 202, media_type="application/json")


async def _ended(door: Door, group: str, answers: Sequence[Acceptance], wait_s: float) -> dict[str, int]:
    """Wait until these rows are committed or failed, at most so long; return how many are."""
    left = {one.sequence for one in answers if one.sequence is not None and one.status != "conflict"}
    ended = {"committed": 0, "failed": 0}
    until = time.monotonic() + wait_s
    while True:
        found = await door.call(lambda: list(door.memory.store.rows(EPISODE_HEADS_AT, group, sorted(left))))
        for row in found:
            if row.state >= kinds.COMMITTED:
                ended["failed" if row.state == kinds.FAILED else "committed"] += 1
                left.discard(row.sequence)
        if not left or (pause := until - time.monotonic()) <= 0:
            return ended | {"pending": len(left)}
        await door.ingesting.step(min(pause, _LOOK_S))


async def backfill(door: At, request: Request, group: Group, again: bool = False) -> Response:
    """Append streamed NDJSON of any length to the bulk lane; rows with ids can be sent again."""
    check_group(group)
    door.check_room()
    counts, refusals = {"accepted": 0, "duplicate": 0, "refused": 0}, list[Refusal]()
    async for first, block in _blocks(request):
        rows = _drafted(((n or 0, row) for n, row in json_lines(io.BytesIO(block), first)), group, None)
        while portion := list(islice(rows, 500)):  # appended together
            pairs, refused = await appended(door, portion, again=again, bulk=True)
            for status in ("accepted", "duplicate"):
                counts[status] += sum(one.status == status for _, one in pairs)
            counts["refused"] += len(refused)
            refusals = [*refusals, *refused][:100]  # the first are told
    return JSONResponse({**counts, "refusals": [one.as_dict() for one in refusals]}, 202)


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


async def retry(door: At, group: Group, body: models.Retry) -> Response:
    """Take failed episodes up again: all, or these."""
    check_group(group)
    door.memory.check_embedder()
    count = await door.call(lambda: retried(door.memory.store, group, body.episodes, now=times.now()))
    door.ingesting.appended(count)
    return JSONResponse({"accepted": count}, 202)


# Of a correction: its body, what that asks of `Memory.request`, what it does.
CORRECTIONS: Mapping[OperationKind, tuple[type[models.Body], Callable[[Any], dict[str, Any]], str]] = {
    "merge": (models.Merge, lambda body: {"entities": tuple(body.entities)}, "Make one entity of two."),
    "distinct": (models.Merge, lambda body: {"entities": tuple(body.entities)}, "Hold two entities apart."),
    "split": (
        models.Split, lambda body: {"entities": (body.entity,), "surfaces": tuple(body.surfaces)},
        "Make the mentions with these names another entity.",
    ),
    "undo": (models.Undo, lambda body: {"target": body.sequence}, "Take a merge, split or distinction back."),
}  # fmt: skip


def corrects(kind: OperationKind) -> Callable[..., Any]:
    """Return the handler of a correction, which takes its place in the group's order."""
    body_of, what_of, said = CORRECTIONS[kind]

    async def handle(
        door: At, request: Request, group: Group, body: Any, prefer: Prefer = None  # noqa: ANN401
    ) -> Response:  # fmt: skip
        what = what_of(body)
        await noted(door, request, kind, check_group(group), what)
        sequence = await door.change(door.memory.request, kind, group=group, **what)
        door.ingesting.appended(1)
        until = time.monotonic() + (_wait_of(prefer) or 0.0)
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

    handle.__annotations__["body"] = body_of
    handle.__name__, handle.__doc__ = kind, said
    return handle


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
