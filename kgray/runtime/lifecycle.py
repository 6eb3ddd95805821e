"""What `kgray up`, `down` and `status` do for a data folder: a deployment that outlives its command."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kgray import locks
from kgray.errors import Unavailable
from kgray.ports.ingest import OnWait, silent
from kgray.runtime import session
from kgray.runtime.spec import Profile, spec_of
from kgray.settings import Settings

if TYPE_CHECKING:
    from kgray.runtime.deploy import Deployment

LOCK_FILE = "ray.lock"
_PAUSE_S = 0.1


@contextmanager
def one_at_a_time(data: Path, tell: Callable[[str], None]) -> Iterator[None]:
    """Let one `up` or `down` of a folder run at a time; `tell` is called once if it has to wait.

    Otherwise two at once would each start a Ray, and one of the two would run with no note of it. A data
    folder that does not exist has no Ray noted in it, so nothing is locked.
    """
    if not data.is_dir():
        yield
        return
    told = set[str]()

    def wait(holder: str) -> None:
        if not told:
            tell(f"waiting: {holder} starts or ends the Ray of {data} now")
        told.add(holder)
        time.sleep(_PAUSE_S)

    with locks.held(data / LOCK_FILE, wait):
        yield


def up(settings: Settings, data: Path, tell: OnWait = silent) -> dict[str, Any]:
    """Make sure a deployment runs that outlives this process; idempotent. tell: called at each step.

    Joins the Ray at `runtime.address`, else the one noted for the folder, else starts one.
    Returns {"address", "jobs" (job server; "" = none known), "started" (whether just now), "actors" (names)}.
    Raises SettingsError where running actors have other settings or versions, Unavailable without a Ray.
    """
    session.require_ray()
    there = session.read_head(data)
    profile = session.profile_for(settings, there)
    head = None
    if settings.runtime.address is None:
        head = there or session.start_head(settings, profile, data, tell)
    try:
        if there is None:
            tell("connecting to it, which waits for Ray's own services")
        with closing(session.open_session(settings, head, profile, tell)) as joined:
            from kgray.runtime.deploy import ensure

            spec = spec_of(settings, data, profile.values())
            chosen = settings.runtime.profile is not None
            found = ensure(spec, detached=True, chosen=chosen, tell=tell)
            return {
                "address": joined.address,
                "jobs": "" if head is None else head.jobs,
                "started": found.fresh,
                "actors": list(found.actors),
            }
    except BaseException:  # an interruption too: what was started for nothing does not stay
        if head is not None and there is None:
            session.end_head(data, head)
        raise


def down(settings: Settings, data: Path, tell: OnWait = silent) -> dict[str, Any]:
    """Commit what is in flight, end the actors, then the Ray that `up` started; tell: called at each step.

    Returns how many were ended: {"actors", "processes"}.
    """
    head = session.read_head(data)
    ended = {"actors": 0, "processes": 0}
    if head is not None or settings.runtime.address is not None:
        session.require_ray()
        try:
            with _deployed(settings, data, head) as found:
                if found is not None:
                    tell("committing what is in flight, then ending the actors")
                    ended["actors"] = found.stop(found.spec.cluster.limits.grace_s)
        except Unavailable:
            if head is None:
                raise  # a Ray of ours that does not answer is ended all the same
    if head is not None:
        tell("ending Ray")
        ended["processes"] = session.end_head(data, head)
    session.forget_head(data)
    return ended


def status(settings: Settings, data: Path) -> dict[str, Any]:
    """Return what is running for the folder; starts nothing.

    Only {"backend"} where there is no Ray. With one also "address" and "state" (up | down | unreachable); if
    unreachable, "reason"; if up, "window", "in_flight", "lag", "epochs" (one a shard) and "actors" (each
    actor's stats, by name).
    """
    head = session.read_head(data)
    shown: dict[str, Any] = {"backend": settings.runtime.backend}
    if head is None and settings.runtime.address is None:
        return shown
    session.require_ray()
    shown["address"] = settings.runtime.address or (head.address if head is not None else "")
    try:
        with _deployed(settings, data, head) as found:
            if found is None:
                return shown | {"state": "down"}
            actors = {name: _plain(row) for name, row in found.status().items()}
    except Unavailable as error:
        return shown | {"state": "unreachable", "reason": str(error)}
    shards = [row for name, row in actors.items() if name.startswith("sequencer-")]  # in their order
    summed = {key: sum(row.get(key, 0) for row in shards) for key in ("window", "in_flight")}
    lag = max((row.get("lag", 0) for row in shards), default=0)
    epochs = [row.get("epoch") for row in shards]
    return shown | {"state": "up", **summed, "lag": lag, "epochs": epochs, "actors": actors}


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Return an actor's stats as JSON values, without the steps."""
    shown = {key: value for key, value in row.items() if key != "steps"}
    if error := row.get("fault"):
        more = {"raw": getattr(error, "raw", ""), "waited": getattr(error, "waited", False)}
        shown["fault"] = {"kind": type(error).__name__, "message": str(error), **more}
    return shown


@contextmanager
def _deployed(settings: Settings, data: Path, head: session.Head | None) -> Iterator[Deployment | None]:
    """Join the Ray, and yield the actors that exist there; None where there are none."""
    with closing(session.open_session(settings, head, Profile(), silent)):
        from kgray.runtime.deploy import find

        yield find(spec_of(settings, data, {}).namespace)
