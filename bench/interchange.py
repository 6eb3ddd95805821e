"""`python -m bench interchange`: rate and memory of exports and imports, as a group grows."""

from __future__ import annotations

import gc
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import kgray
from bench.tables import aligned
from kgray.io.interchange.formats import FORMATS

GROUP = "g"
_LOOK_S = 0.02  # between two looks at the memory
_TRIPLES = 100  # of an episode
_RELATIONS = ("WORKED_WITH", "VISITED", "SUPPLIES", "MENTIONED")
_SETTINGS: dict[str, Any] = {"model_backend": "rules", "embedder_dimensions": 64}
_COLUMNS = [
    ("work", "", ""), ("form", "", ""), ("facts", "facts", ",d"), ("cpu_s", "CPU s", ".1f"),
    ("rate", "facts/CPU s", ",.0f"), ("peak_mb", "peak MB", ".0f"), ("mb", "MB written", ".0f"),
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The cost of a command in a separate process.

    cpu_s    of the process, from the opened store on
    peak_mb  the largest private memory of the process, the interpreter included; pages of the store's file,
             which the system takes back when it needs them, are not counted
    mb       of the files that were written; None: of a command that writes none
    """

    work: str
    form: str
    facts: int
    cpu_s: float
    peak_mb: float
    mb: float | None = None

    @property
    def rate(self) -> float:
        """Facts a second of CPU."""
        return self.facts / max(self.cpu_s, 0.001)


def run(
    sizes: Sequence[int], exports: Sequence[str], imports: Sequence[str], most_imported: int,
    with_past: bool, stores: Path | None, say: Callable[[str], None],
) -> list[Figures]:  # fmt: skip
    """Measure formats on groups of these sizes.

    most_imported   larger groups are exported only
    with_past       export each format, but for parquet, also as known before the last commit
    stores          a folder for the stores, which stay there and are used again; None: they are deleted
    """
    figures = list[Figures]()

    def measure(work: Callable[..., Figures], *args: object) -> None:
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            figure = pool.submit(work, *args).result()
        figures.append(figure)
        say("  ".join(aligned(_COLUMNS, [figure])[1].split()))

    with TemporaryDirectory(dir=stores) as name:
        folder = Path(name)
        for facts in sizes:
            store = (stores or folder) / f"{facts}-facts"
            if not store.exists():
                measure(_grow, store, facts)
            for form in exports:
                if with_past and form != "parquet":
                    measure(_export, store, form, facts, folder / "out", True)
                    _delete(folder / "out")
                measure(_export, store, form, facts, folder / "out", False)
                if form in imports and facts <= most_imported:
                    if form != "parquet":
                        measure(_import, folder / "read", form, facts, folder / "out", True)
                    measure(_import, folder / "imported", form, facts, folder / "out", False)
                    shutil.rmtree(folder / "imported")
                _delete(folder / "out")
    return figures


def table(figures: Sequence[Figures]) -> str:
    """Return the figures for people."""
    return "\n".join(aligned(_COLUMNS, figures))


def _rows(facts: int) -> Iterator[dict[str, Any]]:
    """Yield episodes of triples: each subject has four facts, each object eight on average."""
    for number, start in enumerate(range(0, facts, _TRIPLES)):
        triples = [_triple(place, facts // 8 + 1) for place in range(start, min(start + _TRIPLES, facts))]
        row = {"id": f"e{number}", "at": "2026-01-01", "source": f"source {number % 20}"}
        yield row | {"kind": "triples", "triples": triples}


def _triple(place: int, objects: int) -> dict[str, Any]:
    subject, target = f"Person {place // 4}", f"Firm {place * 7919 % objects}"
    relation, year = _RELATIONS[place % 4], 1970 + place % 50
    ended = {} if place % 3 else {"invalid_at": f"{year + 2}-01-01"}
    text = f"{subject} {relation.replace('_', ' ').lower()} {target}"
    row = {"source": subject, "relation": relation, "target": target, "text": text}
    return row | {"valid_at": f"{year}-01-01"} | ended


class _Clock:
    def __init__(self) -> None:
        gc.collect()
        self._peak, self._end = 0, threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()
        self._start = time.process_time()

    def _watch(self) -> None:
        while not self._end.wait(_LOOK_S):
            self._peak = max(self._peak, _private_kb())

    def figures(self, work: str, form: str, facts: int, written: Path | None = None) -> Figures:
        spent = time.process_time() - self._start
        self._end.set()
        peak = max(self._peak, _private_kb()) / 1024
        mb = None if written is None else _size(written) / 1e6
        return Figures(work=work, form=form, facts=facts, cpu_s=spent, peak_mb=peak, mb=mb)


def _grow(store: Path, facts: int) -> Figures:
    with kgray.open(store, create=True, settings=_SETTINGS) as memory:
        clock = _Clock()
        report = memory.add_many(_rows(facts), group=GROUP)
        if report.exit_code:
            raise RuntimeError(f"the episodes were not ingested: {report.as_dict()}")
        return clock.figures("add", "triples", facts, store)


def _export(store: Path, form: str, facts: int, out: Path, is_past: bool) -> Figures:
    with kgray.open(store, create=True, settings=_SETTINGS) as memory:
        known_at = _before_last(memory, facts) if is_past else None
        clock = _Clock()
        memory.export(out, to=form, group=GROUP, known_at=known_at)
        return clock.figures("past export" if is_past else "export", form, facts, out)


def _before_last(memory: kgray.Memory, facts: int) -> datetime:
    """Return a moment just before the last commit."""
    last = (facts - 1) // _TRIPLES + 1
    (entry,) = memory.log(group=GROUP, after=last - 1).episodes
    if entry.recorded_at is None:
        raise RuntimeError(f"episode {last} was not committed")
    return entry.recorded_at - timedelta(microseconds=1)


def _import(store: Path, form: str, facts: int, source: Path, is_dry: bool) -> Figures:
    """Import files; is_dry: read and count alone."""
    with kgray.open(store, create=True, settings=_SETTINGS) as memory:
        clock = _Clock()
        report = memory.import_from(source, form=form, group=GROUP, dry_run=is_dry)
        if report.ingestion is not None and report.ingestion.exit_code:
            raise RuntimeError(f"the episodes were not ingested: {report.as_dict()}")
        return clock.figures("read" if is_dry else "import", form, facts)


def _private_kb() -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("RssAnon:")[2].split(maxsplit=1)[0])


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in [path, *path.rglob("*")] if file.is_file())


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


EXPORTS = tuple(name for name, form in FORMATS.items() if form.writer)
IMPORTS = ("parquet", "graphrag", "lightrag", "cogx")
