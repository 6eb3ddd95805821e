"""A Ray to work in: the one that is there, else one of our own for the life of this process.

Nothing is left to a default of Ray's: the address, the size, the temporary folder and who may talk to it
are said. A Ray of our own asks everybody for a token, which stands in a file that only its owner reads (it
listens on the machine's own address, whatever it is told); what was started here, `close` ends.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray

from kgray.errors import SettingsError, Stopped, Unavailable
from kgray.runtime.head import LOOPBACK, Head, new_folder
from kgray.runtime.profile import Profile
from kgray.runtime.terms import hand_over
from kgray.settings import Settings

_QUIET: dict[str, Any] = {"log_to_driver": False, "configure_logging": False, "logging_level": "ERROR"}
_PROBE_S = 2.0
_END_S = 1.0  # one probe may miss a head on a busy machine
_HEAD_RESTART_S = 10.0
# A driver whose Ray has died waits so long at its end for its last notes to arrive; Ray's default is 5000.
_LAST_NOTES = ("RAY_task_events_shutdown_flush_timeout_ms", "500")
_JOB_VARIABLE = "RAY_ADDRESS"  # set by Ray where a submitted job runs


@dataclass(slots=True)
class Session:
    """What ties this process to a Ray.

    owned   it was started here, and ends with `close`; joined: this process connected, `close` disconnects it
    mortal  kgray started it, on this machine: no one starts its head anew
    """

    address: str
    owned: bool
    joined: bool
    mortal: bool = False
    _folder: Path | None = field(default=None)
    _silent_since: float | None = field(default=None)

    @property
    def silent(self) -> bool:
        """Whether its head did not listen when `ended` was asked last."""
        return self._silent_since is not None

    def ended(self) -> bool:
        """Whether it is gone for good: its head has not listened for longer than a new start of it takes."""
        if listens():
            self._silent_since = None
            return False
        now = time.monotonic()
        self._silent_since = self._silent_since or now
        return now - self._silent_since >= (_END_S if self.mortal else _HEAD_RESTART_S)

    def close(self) -> None:
        """Leave; end what was started here. Idempotent."""
        if self.joined and ray.is_initialized():
            ray.shutdown()
        self.joined = False
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def join(address: str, *, token: Path | None = None) -> Session:
    """Join the Ray at an address. token: of one that `kgray up` started; None = as the environment says.

    Raises Unavailable where there is none.
    """
    if ray.is_initialized():
        return Session(address=_here(), owned=False, joined=False)
    if token is not None:
        use_token(token)
    try:
        with _own_signals():
            _hush()
            ray.init(address=address, **_QUIET)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        first = str(error).strip().splitlines() or [type(error).__name__]
        raise Unavailable(f"no Ray answers at {address}: {first[0][:200]}", waited=True) from None
    return Session(address=address, owned=False, joined=True, mortal=token is not None)


def start(settings: Settings, profile: Profile) -> Session:
    """Start a Ray that lives as long as this process, or join the one this process is in already."""
    if ray.is_initialized():
        return Session(address=_here(), owned=False, joined=False)
    folder = new_folder()
    use_token(new_token(folder))
    hand_over(settings, os.environ)  # its processes inherit them; they are in no argument
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        with _own_signals():
            _hush()
            ray.init(
                address="local",
                num_cpus=profile.ray.cpus,
                object_store_memory=profile.ray.object_store_mb << 20,
                include_dashboard=False,
                _node_ip_address=LOOPBACK,
                _temp_dir=str(folder),
                **_QUIET,
            )
    except (ConnectionError, RuntimeError, ValueError, TimeoutError, OSError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        first = str(error).strip().splitlines() or [type(error).__name__]
        raise Unavailable(f"no local Ray could be started: {first[0][:200]}", waited=True) from None
    return Session(_here(), owned=True, joined=True, mortal=True, _folder=folder)


def open_session(settings: Settings, head: Head | None, profile: Profile) -> Session:
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
    return join(in_job) if in_job else start(settings, profile)


def listens() -> bool:
    """Whether the head of this process's Ray is there. Asked without Ray, which would wait, and end us."""
    if not ray.is_initialized():
        return False
    host, _, port = _here().rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _PROBE_S):
            return True
    except OSError:
        return False


def new_token(folder: Path) -> Path:
    """Write a token that only the file's owner can read."""
    path = folder / "token"
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(handle, secrets.token_hex(32).encode())
    finally:
        os.close(handle)
    return path


def token_environment(path: Path) -> dict[str, str]:
    """Return the variables by which Ray's processes ask for, and show, this token."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(path)}


def use_token(path: Path) -> None:
    """Have this process show this token; Ray has read its environment already, and is told to look again."""
    os.environ.update(token_environment(path))
    os.environ.setdefault(*_LAST_NOTES)
    inside: Any = ray._raylet  # noqa: SLF001 - where Ray keeps what it read
    inside.Config.initialize("")
    inside.AuthenticationTokenLoader.instance().reset_cache()


def _hush() -> None:
    """Have Ray print nothing here: of a process that died it tells on standard output, amid our document."""
    inside: Any = ray._private.worker  # noqa: SLF001 - `log_to_driver` does not cover it
    inside._worker_logs_enabled = False  # noqa: SLF001


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep this process's handlers: Ray puts its own in their place, and a run would not end in order."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    except SystemExit:  # Ray's handler: the signal came while it was in place
        raise Stopped("stopped while Ray was started; what was accepted is safe, run it again") from None
    finally:
        for number, handler in before.items():
            if handler not in (None, signal.SIG_DFL):
                signal.signal(number, handler)  # also where it looks the same: Ray's other one is no Python


def _here() -> str:
    context: Any = ray.get_runtime_context()
    return str(context.gcs_address)
