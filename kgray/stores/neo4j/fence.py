"""Who writes to slots: their epochs, and a lease on each shard that keeps a second process away (R23).

Correctness rests on the epochs of slots, which each write locks and checks (`kgray.stores.slots`). The
lease, in the node of the shard, only keeps two processes from taking the shard from each other again and
again. A thread renews it: no write touches that node, so writes of different slots go on side by side. A
lease that was not renewed for LEASE_MS may be taken over. Times are by the server's clock.
"""

from __future__ import annotations

import os
import socket
import threading
import uuid
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from kgray.errors import KgrayError, Locked, StoreError
from kgray.ports import SLOTS
from kgray.stores import slots
from kgray.stores.alike import stale
from kgray.stores.neo4j import statements_by_hand as cypher
from kgray.stores.neo4j.connection import Connection, Fetched, Running
from kgray.stores.slots import Hold

LEASE_MS = 10_000
_BEAT_S = 3.0
# Within what process ids are unique: pods may share a host's name.
_IDS = Path("/proc/self/ns/pid")
HERE = f"{socket.gethostname()} {_IDS.readlink() if _IDS.exists() else ''}"


@contextmanager
def holding(db: Connection, *, epoch: int | None, shard: int, shards: int | None) -> Iterator[Hold]:
    """Hold the slots of a shard, or (shards None) of every one that there is; see `ports.Store.writing`."""
    token = str(uuid.uuid4())
    hold = db.write(lambda running: _take(db, running, epoch=epoch, shard=shard, of=shards, token=token))
    ended = threading.Event()
    beating = threading.Thread(target=_beat, args=(db, hold, ended), name="kgray-lease", daemon=True)
    beating.start()
    try:
        yield hold
    finally:
        ended.set()
        beating.join()
        with suppress(KgrayError):  # the server is away: the lease expires by itself
            free = partial(db.run, statement=cypher.FREE_SHARDS, shards=list(hold.shards), token=token)
            db.write(free, patient=False)


def check(
    db: Connection, running: Running, hold: Hold | None, groups: Iterable[str], epoch: int | None = None
) -> None:
    """Lock the slots of the groups, which must be held. Raises StaleWriter: roll back then."""
    rows = db.run(running, cypher.LOCK_SLOTS, slots=slots.slots_of(groups))
    check_locked(db, rows, hold, groups, epoch)


def check_locked(
    db: Connection, rows: Iterable[Fetched], hold: Hold | None, groups: Iterable[str], epoch: int | None
) -> None:
    """Raise StaleWriter unless the hold has the slots of the groups. rows: these slots, as LOCK_SLOTS."""
    slots.check(db.where, [] if hold is None else [hold], groups, rows, epoch=epoch)


def set_shards(db: Connection, shards: int) -> None:
    """Add or drop shards without slots; see `ports.Store.set_shards`."""

    def set_them(running: Running) -> None:
        _locked_map(db, running)
        ((left,),) = db.run(running, cypher.SLOTS_BEYOND, shards=shards)
        slots.check_empty(db.where, shards, left)
        ((epoch,),) = db.run(running, cypher.NEW_EPOCH)
        db.run(running, cypher.END_MOVES_BEYOND, shards=shards)
        db.run(running, cypher.SET_SHARDS, shards=shards, epoch=epoch)

    db.write(set_them)


@contextmanager
def moving(db: Connection, asked: Collection[int], shard: int) -> Iterator[None]:
    """Hand slots over to a shard; see `ports.Store.moving`."""
    chosen, given = sorted(set(asked)), list[int]()

    def mark(running: Running) -> None:
        number = _locked_map(db, running)
        slots.check_move(db.where, chosen, shard, number)
        db.run(running, cypher.LOCK_SHARDS, shards=[shard])
        db.run(running, cypher.MARK_SLOTS, slots=chosen, shard=shard)

    def hand_over(running: Running) -> None:
        ((epoch,),) = db.run(running, cypher.NEW_EPOCH)
        rows = db.run(running, cypher.LOCK_SLOTS, slots=chosen)
        if given and all(row[1:3] == [shard, given[-1]] for row in rows):
            return  # the answer to its commit was lost
        given.append(epoch)
        moved = db.run(running, cypher.MOVE_SLOTS, slots=chosen, shard=shard, epoch=epoch)
        slots.check_moved(db.where, chosen, moved)
        db.run(running, cypher.NOTE_WAITING_IN, slots=chosen)

    db.write(mark)
    try:
        yield
        db.write(hand_over)
    except BaseException:
        unmark = partial(db.run, statement=cypher.UNMARK_SLOTS, slots=chosen, shard=shard)
        with suppress(KgrayError):  # the server is away: who takes their shard ends the move
            db.write(unmark, patient=False)
        raise


