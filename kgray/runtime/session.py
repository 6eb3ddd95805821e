"""Start a Ray that stays up or ends with this process, or join a running Ray.

For a data folder, `ray start --head --block` starts a Ray that stays, in a session of its own (setsid), so
that it outlives the command; `<data>/ray.json` notes it. `kgray down` ends the processes of that session and
no others. A Ray that kgray starts requires a token, which is in a file that only its owner can read, and its
processes listen on loopback only. Ray reads the variables for this at its import, so a process joins before
it imports ray elsewhere.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kgray.errors import SettingsError, Stopped, StoreError, Unavailable
from kgray.ports.ingest import OnWait, ignore
from kgray.runtime.spec import Profile, export_secrets, load_profile, profile_of
from kgray.settings import Settings
from kgray.system.locks import replaced

HEAD_FILE = "ray.json"
LOOPBACK = "127.0.0.1"
# Ray replaces a loopback address by the machine's, and then listens on all of them, unless clusters of
# several machines are switched off with this value, the default on Windows and macOS.
_ONE_MACHINE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
# The tasks of a deployment that stays belong to the job of `kgray up`, which has ended. Ray looks for idle
# processes of ended jobs five times a second and kills them. So nearly each task waited for a new process: a
# deployment committed 6 to 8 episodes a second instead of 38 to 44. A Ray of ours looks every five minutes.
_KEEPS_IDLE = {"RAY_kill_idle_workers_interval_ms": "300000"}
# The address of such a Ray for a process that has imported ray with another value: Ray replaces "localhost"
# in lower case alone.
_UNREPLACED = "LOCALHOST"
_TOKEN = secrets.token_hex(32)  # of all Rays that this process starts: Ray reads it once in a process
_HEAD_START_S = 120.0
_HEAD_END_S = 15.0


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


def read_head(data: Path) -> Head | None:
    """Return the Ray that `kgray up` started for a folder, if it runs. Raises StoreError for a bad note."""
    path = data / HEAD_FILE
    try:
        head = Head(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise StoreError(
            f"{path} cannot be used ({error}): remove it, and end the Ray it told of by hand"
        ) from None
    return head if started_at(head.pid) == head.started else None


def write_head(data: Path, head: Head) -> None:
    """Write the note, `ray.json`, atomically."""
    with replaced(data / HEAD_FILE) as file:
        file.write(json.dumps(asdict(head), indent=1) + "\n")


def profile_for(settings: Settings, head: Head | None) -> Profile:
    """Return the profile that the settings name, else that of the running Ray, else the laptop's."""
    if head is not None and settings.runtime.profile is None:
        return profile_of(head.profile, HEAD_FILE)
    return load_profile(settings.runtime.profile)


def new_token() -> Path:
    """Write the token, for its owner alone, into a new folder for a Ray's files; return the file."""
    # The path is short: sockets take 107 characters, and Ray adds 60.
    path = Path(tempfile.mkdtemp(prefix="kgray-ray-")) / "token"
    path.touch(mode=0o600)
    path.write_text(_TOKEN)
    return path


