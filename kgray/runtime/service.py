"""A deployment that stays up, for a data folder: what `up`, `down` and `status` do."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kgray.errors import Unavailable
from kgray.runtime import head as heads
from kgray.runtime.ingest import require_ray
from kgray.runtime.outcomes import Fault
from kgray.runtime.profile import Profile
from kgray.runtime.terms import Terms, hand_over, terms_of
from kgray.settings import Settings

if TYPE_CHECKING:
    from kgray.runtime.session import Session


def up(settings: Settings, data: Path) -> dict[str, Any]:
    """Have a deployment up that outlives this process; return where it is, and its actors.

    Joins the Ray at `runtime.address`, else the one that is up for the folder, else starts one. Run again it
    changes nothing. Raises SettingsError where other settings or versions are up, Unavailable without a Ray.
    """
    require_ray()
    from kgray.runtime.deploy import ensure

    there = heads.read(data)
    profile = heads.profile_for(settings, there)
    head = None if settings.runtime.address is not None else there or _start(settings, data, profile)
    try:
        with _joined(settings, head) as session:
            terms = terms_of(settings, data, profile.values())
            found = ensure(terms, detached=True, chosen=settings.runtime.profile is not None)
            return {
                "address": session.address,
                "jobs": "" if head is None else head.jobs,
                "started": found.fresh,
                "actors": [name for name, _ in found.all()],
            }
    except BaseException:  # an interruption too: what was started for nothing does not stay
        if head is not None and there is None:
            _end(data, head)
        raise


def down(settings: Settings, data: Path) -> dict[str, Any]:
    """Commit what is in flight, end the actors, then the Ray that `up` started; return how many they were."""
    head = heads.read(data)
    ended = {"actors": 0, "processes": 0}
    if head is not None or settings.runtime.address is not None:
        require_ray()
        from kgray.runtime.deploy import find

        try:
            with _joined(settings, head) as _:
                found = find(_terms(settings, data, head).namespace())
                if found is not None:
                    ended["actors"] = found.stop(found.terms.profile["limits"]["grace_s"])
        except Unavailable:
            if head is None:
                raise  # a Ray of ours that does not answer is ended all the same
    if head is not None:
        ended["processes"] = heads.end(head)
    heads.forget(data)
    return ended


def status(settings: Settings, data: Path) -> dict[str, Any]:
    """Return what is up for the folder; it starts nothing.

    {"backend"} alone where nothing is; else "address", "state" (up | down | unreachable), "window",
    "in_flight", "lag", "epochs" (one a shard), "actors" (what each tells, by name).
    """
    head = heads.read(data)
    told: dict[str, Any] = {"backend": settings.runtime.backend}
    if head is None and settings.runtime.address is None:
        return told
    require_ray()
    from kgray.runtime.deploy import find

    told["address"] = settings.runtime.address or (head.address if head is not None else "")
    try:
        with _joined(settings, head) as _:
            found = find(_terms(settings, data, head).namespace())
            if found is None:
                return told | {"state": "down"}
            actors = {name: _plain(row) for name, row in found.status().items()}
    except Unavailable as error:
        return told | {"state": "unreachable", "reason": str(error)}
    shards = [row for name, row in sorted(actors.items()) if name.startswith("sequencer-")]
    summed = {key: sum(row.get(key, 0) for row in shards) for key in ("window", "in_flight")}
    lag = max((row.get("lag", 0) for row in shards), default=0)
    epochs = [row.get("epoch") for row in shards]
    return told | {"state": "up", **summed, "lag": lag, "epochs": epochs, "actors": actors}


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Return what an actor tells as JSON takes it, without the steps."""
    return {
        key: asdict(value) if isinstance(value, Fault) else value
        for key, value in row.items()
        if key != "steps"
    }


def _terms(settings: Settings, data: Path, head: heads.Head | None) -> Terms:
    return terms_of(settings, data, heads.profile_for(settings, head).values())


def _start(settings: Settings, data: Path, profile: Profile) -> heads.Head:
    from kgray.runtime.session import new_token, token_environment

    folder = heads.new_folder()
    environ = {**os.environ, **token_environment(new_token(folder)), "RAY_USAGE_STATS_ENABLED": "0"}
    environ.pop("RAY_ADDRESS", None)
    hand_over(settings, environ)  # actors find the secrets there, and nowhere else
    try:
        return heads.start(profile, environ, folder, data)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _end(data: Path, head: heads.Head) -> None:
    heads.end(head)
    heads.forget(data)


@contextmanager
def _joined(settings: Settings, head: heads.Head | None) -> Iterator[Session]:
    """Be in the Ray at the settings' address, else in the folder's."""
    from kgray.runtime.session import join

    if settings.runtime.address is not None:
        session = join(settings.runtime.address)
    else:
        assert head is not None  # noqa: S101 - there is an address or a Ray of ours
        session = join(head.address, token=Path(head.token))
    try:
        yield session
    finally:
        session.close()
