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
from kgray.bench.scoring import Asked, Scores
from kgray.bench.world import Errors, Oracle, Plan, Truth, World, WorldJudge, WorldReader
from kgray.derivation.view import View
from kgray.ingest.loop import Loop
from kgray.ingest.parts import Parts, Pipeline
from kgray.ontology import shipped
from kgray.ports import ExtractionRequest, Extractor, Judge, Judged, Matrix, QuestionRequest, Store
from kgray.records import Extraction
from kgray.stores.sqlite import open_sqlite
from kgray.times import DAY

_BATCH = 256
_MOMENTS = 8  # how many record times are asked about
_AT_A_MOMENT = 60


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
        parts.store.accept(drafts[at : at + _BATCH], now=times.now())
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
    view = View(store.records(group), lambda _: [])
    clients = {e.sequence: e.client_id or "" for e in store.episode_rows(group)}
    matched = scoring.match_entities(view, clients, read, scores)
    scoring.score_facts(view, matched, read, scores)
    facts, read_facts = told.facts(), read.facts()
    slots, plan, end = scoring.slots_of(facts), oracle.world.plan, oracle.world.end()
    now = [Asked(slot, end) for slot in slots]
    given = scoring.graph_answers(view, matched, now)
    right, base = scoring.true_answers(facts, now), scoring.true_answers(read_facts, now)
    scores.acc_now = scoring.accuracy("now", now, right, given, None if result.errors.any else scores)
    result.baseline_now = scoring.accuracy("now", now, right, base, None)
    scores.stale_rate = scoring.stale(facts, now, given)
    then = scoring.ask_about(slots, plan.seed, "as-of", plan.start - 60 * DAY, end, 1 << 30)
    given = scoring.graph_answers(view, matched, then)
    right, base = scoring.true_answers(facts, then), scoring.true_answers(read_facts, then)
    scores.acc_asof = scoring.accuracy("as-of", then, right, given, None if result.errors.any else scores)
    result.baseline_asof = scoring.accuracy("as-of", then, right, base, None)
    asked = _as_known(store, group, (told, read), matched, result)
    scores.questions = len(now) + len(then) + asked


def _as_known(
    store: Store, group: str, truths: tuple[Truth, Truth], matched: scoring.Matched, result: Result
) -> int:
    """Ask at several record times what was believed then; returns how many questions."""
    told, read = truths
    heads = store.records(group).heads
    asked, right, base, given = [], [], [], []
    for moment in range(1, _MOMENTS + 1):
        place = max(1, len(heads) * moment // (_MOMENTS + 1))
        if place > len(heads):
            continue
        facts = told.facts(place)
        slots = scoring.slots_of(facts)
        last = heads[place - 1].reference_time
        span = (min(h.reference_time for h in heads) - 60 * DAY, last + DAY)
        questions = scoring.ask_about(slots, result.seed, f"known-{moment}", *span, _AT_A_MOMENT)
        view = View(store.records(group, heads[place - 1].recorded_at), lambda _: [])
        asked += questions
        right += scoring.true_answers(facts, questions)
        base += scoring.true_answers(read.facts(place), questions)
        given += scoring.graph_answers(view, matched, questions)
    scores = None if result.errors.any else result.scores
    result.scores.acc_asknown = scoring.accuracy("as-known", asked, right, given, scores)
    result.baseline_asknown = scoring.accuracy("as-known", asked, right, base, None)
    return len(asked)


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
    for name, bound in LIMITS.items():
        if (figure := float(_figure(result, name))) > bound:
            found.append(f"seed {result.seed}: {name} is {figure:.4f}, above {bound}")
    if result.prefix_share is not None and result.prefix_share < LEAST_PREFIX:
        found.append(f"seed {result.seed}: prefix_share is {result.prefix_share:.4f}, below {LEAST_PREFIX}")
    return found


def _figure(result: Result, name: str) -> Any:  # noqa: ANN401 - a number, or None where it was not measured
    return getattr(result if hasattr(result, name) else result.scores, name)


def _cell(figure: object, form: str) -> str:
    return "-" if figure is None else format(figure, form)
