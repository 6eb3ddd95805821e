"""Handlers of a group's routes: read, append, correct and remove."""

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

from kgray.domain import times
from kgray.domain.json_form import as_json
from kgray.domain.records import OperationKind, check_group
from kgray.errors import InputError, KgrayError
from kgray.io.intake.drafts import Defaults, Refusal, draft_from, parse_json
from kgray.io.intake.files import Submitted
from kgray.io.intake.formats import MAX_LINE, json_lines
from kgray.memory.client import original
from kgray.memory.remote import VERBS
from kgray.schema import kinds
from kgray.schema.reads import EPISODE_HEADS_AT
from kgray.server import models
from kgray.server.door import LONGEST_S, At, Door, check_known, check_scope, holder_of, noted
from kgray.server.models import Group, Identifier, Limit, MomentOf, Nodes, Number, Withdrawal
from kgray.server.problems import Conflict, Malformed, TooLarge, problem_of
from kgray.server.streams import Events, comment, event, streamed
from kgray.storage.ledger import Acceptance, AcceptancePreview, NoneAccepted
from kgray.storage.ledger import retry_failed as retried

# The types of the parameters of the memory's methods; all others are moments.
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
)  # answers that do not depend on the clock: they have an ETag
_LINES = 500  # of a dump, in one piece
Prefer = Annotated[
    str | None, Header(max_length=200, description="wait=N: answer after the work, at most N s")
]
_ENCODER = json.JSONEncoder(separators=(",", ":"))  # created once: appends are frequent
_WAIT = re.compile(r"(?:^|[,;\s])wait=(\d{1,4})(?:$|[,;\s])")
_KEY = re.compile(r"[\x21-\x7e]{1,200}")
_NDJSON = ("application/x-ndjson", "application/jsonl", "application/ndjson", "application/x-jsonlines")
_LOOK_S = 0.5  # between two reads of a stream, and while another process ingests
_MAX_ROWS = 1000  # of a request
Row = Submitted | Refusal


async def search(door: At, group: Group, body: models.Search) -> Any:  # noqa: ANN401 - `replies.Hits`
    """Return ranked hits: facts that hold (now, or at `as_of`), entities, episodes."""
    began = time.perf_counter()
    result = await door.read(door.memory.explain, body.query, group=group, **body.arguments())
    trace.get_current_span().set_attribute("kgray.hits", len(result.hits))
    rows = [hit.as_dict() | ({"signals": dict(hit.signals)} if body.explain else {}) for hit in result.hits]
    answer: dict[str, Any] = {"hits": rows, "took_ms": round((time.perf_counter() - began) * 1000, 3)}
    if body.explain:
        names = ("scope", "id", "text")
        omitted = [dict(zip(names, row, strict=True)) for row in result.said_above]
        answer |= {"left_out": omitted, "floor": result.floor}
    return answer


async def context(door: At, group: Group, body: models.ContextOf) -> Any:  # noqa: ANN401 - as above
    """Return a text to put into a prompt, within a budget of tokens."""
    result = await door.read(door.memory.context, body.query, group=group, **body.arguments())
    return result.as_dict()


def reads(verb: str) -> Callable[..., Any]:
    """Return the handler of a method of `VERBS`, with the method's parameters and result."""
    part = VERBS[verb].part

    async def handle(door: Door, request: Request, **arguments: Any) -> Response:  # noqa: ANN401
        unchanged, headers = (
            await door.not_modified(request, arguments["group"]) if verb in TAGGED else (None, None)
        )
        if unchanged is not None:
            return unchanged
        result = as_json(await door.read(attrgetter(verb)(door.memory), **arguments))
        # The JSON form is made already: pydantic would write moments in another form, and take longer.
        return JSONResponse({part: result} if part else result, headers=headers)

    parameters = [Parameter("door", Parameter.KEYWORD_ONLY, annotation=At)]
    parameters.append(Parameter("request", Parameter.KEYWORD_ONLY, annotation=Request))
    for name, parameter in signature(original(verb)).parameters.items():
        if name in _TYPES or "When" in str(parameter.annotation):
            default = Parameter.empty if name == "group" else parameter.default
            kind = Nodes if verb == "neighbourhood" and name == "limit" else _TYPES.get(name, MomentOf)
            parameters.append(
                parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=kind, default=default)
            )
    handle.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    handle.__name__, handle.__doc__ = verb.replace(".", "_"), original(verb).__doc__
    return handle


