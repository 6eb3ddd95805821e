"""The one place where the bench opens the engine and has it ingest.

given_of, settings_of   the settings of one way to ingest
opened, accept          a memory with exactly these settings; episodes into its log
carry_out               ingest in a setup, and the hash of its result
plain_parts, plain_loop the plain loop over models of the bench's own
one_ray, deployed       a Ray for several stores; the actors of one store
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bench.empty_stores import EmptyStore
from bench.plain_loop import Loop
from bench.processes import MODEL
from bench.reading import digest, ledger
from kgray.domain import times
from kgray.domain.ontology import shipped
from kgray.domain.records import Draft
from kgray.errors import KgrayError
from kgray.ingest.calls import Parts
from kgray.memory import AsyncMemory
from kgray.memory.opening import open_with
from kgray.ports import Embedder, Extractor, Judge, Store
from kgray.ports.ingest import OnStep, OnWait, Totals, ignore, sum_of
from kgray.runtime.wiring import build_models
from kgray.settings import ModelSettings, PipelineSettings, Settings, load
from kgray.storage.ledger import accept as ledger_accept
from kgray.storage.sqlite import open_sqlite

if TYPE_CHECKING:
    from kgray.runtime.deploy import Deployment
    from kgray.runtime.spec import Profile

_BATCH = 256
_FED = 50  # episodes of a slice, where they come in while others are carried out
_FED_EVERY_S = 0.05
_MIXED_EVERY = 3  # of this number of consecutive episodes one is live, the others are backfilled
_PASSWORD = "KGRAY_STORE_PASSWORD"  # noqa: S105 - the variable's name


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to ingest.

    model   which of the model servers answers
    chunk   calls in a chunk to a Ray worker, and steps in a task; None: the default
    mixed   live and backfilled episodes take turns, and two thirds of them come in during the run
    """

    runtime: Literal["plain", "local", "ray"] = "local"
    model: str = "true"
    window: int = 64
    chunk: int | None = None
    mixed: bool = False
    resolution: Literal["batched", "per_node"] = "batched"

    @property
    def name(self) -> str:
        """Its name in a table."""
        if self.runtime == "plain":
            return "plain loop"
        chunks = f", chunks of {self.chunk}" if self.chunk else ""
        return f"{self.runtime}, window {self.window}{chunks}{', live and bulk' if self.mixed else ''}"


@dataclass(slots=True)
class WayRun:
    """The result of a setup. digest: over the dumps of all groups.

    seconds   from the first claim to the last commit; wall_s: with the start of the workers
    """

    way: Way
    seconds: float = 0.0
    wall_s: float = 0.0
    digest: str = ""
    committed: int = 0
    failed: int = 0
    totals: Totals = field(default_factory=Totals)


def given_of(setup: Way, place: EmptyStore, base_url: str, **further_settings: object) -> dict[str, Any]:
    """Return the settings that make a run, by key with an underscore; None: the default."""
    table = {
        **place.settings,
        "model_backend": "openai",
        "model_base_url": base_url,
        "model_name": MODEL,
        "runtime_backend": "ray" if setup.runtime == "ray" else "local",
        "runtime_window": setup.window,
        "pipeline_resolution": setup.resolution,
        "runtime_chunk_episodes": setup.chunk,
        "runtime_chunk_requests": setup.chunk,
        **further_settings,
    }
    return {name: value for name, value in table.items() if value is not None}


def settings_of(settings_table: Mapping[str, Any]) -> Settings:
    """Return these settings; a user's environment and files have no part in them but a store's password."""
    password = {name: text for name, text in os.environ.items() if name == _PASSWORD}
    return load(None, environ=password, overrides=settings_table)


