"""The right to write to slots: their epochs, and a lease on each shard against a second process (R23).

Correctness rests on the epochs of slots, which each write locks and checks (`kgray.storage.transactions`).
The lease, stored in the graph node KgrayShard, only prevents that two processes repeatedly take the shard
from each other. A thread renews it, not the writes: so these do not lock that node, and writes of different
slots run in parallel. A process without an epoch may take a lease that was not renewed for LEASE_MS by the
server's clock, or whose process on this host has ended. A process that states the newest epoch takes it at
once.
"""

from __future__ import annotations

import os
import socket
import threading
import uuid
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import starmap
from pathlib import Path
from typing import NamedTuple

from kgray.errors import KgrayError, Locked, StoreError
from kgray.storage.neo4j import statements_by_hand as cypher
from kgray.storage.neo4j.connection import Connection, Fetched, Running
from kgray.storage.transactions import (
    SLOTS,
    WriterLock,
    check_empty,
    check_move,
    check_moved,
    check_shard,
    check_slots,
    slots_of,
    stale,
)

LEASE_MS = 10_000
BEAT_S = 3.0
# A process id is unique only within a PID namespace, and pods may share a host name: so HOST has both.
_PID_NAMESPACE = Path("/proc/self/ns/pid")
HOST = f"{socket.gethostname()} {_PID_NAMESPACE.readlink() if _PID_NAMESPACE.exists() else ''}"


@contextmanager
def holding(db: Connection, *, epoch: int | None, shard: int, shards: int | None) -> Iterator[WriterLock]:
    """Lock the slots of a shard, or (shards=None) of all shards, for a writer; see `ports.Store.writing`."""
    token = str(uuid.uuid4())
    lock = db.write(lambda running: _take(db, running, epoch=epoch, shard=shard, count=shards, token=token))
    ended = threading.Event()
    beating = threading.Thread(target=_beat, args=(db, lock, ended), name="kgray-lease", daemon=True)
    beating.start()
    try:
        yield lock
    finally:
        ended.set()
        beating.join()
        with suppress(KgrayError):  # the server does not answer: the lease expires
            free = partial(db.run, statement=cypher.FREE_SHARDS, shards=list(lock.shards), token=token)
            db.write(free, patient=False)


def check(
    db: Connection, running: Running, lock: WriterLock | None, groups: Iterable[str], epoch: int | None = None
) -> None:
    """Lock the slots of the groups. Raises StaleWriter, for a rollback, if the lock lacks a slot."""
    rows = db.run(running, cypher.LOCK_SLOTS, slots=slots_of(groups))
    check_locked(db, rows, lock, groups, epoch)


def check_locked(
    db: Connection, rows: Iterable[Fetched], lock: WriterLock | None, groups: Iterable[str], epoch: int | None
) -> None:
    """Raise StaleWriter unless the lock has the slots of the groups. rows: the result of LOCK_SLOTS."""
    check_slots(db.location, [] if lock is None else [lock], groups, rows, epoch=epoch)


def set_shards(db: Connection, shards: int) -> None:
    """Add or drop shards without slots; see `ports.Store.set_shards`."""

    def replace_map(running: Running) -> None:
        _locked_map(db, running)
        ((remaining,),) = db.run(running, cypher.SLOTS_BEYOND, shards=shards)
        check_empty(db.location, shards, remaining)
        ((epoch,),) = db.run(running, cypher.NEW_EPOCH)
        db.run(running, cypher.END_MOVES_BEYOND, shards=shards)
        db.run(running, cypher.SET_SHARDS, shards=shards, epoch=epoch)

    db.write(replace_map)


@contextmanager
def moving(db: Connection, moved_slots: Collection[int], shard: int) -> Iterator[None]:
    """Move slots to a shard at the end of the block; see `ports.Store.moving`."""
    chosen, epochs = sorted(set(moved_slots)), list[int]()

    def mark(running: Running) -> None:
        number = _locked_map(db, running)
        check_move(db.location, chosen, shard, number)
        db.run(running, cypher.LOCK_SHARDS, shards=[shard])
        db.run(running, cypher.MARK_SLOTS, slots=chosen, shard=shard)

    def hand_over(running: Running) -> None:
        ((epoch,),) = db.run(running, cypher.NEW_EPOCH)
        rows = db.run(running, cypher.LOCK_SLOTS, slots=chosen)
        if epochs and all(row[1:3] == [shard, epochs[-1]] for row in rows):
            return  # an earlier try committed, but its answer was lost
        epochs.append(epoch)
        moved = db.run(running, cypher.MOVE_SLOTS, slots=chosen, shard=shard, epoch=epoch)
        check_moved(db.location, chosen, moved)
        db.run(running, cypher.NOTE_WAITING_IN, slots=chosen)

    db.write(mark)
    try:
        yield
        db.write(hand_over)
    except BaseException:
        unmark = partial(db.run, statement=cypher.UNMARK_SLOTS, slots=chosen, shard=shard)
        with suppress(KgrayError):  # no answer: the next writer of their shard ends the move
            db.write(unmark, patient=False)
        raise


