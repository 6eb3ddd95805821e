"""Questions to requests, requests to answers: journaled as they arrive, asked once (R21, R24)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from kgray import rows
from kgray.errors import Unavailable
from kgray.ingest import changes
from kgray.ingest.outbox import Outbox, off_the_loop
from kgray.ingest.parts import Parts, Stop
from kgray.ingest.values import Questions
from kgray.kinds import ANSWERS_TO
from kgray.ports import Answer, Question, QuestionRequest

_T = TypeVar("_T")
_FIRST_DELAY_S = 0.2
_LONGEST_DELAY_S = 30.0


def requests_of(questions: Questions, resolution: str) -> list[tuple[Question, ...]]:
    """Return the open questions as requests: one; with `per_node` one an entity, and one for the rest."""
    if not questions.open:
        return []
    if resolution != "per_node":
        return [tuple(questions.open)]
    nodes = [(q,) for q in questions.open if q.kind == "entity"]
    rest = tuple(q for q in questions.open if q.kind != "entity")
    return [*nodes, rest] if rest else [*nodes]


async def journaled(
    parts: Parts, outbox: Outbox, request: QuestionRequest, key: str
) -> tuple[tuple[Answer, ...], int]:
    """Return the answers of a request and the tokens spent: from the journal, else of the judge.

    They go to the journal as they arrive; where two asked the same at once, the first answer holds.
    """
    episode = request.episode
    said = outbox.recall(episode.group, key)
    if said is None:
        store = parts.store
        kept = await off_the_loop(store, lambda: list(store.rows(ANSWERS_TO, episode.group, [key])))
        said = rows.answers(kept[0]) if kept else None
    if said is None:
        judged = await parts.judge.judge(request)
        said = outbox.recall(episode.group, key)
        if said is None:
            # As the journal gives them back, so that a replay decides on the very same.
            row = changes.answers_row(key, judged)
            said = rows.answers(row)
            outbox.post(changes.answered(episode, key, row))
            outbox.remember(episode.group, key, said)
            return said, judged.prompt_tokens + judged.completion_tokens
    outbox.post(changes.answered(episode, key))
    return said, 0


async def patiently(call: Callable[[], Awaitable[_T]], parts: Parts, stop: Stop) -> _T:
    """Wait out an outage with growing pauses, up to the patience; content errors pass at once (R24).

    A backend that has waited by itself says so, and is not waited for twice.
    """
    deadline = time.monotonic() + parts.patience_s
    delay = _FIRST_DELAY_S
    while True:
        try:
            return await call()
        except Unavailable as error:
            left = deadline - time.monotonic()
            if error.waited or left <= 0 or stop():
                raise
            await asyncio.sleep(min(delay, left))
            delay = min(2 * delay, _LONGEST_DELAY_S)
