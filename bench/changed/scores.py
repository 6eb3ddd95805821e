"""The places that the right fact has in searches and contexts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.changed.cases import Case
from kgray.domain.graph import Hit
from kgray.domain.times import to_datetime
from kgray.memory import AsyncMemory

TOKENS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """rank: of the right fact among the hits, from 1, 0 = not there; shown: it is in the context's facts.

    outdated: a fact or an unmarked message above the right fact gives a replaced object
    """

    case: Case
    rank: int
    shown: bool
    outdated: bool
    first: str


def is_right(case: Case, hit: Hit) -> bool:
    """Tell whether a hit is the fact that answers a question."""
    if hit.fact is None:
        return False
    ends = {(hit.fact.subject or "").casefold(), (hit.fact.object or "").casefold()}
    right, subject = ({name.casefold() for name in names} for names in (case.right, case.subject))
    return bool(ends & right) and bool(ends & subject)


async def answer(memory: AsyncMemory, case: Case) -> CaseResult:
    """Search and build a context for one question."""
    arguments: dict[str, Any] = {
        "group": case.group,
        "as_of": None if case.as_of is None else to_datetime(case.as_of),
    }
    hits = await memory.search(case.text, limit=10, **arguments)
    ranks = [rank for rank, hit in enumerate(hits, 1) if is_right(case, hit)]
    built = await memory.context(case.text, tokens=TOKENS, **arguments)
    is_shown = any(is_right(case, hit) for hit in built.hits)
    hits_above = hits[: ranks[0] - 1] if ranks else hits
    outdated = any(name in hit.text for hit in hits_above for name in case.replaced)
    return CaseResult(
        case=case, rank=ranks[0] if ranks else 0, shown=is_shown, outdated=outdated,
        first=f"{hits[0].scope}: {hits[0].text}" if hits else "",
    )  # fmt: skip


def figures(results: Sequence[CaseResult]) -> dict[str, float]:
    """Return the shares: first, among three, in the context's facts, an outdated object above."""
    count = max(1, len(results))
    return {
        "questions": len(results),
        "first": sum(r.rank == 1 for r in results) / count,
        "among three": sum(1 <= r.rank <= 3 for r in results) / count,
        f"in {TOKENS} tokens": sum(r.shown for r in results) / count,
        "outdated above": sum(r.outdated for r in results) / count,
    }


def by_relation(results: Sequence[CaseResult]) -> dict[str, dict[str, float]]:
    """Return the figures of each relation."""
    results_by_relation: dict[str, list[CaseResult]] = defaultdict(list)
    for result in results:
        results_by_relation[result.case.relation].append(result)
    return {relation: figures(results_by_relation[relation]) for relation in sorted(results_by_relation)}
