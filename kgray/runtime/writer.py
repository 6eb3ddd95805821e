"""The one writer of a shard: it holds the store, and refuses whoever is not the newest (R23).

`GraphWriter` runs in an actor of its own; its order is not trusted, its repetition neither: a batch bears
its run's epoch, one is on its way at a time, and what was done already changes nothing when it comes again.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Protocol

from kgray.errors import KgrayError, Locked, StaleWriter, Unavailable
from kgray.kinds import EPISODES
from kgray.ports import RowChanges, Store
from kgray.rows import STATES
from kgray.runtime import logs
from kgray.runtime.metrics import WriterMetrics
from kgray.runtime.outcomes import Fault, Lost, error_of, fault_of
from kgray.runtime.terms import Terms

_FIRST_DELAY_S = 0.05
_LONGEST_DELAY_S = 5.0
_PASSING = (Locked.__name__, Unavailable.__name__)  # what another process does now, it will have done


class GraphWriter:
    """Holds one shard of the store for writing; calls come one at a time."""

    def __init__(self, terms: Terms, shard: int) -> None:
        """Open nothing yet: what is wrong with the store is an answer, not a failed start."""
        self.terms, self._shard = terms, shard
        self._store: Store | None = None
        self._held = ExitStack()
        self._epoch = 0
        self._last = 0  # the number of the last batch of this epoch that was written
        self._batches = self._writes = self._repeats = 0
        self._metrics = WriterMetrics()

    def begin(self) -> int | Fault:
        """Take a new epoch, so that every older run is stale; return it, or why it cannot be taken."""
        try:
            return self._hold(None)
        except KgrayError as error:
            return fault_of(error)

    def write(self, epoch: int, number: int, changes: Sequence[RowChanges]) -> Fault | None:
        """Carry out a run's batch; None = it is durable. number: of the batch in its run."""
        try:
            if epoch < self._epoch:
                raise StaleWriter(f"epoch {epoch} was followed by {self._epoch}: another run writes now")
            if epoch > self._epoch:
                self._hold(epoch)  # this process is new, or another of its kind gave the epoch
            if number <= self._last:
                self._repeats += 1  # durable already: only the answer was lost
                return None
            since = time.monotonic()
            assert self._store is not None  # noqa: S101 - it is held
            self._store.apply(changes)
            self._note(number, changes, time.monotonic() - since)
        except KgrayError as error:
            if isinstance(error, StaleWriter) and epoch >= self._epoch:
                self._release()  # an older run's batch does not take the store from the newest
            return fault_of(error)
        return None

    def stats(self) -> dict[str, Any]:
        """Return the epoch, and how much was written under it and before."""
        return {
            "pid": os.getpid(),
            "shard": self._shard,
            "epoch": self._epoch,
            "batches": self._batches,
            "writes": self._writes,
            "repeats": self._repeats,
        }

    def describe(self) -> dict[str, Any]:
        """Return who this is and what it was built from."""
        return {"name": f"writer {self._shard}", "pid": os.getpid(), "terms": self.terms, "fault": None}

    def close(self) -> None:
        """Let the store go; the next batch takes it again."""
        self._release()
        if self._store is not None:
            self._store.close()
            self._store = None

    def _hold(self, epoch: int | None) -> int:
        self._release()
        if self._store is None:
            self._store = self.terms.parts().store
        self._epoch = self._held.enter_context(self._store.writing(epoch=epoch, shard=self._shard))
        self._metrics.epoch(self._shard, self._epoch)
        logs.LOGGER.info("holds the store", extra={"epoch": self._epoch})
        return self._epoch

    def _release(self) -> None:
        self._held.close()
        self._held = ExitStack()
        self._epoch = self._last = 0

    def _note(self, number: int, changes: Sequence[RowChanges], seconds: float) -> None:
        self._last = number
        self._batches += 1
        self._writes += len(changes)
        self._metrics.batch(len(changes), seconds)
        for change in changes:
            if change.recorded_at is not None and EPISODES is change.ledger:
                (row,) = change.puts[EPISODES]
                logs.stage(STATES[row[10]], change.group, change.sequence)


class WriterLink(Protocol):
    """The writer's process, as a run sees it; Lost where it is gone, slow or out of reach."""

    async def begin(self) -> int | Fault:
        """Take a new epoch."""
        ...

    async def write(self, epoch: int, number: int, changes: Sequence[RowChanges]) -> Fault | None:
        """Carry out a batch."""
        ...


class RemoteWriter:
    """`ports.Writer` of one run: the same batch is sent until it is known to be durable."""

    def __init__(self, link: WriterLink, epoch: int, *, patience_s: float) -> None:
        """epoch: as `begin` gave it to this run."""
        self._link, self.epoch, self._patience_s = link, epoch, patience_s
        self._number = 0
        self.outage: tuple[float, str] | None = None

    async def write(self, changes: Sequence[RowChanges]) -> None:
        """Write a batch; durable on return.

        Waits out a writer that restarts and a store that is out of reach, up to the patience (Unavailable);
        StaleWriter, Outrun, NoSpace and StoreError come as the store raises them.
        """
        self._number += 1
        until = time.monotonic() + self._patience_s
        delay = _FIRST_DELAY_S
        while True:
            try:
                fault = await self._link.write(self.epoch, self._number, changes)
            except Lost as lost:
                fault = Fault(kind=Unavailable.__name__, message=f"the writer is out of reach: {lost}")
            if fault is None:
                self.outage = None
                return
            if fault.kind not in _PASSING:
                raise error_of(fault)
            self.outage = self.outage or (time.time(), fault.message)
            if time.monotonic() >= until:
                raise Unavailable(fault.message, waited=True)
            await asyncio.sleep(delay)
            delay = min(2 * delay, _LONGEST_DELAY_S)
