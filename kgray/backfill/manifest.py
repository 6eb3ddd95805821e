"""The files of a run; its folder: a manifest of its progress, replaced atomically, and the refused rows.

    <data>/runs/<run>/manifest.json    inputs with their progress, attempt, state
                      refused.jsonl    every row that was not taken, with its place
                      report.json      the last attempt's report
                      lock             held while the run goes on

The manifest only saves work: if it is lost, the files are read again, and duplicates change nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NoReturn
from urllib.parse import unquote

from kgray import locks
from kgray.errors import InputError
from kgray.intake.drafts import Refusal, reasons
from kgray.intake.files import EXTENSIONS
from kgray.intake.remote import RemoteFile, place
from kgray.locks import explained
from kgray.memory.correcting import REFUSED, RUNS
from kgray.runtime.spec import store_identity
from kgray.settings import Settings

RunState = Literal["running", "done", "stopped", "limited"]
VERSION = 1
_MANIFEST = "manifest.json"
_RUN_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")


@dataclass(slots=True, kw_only=True)
class InputFile:
    """A file of a run, and how far the run has read it."""

    name: str  # as messages show it
    path: str  # absolute, or a URL
    size: int  # tells, as mtime_ns, whether it has changed
    mtime_ns: int
    rows: int = 0  # read from its start: accepted + duplicate + refused
    accepted: int = 0
    duplicate: int = 0
    refused: int = 0
    complete: bool = False  # there are no more rows

    @property
    def is_text(self) -> bool:
        """Whether the file is one source, cut into pieces."""
        return Path(self.name).suffix.lower() in (".txt", ".md")

    @property
    def place(self) -> Path | RemoteFile:
        """Where to read it."""
        found = place(self.path)
        return Path(found) if isinstance(found, str) else found


def find(paths: Sequence[str], data: Path) -> list[InputFile]:
    """Return the files at the paths and in folders among them, each once; no hidden ones, none of kgray's.

    Raises InputError for what cannot be read twice (standard input, pipes), or opened, and empty folders.
    """
    found: dict[str, InputFile] = {}
    for path in paths:
        if path == "-":
            raise InputError(
                "a backfill reads files, which it can go on with: `kgray add -` reads standard input"
            )
        where = place(path)
        if isinstance(where, RemoteFile):
            root = unquote(where.name)  # what is typed need not be spelled as what is found
            items = [
                InputFile(name=file.name, path=file.url, size=file.size, mtime_ns=file.mtime_ns)
                for file in where.found()
                if (name := unquote(file.name)) == root or _is_taken(name.removeprefix(root))
            ]
        else:
            items = [_input(name) for name in (_walked(where, data) if Path(where).is_dir() else (where,))]
        if not items:
            folder = where.name if isinstance(where, RemoteFile) else where
            raise InputError(f"{folder} holds no file to read: {', '.join(sorted(EXTENSIONS))} are taken")
        for item in items:
            found.setdefault(item.path, item)
    return list(found.values())


def submitted(path: str) -> str:
    """Return a path as another process of this machine names it; a URL as it is."""
    where = place(path)
    return path if isinstance(where, RemoteFile) else str(Path(where).expanduser().resolve())


def _is_taken(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return PurePosixPath(name).suffix.lower() in EXTENSIONS and not any(p.startswith(".") for p in parts)


def run_name(settings: Settings, data: Path, paths: Iterable[str]) -> str:
    """Return the default name of a run: 12 hex digits, a hash of the store and the paths."""
    parts = [store_identity(settings, data), *sorted({submitted(path) for path in paths})]
    return hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).hexdigest()[:12]


def check_name(name: str) -> str:
    """Return the name. Raises InputError where it cannot be a folder's name."""
    if not _RUN_NAME.fullmatch(name):
        raise InputError(f"{name[:80]!a} is no run's name: use 1 to 64 of A-Z a-z 0-9 _ . - (no dot first)")
    return name


def check_sources(inputs: Iterable[InputFile]) -> None:
    """Raise InputError where text files share a name: it is their source, so one would replace the other."""
    seen: dict[str, str] = {}
    for item in inputs:
        base = Path(item.name).name
        if item.is_text and seen.setdefault(base, item.name) != item.name:
            raise InputError(
                f"{seen[base]} and {item.name} are one source ({base}), and with --replace one would "
                f"retract the other: fill them in separately, each with its own --source"
            )


def _walked(folder: str, data: Path) -> list[str]:
    names: list[str] = []
    own = submitted(str(data))

    def broken(error: OSError) -> None:
        raise InputError(f"{error.filename} cannot be read: {error.strerror or error}")

    for where, folders, files in os.walk(folder, onerror=broken):
        inside = [name for name in folders if not name.startswith(".")]
        folders[:] = [name for name in inside if submitted(os.path.join(where, name)) != own]  # noqa: PTH118
        names += [os.path.join(where, name) for name in files if _is_taken(name)]  # noqa: PTH118 - as typed
    return sorted(names)


def _input(name: str) -> InputFile:
    path = Path(name)
    try:
        with path.open("rb"):  # whether it may be read is said before anything is accepted
            status = path.stat()
        regular = path.is_file()
    except (OSError, ValueError) as error:
        raise InputError(f"{name} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not regular:
        raise InputError(
            f"{name} is no regular file, and a backfill reads what it can go on with: use `kgray add`"
        )
    return InputFile(name=name, path=submitted(name), size=status.st_size, mtime_ns=status.st_mtime_ns)


@dataclass(slots=True, kw_only=True)
class Manifest:
    """The progress of a run."""

    run: str
    attempt: int = 1
    state: RunState = "running"
    reason: str = ""
    options: dict[str, Any]  # those that change how a row is read; if they differ, all is read again
    ordered: int = 0  # in order of time: how many rows of all files were taken or refused
    files: list[InputFile]

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
    return Manifest(run=run, attempt=before.attempt + 1, options=options, ordered=ordered, files=kept)


class RunFolder:
    """The folder of a run. Methods raise StoreError where writing fails, NoSpace where the disk is full."""

    def __init__(self, data: Path, run: str) -> None:
        self.path = data / RUNS / run
        self.refused = self.path / REFUSED  # every row that was not taken
        self._run = run
        self._new: list[str] = []  # lines of it, which are written with the manifest that counts them

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

        with locks.held(self.path / "lock", refuse):
            yield

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
        left = memoryview("".join(self._new).encode())
        with explained(self.path), open(self.refused, "ab", buffering=0, opener=locks.for_owner) as out:
            before = out.tell()
            try:
                while left:
                    left = left[out.write(left) :]
            except OSError:  # a full disk: the next save writes all of them again
                out.truncate(before)
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
                known = files.get(row["path"])
                if known and row["row"] < (manifest.ordered if manifest.by_time else known.rows):
                    known.refused += 1
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
                        found = json.loads(line)
                    except ValueError:
                        continue  # the last line of an attempt that was killed
                    yield found
        except FileNotFoundError:
            return
