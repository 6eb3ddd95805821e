"""`python -m bench retrieval`: what searches and contexts hold of the evidence that questions have.

Conversations are ingested through the engine into stores that are kept, by seed and by the code that ingests; later
runs only ask. Beside kgray stand BM25 and cosine over the messages alone.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import kgray
from bench.engine import opened, settings_of
from bench.plain_search import PlainBM25, nearest
from bench.talk import Shape, conversation
from bench.talk.topics import FILES
from kgray.evals.dataset import Conversation
from kgray.evals.formats import read_dataset
from kgray.evals.measures import DEPTHS
from kgray.evals.retrieval import Asked, ask, marks_of, report
from kgray.memory import Memory

HANDMADE = Path(__file__).parent / "data" / "conversation.jsonl"
_STORES = 2  # each with half of the conversations, ingested and asked by a process of its own
_CROWD = 7  # people of a conversation in channels; every fifth is one
_INGESTING = ("backends", "derivation", "ingest", "intake", "stores", "timeline", "kinds.py", "rows.py", "records.py")
_TALK = Path(__file__).parent / "talk"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalPlan:
    """What is measured. conversations: 0 = the hand-made one alone, which is always measured."""

    seed: int = 1
    conversations: int = 10
    turns: int = 500
    questions: int = 100
    embedder: str = "hashing"
    folder: Path = field(default_factory=lambda: Path(tempfile.gettempdir()) / "kgray-retrieval")

    def talks(self) -> list[Conversation]:
        """Return the conversations, the hand-made one first."""
        made = [
            conversation(
                self.seed,
                number,
                Shape(
                    people=_CROWD if number % 5 == 4 else 2, turns=self.turns, questions=self.questions
                ),
            )
            for number in range(self.conversations)
        ]
        return [*read_dataset(HANDMADE), *made]

    def stores(self) -> Path:
        """Return the folder of the stores: another one where the plan or the code that ingests differs."""
        package = Path(kgray.__file__).parent
        code = [path for part in _INGESTING for path in _sources(package / part)]
        code += [*FILES, *_TALK.glob("*.py"), HANDMADE]
        whole = hashlib.sha256(repr([self.seed, self.conversations, self.turns, self.embedder]).encode())
        for path in sorted(code):
            whole.update(path.read_bytes())
        return self.folder / whole.hexdigest()[:16]


def _sources(path: Path) -> Iterator[Path]:
    yield from path.rglob("*.py") if path.is_dir() else [path]


SYSTEMS = ("kgray", "kgray, messages", "BM25", "BM25 with speakers", "cosine")
Row = tuple[str, Asked]  # system, what it found


def run(plan: RetrievalPlan, *, progress: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Ingest what is not there yet, ask, and return the figures of each system, made and hand-made apart."""
    folder = plan.stores()
    progress(f"stores in {folder}")
    with ProcessPoolExecutor(_STORES) as pool:
        parts = list(pool.map(_part, [(plan, folder, part) for part in range(_STORES)]))
    rows = [row for part in parts for row in part]
    handmade = {talk.name for talk in read_dataset(HANDMADE)}
    document: dict[str, Any] = {"plan": {**asdict(plan), "folder": str(folder)}}
    for name, chosen in (("handmade", True), ("made", False)):
        document[name] = {
            system: report(asked for of, asked in rows if of == system and (asked.conversation in handmade) == chosen)
            for system in SYSTEMS
        }
    document["rows"] = [_row(system, asked) for system, asked in rows]
    return document


def _row(system: str, asked: Asked) -> dict[str, Any]:
    return {
        "system": system,
        "conversation": asked.conversation,
        "question": asked.question.text,
        "type": asked.question.type,
        "evidence": asked.question.evidence,
        "found": asked.found[:20],
        "marks": asked.marks,
    }


def _part(given: tuple[RetrievalPlan, Path, int]) -> list[Row]:
    """Ask the conversations of one store; in a process of its own."""
    plan, folder, part = given
    os.nice(5)
    settings = settings_of({"embedder_backend": plan.embedder})
    memory = opened(settings, folder / str(part))
    try:
        return asyncio.run(_asked(memory, plan.talks()[part::_STORES], folder / f"{part}.json"))
    finally:
        memory.close()


