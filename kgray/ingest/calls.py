"""Calls to the model: how many at once and in which order, waiting out an outage, and the journal."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from typing import NamedTuple, TypeVar

from kgray import rows
from kgray.derivation.change import EpisodeChange
from kgray.errors import Unavailable
from kgray.ingest import changes
from kgray.ingest.committer import Outbox, Parts, off_the_loop, rows_of
from kgray.ingest.extract import ground
from kgray.ingest.state import Answers, Decision, Questions, ReadEpisode
from kgray.intake import triples
from kgray.kinds import ANSWERS_TO, EXTRACTIONS_AT
from kgray.ledger import previous
from kgray.outages import OUTAGES
from kgray.ports import Answer, Embedding, ExtractionRequest, Question, QuestionRequest
from kgray.ports.ingest import Stop
from kgray.prompting.replies import speaker_first
from kgray.records import Episode, Extraction


class Urgency(NamedTuple):
    """Sort key of a call to the model: the smallest goes first."""

    bulk: bool  # whether it belongs to the backfill lane, which goes after the live lane
    number: int  # how many episodes were taken before this one
    step: int  # 0 = questions, 1 = extraction
    length: int = 0  # minus the text's length near the end of a backlog (longest first), else 0


class Gate:
    """Limits the calls in flight to `width`; waiting calls enter by urgency, then by arrival.

    By arrival alone, extractions of distant episodes would delay the questions of the next ones:

    order         wasted calls   stalls
    by arrival              46     30 s
    by urgency              14      7 s
    """

    def __init__(self, width: float) -> None:
        """Allow `width` calls at a time, rounded down; who changes it later lets more in with `let_in`."""
        self.width = width
        self.in_flight = 0
        self._held_back = 0
        self._waiting: list[tuple[Urgency, int, asyncio.Future[None]]] = []
        self._order = count()

    def hold_back(self, places: int) -> None:
        """Reserve this many places for the live lane."""
        self._held_back = places
        self.let_in()

    @asynccontextmanager
    async def pass_through(self, urgency: Urgency) -> AsyncIterator[None]:
        """Hold one place inside the `with` block; waits until there is one."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (urgency, next(self._order), turn))
        self.let_in()
        try:
            await turn
            yield
        finally:
            # Who is cancelled in the moment in which it is let in gives its place back too.
            if turn.done() and not turn.cancelled():
                self.in_flight -= 1
                self.let_in()

    def let_in(self) -> None:
        """Let calls in by urgency, as many as there are places for."""
        while self._waiting:
            urgency, _, turn = self._waiting[0]
            if not turn.done():
                if self.in_flight >= int(self.width) - (self._held_back if urgency.bulk else 0):
                    return
                self.in_flight += 1
                turn.set_result(None)
            heapq.heappop(self._waiting)


_T = TypeVar("_T")
_FIRST_DELAY_S = 0.2
_LONGEST_DELAY_S = 30.0


def requests_of(questions: Questions, resolution: str) -> list[tuple[Question, ...]]:
    """Return the open questions by request: one for all; "per_node": one an entity question, and the rest."""
    alone = [q for q in questions.open if resolution == "per_node" and q.kind == "entity"]
    rest = tuple(q for q in questions.open if q not in alone)
    return [*((q,) for q in alone), *([rest] if rest else [])]


async def settle(
    read: ReadEpisode,
    resolution: str,
    *,
    attempt: Callable[[Answers], Awaitable[Decision]],
    embed: Callable[[list[str]], Awaitable[Iterable[Embedding]]],
    ask: Callable[[QuestionRequest], Awaitable[tuple[Answer, ...]]],
) -> tuple[EpisodeChange, Decision]:
    """Decide, ask what is open, decide again, until the episode's change is final (R21).

    Both runners and the preview settle episodes with this loop, so their results are equal (R20).
    """
    answers = Answers()
    while True:
        decision = await attempt(answers)
        if decision.change is not None and not decision.asked:
            return decision.change, decision
        if texts := decision.asked.texts:
            answers.vectors.update(zip(texts, await embed(texts), strict=True))
        for questions in requests_of(decision.asked, resolution):
            said = await ask(QuestionRequest(episode=read.episode, questions=questions))
            answers.said.update(zip(questions, said, strict=True))


async def journaled(
    parts: Parts, outbox: Outbox, request: QuestionRequest, key: str
) -> tuple[tuple[Answer, ...], int]:
    """Return a request's answers and the tokens spent now: from the journal (0 tokens), else from the judge.

    Where two ask the same concurrently, the first answer to arrive holds for both (R21).
    """
    episode = request.episode
    said = outbox.answers.get((episode.group, key))
    if said is None and (kept := await rows_of(parts.store, ANSWERS_TO, episode.group, [key])):
        said = rows.answers(kept[0])
    if said is None:
        with outbox.accounted(episode, told := partial(parts.on_call, "judge")):
            judged = await parts.judge.judge(request)
        told("ok", judged.cost)
        said = outbox.answers.get((episode.group, key))
        if said is None:
            # In the form the journal gives back, so that a replay decides on the same values.
            row = rows.answers_row(key, judged.answers, *judged.cost)
            said = rows.answers(row)
            outbox.post(changes.answered(episode, key, row))
            outbox.remember(episode.group, key, said)
            return said, judged.prompt_tokens + judged.completion_tokens
        outbox.note_spent(episode, judged.cost)
    outbox.post(changes.answered(episode, key))
    return said, 0


async def patiently(call: Callable[[], Awaitable[_T]], parts: Parts, stop: Stop) -> _T:
    """Return what `call` returns; repeat it with growing pauses while the model is unavailable (R24).

    Raises Unavailable after `parts.patience_s` seconds, on `stop()`, or where the backend has already
    waited itself. Content errors are raised at once.
    """
    deadline, since = time.monotonic() + parts.patience_s, time.time()
    delay = _FIRST_DELAY_S
    while True:
        try:
            found = await call()
        except Unavailable as error:
            left = deadline - time.monotonic()
            if error.waited:
                raise  # whoever waited has told of it
            OUTAGES.failed("the model", f"is unavailable ({error})", since=since, patience_s=parts.patience_s)
            if left <= 0 or stop():
                raise
            await asyncio.sleep(min(delay, left))
            delay = min(2 * delay, _LONGEST_DELAY_S)
        else:
            if delay > _FIRST_DELAY_S:
                OUTAGES.answered("the model")
            return found


async def stored_extraction(parts: Parts, episode: Episode) -> Extraction | None:
    """Return the extraction that the journal holds, None without one."""
    if episode.state != "extracted":
        return None
    found = await rows_of(parts.store, EXTRACTIONS_AT, episode.group, [episode.sequence])
    return rows.extraction(found[0]) if found else None


def keep(outbox: Outbox, episode: Episode, found: Extraction) -> Extraction:
    """Post an extraction to the journal; return it as a replay reads it: "?" for what cannot be stored."""
    row = rows.extraction_row(episode.sequence, found)
    outbox.post(changes.extracted(episode, row))
    return rows.extraction(row) if "?" in row[-1] else found


async def read_episode(parts: Parts, episode: Episode) -> Extraction:
    """Return what the episode says, the speaker first, without what does not stand in it; stores nothing."""
    if episode.kind == "triples":
        # Triples are never sent to a model.
        return triples.to_extraction(episode.text, episode.reference_time)
    limit = parts.pipeline.previous_episodes
    said = await off_the_loop(parts.store, lambda: previous(parts.store, episode, limit))
    request = ExtractionRequest(episode=episode, previous=tuple(said))
    return ground(speaker_first(await parts.extractor.extract(request), episode), request)
