"""One way to ingest a world: which model, which runtime, how wide; and the hash of what it made."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from kgray import times
from kgray.bench.places import Place
from kgray.bench.serving import MODEL
from kgray.errors import KgrayError
from kgray.ingest.loop import Loop
from kgray.ingest.parts import Totals
from kgray.ledger import accept as accept_drafts
from kgray.memory import Memory
from kgray.memory.ingesting import OnStep, ignore, joined
from kgray.records import Draft
from kgray.settings import Settings, load
from kgray.wiring import build_parts

Runtime = Literal["plain", "local", "ray"]
_BATCH = 256
_FED = 50  # episodes of a slice, where they come in while others are carried out
_FED_EVERY_S = 0.05
_BULK_EVERY = 3  # of so many episodes in a row one is live, the others are bulk


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to ingest.

    model   which of the model servers answers
    chunk   requests of a chunk to a Ray worker
    mixed   live and bulk episodes take turns, and two thirds of them come in during the run
    """

    runtime: Runtime = "local"
    model: str = "true"
    window: int = 64
    chunk: int = 8
    mixed: bool = False

    @property
    def name(self) -> str:
        """What it is called in a table."""
        if self.runtime == "plain":
            return "plain loop"
        chunks = f", chunks of {self.chunk}" if self.runtime == "ray" else ""
        return f"{self.runtime}, window {self.window}{chunks}{', live and bulk' if self.mixed else ''}"


@dataclass(slots=True)
class Run:
    """What a way came to. digest: over the dumps of all groups.

    seconds   from the first claim to the last commit; wall_s: with the start of what does the work
    """

    way: Way
    seconds: float = 0.0
    wall_s: float = 0.0
    digest: str = ""
    committed: int = 0
    failed: int = 0
    totals: Totals = field(default_factory=Totals)


def settings_of(way: Way, place: Place, base_url: str, more: Mapping[str, Any] | None = None) -> Settings:
    """Return the settings of a run: those of a user's environment and files have no part in it."""
    password = os.environ.get("KGRAY_STORE_PASSWORD")
    return load(
        None,
        environ={"KGRAY_STORE_PASSWORD": password} if password else {},
        overrides={
            **place.settings,
            "model_backend": "openai",
            "model_base_url": base_url,
            "model_name": MODEL,
            "model_cache_mb": 0,
            "runtime_backend": "ray" if way.runtime == "ray" else "local",
            "runtime_window": way.window,
            "runtime_chunk_episodes": way.chunk,
            "runtime_chunk_requests": way.chunk,
            **(more or {}),
        },
    )


def opened(settings: Settings, data: Path, *, create: bool = True) -> Memory:
    """Open a memory with exactly these settings."""
    parts = build_parts(settings, data, create=create)
    if settings.runtime.backend == "local":
        return Memory(parts, data=data)
    from kgray.runtime.ingest import RayIngest

    return Memory(parts, RayIngest(settings, data, parts.store), data=data)


def carry_out(
    way: Way, memory: Memory, drafts: Sequence[Draft], *, on_step: OnStep = ignore, hashed: bool = True
) -> Run:
    """Ingest drafts in this way; the memory stays open. hashed: hash what came of it."""
    return asyncio.run(_carry_out(way, memory, drafts, on_step, hashed=hashed))


async def _carry_out(
    way: Way, memory: Memory, drafts: Sequence[Draft], on_step: OnStep, *, hashed: bool
) -> Run:
    run = Run(way)
    first = len(drafts) // 3 if way.mixed else len(drafts)
    accept(memory, drafts[:first], mixed=way.mixed)
    since = time.perf_counter()
    if way.runtime == "plain":
        with memory.store.writing():
            run.totals = await Loop(memory.parts).run(on_step=on_step)
    else:
        feeding = asyncio.create_task(_feed(memory, drafts[first:]))
        while memory.store.pending_count() or not feeding.done():
            done = await memory.runtime.carry_out(None, more=lambda: not feeding.done(), on_step=on_step)
            if done.stopped:
                raise KgrayError(f"{way.name}: the run stopped ({done.reason or 'nobody asked it to'})")
            run.totals = joined(run.totals, done.totals)
        await feeding
    run.wall_s = run.seconds = time.perf_counter() - since
    if run.totals.first_claim is not None and run.totals.last_commit is not None:
        run.seconds = run.totals.last_commit - run.totals.first_claim
    for counts in memory.store.counts().values():
        run.committed += counts.committed
        run.failed += counts.failed
    if run.committed + run.failed != len(drafts):
        raise KgrayError(f"{way.name}: {run.committed + run.failed} of {len(drafts)} episodes have ended")
    if hashed:
        run.digest = await digest(memory)
    return run


async def _feed(memory: Memory, drafts: Sequence[Draft]) -> None:
    for at in range(0, len(drafts), _FED):
        await asyncio.sleep(_FED_EVERY_S)
        accept(memory, drafts[at : at + _FED], mixed=True)


def accept(memory: Memory, drafts: Sequence[Draft], *, mixed: bool = False, bulk: bool = False) -> None:
    """Append drafts in their order. mixed: lanes take turns, whatever the group."""
    store = memory.store
    if not mixed:
        for at in range(0, len(drafts), _BATCH):
            accept_drafts(store, drafts[at : at + _BATCH], now=times.now(), bulk=bulk)
        return
    for at in range(0, len(drafts), _BULK_EVERY):
        accept_drafts(store, drafts[at : at + 1], now=times.now())
        accept_drafts(store, drafts[at + 1 : at + _BULK_EVERY], now=times.now(), bulk=True)


async def digest(memory: Memory) -> str:
    """Return one hash over the dumps of all groups."""
    whole = hashlib.sha256()
    for group in memory.store.heads():
        whole.update(f"{group} {await memory.dump_hash(group=group)}\n".encode())
    return whole.hexdigest()
