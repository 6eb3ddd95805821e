"""Rows of a request to drafts; drafts of many requests into the log, in one transaction (group commit)."""

from __future__ import annotations

import asyncio
import io
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context

from kgray import times
from kgray.errors import InputError
from kgray.http.metrics import Metrics
from kgray.http.problems import Malformed, Overloaded, TooLarge
from kgray.intake.drafts import Defaults, Refusal, draft_from, parse_json
from kgray.intake.files import Submitted
from kgray.intake.formats import json_lines
from kgray.ledger import Acceptance, accept
from kgray.ports import Store
from kgray.records import Draft
from kgray.spans import span

MAX_ROWS = 1000  # of one request
GATHER_S, GATHER_ROWS = 0.005, 200  # what one transaction waits for, and holds
_ANSWERED = 8  # requests in one pass of the event loop, whose answers would hold up all others
MAX_HELD = 20_000  # rows that wait for a transaction
_KEY = re.compile(r"[\x21-\x7e]{1,200}")
_NDJSON = ("application/x-ndjson", "application/jsonl", "application/ndjson", "application/x-jsonlines")


def rows_of(body: bytes, content_type: str) -> Iterator[tuple[int, object]]:
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


def drafted(rows: Iterable[tuple[int, object]], group: str, key: str | None) -> Iterator[Submitted | Refusal]:
    """Yield what can be accepted into a group, and what not. key: gives rows an id, `KEY#LINE`."""
    if key is not None and not _KEY.fullmatch(key):
        raise InputError("Idempotency-Key must be 1 to 200 printable ASCII characters without blanks")
    for line, row in rows:
        try:
            if isinstance(row, InputError):
                raise row
            if isinstance(row, dict):
                row = _placed(row, line, group, key)  # noqa: PLW2901 - the row as it is taken
            yield Submitted(draft=draft_from(row, Defaults(group=group)), file="", line=line)
        except InputError as error:
            yield Refusal(file="", line=line, field=error.field, reason=str(error))


def _placed(row: dict[str, Any], line: int, group: str, key: str | None) -> dict[str, Any]:
    if row.get("group") not in (None, group):
        raise InputError("a row's group must be the one of the address", field="group")
    if key is not None and row.get("id") is None:
        return row | {"id": f"{key}#{line}"}
    return row


def bounded(items: Iterable[Submitted | Refusal]) -> list[Submitted | Refusal]:
    """Return the items. Raises TooLarge for more rows than a request may have, InputError for none."""
    found = list(islice(items, MAX_ROWS + 1))
    if len(found) > MAX_ROWS:
        raise TooLarge(f"more than {MAX_ROWS} rows: send several requests, or use /backfill")
    if not found:
        raise InputError("the body holds no row")
    return found


@dataclass(slots=True)
class _Waiting:
    drafts: Sequence[Draft]
    how: tuple[tuple[str, bool], ...]
    answered: asyncio.Future[list[Acceptance]]
    asked: trace.SpanContext


class Appends:
    """Appends drafts of concurrent requests together; each request gets the answers of its own."""

    def __init__(self, store: Store, metrics: Metrics) -> None:
        """Append to a store, in a thread of its own."""
        self._store, self._metrics = store, metrics
        self._waiting: deque[_Waiting] = deque()
        self._held = 0  # rows that are not answered yet
        self._came, self._enough = asyncio.Event(), asyncio.Event()
        self._closing = False
        self._thread = ThreadPoolExecutor(1, "kgray-append")

    async def accept(self, drafts: Sequence[Draft], **how: bool) -> list[Acceptance]:
        """Return one outcome a draft; durable then (R19). how: options of `ledger.accept`.

        Raises Overloaded where too many rows wait, and what `accept` raises: then nothing was accepted.
        """
        if self._held + len(drafts) > MAX_HELD:
            raise Overloaded(f"{self._held} rows wait to be accepted: try again")
        answered: asyncio.Future[list[Acceptance]] = asyncio.get_running_loop().create_future()
        asked = trace.get_current_span().get_span_context()
        self._waiting.append(_Waiting(drafts, tuple(sorted(how.items())), answered, asked))
        self._held += len(drafts)
        self._came.set()
        if self._held >= GATHER_ROWS:
            self._enough.set()
        return await answered  # a client that goes away does not take its rows out of a transaction

    async def run(self) -> None:
        """Append until `close`."""
        while together := await self._gathered():
            for how in dict.fromkeys(one.how for one in together):
                alike = [one for one in together if one.how == how]
                for part in [[one] for one in alike] if dict(how).get("whole") else [alike]:
                    await self._append(part)  # of one that is accepted whole, the refusal is its own
            self._held -= sum(len(one.drafts) for one in together)

    async def close(self) -> None:
        """Let `run` end when everything that waits is appended."""
        self._closing = True
        self._came.set()
        self._enough.set()

    async def _gathered(self) -> list[_Waiting]:
        """Return the requests that are appended together; none when it is closed."""
        await self._came.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(GATHER_S):
                await self._enough.wait()
        together, rows = list[_Waiting](), 0
        while self._waiting and rows < GATHER_ROWS:
            together.append(self._waiting.popleft())
            rows += len(together[-1].drafts)
        if not (self._waiting or self._closing):
            self._came.clear()
            self._enough.clear()
        return together

    async def _append(self, together: Sequence[_Waiting]) -> None:
        drafts = [draft for one in together for draft in one.drafts]
        self._metrics.batch_rows.observe(len(drafts))
        loop = asyncio.get_running_loop()

        def work() -> list[Acceptance]:
            return accept(self._store, drafts, now=times.now(), **dict(together[0].how))

        try:
            links = [trace.Link(one.asked) for one in together if one.asked.is_valid]
            about = {"kgray.rows": len(drafts)}
            with (
                self._metrics.accept_seconds.time(),
                span("kgray accept", about, context=Context(), links=links),
            ):
                answers = iter(await loop.run_in_executor(self._thread, work))
        except Exception as error:  # noqa: BLE001 - it is the answer of each request
            for one in together:
                with suppress(asyncio.InvalidStateError):
                    one.answered.set_exception(error)
            return
        for count, one in enumerate(together, 1):
            own = [next(answers) for _ in one.drafts]
            with suppress(asyncio.InvalidStateError):
                one.answered.set_result(own)
            if not count % _ANSWERED:
                await asyncio.sleep(0)
