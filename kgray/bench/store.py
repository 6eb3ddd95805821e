"""`kgray bench store`: what deciding, committing, loading and searching cost as a group grows."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path

from kgray import times
from kgray.backends.hashing import HashingEmbedder
from kgray.backends.judging import RulesJudge
from kgray.bench.people import FACTS_AN_EPISODE, TellingReader, Told, prices, tell
from kgray.ingest.collecting import rare_collections
from kgray.ingest.committer import commit_of
from kgray.ingest.extract import extract
from kgray.ingest.loop import settle
from kgray.ingest.outbox import Direct, Outbox
from kgray.ingest.parts import Parts
from kgray.ingest.state import GroupState
from kgray.ingest.values import Change, Read
from kgray.ontology import shipped
from kgray.ports import Matrix, Store
from kgray.records import Draft, Episode, Extraction
from kgray.search import Query, search
from kgray.search.recipes import Method
from kgray.stores.sqlite import open_sqlite

GROUP, SLOTS = "people", "slots"
_BATCH = 256
_WINDOW = 300  # episodes whose cost is reported at a size: the last ones before it
_QUERIES = 200


@dataclass(slots=True)
class Size:
    """What was measured when the group held about this many facts; milliseconds unless named otherwise."""

    facts: int
    entities: int = 0
    decide_cpu_ms: float = 0.0
    commit_cpu_ms: float = 0.0
    commit_wall_ms: float = 0.0
    embed_cpu_ms: float = 0.0
    rows_per_s: float = 0.0  # records and derived rows of the window, by wall time of its commits
    bytes_per_fact: float = 0.0
    load_s: float = 0.0
    search_ms: dict[str, tuple[float, float]] = field(default_factory=dict)  # method -> (p50, p95)


@dataclass(slots=True)
class Result:
    """The whole run."""

    sizes: list[Size] = field(default_factory=list)
    slot_cpu_ms: dict[int, float] = field(
        default_factory=dict
    )  # values in the slot -> CPU of one more commit

    def as_dict(self) -> dict[str, object]:
        """Return the JSON document."""
        return asdict(self)


class _TimedEmbedder:
    """The hashing embedder with its own CPU time told apart: a model's work, not the engine's."""

    def __init__(self) -> None:
        self._inner = HashingEmbedder()
        self.identity, self.dimensions = self._inner.identity, self._inner.dimensions
        self.cpu_s = 0.0

    async def embed(self, texts: Sequence[str]) -> Matrix:
        """Embed and count."""
        start = time.process_time()
        vectors = await self._inner.embed(texts)
        self.cpu_s += time.process_time() - start
        return vectors


@dataclass(slots=True)
class _Costs:
    decide: list[float] = field(default_factory=list)
    commit: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    embed: list[float] = field(default_factory=list)
    rows: int = 0


class _Run:
    """One store that grows; commits go through the plain loop's own steps, with a clock beside them."""

    def __init__(self, folder: Path) -> None:
        self.embedder = _TimedEmbedder()
        self.store: Store = open_sqlite(
            folder, embedder=self.embedder.identity, dimensions=self.embedder.dimensions
        )
        self.told: dict[str, Extraction] = {}
        self._parts = Parts(
            store=self.store,
            extractor=TellingReader(self.told),
            judge=RulesJudge(),
            embedder=self.embedder,
            ontology=shipped(),
        )
        self._states: dict[str, GroupState] = {}

    def grow(self, told: Iterator[Told], count: int) -> _Costs:
        """Accept and commit `count` episodes; return what each cost."""
        costs = _Costs()
        while batch := list(islice(told, min(_BATCH, count - len(costs.decide)))):
            self.told.clear()
            self.told.update((t.draft.client_id or "", t.extraction) for t in batch)
            self.commit([t.draft for t in batch], costs)
        return costs

    def commit(self, drafts: Sequence[Draft], costs: _Costs) -> None:
        """Accept drafts of one group and commit them, each on its own."""
        group = drafts[0].group
        self.store.accept(drafts, now=times.now())
        while entries := self.store.pending(group, _BATCH):
            for entry in entries:
                if isinstance(entry, Episode):
                    _RUNNER.run(self._one(entry, costs))

    async def _one(self, episode: Episode, costs: _Costs) -> None:
        state = self._states.get(episode.group)
        if state is None:
            state = GroupState.load(self.store, episode.group, self.embedder.dimensions)
            self._states[episode.group] = state
        # One run of the event loop an episode: what is posted is written in it.
        outbox = Outbox(Direct(self.store))
        extraction = await extract(self._parts, outbox, episode)
        await outbox.flush()
        embedded, start = self.embedder.cpu_s, time.process_time()
        change = await settle(self._parts, Read(episode=episode, extraction=extraction), state, outbox)
        await outbox.flush()
        embedding = self.embedder.cpu_s - embedded
        costs.decide.append(time.process_time() - start - embedding)
        costs.embed.append(embedding)
        start, wall = time.process_time(), time.perf_counter()
        recorded_at = max(times.now(), state.last_recorded + 1)
        derived = state.commit(change, recorded_at)
        if derived is None:
            raise RuntimeError("the generated group never folds relation names")
        self.store.write([commit_of(change, derived, recorded_at)])
        costs.commit.append(time.process_time() - start)
        costs.wall.append(time.perf_counter() - wall)
        costs.rows += _rows(change) + len(derived.facts) + len(derived.entities)


