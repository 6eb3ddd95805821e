"""How a process joins a Ray: a running one, or one of its own that lives as long as the process.

A Ray that kgray starts requires a token, which is in a file that only its owner can read. Ray reads the
variables that say so at its import, so a process joins before it imports ray elsewhere.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kgray.errors import SettingsError, Stopped, Unavailable
from kgray.ports.ingest import OnWait, silent
from kgray.runtime.head import Head, listens, new_folder, new_token, token_environment
from kgray.runtime.profile import Profile
from kgray.runtime.spec import export_secrets
from kgray.settings import Settings

_QUIET: dict[str, Any] = {"log_to_driver": False, "configure_logging": False, "logging_level": "ERROR"}
_PROBE_S = 2.0
_END_S = 1.0  # one probe may miss a head on a busy machine
_HEAD_RESTART_S = 45.0  # of one with Redis behind it; after 60 s Ray itself ends this process
_JOB_VARIABLE = "RAY_ADDRESS"  # set by Ray where a submitted job runs


@dataclass(slots=True)
class Session:
    """A process's connection to a Ray.

    joined  the session made the connection, and `close` ends it
    mortal  kgray started the Ray, on this machine: nobody restarts its head
    folder  the files of a Ray that the session started and `close` ends; None = it was running before
    """

    address: str
    joined: bool = False
    mortal: bool = False
    folder: Path | None = None
    silent_since: float | None = None  # since when the head has not listened; None = it did, when last asked

    def ended(self) -> bool:
        """Whether the Ray is gone for good: its head has not listened for longer than a restart takes."""
        if head_listens():
            self.silent_since = None
            return False
        now = time.monotonic()
        self.silent_since = self.silent_since or now
        return now - self.silent_since >= (_END_S if self.mortal else _HEAD_RESTART_S)

    def close(self) -> None:
        """Disconnect; end the Ray if this session started it. Idempotent."""
        import ray

        if self.joined and ray.is_initialized():
            ray.shutdown()
        self.joined = False
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder = None


def require_ray() -> None:
    """Raise SettingsError where Ray is not installed."""
    if find_spec("ray") is None:
        raise SettingsError(
            'runtime.backend = "ray" needs Ray, which is not installed: pip install "kgray[ray]", '
            'or use runtime.backend = "local".'
        )


def join(address: str, *, token: Path | None = None) -> Session:
    """Join the Ray at an address, or stay in the one this process is in already.

    token: of a Ray that `kgray up` started; None = as the environment says. Raises Unavailable where no Ray
    answers.
    """
    if (here := _current()) is not None:
        return Session(here)
    failure = f"no Ray answers at {address}"
    if address.rpartition(":")[2].isdigit() and not listens(address, _PROBE_S):
        raise Unavailable(f"{failure}: nobody listens there", waited=True)  # Ray would try for a minute
    if token is not None:
        use_token(token)
    _init(failure, address=address)
    return Session(address, joined=True, mortal=token is not None)


def start(settings: Settings, profile: Profile, tell: OnWait = silent) -> Session:
    """Start a Ray that lives as long as this process, or stay in the one this process is in already.

    tell: called with a line before it is started, and with one when it is there
    """
    if (here := _current()) is not None:
        return Session(here)
    began = time.monotonic()
    tell("starting a Ray for this command (`kgray up` starts one that stays)")
    folder = new_folder()
    use_token(new_token(folder))
    export_secrets(settings, os.environ)  # its processes inherit them; they are in no argument
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        with _temporary_files(folder):
            _init(
                "no local Ray could be started",
                address="local",
                num_cpus=profile.ray.cpus,
                object_store_memory=profile.ray.object_store_mb << 20,
                include_dashboard=False,
            )
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    tell(f"Ray is up after {time.monotonic() - began:.0f} s")
    return Session(_current() or "", joined=True, mortal=True, folder=folder)


def open_session(settings: Settings, head: Head | None, profile: Profile, tell: OnWait) -> Session:
    """Join the Ray that the settings, the folder's `kgray up` or a submitted job name; else start one."""
    address = settings.runtime.address
    in_job = os.environ.get(_JOB_VARIABLE)
    if address is not None and address.startswith(("http://", "https://")):
        if not in_job:
            raise SettingsError(
                f"runtime.address = {address!r} takes submitted jobs: use `kgray backfill --submit`, "
                f"or give the address of Ray itself, host:port."
            )
        address = in_job
    if address is not None:
        return join(address)
    if head is not None:
        return join(head.address, token=Path(head.token))
    return join(in_job) if in_job else start(settings, profile, tell)


def runs_already(settings: Settings, head: Head | None) -> bool:
    """Whether `open_session` would join a Ray, and start none."""
    return head is not None or settings.runtime.address is not None or _JOB_VARIABLE in os.environ


def head_listens() -> bool:
    """Whether the head of this process's Ray listens.

    Tested by a plain connection: Ray's client would wait for it, and then end this process.
    """
    here = _current()
    return here is not None and listens(here, _PROBE_S)


def use_token(path: Path) -> None:
    """Have this process's Ray client send a file's token; the client reads it once in a process."""
    os.environ.update(token_environment(path))
    if "ray" in sys.modules:  # it has read the mode: without one, `ray.init` takes it from the token's path
        del os.environ["RAY_AUTH_MODE"]


def _init(failure: str, **options: Any) -> None:  # noqa: ANN401 - of `ray.init`
    """Connect this process. Raises Unavailable, whose message begins with `failure`."""
    # Ray reports dead processes on standard output, in the middle of our JSON, whatever log_to_driver says.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
    import ray

    try:
        with _own_signals():
            ray.init(**options, **_QUIET)
    except Stopped:
        raise
    except Exception as error:  # noqa: BLE001 - Ray raises bare ones, too: of a start that took over 30 s
        first = str(error).strip().splitlines() or [type(error).__name__]
        raise Unavailable(f"{failure}: {first[0][:200]}", waited=True) from None


def _current() -> str | None:
    """Return the address of the head of the Ray that this process is in; None = in none."""
    if "ray" not in sys.modules:
        return None
    import ray

    return str(ray.get_runtime_context().gcs_address) if ray.is_initialized() else None


@contextmanager
def _temporary_files(folder: Path) -> Iterator[None]:
    """Within this context, a Ray that is started puts its files into this folder."""
    before = os.environ.get("RAY_TMPDIR")
    os.environ["RAY_TMPDIR"] = str(folder)
    try:
        yield
    finally:
        del os.environ["RAY_TMPDIR"]
        os.environ.update({} if before is None else {"RAY_TMPDIR": before})


@contextmanager
def _own_signals() -> Iterator[None]:
    """Restore this process's signal handlers, which Ray replaces; without them a run would not end in order.

    Raises Stopped for a signal that arrived while Ray's handler was in place.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    except SystemExit:  # raised by Ray's handler: the signal came while it was in place
        raise Stopped("stopped while Ray was started; what was accepted is safe, run it again") from None
    finally:
        for number, handler in before.items():
            if handler not in (None, signal.SIG_DFL):
                signal.signal(number, handler)  # also where it looks the same: Ray's other one is no Python
