"""`python -m bench retrieval`: recall of searches and contexts for the evidence of questions.

Conversations are ingested through the engine into stores that are kept. Later runs only ask, until the
messages or the code that ingests change. Beside kgray stand BM25 and cosine over the messages alone.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

import kgray
from bench.engine import opened, settings_of
from bench.plain_search import PlainBM25, Together, nearest
from bench.talk import LONG, Shape, conversation
from kgray.evals.retrieval import (
    BUDGETS,
    DEPTHS,
    Conversation,
    Message,
    Result,
    ask,
    marks_of,
    read_dataset,
    report,
)
from kgray.memory import AsyncMemory
from kgray.models.prompting.tokens import count_tokens

HANDMADE = Path(__file__).parent / "data" / "conversation.jsonl"
_STORES = 2  # each with half of the conversations, in a separate process
_CROWD = 7  # people of a conversation in channels; every fifth is one
_LONG, _LONG_TURNS = 100, 600  # the number of the first long conversation
# The parts of the package that determine the stored graph.
_INGESTING = ("domain", "graph", "ingest", "io", "language", "models", "schema", "storage", "timeline")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalPlan:
    """The parameters of a measurement.

    conversations   0 = the hand-made one alone, which is always measured; and half as many long ones
    """

    seed: int = 1
    conversations: int = 10
    turns: int = 500
    questions: int = 100
    embedder: str = "hashing"
    budgets: tuple[int, ...] = BUDGETS
    folder: Path = field(default_factory=lambda: Path(tempfile.gettempdir()) / "kgray-retrieval")

    def talks(self) -> list[Conversation]:
        """Return the conversations, the hand-made one first."""
        generated = [
            conversation(
                self.seed,
                number,
                Shape(people=_CROWD if number % 5 == 4 else 2, turns=self.turns, questions=self.questions),
            )
            for number in range(self.conversations)
        ]
        # The length of people's real talks over months: 25 sessions of turns of 130 characters.
        shape = Shape(turns=_LONG_TURNS, questions=2 * self.questions, shares=LONG, alike=0.75, pads=2)
        long = [conversation(self.seed, _LONG + number, shape) for number in range(self.conversations // 2)]
        return [*read_dataset(HANDMADE).conversations, *generated, *long]

    def stores(self) -> Path:
        """Return the folder of the stores: it depends on messages, embedder and code."""
        package = Path(kgray.__file__).parent
        digest = hashlib.sha256(self.embedder.encode())
        for path in sorted(path for part in _INGESTING for path in _sources(package / part)):
            digest.update(path.read_bytes())
        for talk in self.talks():
            digest.update(repr([talk.name, *map(Message.row, talk.messages)]).encode())
        return self.folder / digest.hexdigest()[:16]


def _sources(path: Path) -> Iterator[Path]:
    yield from path.rglob("*.py") if path.is_dir() else [path]


SYSTEMS = ("kgray", "kgray, messages", "together", "BM25", "BM25 with speakers", "cosine")
SETS = ("handmade", "two", "channels", "long")
Row = tuple[str, Result]  # system, its result


def run(plan: RetrievalPlan, *, progress: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Ingest missing conversations, ask, and return each system's figures by kind of conversation."""
    folder = plan.stores()
    progress(f"stores in {folder}")
    with ProcessPoolExecutor(_STORES) as pool:
        parts = list(pool.map(_part, [(plan, folder, part) for part in range(_STORES)]))
    rows = [row for part in parts for row in part]
    document: dict[str, Any] = {"plan": {**asdict(plan), "folder": str(folder)}}
    for name in SETS:
        results_by_system: dict[str, list[Result]] = {system: [] for system in SYSTEMS}
        for system, result in rows:
            if _set_of(result.conversation) == name:
                results_by_system[system].append(result)
        document[name] = {system: report(results) for system, results in results_by_system.items()}
    document["rows"] = [_row(system, result) for system, result in rows]
    return document


def _set_of(conversation: str) -> str:
    number = re.fullmatch(r"talk-\d+-(\d+)", conversation)
    if not number:
        return "handmade"
    return "long" if int(number[1]) >= _LONG else "channels" if int(number[1]) % 5 == 4 else "two"


def _row(system: str, result: Result) -> dict[str, Any]:
    return {
        "system": system,
        "conversation": result.conversation,
        "question": result.question.text,
        "type": result.question.type,
        "evidence": result.question.evidence,
        "found": result.hits[:20],
        "marks": result.marks,
    }


def _part(arguments: tuple[RetrievalPlan, Path, int]) -> list[Row]:
    """Ask the questions about the conversations of a store, in a separate process."""
    plan, folder, part = arguments
    settings = settings_of({"embedder_backend": plan.embedder})
    talks, marker = plan.talks()[part::_STORES], folder / f"{part}.done"
    memory = opened(settings, folder / str(part))
    try:
        if not marker.exists():
            for talk in talks:
                asyncio.run(memory.add_many(map(Message.row, talk.messages), group=talk.name))
            marker.touch()
        return asyncio.run(_searched(memory, talks, plan.budgets))
    finally:
        memory.close()


