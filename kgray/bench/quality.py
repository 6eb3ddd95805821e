"""`kgray bench quality`: a world is ingested, and the graph is held against the world's truth."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kgray import times
from kgray.backends.hashing import HashingEmbedder
from kgray.bench import scoring
from kgray.bench.scoring import Scores
from kgray.bench.world import Errors, Oracle, Plan, TrueFact, World, WorldJudge, WorldReader
from kgray.bench.world.questions import Asked, Objects, rounds, true_answers
from kgray.derivation.stored import records_of
from kgray.derivation.view import View
from kgray.ingest.loop import Loop
from kgray.ingest.parts import Parts, Pipeline
from kgray.ledger import accept, dumped_episodes
from kgray.ontology import shipped
from kgray.ports import ExtractionRequest, Extractor, Judge, Judged, Matrix, QuestionRequest, Store
from kgray.records import Extraction
from kgray.stores.sqlite import open_sqlite

_BATCH = 256


@dataclass(slots=True)
class Result:
    """One world, ingested and scored.

    baseline_*  accuracy of the timeline over the same extractions with true identities, where
                the reader errs; the engine's own accuracy is in `scores`, both against what was told
    cpu_*       the engine's CPU seconds an episode, the models' own taken off: all, the 100 episodes
                around the 100th, the last 100
    """

    seed: int
    episodes: int
    pipeline: str
    errors: Errors
    committed: int = 0
    failed: int = 0
    scores: Scores = field(default_factory=Scores)
    baseline_now: float = 1.0
    baseline_asof: float = 1.0
    baseline_asknown: float = 1.0
    calls: float = 0.0
    prompt_tokens: float = 0.0
    completion_tokens: float = 0.0
    prefix_share: float | None = None
    asked: dict[str, int] = field(default_factory=dict)
    unrecognised: int = 0
    cpu_s: float = 0.0
    cpu_early_s: float = 0.0
    cpu_late_s: float = 0.0
    wall_s: float = 0.0

    def as_dict(self) -> dict[str, object]:
        """Return the JSON form."""
        return asdict(self)


class _Clock:
    """CPU time that models take, told apart from the engine's."""

    def __init__(self) -> None:
        self.models_s = 0.0
        self.steps: list[float] = []

    @contextmanager
    def off(self) -> Iterator[None]:
        start = time.process_time()
        try:
            yield
        finally:
            self.models_s += time.process_time() - start

    def step(self, *_: object) -> None:
        """Note the engine's CPU seconds so far, after an episode."""
        self.steps.append(time.process_time() - self.models_s)


class _Timed:
    """Reader, judge and embedder with their CPU time taken off. In this process one runs at a time."""

    def __init__(self, extractor: Extractor, judge: Judge, embedder: HashingEmbedder, clock: _Clock) -> None:
        self._extractor, self._judge, self._embedder, self._clock = extractor, judge, embedder, clock
        self.identity = extractor.identity
        self.dimensions = embedder.dimensions

    async def extract(self, request: ExtractionRequest) -> Extraction:
        with self._clock.off():
            return await self._extractor.extract(request)

    def key(self, request: QuestionRequest) -> str:
        return self._judge.key(request)

    async def judge(self, request: QuestionRequest) -> Judged:
        with self._clock.off():
            return await self._judge.judge(request)

    async def embed(self, texts: Sequence[str]) -> Matrix:
        with self._clock.off():
            return await self._embedder.embed(texts)


@dataclass(frozen=True, slots=True)
class Models:
    """Who reads and judges; stats: what a server says of itself at the end, {} for none."""

    extractor: Extractor
    judge: Judge
    stats: Callable[[], Mapping[str, Any]] = dict


MakeModels = Callable[[Oracle, Pipeline], AbstractContextManager[Models]]


@contextmanager
def in_process(oracle: Oracle, _: Pipeline) -> Iterator[Models]:
    """Yield a reader and a judge that know the world, in this process."""
    reader = WorldReader(oracle.world, oracle=oracle)
    yield Models(reader, WorldJudge(oracle.world, oracle=oracle, streams=reader.streams))


