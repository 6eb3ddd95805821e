"""Searches and contexts of a memory, measured against questions whose evidence is known."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kgray.evals import measures
from kgray.evals.dataset import Conversation, Question
from kgray.graph import Hit
from kgray.memory import Memory
from kgray.ports import SearchScope
from kgray.search import SCOPES

BUDGETS = (500, 950, 1000, 1500)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One question, asked.

    marks       measure -> value; "nothing" and "context_nothing@N" where nothing answers the question
    seconds     what was timed -> how long it took
    found       the messages of the ranking, best first, for people who look for a cause
    """

    conversation: str
    question: Question
    marks: Mapping[str, float]
    seconds: Mapping[str, float] = field(default_factory=dict)
    found: tuple[tuple[str, ...], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the row of --rows."""
        asked = self.question
        row = {"conversation": self.conversation, "id": asked.id, "type": asked.type, "question": asked.text}
        return row | {"evidence": asked.evidence, "found": self.found, **self.marks}


def stands_for(hit: Hit) -> tuple[str, ...]:
    """Return the messages that a hit stands for: an episode for itself, a fact for those that support it."""
    if hit.fact is not None:
        return tuple(client for _, client in hit.fact.episodes if client)
    return (hit.client_id,) if hit.client_id else ()


async def ask(
    memory: Memory,
    conversation: Conversation,
    question: Question,
    *,
    group: str,
    scopes: Sequence[SearchScope] = SCOPES,
    budgets: Sequence[int] = BUDGETS,
) -> Asked:
    """Search, and build a context for each budget; measure both, as of the moments that are asked about."""
    given: dict[str, Any] = {"group": group, "scopes": scopes, "as_of": question.at}
    if question.after:
        given["known_at"] = (await memory.episode(question.after, group=group))["recorded_at"]
    started = time.perf_counter()
    hits = await memory.search(question.text, limit=max(measures.DEPTHS), **given)
    seconds = {"search": time.perf_counter() - started}
    ranking = tuple(map(stands_for, hits))
    marks = marks_of(question, ranking) | _facts_of(question, hits[:10], "{}@10")
    evidence = {name: conversation.texts[name] for name in question.evidence}
    for budget in budgets:
        started = time.perf_counter()
        built = await memory.context(question.text, tokens=budget, **given)
        seconds[f"context@{budget}"] = time.perf_counter() - started
        marks[f"tokens@{budget}"] = float(built.tokens)
        marks |= _facts_of(question, built.hits, f"context_{{}}@{budget}")
        if evidence:
            supported = {name for hit in built.hits if hit.fact for name in stands_for(hit)}
            marks[f"context@{budget}"] = measures.of_context(built.text, supported, evidence)
        elif not question.fact:
            marks[f"context_nothing@{budget}"] = float(not built.hits)
    return Asked(
        conversation=conversation.name, question=question, marks=marks, seconds=seconds, found=ranking
    )


async def ask_all(memory: Memory, talks: Sequence[tuple[str, Conversation]]) -> list[Asked]:
    """Ask the questions whose evidence is known, and those that nothing answers; talks: with their groups."""
    return [
        await ask(memory, talk, question, group=group)
        for group, talk in talks
        for question in talk.questions
        if question.evidence or question.apart or question.fact
    ]


def marks_of(question: Question, ranking: measures.Ranking) -> dict[str, float]:
    """Return the marks of a ranking; of a question that nothing answers, whether it is empty."""
    if question.evidence:
        return measures.of_ranking(ranking, question.evidence)
    return {} if question.fact else {"nothing": float(not ranking)}


def _facts_of(question: Question, hits: Sequence[Hit], name: str) -> dict[str, float]:
    """Return whether the facts give the object that is asked for, and whether they give an outdated one.

    A message that tells an outdated one is no mistake: it says when it was said.
    """
    told = {hit.target.casefold() for hit in hits if hit.target is not None}
    asked = {"fact": (question.fact,) if question.fact else (), "stale": question.outdated}
    return {
        name.format(what): float(any(one.casefold() in told for one in objects))
        for what, objects in asked.items()
        if objects
    }


def report(rows: Sequence[Asked], *, whole: bool = False) -> dict[str, Any]:
    """Return {"overall", "by_type"}: each measure's mean with its interval, counts, latency in milliseconds.

    whole: "overall" has the questions that stand apart (`Question.apart`), too
    """
    types = sorted({row.question.type for row in rows})
    return {
        "overall": _figures([row for row in rows if whole or not row.question.apart]),
        "by_type": {name: _figures([row for row in rows if row.question.type == name]) for name in types},
    }


def _figures(rows: Sequence[Asked]) -> dict[str, Any]:
    timed = measures.columns(row.seconds for row in rows)
    shares = {"p50": 0.5, "p95": 0.95}
    return {
        "questions": len(rows),
        "measures": measures.means(row.marks for row in rows),
        "ms": {
            name: {at: round(1000 * measures.percentile(values, share), 2) for at, share in shares.items()}
            for name, values in timed.items()
        },
    }
