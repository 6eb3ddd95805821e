"""A Ray that stays up: started for a data folder, noted in `<data>/ray.json`, ended by its process ids.

`ray start --head --block` starts it in a session of its own (setsid), so that it outlives the command that
started it. `kgray down` ends the processes of that session and no others.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from kgray.errors import StoreError, Unavailable
from kgray.locks import replaced
from kgray.ports.ingest import OnWait, silent
from kgray.runtime import profile as profiles
from kgray.runtime.profile import Profile
from kgray.runtime.spec import export_secrets
from kgray.settings import Settings

FILE = "ray.json"
LOOPBACK = "127.0.0.1"
_START_S = 120.0
_END_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A Ray that kgray started. started: when, in ticks since boot; it tells apart a reused process id."""

    address: str
    jobs: str  # the address that takes submitted jobs; "" without a dashboard
    pid: int
    started: int
    token: str  # the file that holds it
    folder: str
    profile: Mapping[str, Any] = field(default_factory=dict)


# ------------------------------------------------------------------------------------- the note


def read(data: Path) -> Head | None:
    """Return the Ray that `kgray up` started for a folder; None where there is none or it has ended.

    Raises StoreError where the note cannot be read.
    """
    path = data / FILE
    try:
        head = Head(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise StoreError(
            f"{path} cannot be used ({error}): remove it, and end the Ray it told of by hand"
        ) from None
    return head if started_at(head.pid) == head.started else None


def write(data: Path, head: Head) -> None:
    """Write the note, `ray.json`, atomically."""
    with replaced(data / FILE) as file:
        file.write(json.dumps(asdict(head), indent=1) + "\n")


def forget(data: Path) -> None:
    """Remove the note; idempotent."""
    (data / FILE).unlink(missing_ok=True)


def profile_for(settings: Settings, head: Head | None) -> Profile:
    """Return the profile that the settings name, else that of the running Ray, else the laptop's."""
    if head is not None and settings.runtime.profile is None:
        return profiles.profile_of(head.profile, FILE)
    return profiles.load(settings.runtime.profile)


# ------------------------------------------------------------------------------------ its token


def new_folder() -> Path:
    """Return a new temporary folder for a Ray's files.

    Its path is short: a socket's path has at most 107 characters, and Ray adds some 60.
    """
    return Path(tempfile.mkdtemp(prefix="kgray-ray-"))


def new_token(folder: Path) -> Path:
    """Write the token to a file that only its owner can read; return the file.

    All Rays that one process starts have the same token: Ray reads the token once in a process.
    """
    path = folder / "token"
    path.touch(mode=0o600)
    path.write_text(_token())
    return path


@cache
def _token() -> str:
    return secrets.token_hex(32)


def token_environment(path: Path) -> dict[str, str]:
    """Return the environment variables that make Ray's processes require and send a file's token."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(path)}


# -------------------------------------------------------------------------------- start and end


def start(settings: Settings, profile: Profile, data: Path, tell: OnWait = silent) -> Head:
    """Start a Ray that stays, note it in the data folder, and wait until it listens.

    tell: called at each step.
    Its processes get the secrets in their environment. If it does not come up, or the wait is interrupted,
    it is ended and the note removed. Raises Unavailable.
    """
    began = time.monotonic()
    tell("starting a Ray that stays, which takes 15 to 40 s")  # measured on two cores, idle and busy
    folder = new_folder()
    token = new_token(folder)
    environ = {**os.environ, **token_environment(token)}
    environ.pop("RAY_ADDRESS", None)
    export_secrets(settings, environ)
    port, jobs_port = _free_port(), _free_port()
    with (folder / "head.log").open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 - the `ray` beside this interpreter
            _command(profile, folder, port, jobs_port),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environ,
            start_new_session=True,
        )
    head = Head(
        address=f"{LOOPBACK}:{port}",
        jobs=f"http://{LOOPBACK}:{jobs_port}" if profile.ray.dashboard else "",
        pid=process.pid,
        started=started_at(process.pid) or 0,
        token=str(token),
        folder=str(folder),
        profile=profile.values(),
    )
    try:
        write(data, head)  # before it is up: a command that is killed now leaves what `down` can end
        until = time.monotonic() + _START_S
        while not listens(head.address):
            if process.poll() is not None or time.monotonic() > until:
                said = (folder / "head.log").read_text(errors="replace").strip().splitlines()[-1:]
                raise Unavailable(f"Ray did not start: {' '.join(said)[:300]}", waited=True)
            time.sleep(0.1)
    except BaseException:
        end(data, head)
        raise
    tell(f"Ray listens at {head.address} after {time.monotonic() - began:.0f} s")
    return head


def _command(profile: Profile, folder: Path, port: int, jobs_port: int) -> list[str]:
    return [
        str(Path(sys.executable).with_name("ray")),
        "start",
        "--head",
        "--block",
        f"--node-ip-address={LOOPBACK}",
        f"--port={port}",
        f"--num-cpus={profile.ray.cpus}",
        f"--object-store-memory={profile.ray.object_store_mb << 20}",
        f"--include-dashboard={'true' if profile.ray.dashboard else 'false'}",
        f"--dashboard-host={LOOPBACK}",
        f"--dashboard-port={jobs_port}",
        # These two have fixed defaults, which may be another Ray's.
        f"--dashboard-agent-listen-port={_free_port()}",
        f"--ray-client-server-port={_free_port()}",
        f"--temp-dir={folder}",
        "--disable-usage-stats",
    ]


def end(data: Path, head: Head) -> int:
    """End the processes of a Ray of ours, its files and its note; return how many processes there were."""
    ended = _end_session(head.pid) if started_at(head.pid) == head.started else 0
    shutil.rmtree(head.folder, ignore_errors=True)
    forget(data)
    return ended


def listens(address: str, timeout_s: float = 0.5) -> bool:
    """Whether an address, host:port, accepts connections."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout_s):
            return True
    except OSError:
        return False


def started_at(pid: int) -> int | None:
    """Return when a process started, in ticks since boot; None where there is none, or it is a zombie."""
    row = _stat(pid)
    return None if row is None or row[0] == "Z" else int(row[19])


def _end_session(leader: int) -> int:
    """End all processes of a session: SIGTERM first, SIGKILL after 15 s. Returns how many there were."""
    members = _members(leader)
    with suppress(ProcessLookupError):
        os.kill(leader, signal.SIGTERM)  # `ray start --block` then ends what it started
    until = time.monotonic() + _END_S
    while _members(leader) and time.monotonic() < until:
        _reap(leader)
        time.sleep(0.1)
    for pid in _members(leader):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    _reap(leader)
    return len(members)


def _members(session: int) -> list[int]:
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    rows = ((pid, _stat(pid)) for pid in pids)
    return [pid for pid, row in rows if row is not None and int(row[3]) == session and row[0] != "Z"]


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat after the name: state, parent, group, session, ..."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def _reap(pid: int) -> None:
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])