def run(
    plan: Plan,
    *,
    pipeline: Pipeline | None = None,
    errors: Errors | None = None,
    models: MakeModels = in_process,
    progress: Callable[[str], None] = lambda _: None,
) -> Result:
    """Ingest a world into a store of its own and score its first group."""
    chosen = pipeline or Pipeline()
    oracle = Oracle(World(plan=plan), errors)
    shape = f"{chosen.extraction} {chosen.resolution} {chosen.judging}"
    result = Result(seed=plan.seed, episodes=plan.episodes, pipeline=shape, errors=oracle.errors)
    clock, embedder = _Clock(), HashingEmbedder()
    with tempfile.TemporaryDirectory(prefix="kgray-bench-") as folder, models(oracle, chosen) as asked:
        timed = _Timed(asked.extractor, asked.judge, embedder, clock)
        store: Store = open_sqlite(Path(folder), embedder=embedder.identity, dimensions=embedder.dimensions)
        parts = Parts(
            store=store, extractor=timed, judge=timed, embedder=timed, ontology=shipped(), pipeline=chosen
        )
        _ingest(oracle.world, parts, clock, result)
        progress(f"seed {plan.seed}: {result.committed:,} episodes committed")
        _measure(store, oracle, asked.stats(), clock, result)
        _score(store, oracle, oracle.world.groups[0], result)
        store.close()
    return result


def _ingest(world: World, parts: Parts, clock: _Clock, result: Result) -> None:
    drafts = [episode.draft for episode in world]
    for at in range(0, len(drafts), _BATCH):
        accept(parts.store, drafts[at : at + _BATCH], now=times.now())
    wall = time.perf_counter()
    clock.steps.append(time.process_time())
    with parts.store.writing():
        totals = asyncio.run(Loop(parts).run(on_step=clock.step))
    result.wall_s = time.perf_counter() - wall
    result.committed, result.failed = totals.committed, totals.failed


def _measure(store: Store, oracle: Oracle, stats: Mapping[str, Any], clock: _Clock, result: Result) -> None:
    counts = store.counts().values()
    episodes = max(1, result.committed)
    result.calls = sum(c.calls for c in counts) / episodes
    result.prompt_tokens = sum(c.prompt_tokens for c in counts) / episodes
    result.completion_tokens = sum(c.completion_tokens for c in counts) / episodes
    result.prefix_share = stats.get("prefix_share")
    result.asked = dict(stats.get("questions", oracle.counts.questions))
    result.unrecognised = int(stats.get("unrecognised", oracle.counts.unrecognised))
    steps = clock.steps
    result.cpu_s = (steps[-1] - steps[0]) / episodes
    if len(steps) > 200:
        result.cpu_early_s = (steps[150] - steps[50]) / 100
        result.cpu_late_s = (steps[-1] - steps[-101]) / 100


def _score(store: Store, oracle: Oracle, group: str, result: Result) -> None:
    scores = result.scores
    read, told = oracle.truth(group), oracle.world.truth(group)
    view = View(records_of(store, group), lambda _: [])
    clients = {e.sequence: e.client_id or "" for e in dumped_episodes(store, group)}
    matched = scoring.match_entities(view, clients, read, scores)
    scoring.score_facts(view, matched, read, scores)
    quizzes = {kind: _Quiz(kind) for kind in ("now", "as-of", "as-known")}
    heads = records_of(store, group).heads
    for questions in rounds(told, oracle.world.plan.seed, oracle.world.end()):
        at, seen = questions.known_at, view
        if at is not None:
            seen = View(records_of(store, group, heads[at - 1].recorded_at), lambda _: [])
        quizzes[questions.kind].take(questions.asked, told.facts(at), read.facts(at), seen, matched)
    now, then, known = quizzes.values()
    scores.acc_now, result.baseline_now = now.marks(scores)
    scores.acc_asof, result.baseline_asof = then.marks(scores)
    scores.acc_asknown, result.baseline_asknown = known.marks(scores)
    scores.stale_rate = scoring.stale(told.facts(), now.asked, now.given)
    scores.questions = sum(len(quiz.asked) for quiz in quizzes.values())


