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
from kgray.holds import is_groups_own
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
    # When the extraction call began, on the monotonic clock.
    sent: asyncio.Future[float] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    preparing: asyncio.Task[None] | None = None  # extracts it and decides it ahead
    tried: bool = False  # decided ahead at least once, or never to be
    clear: asyncio.Event = field(default_factory=asyncio.Event)  # set once all entries before it were tried
    touched: asyncio.Event = field(default_factory=asyncio.Event)  # something its last try read has changed
    vectors: dict[str, Vector] = field(default_factory=dict)
    asked: dict[str, asyncio.Task[GivenAnswers]] = field(default_factory=dict)  # request key -> its answers
    used: set[str] = field(default_factory=set)  # request keys that the commit used
    spent: dict[str, int] = field(default_factory=dict)  # request key -> tokens
    read: ReadEpisode | None = None  # once it is extracted
    deciding_s: float = 0.0  # of all tries

    async def reading(self, episode: Episode) -> ReadEpisode:
        """Return the episode with its extraction, once that is there."""
        if self.read is None:
            self.read = ReadEpisode(episode=episode, extraction=await asyncio.shield(self.extracted))
        return self.read

    @property
    def bulk(self) -> bool:
        """Whether it belongs to the backfill lane; a correction never does."""
        return isinstance(self.entry, Episode) and self.entry.bulk


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What the windows of a run share.

    took    seconds of the latest extractions
    spawn   starts tasks whose failure ends the run
    ended   reports an entry once it is durable
    """

    parts: Parts
    committer: Committer
    gate: Gate
    totals: Totals
    watch: OnStage
    spawn: Spawn
    ended: Ended
    stop: Stop
    took: deque[float] = field(default_factory=lambda: deque(maxlen=32))

    @property
    def usual_s(self) -> float:
        """How long an extraction usually takes; 0 before the first."""
        return statistics.median(self.took) if self.took else 0.0


class GroupWindow:
    """The window of one group."""

    def __init__(self, group: str, run: Run) -> None:
        """Start with nothing in flight."""
        self.group = group
        self.items: dict[int, InFlight] = {}  # by sequence, in order
        self.head: asyncio.Task[None] | None = None  # commits the next entry
        self.posted = 0  # entries decided but not yet durable: still pending in the store
        self.last = 0  # the sequence of the newest entry taken
        self._run, self._parts, self._committer = run, run.parts, run.committer
        self._rows = AheadRows(run.parts.embedder.dimensions)
        self._rules = run.parts.rules

    @property
    def barred(self) -> bool:
        """Whether the newest entry is a correction: later entries are taken once it is done (R22)."""
        return bool(self.items) and isinstance(self.items[self.last].entry, Operation)

    @property
    def at(self) -> int:
        """The sequence of the episode that is committed next; 0: a correction, or there is none."""
        first = next(iter(self.items.values()), None)
        return first.entry.sequence if first is not None and isinstance(first.entry, Episode) else 0

    def take(self, entry: Episode | Operation, number: int, *, tail: int | None) -> None:
        """Take an entry into the window.

        number: how many were taken before it, over all groups; the model is asked in this order.
        tail: the number at which the end of a backlog began; from there the longest text goes first. None =
        the end is not in sight.
        """
        item = self.items[entry.sequence] = InFlight(entry, number)
        self.last = entry.sequence
        if isinstance(entry, Episode):
            urgency = Urgency(entry.bulk, number, 1)
            if tail is not None:
                urgency = Urgency(entry.bulk, tail, 1, -len(entry.text))
            item.preparing = self._run.spawn(self._prepare(item, entry, urgency))

    async def discard(self) -> None:
        """Drop what is in flight: its entries stay pending, and nothing that was decided ahead is used."""
        tasks: list[asyncio.Task[Any]] = []
        if self.head is not None:
            if self.barred and len(self.items) == 1:
                await asyncio.wait((self.head,))  # a correction asks no model
            tasks.append(self.head)
        for item in self.items.values():
            tasks += [*item.asked.values(), *([item.preparing] if item.preparing is not None else ())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.items.clear()

    # ------------------------------------------------------------------ ahead

    async def _prepare(self, item: InFlight, episode: Episode, urgency: Urgency) -> None:
        """Extract, then decide ahead, so that the questions are asked early.

        Errors of the episode's own content, or of its group alone, are ignored here: its commit meets them
        again, in order.
        """
        try:
            await self._extract(item, episode, urgency)
            read = await item.reading(episode)
            await self._soon(item.clear)
            await self._decide_ahead(item, read)
        except Exception as error:
            if not (isinstance(error, ContentError) or is_groups_own(error)):
                raise
            self._tried(item)

    def _tried(self, item: InFlight) -> None:
        """Note that this entry was tried; let the entries after it go on, up to the next untried episode."""
        item.tried = True
        for later in self.items.values():
            later.clear.set()
            if not later.tried and isinstance(later.entry, Episode):
                return

    async def _soon(self, event: asyncio.Event) -> None:
        """Wait for an event that usually comes soon; at most the median extraction time plus PATIENT_S."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._run.usual_s + PATIENT_S):
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
            attempt, calls = self._try(item, read, await self._committer.state(self.group), hold=hold)
            if attempt.change is None:
                texts = attempt.asked.texts
                item.vectors.update(zip(texts, await self._embed(texts), strict=True))
                continue
            if not item.tried:
                self._tried(item)
            if hold and attempt.asked.early:
                await self._soon(item.touched)
                hold = item.touched.is_set()
                continue
            changed = asyncio.ensure_future(item.touched.wait())
            try:
                await asyncio.wait((*calls, changed), return_when=asyncio.FIRST_COMPLETED)
            finally:
                changed.cancel()

    def _try(
        self, item: InFlight, read: ReadEpisode, base: GroupState, *, hold: bool
    ) -> tuple[Decision, set[asyncio.Task[GivenAnswers]]]:
        """Decide on a view; return the decision, and the calls in flight whose answers are needed next.

        hold: ask nothing where the questions depend on a guess.
        Unless texts are missing, the episode's rows are replaced by what this try found, and later
        episodes that read them are touched.
        """
        answers = Answers(vectors=item.vectors)
        keys: set[ReadKey] = {("ruling", fact.relation) for fact in read.extraction.facts}
        sequence = read.episode.sequence
        while True:
            view = AheadState(base, self._rows, sequence)
            attempt = self._attempt(item, read, view, answers)
            if attempt.change is None:
                return attempt, set()
            keys |= view.read_keys
            calls: dict[tuple[Question, ...], asyncio.Task[GivenAnswers]] = {}
            if not (hold and attempt.asked.early):
                for questions in requests_of(attempt.asked, self._parts.pipeline.resolution):
                    request = QuestionRequest(episode=read.episode, questions=questions)
                    calls[questions] = self._call(item, request, stalled=False)
            if not calls or not all(call.done() and call.exception() is None for call in calls.values()):
                self._show(sequence, attempt)
                self._rows.reads(sequence, keys)
                return attempt, {call for call in calls.values() if not call.done()}
            for questions, call in calls.items():
                answers.said.update(zip(questions, call.result(), strict=True))

    def _call(self, item: InFlight, request: QuestionRequest, *, stalled: bool) -> asyncio.Task[GivenAnswers]:
        """Return the call of a request, started once; stalled: whether the commit waits for it."""
        key = self._parts.judge.key(request)
        call = item.asked.get(key)
        if call is None:
            self._run.totals.requests += 1
            self._run.totals.stalls += stalled
            call = item.asked[key] = asyncio.create_task(self._answer(item, request, key))
            # Mark an error as seen: a refusal fails the episode at its commit; nobody may await it earlier.
            call.add_done_callback(lambda done: done.cancelled() or done.exception())
        if stalled:
            item.used.add(key)
        return call

    async def _answer(self, item: InFlight, request: QuestionRequest, key: str) -> GivenAnswers:
        urgency = Urgency(item.bulk, item.number, 0)

        async def once() -> GivenAnswers:
            async with self._run.gate.pass_through(urgency):
                since = time.monotonic()
                said, item.spent[key] = await journaled(self._parts, self._committer.outbox, request, key)
                self._run.watch("judge", time.monotonic() - since, request.episode)
                return said

        return await patiently(once, self._parts, self._run.stop)

    async def _embed(self, texts: list[str]) -> Matrix:
        async def once() -> Matrix:
            return await self._parts.embedder.embed(texts)

        since = time.monotonic()
        found = await patiently(once, self._parts, self._run.stop)
        self._run.watch("embed", time.monotonic() - since, None)
        return found

    def _attempt(self, item: InFlight, read: ReadEpisode, state: KnownState, answers: Answers) -> Decision:
        since = time.monotonic()
        attempt = decide(read, state, answers, self._rules)
        item.deciding_s += time.monotonic() - since
        return attempt

    def _show(self, sequence: int, attempt: Decision) -> None:
        """Replace the episode's rows in the views; touch the later episodes that read what changed."""
        for reader in self._rows.put(sequence, attempt):
            if reader in self.items:
                self.items[reader].touched.set()

    async def _extract(self, item: InFlight, episode: Episode, urgency: Urgency) -> None:
        """Set the episode's extraction, from the journal or the model; of two calls the first counts."""
        if (stored := await stored_extraction(self._parts, episode)) is not None:
            item.sent.set_result(time.monotonic())
            item.extracted.set_result(stored)
            return
        parts = self._parts

        async def once() -> Extraction:
            async with self._run.gate.pass_through(urgency):
                sent_at = time.monotonic()
                if not item.sent.done():
                    item.sent.set_result(sent_at)
                with self._committer.outbox.accounted(episode):
                    found = await read_episode(parts, episode)
                took = time.monotonic() - sent_at
                self._run.took.append(took)
                self._run.watch("extract", took, episode)
                return found

        try:
            extraction = await patiently(once, parts, self._run.stop)
        except Exception as error:
            if not (isinstance(error, ContentError) or is_groups_own(error)):
                raise
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
        item = next(iter(self.items.values()))
        entry = item.entry
        try:
            if isinstance(entry, Operation):
                outcome = await self._committer.correct(entry)
                self._rows = AheadRows(self._parts.embedder.dimensions)
                self._run.ended(self.group, entry.sequence, outcome)
            else:
                await self._commit(item, entry)
        except BaseException:
            self._committer.forget(self.group)
            raise
        del self.items[entry.sequence]
        if item.preparing is not None:
            item.preparing.cancel()
        unused = [
            key
            for key, call in item.asked.items()
            if call.done() and not call.cancelled() and key not in item.used
        ]
        self._tried(item)
        self._run.totals.wasted += len(unused)
        self._run.totals.wasted_tokens += sum(item.spent.get(key, 0) for key in unused)
        for call in item.asked.values():
            call.cancel()
        self._rows.reads(entry.sequence, set())
        if self._committer.kept(self.group) is None:
            # The state was dropped and will be read again: drop what was decided ahead of the old one.
            self._rows = AheadRows(self._parts.embedder.dimensions)
            for later in self.items.values():
                later.touched.set()

    async def _commit(self, item: InFlight, episode: Episode) -> None:
        try:
            await self._head_extraction(item, episode)
            read = await item.reading(episode)
            change, attempt = await self._settle(item, read)
            self._run.watch("decide", item.deciding_s, episode)
        except ContentError as error:
            self._show(episode.sequence, Decision(asked=Questions()))
            self._rows.put(episode.sequence, None)
            await self._committer.fail(episode, error, self._posted(episode, "failed"))
            return
        # Touch the readers where the change differs from the expected one; from now on the state holds it.
        self._show(episode.sequence, attempt)
        self._rows.put(episode.sequence, None)
        self._run.totals.left_out += len(read.extraction.dropped)
        await self._committer.commit(change, self._posted(episode, "committed"))

    def _posted(self, episode: Episode, outcome: str) -> Callable[[], None]:
        """Count a posted entry; return the callback for when it is durable."""
        self.posted += 1

        def durable() -> None:
            self.posted -= 1
            self._run.ended(self.group, episode.sequence, outcome)

        return durable

    async def _settle(self, item: InFlight, read: ReadEpisode) -> tuple[EpisodeChange, Decision]:
        """Decide on the true state as the plain loop does; most requests were answered ahead of time.

        A vector that was computed ahead is used where the true state asks for it, and only there: with the
        vector of a name that turned out to be known, more names would be candidates than in the plain loop.
        """

        async def attempt(answers: Answers) -> Decision:
            return self._attempt(item, read, await self._committer.state(self.group), answers)

        async def ask(request: QuestionRequest) -> GivenAnswers:
            return await self._call(item, request, stalled=True)

        async def embed(texts: list[str]) -> list[Vector]:
            if fresh := [text for text in texts if text not in item.vectors]:
                item.vectors.update(zip(fresh, await self._embed(fresh), strict=True))
            return [item.vectors[text] for text in texts]

        resolution = self._parts.pipeline.resolution
        return await settle(read, Answers(), resolution, attempt=attempt, embed=embed, ask=ask)

    async def _head_extraction(self, item: InFlight, episode: Episode) -> None:
        """Wait for the extraction of the next entry to commit; send it a second time where it is late."""
        if not item.extracted.done():
            late_at = await asyncio.shield(item.sent) + max(
                self._parts.late_s, LATE_TIMES * self._run.usual_s
            )
            await asyncio.wait((item.extracted,), timeout=max(0.0, late_at - time.monotonic()))
        if item.extracted.done():
            return
        second = self._run.spawn(self._extract(item, episode, Urgency(False, 0, 0)))
        try:
            await asyncio.wait((item.extracted,))
        finally:
            second.cancel()