_RUNNER = asyncio.Runner()


def _rows(change: Change) -> int:
    return len(change.mentions) + len(change.evidence) + len(change.vectors) + len(change.statement_births)


def run(sizes: Sequence[int], *, slot: Sequence[int], progress: Callable[[str], None]) -> Result:
    """Grow one group through the sizes (numbers of facts) and measure at each."""
    result = Result()
    with tempfile.TemporaryDirectory(prefix="kgray-bench-") as folder:
        grown = _Run(Path(folder))
        with grown.store.writing(), rare_collections():
            told = tell(GROUP, max(sizes) // FACTS_AN_EPISODE + 1)
            done = 0
            for size in sorted(sizes):
                episodes = size // FACTS_AN_EPISODE - done
                window = min(_WINDOW, episodes)
                grown.grow(told, episodes - window)
                costs = grown.grow(told, window)
                done += episodes
                progress(f"{size:,} facts committed")
                result.sizes.append(_measure(grown, size, costs, Path(folder)))
            result.slot_cpu_ms = _slots(grown, sorted(slot), progress)
        grown.store.close()
    return result


def _measure(grown: _Run, facts: int, costs: _Costs, folder: Path) -> Size:
    size = Size(facts=facts, entities=grown.store.counts(GROUP)[GROUP].entities)
    size.decide_cpu_ms = 1e3 * statistics.median(costs.decide)
    size.commit_cpu_ms = 1e3 * statistics.median(costs.commit)
    size.commit_wall_ms = 1e3 * statistics.median(costs.wall)
    size.embed_cpu_ms = 1e3 * statistics.median(costs.embed)
    size.rows_per_s = costs.rows / sum(costs.wall)
    grown.store.compact()
    size.bytes_per_fact = sum(f.stat().st_size for f in folder.iterdir()) / facts
    start = time.perf_counter()
    GroupState.load(grown.store, GROUP, grown.embedder.dimensions)
    size.load_s = time.perf_counter() - start
    ways: dict[str, tuple[Method, ...] | None] = {"bm25": ("bm25",), "cosine": ("cosine",), "hybrid": None}
    for name, methods in ways.items():
        size.search_ms[name] = _search(grown, methods)
    return size


def _search(grown: _Run, methods: tuple[Method, ...] | None) -> tuple[float, float]:
    """Return p50 and p95 of searches by people's names and words of their facts."""
    took = []
    for number, told in enumerate(islice(tell(GROUP, _QUERIES + 5, seed=1), _QUERIES + 5)):
        fact = told.extraction.facts[number % FACTS_AN_EPISODE]
        query = Query(text=f"where {fact.text}?", group=GROUP, methods=methods)
        start = time.perf_counter()
        _RUNNER.run(search(grown.store, grown.embedder, query))
        took.append(1e3 * (time.perf_counter() - start))
    took = sorted(took[5:])  # the first ones load what searching keeps in memory
    return took[len(took) // 2], took[int(len(took) * 0.95)]


def _slots(grown: _Run, sizes: Sequence[int], progress: Callable[[str], None]) -> dict[int, float]:
    """Return the CPU milliseconds of one more value in a slot that has so many."""
    found: dict[int, float] = {}
    done = 0
    for size in sizes:
        costs = _Costs()
        grown.commit(list(prices(SLOTS, size - done, start=done)), costs)
        done = size
        costs = _Costs()
        grown.commit(list(prices(SLOTS, 50, start=done)), costs)
        done += 50
        found[size] = 1e3 * (statistics.median(costs.decide) + statistics.median(costs.commit))
        progress(f"a slot with {size:,} values")
    return found


def table(result: Result) -> str:
    """Return the figures for people."""
    header = (
        f"{'facts':>8} {'entities':>8} {'decide':>9} {'commit':>9} {'wall':>9} {'rows/s':>8} "
        f"{'B/fact':>7} {'load':>7}   p50/p95 ms: bm25, cosine, hybrid"
    )
    lines = [header]
    for size in result.sizes:
        found = ", ".join(f"{a:.1f}/{b:.1f}" for a, b in size.search_ms.values())
        lines.append(
            f"{size.facts:>8,} {size.entities:>8,} {size.decide_cpu_ms:>6.2f} ms "
            f"{size.commit_cpu_ms:>6.2f} ms {size.commit_wall_ms:>6.2f} ms "
            f"{size.rows_per_s:>8,.0f} {size.bytes_per_fact:>7,.0f} "
            f"{size.load_s:>5.2f} s   {found}"
        )
    first, last = result.sizes[0], result.sizes[-1]
    grew = (last.decide_cpu_ms + last.commit_cpu_ms) / (first.decide_cpu_ms + first.commit_cpu_ms)
    lines.append(f"decide + commit CPU, {first.facts:,} to {last.facts:,} facts: x {grew:.2f}")
    lines += [f"one more value in a slot of {n:,}: {ms:.2f} ms CPU" for n, ms in result.slot_cpu_ms.items()]
    return "\n".join(lines)
