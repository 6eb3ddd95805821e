"""A file of a server's answers: a restarted server continues its counts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from kgray.errors import InputError


class RecordedAnswer(NamedTuple):
    """One answer. at: seconds since the epoch, when it was sent; request: the digest of its messages."""

    at: float
    task: str
    request: str
    tokens: int  # of prompt and answer together


def read(path: Path) -> Iterator[RecordedAnswer]:
    """Yield the answers in a record file; an incomplete last line is skipped."""
    with path.open(encoding="ascii") as lines:
        for line in lines:
            with suppress(ValueError):
                at, task, request, tokens = line.removesuffix("\n").split("\t")
                if line.endswith("\n"):
                    yield RecordedAnswer(float(at), task, request, int(tokens))


class ServerRecord:
    """Appends answers to a file, each before it is sent."""

    def __init__(self, path: Path) -> None:
        """Read the recorded answers and append to them. Raises InputError if the file is not writable."""
        try:
            path.touch()
            self.recorded = list(read(path))
            cut = path.stat().st_size and not path.read_bytes().endswith(b"\n")
            self._lines = path.open("a", encoding="ascii", buffering=1)
            if cut:
                self._lines.write("\n")
        except OSError as error:
            raise InputError(f"{path} cannot be written: {error.strerror}") from None

    def note(self, answer: RecordedAnswer) -> None:
        """Append one answer."""
        self._lines.write(f"{answer.at:.6f}\t{answer.task}\t{answer.request}\t{answer.tokens}\n")