async def _asked(memory: Memory, talks: Sequence[Conversation], ingested: Path) -> list[Row]:
    if not ingested.exists():
        for talk in talks:
            await memory.add_many([message.row() for message in talk.messages], group=talk.name)
        ingested.write_text(json.dumps([talk.name for talk in talks]), encoding="utf-8")
    rows: list[Row] = []
    for talk in talks:
        rows += await _plain(memory, talk)
        for question in talk.questions:
            rows.append(("kgray", await ask(memory, talk, question, group=talk.name)))
            found = await ask(memory, talk, question, group=talk.name, scopes=("episode",), budgets=())
            rows.append(("kgray, messages", found))
    return rows


async def _plain(memory: Memory, talk: Conversation) -> list[Row]:
    """Ask what knows only the messages."""
    texts = [message.text for message in talk.messages]
    named = [f"{message.speaker}: {message.text}" for message in talk.messages]
    bm25, with_speakers = PlainBM25(texts), PlainBM25(named)
    vectors = await memory.embedder.embed(named)
    asked = await memory.embedder.embed([question.text for question in talk.questions])
    rows: list[Row] = []
    for question, vector in zip(talk.questions, np.asarray(asked), strict=True):
        best = {
            "BM25": bm25.best(question.text, max(DEPTHS)),
            "BM25 with speakers": with_speakers.best(question.text, max(DEPTHS)),
            "cosine": nearest(vector, vectors, max(DEPTHS)),
        }
        for system, places in best.items():
            ranking = tuple((talk.messages[place].id,) for place in places)
            marks = marks_of(question, ranking)
            rows.append((system, Asked(conversation=talk.name, question=question, marks=marks, found=ranking)))
    return rows


# ------------------------------------------------------------------------------------ showing

_SHOWN = ("fraction@5", "fraction@10", "fraction@20", "fraction@50", "any@10", "all@10", "ndcg@10", "mrr")
_BUDGETS = (500, 950, 1000, 1500)


def table(document: dict[str, Any]) -> str:
    """Return the figures for people."""
    lines: list[str] = []
    for part in ("handmade", "made"):
        figures = document[part]
        if not figures["kgray"]["overall"]["questions"]:
            continue
        lines += [f"== {part}: {figures['kgray']['overall']['questions']} questions, overall", _head("system")]
        lines += [_line(system, figures[system]["overall"]["measures"]) for system in SYSTEMS]
        for system in ("kgray", "BM25"):
            lines += ["", f"-- {part}, {system}, by type", _head("type")]
            for kind, found in figures[system]["by_type"].items():
                lines.append(_line(f"{kind} ({found['questions']})", found["measures"]))
        lines += ["", f"-- {part}, context of kgray: evidence (tokens used)"]
        for kind, found in {"overall": figures["kgray"]["overall"], **figures["kgray"]["by_type"]}.items():
            lines.append(f"{kind:<20}" + "".join(_context(found["measures"], budget) for budget in _BUDGETS))
        ms = figures["kgray"]["overall"]["ms"]
        told = "; ".join(f"{name} {at['p50']:.1f} / {at['p95']:.1f}" for name, at in ms.items())
        lines += ["", f"-- {part}, ms p50 / p95: {told}", ""]
    return "\n".join(lines)


def _head(name: str) -> str:
    return f"{name:<20}" + "".join(f"{measure:>12}" for measure in (*_SHOWN, "nothing"))


def _line(name: str, found: dict[str, Any]) -> str:
    cells = [found.get(measure) for measure in (*_SHOWN, "nothing")]
    return f"{name:<20}" + "".join(f"{'-' if cell is None else format(cell['mean'], '.3f'):>12}" for cell in cells)


def _context(found: dict[str, Any], budget: int) -> str:
    cell = found.get(f"context@{budget}") or found.get(f"context_nothing@{budget}")
    name = "" if f"context@{budget}" in found else "none "
    used = found.get(f"tokens@{budget}", {"mean": 0})["mean"]
    return f"{budget:>6}: {name}{cell['mean'] if cell else 0:.3f} ({used:.0f})"
