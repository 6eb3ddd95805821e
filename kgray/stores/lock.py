"""One ingesting process a folder: a lock that the kernel frees when its holder dies."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kgray.errors import Locked, StoreError

LOCK_FILE = "ingest.lock"


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold the folder's ingest lock. Raises Locked, naming the holder, where another holds it.

    flock belongs to the open file: a second call in the same process is refused too, and a killed
    holder's lock is free at once. The file's content (pid and host) is for people only.
    """
    path = folder / LOCK_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)  # the store may be a server's
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StoreError(f"{path} cannot be opened for writing: {error.strerror}") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(handle, 200, 0).decode(errors="replace").strip() or "another process"
            raise Locked(
                f"{holder} is ingesting {folder} now; adding and reading go on, "
                f"and what is added is ingested by it"
            ) from None
        os.ftruncate(handle, 0)
        with suppress(OSError):  # a full disk: the lock holds, only its holder stays without a name
            os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        yield
        os.ftruncate(handle, 0)
    finally:
        os.close(handle)
