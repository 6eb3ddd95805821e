"""How far a run has come: one small file, renamed into place, and beside it what was refused.

    <data>/runs/<run>/manifest.json    inputs with their progress, attempt, state
                      refused.jsonl    every row that was not taken, with its place
                      report.json      what the last attempt answered
                      sorted/          rows in the order of their times, while it takes them in that order
                      lock             held while the run goes on

The manifest saves work, it does not decide: what it has lost is read again, and duplicates change nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import IO, Any, Literal, NoReturn

from kgray import locks
from kgray.backfill.inputs import Input
from kgray.errors import InputError
from kgray.intake import Refusal
from kgray.memory.run_files import REPORT, RUNS, explained

State = Literal["running", "done", "stopped", "limited"]
VERSION = 1
_COUNTS = ("accepted", "committed", "failed")


@dataclass(slots=True, kw_only=True)
class FileProgress:
    """One input. rows: of it, taken or refused, from its start on; complete: there are no more."""

    name: str
    path: str
    size: int
    mtime_ns: int
    rows: int = 0
    accepted: int = 0
    duplicate: int = 0
    refused: int = 0
    complete: bool = False

    @classmethod
    def of(cls, item: Input) -> FileProgress:
        """Return the progress of a file of which nothing was read."""
        return cls(name=item.name, path=item.path, size=item.size, mtime_ns=item.mtime_ns)

    def same_file(self, item: Input) -> bool:
        """Whether the file is unchanged."""
        return (self.size, self.mtime_ns) == (item.size, item.mtime_ns)

    def count(self, answer: str) -> None:
        """Count one row."""
        self.rows += 1
        self.accepted += answer == "accepted"
        self.duplicate += answer == "duplicate"
        self.refused += answer == "refused"


@dataclass(slots=True, kw_only=True)
class Manifest:
    """A run. options: what changes how a row is read; with others, every file is read again.

    ordered   rows of all files together that were taken or refused, where they are taken by their times
    sums      over all attempts
    """

    run: str
    attempt: int = 1
    state: State = "running"
    reason: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    ordered: int = 0
    files: list[FileProgress] = field(default_factory=list)
    sums: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_COUNTS, 0))

    @classmethod
    def begun(
        cls, run: str, inputs: Sequence[Input], options: Mapping[str, Any], before: Manifest | None
    ) -> Manifest:
        """Return the next attempt: what an earlier one read of an unchanged file is not read again."""
        if before is None:
            return cls(run=run, options=dict(options), files=[FileProgress.of(item) for item in inputs])
        known = {row.path: row for row in before.files} if before.options == options else {}
        files = [
            row
            if (row := known.get(item.path)) is not None and row.same_file(item)
            else FileProgress.of(item)
            for item in inputs
        ]
        if options["replace"]:  # what a text file no longer holds is known only where it is read as a whole
            files = [FileProgress.of(i) if i.is_text else row for i, row in zip(inputs, files, strict=True)]
        ordered = before.ordered
        if options["order"] != "file" and [id(row) for row in files] != [id(row) for row in before.files]:
            files, ordered = [FileProgress.of(item) for item in inputs], 0  # one file moves all places
        return cls(
            run=run,
            attempt=before.attempt + 1,
            options=dict(options),
            ordered=ordered,
            files=files,
            sums=dict(before.sums),
        )

    def total(self, name: str) -> int:
        """Return the sum of a count over the files."""
        return sum(getattr(row, name) for row in self.files)

    def as_dict(self) -> dict[str, Any]:
        """Return the form of the file."""
        counts = {name: self.total(name) for name in ("rows", "accepted", "duplicate", "refused")}
        return {"version": VERSION} | asdict(self) | counts

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Manifest:
        """Return what `as_dict` wrote. Raises KeyError, TypeError or ValueError for anything else."""
        if found["version"] != VERSION:
            raise ValueError(f"version {found['version']}")
        own = {f.name: found[f.name] for f in fields(cls)}
        own["files"] = [FileProgress(**row) for row in found["files"]]
        return cls(**own)


class RunFolder:
    """The folder of a run. Raises StoreError for what cannot be written; NoSpace where the disk is full."""

    def __init__(self, data: Path, run: str) -> None:
        """Take `<data>/runs/<run>`; `locked` makes it."""
        self.path = data / RUNS / run
        self._run = run
        self._refused: IO[str] | None = None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run. Raises InputError, naming the holder, where another process carries it out."""
        with explained(self.path):
            self.path.mkdir(parents=True, exist_ok=True)

        def refuse(holder: str) -> NoReturn:
            raise InputError(
                f"run {self._run} goes on already ({holder}): wait for it, or name another with --run"
            )

        try:
            with locks.held(self.path / "lock", refuse):
                yield
        finally:
            if self._refused is not None:
                self._refused.close()
                self._refused = None

    def load(self) -> Manifest | None:
        """Return the last attempt's manifest; None where there is none that can be read."""
        try:
            return Manifest.from_dict(json.loads((self.path / "manifest.json").read_bytes()))
        except (OSError, KeyError, TypeError, ValueError):
            return None  # every file is read again: duplicates change nothing

    def save(self, manifest: Manifest) -> None:
        """Replace the manifest, what was refused first."""
        with explained(self.path):
            if self._refused is not None:
                self._refused.flush()
            self._replace("manifest.json", manifest.as_dict())

    def save_report(self, report: Mapping[str, Any]) -> None:
        """Replace the report."""
        with explained(self.path):
            self._replace(REPORT, report)

    def open_refused(self, manifest: Manifest) -> None:
        """Keep of the earlier refusals those of rows that are not read again; count them anew."""
        with explained(self.path):
            new = self.path / "refused.jsonl.new"
            rows = {row.path: row for row in manifest.files}
            for row in manifest.files:
                row.refused = 0
            in_time_order = manifest.options["order"] != "file"
            with new.open("w", encoding="utf-8") as out:
                for found in self._read_refused():
                    file = rows.get(found["path"])
                    if file is not None and found["row"] < (manifest.ordered if in_time_order else file.rows):
                        file.refused += 1
                        out.write(json.dumps(found) + "\n")
            new.replace(self.path / "refused.jsonl")
            self._refused = (self.path / "refused.jsonl").open("a", encoding="utf-8")

    def refuse(self, refusal: Refusal, path: str, row: int) -> None:
        """Note one refusal; path, row: the file and where it stands in the order of reading, from 0."""
        assert self._refused is not None  # noqa: S101 - `open_refused` comes first
        line = refusal.as_dict() | {"path": path, "row": row}
        with explained(self.path):
            self._refused.write(json.dumps(line) + "\n")

    def refusals(self, limit: int) -> list[Refusal]:
        """Return the first refusals of the run."""
        if self._refused is not None:
            self._refused.flush()
        found: list[Refusal] = []
        for row in self._read_refused():
            if len(found) >= limit:
                break
            found.append(Refusal(**{name: row[name] for name in ("file", "line", "field", "reason")}))
        return found

    def _read_refused(self) -> Iterator[dict[str, Any]]:
        try:
            with (self.path / "refused.jsonl").open(encoding="utf-8") as file:
                for line in file:
                    try:
                        found = json.loads(line)
                    except ValueError:
                        continue  # the last line of an attempt that was killed
                    yield found
        except FileNotFoundError:
            return

    def _replace(self, name: str, document: Mapping[str, Any]) -> None:
        new = self.path / f"{name}.new"
        with new.open("w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.path / name)
