"""Notice that this process's node is about to end: `ray drain-node`, SIGTERM to a node, a spot preemption.

Ray sends an actor nothing: it restarts the actor on another node once the process has ended, and kills the
processes that are left when the node ends. So each actor looks by itself, ends its work, and ends early.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import ray

from kgray.runtime import telemetry

# Each look calls Ray's head: 100 actors call it 20 times a second. A drain of 30 s leaves 25 s or more.
_LOOK_S = 5.0
# The time for a notice without a deadline: Ray's own wait (RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S).
_USUAL_S = 30.0
# Work is given back this long before the deadline: answers must reach other nodes.
MARGIN_S = 3.0


def drain_notice() -> float | None:
    """Return the time of this node's end, in seconds of the epoch (0.0: unknown); None: it stays.

    Ray 2.60 has no public call for it; Ray Train uses this private call. If the call is missing, no notice is
    seen, and the end of a node is like its death.
    """
    try:
        from ray._private.state import state

        ends_ms = state.get_draining_nodes().get(ray.get_runtime_context().get_node_id())
    except Exception:  # noqa: BLE001 - of a private call; also while Ray's head is away
        return None
    return None if ends_ms is None else ends_ms / 1000


def when_draining(leave: Callable[[float], None]) -> None:
    """Look, in a thread, whether the node ends; if so, call `leave` with the seconds for it, and end.

    Does nothing in a process that is no actor.
    """
    if ray.is_initialized() and ray.get_runtime_context().get_actor_id() is not None:
        threading.Thread(target=_watch, args=(leave,), name="kgray-drain", daemon=True).start()


def _watch(leave: Callable[[float], None]) -> None:
    while (ends_at := drain_notice()) is None:
        time.sleep(_LOOK_S)
    left_s = max(0.0, ends_at - time.time() if ends_at else _USUAL_S)
    telemetry.LOGGER.warning("its node ends in %.0f s: it leaves", left_s)
    try:
        leave(max(0.0, left_s - MARGIN_S))
    finally:
        os._exit(1)  # Ray starts it again elsewhere; a proper exit would be the actor's end
