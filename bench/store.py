"""`python -m bench store`: the cost of deciding, committing, loading and searching in a growing group."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bench.empty_stores import EmptyStore, StoreKind, empty_store
from bench.engine import settings_of
from bench.growth import RUNNER, GrowingStore, GrowthCosts
from bench.tables import Column, aligned
from kgray.domain import times
from kgray.domain.records import Draft
from kgray.errors import InputError
from kgray.graph.stored import StoredView
from kgray.ingest.state import GroupState
from kgray.io.intake.triples import normalise
from kgray.models.hashing import HashingEmbedder
from kgray.runtime.wiring import open_store
from kgray.search import Method, Query
from kgray.settings import Settings
from kgray.system.garbage import garbage_collected_rarely
from tests.world.growing import FACTS_AN_EPISODE, growing

GROUP, SLOTS, SMALL_GROUP = "world", "slots", "beside"
LEAST_SIZE = 6  # two sizes are so far apart at least
_WINDOW = 300  # episodes with reported costs at a size: the last episodes before it
# Gathered episodes: 50 transactions of 32.
_GATHERED = 1_600
_QUERIES = 200
_RECALL_AT = 20
_BESIDE_PART = 20  # facts of the large group for each fact of the small group
_HUB = "Middlemarket"
_START = times.parse("2020-01-01")[0]


@dataclass(slots=True)
class SizeFigures:
    """The figures of a group with this number of facts; milliseconds unless named otherwise.

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

    @property
    def searches(self) -> str:
        """The times of searches as a table shows them."""
        return _spans(self.search_ms)


