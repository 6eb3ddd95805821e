"""The canonical dump as JSON lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from kgray.graph import dump
from kgray.io.interchange.files import Rows, new_file
from kgray.io.interchange.snapshot import Snapshot


def write(snapshot: Snapshot, path: Path) -> Rows:
    """Write the lines of `kgray dump`."""
    counts = Counter[str]()

    def counted() -> Iterator[dump.DumpRow]:
        for row in snapshot.dumped():
            counts[row["type"]] += 1
            yield row

    with new_file(path) as file:
        file.writelines(f"{line}\n" for line in dump.lines(counted()))
    return dict(sorted(counts.items()))
