"""Locks on files, which the kernel frees when their holder dies; folders and files for their owner alone."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import rmtree
from typing import IO, NoReturn

from kgray.errors import Locked, NoSpace, StoreError

INGEST_LOCK = "ingest.lock"
LOCK = "lock"  # of a folder of its own
# The store has private texts: only the owner of its files may read them, under every umask.
OWNER_FOLDER, OWNER_FILE = 0o700, 0o600


def make_folder(folder: Path) -> None:
    """Make a folder for its owner alone; an existing folder keeps its permissions. Raises OSError."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir(mode=OWNER_FOLDER)
        folder.chmod(OWNER_FOLDER)  # the umask may have taken more away
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))


def for_owner(path: str, flags: int) -> int:
    """Open a file, as `opener` of `open`; only the owner can read a new file."""
    return os.open(path, flags | os.O_CLOEXEC, OWNER_FILE)


def sync(path: Path) -> None:
    """Make the content of a file durable, or the names in a folder. Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def explained(path: Path, action: str = "written") -> Iterator[None]:
    """Turn an OSError of the block into NoSpace or StoreError, with one line. action: a past participle."""
    try:
        yield
    except OSError as error:
        line = f"{path} cannot be {action}: {error.strerror or error}"
        raise (NoSpace if error.errno in (errno.ENOSPC, errno.EDQUOT) else StoreError)(line) from None


@contextmanager
def replaced(path: Path) -> Iterator[IO[str]]:
    """Write a text that replaces a file as a whole at the end of the block; durable then. Raises OSError."""
    new = path.with_name(f"{path.name}.new")
    with open(new, "w", encoding="utf-8", opener=for_owner) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


@contextmanager
def held(path: Path, busy: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of a file, which is created where it is missing; its folder must exist.

    busy    called with the holder each time the lock is taken; it raises, or returns to try again

    A second call in the same process finds the lock taken too. The file's content (pid and host) is for
    people only. Raises StoreError where it cannot be opened or locked, NoSpace where the disk is full.
    """
    with explained(path, "opened and locked"):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, OWNER_FILE)
    try:
        while True:
            with explained(path, "opened and locked"), suppress(BlockingIOError):  # some lack locks
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            busy(os.pread(handle, 200, 0).decode(errors="replace").strip() or "another process")
        with suppress(OSError):  # on a full disk the lock still holds; only the name of its holder is missing
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        yield
        with suppress(OSError):
            os.ftruncate(handle, 0)
    finally:
        os.close(handle)


@contextmanager
def ingesting(folder: Path) -> Iterator[None]:
    """Hold a data folder's ingest lock: one process ingests. Raises Locked, naming the holder."""
    with explained(folder, "made"):
        make_folder(folder)  # it may be missing where the store is on a server

    def refuse(holder: str) -> NoReturn:
        raise Locked(
            f"{holder} is ingesting {folder} now; adding and reading go on, "
            f"and what is added is ingested by it"
        )

    with held(folder / INGEST_LOCK, refuse):
        yield


@contextmanager
def staging(folder: Path) -> Iterator[Path]:
    """Hold an empty folder for files that are not complete yet; it is deleted at the end, with all in it.

    Files that a killed process left there are deleted first. Raises Locked, naming the holder, where another
    process uses it; StoreError or NoSpace where it cannot be made.
    """

    def refuse(holder: str) -> NoReturn:
        raise Locked(f"{holder} is writing to {folder} now: run the command when that has ended")

    with explained(folder, "made"):
        make_folder(folder)
    with held(folder / LOCK, refuse):
        try:
            with explained(folder, "emptied"):
                for file in folder.iterdir():
                    if file.is_dir() and not file.is_symlink():
                        rmtree(file)
                    elif file.name != LOCK:
                        file.unlink()
            yield folder
        finally:
            rmtree(folder, ignore_errors=True)