@dataclass(slots=True)
class BesideFigures:
    """The searches of a small group next to the large group; a third of its facts end at its hub, an entity.

    recall      of the 20 nearest of its own statements, against exact search
    found       share of its world's facts among the 20 best hits of a search by their own words
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
class StoreResult:
    """The whole run on one store. slot_cpu_ms: values in a slot -> CPU of one more commit."""

    store: StoreKind = "sqlite"
    sizes: list[SizeFigures] = field(default_factory=list)
    beside: BesideFigures | None = None
    slot_cpu_ms: dict[int, float] = field(default_factory=dict)


def run(
    kind: StoreKind,
    sizes: Sequence[int],
    *,
    slots: Sequence[int],
    settings: Settings,
    progress: Callable[[str], None],
) -> StoreResult:
    """Grow a group through the sizes (numbers of facts) and measure at each.

    settings: if they name a Neo4j server, it is measured and keeps the groups; otherwise a server is started.
    Raises InputError if the server has groups of these names.
    """
    result = StoreResult(store=kind)
    with ExitStack() as stack:
        grown, size_on_disk = stack.enter_context(_opened(kind, settings))
        stack.enter_context(grown.store.writing())
        stack.enter_context(garbage_collected_rarely())
        episodes, done_episodes = growing(GROUP), 0
        for size in sorted(sizes):
            count = round(size / FACTS_AN_EPISODE) - done_episodes
            window = min(_WINDOW, count // 2)
            turn = min(_GATHERED, count - window)
            grown.grow(episodes, count - turn - window, gather=grown.together)
            gathered = grown.grow(episodes, turn, gather=grown.together)
            costs = grown.grow(episodes, window)
            done_episodes += count
            result.sizes.append(_measure(grown, costs, gathered, size_on_disk))
            progress(f"{kind}: {result.sizes[-1].facts:,} facts committed")
        result.beside = _measure_small_group(grown, max(max(sizes) // _BESIDE_PART, LEAST_SIZE))
        progress(f"{kind}: a group of {result.beside.facts:,} facts beside it")
        result.slot_cpu_ms = _slots(grown, sorted(slots), kind, progress)
    return result


@contextmanager
def _opened(kind: StoreKind, settings: Settings) -> Iterator[tuple[GrowingStore, Callable[[], int]]]:
    """Yield an empty store, and a function that returns its size in bytes."""
    embedder = HashingEmbedder()
    with ExitStack() as stack:
        data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kgray-bench-"))) / "store"
        place = None
        if not (kind == "neo4j" and settings.store.backend == "neo4j"):
            place = stack.enter_context(empty_store(kind, data))
            settings = settings_of(place.settings)
        store = open_store(settings, data, embedder, create=True)
        stack.callback(store.close)
        if existing := {GROUP, SLOTS, SMALL_GROUP} & set(store.heads()):
            raise InputError(
                f"the server has a group {min(existing)!r} already: measure in an empty database"
            )
        yield GrowingStore(store, embedder), lambda: _bytes(place)


def _bytes(place: EmptyStore | None) -> int:
    """Return the size of a store's files; 0 for a server of somebody else's."""
    if place is None:
        return 0
    folder = place.data if place.server is None else place.server.folder / "data" / "databases"
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _measure(
    grown: GrowingStore, costs: GrowthCosts, gathered: GrowthCosts, size_on_disk: Callable[[], int]
) -> SizeFigures:
    counts = grown.store.counts(GROUP)[GROUP]
    size = SizeFigures(facts=counts.facts, entities=counts.entities)
    size.decide_cpu_ms = 1e3 * statistics.median(costs.decide)
    size.commit_cpu_ms = 1e3 * statistics.median(costs.commit)
    size.commit_wall_ms = 1e3 * statistics.median(costs.wall)
    size.embed_cpu_ms = 1e3 * statistics.median(costs.embed)
    size.rows_per_s = costs.rows / sum(costs.wall)
    size.single_per_s = len(costs.commit) / sum(costs.wall)
    size.gathered_per_s = len(gathered.commit) / sum(gathered.wall)
    grown.store.compact()
    size.bytes_per_fact = size_on_disk() / size.facts
    start = time.perf_counter()
    GroupState.load(grown.store, GROUP, grown.embedder.dimensions)
    size.load_s = time.perf_counter() - start
    texts = _texts_of_facts(grown, GROUP)
    size.search_ms = _searches(grown, GROUP, texts)
    size.recall = _recall(grown, GROUP, texts)
    return size


def _measure_small_group(grown: GrowingStore, facts: int) -> BesideFigures:
    """Grow a small group and return its figures."""
    residents = [
        ({"source": f"Resident {number}", "relation": "LIVES_IN", "target": _HUB})
        for number in range(facts // 3)
    ]
    count = round((facts - len(residents)) / FACTS_AN_EPISODE)
    grown.grow(growing(SMALL_GROUP, seed=2), count, gather=grown.together)
    grown.commit(_triples(SMALL_GROUP, residents), GrowthCosts(), gather=grown.together)
    figures = BesideFigures(facts=grown.store.counts(SMALL_GROUP)[SMALL_GROUP].facts)
    texts = _texts_of_facts(grown, SMALL_GROUP)
    figures.search_ms = _searches(grown, SMALL_GROUP, texts)
    figures.recall = _recall(grown, SMALL_GROUP, texts)
    figures.found = statistics.mean(_is_found(grown, text) for text in texts)
    view = StoredView(grown.store, SMALL_GROUP)
    (hub,) = view.entities_named(_HUB)
    everything = view.facts_at([hub.id], None, None)
    figures.hub_facts = len(everything)
    figures.hub_right = view.facts_at([hub.id], None, _RECALL_AT) == everything[:_RECALL_AT]
    figures.hub_ms = _timed([partial(view.facts_at, [hub.id], None, _RECALL_AT)] * _QUERIES)
    return figures


def _triples(group: str, triples: Sequence[Mapping[str, object]], first: int = 0) -> list[Draft]:
    """Return an episode for each triple, a minute apart."""
    drafts = []
    for number, triple in enumerate(triples, start=first):
        at = _START + number * 60 * times.SECOND
        text = normalise([triple], at)
        drafts.append(Draft(group=group, source="triples", kind="triples", text=text, reference_time=at))
    return drafts


def _texts_of_facts(grown: GrowingStore, group: str) -> list[str]:
    """Return the words of some of a group's facts, from its first to its last."""
    texts = grown.texts[group]
    return texts[:: max(1, len(texts) // _QUERIES)][:_QUERIES]


def _is_found(grown: GrowingStore, text: str) -> bool:
    """Return whether a search by its sentence finds a fact of the small group among the best hits."""
    query = Query(text=text, group=SMALL_GROUP, scopes=("fact",), limit=_RECALL_AT, any_time=True)
    hits = RUNNER.run(grown.searcher.search(query))
    return any(hit.subject and hit.object and hit.subject in text and hit.object in text for hit in hits)


def _recall(grown: GrowingStore, group: str, texts: Sequence[str]) -> float:
    return grown.recall_at(group, [f"where {text}?" for text in texts], _RECALL_AT)


def _searches(grown: GrowingStore, group: str, texts: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Return p50 and p95 of searches by names and words of facts, by method."""
    methods_by_name: dict[str, tuple[Method, ...] | None] = {
        "bm25": ("bm25",),
        "cosine": ("cosine",),
        "hybrid": None,
    }
    milliseconds: dict[str, tuple[float, float]] = {}
    for name, methods in methods_by_name.items():
        queries = [Query(text=f"where {text}?", group=group, methods=methods) for text in texts]

        def ask(query: Query) -> object:
            return RUNNER.run(grown.searcher.search(query))

        milliseconds[name] = _timed([partial(ask, query) for query in queries])
    return milliseconds


def _timed(works: Sequence[Callable[[], object]]) -> tuple[float, float]:
    """Return p50 and p95 in ms; the first calls, which fill caches, are not counted."""
    for work in works[:5]:
        work()
    took = []
    for work in works:
        start = time.perf_counter()
        work()
        took.append(1e3 * (time.perf_counter() - start))
    took.sort()
    return took[len(took) // 2], took[int(len(took) * 0.95)]


def _slots(
    grown: GrowingStore, sizes: Sequence[int], kind: StoreKind, progress: Callable[[str], None]
) -> dict[int, float]:
    """Return the CPU milliseconds of another value in a slot, by its number of values."""

    def prices(first: int, count: int) -> list[Draft]:
        target = [{"value": number, "unit": "EUR"} for number in range(first, first + count)]
        return _triples(
            SLOTS,
            [{"source": "Kestrel lamp", "relation": "COSTS", "target": price} for price in target],
            first,
        )

    milliseconds: dict[int, float] = {}
    values = 0
    for size in sizes:
        grown.commit(prices(values, size - values), GrowthCosts(), gather=grown.together)
        costs = GrowthCosts()
        grown.commit(prices(size, 50), costs)
        values = size + 50
        milliseconds[size] = 1e3 * (statistics.median(costs.decide) + statistics.median(costs.commit))
        progress(f"{kind}: a slot with {size:,} values")
    return milliseconds


def table(results: Sequence[StoreResult]) -> str:
    """Return the figures for people."""
    return "\n\n".join(_table(result) for result in results)


_COLUMNS: Sequence[Column] = (
    ("facts", "facts", ",d"),
    ("entities", "entities", ",d"),
    ("decide_cpu_ms", "decide ms", ".2f"),
    ("commit_cpu_ms", "commit ms", ".2f"),
    ("commit_wall_ms", "wall ms", ".2f"),
    ("rows_per_s", "rows/s", ",.0f"),
    ("single_per_s", "ep/s", ".0f"),
    ("gathered_per_s", "gathered", ".0f"),
    ("bytes_per_fact", "B/fact", ",.0f"),
    ("load_s", "load s", ".2f"),
    ("recall", "recall", ".3f"),
    ("searches", "p50/p95 ms: bm25, cosine, hybrid", "s"),
)


def _table(result: StoreResult) -> str:
    lines = [f"{result.store}:", *aligned(_COLUMNS, result.sizes)]
    first, last = result.sizes[0], result.sizes[-1]
    if (small_group := result.beside) is not None:
        lines.append(
            f"a group of {small_group.facts:,} facts beside it: recall {small_group.recall:.3f}, facts found "
            f"{small_group.found:.2f}, {_spans(small_group.search_ms)}; the newest {_RECALL_AT} of "
            f"{small_group.hub_facts:,} facts of its hub {small_group.hub_ms[0]:.1f}/"
            f"{small_group.hub_ms[1]:.1f} ms, "
            f"{'right' if small_group.hub_right else 'WRONG'}"
        )
    grew = (last.decide_cpu_ms + last.commit_cpu_ms) / (first.decide_cpu_ms + first.commit_cpu_ms)
    lines.append(f"decide + commit CPU, {first.facts:,} to {last.facts:,} facts: x {grew:.2f}")
    lines += [f"one more value in a slot of {n:,}: {ms:.2f} ms CPU" for n, ms in result.slot_cpu_ms.items()]
    return "\n".join(lines)


def _spans(search_ms: dict[str, tuple[float, float]]) -> str:
    return ", ".join(f"{p50:.1f}/{p95:.1f}" for p50, p95 in search_ms.values())
