"""The folder of a run: a manifest of its progress, replaced atomically, and the refused rows.

    <data>/runs/<run>/manifest.json    inputs with their progress, attempt, state
                      refused.jsonl    every row that was not taken, with its place
                      report.json      the last attempt's report
                      lock             held while the run goes on

The manifest only saves work: if it is lost, the files are read again, and duplicates change nothing.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NoReturn

from kgray.errors import InputError
from kgray.io.intake.drafts import Refusal, reasons
from kgray.memory.backfill.inputs import InputFile, submitted
from kgray.memory.correcting import REFUSED, RUNS
from kgray.runtime.spec import store_identity
from kgray.settings import Settings
from kgray.system import locks
from kgray.system.locks import explained

RunState = Literal["running", "done", "stopped", "limited"]
VERSION = 1
_MANIFEST = "manifest.json"
_RUN_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")


def run_name(settings: Settings, data: Path, paths: Iterable[str]) -> str:
    """Return the default name of a run: 12 hex digits, a hash of the store and the paths."""
    parts = [store_identity(settings, data), *sorted({submitted(path) for path in paths})]
    return hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).hexdigest()[:12]


def check_name(name: str) -> str:
    """Return the name. Raises InputError where it cannot be a folder's name."""
    if not _RUN_NAME.fullmatch(name):
        raise InputError(f"{name[:80]!a} is no run's name: use 1 to 64 of A-Z a-z 0-9 _ . - (no dot first)")
    return name


@dataclass(slots=True, kw_only=True)
class Manifest:
    """The progress of a run."""

    run: str
    attempt: int = 1
    state: RunState = "running"
    reason: str = ""
    options: dict[str, Any]  # they change how a row is read; if they differ, all files are read again
    ordered: int = 0  # in order of time: the number of rows of all files that were taken or refused
    files: list[InputFile]

    @property
    def by_time(self) -> bool:
        """True if rows are taken in the order of their times."""
        return bool(self.options["order"] != "file")

    def total(self, name: str) -> int:
        """Return the sum of a count over the files."""
        return sum(getattr(file, name) for file in self.files)


def next_attempt(
    run: str, inputs: Sequence[InputFile], options: dict[str, Any], previous: Manifest | None
) -> Manifest:
    """Return the next attempt's manifest. It skips rows of unchanged files that earlier attempts read."""
    files = [replace(item) for item in inputs]
    if previous is None:
        return Manifest(run=run, options=options, files=files)
    earlier = previous.files if previous.options == options else ()
    earlier_files = {(file.path, file.size, file.mtime_ns): file for file in earlier}
    resumed = [earlier_files.get((file.path, file.size, file.mtime_ns), file) for file in files]
    if options["replace"]:  # a text file's lost pieces are retracted only if the whole file is read
        resumed = [file if file.is_text else last for file, last in zip(files, resumed, strict=True)]
    ordered = previous.ordered
    if options["order"] != "file" and [id(file) for file in resumed] != [id(file) for file in previous.files]:
        resumed, ordered = files, 0  # a changed file moves all places
    return Manifest(run=run, attempt=previous.attempt + 1, options=options, ordered=ordered, files=resumed)


class RunFolder:
    """The folder of a run. Methods raise StoreError where writing fails, NoSpace where the disk is full."""

    def __init__(self, data: Path, run: str) -> None:
        self.path = data / RUNS / run
        self.refused = self.path / REFUSED  # every row that was not taken
        self._run = run
        self._new: list[str] = []  # lines of `refused`, written with the manifest that counts them

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run's lock. Raises InputError, naming the holder, if another process has it."""
        with explained(self.path):
            for folder in (self.path.parents[1], self.path.parent, self.path):
                locks.make_folder(folder)

        def refuse(holder: str) -> NoReturn:
            raise InputError(
                f"run {self._run} goes on already ({holder}): wait for it, or name another with --run"
            )

        with locks.held(self.path / "lock", refuse):
            yield

    def load(self) -> Manifest | None:
        """Return the last attempt's manifest; None if it is missing or cannot be read."""
        try:
            document = json.loads((self.path / _MANIFEST).read_bytes())
            if document["version"] != VERSION:
                return None
            values = {f.name: document[f.name] for f in fields(Manifest)}
            return Manifest(**values | {"files": [InputFile(**row) for row in document["files"]]})
        except (OSError, KeyError, TypeError, ValueError):
            return None  # every file is read again: duplicates change nothing

    def save(self, manifest: Manifest) -> None:
        """Replace the manifest; the refusals it counts are written first."""
        unwritten = memoryview("".join(self._new).encode())
        with explained(self.path), open(self.refused, "ab", buffering=0, opener=locks.for_owner) as out:
            size = out.tell()
            try:
                while unwritten:
                    unwritten = unwritten[out.write(unwritten) :]
            except OSError:  # a full disk: the next save writes all of them again
                out.truncate(size)
                raise
        self._new.clear()
        counts = {name: manifest.total(name) for name in ("rows", "accepted", "duplicate", "refused")}
        self.write(_MANIFEST, {"version": VERSION} | asdict(manifest) | counts)

    def write(self, name: str, document: Mapping[str, Any]) -> None:
        """Replace a file of the run, as a whole."""
        with explained(self.path), locks.replaced(self.path / name) as file:
            json.dump(document, file, indent=1)
            file.write("\n")

    def keep_refused(self, manifest: Manifest) -> None:
        """Keep and count the earlier refusals of rows that are not read again."""
        files = {file.path: file for file in manifest.files}
        for file in manifest.files:
            file.refused = 0
        with explained(self.path), locks.replaced(self.refused) as out:
            for row in self._read_refused():
                progress = files.get(row["path"])
                if progress and row["row"] < (manifest.ordered if manifest.by_time else progress.rows):
                    progress.refused += 1
                    out.write(json.dumps(row) + "\n")

    def refuse(self, refusal: Refusal, path: str, row: int) -> None:
        """Append a refusal. path, row: the file, and the row's position in reading order, from 0."""
        self._new.append(json.dumps(refusal.as_dict() | {"path": path, "row": row}) + "\n")

    def refusals(self, limit: int) -> tuple[Refusal, ...]:
        """Return the first refusals of the run, at most `limit`."""
        names = [f.name for f in fields(Refusal)]
        rows = islice(self._read_refused(), limit)
        return tuple(Refusal(**{name: row[name] for name in names}) for row in rows)

    def reasons(self) -> dict[str, int]:
        """Return how many rows were refused for each reason, the most frequent first."""
        return reasons((row["field"], row["reason"]) for row in self._read_refused())

    def _read_refused(self) -> Iterator[dict[str, Any]]:
        try:
            with self.refused.open(encoding="utf-8") as file:
                for line in file:
                    try:
                        refusal = json.loads(line)
                    except ValueError:
                        continue  # the last line of an attempt that was killed
                    yield refusal
        except FileNotFoundError:
            return
