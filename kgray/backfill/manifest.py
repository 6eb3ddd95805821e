"""A run's folder: a small manifest of its progress, replaced atomically, and the refused rows beside it.

    <data>/runs/<run>/manifest.json    inputs with their progress, attempt, state
                      refused.jsonl    every row that was not taken, with its place
                      report.json      the last attempt's report
                      sorted/          rows sorted by time, while a run takes them in that order
                      lock             held while the run goes on

The manifest only saves work: if it is lost, the files are read again, and duplicates change nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import IO, Any, Literal, NoReturn

from kgray import locks
from kgray.backfill.inputs import InputFile
from kgray.errors import InputError
from kgray.intake.drafts import Refusal, reasons
from kgray.locks import explained
from kgray.memory.run_files import RUNS

RunState = Literal["running", "done", "stopped", "limited"]
VERSION = 1
_MANIFEST, _REFUSED = "manifest.json", "refused.jsonl"


@dataclass(slots=True, kw_only=True)
class Manifest:
    """The progress of a run.

    options   those that change how a row is read; if they differ, every file is read again
    ordered   in order of time: how many rows of all files were taken or refused
    sums      accepted, committed and failed over all attempts
    """

    run: str
    attempt: int = 1
    state: RunState = "running"
    reason: str = ""
    options: dict[str, Any]
    ordered: int = 0
    files: list[InputFile]
    sums: dict[str, int] = field(default_factory=lambda: {"accepted": 0, "committed": 0, "failed": 0})

    @property
    def by_time(self) -> bool:
        """Whether rows are taken in the order of their times."""
        return bool(self.options["order"] != "file")

    def total(self, name: str) -> int:
        """Return the sum of a count over the files."""
        return sum(getattr(file, name) for file in self.files)


def next_attempt(
    run: str, inputs: Sequence[InputFile], options: dict[str, Any], before: Manifest | None
) -> Manifest:
    """Return the next attempt's manifest; rows that an earlier one read of unchanged files are skipped."""
    files = [replace(item) for item in inputs]
    if before is None:
        return Manifest(run=run, options=options, files=files)
    earlier = before.files if before.options == options else ()
    known = {(file.path, file.size, file.mtime_ns): file for file in earlier}
    kept = [known.get((file.path, file.size, file.mtime_ns), file) for file in files]
    if options["replace"]:  # what a text file no longer holds is known only where it is read as a whole
        kept = [file if file.is_text else last for file, last in zip(files, kept, strict=True)]
    ordered = before.ordered
    if options["order"] != "file" and [id(file) for file in kept] != [id(file) for file in before.files]:
        kept, ordered = files, 0  # one file that has changed moves all places
    return Manifest(
        run=run,
        attempt=before.attempt + 1,
        options=options,
        ordered=ordered,
        files=kept,
        sums=dict(before.sums),
    )


class RunFolder:
    """The folder of a run. Methods raise StoreError where writing fails, NoSpace where the disk is full."""

    def __init__(self, data: Path, run: str) -> None:
        """Name `<data>/runs/<run>`; `locked` creates it."""
        self.path = data / RUNS / run
        self.refused = self.path / _REFUSED  # every row that was not taken
        self._run = run
        self._refused: IO[str] | None = None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run's lock. Raises InputError, naming the holder, where another process has it."""
        with explained(self.path):
            for folder in (self.path.parents[1], self.path.parent, self.path):
                locks.make_folder(folder)

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
        """Return the last attempt's manifest; None where it is missing or cannot be read."""
        try:
            found = json.loads((self.path / _MANIFEST).read_bytes())
            if found["version"] != VERSION:
                return None
            own = {f.name: found[f.name] for f in fields(Manifest)}
            return Manifest(**own | {"files": [InputFile(**row) for row in found["files"]]})
        except (OSError, KeyError, TypeError, ValueError):
            return None  # every file is read again: duplicates change nothing

    def save(self, manifest: Manifest) -> None:
        """Replace the manifest; the refusals it counts are written first."""
        if self._refused is not None:
            with explained(self.path):
                self._refused.flush()
        counts = {name: manifest.total(name) for name in ("rows", "accepted", "duplicate", "refused")}
        self.replace(_MANIFEST, {"version": VERSION} | asdict(manifest) | counts)

    def open_refused(self, manifest: Manifest) -> None:
        """Open refused.jsonl, keeping and counting the earlier refusals of rows that are not read again."""
        files = {file.path: file for file in manifest.files}
        for file in manifest.files:
            file.refused = 0
        with explained(self.path):
            with locks.replaced(self.refused) as out:
                for row in self._read_refused():
                    known = files.get(row["path"])
                    if known and row["row"] < (manifest.ordered if manifest.by_time else known.rows):
                        known.refused += 1
                        out.write(json.dumps(row) + "\n")
            self._refused = open(  # noqa: SIM115 - `locked` closes it
                self.refused, "a", encoding="utf-8", opener=locks.for_owner
            )

    def refuse(self, refusal: Refusal, path: str, row: int) -> None:
        """Append a refusal. path, row: the file, and the row's position in reading order, from 0."""
        assert self._refused is not None  # noqa: S101 - `open_refused` comes first
        with explained(self.path):
            self._refused.write(json.dumps(refusal.as_dict() | {"path": path, "row": row}) + "\n")

    def refusals(self, limit: int) -> tuple[Refusal, ...]:
        """Return the first refusals of the run, at most `limit`."""
        names = [f.name for f in fields(Refusal)]
        rows = zip(range(limit), self._read_refused(), strict=False)
        return tuple(Refusal(**{name: row[name] for name in names}) for _, row in rows)

    def reasons(self) -> dict[str, int]:
        """Return how many rows were refused for each reason, the most frequent first."""
        return reasons((row["field"], row["reason"]) for row in self._read_refused())

    def _read_refused(self) -> Iterator[dict[str, Any]]:
        if self._refused is not None:
            self._refused.flush()
        try:
            with self.refused.open(encoding="utf-8") as file:
                for line in file:
                    try:
                        found = json.loads(line)
                    except ValueError:
                        continue  # the last line of an attempt that was killed
                    yield found
        except FileNotFoundError:
            return

    def replace(self, name: str, document: Mapping[str, Any]) -> None:
        """Replace a file of the run by a document."""
        with explained(self.path), locks.replaced(self.path / name) as file:
            json.dump(document, file, indent=1)
            file.write("\n")
