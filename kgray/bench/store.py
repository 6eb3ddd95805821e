"""`kgray bench store`: what deciding, committing, loading and searching cost as a group grows."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path

from kgray.bench.growing import GATHERED, RUNNER, Costs, Grown, TimedEmbedder
from kgray.bench.people import FACTS_AN_EPISODE, prices, tell
from kgray.bench.places import Place, StoreKind, places
from kgray.errors import InputError
from kgray.ingest.collecting import rare_collections
from kgray.ingest.state import GroupState
from kgray.search import Query, search
from kgray.search.recipes import Method
from kgray.settings import Settings, load
from kgray.wiring import open_store

GROUP, SLOTS = "people", "slots"
_WINDOW = 300  # episodes whose cost is reported at a size: the last ones before it
_QUERIES = 200
_TOGETHER = GATHERED // 2  # episodes of a transaction: each posts its extraction and its commit
_RECALL_AT = 20
_RECALL_QUERIES = 50
Progress = Callable[[str], None]


@dataclass(slots=True)
class Size:
    """What was measured when the group held about this many facts; milliseconds unless named otherwise.

    commit_wall_ms, rows_per_s, single_per_s   of transactions of one episode
    gathered_per_s                             episodes by the wall time of transactions of several
    recall                                     of the 20 nearest statements, against exact search
    """

    facts: int
    entities: int = 0
    decide_cpu_ms: float = 0.0
    commit_cpu_ms: float = 0.0
    commit_wall_ms: float = 0.0
    embed_cpu_ms: float = 0.0
    rows_per_s: float = 0.0  # records and derived rows of the window, by wall time of its commits
    single_per_s: float = 0.0
    gathered_per_s: float = 0.0
    bytes_per_fact: float = 0.0
    load_s: float = 0.0
    search_ms: dict[str, tuple[float, float]] = field(default_factory=dict)  # method -> (p50, p95)
    recall: float = 0.0


@dataclass(slots=True)
class Result:
    """The whole run on one store."""

    store: StoreKind = "sqlite"
    sizes: list[Size] = field(default_factory=list)
    slot_cpu_ms: dict[int, float] = field(
        default_factory=dict
    )  # values in the slot -> CPU of one more commit

    def as_dict(self) -> dict[str, object]:
        """Return the JSON document."""
        return asdict(self)


def run(
    kind: StoreKind, sizes: Sequence[int], *, slot: Sequence[int], settings: Settings, progress: Progress
) -> Result:
    """Grow one group through the sizes (numbers of facts) and measure at each.

    settings: where they name a Neo4j server, that one is measured, which keeps the groups; else one is
    started. Raises InputError where the server holds groups of these names.
    """
    result = Result(store=kind)
    with ExitStack() as stack:
        grown, held = stack.enter_context(_opened(kind, settings))
        stack.enter_context(grown.store.writing())
        stack.enter_context(rare_collections())
        told = tell(GROUP, max(sizes) // FACTS_AN_EPISODE + 1)
        done = 0
        for size in sorted(sizes):
            episodes = size // FACTS_AN_EPISODE - done
            window = min(_WINDOW, episodes // 2)
            grown.grow(told, episodes - 2 * window, gather=_TOGETHER)
            gathered = grown.grow(told, window, gather=_TOGETHER)
            costs = grown.grow(told, window)
            done += episodes
            progress(f"{kind}: {size:,} facts committed")
            result.sizes.append(_measure(grown, size, costs, gathered, held))
        result.slot_cpu_ms = _slots(grown, sorted(slot), kind, progress)
    return result


@contextmanager
def _opened(kind: StoreKind, settings: Settings) -> Iterator[tuple[Grown, Callable[[], int]]]:
    """Yield an empty store, and what tells how many bytes it takes."""
    embedder = TimedEmbedder()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kgray-bench-")))
        place = None
        if not (kind == "neo4j" and settings.store.backend == "neo4j"):
            place = stack.enter_context(stack.enter_context(places(kind, folder)).fresh("store"))
            environ = {name: text for name, text in os.environ.items() if name == "KGRAY_STORE_PASSWORD"}
            settings = load(None, environ=environ, overrides=place.settings)
        data = folder / "data" if place is None else place.data
        store, _ = open_store(settings, data, embedder, create=True)
        stack.callback(store.close)
        if taken := {GROUP, SLOTS} & set(store.groups()):
            raise InputError(f"the server has a group {min(taken)!r} already: measure in an empty database")
        yield Grown(store, embedder), lambda: _bytes(place)


def _bytes(place: Place | None) -> int:
    """Return the size of a store's files; 0 for a server of somebody else's."""
    if place is None:
        return 0
    folder = place.data if place.server is None else place.server.folder / "data" / "databases"
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _measure(grown: Grown, facts: int, costs: Costs, gathered: Costs, held: Callable[[], int]) -> Size:
    size = Size(facts=facts, entities=grown.store.counts(GROUP)[GROUP].entities)
    size.decide_cpu_ms = 1e3 * statistics.median(costs.decide)
    size.commit_cpu_ms = 1e3 * statistics.median(costs.commit)
    size.commit_wall_ms = 1e3 * statistics.median(costs.wall)
    size.embed_cpu_ms = 1e3 * statistics.median(costs.embed)
    size.rows_per_s = costs.rows / sum(costs.wall)
    size.single_per_s = len(costs.commit) / sum(costs.wall)
    size.gathered_per_s = len(gathered.commit) / sum(gathered.wall)
    grown.store.compact()
    size.bytes_per_fact = held() / facts
    start = time.perf_counter()
    GroupState.load(grown.store, GROUP, grown.embedder.dimensions)
    size.load_s = time.perf_counter() - start
    ways: dict[str, tuple[Method, ...] | None] = {"bm25": ("bm25",), "cosine": ("cosine",), "hybrid": None}
    for name, methods in ways.items():
        size.search_ms[name] = _search(grown, methods)
    vectors = RUNNER.run(grown.embedder.embed([f"where {text}?" for text in _asked(_RECALL_QUERIES)]))
    size.recall = grown.recall_at(GROUP, list(vectors), _RECALL_AT)
    return size


def _asked(count: int) -> Iterator[str]:
    """Yield the words of facts that another seed tells of."""
    for number, told in enumerate(islice(tell(GROUP, count, seed=1), count)):
        yield told.extraction.facts[number % FACTS_AN_EPISODE].text


def _search(grown: Grown, methods: tuple[Method, ...] | None) -> tuple[float, float]:
    """Return p50 and p95 of searches by people's names and words of their facts."""
    took = []
    for text in _asked(_QUERIES + 5):
        query = Query(text=f"where {text}?", group=GROUP, methods=methods)
        start = time.perf_counter()
        RUNNER.run(search(grown.store, grown.embedder, query))
        took.append(1e3 * (time.perf_counter() - start))
    took = sorted(took[5:])  # the first ones load what searching keeps in memory
    return took[len(took) // 2], took[int(len(took) * 0.95)]


def _slots(grown: Grown, sizes: Sequence[int], kind: StoreKind, progress: Progress) -> dict[int, float]:
    """Return the CPU milliseconds of one more value in a slot that has so many."""
    found: dict[int, float] = {}
    done = 0
    for size in sizes:
        grown.commit(list(prices(SLOTS, size - done, start=done)), Costs(), gather=_TOGETHER)
        done = size
        costs = Costs()
        grown.commit(list(prices(SLOTS, 50, start=done)), costs)
        done += 50
        found[size] = 1e3 * (statistics.median(costs.decide) + statistics.median(costs.commit))
        progress(f"{kind}: a slot with {size:,} values")
    return found


def table(results: Sequence[Result]) -> str:
    """Return the figures for people."""
    return "\n\n".join(_table(result) for result in results)


def _table(result: Result) -> str:
    header = (
        f"{result.store:>8} facts {'entities':>8} {'decide':>9} {'commit':>9} {'wall':>9} {'rows/s':>8} "
        f"{'ep/s':>6} {'gathered':>8} {'B/fact':>7} {'load':>7} {'recall':>6}   "
        "p50/p95 ms: bm25, cosine, hybrid"
    )
    lines = [header]
    for size in result.sizes:
        found = ", ".join(f"{a:.1f}/{b:.1f}" for a, b in size.search_ms.values())
        lines.append(
            f"{size.facts:>14,} {size.entities:>8,} {size.decide_cpu_ms:>6.2f} ms "
            f"{size.commit_cpu_ms:>6.2f} ms {size.commit_wall_ms:>6.2f} ms "
            f"{size.rows_per_s:>8,.0f} {size.single_per_s:>6.0f} {size.gathered_per_s:>8.0f} "
            f"{size.bytes_per_fact:>7,.0f} {size.load_s:>5.2f} s {size.recall:>6.3f}   {found}"
        )
    first, last = result.sizes[0], result.sizes[-1]
    grew = (last.decide_cpu_ms + last.commit_cpu_ms) / (first.decide_cpu_ms + first.commit_cpu_ms)
    lines.append(f"decide + commit CPU, {first.facts:,} to {last.facts:,} facts: x {grew:.2f}")
    lines += [f"one more value in a slot of {n:,}: {ms:.2f} ms CPU" for n, ms in result.slot_cpu_ms.items()]
    return "\n".join(lines)
