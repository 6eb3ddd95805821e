"""What a run works with, and how it keeps its event loop free.

What takes seconds on one group runs in a thread beside the loop. A thread shares the interpreter's lock with
the loop, and each call into SQLite gives the lock away. So while anything long goes on, short reads go to
threads too: in the loop each would wait for the lock many times.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

from kgray.errors import Cost
from kgray.garbage import garbage_not_collected
from kgray.ingest.compare import statement_floor
from kgray.ingest.state import Rules
from kgray.ingest.steps import Place, Reading, Stepping, local_extracting, local_resolving
from kgray.ingest.units import UnitSize
from kgray.kinds import R, Read
from kgray.ontology import Ontology
from kgray.ports import Embedder, Extractor, Judge, Judged, QuestionRequest, RowChanges, Store, Writer
from kgray.records import Episode, Extraction
from kgray.settings import PipelineSettings

_PROBE_S = 0.02
_SWITCH_S = 0.001  # how long a thread keeps the lock that the loop asks for, at most
# Two groups at a time: more would take as much processor time and more memory.
THREADS = ThreadPoolExecutor(2, thread_name_prefix="kgray-group")
_WRITES = ThreadPoolExecutor(8, thread_name_prefix="kgray-write")  # a store on a server has fewer lanes
_LONG: dict[object, float] = {}  # what goes on; how long threads kept the lock before
_T = TypeVar("_T")
OnStage = Callable[[str, float, Episode | None], None]  # stage, seconds, episode (None: of several)
OnCall = Callable[[str, str, Cost], None]  # extract or judge; "ok", or the class of the error; tokens


async def off_the_loop(store: Store, call: Callable[[], _T], *, much: bool = False) -> _T:
    """Return what a call to the store returns; in a thread where the loop would wait for it.

    much: it reads so much that the loop would notice
    600 episodes of 3 facts, Neo4j on the same two cores: 30 to 36 a second, 7 without the thread.
    """
    return await asyncio.to_thread(call) if store.remote or much or _LONG else call()


async def rows_of(store: Store, read: Read[R], group: str, asked: Sequence[Any]) -> list[R]:
    """Return the rows of a declared read; none for no value."""
    return await off_the_loop(store, lambda: list(store.rows(read, group, asked))) if asked else []


async def at_length(call: Callable[[], _T]) -> _T:
    """Return what a call returns that may take seconds; the loop goes on meanwhile."""
    # Kept in whole microseconds, rounded down: without the half it would shrink with each call.
    this, usual = object(), max(_LONG.values(), default=sys.getswitchinterval() + 5e-7)
    _LONG[this] = usual
    sys.setswitchinterval(min(_SWITCH_S, usual))
    try:
        with garbage_not_collected():
            return await asyncio.get_running_loop().run_in_executor(THREADS, call)
    finally:
        del _LONG[this]
        if not _LONG:
            sys.setswitchinterval(usual)


async def tell_lag(observe: Callable[[float], None]) -> None:
    """Tell again and again by how many seconds the loop comes late; until it is cancelled."""
    while True:
        due = time.monotonic() + _PROBE_S
        await asyncio.sleep(_PROBE_S)
        observe(max(0.0, time.monotonic() - due))


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a run works with.

    units       how long a text is read at once; None: however long it is
    window      most episodes in flight (runtime.window); streams: most model calls in flight
    patience_s  how long the run waits out an outage before it stops with exit 75 (R24)
    late_s      how long the next entry to commit waits for its extraction before it is sent once more
    writer      who writes; None = the store itself, which the run then holds (`Store.writing`)
    extracting, resolving   where steps run and who answers their calls; None = this process, its models
    watch       called with the seconds of each stage, from when an episode is taken from the log
    on_call     called with what each call of a model came to
    """

    store: Store
    extractor: Extractor
    judge: Judge
    embedder: Embedder
    ontology: Ontology
    pipeline: PipelineSettings = field(default_factory=PipelineSettings)
    units: UnitSize | None = None
    state_bytes: int = 1 << 30
    patience_s: float = 600.0
    window: int = 128
    streams: int = 32
    late_s: float = 6.0
    writer: Writer | None = None
    extracting: Stepping[Reading, Extraction] | None = None
    resolving: Stepping[QuestionRequest, Judged] | None = None
    watch: OnStage = lambda *_: None
    on_call: OnCall = lambda *_: None

    @property
    def rules(self) -> Rules:
        """The settings that deciding depends on."""
        floor = statement_floor(self.embedder.identity)
        return Rules(ontology=self.ontology, judge=self.judge.identity, statement_floor=floor)

    async def read(self, reading: Reading, place: Place = nullcontext) -> Extraction:
        """Return what a text says. place: the context of each call of the model."""
        steps = self.extracting or local_extracting(self.extractor, self.ontology)
        return await steps.carry_out(reading, place)

    async def resolve(self, request: QuestionRequest, place: Place = nullcontext) -> Judged:
        """Return the answers to questions. place: as for `read`."""
        return await (self.resolving or local_resolving(self.judge)).carry_out(request, place)


class Direct:
    """A writer that applies changes to the store itself, inside `Store.writing()`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def write(self, changes: Sequence[RowChanges]) -> None:
        """Apply the changes, in order, in one transaction."""
        if self._store.remote:
            await asyncio.get_running_loop().run_in_executor(_WRITES, self._store.apply, changes)
        else:
            await off_the_loop(self._store, lambda: self._store.apply(changes))
