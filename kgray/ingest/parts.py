"""The parts of a run, and the threads that keep its event loop free.

Calls that take seconds on one group run in a thread beside the loop. A thread shares the interpreter's lock
with the loop, and each call into SQLite releases the lock. So while a long call runs, short reads go to
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

from kgray.domain.ontology import Ontology
from kgray.domain.records import Episode, Extraction
from kgray.errors import Cost
from kgray.ingest.compare import statement_floor
from kgray.ingest.state import Rules
from kgray.ingest.steps import Place, Reading, Stepping, UnitSize, local_extracting, local_resolving
from kgray.ports import Embedder, Extractor, Judge, Judged, QuestionRequest, RowChanges, Store, Writer
from kgray.schema.kinds import R, Read
from kgray.settings import PipelineSettings
from kgray.system.garbage import garbage_not_collected

_PROBE_S = 0.02
_SWITCH_S = 0.001  # the maximum time that a thread keeps the lock when the loop wants it
# Two groups at a time: more would take as much processor time and more memory.
THREADS = ThreadPoolExecutor(2, thread_name_prefix="kgray-group")
_WRITES = ThreadPoolExecutor(8, thread_name_prefix="kgray-write")  # a store on a server has fewer lanes
_LONG: dict[object, float] = {}  # long call -> the switch interval before it
_T = TypeVar("_T")
OnStage = Callable[[str, float, Episode | None], None]  # stage, seconds, episode (None: of several)
OnCall = Callable[[str, str, Cost], None]  # extract or judge; "ok", or the class of the error; tokens


async def off_the_loop(store: Store, call: Callable[[], _T], *, is_large: bool = False) -> _T:
    """Return the result of a call to the store; run it in a thread if the loop would wait for it.

    is_large  the call reads enough to delay the loop

    600 episodes of 3 facts, Neo4j on the same two cores: 30 to 36 a second, 7 without the thread.
    """
    return await asyncio.to_thread(call) if store.remote or is_large or _LONG else call()


async def rows_of(store: Store, read: Read[R], group: str, values: Sequence[Any]) -> list[R]:
    """Return the rows of a declared read; [] without values."""
    return await off_the_loop(store, lambda: list(store.rows(read, group, values))) if values else []


async def at_length(call: Callable[[], _T]) -> _T:
    """Return the result of a call that may take seconds, in a thread beside the loop."""
    # Kept in whole microseconds, rounded down: without the half it would shrink with each call.
    token, former = object(), max(_LONG.values(), default=sys.getswitchinterval() + 5e-7)
    _LONG[token] = former
    sys.setswitchinterval(min(_SWITCH_S, former))
    try:
        with garbage_not_collected():
            return await asyncio.get_running_loop().run_in_executor(THREADS, call)
    finally:
        del _LONG[token]
        if not _LONG:
            sys.setswitchinterval(former)


async def tell_lag(observe: Callable[[float], None]) -> None:
    """Report the delay of the loop in seconds, again and again, until it is cancelled."""
    while True:
        due = time.monotonic() + _PROBE_S
        await asyncio.sleep(_PROBE_S)
        observe(max(0.0, time.monotonic() - due))


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts and limits of a run.

    units       the maximum size of a text that is read at once; None: no limit
    window      the maximum number of episodes in flight (runtime.window)
    streams     the maximum number of model calls in flight
    patience_s  the time that the run waits out an outage before it stops with exit 75 (R24)
    late_s      the wait of the next entry to commit for its extraction before the call is repeated
    writer      applies the changes; None = the store itself, locked by the run (`Store.writing`)
    extracting, resolving   run the steps and answer their calls; None = this process and its models
    watch       called with the seconds of each stage, counted from the read of the episode from the log
    on_call     called with the outcome of each call of a model
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
        """The settings that decisions depend on."""
        floor = statement_floor(self.embedder.identity)
        return Rules(ontology=self.ontology, judge=self.judge.identity, statement_floor=floor)

    async def read(self, reading: Reading, place: Place = nullcontext) -> Extraction:
        """Return the extraction of a text; place: the context of each call of the model."""
        steps = self.extracting or local_extracting(self.extractor, self.ontology)
        return await steps.carry_out(reading, place)

    async def resolve(self, request: QuestionRequest, place: Place = nullcontext) -> Judged:
        """Return the answers to questions; place: as for `read`."""
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
