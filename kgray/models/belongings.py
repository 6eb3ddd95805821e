"""Cleanup of an engine: ends its processes and removes its shared memory.

It runs after a stop, a failed start, or a kill of the engine's owner.

vLLM removes its files itself, but not if it must kill processes or is killed. So files that appear while an
engine starts are noted in a record, locked as long as this process or a fork of it lives. The next start of
an engine on the node removes the files of dead processes. A guard ends the processes.

The guard is a small process. vLLM's core does not notice the death of the process that started it: after a
kill, for want of memory for example, it keeps the card's memory for ever. The guard reads a pipe that only
the owner writes, so it also notices a SIGKILL. It is in a session of its own, so that a kill of the owner's
group leaves it alive.
"""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import IO
from uuid import uuid4

from kgray.system.locks import for_owner

GRACE_S = 10.0  # time for the processes to end by themselves before they are killed
# Reads lines "pid start-time" until its input ends; the start time tells a later process of the same number
# apart. The topmost processes get SIGTERM, upon which vLLM's core ends its workers. After the grace
# time all that still run, the topmost included, get SIGKILL.
_GUARD = """
import os, signal, sys, time

def stat(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []

def remaining():
    stats = {pid: stat(pid) for pid in noted}
    return {pid: row[1] for pid, row in stats.items() if row and row[0] not in "ZX" and row[19] == noted[pid]}

def send(pids, number):
    for pid in pids:
        try:
            os.kill(int(pid), number)
        except OSError:
            pass

noted = dict(line.split() for line in sys.stdin)
parents = remaining()
send([pid for pid, parent in parents.items() if parent not in parents], signal.SIGTERM)
deadline = time.monotonic() + float(sys.argv[1])
while parents and time.monotonic() < deadline:
    time.sleep(0.1)
    parents = remaining()
send(parents, signal.SIGKILL)
"""


