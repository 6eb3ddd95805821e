"""One group's episodes in flight: extracted ahead, decided ahead, committed in order.

The commit decides again, on the true state and without any answer, as the plain loop does. It asks each
question through `_call`, which returns the call that the decision ahead has begun, if any. So work done ahead
can be wasted, but never wrong (R20).

`runner` calls a window. A window knows `RunContext`, which the windows of a run share, and no runner.
`flight` has the stages of an episode.

A decision ahead reads a view (`AheadState`): the true state with the predicted changes of earlier episodes.
The readers of a row are the episodes whose decision ahead has read it; if it changes, they become due again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import islice
from typing import Any

from kgray.domain.records import Episode, Extraction, Operation
from kgray.errors import ContentError, is_groups_own
from kgray.ingest.calls import (
    EpisodeReading,
    journaled,
    keep,
    patiently,
    requests_of,
    settle,
    stored_extraction,
)
from kgray.ingest.decide import decide
from kgray.ingest.flight import AnswersTask, GivenAnswers, InFlight, RunContext
from kgray.ingest.state import (
    AheadRows,
    AheadState,
    Answers,
    Decision,
    GroupState,
    KnownState,
    ReadEpisode,
    ReadKey,
)
from kgray.ports import Embedding, QuestionRequest
from kgray.ports.ingest import Urgency, embedded

# The extraction of the next entry to commit is sent a second time after `Parts.late_s`, but not before
# LATE_TIMES the median of the latest extractions: a model that is slow as a whole is not late. With 1 % of
# calls 10 s late, throughput in a trial rose from 0.74 to 0.89 of the model's limit. A run that has seen no
# extraction yet does not know its model: it waits FIRST_TIMES as long. Otherwise a small machine that needs
# 10 s for a message would send each single message twice.
LATE_TIMES, FIRST_TIMES = 4.0, 10.0
PATIENT_S = 0.02  # deciding ahead waits for an event for the usual time of an extraction, plus this


class GroupWindow:
    """The window of one group."""

    def __init__(self, group: str, run: RunContext) -> None:
        self.group = group
        self.items: dict[int, InFlight] = {}  # by sequence, in order
        self.head: asyncio.Task[None] | None = None  # commits the next entry
        self._deciding: asyncio.Task[None] | None = None  # ahead
        self.posted = 0  # entries decided but not yet durable: still pending in the store
        self._is_dropped = False  # the run no longer counts its posted entries
        self.last = 0  # the sequence of the newest entry taken
        self._run, self._committer = run, run.committer
        self._rows = AheadRows()
        self._parts, self._rules = run.parts, run.parts.rules

    @property
    def ends_with_correction(self) -> bool:
        """Return whether the newest entry is a correction: later entries are taken after its end (R22)."""
        return bool(self.items) and isinstance(self.items[self.last].entry, Operation)

    @property
    def head_sequence(self) -> int:
        """The sequence of the episode that is committed next; 0 for a correction or an empty window."""
        first = next(iter(self.items.values()), None)
        return first.entry.sequence if first is not None and isinstance(first.entry, Episode) else 0

    def take(
        self,
        entry: Episode | Operation,
        number: int,
        *,
        tail: int | None,
        context: Sequence[Episode] | None = None,
    ) -> None:
        """Take an entry.

        number   the count of entries taken before it, over all groups: the order of calls of the model
        tail     `BacklogEnd.number`, None before the end is in sight. It replaces `number` in the urgency, so
                 that among these entries the longest text goes first
        context  the previous episodes of an episode that a model must read
        """
        item = self.items[entry.sequence] = InFlight(entry, number, context=context)
        self.last = entry.sequence
        self._run.in_flight += 1
        if isinstance(entry, Episode):
            last = None if tail is None else Urgency(entry.bulk, tail, 1, -len(entry.text))
            urgency = last or Urgency(entry.bulk, number, 1)
            item.preparing = self._run.spawn(self._prepare(item, entry, urgency))

    async def discard(self) -> None:
        """Drop the entries in flight: they stay pending, and their decisions ahead are not used."""
        if self.head is not None and self.ends_with_correction and len(self.items) == 1:
            # A running correction is not cancelled; it is short, because it asks no model.
            await asyncio.wait((self.head,))
        begun: list[asyncio.Task[Any] | None] = [self.head, self._deciding]
        for item in self.items.values():
            begun += [item.preparing, *item.calls.values()]
        self._run.in_flight -= len(self.items)
        self._run.posted -= self.posted
        self._is_dropped = True
        self.items.clear()  # first: the end of a call would have its entry decided again
        tasks = [task for task in begun if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _prepare(self, item: InFlight, episode: Episode, urgency: Urgency) -> None:
        """Extract, then decide ahead, so that the questions are asked early.

        Errors of the episode's content, or of its group alone, are left to its commit, which raises them too.
        """
        try:
            await self._extract(item, episode, urgency)
            read = await asyncio.shield(item.read)
            view = AheadState(await self._committer.state(self.group), self._rows, episode.sequence)
            await self._embed_for(item, self._attempt(item, read, view, Answers()).questions.texts)
            item.waits_until = self._call_when_late(self.go_ahead)
            self._mark_due(item)
        except Exception as error:
            if not _is_left_to_commit(error):
                raise
            self._mark_tried(item)

    async def _embed_for(self, item: InFlight, texts: list[str]) -> list[Embedding]:
        if fresh := [text for text in texts if text not in item.vectors]:
            started, parts = time.monotonic(), self._parts
            embeddings = await patiently(lambda: embedded(parts.embedder, fresh), parts, self._run.stop)
            self._run.watch("embed", time.monotonic() - started, None)
            item.vectors.update(zip(fresh, embeddings, strict=True))
        return [item.vectors[text] for text in texts]

    def _mark_tried(self, item: InFlight) -> None:
        """Note that this entry was tried, so that the entries after it go on."""
        item.tried = True
        self.go_ahead()

    def _call_when_late(self, call: Callable[[], None]) -> float:
        """Schedule a call for the time when an expected event is late; return this time."""
        delay_s = self._run.usual_s + PATIENT_S
        asyncio.get_running_loop().call_later(delay_s, call)
        return time.monotonic() + delay_s

    def _mark_due(self, item: InFlight) -> None:
        """Have an entry decided ahead again, unless it has left the window."""
        item.due = self.items.get(item.entry.sequence) is item
        self.go_ahead()

    def go_ahead(self) -> None:
        """Start to decide due entries ahead, unless this is running."""
        idle = self._deciding is None or self._deciding.done()
        if idle and self._run.ahead_pays and self._next_due() is not None:
            self._deciding = self._run.spawn(self._decide_ahead())

    async def _decide_ahead(self) -> None:
        """Try the due entries, each in its own turn of the event loop, the next to commit first.

        So an entry is tried once after several changes of the rows that it has read. A try at every change
        cost 3.9 tries an episode and 0.6 wasted calls with a model that answers at once; this costs 1.8 and
        0.1.
        """
        while self._next_due() is not None:
            await self._run.idle_turn()
            if (item := self._next_due()) is None:
                return
            item.due = False
            try:
                await self._try(item, item.read.result(), await self._committer.state(self.group))
            except Exception as error:
                if not _is_left_to_commit(error):
                    raise
                self._mark_tried(item)

    def _next_due(self) -> InFlight | None:
        """Return the first due entry, except the next to commit.

        It skips an entry until all earlier entries were tried, or its wait has ended. Only the first
        `1 + streams` entries are considered; a longer window is noted in `cut_short`.

        A question asked before the earlier entries were tried is usually asked again in other words, but a
        late entry must not keep the model idle.
        """
        time_now, all_earlier_tried, limit = time.monotonic(), True, 1 + int(self._run.gate.width)
        (self._run.cut_short.add if len(self.items) > limit else self._run.cut_short.discard)(self)
        for position, item in enumerate(islice(self.items.values(), limit)):
            if position and item.due and (all_earlier_tried or time_now >= item.waits_until):
                return item
            all_earlier_tried = all_earlier_tried and item.tried
        return None

    async def _try(self, item: InFlight, read: ReadEpisode, base: GroupState) -> None:
        """Decide on a view, ask the open questions, and show the result to later entries.

        A question about an entity that is itself a guess is usually asked again in other words: with a model
        of 0-10 ms, 242 of 271 answers were wasted. So the window waits briefly for the
        answer that confirms or removes the guess.
        """
        answers, sequence = Answers(vectors=item.vectors), read.episode.sequence
        # `AheadGraph` copies the uncommitted declarations without noting the read; only those of these
        # relations matter.
        keys: set[ReadKey] = {("declaration", fact.relation) for fact in read.extraction.facts}
        # It may be committed while texts are embedded.
        while self.items.get(sequence) is item and not item.is_decided:
            view = AheadState(base, self._rows, sequence)
            attempt = self._attempt(item, read, view, answers)
            if attempt.change is None:
                await self._embed_for(item, attempt.questions.texts)
                continue
            if ids := attempt.questions.statement_vectors:
                answers.statement_vectors |= await self._committer.statement_vectors(self.group, ids)
                continue
            item.enter_after_decision(attempt)
            keys |= view.read_keys
            waits = attempt.questions.rests_on_guess and not (
                item.tried and time.monotonic() >= item.waits_until
            )
            requests = [] if waits else requests_of(read.episode, attempt.questions, self._parts)
            calls = {request.questions: self._call(item, request, stalled=False) for request in requests}
            if ended := {
                questions: call.result()
                for questions, call in calls.items()
                if call.done() and not call.cancelled() and call.exception() is None
            }:
                for questions, reply in ended.items():
                    answers.by_question.update(zip(questions, reply, strict=True))
                continue
            self._publish_rows(sequence, attempt)
            self._rows.keys_read[sequence] = keys
            if waits and not item.tried:
                item.waits_until = self._call_when_late(partial(self._mark_due, item))
            self._mark_tried(item)
            for call in calls.values():
                if not call.done():
                    call.add_done_callback(lambda _: self._mark_due(item))
            break

    def _call(self, item: InFlight, request: QuestionRequest, *, stalled: bool) -> AnswersTask:
        """Return the call of a request, started once; stalled: whether the commit waits for it."""
        questions = request.questions
        if stalled:
            item.used.add(questions)
        if (call := item.calls.get(questions)) is not None:
            return call
        urgency = Urgency(request.episode.bulk, item.number, 0)

        async def once() -> GivenAnswers:
            sent_at, key = list[float](), self._parts.judge.key(request)

            @asynccontextmanager
            async def at_gate() -> AsyncIterator[None]:
                async with self._run.gate.pass_through(urgency):
                    sent_at.append(time.monotonic())
                    yield

            outbox = self._committer.outbox
            answers, item.spent[questions] = await journaled(self._parts, outbox, request, key, at_gate)
            took = time.monotonic() - sent_at[0] if sent_at else 0.0
            self._run.question_seconds.append(took)
            self._run.watch("judge", took, request.episode)
            return answers

        self._run.totals.requests += 1
        self._run.totals.stalls += stalled
        call = item.calls[questions] = asyncio.create_task(patiently(once, self._parts, self._run.stop))
        # Mark an error as seen: a refusal fails the episode at its commit, and may not be awaited earlier.
        call.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        return call

    def _attempt(self, item: InFlight, read: ReadEpisode, state: KnownState, answers: Answers) -> Decision:
        started = time.monotonic()
        attempt = decide(read, state, answers, self._rules)
        item.deciding_s += time.monotonic() - started
        return attempt

    def _publish_rows(self, sequence: int, attempt: Decision | None) -> None:
        """Replace the episode's rows in the views; later episodes that have read a changed row become due."""
        for reader in self._rows.put(sequence, attempt):
            if reader in self.items:
                self._mark_due(self.items[reader])

    async def _extract(self, item: InFlight, episode: Episode, urgency: Urgency) -> None:
        """Set the episode's extraction, or the error of its reading; of two calls the first counts."""
        reading = item.reading = item.begin_reading() or EpisodeReading(self._parts, episode, item.context)

        async def once() -> Extraction:
            sent_at: list[float] = []  # one time for each call of the model

            @asynccontextmanager
            async def at_gate() -> AsyncIterator[None]:
                async with self._run.gate.pass_through(urgency):
                    sent_at.append(time.monotonic())
                    if not item.sent.done():
                        item.sent.set_result(sent_at[0])
                    yield

            began, report = time.monotonic(), partial(self._parts.on_call, "extract")
            with self._committer.outbox.accounted(episode, report):
                extraction = await reading.read(at_gate)
            report("ok", extraction.cost)
            took = time.monotonic() - (sent_at[0] if sent_at else began)
            if sent_at:
                self._run.extraction_seconds.append(took)
            self._run.watch("extract", took, episode)
            return extraction

        try:
            stored = await stored_extraction(self._parts, episode)
            extraction = await patiently(once, self._parts, self._run.stop) if stored is None else stored
            if item.read.done():
                self._committer.outbox.note_spent(episode, extraction.cost)
                return
            extraction = stored or keep(self._committer.outbox, episode, extraction)
            item.finish_reading(ReadEpisode(episode=episode, extraction=extraction))
        except Exception as error:
            if not _is_left_to_commit(error):
                raise
            if not item.read.done():
                item.read.set_exception(error)
                item.read.exception()  # mark it as seen; an await of the future raises it again

    async def commit_head(self) -> None:
        """Decide the next entry on the true state and post it; `on_end` is called when it is durable.

        A correction is durable before this returns.
        """
        item = next(iter(self.items.values()))
        entry = item.entry
        try:
            if isinstance(entry, Operation):
                outcome = await self._committer.correct(entry)
                self._rows = AheadRows()
                self._run.on_end(self.group, entry.sequence, outcome)
            else:
                await self._commit(item, entry)
        except BaseException:
            self._committer.forget(self.group)
            raise
        del self.items[entry.sequence]
        self._run.in_flight -= 1
        if item.preparing is not None:
            item.preparing.cancel()
        ended = {questions for questions, call in item.calls.items() if call.done() and not call.cancelled()}
        unused = ended - item.used
        self._mark_tried(item)
        self._run.totals.wasted += len(unused)
        self._run.totals.wasted_tokens += sum(item.spent.get(questions, 0) for questions in unused)
        for call in item.calls.values():
            call.cancel()
        self._rows.keys_read.pop(entry.sequence, None)
        if self._committer.kept(self.group) is None:
            # The state was dropped and will be read again: drop the decisions ahead on the old state.
            self._rows = AheadRows()
            for later in self.items.values():
                if later.read.done():
                    self._mark_due(later)

    async def _commit(self, item: InFlight, episode: Episode) -> None:
        """Decide on the true state as the plain loop does; most requests were answered ahead of time.

        A vector that was computed ahead is only used if the true state needs it: the vector of a name
        that has become known would give more candidates than in the plain loop.
        """

        async def attempt(answers: Answers) -> Decision:
            decision = self._attempt(item, read, await self._committer.state(self.group), answers)
            item.enter_after_decision(decision)
            if decision.change is not None and decision.questions.open and self._run.ahead_pays:
                self._publish_rows(episode.sequence, decision)  # later entries need not wait for its answers
                self._mark_tried(item)
            return decision

        try:
            await self._head_extraction(item, episode)
            read = await asyncio.shield(item.read)
            embed, ask = partial(self._embed_for, item), partial(self._call, item, stalled=True)
            look_up = partial(self._committer.statement_vectors, self.group)
            change, last = await settle(
                read, self._parts, attempt=attempt, embed=embed, look_up=look_up, ask=ask
            )
            self._run.watch("decide", item.deciding_s, episode)
        except ContentError as error:
            self._publish_rows(episode.sequence, None)
            item.enter("failed")
            await self._committer.fail(episode, error, self._count_posted(episode, "failed"))
            return
        # Readers of rows that differ from the predicted change become due. From now on the state has the
        # change, so the views omit it.
        if self._rows.keys_read:
            self._publish_rows(episode.sequence, last)
        self._rows.put(episode.sequence, None)
        self._run.totals.left_out += len(read.extraction.dropped)
        item.enter("committed")
        await self._committer.commit(change, self._count_posted(episode, "committed"))

    def _count_posted(self, episode: Episode, outcome: str) -> Callable[[], None]:
        """Count a posted entry; return the callback for when it is durable."""
        self.posted += 1
        self._run.posted += 1

        def durable() -> None:
            self.posted -= 1
            self._run.posted -= not self._is_dropped
            self._run.on_end(self.group, episode.sequence, outcome)

        return durable

    async def _head_extraction(self, item: InFlight, episode: Episode) -> None:
        """Wait for the extraction of the next entry to commit; send it a second time if it is late."""
        await asyncio.wait((item.sent, item.read), return_when=asyncio.FIRST_COMPLETED)
        if not item.read.done():
            usual_s, late_s = self._run.usual_s, self._parts.late_s
            wait_s = max(late_s, LATE_TIMES * usual_s) if usual_s else FIRST_TIMES * late_s
            late_at = item.sent.result() + wait_s
            await asyncio.wait((item.read,), timeout=max(0.0, late_at - time.monotonic()))
        if item.read.done():
            return
        second = self._run.spawn(self._extract(item, episode, Urgency(False, 0, 0)))
        try:
            await asyncio.wait((item.read,))
        finally:
            second.cancel()


def _is_left_to_commit(error: Exception) -> bool:
    """Return whether an error concerns only an episode's content or its group; its commit raises it again."""
    return isinstance(error, ContentError) or is_groups_own(error)
