"""`python -m bench searches`: searches of a large group, alone and while another process ingests."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from bench.copies import put_copies, telling_one
from bench.empty_stores import EmptyStore, StoreKind, empty_store
from bench.engine import environ_of, settings_of
from bench.growth import RUNNER, GrowingStore
from bench.loopback import Client, Responses
from bench.loopback import run as run_clients
from bench.processes import ChildProcess, free_port
from bench.tables import Column, aligned
from kgray import times
from kgray.backends.hashing import HashingEmbedder
from kgray.errors import KgrayError
from kgray.kinds import FACTS
from kgray.ports import Store
from kgray.search import Query, Searcher, context
from kgray.wiring import open_store

LARGE, SMALL, BASE = "large", "small", "base"
TOKENS = 950
_QUESTIONS = 200
_SMALL = 1_000  # messages of the group beside
_COMMITS = 12  # one at a time, a search after each
_INGESTED = "ingested"  # where the child's messages go, where they go beside the group that is searched


@dataclass(slots=True)
class Figures:
    """Figures of a group of a store; milliseconds, p50 and p95. opened: the first search of a new reader."""

    store: StoreKind
    group: str
    messages: int
    facts: int
    opened: float = 0.0
    search: tuple[float, float] = (0.0, 0.0)
    context: tuple[float, float] = (0.0, 0.0)
    after_commit: tuple[float, float] = (0.0, 0.0)
    searchers: int = 0
    idle: tuple[float, float] = (0.0, 0.0)
    ingesting: tuple[float, float] = (0.0, 0.0)
    ingested_per_s: float = 0.0
    load: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPlan:
    """The parameters of a measurement.

    messages    of the large group, each with a fact: `copies` of a smaller one
    seconds     of searching, alone and during ingestion; 0: no searchers
    """

    stores: Sequence[StoreKind] = ("sqlite",)
    messages: int = 100_000
    copies: int = 16
    searchers: int = 16
    seconds: float = 20.0


def run(plan: SearchPlan, *, progress: Callable[[str], None]) -> list[Figures]:
    """Fill the stores, and measure one after the other."""
    results: list[Figures] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kgray-searches-")))
        base = _base(plan, folder, stack)
        for kind in plan.stores:
            with empty_store(kind, folder / kind) as place:
                began = time.perf_counter()
                with _opened(place, create=True) as store, store.writing():
                    put_copies(base, BASE, [store], LARGE, plan.copies)
                    put_copies(base, SMALL, [store], SMALL, 1)
                progress(f"{kind}: filled in {time.perf_counter() - began:.0f} s")
                for group in (LARGE, SMALL):
                    with _opened(place) as store:
                        results.append(_alone(kind, store, group))
                    progress(table(results))
                    if plan.seconds:
                        _measure_with_others(plan, place, results[-1])
                        progress(table(results))
    return results


def _base(plan: SearchPlan, folder: Path, stack: ExitStack) -> Store:
    """Return a store with the groups that are copied."""
    place = stack.enter_context(empty_store("sqlite", folder / BASE))
    store = stack.enter_context(_opened(place, create=True))
    with store.writing():
        grown = GrowingStore(store, HashingEmbedder())
        for group, count in ((BASE, plan.messages // plan.copies), (SMALL, _SMALL)):
            grown.grow(telling_one(group, count), count, gather=grown.together)
    return store


@contextmanager
def _opened(place: EmptyStore, *, create: bool = False) -> Iterator[Store]:
    store = open_store(settings_of(place.settings), place.data, HashingEmbedder(), create=create)
    try:
        yield store
    finally:
        store.close()


def _texts(store: Store, group: str) -> list[str]:
    """Return questions in the words of facts, from the first to the last."""
    texts = sorted({row.text for row in store.rows(FACTS.all, group)})
    return [f"where {text}?" for text in texts[:: max(1, len(texts) // _QUESTIONS)][:_QUESTIONS]]


def _alone(kind: StoreKind, store: Store, group: str) -> Figures:
    counts, texts = store.counts(group)[group], _texts(store, group)
    figures = Figures(kind, group, counts.committed, counts.facts)
    grown = GrowingStore(store, HashingEmbedder())
    searcher = Searcher(store, HashingEmbedder())

    def search(text: str) -> None:
        RUNNER.run(searcher.search(Query(text=text, group=group)))

    def block(text: str) -> None:
        RUNNER.run(context(searcher, Query(text=text, group=group), tokens=TOKENS))

    (figures.opened,) = _timed(search, texts[:1])
    for each, name in ((search, "search"), (block, "context")):
        for text in texts[:10]:  # the server plans a statement at its first uses
            each(text)
        setattr(figures, name, _quantiles(_timed(each, texts)))
    took = []
    with store.writing():
        episodes = telling_one(group, _COMMITS + 2)
        for text in texts[: _COMMITS + 2]:  # the group's state is loaded for the first
            grown.grow(episodes, 1)
            took += _timed(search, [text])
    figures.after_commit = _quantiles(took[2:])
    figures.load = round(os.getloadavg()[0], 1)
    return figures


def _timed(work: Callable[[str], object], texts: Sequence[str]) -> list[float]:
    """Return the milliseconds of each."""
    took = []
    for text in texts:
        start = time.perf_counter()
        work(text)
        took.append(1e3 * (time.perf_counter() - start))
    return took


def _quantiles(took: Sequence[float]) -> tuple[float, float]:
    ordered = sorted(took)
    return round(ordered[len(ordered) // 2], 1), round(ordered[int(len(ordered) * 0.95)], 1)


# ------------------------------------------------------------------------------------- during ingestion


def _measure_with_others(plan: SearchPlan, place: EmptyStore, figures: Figures) -> None:
    """Have clients search through a server, alone and while another process ingests into the group."""
    port, environ = free_port(), environ_of(place.settings)
    folder, log = ["--data", str(place.data)], place.data.parent / "log"
    words = ["serve", *folder, "--port", str(port), "--accept-only"]
    server = ChildProcess("kgray", words, environ=environ, log=log)
    lines = place.data.parent / f"{figures.group}.jsonl"
    _write(lines, figures.group)
    adding = ChildProcess("kgray", ["add", *folder, str(lines)], environ=environ, log=log)
    with _opened(place) as store:
        texts = _texts(store, figures.group)
        try:
            server.start()
            run_clients(_up(port))
            run_clients(_searched(port, figures.group, texts, plan.searchers, 3.0))
            figures.idle = _percentiles(
                run_clients(_searched(port, figures.group, texts, plan.searchers, plan.seconds))
            )
            committed_before = store.counts(figures.group)[figures.group].committed
            adding.start()
            deadline = time.monotonic() + 300  # the group's state is loaded first
            while (
                store.counts(figures.group)[figures.group].committed == committed_before
                and time.monotonic() < deadline
            ):
                time.sleep(0.2)
            committed_before, started = store.counts(figures.group)[figures.group].committed, time.monotonic()
            responses = run_clients(_searched(port, figures.group, texts, plan.searchers, plan.seconds))
            figures.ingesting = _percentiles(responses)
            committed = store.counts(figures.group)[figures.group].committed - committed_before
            figures.ingested_per_s = round(committed / (time.monotonic() - started), 1)
            if adding.ended() is not None:
                raise KgrayError("all was ingested before the searches had ended: measure with more")
        finally:
            adding.kill()
            server.kill()
    figures.searchers, figures.load = plan.searchers, round(os.getloadavg()[0], 1)


def _write(path: Path, group: str) -> None:
    """Write more messages than are ingested in the time."""
    with path.open("w") as file:
        for episode in islice(telling_one(f"more-{group}", 20_000), 20_000):
            draft = episode.draft
            row = {
                "id": draft.client_id,
                "text": draft.text,
                "speaker": draft.speaker,
                "source": "more",
                "at": times.show(draft.reference_time or 0),
                "group": group,
            }
            file.write(json.dumps(row) + "\n")


async def _up(port: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            await Client(port, Responses()).ask("GET", "/healthz")
        except (OSError, asyncio.IncompleteReadError):
            if time.monotonic() > deadline:
                raise KgrayError("the server did not start") from None
            await asyncio.sleep(0.05)
        else:
            return


async def _searched(port: int, group: str, texts: Sequence[str], clients: int, seconds: float) -> Responses:
    """Search again and again for so long."""
    responses, ends = Responses(), time.monotonic() + seconds

    async def search_once(first: int) -> None:
        client, place = Client(port, responses), first
        while time.monotonic() < ends:
            place = (place + clients) % len(texts)
            await client.ask("POST", f"/v1/groups/{group}/search", {"query": texts[place], "limit": 10})

    await asyncio.gather(*map(search_once, range(clients)))
    return responses


def _percentiles(responses: Responses) -> tuple[float, float]:
    if set(responses.statuses) != {"200"}:
        raise KgrayError(f"not all searches were answered: {dict(responses.statuses)}")
    return responses.at(0.5), responses.at(0.95)


# ----------------------------------------------------------------------------------------------- showing


@dataclass(slots=True)
class _Row:
    figures: Figures
    spans: dict[str, str] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - a figure of any type
        value = getattr(self.figures, name)
        return "/".join(f"{ms:.1f}" for ms in value) if isinstance(value, tuple) else value


_COLUMNS: Sequence[Column] = (
    ("store", "store", "s"),
    ("group", "group", "s"),
    ("messages", "messages", ",d"),
    ("facts", "facts", ",d"),
    ("opened", "first ms", ",.0f"),
    ("search", "search p50/p95", "s"),
    ("context", f"context of {TOKENS}", "s"),
    ("after_commit", "after a commit", "s"),
    ("searchers", "searchers", "d"),
    ("idle", "idle", "s"),
    ("ingesting", "ingesting", "s"),
    ("ingested_per_s", "episodes/s", ".0f"),
    ("load", "load", ".1f"),
)


def table(results: Sequence[Figures]) -> str:
    """Return the figures for people."""
    return "\n".join(aligned(_COLUMNS, [_Row(figures) for figures in results]))
