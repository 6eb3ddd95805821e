"""Work beside the event loop: short reads of a store, and what takes seconds on one group.

A thread shares the interpreter's lock with the loop, and each call into SQLite gives the lock away. So while
anything long goes on, short reads go to threads too: in the loop each would wait for the lock many times.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from kgray.derivation.stored import garbage_not_collected
from kgray.ports import Store

_T = TypeVar("_T")

# Two groups at a time: more would take as much processor time and more memory.
_THREADS = ThreadPoolExecutor(2, thread_name_prefix="kgray-group")
_LONG: dict[object, float] = {}  # what goes on; how long threads kept the lock before
_PROBE_S = 0.02
_SWITCH_S = 0.001  # how long a thread keeps the lock that the loop asks for, at most


async def off_the_loop(store: Store, call: Callable[[], _T], *, much: bool = False) -> _T:
    """Return what a call to the store returns; in a thread where the loop would wait for it.

    much: it reads so much that the loop would notice
    600 episodes of 3 facts, Neo4j on the same two cores: 30 to 36 a second, 7 without the thread.
    """
    return await asyncio.to_thread(call) if store.remote or much or _LONG else call()


async def at_length(call: Callable[[], _T]) -> _T:
    """Return what a call returns that may take seconds; the loop goes on meanwhile."""
    # Kept in whole microseconds, rounded down: without the half it would shrink with each call.
    this, usual = object(), max(_LONG.values(), default=sys.getswitchinterval() + 5e-7)
    _LONG[this] = usual
    sys.setswitchinterval(min(_SWITCH_S, usual))
    try:
        with garbage_not_collected():
            return await asyncio.get_running_loop().run_in_executor(_THREADS, call)
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


def unawaited(call: Callable[[], None]) -> None:
    """Run a call that may take seconds, and that nobody waits for, in a thread."""
    _THREADS.submit(call)