def _take(
    db: Connection, running: Running, *, epoch: int | None, shard: int, count: int | None, token: str
) -> WriterLock:
    """Take the leases and slots of a shard, or (count=None) of all shards, in a transaction.

    It may run again after a lost answer: then the shards already have the token.
    """
    stored = _locked_map(db, running)
    number = count or stored
    check_shard(db.location, shard, number)
    shards = list(range(number)) if count is None else [shard]
    ((new_epoch,),) = db.run(running, cypher.NEW_EPOCH)
    if number != stored:  # divide the groups again, unless a process holds a shard of the stored map
        if epoch is not None:
            raise stale(db.location, f"another one, of {stored} shards", epoch)
        for lease in _living(_locked_leases(db, running, range(max(stored, number)))):
            if lease.every:
                raise Locked(
                    f"{lease.holder} is ingesting {db.location} now; what is added is ingested by it"
                )
            raise StoreError(
                f"the groups in {db.location} are divided among {stored} shards, and {lease.holder} serves "
                f"one; this deployment has {number}: set sequencer.shards = {stored}, or end the other one "
                f"(kgray down)"
            )
        db.run(running, cypher.DIVIDE_SLOTS, last=SLOTS - 1, shards=number, epoch=new_epoch)
    leases = _locked_leases(db, running, shards)
    newest = max(lease.epoch for lease in leases)
    lock = WriterLock(shards=shards, epoch=newest, token=token)
    if not all(
        lease.token == token for lease in leases
    ):  # else an earlier try committed, but its answer was lost
        if epoch is None:
            if living := _living(leases):
                raise Locked(
                    f"{living[0].holder} is ingesting {db.location} now; adding and reading go on, and what "
                    f"is added is ingested by it"
                )
            lock.epoch = new_epoch
        elif epoch != newest:
            raise stale(db.location, newest, epoch)
        holder = f"process {os.getpid()} on {socket.gethostname()}"
        parameters = {"holder": holder, "host": HOST, "pid": os.getpid(), "every": count is None}
        parameters |= {"shards": shards, "epoch": lock.epoch, "token": token}
        db.run(running, cypher.HOLD_SHARDS, **parameters)
        # A restarted writer keeps the lock's epoch. The slots' new epoch fails the former process's writes.
        db.run(running, cypher.TAKE_SLOTS, shards=shards, epoch=new_epoch)
    rows = db.run(running, cypher.SLOTS_OF, shards=shards)
    lock.slots.update((slot, slot_epoch) for slot, slot_epoch in rows)
    return lock


def _locked_map(db: Connection, running: Running) -> int:
    """Lock the map of slots to shards, and create it if it is incomplete; return the number of shards."""
    ((shards, rows),) = db.run(running, cypher.LOCK_MAP)
    if rows != SLOTS:
        db.run(running, cypher.DIVIDE_SLOTS, last=SLOTS - 1, shards=shards, epoch=0)
    return int(shards)


class _Lease(NamedTuple):
    """The lease of a shard, as LOCK_SHARDS returns it. every: its holder has all shards."""

    epoch: int
    holder: str | None
    token: str | None
    host: str | None
    pid: int | None
    every: bool
    age_ms: int  # since it was renewed, by the server's clock


def _locked_leases(db: Connection, running: Running, shards: Iterable[int]) -> list[_Lease]:
    """Lock the nodes of shards, creating missing ones, and return their leases."""
    return list(starmap(_Lease, db.run(running, cypher.LOCK_SHARDS, shards=list(shards))))


def _living(leases: Iterable[_Lease]) -> list[_Lease]:
    """Return the leases that are valid, and whose holder may be alive."""
    return [
        lease
        for lease in leases
        if lease.holder is not None and lease.age_ms < LEASE_MS and _may_live(lease.host, lease.pid)
    ]


def _may_live(host: str | None, pid: int | None) -> bool:
    """Return False if the process is known to have ended: only a process of this host is checked."""
    try:
        if host == HOST and pid is not None:
            os.kill(pid, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True


def _beat(db: Connection, lock: WriterLock, ended: threading.Event) -> None:
    """Renew the leases until `ended` is set; if one was lost, the next write raises StaleWriter."""
    renew = partial(db.run, statement=cypher.RENEW_SHARDS, shards=list(lock.shards), token=lock.token)
    while not ended.wait(BEAT_S):
        with suppress(KgrayError):  # the next beat tries again
            db.write(renew, patient=False)