def environ_of(settings_table: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables that give a command these settings, and no others of KGRAY_."""
    environ = {n: text for n, text in os.environ.items() if n == _PASSWORD or not n.startswith("KGRAY_")}
    return environ | {f"KGRAY_{name.upper()}": str(value) for name, value in settings_table.items()}


def opened(settings: Settings, data: Path) -> AsyncMemory:
    """Open a memory with exactly these settings; its store is made where it is missing."""
    return open_with(settings, data, create=True)


def carry_out(
    setup: Way, memory: AsyncMemory, drafts: Sequence[Draft], *, on_step: OnStep = ignore
) -> WayRun:
    """Ingest drafts in this way; the memory stays open. Raises KgrayError where the run stops early."""
    return asyncio.run(_carry_out(setup, memory, drafts, on_step))


async def _carry_out(setup: Way, memory: AsyncMemory, drafts: Sequence[Draft], on_step: OnStep) -> WayRun:
    run = WayRun(setup)
    first = len(drafts) // 3 if setup.mixed else len(drafts)
    accept(memory.store, drafts[:first], mixed=setup.mixed)
    started = time.perf_counter()
    if setup.runtime == "plain":
        with memory.store.writing():
            run.totals = await Loop(memory.parts).run(on_step=on_step)
    else:
        feeding = asyncio.create_task(_feed(memory, drafts[first:]))
        while memory.store.pending_count() or not feeding.done():
            outcome = await memory.runtime.carry_out(None, more=lambda: not feeding.done(), on_step=on_step)
            if outcome.stopped:
                raise KgrayError(f"{setup.name}: the run stopped ({outcome.reason or 'nobody asked it to'})")
            run.totals = sum_of(run.totals, outcome.totals)
        await feeding
    run.wall_s = run.seconds = time.perf_counter() - started
    if run.totals.first_claim is not None and run.totals.last_commit is not None:
        run.seconds = run.totals.last_commit - run.totals.first_claim
    states = ledger(memory.store)
    run.committed, run.failed = states["committed"], states["failed"]
    if run.committed + run.failed != len(drafts):
        raise KgrayError(f"{setup.name}: {run.committed + run.failed} of {len(drafts)} episodes have ended")
    run.digest = await digest(memory)
    return run


async def _feed(memory: AsyncMemory, drafts: Sequence[Draft]) -> None:
    for at in range(0, len(drafts), _FED):
        await asyncio.sleep(_FED_EVERY_S)
        accept(memory.store, drafts[at : at + _FED], mixed=True)


def accept(store: Store, drafts: Sequence[Draft], *, mixed: bool = False) -> None:
    """Append drafts in their order. mixed: the lanes alternate, for any group."""
    if not mixed:
        for at in range(0, len(drafts), _BATCH):
            ledger_accept(store, drafts[at : at + _BATCH], now=times.now())
        return
    for at in range(0, len(drafts), _MIXED_EVERY):
        ledger_accept(store, drafts[at : at + 1], now=times.now())
        ledger_accept(store, drafts[at + 1 : at + _MIXED_EVERY], now=times.now(), bulk=True)


# ------------------------------------------------------- the plain loop over the bench's own models


@contextmanager
def plain_parts(
    extractor: Extractor, judge: Judge, embedder: Embedder, folder: Path, pipeline: PipelineSettings
) -> Iterator[Parts]:
    """Yield the engine's parts around these models, on a new embedded store."""
    store = open_sqlite(folder, embedder=embedder.identity, dimensions=embedder.dimensions)
    try:
        yield Parts(
            store=store,
            extractor=extractor,
            judge=judge,
            embedder=embedder,
            ontology=shipped(),
            pipeline=pipeline,
        )
    finally:
        store.close()


def plain_loop(parts: Parts, on_step: OnStep = ignore) -> Totals:
    """Carry out the accepted entries one by one."""
    with parts.store.writing():
        return asyncio.run(Loop(parts).run(on_step=on_step))


def shipped_models(base_url: str, pipeline: Mapping[str, str]) -> tuple[Extractor, Judge]:
    """Return the `openai` backend in front of a model server."""
    settings = Settings(
        model=ModelSettings(backend="openai", base_url=base_url, name=MODEL),
        pipeline=PipelineSettings(**pipeline),  # type: ignore[arg-type]
    )
    return build_models(settings, shipped())


# ----------------------------------------------------------------------------------------- Ray


@contextmanager
def one_ray() -> Iterator[str]:
    """Start a Ray for all stores that are opened in the block; yield its address."""
    from kgray.runtime import session
    from kgray.runtime.spec import load_profile

    started = session.start(Settings(), load_profile())
    try:
        yield started.address
    finally:
        started.close()


def deployed(
    settings: Settings,
    data: Path,
    profile: Profile | None = None,
    *,
    detached: bool = True,
    tell: OnWait = ignore,
) -> Deployment:
    """Start a store's actors in the Ray that this process has sum_of, and return them.

    profile: how many of them; None = that of the settings, or the laptop's. tell: called with lines on them
    """
    from kgray.runtime.deploy import ensure
    from kgray.runtime.spec import load_profile, spec_of

    named = settings.runtime.profile
    cluster_profile = profile or load_profile(named)
    chosen = profile is not None or named is not None
    return ensure(
        spec_of(settings, data, cluster_profile.values()), detached=detached, chosen=chosen, tell=tell
    )