def token_environment(path: Path) -> dict[str, str]:
    """Return the environment variables that make Ray's processes require and send a file's token."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(path)}


def start_head(settings: Settings, profile: Profile, data: Path, tell: OnWait = ignore) -> Head:
    """Start a Ray that stays, note it in the data folder, and wait until it listens.

    Its processes get the secrets in their environment. If it does not come up, or the wait is interrupted,
    it is ended and the note removed. Raises Unavailable.
    """
    began = time.monotonic()
    tell("starting a Ray that stays, which takes 15 to 40 s")  # measured on two cores, idle and busy
    token = new_token()
    folder, environ = token.parent, {**os.environ, **token_environment(token)} | _ONE_MACHINE | _KEEPS_IDLE
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
        write_head(data, head)  # before it is up, so that `down` can end it after a kill of this command
        deadline = time.monotonic() + _HEAD_START_S
        while not listens(head.address):
            if process.poll() is not None or time.monotonic() > deadline:
                last_line = (folder / "head.log").read_text(errors="replace").strip().splitlines()[-1:]
                raise Unavailable(f"Ray did not start: {' '.join(last_line)[:300]}", waited=True)
            time.sleep(0.1)
    except BaseException:
        end_head(data, head)
        raise
    tell(f"Ray listens at {head.address} after {time.monotonic() - began:.0f} s")
    return head


def _command(profile: Profile, folder: Path, port: int, jobs_port: int) -> list[str]:
    return [
        str(Path(sys.executable).with_name("ray")),
        *("start", "--head", "--block", "--disable-usage-stats"),
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
    ]


def end_head(data: Path, head: Head) -> int:
    """End the processes of a Ray of ours, its files and its note; return the number of its processes."""
    members = running = _members(head.pid) if started_at(head.pid) == head.started else []
    if members:
        with suppress(ProcessLookupError):
            os.kill(head.pid, signal.SIGTERM)  # `ray start --block` then ends what it started
    deadline = time.monotonic() + _HEAD_END_S
    while running and time.monotonic() < deadline:
        time.sleep(0.1)
        running = _members(head.pid)
    for pid in running:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(head.pid, os.WNOHANG)  # if this process has started it
    shutil.rmtree(head.folder, ignore_errors=True)
    (data / HEAD_FILE).unlink(missing_ok=True)
    return len(members)


def listens(address: str, timeout_s: float = 0.5) -> bool:
    """Return True if an address, host:port, accepts connections."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout_s):
            return True
    except OSError:
        return False


def started_at(pid: int) -> int | None:
    """Return the start of a process, in ticks since boot; None if it does not exist, or is a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    row = text.rpartition(")")[2].split()  # after the name: state, parent, group, session, ...
    return None if row[0] == "Z" else int(row[19])


def _members(session: int) -> list[int]:
    pids = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.getsid(pid := int(path.name)) == session and started_at(pid) is not None:
                pids.append(pid)
    return pids


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


_PROBE_S = 2.0
_END_S = 1.0  # one probe may miss a head on a busy machine
_HEAD_RESTART_S = 45.0  # of a head with Redis; after 60 s Ray itself ends this process
_JOB_VARIABLE = "RAY_ADDRESS"  # set by Ray where a submitted job runs


@dataclass(slots=True)
class Session:
    """A process's connection to a Ray."""

    address: str
    joined: bool = False  # the session made the connection, and `close` ends it
    mortal: bool = False  # kgray started the Ray, on this machine: nobody restarts its head
    folder: Path | None = None  # the files of a Ray that `close` ends; None = it was running before
    silent_since: float | None = None  # when the head stopped listening; None = it listened at the last check

    def ended(self) -> bool:
        """Return True if the Ray has ended: its head has not listened for longer than a restart takes."""
        if head_listens():
            self.silent_since = None
            return False
        instant = time.monotonic()
        self.silent_since = self.silent_since or instant
        return instant - self.silent_since >= (_END_S if self.mortal else _HEAD_RESTART_S)

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
    """Raise SettingsError if Ray is not installed."""
    if find_spec("ray") is None:
        raise SettingsError(
            'runtime.backend = "ray" needs Ray, which is not installed: pip install "kgray[ray]", '
            'or use runtime.backend = "local".'
        )


def join(address: str, *, token: Path | None = None) -> Session:
    """Join the Ray at an address, or stay in this process's current Ray. Raises Unavailable.

    token: of a Ray that `kgray up` started; None = use the environment
    """
    if (current := _current()) is not None:
        return Session(current)
    failure = f"no Ray answers at {address}"
    if address.rpartition(":")[2].isdigit() and not listens(address, _PROBE_S):
        raise Unavailable(f"{failure}: nobody listens there", waited=True)  # Ray would try for a minute
    if token is not None:
        use_token(token)
    host, _, port = address.rpartition(":")
    _init(failure, address=f"{_UNREPLACED}:{port}" if host in (LOOPBACK, "localhost") else address)
    return Session(address, joined=True, mortal=token is not None)


