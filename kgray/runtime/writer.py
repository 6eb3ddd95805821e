"""The writer of one shard or several: `GraphWriter` holds them in an actor, `RemoteWriter` sends to it.

Calls may arrive late or twice. So a batch carries its shard and epoch. The store checks in the same
transaction (R23) that the epoch is the newest, and skips changes that are already committed. Rows of the
journal apply again: a run has one batch of a group on its way at a time, so none follows a later batch.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError

from kgray.errors import KgrayError, Locked, StaleWriter, StoreError, Unavailable
from kgray.ports import RowChanges, Store
from kgray.runtime import telemetry
from kgray.runtime.actors import Handle, control, is_restarted, reached, writing
from kgray.runtime.draining import when_draining
from kgray.runtime.pools import Lost, answer_within
from kgray.runtime.spec import DeploymentSpec
from kgray.schema.kinds import EPISODES
from kgray.schema.rows import STATES
from kgray.system.garbage import collect_garbage_rarely
from kgray.system.outages import OUTAGES

_FIRST_DELAY_S = 0.05
_LONGEST_DELAY_S = 5.0
_WRITER = "the writer in Ray"
_PASSING = (Locked, Unavailable)  # transient: retried until the patience is spent


class GraphWriter:
    """Holds shards of the store, each for its sequencer; batches of different groups go side by side."""

    def __init__(self, spec: DeploymentSpec, name: str, is_detached: bool = False) -> None:
        """Open nothing yet: an error of the store must be a call's answer, not a failed start."""
        from kgray.runtime.keeper import Keeper  # it imports this module

        telemetry.start(name)
        self._spec = spec
        # Only the first hold creates the map, and not in a process that Ray restarted: a later hold uses the
        # stored map, which may have another number of shards than the spec (`kgray scale`).
        self._shards = 0 if is_restarted() else spec.cluster.sequencer.shards
        self._store: Store | None = None
        self._epochs: dict[int, int] = {}  # by held shard
        self._holds: dict[int, ExitStack] = {}
        self._batches = self._writes = 0
        self._guard = threading.Lock()  # of the holds and the counts
        self._keeper = Keeper(spec, is_detached=True) if is_detached else None
        self._busy, self._is_leaving = 0, False  # calls that write now
        collect_garbage_rarely()
        when_draining(self._leave_node)

    def begin(self, shard: int) -> int | Exception:
        """Take a new epoch, so that every older run of the shard is stale; return it, or the error."""
        try:
            with self._guard:
                self._refuse_if_leaving()
                return self._hold(shard, None)
        except KgrayError as error:
            return error

    @writing
    def write(self, shard: int, epoch: int, changes: Sequence[RowChanges]) -> Exception | None:
        """Write a batch; None = it is durable."""
        try:
            with self._guard:
                self._refuse_if_leaving()
                newest = self._epochs.get(shard, 0)
                if epoch < newest:
                    raise StaleWriter(f"epoch {epoch} was followed by {newest}: another run writes now")
                if epoch > newest:
                    self._hold(shard, epoch)  # another, or an earlier, process gave out the epoch
                store = self._store
                self._busy += 1
            start = time.monotonic()
            assert store is not None  # noqa: S101 - `_hold` has opened it
            try:
                store.apply(changes, epoch=epoch)
            finally:
                with self._guard:
                    self._busy -= 1
            telemetry.measure("kgray_commit_seconds", time.monotonic() - start)
        except KgrayError as error:
            with self._guard:  # an older run's batch does not take the store from the newest run
                if isinstance(error, StaleWriter) and epoch == self._epochs.get(shard):
                    self._release(shard)
            return error
        with self._guard:
            self._batches += 1
            self._writes += len(changes)
        telemetry.measure("kgray_batch_size", len(changes), of="write")
        for kind, number in rows_written(changes).items():
            telemetry.measure("kgray_rows_written", number, kind=kind)
        for change in changes:
            if change.recorded_at is not None and EPISODES is change.ledger:
                episode: Any = change.puts[EPISODES][0]
                telemetry.stage(STATES[episode.state], change.group, change.sequence)
        return None

    @control
    def stats(self) -> dict[str, Any]:
        """Return the epoch of each held shard, and the number of this process's batches and writes."""
        return {
            "pid": os.getpid(),
            "epochs": {str(shard): epoch for shard, epoch in sorted(self._epochs.items())},
            "batches": self._batches,
            "writes": self._writes,
        }

    @control
    def describe(self) -> dict[str, Any]:
        """Return the actor's spec and process."""
        return {"pid": os.getpid(), "spec": self._spec, "fault": None}

    @control
    def retire(self) -> None:
        """Stop restoring missing actors, before the deployment ends."""
        if self._keeper is not None:
            self._keeper.end()

    @control
    def drain(self, grace_s: float) -> None:
        """Take no more batches; finish the current batches, then release the shards for the next writer."""
        self._leave(grace_s)

    def _leave_node(self, left_s: float) -> None:
        time.sleep(left_s)  # its sequencers write until the end, even on this node
        self._leave(0.0)

    def _leave(self, grace_s: float) -> None:
        self._is_leaving, deadline = True, time.monotonic() + grace_s
        while self._busy and time.monotonic() < deadline:
            time.sleep(_FIRST_DELAY_S)
        with self._guard:
            for shard in [*self._holds]:
                self._release(shard)

    def _refuse_if_leaving(self) -> None:
        if self._is_leaving:
            raise Unavailable("another writer follows this one")

    def _hold(self, shard: int, epoch: int | None) -> int:
        self._release(shard)
        if self._store is None:
            self._store = self._spec.parts().store
        hold = ExitStack()
        try:
            held_epoch = hold.enter_context(
                self._store.writing(epoch=epoch, shard=shard, shards=self._shards)
            )
        except StoreError:  # the stored map has another number of shards
            stored_shards = self._store.shard_map().shards
            if self._shards in (0, stored_shards) or shard >= stored_shards:
                raise
            held_epoch = hold.enter_context(self._store.writing(epoch=epoch, shard=shard, shards=0))
        self._shards = 0
        self._epochs[shard], self._holds[shard] = held_epoch, hold
        telemetry.measure("kgray_writer_epoch", held_epoch, shard=shard)
        telemetry.LOGGER.info("holds shard %d", shard, extra={"epoch": held_epoch})
        return held_epoch

    def _release(self, shard: int) -> None:
        self._epochs.pop(shard, None)
        telemetry.forget("kgray_writer_epoch", shard=shard)
        self._holds.pop(shard, ExitStack()).close()


