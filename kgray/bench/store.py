"""`kgray bench store`: what deciding, committing, loading and searching cost as a group grows."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path

from kgray.bench.growing import RUNNER, Costs, Grown, TimedEmbedder
from kgray.bench.people import FACTS_AN_EPISODE, prices, tell
from kgray.bench.places import Place, StoreKind, places
from kgray.derivation.garbage import garbage_collected_rarely
from kgray.derivation.stored import StoredView
from kgray.errors import InputError
from kgray.ingest.state import GroupState
from kgray.search import Query, search
from kgray.search.recipes import Method
from kgray.settings import Settings, load
from kgray.wiring import open_store

GROUP, SLOTS, BESIDE = "people", "slots", "beside"
_WINDOW = 300  # episodes whose cost is reported at a size: the last ones before it
# Of those that are gathered: 50 transactions of 32. So many segments a vector index of Neo4j 5.26 keeps
# before it merges them all (its vector.standard_merge_factor); by windows of 960: 36 to 62 a second.
_GATHERED = 1_600
_QUERIES = 200
_RECALL_AT = 20
_BESIDE_PART = 20  # the small group has a fact for so many of the large one
_HUB = "Middlemarket"
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
class Beside:
    """What a small group finds beside the large one; in it a third of the facts end at one entity, its hub.

    recall      of the 20 nearest of its own statements, against exact search
    found       share of its facts that are among the 20 best when they are asked for in their own words
    hub_ms      p50 and p95 of reading the 20 newest facts of the hub
    hub_right   they are the first 20 of all its facts
    """

    facts: int
    hub_facts: int = 0
    search_ms: dict[str, tuple[float, float]] = field(default_factory=dict)
    recall: float = 0.0
    found: float = 0.0
    hub_ms: tuple[float, float] = (0.0, 0.0)
    hub_right: bool = False


@dataclass(slots=True)
class Result:
    """The whole run on one store. slot_cpu_ms: values in a slot -> CPU of one more commit."""

    store: StoreKind = "sqlite"
    sizes: list[Size] = field(default_factory=list)
    beside: Beside | None = None
    slot_cpu_ms: dict[int, float] = field(default_factory=dict)

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
        stack.enter_context(garbage_collected_rarely())
        told = tell(GROUP, max(sizes) // FACTS_AN_EPISODE + 1)
        done = 0
        for size in sorted(sizes):
            episodes = size // FACTS_AN_EPISODE - done
            window = min(_WINDOW, episodes // 2)
            turn = min(_GATHERED, episodes - window)
            grown.grow(told, episodes - turn - window, gather=grown.together)
            gathered = grown.grow(told, turn, gather=grown.together)
            costs = grown.grow(told, window)
            done += episodes
            progress(f"{kind}: {size:,} facts committed")
            result.sizes.append(_measure(grown, size, costs, gathered, held))
        result.beside = _beside(grown, max(sizes) // _BESIDE_PART)
        progress(f"{kind}: a group of {result.beside.facts:,} facts beside it")
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
        if taken := {GROUP, SLOTS, BESIDE} & set(store.heads()):
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
    asked = _asked(facts, _QUERIES)
    size.search_ms = _searches(grown, GROUP, asked)
    size.recall = _recall(grown, GROUP, asked)
    return size


def _beside(grown: Grown, facts: int) -> Beside:
    """Grow a small group and return what it finds."""
    facts = max(facts, 2 * FACTS_AN_EPISODE)
    episodes = facts // FACTS_AN_EPISODE
    grown.grow(tell(BESIDE, episodes, hub=_HUB), episodes, gather=grown.together)
    beside = Beside(facts=grown.store.counts(BESIDE)[BESIDE].facts)
    asked = _asked(facts, _QUERIES, hub=_HUB)
    beside.search_ms = _searches(grown, BESIDE, asked)
    beside.recall = _recall(grown, BESIDE, asked)
    beside.found = statistics.mean(_is_found(grown, text) for text in asked)
    view = StoredView(grown.store, BESIDE)
    (hub,) = view.entities_named(_HUB)
    everything = view.facts_at([hub.id], None, None)
    beside.hub_facts = len(everything)
    beside.hub_right = view.facts_at([hub.id], None, _RECALL_AT) == everything[:_RECALL_AT]
    beside.hub_ms = _timed([partial(view.facts_at, [hub.id], None, _RECALL_AT)] * _QUERIES)
    return beside


def _asked(facts: int, count: int, *, hub: str | None = None) -> list[str]:
    """Return the words of at most so many facts of a group's, from its first to its last."""
    episodes = facts // FACTS_AN_EPISODE
    step = max(1, episodes // count)
    spread = islice(tell("", episodes, hub=hub), 0, count * step, step)
    return [told.extraction.facts[at % FACTS_AN_EPISODE].text for at, told in enumerate(spread)]


def _is_found(grown: Grown, text: str) -> bool:
    """Return whether a fact of the small group is among the best when it is asked for in its own words."""
    query = Query(text=text, group=BESIDE, scopes=("fact",), limit=_RECALL_AT, any_time=True)
    return any(hit.text == text for hit in RUNNER.run(search(grown.store, grown.embedder, query)))


def _recall(grown: Grown, group: str, asked: Sequence[str]) -> float:
    vectors = RUNNER.run(grown.embedder.embed([f"where {text}?" for text in asked]))
    return grown.recall_at(group, list(vectors), _RECALL_AT)


def _searches(grown: Grown, group: str, asked: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Return p50 and p95 of searches by names and words of facts, by method."""
    ways: dict[str, tuple[Method, ...] | None] = {"bm25": ("bm25",), "cosine": ("cosine",), "hybrid": None}
    found: dict[str, tuple[float, float]] = {}
    for name, methods in ways.items():
        queries = [Query(text=f"where {text}?", group=group, methods=methods) for text in asked]

        def ask(query: Query) -> object:
            return RUNNER.run(search(grown.store, grown.embedder, query))

        found[name] = _timed([partial(ask, query) for query in queries])
    return found


def _timed(works: Sequence[Callable[[], object]]) -> tuple[float, float]:
    """Return p50 and p95 in ms; the first ones, which load what reading keeps in memory, run before."""
    for work in works[:5]:
        work()
    took = []
    for work in works:
        start = time.perf_counter()
        work()
        took.append(1e3 * (time.perf_counter() - start))
    took.sort()
    return took[len(took) // 2], took[int(len(took) * 0.95)]


def _slots(grown: Grown, sizes: Sequence[int], kind: StoreKind, progress: Progress) -> dict[int, float]:
    """Return the CPU milliseconds of one more value in a slot that has so many."""
    found: dict[int, float] = {}
    done = 0
    for size in sizes:
        grown.commit(list(prices(SLOTS, size - done, start=done)), Costs(), gather=grown.together)
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
    if result.beside is not None:
        lines.append(_beside_line(result.beside))
    grew = (last.decide_cpu_ms + last.commit_cpu_ms) / (first.decide_cpu_ms + first.commit_cpu_ms)
    lines.append(f"decide + commit CPU, {first.facts:,} to {last.facts:,} facts: x {grew:.2f}")
    lines += [f"one more value in a slot of {n:,}: {ms:.2f} ms CPU" for n, ms in result.slot_cpu_ms.items()]
    return "\n".join(lines)


def _beside_line(beside: Beside) -> str:
    found = ", ".join(f"{a:.1f}/{b:.1f}" for a, b in beside.search_ms.values())
    hub = f"the newest {_RECALL_AT} of {beside.hub_facts:,} facts of its hub"
    return (
        f"a group of {beside.facts:,} facts beside it: recall {beside.recall:.3f}, facts found "
        f"{beside.found:.2f}, {found}; {hub} {beside.hub_ms[0]:.1f}/{beside.hub_ms[1]:.1f} ms, "
        f"{'right' if beside.hub_right else 'WRONG'}"
    )
