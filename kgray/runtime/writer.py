"""The one writer of a shard: `GraphWriter` holds the store in an actor, `RemoteWriter` sends to it.

Calls may arrive late, twice or out of order. So a batch carries its run's epoch, which the store checks in
the same transaction (R23), and a batch that was written before changes nothing. One batch is on its way at
a time.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import ray
from ray.exceptions import RayError

from kgray.errors import KgrayError, Locked, StaleWriter, Unavailable
from kgray.ingest.state import collect_garbage_rarely
from kgray.kinds import EPISODES
from kgray.outages import OUTAGES
from kgray.ports import RowChanges, Store
from kgray.rows import STATES
from kgray.runtime import logs, metrics
from kgray.runtime.actors import Handle, control, reached
from kgray.runtime.keeper import Keeper
from kgray.runtime.outcomes import Lost, within
from kgray.runtime.profile import profile_of
from kgray.runtime.spec import DeploymentSpec

_FIRST_DELAY_S = 0.05
_LONGEST_DELAY_S = 5.0
_WHAT = "the writer in Ray"
_PASSING = (Locked, Unavailable)  # transient: retried until the patience is spent


class GraphWriter:
    """Holds one shard of the store for writing; `begin` and `write` run one at a time."""

    def __init__(self, spec: DeploymentSpec, shard: int, kept: bool = False) -> None:
        """Open nothing yet: an error of the store is to be a call's answer, not a failed start.

        kept: whether the deployment stays, so that this process looks for what is missing of it
        """
        logs.start(f"writer-{shard}")
        self._spec, self._shard = spec, shard
        self._store: Store | None = None
        self._held = ExitStack()
        self._epoch = 0
        self._last: dict[str, int] = {}  # client -> number of its last batch of this epoch that was written
        self._batches = self._writes = self._repeats = 0
        self._keeper = Keeper(spec, stays=True) if kept else None
        collect_garbage_rarely()

    def begin(self) -> int | Exception:
        """Take a new epoch, so that every older run is stale; return it, or why it cannot be taken."""
        try:
            return self._hold(None)
        except KgrayError as error:
            return error

    def write(self, epoch: int, client: str, number: int, changes: Sequence[RowChanges]) -> Exception | None:
        """Write a client's batch; None = it is durable. number: of the batch among the client's, from 1."""
        try:
            if epoch < self._epoch:
                raise StaleWriter(f"epoch {epoch} was followed by {self._epoch}: another run writes now")
            if epoch > self._epoch:
                self._hold(epoch)  # this process is new, or another writer process gave out the epoch
            if number <= self._last.get(client, 0):
                self._repeats += 1  # durable already: only the answer was lost
                return None
            since = time.monotonic()
            assert self._store is not None  # noqa: S101 - `_hold` has opened it
            self._store.apply(changes)
            self._last[client] = number
            self._note(changes, time.monotonic() - since)
        except KgrayError as error:
            if isinstance(error, StaleWriter) and epoch >= self._epoch:
                self._release()  # an older run's batch does not take the store from the newest
            return error
        return None

    @control
    def stats(self) -> dict[str, Any]:
        """Return the epoch, and how much this process has written."""
        return {
            "pid": os.getpid(),
            "shard": self._shard,
            "epoch": self._epoch,
            "batches": self._batches,
            "writes": self._writes,
            "repeats": self._repeats,
        }

    @control
    def describe(self) -> dict[str, Any]:
        """Return what the actor was built from."""
        return {"pid": os.getpid(), "spec": self._spec, "fault": None}

    @control
    def retire(self) -> None:
        """Start no missing actor any more: the deployment is being ended."""
        if self._keeper is not None:
            self._keeper.end()

    def _hold(self, epoch: int | None) -> int:
        self._release()
        if self._store is None:
            self._store = self._spec.parts().store
        shards = profile_of(self._spec.profile, "the deployment").sequencer.shards
        self._epoch = self._held.enter_context(
            self._store.writing(epoch=epoch, shard=self._shard, shards=shards)
        )
        metrics.gauge("kgray_writer_epoch", self._epoch, shard=self._shard)
        logs.LOGGER.info("holds the store", extra={"epoch": self._epoch})
        return self._epoch

    def _release(self) -> None:
        self._held.close()
        self._held = ExitStack()
        self._epoch, self._last = 0, {}

    def _note(self, changes: Sequence[RowChanges], seconds: float) -> None:
        self._batches += 1
        self._writes += len(changes)
        metrics.observe("kgray_commit_seconds", seconds)
        metrics.observe("kgray_batch_size", len(changes), of="write")
        for change in changes:
            if change.recorded_at is not None and EPISODES is change.ledger:
                (row,) = change.puts[EPISODES]
                logs.stage(STATES[row[10]], change.group, change.sequence)


class RemoteWriter:
    """`ports.Writer` of one run over the actor: a batch is sent until it is known to be durable.

    epoch   the run's, from `begin`; it never changes, so a late batch of an older run is refused
    """

    def __init__(
        self, find: Callable[[], Handle], *, deadline_s: float, patience_s: float, epoch: int = 0
    ) -> None:
        """find: the actor, again where it was replaced.

        deadline_s: for one call, after which the actor is restarted; patience_s: for one batch.
        """
        self._find, self.epoch = find, epoch
        self._handle = find()
        self._deadline_s, self._patience_s = deadline_s, patience_s
        self._client, self._number = secrets.token_hex(8), 0

    async def begin(self) -> RemoteWriter | Exception:
        """Take a new epoch; return the writer of a new run, or why the epoch cannot be taken."""
        found = await self._called("begin")
        if isinstance(found, Exception):
            return found
        return RemoteWriter(self._find, deadline_s=self._deadline_s, patience_s=self._patience_s, epoch=found)

    async def write(self, changes: Sequence[RowChanges]) -> None:
        """Write a batch; durable on return.

        Waits out a writer that restarts and a store that is out of reach, up to the patience (Unavailable);
        StaleWriter, Outrun, NoSpace and StoreError come as the store raises them.
        """
        self._number += 1
        number = self._number
        since, until = time.time(), time.monotonic() + self._patience_s
        delay = _FIRST_DELAY_S
        while (fault := await self._called("write", self.epoch, self._client, number, changes)) is not None:
            if not isinstance(fault, _PASSING):
                raise fault
            OUTAGES.failed(_WHAT, f"cannot write ({fault})", since=since, patience_s=self._patience_s)
            if time.monotonic() >= until:
                raise Unavailable(str(fault), waited=True)
            await asyncio.sleep(delay)
            delay = min(2 * delay, _LONGEST_DELAY_S)
        if delay > _FIRST_DELAY_S:
            OUTAGES.answered(_WHAT)

    async def _called(self, method: str, *args: object) -> Any:  # noqa: ANN401 - what the method returns
        """Return the actor's answer; Unavailable where there is none."""

        async def sent() -> Any:  # noqa: ANN401 - as above
            return await getattr(self._handle, method).remote(*args)

        try:
            return await within(reached(sent()), self._deadline_s)
        except Lost as error:
            reason = str(error)
            with suppress(ValueError, RayError):  # there is none at the moment
                self._handle = self._find()
        except TimeoutError:
            ray.kill(self._handle, no_restart=False)
            reason = f"the writer did not answer within {self._deadline_s:g} s"
        return Unavailable(f"the writer is out of reach: {reason}")