async def status(door: At, group: Group) -> Any:  # noqa: ANN401 - `replies.Status`
    """Return the ledger: episodes by state, cost of models."""
    ledger = as_json(await door.read(door.memory.status, group=group))
    ingesting = {"fault": door.ingesting.fault or None}
    return ledger | {"ingesting": ingesting, "embedder": door.memory.admin.vectors()}


async def groups(door: At, request: Request) -> Any:  # noqa: ANN401 - `replies.Groups`
    """Return the groups that the key reaches, with counts."""
    sizes, key = await door.read(door.memory.groups), holder_of(request)
    return {"groups": [size for size in sizes if key is None or key.reaches(size.group)]}


async def dump(door: At, request: Request, group: Group, known_at: MomentOf = None) -> Response:
    """Return the whole graph as sorted JSON lines."""
    unchanged, headers = await door.not_modified(request, group)
    if unchanged is not None:
        return unchanged
    lines = await door.read(door.memory.dump, group=group, known_at=known_at)

    def pieces() -> Iterator[str]:
        for start in range(0, len(lines), _LINES):
            yield "".join(f"{line}\n" for line in lines[start : start + _LINES])

    return StreamingResponse(pieces(), media_type="application/x-ndjson", headers=headers)


_Since = Annotated[int | None, Query(ge=0, le=1 << 62)]


