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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from kgray.errors import KgrayError, Locked, StaleWriter
from kgray.stores.alike import stale
from kgray.stores.neo4j import statements_by_hand as cypher
from kgray.stores.neo4j.connection import Connection, Running

LEASE_MS = 10_000
_BEAT_S = 3.0


@dataclass(slots=True)
class Held:
    """A shard that this process holds. renewed: when the lease last was, by this process's clock."""

    shard: int
    epoch: int
    token: str
    renewed: float


@contextmanager
def holding(db: Connection, *, epoch: int | None, shard: int) -> Iterator[Held]:
    """Hold a shard within this context.

    epoch   None: take a new one; else adopt that one, at once: a process that held it before is then stale

    Raises Locked, naming the holder, where a living process holds it; StaleWriter where the epoch
    is not the newest.
    """
    token = str(uuid.uuid4())
    taken = db.write(lambda running: _take(db, running, epoch=epoch, shard=shard, token=token))
    held = Held(shard, taken, token, time.monotonic())
    ended = threading.Event()
    beating = threading.Thread(target=_beat, args=(db, held, ended), name="kgray-lease", daemon=True)
    beating.start()
    try:
        yield held
    finally:
        ended.set()
        beating.join()
        with suppress(KgrayError):  # the server is away: the lease expires by itself
            values = {"shard": str(shard), "token": token}
            db.write(lambda running: db.run(running, cypher.FREE_SHARD, **values), patient=False)


def check(db: Connection, running: Running, held: Held | None) -> None:
    """Lock the shard and renew the lease. Raises StaleWriter where another process has it: roll back then."""
    if held is None:
        raise StaleWriter(
            f"this process does not ingest {db.where}: nothing was changed; it must hold the store to write"
        )
    found = db.run(running, cypher.FENCE, shard=str(held.shard))
    held.renewed = time.monotonic()
    if found != [[held.epoch, held.token]]:
        raise stale(db.where, found[0][0] if found else None, held.epoch)


def renew_late(db: Connection, running: Running, held: Held | None) -> None:
    """Renew the lease at the end of a write that took long.

    A process that waits for the shard's lock reads the last renewal once the write has ended. If that were
    the one from its start, a busy holder would look dead.
    """
    if held is not None and time.monotonic() - held.renewed >= _BEAT_S:
        check(db, running, held)


def _take(db: Connection, running: Running, *, epoch: int | None, shard: int, token: str) -> int:
    newest, holder, holding_token, host, pid, age_ms = db.run(running, cypher.LOCK_SHARD, shard=str(shard))[0]
    if holding_token == token:
        return int(newest)  # the commit that took it had lost its answer
    if epoch is None:
        if holder is not None and age_ms < LEASE_MS and _may_live(host, pid):
            raise Locked(
                f"{holder} is ingesting {db.where} now; adding and reading go on, and what is added is "
                f"ingested by it"
            )
        epoch = newest + 1
    elif epoch != newest:
        raise stale(db.where, newest, epoch)
    own = {"holder": f"process {os.getpid()} on {socket.gethostname()}", "host": socket.gethostname()}
    db.run(
        running, cypher.HOLD_SHARD, shard=str(shard), epoch=epoch, token=token, pid=os.getpid(), **own
    )  # fmt: skip
    return epoch


def _may_live(host: str | None, pid: int | None) -> bool:
    """Whether the holder may be alive; False only for a process of this host that has ended."""
    if host != socket.gethostname() or pid is None:
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _beat(db: Connection, held: Held, ended: threading.Event) -> None:
    """Renew the lease until `ended` is set; if that fails, the next write reports why."""

    def renew(running: Running) -> None:
        check(db, running, held)

    while not ended.wait(_BEAT_S):
        if time.monotonic() - held.renewed < _BEAT_S:
            continue  # a write renewed it; renewing during a write would only wait for its lock
        with suppress(KgrayError):
            db.write(renew, patient=False)  # the next beat tries again
