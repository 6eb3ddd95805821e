"""The writer of one shard or several: `GraphWriter` holds them in an actor, `RemoteWriter` sends to it.

Calls may arrive late, twice or out of order. So a batch carries its run's shard and epoch, which the store
checks in the same transaction (R23), and a batch that was written before changes nothing. A run has one batch
on its way at a time.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError

from kgray.errors import KgrayError, Locked, StaleWriter, Unavailable
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


@dataclass(slots=True)
class _Held:
    """A shard that is held. last: client -> number of its last batch of this epoch that was written."""

    epoch: int = 0
    until: ExitStack = field(default_factory=ExitStack)
    last: dict[str, int] = field(default_factory=dict)


class GraphWriter:
    """Holds shards of the store, each for its sequencer; `begin` and `write` run one at a time."""

    def __init__(self, spec: DeploymentSpec, name: str, kept: bool = False) -> None:
        """Open nothing yet: an error of the store is to be a call's answer, not a failed start.

        kept: whether the deployment stays, so that this process looks for what is missing of it
        """
        logs.start(name)
        self._spec = spec
        self._store: Store | None = None
        self._held: dict[int, _Held] = {}  # by shard
        self._batches = self._writes = self._repeats = 0
        self._keeper = Keeper(spec, stays=True) if kept else None

    def begin(self, shard: int) -> int | Exception:
        """Take a new epoch, so that every older run of the shard is stale; return it, or why it cannot be."""
        try:
            return self._hold(shard, None).epoch
        except KgrayError as error:
            return error

    def write(
        self, shard: int, epoch: int, client: str, number: int, changes: Sequence[RowChanges]
    ) -> Exception | None:
        """Write a client's batch; None = it is durable. number: of the batch among the client's, from 1."""
        held = self._held.get(shard, _Held())
        try:
            if epoch < held.epoch:
                raise StaleWriter(f"epoch {epoch} was followed by {held.epoch}: another run writes now")
            if epoch > held.epoch:
                held = self._hold(shard, epoch)  # this process is new, or another one gave out the epoch
            if number <= held.last.get(client, 0):
                self._repeats += 1  # durable already: only the answer was lost
                return None
            since = time.monotonic()
            assert self._store is not None  # noqa: S101 - `_hold` has opened it
            self._store.apply(changes)
            held.last[client] = number
            self._note(changes, time.monotonic() - since)
        except KgrayError as error:
            if isinstance(error, StaleWriter) and epoch >= held.epoch:
                self._release(shard)  # an older run's batch does not take the store from the newest
            return error
        return None

    @control
    def stats(self) -> dict[str, Any]:
        """Return the epoch of each shard that is held, and how much this process has written."""
        return {
            "pid": os.getpid(),
            "epochs": {str(shard): held.epoch for shard, held in sorted(self._held.items())},
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

    def _hold(self, shard: int, epoch: int | None) -> _Held:
        self._release(shard)
        if self._store is None:
            self._store = self._spec.parts().store
        shards, held = profile_of(self._spec.profile, "the deployment").sequencer.shards, _Held()
        held.epoch = held.until.enter_context(self._store.writing(epoch=epoch, shard=shard, shards=shards))
        self._held[shard] = held
        metrics.gauge("kgray_writer_epoch", held.epoch, shard=shard)
        logs.LOGGER.info("holds shard %d", shard, extra={"epoch": held.epoch})
        return held

    def _release(self, shard: int) -> None:
        self._held.pop(shard, _Held()).until.close()

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
        self, find: Callable[[], Handle], shard: int, *, deadline_s: float, patience_s: float, epoch: int = 0
    ) -> None:
        """find: the actor, again where it was replaced.

        deadline_s: for one call, after which the actor is restarted; patience_s: for one batch.
        """
        self._find, self._shard, self.epoch = find, shard, epoch
        self._handle = find()
        self._deadline_s, self._patience_s = deadline_s, patience_s
        self._client, self._number = secrets.token_hex(8), 0

    async def begin(self) -> RemoteWriter | Exception:
        """Take a new epoch; return the writer of a new run, or why the epoch cannot be taken."""
        found = await self._called("begin", self._shard)
        if isinstance(found, Exception):
            return found
        bounds = {"deadline_s": self._deadline_s, "patience_s": self._patience_s}
        return RemoteWriter(self._find, self._shard, **bounds, epoch=found)

    async def write(self, changes: Sequence[RowChanges]) -> None:
        """Write a batch; durable on return.

        Waits out a writer that restarts and a store that is out of reach, up to the patience (Unavailable);
        StaleWriter, Outrun, NoSpace and StoreError come as the store raises them.
        """
        self._number += 1
        number = self._number
        since, until = time.time(), time.monotonic() + self._patience_s
        delay = _FIRST_DELAY_S
        named = (self._shard, self.epoch, self._client, number)
        while (fault := await self._called("write", *named, changes)) is not None:
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
