"""Points for an answer from the reports of all communities of a level: GraphRAG's global search.

The reports are read some at a time, side by side; each reading lists points with scores from 0 to 100. The
best points are the source of the answer (arXiv 2404.16130).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kgray.domain.graph import Community, Hit, Scope
from kgray.errors import Cost, InputError, InvalidAnswer, Refused
from kgray.memory.spending import Spending
from kgray.models.prompting.prompts import answer_data
from kgray.models.prompting.reply_schemas import INDEX, TEXT, listed_of, object_of
from kgray.models.prompting.tokens import Counter, count_tokens
from kgray.search.answering import LEAST_ROOM
from kgray.search.context import Context, safe

_REPORTS = 4000  # tokens of reports in one request
_POINTS = 8  # of one reply
SCHEMA = object_of(points=listed_of(object_of(text=TEXT, reports=listed_of(INDEX), score=INDEX)))


def of_level(communities: Sequence[Community], level: int | None) -> list[Community]:
    """Return communities that cover all entities once, at this level or, where it has none above, below.

    level: 0 is the finest; None = those at the top. Raises InputError for a level that there is not.
    """
    levels = sorted({community.level for community in communities})
    if level is not None and level not in levels:
        raise InputError(
            f"level {level} is unknown: the group has communities of the levels "
            f"{', '.join(map(str, levels))} (0 is the finest)",
            field="level",
        )
    highest = levels[-1] if level is None else level
    return [
        community
        for community in communities
        if community.level == highest or (community.level < highest and community.parent is None)
    ]


def fitting_reports(
    communities: Sequence[Community], min_rating: int, tokens: int
) -> tuple[list[Community], int]:
    """Return the communities whose reports fit into the tokens, and the number of omitted communities.

    Reports below the rating are in neither; unrated reports pass. Best rating, then largest, first.
    """
    rated = [each for each in communities if each.report.get("rating", min_rating) >= min_rating]
    rated.sort(key=lambda each: (-each.report.get("rating", 0), -each.size, each.id))
    read: list[Community] = []
    for community in rated:
        tokens -= count_tokens(report_text(community))
        if tokens < 0 and read:
            break
        read.append(community)
    return read, len(rated) - len(read)


def report_text(community: Community) -> str:
    """Return a community's name, summary and findings as one line."""
    findings = (str(row["summary"]) for row in community.report.get("findings", ()))
    return safe(" ".join([community.text, *findings]))


@dataclass(frozen=True, slots=True)
class Reading:
    """One question to the reports of a group; tokens: of the points that the answer is written from."""

    spending: Spending
    question: str
    group: str
    tokens: int
    count: Counter
    history: Sequence[Any] = ()

    async def points(self, reports: Sequence[Community], later_calls: int) -> tuple[Context, dict[str, int]]:
        """Return the best points as a context, and the numbers of reports read, reports left out, and points.

        later_calls: model calls that follow. Raises InputError where the bounds pay for no reading.
        """
        batches = list(self._affordable(list(_batches(reports)), later_calls))
        replies = await asyncio.gather(*(self._read(batch) for batch in batches))
        points = sorted((point for part in replies for point in part or ()), key=lambda point: -point[0])
        hits = [hit for _, hit in points]
        lines = [f"- [{number}] {safe(hit.text)}" for number, hit in enumerate(hits, 1)]
        while lines and self.count("\n".join(lines)) > self.tokens:
            lines.pop()
        numbered: frozenset[Scope] = frozenset({"community"})
        text = "\n".join(lines)
        used = tuple(hits[: len(lines)])
        context = Context(text=text, tokens=self.count(text), hits=used, numbered=numbered)
        read = sum(map(len, batches))
        unread = sum(len(batch) for batch, part in zip(batches, replies, strict=True) if part is None)
        return context, {
            "read": read - unread,
            "left_out": len(reports) - read + unread,
            "points": len(lines),
        }

    def _affordable(self, batches: list[list[Community]], later_calls: int) -> Iterator[list[Community]]:
        """Yield as many batches as calls and tokens allow beside the answer. Raises InputError for none."""
        answer = self.spending.worst(
            "answer", answer_data(self.question, (), history=self.history), LEAST_ROOM
        )
        calls, tokens = later_calls, answer + self.tokens
        for number, batch in enumerate(batches):
            calls, tokens = calls + 1, tokens + self.spending.worst("points", self._data(batch))
            if not self.spending.allows(calls, tokens):
                if not number:
                    raise InputError(
                        f"mode global takes {calls} calls and {tokens} tokens at least: allow more",
                        field="mode",
                    )
                break
            yield batch

    def _data(self, reports: Sequence[Community]) -> str:
        lines = [f"[{number}] {report_text(report)}" for number, report in enumerate(reports, 1)]
        return answer_data(self.question, lines, history=self.history)

    async def _read(self, reports: Sequence[Community]) -> list[tuple[int, Hit]] | None:
        """Return the points of some reports with their scores; None where the reply cannot be used."""
        data = self._data(reports)
        bounds = self.spending.share(self.spending.worst("points", data))
        try:
            reply = await bounds.json("points", self.question, data, SCHEMA)
        except (Refused, InvalidAnswer) as error:
            self.spending.add(Cost(*error.spent))
            return None
        self.spending.add(bounds.cost)
        rows = reply["points"] if isinstance(reply["points"], list) else []
        return [point for row in rows[:_POINTS] if (point := self._point(row, reports)) is not None]

    def _point(self, row: Any, reports: Sequence[Community]) -> tuple[int, Hit] | None:  # noqa: ANN401 - JSON
        """Return a point with its score; None where it has no text, no score above 0 or no report."""
        row = row if isinstance(row, dict) else {}
        text, score, numbers = row.get("text"), row.get("score"), row.get("reports")
        cited = [n for n in numbers if type(n) is int] if isinstance(numbers, list) else []
        named = [reports[n - 1] for n in dict.fromkeys(cited) if 1 <= n <= len(reports)]
        if not isinstance(text, str) or not text.strip() or type(score) is not int or score <= 0 or not named:
            return None
        hit = Hit(
            scope="community", id=named[0].id, text=text.strip(), score=min(score, 100) / 100,
            group=self.group, community=named[0], besides=tuple(named[1:]),
        )  # fmt: skip
        return min(score, 100), hit


def _batches(reports: Sequence[Community]) -> Iterator[list[Community]]:
    """Yield the reports in their order, as many together as one request takes."""
    batch: list[Community] = []
    tokens = 0
    for report in reports:
        cost = count_tokens(report_text(report))
        if batch and tokens + cost > _REPORTS:
            yield batch
            batch, tokens = [], 0
        batch.append(report)
        tokens += cost
    if batch:
        yield batch