class Guard:
    """Ends the noted processes when this process dies, or when `close` is called."""

    def __init__(self, grace_s: float = GRACE_S) -> None:
        self._grace_s = grace_s
        self._noted = set[str]()
        command = [sys.executable, "-I", "-S", "-c", _GUARD, str(grace_s)]
        self._process = subprocess.Popen(  # noqa: S603 - its program is above
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,  # else it would keep the owner's open
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def note(self, pids: Iterable[str]) -> None:
        """Note processes, by their numbers; those that are noted already are left out."""
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
        for pid in {*pids} - self._noted - {str(self._process.pid)}:
            with suppress(OSError):  # it has ended, or the guard was killed
                start = Path("/proc", pid, "stat").read_text(errors="replace").rpartition(")")[2].split()[19]
                self._process.stdin.write(f"{pid} {start}\n")
                self._process.stdin.flush()
                self._noted.add(pid)

    def close(self) -> None:
        """End the noted processes that still run, within the grace time, and the guard."""
        with suppress(OSError, subprocess.TimeoutExpired):
            self._process.communicate(timeout=self._grace_s + 5)


_SHARED = Path("/dev/shm")  # noqa: S108 - the system's folder; every user can write there
RECORDS = _SHARED / f"kgray-engines-{os.getuid()}"
_MEMORY = r"(?:psm_|sem\.(?:mp|loky)-)[\w-]+"  # names of Python's segments and semaphores, and of joblib's


class Belongings:
    """The processes and the shared memory of an engine of this process."""

    def __init__(self) -> None:
        self._record: IO[str] | None = None
        self._guard: Guard | None = None

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Note new descendants of this process, and new memory that they map, while the block runs.

        If the block fails, they are ended, and unused memory is removed. Raises OSError if no record can be
        written, PermissionError if another user may have made the folder of the records.
        """
        with ExitStack() as failed:
            with _cleared() as header:
                record = open(RECORDS / uuid4().hex, "x", encoding="utf-8", opener=for_owner)  # noqa: SIM115
                self._record = record
                failed.callback(self.end)
                fcntl.flock(record, fcntl.LOCK_EX)
                record.write(header)
                record.flush()
            guard = self._guard = Guard()
            known_paths, earlier, ended = {*_SHARED.iterdir()}, _descendants(), Event()

            def watch_start() -> None:
                last = False
                while not last:
                    last = ended.wait(0.2)
                    processes = _descendants() - earlier
                    guard.note(processes)
                    mapped = _mapped(processes)
                    for path in {*_SHARED.iterdir()} - known_paths:
                        # It is gone; or the disk is full: the next look writes the line.
                        with suppress(OSError):
                            inode = path.lstat().st_ino
                            if inode in mapped and re.fullmatch(_MEMORY, path.name, re.ASCII):
                                known_paths.add(path)
                                record.write(f"{path.name} {inode}\n")
                    with suppress(OSError):
                        record.flush()

            watcher = Thread(target=watch_start, daemon=True)
            watcher.start()
            try:
                yield
            finally:
                ended.set()
                watcher.join()
            failed.pop_all()

    def end(self) -> None:
        """End remaining processes, and remove unmapped memory; the next start removes the rest."""
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.close()
        record, self._record = self._record, None
        if record is not None:
            with suppress(OSError):
                record.flush()
                _settle(Path(record.name))
            with suppress(OSError):  # on a full disk what is not yet written
                record.close()


@contextmanager
def _cleared() -> Iterator[str]:
    """Remove the memory of engines whose process has died, under a lock for the block.

    Yield the first line of a record: the namespace of processes. A record of another namespace stays: its
    processes cannot be seen from here.
    """
    with suppress(FileExistsError):
        RECORDS.mkdir(0o700)
    status = RECORDS.lstat()  # not the target of a link
    if (status.st_mode, status.st_uid) != (0o040700, os.getuid()):
        raise PermissionError(f"{RECORDS} is no folder of this user alone (mode 700): it must be removed")
    header = f"in {Path('/proc/self/ns/pid').readlink()}\n"
    with open(RECORDS / "lock", "a", encoding="utf-8", opener=for_owner) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for path in RECORDS.glob("[0-9a-f]" * 32):
            with suppress(OSError), path.open(encoding="utf-8", errors="replace") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # OSError: its process lives
                if file.readline() == header:
                    _settle(path)
        yield header


def _settle(path: Path) -> None:
    """Remove a record's unmapped memory, identified by inode, and the record with the last of it."""
    mapped = _mapped(path.name for path in Path("/proc").glob("[0-9]*"))
    noted = re.findall(rf"^({_MEMORY}) (\d+)\n", path.read_text(errors="replace"), re.ASCII | re.MULTILINE)
    for name, inode in noted:
        with suppress(OSError):
            if int(inode) not in mapped and (_SHARED / name).lstat().st_ino == int(inode):
                (_SHARED / name).unlink()
    if mapped.isdisjoint(int(inode) for _, inode in noted):
        path.unlink()


def _mapped(processes: Iterable[str]) -> set[int]:
    """Return the inodes of the shared memory that this user's processes have mapped.

    Not the names: the creator of a semaphore has mapped it under another name.
    """
    inodes: set[int] = set()
    for number in processes:
        with suppress(OSError):
            maps = Path("/proc", number, "maps").read_text(errors="replace")
            inodes |= set(map(int, re.findall(rf"^(?:\S+ ){{4}}(\d+) +{_SHARED}/", maps, re.MULTILINE)))
    return inodes


def _descendants() -> set[str]:
    """Return the numbers of all descendants of this process."""
    parents, numbers = {}, {str(os.getpid())}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[stat.parent.name] = stat.read_text(errors="replace").rpartition(")")[2].split()[1]
    while children := {number for number, parent in parents.items() if parent in numbers} - numbers:
        numbers |= children
    return numbers - {str(os.getpid())}