def rows_written(changes: Sequence[RowChanges]) -> Counter[str]:
    """Return the numbers of rows that these changes put, patch and drop, by kind."""
    counts = Counter[str]()
    for change in changes:
        for kind, rows in (*change.puts.items(), *change.drops.items()):
            counts[kind.name] += len(rows)
        for patch in change.patches:
            counts[patch.kind.name] += len(patch.rows)
    return counts


@dataclass(eq=False)
class RemoteWriter:
    """`ports.Writer` of one run over the actor: a batch is sent until it is known to be durable."""

    find: Callable[[], Handle]  # returns the current actor
    shard: int
    deadline_s: float  # for one call, after which the actor is restarted
    patience_s: float  # for one batch
    epoch: int = 0  # the run's, from `begin`; it never changes, so a late batch of an older run is refused

    def __post_init__(self) -> None:
        self._handle: Handle | None = None  # of the last call

    async def begin(self) -> RemoteWriter | Exception:
        """Take a new epoch; return the writer of a new run, or the error."""
        epoch = await self._called("begin", self.shard)
        if isinstance(epoch, Exception):
            return epoch
        writer = copy(self)
        writer.epoch = epoch
        return writer

    async def write(self, changes: Sequence[RowChanges]) -> None:
        """Write a batch; durable on return.

        It waits for a writer that restarts and an unreachable store, up to the patience (Unavailable), and
        raises the store's StaleWriter, Outrun, NoSpace and StoreError.
        """
        start, deadline = time.time(), time.monotonic() + self.patience_s
        delay = _FIRST_DELAY_S
        while (fault := await self._called("write", self.shard, self.epoch, changes)) is not None:
            if not isinstance(fault, _PASSING):
                raise fault
            OUTAGES.failed(_WRITER, f"cannot write ({fault})", since=start, patience_s=self.patience_s)
            if time.monotonic() >= deadline:
                raise Unavailable(str(fault), waited=True)
            await asyncio.sleep(delay)
            delay = min(2 * delay, _LONGEST_DELAY_S)
        if delay > _FIRST_DELAY_S:
            OUTAGES.answered(_WRITER)

    async def _called(self, method: str, *args: object) -> Any:  # noqa: ANN401 - the method's result
        """Return the actor's answer; Unavailable if it gives none."""
        try:
            self._handle = self._handle or self.find()
            return await answer_within(reached(getattr(self._handle, method), *args), self.deadline_s)
        except (Lost, ValueError, RayError) as error:  # ValueError: no such actor at the moment
            reason, self._handle = str(error), None
        except TimeoutError:
            if self._handle is not None:
                ray.kill(self._handle, no_restart=False)
            reason = f"the writer did not answer within {self.deadline_s:g} s"
        return Unavailable(f"the writer is out of reach: {reason}")
