"""What comes with an engine beside its memory: processes, and files in the system's shared memory.

vLLM ends the processes and removes the files itself, unless it has to kill processes, or is killed. So
both are noted while an engine starts, in a record beside the files, locked as long as this process lives.
Who starts an engine on the node next, removes what a process that has died without an end has left.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Event, Lock, Thread
from typing import IO
from uuid import uuid4

from kgray.locks import for_owner

_SHARED = Path("/dev/shm")  # noqa: S108 - where the system keeps it; every user can write there
_RECORDS = _SHARED / f"kgray-engines-{os.getuid()}"
_MEMORY = r"(?:psm_|sem\.(?:mp|loky)-)[\w-]+"  # names of Python's segments and semaphores, and of joblib's
_RECORD = re.compile(rf"in pid:\[\d+]\n(?:process \d+ \d+\n|segment {_MEMORY} \d{{1,20}}\n)*", re.ASCII)
# vLLM's processes name themselves so (vllm/utils/system_utils.py); the system keeps 15 bytes of a name.
_NAME = f"{os.environ.get('VLLM_PROCESS_NAME_PREFIX', 'VLLM')}::"[:15]
_LOOK_S = 0.2  # between two looks at what the processes of an engine that starts have mapped
_KILLED_S = 60.0  # for a killed process to be gone: what it has mapped, on a card too, stays until then
_OWN: set[Path] = set()  # records of this process; their locks do not keep itself out
_THREAD = Lock()  # nor does the lock of the folder


class Belongings:
    """What came with one engine of this process."""

    def __init__(self) -> None:
        """Note nothing yet."""
        self._lines: set[str] = set()
        self._path = _RECORDS / uuid4().hex
        self._file: IO[str] | None = None

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Note vLLM's new processes below this one, what they start, and the new memory that they map.

        A block that fails leaves nothing of both that has ended. Raises OSError where no record can be kept,
        PermissionError where another user may have made the folder of the records.
        """
        with ExitStack() as failed:
            with _cleared() as first:
                self._file = open(self._path, "x", encoding="utf-8", opener=for_owner)  # noqa: SIM115
                _OWN.add(self._path)
                failed.callback(self.end)
                fcntl.lockf(self._file, fcntl.LOCK_EX)  # of this process alone: its children do not have it
                self._note({first})
            known, before, ended = _of_vllm(), {*_SHARED.iterdir()}, Event()

            def look() -> None:
                last = False
                while not last:
                    last = ended.wait(_LOOK_S)
                    new = _of_vllm() - known
                    mapped = _mapped(line.split()[1] for line in new)
                    for path in {*_SHARED.iterdir()} - before:
                        with suppress(OSError):  # it may be gone
                            inode = path.lstat().st_ino
                            if inode in mapped and re.fullmatch(_MEMORY, path.name, re.ASCII):
                                new.add(f"segment {path.name} {inode}")
                    with suppress(OSError):  # the disk is full: the next look tries again
                        self._note(new)

            looking = Thread(target=look, daemon=True)
            looking.start()
            try:
                yield
            finally:
                ended.set()
                looking.join()
            failed.pop_all()

    def end(self) -> None:
        """Remove the memory that no process has mapped any more: what had to be killed has left it.

        The record of a process that lives on stays, and the next start kills it.
        """
        if self._file is not None:
            with suppress(OSError):
                _settle(self._path, self._lines, 0.0)
            with suppress(OSError):  # on a full disk what is not yet written
                self._file.close()
            _OWN.discard(self._path)
            self._file = None

    def _note(self, lines: set[str]) -> None:
        """Write what is not yet noted. Raises OSError; what it could not write, the next call writes."""
        assert self._file is not None  # noqa: S101 - `noting` has opened it
        self._file.write("".join(f"{line}\n" for line in sorted(lines - self._lines)))
        self._lines |= lines
        self._file.flush()


@contextmanager
def _cleared() -> Iterator[str]:
    """Remove what engines whose process has died have left; nobody else does so in the block.

    Yield the first line of a record: the namespace in which numbers of processes mean something. A record of
    another namespace stays, as its processes cannot be seen from here, and so does what is no record.
    """
    with suppress(FileExistsError):
        _RECORDS.mkdir(0o700)
    found = _RECORDS.lstat()  # not what a link leads to
    if (found.st_mode, found.st_uid) != (0o040700, os.getuid()):
        raise PermissionError(f"{_RECORDS} is no folder of this user alone (mode 700): it must be removed")
    first = f"in {Path('/proc/self/ns/pid').readlink()}"
    with _THREAD, open(_RECORDS / "lock", "a", encoding="utf-8", opener=for_owner) as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        for path in {path for path in _RECORDS.iterdir() if re.fullmatch("[0-9a-f]{32}", path.name)} - _OWN:
            with (
                suppress(OSError),
                os.fdopen(os.open(path, os.O_RDWR | os.O_NOFOLLOW), errors="replace") as file,
            ):
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # OSError: its process lives
                text = "".join(line for line in file if line.endswith("\n"))  # killed within its last line
                if _RECORD.fullmatch(text) and text.startswith(f"{first}\n"):
                    _settle(path, {*text.splitlines()}, _KILLED_S)
        yield first


def _settle(record: Path, lines: set[str], kill_s: float) -> None:
    """Remove a record's memory that nobody has mapped, and the record, unless one of its processes lives.

    A process, killed for up to `kill_s` seconds, is known again by number and start; memory by its inode.
    """
    until = time.monotonic() + kill_s
    while (alive := lines & {line for *_, line in _processes().values()}) and time.monotonic() < until:
        for line in alive:
            with suppress(OSError):
                os.kill(int(line.split()[1]), signal.SIGKILL)
        time.sleep(0.05)
    mapped = _mapped(path.name for path in Path("/proc").glob("[0-9]*"))
    for _, name, inode in (line.split() for line in lines if line.startswith("segment ")):
        with suppress(OSError):
            if int(inode) not in mapped and (_SHARED / name).lstat().st_ino == int(inode):
                (_SHARED / name).unlink()
    if not alive:
        record.unlink()


def _mapped(processes: Iterable[str]) -> set[int]:
    """Return the inodes of the shared memory that processes have mapped; none of those of other users.

    Not the names: who has made a semaphore has mapped it under another one.
    """
    found: set[int] = set()
    for number in processes:
        with suppress(OSError):
            maps = Path("/proc", number, "maps").read_text(errors="replace")
            found |= set(map(int, re.findall(rf"^(?:\S+ ){{4}}(\d+) +{_SHARED}/", maps, re.MULTILINE)))
    return found


def _processes() -> dict[int, tuple[int, str, str]]:
    """Return the processes that have not ended: number -> its parent's, its name, its line of a record."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            name, _, rest = (process / "stat").read_text(errors="replace").rpartition(")")
            state, parent, *more = rest.split()
            if state not in "ZX":
                line = f"process {process.name} {more[17]}"
                found[int(process.name)] = int(parent), name.partition("(")[2], line
    return found


def _of_vllm() -> set[str]:
    """Return the lines of vLLM's processes below this one, and of what those have started."""
    there, below = _processes(), {os.getpid(): False}
    while more := {
        pid: below[parent] or name.startswith(_NAME)
        for pid, (parent, name, _) in there.items()
        if parent in below and pid not in below
    }:
        below |= more
    return {there[pid][2] for pid, of_vllm in below.items() if of_vllm}
