"""What comes with an engine beside its memory: processes, and segments in the system's shared memory.

vLLM ends the processes and removes the segments itself, unless it has to kill processes, or is killed. So
both are noted while an engine starts, in a record beside the segments, locked as long as this process lives.
Who starts an engine on the node next, removes what a process that has died without an end has left.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import IO
from uuid import uuid4

from kgray.locks import for_owner, make_folder

_SHARED = Path("/dev/shm")  # noqa: S108 - where the system keeps it; vLLM's queues are segments of Python's kind
_RECORDS = _SHARED / f"kgray-engines-{os.getuid()}"
_LOOK_S = 0.2  # between two looks at what the processes of an engine that starts have mapped
_KILLED_S = 60.0  # for a killed process to be gone: what it has mapped, on a card too, stays until then
_OWN: set[Path] = set()  # records of this process; their locks do not keep itself out


class Belongings:
    """What came with one engine of this process."""

    def __init__(self) -> None:
        """Note nothing yet."""
        self._lines: set[str] = set()
        self._path = _RECORDS / uuid4().hex
        self._file: IO[str] | None = None

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Note the new processes below this one, and the new segments that they map, in the block.

        What else appears meanwhile may also be another program's. A block that fails leaves nothing of both
        that has ended. Raises OSError where no record can be kept.
        """
        _clear_after_the_dead()
        self._file = open(self._path, "w", encoding="utf-8", opener=for_owner)  # noqa: SIM115 - until `end`
        _OWN.add(self._path)
        fcntl.lockf(self._file, fcntl.LOCK_EX)  # of this process alone: its children do not have it
        self._note([f"in {_namespace()}"])
        known, before, ended = _below(), set(_SHARED.glob("psm_*")), Event()

        def look() -> None:
            last = False
            while not last:
                last = ended.wait(_LOOK_S)
                processes = _below() - known
                self._note(processes)
                maps = (_mapped(Path("/proc", line.split()[1])) for line in processes)
                for path in set[Path]().union(*maps) - before:
                    with suppress(OSError):  # it may be gone
                        self._note([f"segment {path.name} {path.stat().st_ino}"])

        looking = Thread(target=look, daemon=True)
        looking.start()
        well = False
        try:
            yield
            well = True
        finally:
            ended.set()
            looking.join()
            if not well:
                self.end()

    def end(self) -> None:
        """Remove the segments that no process has mapped any more: what had to be killed has left them."""
        if self._file is not None:
            _free(self._lines)
            with suppress(OSError):
                self._path.unlink()
            self._file.close()
            _OWN.discard(self._path)
            self._file = None

    def _note(self, lines: Iterable[str]) -> None:
        assert self._file is not None  # noqa: S101 - `noting` has opened it
        new = {*lines} - self._lines
        self._lines |= new
        self._file.write("".join(f"{line}\n" for line in sorted(new)))
        self._file.flush()


def _clear_after_the_dead() -> None:
    """Kill the processes, and remove the segments, of engines whose process has died.

    A process is known again by its number and its start, within its namespace; a segment by its inode.
    """
    make_folder(_RECORDS)
    if _RECORDS.stat().st_uid != os.getuid():
        raise PermissionError(errno.EPERM, "another user's", str(_RECORDS))
    for record in set(_RECORDS.iterdir()) - _OWN:
        with suppress(OSError), record.open("r+", encoding="utf-8") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # OSError: its process lives
            lines = {line.rstrip("\n") for line in file if line.endswith("\n")}
            if not lines:
                continue  # it is being made
            ours = f"in {_namespace()}" in lines
            left = {line for line in lines if ours and line.startswith("process ")}
            until = time.monotonic() + _KILLED_S
            while (
                alive := left & {known for _, known in _processes().values()}
            ) and time.monotonic() < until:
                for line in alive:
                    with suppress(OSError):
                        os.kill(int(line.split()[1]), signal.SIGKILL)
                time.sleep(0.05)
            if not alive:
                _free(lines)
                record.unlink()


def _free(lines: Iterable[str]) -> None:
    """Remove the segments of a record that are the same still, and that no process has mapped."""
    noted = {line for line in lines if line.startswith("segment ")}
    mapped = set[Path]().union(*map(_mapped, Path("/proc").glob("[0-9]*"))) if noted else set()
    for _, name, inode in map(str.split, noted):
        with suppress(OSError):
            if (_SHARED / name) not in mapped and (_SHARED / name).stat().st_ino == int(inode):
                (_SHARED / name).unlink()


def _mapped(process: Path) -> set[Path]:
    """Return the segments that a process has mapped."""
    try:
        lines = (process / "maps").read_text().splitlines()
    except OSError:  # it has ended, or is another user's
        return set()
    return {Path(line[line.index("/") :]) for line in lines if f"{_SHARED}/psm_" in line}


def _namespace() -> str:
    """Return the name of the space in which numbers of processes mean something."""
    return str(Path("/proc/self/ns/pid").readlink())


def _processes() -> dict[int, tuple[int, str]]:
    """Return the processes that have not ended: number -> its parent's, and its line of a record."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            state, parent, *rest = (process / "stat").read_text().rpartition(")")[2].split()
            if state not in "ZX":
                found[int(process.name)] = int(parent), f"process {process.name} {rest[17]}"
    return found


def _below() -> set[str]:
    """Return the lines of the processes below this one."""
    there = _processes()
    below = {os.getpid()}
    while more := {pid for pid, (parent, _) in there.items() if parent in below} - below:
        below |= more
    return {there[pid][1] for pid in below - {os.getpid()}}
