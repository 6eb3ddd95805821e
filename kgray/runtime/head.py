"""A Ray that stays up: started for a data folder, found by its later commands, ended by its process ids.

`<data>/ray.json` says where it is. Its processes are a session of their own (setsid), so that they
outlive the command that started them; `down` ends those of that session and no others.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kgray.errors import StoreError, Unavailable
from kgray.runtime import profile as profiles
from kgray.runtime.profile import Profile
from kgray.settings import Settings

FILE = "ray.json"
LOOPBACK = "127.0.0.1"
_START_S = 120.0
_END_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Where a Ray of ours is. started: its ticks since boot, which tell it from a later process of its id."""

    address: str
    jobs: str  # the address that takes submitted jobs; "" without a dashboard
    pid: int
    started: int
    token: str
    folder: str
    profile: Mapping[str, Any] = field(default_factory=dict)

    @property
    def alive(self) -> bool:
        """Whether its first process runs."""
        return started_at(self.pid) == self.started


def read(data: Path) -> Head | None:
    """Return the Ray that `kgray up` started for a folder; None where there is none, or it is gone."""
    path = data / FILE
    try:
        head = Head(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise StoreError(
            f"{path} cannot be used ({error}): remove it, and end the Ray it told of by hand"
        ) from None
    return head if head.alive else None


def profile_for(settings: Settings, head: Head | None) -> Profile:
    """Return the profile: as chosen, else that of the Ray that is up, else the laptop's."""
    if head is not None and settings.runtime.profile is None:
        return profiles.profile_of(head.profile, FILE)
    return profiles.chosen(settings)


def write(data: Path, head: Head) -> None:
    """Note where a Ray is."""
    path = data / FILE
    new = path.with_name(FILE + ".new")
    new.write_text(json.dumps(asdict(head), indent=1) + "\n", encoding="utf-8")
    new.replace(path)


def forget(data: Path) -> None:
    """Take the note away; idempotent."""
    (data / FILE).unlink(missing_ok=True)


def start(profile: Profile, environ: Mapping[str, str], folder: Path, data: Path) -> Head:
    """Start `ray start --head` detached, note it in the data folder, and wait until it listens.

    environ: of its processes, with the token and the secrets; folder: its temporary files, a short path.
    Where it does not come up, or the wait is broken off, it is ended and the note goes.
    """
    port, jobs_port = _free_port(), _free_port()
    command = [
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
        f"--dashboard-agent-listen-port={_free_port()}",  # a default port may be another Ray's
        f"--ray-client-server-port={_free_port()}",
        f"--temp-dir={folder}",
        "--disable-usage-stats",
    ]
    with (folder / "head.log").open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 - the `ray` beside this interpreter
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=dict(environ),
            start_new_session=True,
        )
    head = Head(
        address=f"{LOOPBACK}:{port}",
        jobs=f"http://{LOOPBACK}:{jobs_port}" if profile.ray.dashboard else "",
        pid=process.pid,
        started=started_at(process.pid) or 0,
        token=environ["RAY_AUTH_TOKEN_PATH"],
        folder=str(folder),
        profile=profile.values(),
    )
    write(data, head)  # before it is up: a command that is killed now leaves what `down` can end
    try:
        _await(process, port, folder)
    except BaseException:
        end_session(process.pid)
        forget(data)
        raise
    return head


def _await(process: subprocess.Popen[bytes], port: int, folder: Path) -> None:
    until = time.monotonic() + _START_S
    while not _listens(port):
        if process.poll() is not None or time.monotonic() > until:
            said = (folder / "head.log").read_text(errors="replace").strip().splitlines()[-1:]
            raise Unavailable(f"Ray did not start: {' '.join(said)[:300]}", waited=True)
        time.sleep(0.1)


def new_folder() -> Path:
    """Return a new folder for a Ray's files: a socket's path has 107 characters at most, some 60 Ray's."""
    return Path(tempfile.mkdtemp(prefix="kgray-ray-"))


def end(head: Head) -> int:
    """End the processes of a Ray of ours; return how many there were."""
    ended = end_session(head.pid) if head.alive else 0
    shutil.rmtree(head.folder, ignore_errors=True)
    return ended


def end_session(leader: int) -> int:
    """End all processes of a session: asked first, killed after a while. Returns how many there were."""
    members = list(_members(leader))
    with suppress(ProcessLookupError):
        os.kill(leader, signal.SIGTERM)  # Ray's own end: it stops what it started
    until = time.monotonic() + _END_S
    while list(_members(leader)) and time.monotonic() < until:
        _reap(leader)
        time.sleep(0.1)
    for pid in _members(leader):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    _reap(leader)
    return len(members)


def started_at(pid: int) -> int | None:
    """Return when a process started, in ticks since boot; None where there is none, or it is a zombie."""
    row = _stat(pid)
    return None if row is None or row[0] == "Z" else int(row[19])


def _members(session: int) -> Iterator[int]:
    for path in Path("/proc").iterdir():
        if (
            path.name.isdigit()
            and (row := _stat(int(path.name)))
            and int(row[3]) == session
            and row[0] != "Z"
        ):
            yield int(path.name)


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


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex((LOOPBACK, port)) == 0