async def _searched(memory: AsyncMemory, talks: Sequence[Conversation], budgets: Sequence[int]) -> list[Row]:
    rows: list[Row] = []
    for talk in talks:
        rows += [*await _plain(memory, talk), *await _together(memory, talk, budgets)]
        for question in talk.questions:
            rows.append(("kgray", await ask(memory, talk, question, group=talk.name, budgets=budgets)))
            result = await ask(memory, talk, question, group=talk.name, scopes=("episode",), budgets=())
            rows.append(("kgray, messages", result))
    return rows


async def _plain(memory: AsyncMemory, talk: Conversation) -> list[Row]:
    """Ask the searches over messages alone."""
    texts = [message.text for message in talk.messages]
    named = [f"{message.speaker}: {message.text}" for message in talk.messages]
    bm25, with_speakers = PlainBM25(texts), PlainBM25(named)
    vectors = await memory.embedder.embed(named)
    query_vectors = await memory.embedder.embed([question.text for question in talk.questions])
    rows: list[Row] = []
    for question, vector in zip(talk.questions, np.asarray(query_vectors), strict=True):
        best = {
            "BM25": bm25.best(question.text, max(DEPTHS)),
            "BM25 with speakers": with_speakers.best(question.text, max(DEPTHS)),
            "cosine": nearest(vector, vectors, max(DEPTHS)),
        }
        for system, places in best.items():
            ranking = tuple((talk.messages[place].id,) for place in places)
            marks = marks_of(question, ranking)
            result = Result(conversation=talk.name, question=question, marks=marks, hits=ranking)
            rows.append((system, result))
    return rows


async def _together(memory: AsyncMemory, talk: Conversation, budgets: Sequence[int]) -> list[Row]:
    """Ask the plain search with all signals; its context is its best messages, as long as they fit."""
    vectors = await memory.embedder.embed([message.text for message in talk.messages])
    plain, rows = Together(talk.messages, np.asarray(vectors)), list[Row]()
    for question in talk.questions:
        query = plain.read(question.text)
        vector = np.asarray(await memory.embedder.embed([query.topic]))[0]
        ranked = [talk.messages[place] for place in plain.ranked(query, vector)]
        ranking = tuple((message.id,) for message in ranked[: max(DEPTHS)])
        marks = marks_of(question, ranking)
        costs = [count_tokens(f"{message.speaker}: {message.text}\n") for message in ranked]
        for budget in budgets if question.evidence else ():
            fitting = bisect_right([*accumulate(costs)], budget)
            shown_ids = {message.id for message in ranked[:fitting]}
            marks[f"context@{budget}"] = len(shown_ids & set(question.evidence)) / len(question.evidence)
            marks[f"tokens@{budget}"] = float(sum(costs[:fitting]))
        result = Result(conversation=talk.name, question=question, marks=marks, hits=ranking)
        rows.append(("together", result))
    return rows


# ------------------------------------------------------------------------------------ showing

_MEASURES = ("fraction@5", "fraction@10", "fraction@20", "fraction@50", "any@10", "all@10", "ndcg@10", "mrr")


def table(document: dict[str, Any]) -> str:
    """Return the figures for people."""
    lines: list[str] = []
    budgets = document["plan"]["budgets"]
    for part in SETS:
        figures = document[part]
        if not figures["kgray"]["overall"]["questions"]:
            continue
        count = figures["kgray"]["overall"]["questions"]
        lines += [f"== {part}: {count} questions, overall", _head("system")]
        lines += [_line(system, figures[system]["overall"]["measures"]) for system in SYSTEMS]
        for system in ("kgray", "together", "BM25"):
            lines += ["", f"-- {part}, {system}, by type", _head("type")]
            for kind, figures_of_kind in figures[system]["by_type"].items():
                lines.append(_line(f"{kind} ({figures_of_kind['questions']})", figures_of_kind["measures"]))
        for system in ("kgray", "together"):
            lines += ["", f"-- {part}, context of {system}: evidence (tokens used)"]
            for kind, figures_of_kind in {
                "overall": figures[system]["overall"],
                **figures[system]["by_type"],
            }.items():
                cells = (_context(figures_of_kind["measures"], budget) for budget in budgets)
                lines.append(f"{kind:<20}" + "".join(cells))
        ms = figures["kgray"]["overall"]["ms"]
        latencies = "; ".join(f"{name} {at['p50']:.1f} / {at['p95']:.1f}" for name, at in ms.items())
        lines += ["", f"-- {part}, ms p50 / p95: {latencies}", ""]
    return "\n".join(lines)


def _head(name: str) -> str:
    return f"{name:<20}" + "".join(f"{measure:>12}" for measure in (*_MEASURES, "nothing"))


def _line(name: str, measures: dict[str, Any]) -> str:
    cells = [measures.get(measure) for measure in (*_MEASURES, "nothing")]
    texts = ["-" if cell is None else format(cell["mean"], ".3f") for cell in cells]
    return f"{name:<20}" + "".join(f"{cell:>12}" for cell in texts)


def _context(measures: dict[str, Any], budget: int) -> str:
    cell = measures.get(f"context@{budget}") or measures.get(f"context_nothing@{budget}")
    name = "" if f"context@{budget}" in measures else "none "
    used = measures.get(f"tokens@{budget}", {"mean": 0})["mean"]
    return f"{budget:>6}: {name}{cell['mean'] if cell else 0:.3f} ({used:.0f})"
