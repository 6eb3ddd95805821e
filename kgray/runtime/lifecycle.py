"""The commands `kgray up`, `down`, `scale` and `status`: a deployment that outlives its command."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kgray.errors import SettingsError, Unavailable
from kgray.ports.ingest import OnWait, ignore
from kgray.runtime import session
from kgray.runtime.spec import POOLS, Profile, spec_of
from kgray.settings import Settings
from kgray.system import locks

if TYPE_CHECKING:
    from kgray.runtime.deploy import Deployment

LOCK_FILE = "ray.lock"
_PAUSE_S = 0.1


@contextmanager
def one_at_a_time(data: Path, tell: Callable[[str], None]) -> Iterator[None]:
    """Let one `up`, `down` or `scale` of a folder run at a time; `tell` is called once if it has to wait.

    Otherwise two commands at once would each start a Ray, and the folder would note only the second Ray.
    """
    if not data.is_dir():  # without a folder there is no file `ray.json`, so no Ray can be running for it
        yield
        return
    holders = set[str]()

    def wait(holder: str) -> None:
        if not holders:
            tell(f"waiting: {holder} starts, changes or ends the Ray of {data} now")
        holders.add(holder)
        time.sleep(_PAUSE_S)

    with locks.held(data / LOCK_FILE, wait):
        yield


def up(settings: Settings, data: Path, tell: OnWait = ignore) -> dict[str, Any]:
    """Make sure that a detached deployment runs.

    It runs in the Ray at `runtime.address`, else in the Ray that `ray.json` of the folder names, else in a
    new Ray.

    Actors that run with other settings are replaced one by one (`rolling.roll`). Returns:

        address, jobs     of Ray, and of its job server; "" = unknown
        started, actors   whether the deployment is new; the names of its actors
        quarantined       worker -> the reason that its start failed
        replaced, ended   replaced actor -> its changed keys; names of ended actors

    Raises SettingsError if running actors have a store or versions that cannot be changed, Unavailable
    without a Ray, or if a new actor does not come up.
    """
    session.require_ray()
    noted_head = session.read_head(data)
    profile = session.profile_for(settings, noted_head)
    head = None
    if settings.runtime.address is None:
        head = noted_head or session.start_head(settings, profile, data, tell)
    try:
        if noted_head is None:
            tell("connecting to it, which waits for Ray's own services")
        with closing(session.open_session(settings, head, profile, tell)) as joined:
            from kgray.runtime.deploy import ensure
            from kgray.runtime.rolling import roll

            spec = spec_of(settings, data, profile.values())
            chosen = settings.runtime.profile is not None
            rolled = roll(spec, None, chosen=chosen, tell=tell)
            deployment = ensure(rolled.spec, detached=True, chosen=chosen, tell=tell)
            return {
                "address": joined.address,
                "jobs": "" if head is None else head.jobs,
                "started": deployment.fresh,
                "actors": list(deployment.actors),
                "quarantined": dict(deployment.quarantined),
                "replaced": rolled.replaced,
                "ended": rolled.ended,
            }
    except BaseException:  # interruptions included: end the Ray that was started for nothing
        if head is not None and noted_head is None:
            session.end_head(data, head)
        raise


def down(settings: Settings, data: Path, tell: OnWait = ignore) -> dict[str, Any]:
    """Commit the episodes in flight, end the actors, then end the Ray that `up` started.

    Returns the numbers of ended actors and of ended processes of Ray.
    """
    head = session.read_head(data)
    ended = {"actors": 0, "processes": 0}
    if head is not None or settings.runtime.address is not None:
        session.require_ray()
        try:
            with _deployed(settings, data, head) as deployment:
                if deployment is not None:
                    tell("committing what is in flight, then ending the actors")
                    ended["actors"] = deployment.stop(deployment.spec.cluster.limits.grace_s)
        except Unavailable:
            if head is None:
                raise  # a Ray of ours that does not answer is ended below
    if head is not None:
        tell("ending Ray")
        ended["processes"] = session.end_head(data, head)
    (data / session.HEAD_FILE).unlink(missing_ok=True)
    return ended


def scale(settings: Settings, data: Path, shards: int, tell: OnWait = ignore) -> Mapping[str, int]:
    """Change the number of shards of the running deployment; return the keys from, to, moved (slots).

    Raises SettingsError if none runs, or if it has other settings; Unavailable if an actor is away.
    """
    head = session.read_head(data)
    if head is not None or settings.runtime.address is not None:
        session.require_ray()
        profile = session.profile_for(settings, head)
        with closing(session.open_session(settings, head, profile, tell)):
            from kgray.runtime import rolling
            from kgray.runtime.deploy import joined

            if (deployment := joined(spec_of(settings, data, {}))) is not None and deployment.sequencers:
                return rolling.scale(deployment.spec, shards, tell=tell)
    raise SettingsError(
        f"no deployment runs for {data}: set sequencer.shards = {shards} in its profile, and run kgray up"
    )


def status(settings: Settings, data: Path) -> dict[str, Any]:
    """Return the state of the folder's deployment, as `kgray status --json` prints it; starts nothing."""
    head = session.read_head(data)
    report: dict[str, Any] = {"backend": settings.runtime.backend}
    if head is None and settings.runtime.address is None:
        return report
    session.require_ray()
    report["address"] = settings.runtime.address or (head.address if head is not None else "")
    try:
        with _deployed(settings, data, head) as deployment:
            if deployment is None:
                return report | {"state": "down"}
            actors = deployment.status()
    except Unavailable as error:
        return report | {"state": "unreachable", "reason": str(error)}
    for row in actors.values():  # as JSON values
        row.pop("steps", None)
        if fault := row.get("fault"):
            details = {"raw": getattr(fault, "raw", ""), "waited": getattr(fault, "waited", False)}
            row["fault"] = {"kind": type(fault).__name__, "message": str(fault), **details}
    shards = [row for name, row in actors.items() if name.startswith("sequencer-")]  # in their order
    summed = {key: sum(row.get(key, 0) for row in shards) for key in ("window", "in_flight", "lag")}
    epochs = [row.get("epoch") for row in shards]
    workers = {name: row for name, row in actors.items() if name.rpartition("-")[0] in POOLS}
    quarantined = {name: row["fault"]["message"] for name, row in workers.items() if row.get("fault")}
    for row in shards:  # the first keeper also knows workers whose process ends while it loads the model
        quarantined |= row.pop("quarantined", {})
    return report | {"state": "up", **summed, "epochs": epochs, "quarantined": quarantined, "actors": actors}


@contextmanager
def _deployed(settings: Settings, data: Path, head: session.Head | None) -> Iterator[Deployment | None]:
    """Join the Ray, and yield the store's actors; None if none exist."""
    with closing(session.open_session(settings, head, Profile(), ignore)):
        from kgray.runtime.deploy import find

        yield find(spec_of(settings, data, {}).namespace)