def _take(
    db: Connection, running: Running, *, epoch: int | None, shard: int, of: int | None, token: str
) -> Hold:
    there = _locked_map(db, running)
    number = of or there
    slots.check_shard(db.where, shard, number)
    wanted = list(range(number)) if of is None else [shard]
    ((newest_of_all,),) = db.run(running, cypher.NEW_EPOCH)
    if number != there:  # the groups are divided anew, where nobody holds a shard of the map that is there
        if epoch is not None:
            raise stale(db.where, f"another one, of {there} shards", epoch)
        rows = db.run(running, cypher.LOCK_SHARDS, shards=list(range(max(there, number))))
        for _, holder, _, _, _, every, _ in _living(rows):
            if every:
                raise Locked(f"{holder} is ingesting {db.where} now; what is added is ingested by it")
            raise StoreError(
                f"the groups in {db.where} are divided among {there} shards, and {holder} serves one; this "
                f"deployment has {number}: set sequencer.shards = {there}, or end the other one (kgray down)"
            )
        db.run(running, cypher.DIVIDE_SLOTS, last=SLOTS - 1, shards=number, epoch=newest_of_all)
    rows = db.run(running, cypher.LOCK_SHARDS, shards=wanted)
    newest = max(row[0] for row in rows)
    hold = Hold(shards=wanted, epoch=newest, token=token)
    if not all(row[2] == token for row in rows):  # else the commit that took it had lost its answer
        if epoch is None:
            if living := _living(rows):
                raise Locked(
                    f"{living[0][1]} is ingesting {db.where} now; adding and reading go on, and what is "
                    f"added is ingested by it"
                )
            hold.epoch = newest_of_all
        elif epoch != newest:
            raise stale(db.where, newest, epoch)
        own = {"holder": f"process {os.getpid()} on {socket.gethostname()}", "host": HERE, "pid": os.getpid()}
        mine = own | {"shards": wanted, "epoch": hold.epoch, "token": token, "every": of is None}
        db.run(running, cypher.HOLD_SHARDS, **mine)
        db.run(running, cypher.TAKE_SLOTS, shards=wanted, epoch=newest_of_all)
    hold.slots.update((slot, own) for slot, own in db.run(running, cypher.SLOTS_OF, shards=wanted))
    return hold


def _locked_map(db: Connection, running: Running) -> int:
    """Lock the map of slots to shards, which is made where it is not whole; return the number of shards."""
    ((there, rows),) = db.run(running, cypher.LOCK_MAP)
    if rows != SLOTS:
        db.run(running, cypher.DIVIDE_SLOTS, last=SLOTS - 1, shards=there, epoch=0)
    return int(there)


def _living(rows: Iterable[Fetched]) -> list[Fetched]:
    return [row for row in rows if row[1] is not None and row[6] < LEASE_MS and _may_live(row[3], row[4])]


def _may_live(host: str | None, pid: int | None) -> bool:
    """Whether the holder may be alive; False only for a process of this host that has ended."""
    try:
        if host == HERE and pid is not None:
            os.kill(pid, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True


def _beat(db: Connection, hold: Hold, ended: threading.Event) -> None:
    """Renew the lease until `ended` is set; if it was lost, the next write reports it."""
    renew = partial(db.run, statement=cypher.RENEW_SHARDS, shards=list(hold.shards), token=hold.token)
    while not ended.wait(_BEAT_S):
        with suppress(KgrayError):  # the next beat tries again
            db.write(renew, patient=False)
