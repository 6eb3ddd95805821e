"""`python -m bench questions`: two worlds are ingested and asked about their changed states."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.changed.cases import ChangedWorld, generated, new_memory
from bench.changed.hold_out import hold_out
from bench.changed.scores import CaseResult, answer, by_relation, figures
from kgray.backends.hashing import HashingEmbedder
from kgray.memory import AsyncMemory
from kgray.ports import Embedder

_WORLDS: dict[str, Callable[[int, int], ChangedWorld]] = {"world": generated, "hold-out": hold_out}


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionPlan:
    """The number of worlds of each kind, their numbers of messages, and the first seed."""

    seed: int = 1
    worlds: int = 2
    messages: int = 300
    embedder: str = "hashing"


def embedder_of(name: str) -> Embedder:
    """Return the embedder of this name: hashing or minilm."""
    if name == "hashing":
        return HashingEmbedder()
    from kgray.backends.minilm import MiniLMEmbedder

    return MiniLMEmbedder()


def run(plan: QuestionPlan, *, progress: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Ask all worlds; return the figures by kind of world, of now and of a moment before the change."""
    document: dict[str, Any] = {}
    embedder = embedder_of(plan.embedder)
    for kind, make in _WORLDS.items():
        results: list[CaseResult] = []
        for seed in range(plan.seed, plan.seed + plan.worlds):
            world = make(seed, plan.messages)
            progress(f"{kind} {seed}: {len(world.drafts)} messages, {len(world.cases)} questions")
            with new_memory(world, embedder) as memory:
                results += asyncio.run(_results_of(memory, world))
        current = [result for result in results if result.case.as_of is None]
        earlier = [result for result in results if result.case.as_of is not None]
        document[kind] = {
            "now": figures(current), "before the change": figures(earlier),
            "by relation": {"now": by_relation(current), "before the change": by_relation(earlier)},
            "missed": [row_of(result) for result in results if result.rank != 1],
        }  # fmt: skip
    return document


async def _results_of(memory: AsyncMemory, world: ChangedWorld) -> list[CaseResult]:
    return [await answer(memory, case) for case in world.cases]


def row_of(result: CaseResult) -> dict[str, Any]:
    """Return a question whose fact is not first, for people who look for a cause."""
    case = result.case
    return {
        "question": case.text, "relation": case.relation, "right": sorted(case.right), "rank": result.rank,
        "as_of": case.as_of is not None, "first": result.first, "shown": result.shown,
    }  # fmt: skip


def table(document: dict[str, Any]) -> str:
    """Return the figures for people."""
    lines: list[str] = []
    for kind, parts in document.items():
        for moment in ("now", "before the change"):
            rows: Sequence[tuple[str, dict[str, float]]] = [
                ("all", parts[moment]), *parts["by relation"][moment].items(),
            ]  # fmt: skip
            head = "".join(f"{name:>16}" for name in parts[moment])
            lines += [f"== {kind}, {moment}", f"{'':<18}{head}"]
            for name, row_figures in rows:
                cells = (
                    f"{value:>16.3f}" if key != "questions" else f"{value:>16.0f}"
                    for key, value in row_figures.items()
                )
                lines.append(f"{name:<18}" + "".join(cells))
            lines.append("")
    return "\n".join(lines)
