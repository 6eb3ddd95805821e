"""What `kgray up`, `down` and `status` do for a data folder: a deployment that outlives its command."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kgray import locks
from kgray.errors import SettingsError, Unavailable
from kgray.ports.ingest import OnWait, ignore
from kgray.runtime import session
from kgray.runtime.spec import POOLS, Profile, spec_of
from kgray.settings import Settings

if TYPE_CHECKING:
    from kgray.runtime.deploy import Deployment

LOCK_FILE = "ray.lock"
_PAUSE_S = 0.1


@contextmanager
def one_at_a_time(data: Path, tell: Callable[[str], None]) -> Iterator[None]:
    """Let one `up` or `down` of a folder run at a time; `tell` is called once if it has to wait.

    Otherwise two at once would each start a Ray, and one of the two would run with no note of it.
    """
    if not data.is_dir():  # no Ray is noted in it
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


def up(settings: Settings, data: Path, tell: OnWait = ignore) -> dict[str, Any]:
    """Make sure a deployment runs that outlives this process, in the Ray that is named, noted or started.

    Actors that run with other settings are replaced one by one (`rolling.roll`).
    Returns its address, its job server ("" = none known), whether it was started just now, its actors; by
    name why the start of a worker failed, of those that are quarantined; by name the keys that have changed,
    of the actors that were replaced; the names of those that were ended.
    Raises SettingsError where running actors have a store or versions that cannot be changed, Unavailable
    without a Ray, or where a new actor does not come up.
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
            from kgray.runtime.rolling import roll

            spec = spec_of(settings, data, profile.values())
            chosen = settings.runtime.profile is not None
            rolled = roll(spec, None, chosen=chosen, tell=tell)
            found = ensure(rolled.spec, detached=True, chosen=chosen, tell=tell)
            return {
                "address": joined.address,
                "jobs": "" if head is None else head.jobs,
                "started": found.fresh,
                "actors": list(found.actors),
                "quarantined": dict(found.quarantined),
                "replaced": rolled.replaced,
                "ended": rolled.ended,
            }
    except BaseException:  # an interruption too: what was started for nothing does not stay
        if head is not None and there is None:
            session.end_head(data, head)
        raise


def down(settings: Settings, data: Path, tell: OnWait = ignore) -> dict[str, Any]:
    """Commit what is in flight, end the actors, then the Ray that `up` started; return how many of each."""
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
    (data / session.HEAD_FILE).unlink(missing_ok=True)
    return ended


def scale(settings: Settings, data: Path, shards: int, tell: OnWait = ignore) -> Mapping[str, int]:
    """Change the number of shards of the deployment that runs; return the keys from, to, moved (slots).

    Raises SettingsError where none runs, or one with other settings; Unavailable where an actor is away.
    """
    head = session.read_head(data)
    if head is not None or settings.runtime.address is not None:
        session.require_ray()
        profile = session.profile_for(settings, head)
        with closing(session.open_session(settings, head, profile, tell)):
            from kgray.runtime import rolling
            from kgray.runtime.deploy import joined

            if (there := joined(spec_of(settings, data, {}))) is not None and there.sequencers:
                return rolling.scale(there.spec, shards, tell=tell)
    raise SettingsError(
        f"no deployment runs for {data}: set sequencer.shards = {shards} in its profile, and run kgray up"
    )


def status(settings: Settings, data: Path) -> dict[str, Any]:
    """Return what is running for the folder, as `kgray status --json` shows it; starts nothing."""
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
            actors = found.status()
    except Unavailable as error:
        return shown | {"state": "unreachable", "reason": str(error)}
    for row in actors.values():  # as JSON values
        row.pop("steps", None)
        if fault := row.get("fault"):
            more = {"raw": getattr(fault, "raw", ""), "waited": getattr(fault, "waited", False)}
            row["fault"] = {"kind": type(fault).__name__, "message": str(fault), **more}
    shards = [row for name, row in actors.items() if name.startswith("sequencer-")]  # in their order
    summed = {key: sum(row.get(key, 0) for row in shards) for key in ("window", "in_flight", "lag")}
    epochs = [row.get("epoch") for row in shards]
    workers = {name: row for name, row in actors.items() if name.rpartition("-")[0] in POOLS}
    quarantined = {name: row["fault"]["message"] for name, row in workers.items() if row.get("fault")}
    for row in shards:  # the first one's keeper also knows those whose process ends while it loads the model
        quarantined |= row.pop("quarantined", {})
    return shown | {"state": "up", **summed, "epochs": epochs, "quarantined": quarantined, "actors": actors}


@contextmanager
def _deployed(settings: Settings, data: Path, head: session.Head | None) -> Iterator[Deployment | None]:
    """Join the Ray, and yield the actors that exist there; None where there are none."""
    with closing(session.open_session(settings, head, Profile(), ignore)):
        from kgray.runtime.deploy import find

        yield find(spec_of(settings, data, {}).namespace)
