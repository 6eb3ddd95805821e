"""The parts of a run, its calls beside the event loop, and its calls of models.

Calls that take seconds on one group run in a thread beside the loop. A thread shares the interpreter's lock
with the loop, and each call into SQLite releases the lock. So while a long call runs, short reads go to
threads too: in the loop each would wait for the lock many times.

Calls of models are the requests of an episode, with the journal, and waits for the end of an outage.
`EpisodeReading` makes the calls for the extraction of an episode.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from kgray.domain.ontology import Ontology
from kgray.domain.records import Episode, Extraction
from kgray.errors import ContentError, Cost, KgrayError, Unavailable
from kgray.graph.change import EpisodeChange
from kgray.ingest.compare import statement_floor
from kgray.ingest.outbox import Outbox, answer_change, extraction_change
from kgray.ingest.state import Answers, Decision, Quantised, Questions, ReadEpisode, Rules
from kgray.ingest.steps import (
    AtGate,
    Reading,
    Stepping,
    TextUnit,
    UnitSize,
    excerpt,
    local_extracting,
    local_resolving,
    unit_requests,
)
from kgray.io.intake import triples
from kgray.ports import (
    Answer,
    Embedder,
    Embedding,
    ExtractionRequest,
    Extractor,
    Judge,
    Judged,
    Question,
    QuestionRequest,
    RowChanges,
    Store,
    Writer,
)
from kgray.ports.ingest import Stop, total
from kgray.schema import rows
from kgray.schema.kinds import R, Read
from kgray.schema.reads import ANSWERS_TO, EXTRACTIONS_AT, REQUESTS
from kgray.settings import PipelineSettings
from kgray.storage.ledger import previous
from kgray.system.garbage import garbage_not_collected
from kgray.system.outages import OUTAGES

_PROBE_S = 0.02
_SWITCH_S = 0.001  # the maximum time that a thread keeps the lock when the loop wants it
# Two groups at a time: more would take as much processor time and more memory.
THREADS = ThreadPoolExecutor(2, thread_name_prefix="kgray-group")
_WRITES = ThreadPoolExecutor(8, thread_name_prefix="kgray-write")  # a store on a server has fewer lanes
_LONG: dict[object, float] = {}  # long call -> the switch interval before it
_T = TypeVar("_T")
_Questions = tuple[Question, ...]  # of one request
_FIRST_DELAY_S = 0.2
_LONGEST_DELAY_S = 30.0
_LOOK_UPS = 8  # of requests of a group, before the keys of its journal are read
_LONG_TEXT = 20_000  # characters, which take 25 ms of the processor to cut: longer texts are cut in a thread
OnStage = Callable[[str, float, Episode | None], None]  # stage, seconds, episode (None: of several)
OnCall = Callable[[str, str, Cost], None]  # extract or judge; "ok", or the class of the error; tokens


async def off_the_loop(store: Store, call: Callable[[], _T], *, is_large: bool = False) -> _T:
    """Return the result of a call to the store; run it in a thread if the loop would wait for it.

    is_large  the call reads enough to delay the loop

    600 episodes of 3 facts, Neo4j on the same two cores: 30 to 36 a second, 7 without the thread.
    """
    return await asyncio.to_thread(call) if store.remote or is_large or _LONG else call()


async def rows_of(store: Store, read: Read[R], group: str, values: Sequence[Any]) -> list[R]:
    """Return the rows of a declared read; [] without values."""
    return await off_the_loop(store, lambda: list(store.rows(read, group, values))) if values else []


async def at_length(call: Callable[[], _T]) -> _T:
    """Return the result of a call that may take seconds, in a thread beside the loop."""
    # Kept in whole microseconds, rounded down: without the half it would shrink with each call.
    token, former = object(), max(_LONG.values(), default=sys.getswitchinterval() + 5e-7)
    _LONG[token] = former
    sys.setswitchinterval(min(_SWITCH_S, former))
    try:
        with garbage_not_collected():
            return await asyncio.get_running_loop().run_in_executor(THREADS, call)
    finally:
        del _LONG[token]
        if not _LONG:
            sys.setswitchinterval(former)


async def tell_lag(observe: Callable[[float], None]) -> None:
    """Report the delay of the loop in seconds, again and again, until it is cancelled."""
    while True:
        due = time.monotonic() + _PROBE_S
        await asyncio.sleep(_PROBE_S)
        observe(max(0.0, time.monotonic() - due))


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts and limits of a run.

    units       the maximum size of a text that is read at once; None: no limit
    window      the maximum number of episodes in flight (runtime.window)
    streams     the maximum number of model calls in flight
    patience_s  the time that the run waits out an outage before it stops with exit 75 (R24)
    late_s      the wait of the next entry to commit for its extraction before the call is repeated
    writer      applies the changes; None = the store itself, locked by the run (`Store.writing`)
    extracting, resolving   run the steps and answer their calls; None = this process and its models
    watch       called with the seconds of each stage, counted from the read of the episode from the log
    on_call     called with the outcome of each call of a model
    """

    store: Store
    extractor: Extractor
    judge: Judge
    embedder: Embedder
    ontology: Ontology
    pipeline: PipelineSettings = field(default_factory=PipelineSettings)
    units: UnitSize | None = None
    state_bytes: int = 1 << 30
    patience_s: float = 600.0
    window: int = 128
    streams: int = 32
    late_s: float = 6.0
    writer: Writer | None = None
    extracting: Stepping[Reading, Extraction] | None = None
    resolving: Stepping[QuestionRequest, Judged] | None = None
    watch: OnStage = lambda *_: None
    on_call: OnCall = lambda *_: None

    @property
    def rules(self) -> Rules:
        """The settings that decisions depend on."""
        floor = statement_floor(self.embedder.identity)
        return Rules(ontology=self.ontology, judge=self.judge.identity, statement_floor=floor)

    async def read(self, reading: Reading, at_gate: AtGate = nullcontext) -> Extraction:
        """Return the extraction of a text; at_gate: the context of each call of the model."""
        steps = self.extracting or local_extracting(self.extractor, self.ontology)
        return await steps.carry_out(reading, at_gate)

    async def resolve(self, request: QuestionRequest, at_gate: AtGate = nullcontext) -> Judged:
        """Return the answers to questions; at_gate: as for `read`."""
        return await (self.resolving or local_resolving(self.judge)).carry_out(request, at_gate)