def start(
    settings: Settings, profile: Profile, tell: OnWait = ignore, *, takes_jobs: bool = False
) -> Session:
    """Start a Ray that lives as long as this process, or stay in this process's current Ray."""
    if (current := _current()) is not None:
        return Session(current)
    began = time.monotonic()
    tell("starting a Ray for this command (`kgray up` starts one that stays)")
    token = new_token()
    use_token(token)
    export_secrets(settings, os.environ)  # its processes inherit them; they are in no argument
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    folder = token.parent
    # Where its files are; where it listens; how long it keeps idle processes.
    chosen = {"RAY_TMPDIR": str(folder)} | _ONE_MACHINE | _KEEPS_IDLE
    former = {name: os.environ[name] for name in chosen if name in os.environ}
    os.environ.update(chosen)
    try:
        _init(
            "no local Ray could be started",
            address="local",
            num_cpus=profile.ray.cpus,
            object_store_memory=profile.ray.object_store_mb << 20,
            include_dashboard=takes_jobs,
        )
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        for name in chosen:
            del os.environ[name]
        os.environ.update(former)
    current = _current() or ""
    tell(f"Ray is up after {time.monotonic() - began:.0f} s")
    if not current.startswith(LOOPBACK):
        tell(
            f"Ray listens on all addresses ({current}): to have it on {LOOPBACK} alone, import ray after "
            f"kgray"
        )
    return Session(current, joined=True, mortal=True, folder=folder)


def open_session(settings: Settings, head: Head | None, profile: Profile, tell: OnWait) -> Session:
    """Join the Ray that the settings, the folder's `kgray up` or a submitted job name; else start one."""
    address, in_job = settings.runtime.address, os.environ.get(_JOB_VARIABLE)
    if address is not None and address.startswith(("http://", "https://")):
        if not in_job:
            raise SettingsError(
                f"runtime.address = {address!r} takes submitted jobs: use `ray job submit`, "
                f"or give the address of Ray itself, host:port."
            )
        address = in_job
    if address is not None:
        return join(address)
    if head is not None:
        return join(head.address, token=Path(head.token))
    return join(in_job) if in_job else start(settings, profile, tell)


def runs_already(settings: Settings, head: Head | None) -> bool:
    """Return True if `open_session` would join a Ray, and start none."""
    return head is not None or settings.runtime.address is not None or _JOB_VARIABLE in os.environ


def head_listens() -> bool:
    """Return True if the head of this process's Ray listens; without it, Ray's client ends this process."""
    current = _current()
    return current is not None and listens(current, _PROBE_S)


def use_token(path: Path) -> None:
    """Have this process's Ray client send a file's token; the client reads it once in a process."""
    os.environ.update(token_environment(path))
    if "ray" in sys.modules:  # it has read the mode: without one, `ray.init` takes it from the token's path
        del os.environ["RAY_AUTH_MODE"]


def _init(failure: str, **options: Any) -> None:  # noqa: ANN401 - of `ray.init`
    """Connect this process. Raises Unavailable, whose message begins with `failure`, or Stopped.

    Ray replaces the handlers of signals; without this process's own a run would not end in order.
    """
    # Even without log_to_driver, Ray reports dead processes on standard output, in the middle of our JSON.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
    import ray

    numbers = (signal.SIGTERM, signal.SIGINT)
    ours = threading.current_thread() is threading.main_thread()  # no other thread can have a handler
    former = {number: signal.getsignal(number) for number in numbers} if ours else {}
    try:
        ray.init(**options, log_to_driver=False, configure_logging=False, logging_level=logging.ERROR)
    except SystemExit:  # raised by Ray's handler: the signal came while it was in place
        raise Stopped("stopped while Ray was started; what was accepted is safe, run it again") from None
    except Exception as error:  # noqa: BLE001 - Ray raises a bare Exception after 30 s of starting
        first = str(error).strip().splitlines() or [type(error).__name__]
        raise Unavailable(f"{failure}: {first[0][:200]}", waited=True) from None
    finally:
        for number, handler in former.items():
            if handler not in (None, signal.SIG_DFL):
                signal.signal(
                    number, handler
                )  # always: Ray also has a handler outside Python, which getsignal does not show


def _current() -> str | None:
    """Return the address of the head of this process's Ray; None = it is in no Ray."""
    if "ray" not in sys.modules:
        return None
    import ray

    return str(ray.get_runtime_context().gcs_address) if ray.is_initialized() else None
