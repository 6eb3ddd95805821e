"""The files in which backfill runs keep texts of episodes beside the store, and their removal."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kgray.errors import NoSpace, StoreError

RUNS = "runs"  # the folder of the runs' folders
SORTED = "sorted"  # of a run: its rows sorted by time, until the last one is taken
REPORT = "report.json"  # of a run: with the messages of episodes that failed


def forget_texts(data: Path) -> None:
    """Delete the texts and messages of episodes that runs keep (R25); a run that goes on sorts again."""
    for run in (data / RUNS).glob("*/"):
        with explained(run):
            shutil.rmtree(run / SORTED, ignore_errors=True)
            (run / REPORT).unlink(missing_ok=True)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Raise NoSpace or StoreError, in one line, where a file cannot be written."""
    try:
        yield
    except OSError as error:
        line = f"{path} cannot be written: {error.strerror or error}"
        raise (NoSpace if error.errno in (errno.ENOSPC, errno.EDQUOT) else StoreError)(line) from None