class Direct:
    """A writer that applies changes to the store itself, inside `Store.writing()`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def write(self, changes: Sequence[RowChanges]) -> None:
        """Apply the changes, in order, in one transaction."""
        if self._store.remote:
            await asyncio.get_running_loop().run_in_executor(_WRITES, self._store.apply, changes)
        else:
            await off_the_loop(self._store, lambda: self._store.apply(changes))


def requests_of(episode: Episode, questions: Questions, parts: Parts) -> list[QuestionRequest]:
    """Return the requests for the open questions: a single one, or with "per_node" one for each question.

    A request about a long episode shows the text unit that has most of the names in question. None while
    vectors are missing: the questions may still change.
    """
    if questions.statement_vectors:
        return []
    is_split = parts.pipeline.resolution == "per_node"
    shares = [(q,) for q in questions.open] if is_split else [tuple(questions.open)] if questions.open else []
    return [
        QuestionRequest(episode=excerpt(episode, parts.units, [q.item for q in share]), questions=share)
        for share in shares
    ]


async def settle(
    read: ReadEpisode,
    parts: Parts,
    *,
    attempt: Callable[[Answers], Awaitable[Decision]],
    embed: Callable[[list[str]], Awaitable[Iterable[Embedding]]],
    look_up: Callable[[list[str]], Awaitable[Mapping[str, Quantised | None]]],
    ask: Callable[[QuestionRequest], Awaitable[tuple[Answer, ...]]],
) -> tuple[EpisodeChange, Decision]:
    """Decide, ask the open questions, decide again, until the episode's change is final (R21).

    look_up     returns the vectors of stored statements

    Both runners and the preview settle episodes with this loop, so their results are equal (R20). It decides
    again after each answer: a question that rests on one answer alone does not wait for the others.
    """
    answers = Answers()
    calls: dict[_Questions, asyncio.Future[tuple[Answer, ...]]] = {}
    try:
        while True:
            decision = await attempt(answers)
            if decision.change is not None and not decision.questions:
                return decision.change, decision
            if texts := decision.questions.texts:
                answers.vectors.update(zip(texts, await embed(texts), strict=True))
            if ids := decision.questions.statement_vectors:
                answers.statement_vectors.update(await look_up(ids))
                continue
            for request in requests_of(read.episode, decision.questions, parts):
                if request.questions not in calls:
                    calls[request.questions] = asyncio.ensure_future(ask(request))
            for questions in await _first_ended(calls):
                answers.by_question.update(zip(questions, calls.pop(questions).result(), strict=True))
    finally:
        for call in calls.values():  # nobody needs these answers
            call.cancel()
        await asyncio.gather(*calls.values(), return_exceptions=True)


async def _first_ended(
    calls: Mapping[tuple[Question, ...], asyncio.Future[_T]],
) -> list[tuple[Question, ...]]:
    """Wait for the first call to end, or for all after a failure; return the questions of all ended calls."""
    if calls:
        ended, _ = await asyncio.wait(calls.values(), return_when=asyncio.FIRST_COMPLETED)
        if any(call.cancelled() or call.exception() is not None for call in ended):
            await asyncio.wait(calls.values())
    return [questions for questions, call in calls.items() if call.done()]


async def journaled(
    parts: Parts, outbox: Outbox, request: QuestionRequest, key: str, at_gate: AtGate = nullcontext
) -> tuple[tuple[Answer, ...], int]:
    """Return a request's answers and the tokens spent now: from the journal (0 tokens), else from the judge.

    at_gate  the context of each call of the model

    If two callers make the same request concurrently, both get the answer that arrives first (R21).
    """
    episode = request.episode
    answers = await _stored_answers(parts, outbox, episode.group, key)
    if answers is None:
        with outbox.accounted(episode, report := partial(parts.on_call, "judge")):
            judged = await parts.resolve(request, at_gate)
        report("ok", judged.cost)
        answers = outbox.answers.get((episode.group, key))
        if answers is None:
            # In the form the journal gives back, so that a replay decides on the same values.
            row = rows.answers_row(episode.sequence, key, judged.answers, *judged.cost)
            answers = rows.answers(row)
            outbox.post(answer_change(episode, row))
            outbox.remember(episode.group, key, answers)
            return answers, judged.prompt_tokens + judged.completion_tokens
        outbox.note_spent(episode, judged.cost)
    outbox.post(answer_change(episode, rows.answers_row(episode.sequence, key, answers, 0, 0, 0)))
    return answers, 0


async def _stored_answers(parts: Parts, outbox: Outbox, group: str, key: str) -> tuple[Answer, ...] | None:
    """Return the answers that a group's journal has to a request, None without any.

    After some look-ups in a run the keys of all requests of the group are read, so that a new request costs
    none. A run of a single message does not pay for a long journal.
    """
    if (answers := outbox.answers.get((group, key))) is not None:
        return answers
    keys = outbox.requests.get(group)
    if keys is None and outbox.look_ups[group] >= _LOOK_UPS:
        journal = await off_the_loop(parts.store, lambda: list(parts.store.rows(REQUESTS, group)))
        keys = outbox.requests.setdefault(group, {row.request for row in journal})
    if keys is not None and key not in keys:
        return None
    outbox.look_ups[group] += 1
    answer_rows = await rows_of(parts.store, ANSWERS_TO, group, [key])
    return rows.answers(answer_rows[0]) if answer_rows else None


async def patiently(call: Callable[[], Awaitable[_T]], parts: Parts, stop: Stop) -> _T:
    """Return the result of `call`; repeat it with growing pauses while the model is unavailable (R24).

    Raises Unavailable after `parts.patience_s` seconds, on `stop()`, or if the backend has already waited
    itself. Content errors are raised at once.
    """
    deadline, started_at = time.monotonic() + parts.patience_s, time.time()
    delay = _FIRST_DELAY_S
    while True:
        try:
            result = await call()
        except Unavailable as error:
            remaining_s = deadline - time.monotonic()
            if error.waited:
                raise  # the backend has reported the outage
            OUTAGES.failed(
                "the model", f"is unavailable ({error})", since=started_at, patience_s=parts.patience_s
            )
            if remaining_s <= 0 or stop():
                raise
            await asyncio.sleep(min(delay, remaining_s))
            delay = min(2 * delay, _LONGEST_DELAY_S)
        else:
            if delay > _FIRST_DELAY_S:
                OUTAGES.answered("the model")
            return result


async def stored_extraction(parts: Parts, episode: Episode) -> Extraction | None:
    """Return the extraction that the journal holds, None without one."""
    if episode.state != "extracted":
        return None
    extraction_rows = await rows_of(parts.store, EXTRACTIONS_AT, episode.group, [episode.sequence])
    return rows.extraction(extraction_rows[0]) if extraction_rows else None


def keep(outbox: Outbox, episode: Episode, extraction: Extraction) -> Extraction:
    """Post an extraction to the journal; return it as a replay reads it: "?" for unstorable characters."""
    row = rows.extraction_row(episode.sequence, extraction)
    outbox.post(extraction_change(episode, row))
    return rows.extraction(row) if "?" in row.body else extraction


class _AlreadyRead(Exception):
    """Another call has read the unit while this call waited for its place."""


class EpisodeReading:
    """The reading of one episode; a long text is read in several units (`units`), all at the same time.

    `read` may be called again, after an outage, or while an earlier call is late: it asks only for the units
    without an extraction. The cost of every call is counted once, in the next result or error.
    """

    def __init__(self, parts: Parts, episode: Episode, context: Sequence[Episode] | None = None) -> None:
        """Prepare to read an episode. context: the previous episodes; None: they are read from the store."""
        self._parts, self._episode, self._context = parts, episode, context
        self._units: list[tuple[TextUnit, ExtractionRequest]] = []
        self._extractions: dict[int, Extraction] = {}  # by the number of the unit
        self._cost = Cost()  # of calls that no result or error has reported yet

    async def read(self, at_gate: AtGate = nullcontext) -> Extraction:
        """Return the extraction, the speaker first, without parts that the text lacks; store nothing.

        at_gate  the context of a single call of the model, entered as soon as the call may begin

        Raises as `Extractor.extract` does. If a unit fails by its content, so does the episode: a committed
        episode must not lack a part of its text (R24).
        """
        if self._episode.kind == "triples":
            # Triples are never sent to a model.
            return triples.to_extraction(self._episode.text, self._episode.reference_time)
        if not self._units:
            await self._prepare()
        try:
            await self._ask(at_gate)
        except (KgrayError, asyncio.CancelledError) as error:
            error.spent = self._take_cost()  # type: ignore[union-attr]
            raise
        extraction = self._extractions[0]
        if len(self._units) > 1:
            units = tuple((unit, self._extractions[number]) for number, (unit, _) in enumerate(self._units))
            request = replace(self._units[0][1], episode=self._episode)
            extraction = await self._parts.read(Reading(request=request, units=units))
        return replace(extraction, **self._take_cost()._asdict())

    async def _prepare(self) -> None:
        """Read the previous context, and cut the text."""
        parts, episode = self._parts, self._episode
        limit = parts.pipeline.previous_episodes
        context = self._context
        if context is None:
            contexts = await off_the_loop(parts.store, lambda: previous(parts.store, [episode], limit))
            context = contexts[episode.sequence]
        request = ExtractionRequest(episode=episode, previous=tuple(context))
        characters = sum(len(each.text) for each in (episode, *context))
        cut = partial(unit_requests, request, parts.units)
        self._units = await at_length(cut) if parts.units and characters > _LONG_TEXT else cut()

    async def _ask(self, at_gate: AtGate) -> None:
        """Have all missing units read; an error of the content ends the calls for the other units."""
        missing = [number for number in range(len(self._units)) if number not in self._extractions]
        if len(self._units) == 1:
            if missing:
                await self._ask_for(0, at_gate)
            return
        tasks = [asyncio.create_task(self._ask_for(number, at_gate)) for number in missing]
        try:
            waiting = set(tasks)
            while waiting:
                complete, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_EXCEPTION)
                if any(
                    not task.cancelled() and isinstance(task.exception(), ContentError) for task in complete
                ):
                    break
        finally:
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        errors = [error for error in outcomes if isinstance(error, Exception)]
        # An error of the content counts first: after an outage the episode would be read again.
        for error in sorted(errors, key=lambda error: not isinstance(error, ContentError)):
            raise error

    async def _ask_for(self, number: int, at_gate: AtGate) -> None:
        """Have one unit read, unless another call was faster."""
        unit, request = self._units[number]

        @asynccontextmanager
        async def needed() -> AsyncIterator[None]:
            async with at_gate():
                if number in self._extractions:
                    raise _AlreadyRead
                yield

        try:
            reading = Reading(request=request, is_whole=len(self._units) == 1)
            extraction = await self._parts.read(reading, needed)
        except _AlreadyRead:
            return
        except (KgrayError, asyncio.CancelledError) as error:
            self._add_cost(getattr(error, "spent", Cost()))
            if isinstance(error, ContentError) and len(self._units) > 1:
                count, span = len(self._units), f"{unit.start} to {unit.end}"
                unit_name = f"text unit {number + 1} of {count}, characters {span}"
                raise type(error)(f"{unit_name}: {error}", raw=error.raw) from error
            raise
        self._add_cost(extraction.cost)
        self._extractions.setdefault(number, extraction)

    def _add_cost(self, cost: Cost) -> None:
        self._cost = total([self._cost, cost])

    def _take_cost(self) -> Cost:
        cost, self._cost = self._cost, Cost()
        return cost
