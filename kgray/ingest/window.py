"""One group's episodes in flight: extracted ahead, decided ahead, committed in order.

The commit decides on the true state, from no answers at all, as the plain loop does; its requests are first
looked up among those asked ahead. So work done ahead of time can be wasted, but never wrong (R20).

`runner` calls a window; the window calls back through two hooks only: `spawn` starts a task of the run, and
`ended` reports an entry once it is durable, from the outbox's `done` callback in `committer`.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from kgray.derivation.change import EpisodeChange
from kgray.errors import ContentError
from kgray.ingest.ahead import AheadRows, AheadState, ReadKey
from kgray.ingest.calls import Gate, Urgency, journaled, patiently, requests_of, settle
from kgray.ingest.committer import Committer, OnStage, Parts
from kgray.ingest.decide import Decision, decide
from kgray.ingest.extract import keep, read_episode, stored_extraction
from kgray.ingest.state import Answers, GroupState, KnownState, Questions, ReadEpisode
from kgray.ports import Answer, Matrix, Question, QuestionRequest, Vector
from kgray.ports.ingest import Stop, Totals
from kgray.records import Episode, Extraction, Operation

# The extraction of the next entry to commit is sent a second time after `Parts.late_s`, but not before
# LATE_TIMES the median of the latest extractions: a model that is slow as a whole is not late. With 1 % of
# calls 10 s late, throughput in a trial rose from 0.74 to 0.89 of the model's limit.
LATE_TIMES = 4.0

# Deciding ahead waits for an event as long as an extraction usually takes, plus this.
PATIENT_S = 0.02

GivenAnswers = tuple[Answer, ...]
Ended = Callable[[str, int, str], None]  # group, sequence, outcome; called when it is durable
Spawn = Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]]


@dataclass(slots=True, eq=False)
class InFlight:
    """One entry in flight; number: how many were taken before it, over all groups."""

    entry: Episode | Operation
    number: int
    extracted: asyncio.Future[Extraction] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    sent: asyncio.Event = field(default_factory=asyncio.Event)  # the extraction call has begun
    sent_at: float = 0.0
    tried: bool = False  # decided ahead at least once, or never to be
    clear: asyncio.Event = field(default_factory=asyncio.Event)  # set once all entries before it were tried
    touched: asyncio.Event = field(default_factory=asyncio.Event)  # something its last try read has changed
    vectors: dict[str, Vector] = field(default_factory=dict)
    asked: dict[str, asyncio.Task[GivenAnswers]] = field(default_factory=dict)  # request key -> its answers
    used: set[str] = field(default_factory=set)  # request keys that the commit used
    spent: dict[str, int] = field(default_factory=dict)  # request key -> tokens

    @property
    def bulk(self) -> bool:
        """Whether it belongs to the backfill lane; a correction never does."""
        return isinstance(self.entry, Episode) and self.entry.bulk


class GroupWindow:
    """The window of one group."""

    def __init__(
        self,
        group: str,
        parts: Parts,
        committer: Committer,
        gate: Gate,
        *,
        took: deque[float],
        spawn: Spawn,
        totals: Totals,
        watch: OnStage,
        ended: Ended,
        stop: Stop,
    ) -> None:
        """Start with nothing in flight.

        took: seconds of the run's latest extractions. spawn: starts tasks whose failure ends the run.
        """
        self.group = group
        self.items: deque[InFlight] = deque()
        self.posted = 0  # entries decided but not yet durable: still pending in the store
        self.last = 0  # the sequence of the newest entry taken
        self._parts, self._committer, self._gate = parts, committer, gate
        self._spawn, self._totals, self._watch, self._ended, self._stop = spawn, totals, watch, ended, stop
        self._rows = AheadRows(parts.embedder.dimensions)
        self._took = took
        self._tasks: dict[InFlight, asyncio.Task[Any]] = {}
        self._by_sequence: dict[int, InFlight] = {}

    @property
    def barred(self) -> bool:
        """Whether the newest entry is a correction: later entries are taken once it is done (R22)."""
        return bool(self.items) and isinstance(self.items[-1].entry, Operation)

    def take(self, entry: Episode | Operation, number: int, *, tail: int | None) -> None:
        """Take an entry into the window.

        number: how many were taken before it, over all groups; the model is asked in this order.
        tail: the number at which the end of a backlog began; from there the longest text goes first. None =
        the end is not in sight.
        """
        item = InFlight(entry, number)
        self.items.append(item)
        self.last = entry.sequence
        self._by_sequence[entry.sequence] = item
        if isinstance(entry, Episode):
            urgency = Urgency(entry.bulk, number, 1)
            if tail is not None:
                urgency = Urgency(entry.bulk, tail, 1, -len(entry.text))
            self._tasks[item] = self._spawn(self._prepare(item, entry, urgency))

    async def discard(self, head: asyncio.Task[Any] | None) -> None:
        """Drop what is in flight: its entries stay pending, and nothing that was decided ahead is used.

        head: the task that commits the next entry. A correction in it is waited for: it asks no model.
        """
        if head is not None and self.barred and len(self.items) == 1:
            await asyncio.wait((head,))
        tasks = [*self._tasks.values(), *(call for item in self.items for call in item.asked.values())]
        tasks += [head] if head is not None else []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.items.clear()

    # ------------------------------------------------------------------ ahead

    async def _prepare(self, item: InFlight, episode: Episode, urgency: Urgency) -> None:
        """Extract, then decide ahead, so that the questions are asked early.

        Errors of the episode's own content are ignored here: its commit meets them again, in order.
        """
        with suppress(ContentError):
            try:
                await self._extract(item, episode, urgency)
                read = ReadEpisode(episode=episode, extraction=await asyncio.shield(item.extracted))
            except ContentError:
                self._tried(item)
                raise
            await self._soon(item.clear)
            await self._decide_ahead(item, read)

    def _tried(self, item: InFlight) -> None:
        """Note that this entry was tried; let the entries after it go on, up to the next untried episode."""
        item.tried = True
        for later in self.items:
            later.clear.set()
            if not later.tried and isinstance(later.entry, Episode):
                return

    async def _soon(self, event: asyncio.Event) -> None:
        """Wait for an event that usually comes soon; at most the median extraction time plus PATIENT_S."""
        usual = statistics.median(self._took) if self._took else 0.0
        with suppress(TimeoutError):
            async with asyncio.timeout(usual + PATIENT_S):
                await event.wait()

    async def _decide_ahead(self, item: InFlight, read: ReadEpisode) -> None:
        """Try again whenever something that the last try read has changed; the commit cancels this task.

        A question asked before the earlier episodes were tried, or about an entity that is itself a guess, is
        usually asked again in other words: with a model of 0-10 ms, 242 of 271 answers were wasted. So both
        are waited for, but only briefly: one late episode must not keep the model idle.
        """
        hold = True
        while True:
            item.touched.clear()
            waiting = self._try(item, read, await self._committer.state(self.group), hold=hold)
            if isinstance(waiting, list):
                item.vectors.update(zip(waiting, await self._embed(waiting), strict=True))
                continue
            if not item.tried:
                self._tried(item)
            if waiting is None:
                await self._soon(item.touched)
                hold = item.touched.is_set()
                continue
            changed = asyncio.ensure_future(item.touched.wait())
            try:
                await asyncio.wait((*waiting, changed), return_when=asyncio.FIRST_COMPLETED)
            finally:
                changed.cancel()

    def _try(
        self, item: InFlight, read: ReadEpisode, base: GroupState, *, hold: bool
    ) -> list[str] | set[asyncio.Task[GivenAnswers]] | None:
        """Decide on a view; return the texts to embed, or the calls in flight whose answers are needed next.

        hold: where the questions depend on a guess, ask nothing and return None.
        Unless texts are missing, the episode's rows are replaced by what this try found, and later
        episodes that read them are touched.
        """
        answers = Answers(vectors=item.vectors)
        keys: set[ReadKey] = {("ruling", fact.relation) for fact in read.extraction.facts}
        sequence = read.episode.sequence
        while True:
            view = AheadState(base, self._rows, sequence)
            attempt = self._attempt(read, view, answers)
            if attempt.change is None:
                return attempt.asked.texts
            keys |= view.read_keys
            if hold and attempt.asked.early:
                self._show(sequence, attempt)
                self._rows.reads(sequence, keys)
                return None
            calls = self._ask_ahead(item, read.episode, attempt)
            open_calls = {call for _, call in calls if not call.done()}
            failed = any(call.done() and call.exception() for _, call in calls)
            if open_calls or failed or not calls:
                self._show(sequence, attempt)
                self._rows.reads(sequence, keys)
                return open_calls
            for questions, call in calls:
                answers.said.update(zip(questions, call.result(), strict=True))

    def _ask_ahead(
        self, item: InFlight, episode: Episode, attempt: Decision
    ) -> list[tuple[tuple[Question, ...], asyncio.Task[GivenAnswers]]]:
        """Return the open requests with their calls; missing vectors wait for the commit."""
        return [
            (
                questions,
                self._call(item, QuestionRequest(episode=episode, questions=questions), stalled=False),
            )
            for questions in requests_of(attempt.asked, self._parts.pipeline.resolution)
        ]

    def _call(self, item: InFlight, request: QuestionRequest, *, stalled: bool) -> asyncio.Task[GivenAnswers]:
        """Return the call of a request, started once; stalled: whether the commit waits for it."""
        key = self._parts.judge.key(request)
        call = item.asked.get(key)
        if call is None:
            self._totals.requests += 1
            self._totals.stalls += stalled
            call = item.asked[key] = asyncio.create_task(self._answer(item, request, key))
            # Mark an error as seen: a refusal fails the episode at its commit; nobody may await it earlier.
            call.add_done_callback(lambda done: done.cancelled() or done.exception())
        if stalled:
            item.used.add(key)
        return call

    async def _answer(self, item: InFlight, request: QuestionRequest, key: str) -> GivenAnswers:
        urgency = Urgency(item.bulk, item.number, 0)

        async def once() -> GivenAnswers:
            async with self._gate.pass_through(urgency):
                since = time.monotonic()
                said, item.spent[key] = await journaled(self._parts, self._committer.outbox, request, key)
                self._watch("judge", time.monotonic() - since, request.episode)
                return said

        return await patiently(once, self._parts, self._stop)

    async def _embed(self, texts: list[str]) -> Matrix:
        async def once() -> Matrix:
            return await self._parts.embedder.embed(texts)

        since = time.monotonic()
        found = await patiently(once, self._parts, self._stop)
        self._watch("embed", time.monotonic() - since, None)
        return found

    def _attempt(self, read: ReadEpisode, state: KnownState, answers: Answers) -> Decision:
        since = time.monotonic()
        attempt = decide(read, state, answers, self._parts.rules)
        self._watch("decide", time.monotonic() - since, read.episode)
        return attempt

    def _show(self, sequence: int, attempt: Decision) -> None:
        """Replace the episode's rows in the views; touch the later episodes that read what changed."""
        for reader in self._rows.put(sequence, attempt):
            if reader in self._by_sequence:
                self._by_sequence[reader].touched.set()

    async def _extract(self, item: InFlight, episode: Episode, urgency: Urgency) -> None:
        """Set the episode's extraction, from the journal or the model; of two calls the first counts."""
        if (stored := await stored_extraction(self._parts, episode)) is not None:
            item.sent.set()
            item.extracted.set_result(stored)
            return
        parts = self._parts

        async def once() -> Extraction:
            async with self._gate.pass_through(urgency):
                sent_at = time.monotonic()
                if not item.sent.is_set():
                    item.sent_at = sent_at
                    item.sent.set()
                with self._committer.outbox.accounted(episode):
                    found = await read_episode(parts, episode)
                took = time.monotonic() - sent_at
                self._took.append(took)
                self._watch("extract", took, episode)
                return found

        try:
            extraction = await patiently(once, parts, self._stop)
        except ContentError as error:
            if not item.extracted.done():
                item.extracted.set_exception(error)
                item.extracted.exception()  # marks it as seen; whoever awaits the future gets it again
            return
        if not item.extracted.done():
            item.extracted.set_result(keep(self._committer.outbox, episode, extraction))
        else:
            self._committer.outbox.note_spent(episode, extraction.cost)

    # ------------------------------------------------------------------ in order

    async def commit_head(self) -> None:
        """Decide the group's next entry on the true state and post it; `ended` is called once durable."""
        item = self.items[0]
        entry = item.entry
        try:
            if isinstance(entry, Operation):
                outcome = await self._committer.correct(entry)
                self._rows = AheadRows(self._parts.embedder.dimensions)
                self._ended(self.group, entry.sequence, outcome)
            else:
                await self._commit(item, entry)
        except BaseException:
            self._committer.forget(self.group)
            raise
        self.items.popleft()
        del self._by_sequence[entry.sequence]
        if (task := self._tasks.pop(item, None)) is not None:
            task.cancel()
        unused = [
            key
            for key, call in item.asked.items()
            if call.done() and not call.cancelled() and key not in item.used
        ]
        self._tried(item)
        self._totals.wasted += len(unused)
        self._totals.wasted_tokens += sum(item.spent.get(key, 0) for key in unused)
        for call in item.asked.values():
            call.cancel()
        self._rows.reads(entry.sequence, set())
        if self._committer.kept(self.group) is None:
            # The state was dropped and will be read again: drop what was decided ahead of the old one.
            self._rows = AheadRows(self._parts.embedder.dimensions)
            for later in self.items:
                later.touched.set()

    async def _commit(self, item: InFlight, episode: Episode) -> None:
        try:
            read = ReadEpisode(episode=episode, extraction=await self._head_extraction(item, episode))
            change, attempt = await self._settle(item, read)
        except ContentError as error:
            self._show(episode.sequence, Decision(asked=Questions()))
            self._rows.put(episode.sequence, None)
            self._committer.fail(episode, error, self._posted(episode, "failed"))
            return
        # Touch the readers where the change differs from the expected one; from now on the state holds it.
        self._show(episode.sequence, attempt)
        self._rows.put(episode.sequence, None)
        self._totals.left_out += len(read.extraction.dropped)
        await self._committer.commit(change, self._posted(episode, "committed"))

    def _posted(self, episode: Episode, outcome: str) -> Callable[[], None]:
        """Count a posted entry; return the callback for when it is durable."""
        self.posted += 1

        def durable() -> None:
            self.posted -= 1
            self._ended(self.group, episode.sequence, outcome)

        return durable

    async def _settle(self, item: InFlight, read: ReadEpisode) -> tuple[EpisodeChange, Decision]:
        """Decide on the true state as the plain loop does; most requests were answered ahead of time."""

        async def attempt(answers: Answers) -> Decision:
            return self._attempt(read, await self._committer.state(self.group), answers)

        async def ask(request: QuestionRequest) -> GivenAnswers:
            return await self._call(item, request, stalled=True)

        answers = Answers(vectors=item.vectors)
        resolution = self._parts.pipeline.resolution
        return await settle(read, answers, resolution, attempt=attempt, embed=self._embed, ask=ask)

    async def _head_extraction(self, item: InFlight, episode: Episode) -> Extraction:
        """Return the extraction of the next entry to commit; send it a second time where it is late."""
        if not item.extracted.done():
            await item.sent.wait()
            usual = statistics.median(self._took) if self._took else 0.0
            late_at = item.sent_at + max(self._parts.late_s, LATE_TIMES * usual)
            await asyncio.wait((item.extracted,), timeout=max(0.0, late_at - time.monotonic()))
        if item.extracted.done():
            return await item.extracted
        second = self._spawn(self._extract(item, episode, Urgency(False, 0, 0)))
        try:
            return await asyncio.shield(item.extracted)
        finally:
            second.cancel()
