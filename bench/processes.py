"""The one place where the bench starts processes, ends them, and looks at them from outside."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from kgray.errors import InputError, KgrayError, SettingsError

if TYPE_CHECKING:
    from tests.world import Oracle

MODEL = "world"  # the model's name, as the server knows it
_MB = 1 << 20
_STOP_S = 20.0
_CHECKOUT = str(Path(__file__).resolve().parents[1])


class ChildProcess:
    """`python -m MODULE ...`, started, killed and stopped any number of times with the same arguments."""

    def __init__(
        self,
        module: str,
        words: Sequence[str],
        *,
        environ: Mapping[str, str] | None = None,
        log: Path | None = None,
    ) -> None:
        """environ: all its variables, None = this process's. log: takes its output; None = a pipe."""
        # -P and the checkout: a folder named kgray or bench where the command runs would be taken for ours.
        self._command = [sys.executable, "-P", "-m", module, *words]
        self._environ = dict(os.environ if environ is None else environ)
        path_before = self._environ.get("PYTHONPATH")
        self._environ["PYTHONPATH"] = os.pathsep.join(
            [_CHECKOUT, path_before] if path_before else [_CHECKOUT]
        )
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        """The process's id; 0 while there is none."""
        return self._process.pid if self._process is not None else 0

    def start(self) -> None:
        """Start it."""
        if self._log is None:
            self._process = subprocess.Popen(  # noqa: S603 - our own
                self._command, stdout=subprocess.PIPE, text=True, env=self._environ
            )
            return
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own
                self._command, stdout=log, stderr=log, text=True, env=self._environ
            )

    def running(self) -> bool:
        """Tell whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def use(self, variables: Mapping[str, str]) -> None:
        """Give the next start these variables, besides the others."""
        self._environ.update(variables)

    def ended(self) -> int | None:
        """Return the exit code of a process that has ended by itself; None while it runs."""
        code = None if self._process is None else self._process.poll()
        if code is not None:
            self._process = None
        return code

    def kill(self) -> None:
        """Kill it. Idempotent."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop it by signal, and kill it if that takes too long. Idempotent."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


class ServerProcess(ChildProcess):
    """`python -m bench model-server` at an address that it keeps: after a kill it can be started again."""

    def __init__(self, flags: Sequence[str]) -> None:
        """Choose a free port; `start` starts it with these options."""
        port = free_port()
        super().__init__("bench", ["model-server", "--json", *flags, "--port", str(port)])
        self.base_url = f"http://127.0.0.1:{port}/v1"

    def start(self) -> None:
        """Start it; it answers on return. Raises KgrayError where it does not start."""
        super().start()
        process = self._process
        if process is None or process.stdout is None or not process.stdout.readline():
            raise KgrayError("the model server did not start: what it said is on standard error")

    def stats(self) -> dict[str, Any]:
        """Return its counts."""
        with urllib.request.urlopen(f"{self.base_url}/stats", timeout=10) as answer:  # noqa: S310 - loopback
            stats: dict[str, Any] = json.load(answer)
        return stats

    def __enter__(self) -> Self:
        """Start it."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self.stop()


def flags_of(oracle: Oracle) -> list[str]:
    """Return the options under which a model server knows this world, with these errors."""
    plan, errors = oracle.world.plan, oracle.errors
    names = (
        *("seed", "episodes", "entities", "groups", "alias_rate", "change_rate"),
        *("homonyms", "tickers", "nicknames", "ends", "relations"),
    )
    flags = {
        **{name: getattr(plan, name) for name in names},
        "errors": errors.missed_fact,
        "wrong_answers": errors.wrong_comparison,
        "error_seed": errors.seed,
    }
    return options_of(flags)


def options_of(values: Mapping[str, object]) -> list[str]:
    """Return the options of a command line: alias_rate=0.3 is --alias-rate 0.3."""
    return [word for name, value in values.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def free_port() -> int:
    """Return a port that nobody listens at now."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def kill(pid: int) -> None:
    """Kill a process; a process that has already ended is no error."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


# -------------------------------------------------------------------------- looked at from outside


def require_psutil() -> None:
    """Raise SettingsError where psutil is not installed."""
    try:
        import psutil  # noqa: F401
    except ImportError:
        raise SettingsError("this measurement needs psutil: pip install psutil") from None


def rss_mb(pid: int) -> float | None:
    """Return a process's resident memory without shared pages, or None if the process has ended."""
    import psutil

    try:
        memory = psutil.Process(pid).memory_info()
    except psutil.Error:
        return None
    return float(memory.rss - memory.shared) / _MB


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process so far; 0 where it is gone."""
    import psutil

    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


def descendants(pid: int) -> set[int]:
    """Return all descendants of a process."""
    import psutil

    try:
        return {child.pid for child in psutil.Process(pid).children(recursive=True)}
    except psutil.Error:
        return set()


class CpuByRole:
    """CPU seconds of processes by role, since the creation of this object."""

    def __init__(self, roles: Mapping[str, Iterable[int]]) -> None:
        """Take the processes of each role; a process with several roles counts for the first."""
        counted: set[int] = set()
        self._start: dict[str, dict[int, float]] = {}
        for role, pids in roles.items():
            own_pids = [pid for pid in pids if pid not in counted]
            counted.update(own_pids)
            self._start[role] = {pid: cpu_s(pid) for pid in own_pids}

    def spent(self) -> dict[str, float]:
        """Return the seconds since."""
        return {
            role: round(sum(max(0.0, cpu_s(pid) - start) for pid, start in seconds_by_pid.items()), 3)
            for role, seconds_by_pid in self._start.items()
        }


@contextmanager
def redis_server(folder: Path) -> Iterator[str]:
    """Run a Redis that keeps nothing on the disk; yield its address. Raises InputError without one."""
    command = shutil.which("redis-server")
    if command is None:
        raise InputError("redis-server was not found: install it, or leave the head alone")
    port = free_port()
    with (folder / "redis.log").open("wb") as log:
        server = subprocess.Popen(  # noqa: S603 - its path is known
            [command, "--port", str(port), "--save", "", "--dir", str(folder)], stdout=log, stderr=log
        )
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(_STOP_S)