async def _counted(door: At, group: Group, since: _Since = None) -> AsyncIterator[None]:  # noqa: ARG001
    """Reserve a place for a stream in the same step as the check, because many requests may arrive at once.

    A faulty request is refused first: a retry would not help.
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
    return streamed(_commits(door, group, at))


async def _commits(door: Door, group: str, at: int) -> Events:
    try:
        yield comment(f"commits of {group} after {at}")
        while not door.ending:
            head = await door.head(group)
            if head.last_recorded > at:
                changes = await door.changes(group, at, head.last_recorded)
                at = max(changes.last, at if changes.more else head.last_recorded)
                for commit in changes.commits:
                    yield event("commit", as_json(commit), str(commit.commit))
            await asyncio.sleep(_LOOK_S)
    except KgrayError as error:  # the answer has begun: the client reconnects with Last-Event-ID
        yield comment(f"ended: {error}")


def wait_of(prefer: str | None) -> float | None:
    """Return the seconds of `Prefer: wait=N` (RFC 7240)."""
    match = _WAIT.search(prefer or "")
    return None if match is None else min(float(match[1]), LONGEST_S)


async def append(request: Request) -> Response:
    """Append an object, an array or NDJSON of input rows; the answer comes when they are durable."""
    door: Door = request.app.state.door
    group, headers = request.path_params["group"], request.headers
    check_scope(holder_of(request), "add", group)
    check_known(request, models.Appending.model_fields)
    check_group(group)
    door.check_room()
    body, kind = await request.body(), headers.get("content-type", "application/json")
    try:
        options = models.Appending.model_validate(dict(request.query_params))
    except ValidationError as error:
        faults = [{**fault, "loc": ("query", *fault["loc"])} for fault in error.errors()]
        raise RequestValidationError(faults) from None

    def parsed() -> list[Row]:
        rows = _drafted(_rows_of(body, kind), group, headers.get("idempotency-key"))
        items = list(islice(rows, _MAX_ROWS + 1))
        if len(items) > _MAX_ROWS:
            raise TooLarge(f"more than {_MAX_ROWS} rows: send several requests, or use /backfill")
        if not items:
            raise InputError("the body holds no row")
        return items

    rows = parsed() if len(body) < 1 << 14 else await to_thread.run_sync(parsed)  # not in the event loop
    pairs, refused = await appended(
        door,
        rows,
        dry_run=options.dry_run,
        all_or_none=options.on_error == "stop",
        replace=options.replace,
        again=options.again,
    )
    ended: dict[str, int] | None = {"pending": 0, "dry_run": True} if options.dry_run else None
    if ended is None and (wait := wait_of(headers.get("prefer"))) is not None:
        ended = await _ended(door, group, [fault for _, fault in pairs], wait)
    return _answered(request, pairs, refused, ended)


def _rows_of(body: bytes, content_type: str) -> Iterator[tuple[int, object]]:
    """Yield (line from 1, row or InputError) of an object, an array or NDJSON. Raises Malformed."""
    if content_type.partition(";")[0].strip().lower() in _NDJSON:
        yield from ((line or 0, row) for line, row in json_lines(io.BytesIO(body)))
        return
    try:
        document = parse_json(body.decode())
    except UnicodeDecodeError:
        raise Malformed("the body is not valid UTF-8") from None
    except InputError as error:
        hint = "; for an object in each line, send content-type application/x-ndjson"
        raise Malformed(f"the body is {error}{hint}", field=error.field) from None
    yield from enumerate(document if isinstance(document, list) else [document], 1)


def _drafted(rows: Iterable[tuple[int, object]], group: str, key: str | None) -> Iterator[Row]:
    """Yield a draft or a refusal for each row. key: gives rows without an id the id `KEY#LINE`."""
    if key is not None and not _KEY.fullmatch(key):
        raise InputError("Idempotency-Key must be 1 to 200 printable ASCII characters without blanks")
    for line, row in rows:
        try:
            if isinstance(row, InputError):
                raise row
            if isinstance(row, dict):
                if row.get("group") not in (None, group):
                    raise InputError("a row's group must be the group of the address", field="group")
                if key is not None and row.get("id") is None:
                    row["id"] = f"{key}#{line}"
            yield Submitted(draft=draft_from(row, Defaults(group=group)), file="", line=line)
        except InputError as error:
            yield Refusal(file="", line=line, field=error.field, reason=str(error))


async def appended(
    door: Door, items: Sequence[Row], *, dry_run: bool = False, all_or_none: bool = False, **options: bool
) -> tuple[list[tuple[Submitted, Acceptance]], list[Refusal]]:
    """Append the acceptable rows; return each with its outcome, and the refusals.

    dry_run: append nothing, and return the outcomes; all_or_none: append nothing if a row is refused
    """
    refused = [item for item in items if isinstance(item, Refusal)]
    rows = [item for item in items if isinstance(item, Submitted) and not (all_or_none and refused)]
    drafts = [row.draft for row in rows]
    if dry_run:
        answers = await door.call(
            lambda: AcceptancePreview(door.memory.store, **options).of(drafts, now=times.now())
        )
    else:
        try:
            answers = await door.appends.accept(drafts, whole=all_or_none, **options) if rows else []
        except NoneAccepted as stopped:
            answers = [item for item in stopped.outcomes if item.status == "conflict"]
            rows = [
                row for row, item in zip(rows, stopped.outcomes, strict=True) if item.status == "conflict"
            ]
        door.ingesting.appended(sum(item.status == "accepted" for item in answers))
    pairs = list(zip(rows, answers, strict=True))
    for row, item in pairs:
        if item.status == "conflict":
            refused.append(Refusal(file="", line=row.line, field="id", reason=item.reason))
    return ([] if all_or_none and refused else pairs), refused


def _answered(
    request: Request, pairs: Sequence[tuple[Submitted, Acceptance]], refused: Sequence[Refusal],
    ended: dict[str, int] | None,
) -> Response:  # fmt: skip
    """Return 202, 200 if the rows have ended, or the problem if every row was refused."""
    rows: dict[str, list[dict[str, Any]]] = {"accepted": [], "duplicate": [], "conflict": []}
    for row, item in pairs:
        rows[item.status].append({"id": item.id, "client_id": row.draft.client_id, "sequence": item.sequence})
    accepted, duplicates = rows["accepted"], rows["duplicate"]
    refusals = [item.as_dict() for item in refused]
    if refused and not (accepted or duplicates):
        are_ids_taken = all(item.field == "id" and "is taken" in item.reason for item in refused)
        faults = [
            {"pointer": f"/{(item.line or 1) - 1}/{item.field or ''}", "detail": item.reason}
            for item in refused
        ]
        detail = f"{len(refused)} refused, nothing was accepted: {refused[0].reason}"
        kind = Conflict if are_ids_taken else InputError
        return problem_of(request, kind, detail, faults=faults, members={"refusals": refusals})
    counts = {"duplicate": len(duplicates), "refused": len(refusals), "refusals": refusals}
    answer = {"accepted": accepted, **counts, "duplicates": duplicates, **(ended or {})}
    is_complete = ended is not None and not ended["pending"]
    return Response(_ENCODER.encode(answer), 200 if is_complete else 202, media_type="application/json")


async def _ended(door: Door, group: str, answers: Sequence[Acceptance], wait_s: float) -> dict[str, int]:
    """Wait until these rows are committed or failed, at most wait_s; return their counts."""
    remaining = {answer.sequence for answer in answers if answer.status != "conflict"}
    ended = {"committed": 0, "failed": 0}
    deadline = time.monotonic() + wait_s
    while True:
        heads = await door.call(
            lambda: list(door.memory.store.rows(EPISODE_HEADS_AT, group, sorted(remaining)))
        )
        for row in heads:
            if row.state >= kinds.COMMITTED:
                ended["failed" if row.state == kinds.FAILED else "committed"] += 1
                remaining.discard(row.sequence)
        if not remaining or (pause := deadline - time.monotonic()) <= 0:
            return ended | {"pending": len(remaining)}
        await door.ingesting.step(min(pause, _LOOK_S))


async def backfill(door: At, request: Request, response: Response, group: Group, again: bool = False) -> Any:  # noqa: ANN401 - `replies.Uploaded`
    """Append streamed NDJSON of any length to the bulk lane; rows with ids can be sent again."""
    check_group(group)
    door.check_room()
    counts, refusals = {"accepted": 0, "duplicate": 0, "refused": 0}, list[Refusal]()
    async for first, block in _blocks(request):
        rows = _drafted(((n or 0, row) for n, row in json_lines(io.BytesIO(block), first)), group, None)
        while portion := list(islice(rows, 500)):  # appended together
            pairs, refused = await appended(door, portion, again=again, bulk=True)
            for status in ("accepted", "duplicate"):
                counts[status] += sum(outcome.status == status for _, outcome in pairs)
            counts["refused"] += len(refused)
            refusals = [*refusals, *refused][:100]  # the first are listed
    response.status_code = 202
    return {**counts, "refusals": [outcome.as_dict() for outcome in refusals]}


async def _blocks(request: Request) -> AsyncIterator[tuple[int, bytes]]:
    """Yield (number of the first line, complete lines) as a body arrives."""
    buffer, first = b"", 1
    async for chunk in request.stream():
        lines, newline, buffer = (buffer + chunk).rpartition(b"\n")
        if len(buffer) > MAX_LINE:
            raise TooLarge(f"line {first} is longer than {MAX_LINE >> 20} MiB")
        if newline:
            yield first, lines
            first += lines.count(b"\n") + 1
    if buffer.strip():
        yield first, buffer


async def retry(door: At, response: Response, group: Group, body: models.Retry) -> Any:  # noqa: ANN401
    """Retry failed episodes: all, or the listed episodes."""
    check_group(group)
    door.memory.check_embedder()
    count = await door.call(lambda: retried(door.memory.store, group, body.episodes, now=times.now()))
    door.ingesting.appended(count)
    response.status_code = 202
    return {"accepted": count}


# For each correction: the class of its body, the arguments of `Memory.request`, the summary.
CORRECTIONS: Mapping[OperationKind, tuple[type[models.Body], Callable[[Any], dict[str, Any]], str]] = {
    "merge": (models.Merge, lambda body: {"entities": tuple(body.entities)}, "Merge two entities."),
    "distinct": (models.Merge, lambda body: {"entities": tuple(body.entities)}, "Separate two entities."),
    "split": (
        models.Split, lambda body: {"entities": (body.entity,), "surfaces": tuple(body.surfaces)},
        "Move the mentions with these names to another entity.",
    ),
    "undo": (models.Undo, lambda body: {"target": body.sequence}, "Undo a merge, split or distinction."),
}  # fmt: skip


def corrects(kind: OperationKind) -> Callable[..., Any]:
    """Return the handler of a correction, which has its place in the group's order."""
    body_of, what_of, summary = CORRECTIONS[kind]

    async def handle(
        door: At, request: Request, response: Response, group: Group, body: Any,  # noqa: ANN401
        prefer: Prefer = None,
    ) -> Any:  # noqa: ANN401 - `replies.Requested`  # fmt: skip
        subject = what_of(body)
        await noted(door, request, kind, check_group(group), subject)
        sequence = await door.change(door.memory.request, kind, group=group, **subject)
        door.ingesting.appended(1)
        deadline = time.monotonic() + (wait_of(prefer) or 0.0)
        while True:
            operation = await door.read(door.memory.operation, sequence, group=group)
            result = operation.result or {}
            if operation.state == "refused":
                raise InputError(str(result["error"]))
            if operation.state == "done":
                return {"sequence": sequence, "state": "done", **result}
            if (pause := deadline - time.monotonic()) <= 0:
                response.status_code = 202
                response.headers["location"] = f"/v1/groups/{group}/operations/{sequence}"
                return {"sequence": sequence, "state": "pending"}
            await door.ingesting.step(min(pause, _LOOK_S))

    handle.__annotations__["body"] = body_of
    handle.__name__, handle.__doc__ = kind, summary
    return handle


async def retract(door: At, request: Request, group: Group, body: Withdrawal) -> Response:
    """Take episodes out of the graph from now on; reads with an earlier known_at still show them."""
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
    return JSONResponse(as_json(await door.change(getattr(door.memory, verb), group=group, **chosen)))
