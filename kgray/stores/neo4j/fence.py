"""The one writer of a shard: a fencing epoch, and a lease that keeps a second process away (R23).

Correctness rests on the epoch: each write first checks it, and the holder's token. The lease only keeps two
processes from taking the shard from each other again and again. Writes and a thread renew it; one that was
not renewed for LEASE_MS may be taken over. Times are by the server's clock.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kgray.errors import KgrayError, Locked, StaleWriter, StoreError
from kgray.ports import shard_of
from kgray.stores.alike import stale
from kgray.stores.neo4j import statements_by_hand as cypher
from kgray.stores.neo4j.connection import Connection, Fetched, Running

LEASE_MS = 10_000
_BEAT_S = 3.0
# Within what process ids are unique: pods may share a host's name.
_IDS = Path("/proc/self/ns/pid")
HERE = f"{socket.gethostname()} {_IDS.readlink() if _IDS.exists() else ''}"


@dataclass(slots=True)
class Held:
    """What this process holds of the map of groups to shards."""

    shards: list[str]  # their ids
    of: int  # how many there are
    epoch: int
    token: str
    renewed: float  # when the lease last was, by this process's clock


@contextmanager
def holding(db: Connection, *, epoch: int | None, shard: int, shards: int | None) -> Iterator[Held]:
    """Hold a shard, or (shards None) every one that there is; see `ports.Store.writing`."""
    token = str(uuid.uuid4())
    held = db.write(lambda running: _take(db, running, epoch=epoch, shard=shard, of=shards, token=token))
    ended = threading.Event()
    beating = threading.Thread(target=_beat, args=(db, held, ended), name="kgray-lease", daemon=True)
    beating.start()
    try:
        yield held
    finally:
        ended.set()
        beating.join()
        with suppress(KgrayError):  # the server is away: the lease expires by itself
            free = partial(db.run, statement=cypher.FREE_SHARDS, shards=held.shards, token=token)
            db.write(free, patient=False)


def check(db: Connection, running: Running, held: Held | None, groups: Iterable[str] = ()) -> None:
    """Lock what is held, of which the groups must be; renew the lease. Raises StaleWriter: roll back then."""
    if held is None:
        raise StaleWriter(
            f"this process does not ingest {db.where}: nothing was changed; it must hold the store to write"
        )
    found = db.run(running, cypher.FENCE, shards=held.shards)
    held.renewed = time.monotonic()
    if found != [[held.epoch, held.token]] * len(held.shards):
        newest = next((row[0] for row in found if row != [held.epoch, held.token]), None)
        raise stale(db.where, newest, held.epoch)
    if strange := {group for group in groups if str(shard_of(group, held.of)) not in held.shards}:
        raise StaleWriter(
            f"group {min(strange)!r} is of another shard of the {held.of} in {db.where}: nothing was changed"
        )


def renew_late(db: Connection, running: Running, held: Held | None) -> None:
    """Renew the lease at the end of a long write: who waits for the lock reads its last renewal."""
    if held is not None and time.monotonic() - held.renewed >= _BEAT_S:
        check(db, running, held)


def _take(
    db: Connection, running: Running, *, epoch: int | None, shard: int, of: int | None, token: str
) -> Held:
    ((there,),) = db.run(running, cypher.LOCK_MAP)
    number = there if of is None else of
    wanted = [str(n) for n in range(number)] if of is None else [str(shard)]
    if number != there:  # the groups are divided anew, where nobody holds a shard of the map that is there
        if epoch is not None:
            raise stale(db.where, f"another one, of {there} shards", epoch)
        rows = db.run(running, cypher.LOCK_SHARDS, shards=[str(n) for n in range(max(there, number))])
        for _, holder, _, _, _, every, _ in _living(rows):
            if every:
                raise Locked(f"{holder} is ingesting {db.where} now; what is added is ingested by it")
            raise StoreError(
                f"the groups in {db.where} are divided among {there} shards, and {holder} serves one; this "
                f"deployment has {number}: set sequencer.shards = {there}, or end the other one (kgray down)"
            )
        db.run(running, cypher.NEW_MAP, shards=number)
    rows = db.run(running, cypher.LOCK_SHARDS, shards=wanted)
    newest = max(row[0] for row in rows)
    held = Held(wanted, number, newest, token, time.monotonic())
    if all(row[2] == token for row in rows):
        return held  # the commit that took it had lost its answer
    if epoch is None:
        if living := _living(rows):
            raise Locked(
                f"{living[0][1]} is ingesting {db.where} now; adding and reading go on, and what is added is "
                f"ingested by it"
            )
        held.epoch = newest + 1
    elif epoch != newest:
        raise stale(db.where, newest, epoch)
    own = {"holder": f"process {os.getpid()} on {socket.gethostname()}", "host": HERE, "pid": os.getpid()}
    db.run(running, cypher.HOLD_SHARDS, shards=wanted, epoch=held.epoch, token=token, every=of is None, **own)
    return held


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


def _beat(db: Connection, held: Held, ended: threading.Event) -> None:
    """Renew the lease until `ended` is set; if that fails, the next write reports why."""
    while not ended.wait(_BEAT_S):
        # Where a write renewed it, renewing would only wait for its lock.
        if time.monotonic() - held.renewed >= _BEAT_S:
            with suppress(KgrayError):  # the next beat tries again
                db.write(lambda running: check(db, running, held), patient=False)
