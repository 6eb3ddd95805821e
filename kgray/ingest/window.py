"""One group's episodes in flight: extracted ahead, decided ahead, committed in order.

The commit is the plain loop with remembered answers: `decide` runs on the true state from no answers
at all, and each round's request is looked up among those that were asked ahead. So what was guessed
ahead can be wasted, never wrong (R20).
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
from kgray.ingest.case import Answers, KnownState, Questions, ReadEpisode
from kgray.ingest.committer import Committer
from kgray.ingest.decide import Decision, decide
from kgray.ingest.extract import keep, read_episode, stored_extraction
from kgray.ingest.parts import OnStage, Parts, Stop, Totals
from kgray.ingest.state import GroupState
from kgray.ports import Answer, Matrix, Question, QuestionRequest, Vector
from kgray.records import Episode, Extraction, Operation

# A head of line whose extraction was sent this long ago is sent once more: with 1 % of calls 10 s late a
# trial went from 0.74 to 0.89 of the ceiling.
LATE_S = 6.0
LATE_TIMES = 4.0  # and never before so many times what an extraction takes of late: a slow model is not late

# Deciding ahead waits for what is mostly near as long as an extraction usually takes, and this.
PATIENT_S = 0.02
# About what the fixed head of a prompt holds, in tokens: only the budget of tokens in flight goes by it.
HEAD_TOKENS = 800
CHARACTERS_A_TOKEN = 4

GivenAnswers = tuple[Answer, ...]
Ended = Callable[[str, int, str], None]  # group, sequence, outcome: durable now
Spawn = Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]]


@dataclass(slots=True, eq=False)
class InFlight:
    """One entry in flight."""

    entry: Episode | Operation
    number: int
    extracted: asyncio.Future[Extraction] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    sent: asyncio.Event = field(default_factory=asyncio.Event)  # the extraction call is under way
    sent_at: float = 0.0
    tried: bool = False  # decided ahead once, or nothing can be
    clear: asyncio.Event = field(default_factory=asyncio.Event)  # all before it were tried
    touched: asyncio.Event = field(default_factory=asyncio.Event)  # what its last try read has changed
    vectors: dict[str, Vector] = field(default_factory=dict)
    asked: dict[str, asyncio.Task[GivenAnswers]] = field(default_factory=dict)  # request key -> its answers
    used: set[str] = field(default_factory=set)
    spent: dict[str, int] = field(default_factory=dict)  # request key -> tokens

    @property
    def bulk(self) -> bool:
        """Whether it is the backfill lane's; a correction never is."""
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

        took: seconds of the run's latest extractions; spawn starts tasks whose failure ends the run.
        """
        self.group = group
        self.items: deque[InFlight] = deque()
        self.posted = 0  # entries that are decided and not yet durable: pending, as the store sees it
        self.last = 0  # the sequence of the newest entry that was taken
        self._parts, self._committer, self._gate = parts, committer, gate
        self._spawn, self._totals, self._watch, self._ended, self._stop = spawn, totals, watch, ended, stop
        self._rows = AheadRows(parts.embedder.dimensions)
        self._took = took
        self._tasks: dict[InFlight, asyncio.Task[Any]] = {}
        self._by_sequence: dict[int, InFlight] = {}

    @property
    def barred(self) -> bool:
        """Whether a correction waits: what stands after it is read once it is carried out (R22, R25)."""
        return bool(self.items) and isinstance(self.items[-1].entry, Operation)

    def take(self, entry: Episode | Operation, number: int, *, tail: int | None) -> None:
        """Take an entry into the window.

        number: how many were taken before it, over all groups: the order in which the model is asked.
        tail: where the end of a backlog began, None before it; from there on the longest text goes first.
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

    # ------------------------------------------------------------------ ahead

    async def _prepare(self, item: InFlight, episode: Episode, urgency: Urgency) -> None:
        """Extract, then try to decide as often as what was read changes, to have the questions asked.

        What the episode itself is to blame for is met again at the head of the line, which fails it in order.
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
        """Note that later episodes see what this one probably adds; let them go on in order."""
        item.tried = True
        for later in self.items:
            later.clear.set()
            if not later.tried and isinstance(later.entry, Episode):
                return

    async def _soon(self, event: asyncio.Event) -> None:
        """Wait for an event that is mostly near: as long as an extraction usually takes, and a little."""
        usual = statistics.median(self._took) if self._took else 0.0
        with suppress(TimeoutError):
            async with asyncio.timeout(usual + PATIENT_S):
                await event.wait()

    async def _decide_ahead(self, item: InFlight, read: ReadEpisode) -> None:
        """Try again whenever what was read has changed, until the commit ends it.

        A question asked before the episodes ahead of this one were tried, or about an entity that is itself a
        guess, is mostly asked again in other words: with a model of 0-10 ms, 242 of 271 answers were
        wasted. So both are waited for, but not long: a late episode must not keep the model idle.
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
        """Decide on a view; return the texts to embed, or the calls whose answers would take it further.

        None: with `hold`, where the questions hang on a guess. Its rows are replaced by what this try
        found, and the later episodes that read them are touched.
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
        """Have the open questions asked, each request once; a missing embedding waits for the commit."""
        return [
            (
                questions,
                self._call(item, QuestionRequest(episode=episode, questions=questions), stalled=False),
            )
            for questions in requests_of(attempt.asked, self._parts.pipeline.resolution)
        ]

    def _call(self, item: InFlight, request: QuestionRequest, *, stalled: bool) -> asyncio.Task[GivenAnswers]:
        key = self._parts.judge.key(request)
        call = item.asked.get(key)
        if call is None:
            self._totals.requests += 1
            self._totals.stalls += stalled
            call = item.asked[key] = asyncio.create_task(self._answer(item, request, key))
            # A refusal is met again at the commit, which fails the episode; until then nobody may await it.
            call.add_done_callback(lambda done: done.cancelled() or done.exception())
        if stalled:
            item.used.add(key)
        return call

    async def _answer(self, item: InFlight, request: QuestionRequest, key: str) -> GivenAnswers:
        urgency = Urgency(item.bulk, item.number, 0)
        size = sum(len(text) for q in request.questions for text in (q.item, *q.candidates, *q.cards))

        async def once() -> GivenAnswers:
            async with self._gate.pass_through(urgency, HEAD_TOKENS + size // CHARACTERS_A_TOKEN):
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
        for reader in self._rows.put(sequence, attempt):
            if reader in self._by_sequence:
                self._by_sequence[reader].touched.set()

    async def _extract(self, item: InFlight, episode: Episode, urgency: Urgency) -> None:
        """Have the episode read, where the journal has no extraction; the first of two calls counts."""
        if (stored := await stored_extraction(self._parts, episode)) is not None:
            item.sent.set()
            item.extracted.set_result(stored)
            return
        parts = self._parts
        size = len(episode.text) // CHARACTERS_A_TOKEN * (1 + parts.pipeline.previous_episodes)

        async def once() -> Extraction:
            async with self._gate.pass_through(urgency, HEAD_TOKENS + size):
                sent_at = time.monotonic()
                if not item.sent.is_set():
                    item.sent_at = sent_at
                    item.sent.set()
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
                item.extracted.exception()  # met again by whoever awaits it
            return
        if not item.extracted.done():
            item.extracted.set_result(keep(self._committer.outbox, episode, extraction))

    # ------------------------------------------------------------------ in order

    async def commit_head(self) -> None:
        """Decide the next entry of the group for good and post it; `ended` is told when it is durable."""
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
            # The state will be read anew: what was decided ahead stands on rows that are gone.
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
        # Readers are touched where the change is not what was expected; then its rows are the state's.
        self._show(episode.sequence, attempt)
        self._rows.put(episode.sequence, None)
        await self._committer.commit(change, self._posted(episode, "committed"))

    def _posted(self, episode: Episode, outcome: str) -> Callable[[], None]:
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
        """Wait for the extraction; one that was sent too long ago is sent once more."""
        if not item.extracted.done():
            await item.sent.wait()
            usual = statistics.median(self._took) if self._took else 0.0
            late_at = item.sent_at + max(LATE_S, LATE_TIMES * usual)
            await asyncio.wait((item.extracted,), timeout=max(0.0, late_at - time.monotonic()))
        if item.extracted.done():
            return await item.extracted
        second = self._spawn(self._extract(item, episode, Urgency(False, 0, 0)))
        try:
            return await asyncio.shield(item.extracted)
        finally:
            second.cancel()