@dataclass(slots=True)
class _Quiz:
    """Questions with three answers each: what was told, what follows from what was read, the graph's."""

    name: str
    asked: list[Asked] = field(default_factory=list)
    right: list[Objects] = field(default_factory=list)
    read: list[Objects] = field(default_factory=list)
    given: list[Objects] = field(default_factory=list)

    def take(
        self,
        asked: Sequence[Asked],
        told: Sequence[TrueFact],
        read: Sequence[TrueFact],
        view: View,
        matched: scoring.Matched,
    ) -> None:
        """Add questions with their answers."""
        self.asked += asked
        self.right += true_answers(told, asked)
        self.read += true_answers(read, asked)
        self.given += scoring.graph_answers(view, matched, asked)

    def marks(self, scores: Scores) -> tuple[float, float]:
        """Return the accuracy of the graph and that of the timeline; notes where the two differ."""
        scoring.note_differences(self.name, self.asked, self.read, self.given, scores)
        return scoring.accuracy(self.right, self.given), scoring.accuracy(self.right, self.read)


# ------------------------------------------------------------------------------------ showing

# What a run without injected errors must reach: field -> bound; the last ones at most, the others at least.
TARGETS: Mapping[str, float] = {
    "er_f1": 0.99,
    "fact_recall": 0.99,
    "inv_precision": 0.99,
    "inv_recall": 0.99,
    "acc_now": 0.995,
    "acc_asof": 0.995,
    "acc_asknown": 0.995,
}
LIMITS: Mapping[str, float] = {"calls": 1.3, "prompt_tokens": 1200, "cpu_s": 0.02}
LEAST_PREFIX = 0.60
_COLUMNS: Sequence[tuple[str, str, str]] = (
    ("seed", "seed", "d"),
    ("er_f1", "ER F1", ".4f"),
    ("er_bcubed_f1", "B3 F1", ".4f"),
    ("fact_recall", "recall", ".4f"),
    ("duplicate_rate", "dup", ".4f"),
    ("inv_precision", "inv P", ".4f"),
    ("inv_recall", "inv R", ".4f"),
    ("boundary_error_days", "days", ".2f"),
    ("acc_now", "now", ".4f"),
    ("acc_asof", "as-of", ".4f"),
    ("acc_asknown", "known", ".4f"),
    ("stale_rate", "stale", ".4f"),
    ("calls", "calls", ".3f"),
    ("prompt_tokens", "prompt", ".0f"),
    ("prefix_share", "fixed", ".0%"),
    ("completion_tokens", "reply", ".0f"),
    ("cpu_early_s", "CPU 100", ".4f"),
    ("cpu_late_s", "CPU end", ".4f"),
)


def table(results: Sequence[Result]) -> str:
    """Return the figures for people: shares of 1, days, tokens and CPU seconds an episode."""
    rows = [[head for _, head, _ in _COLUMNS]]
    for result in results:
        rows.append([_cell(_figure(result, name), form) for name, _, form in _COLUMNS])
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    for result in results:
        if result.errors.any:
            lines.append(
                f"seed {result.seed}, the same errors with true identities: now {result.baseline_now:.4f}, "
                f"as-of {result.baseline_asof:.4f}, known {result.baseline_asknown:.4f}"
            )
    return "\n".join([*lines, *(line for result in results for line in misses(result))])


def misses(result: Result) -> list[str]:
    """Return one line for each figure that is short of its target; none are set for a reader that errs."""
    if result.errors.any:
        return []
    found = []
    for name, bound in TARGETS.items():
        if (figure := float(_figure(result, name))) < bound:
            found.append(f"seed {result.seed}: {name} is {figure:.4f}, below {bound}")
    cheapest = result.pipeline == "combined batched relation"
    for name, bound in LIMITS.items() if cheapest else ():
        if (figure := float(_figure(result, name))) > bound:
            found.append(f"seed {result.seed}: {name} is {figure:.4f}, above {bound}")
    if result.prefix_share is not None and result.prefix_share < LEAST_PREFIX:
        found.append(f"seed {result.seed}: prefix_share is {result.prefix_share:.4f}, below {LEAST_PREFIX}")
    return found


def _figure(result: Result, name: str) -> Any:  # noqa: ANN401 - a number, or None where it was not measured
    return getattr(result if hasattr(result, name) else result.scores, name)


def _cell(figure: object, form: str) -> str:
    return "-" if figure is None else format(figure, form)
