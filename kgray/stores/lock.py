"""One ingesting process a folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from kgray import locks
from kgray.errors import Locked, StoreError

LOCK_FILE = "ingest.lock"


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold the folder's ingest lock. Raises Locked, naming the holder, where another holds it."""
    path = folder / LOCK_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)  # the store may be a server's
    except OSError as error:
        raise StoreError(f"{folder} cannot be made: {error.strerror}") from None

    def refuse(holder: str) -> NoReturn:
        raise Locked(
            f"{holder} is ingesting {folder} now; adding and reading go on, "
            f"and what is added is ingested by it"
        )

    with locks.held(path, refuse):
        yield
