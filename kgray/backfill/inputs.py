"""Paths and folders to the files of a run, and the run's name."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from kgray.errors import InputError
from kgray.intake.files import EXTENSIONS
from kgray.intake.remote import RemoteFile, place
from kgray.runtime.spec import store_identity
from kgray.settings import Settings

_RUN_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")
_TEXTS = (".txt", ".md")
_NOTHING = "{folder} holds no file to read: " + f"{', '.join(sorted(EXTENSIONS))} are taken"


@dataclass(slots=True, kw_only=True)
class InputFile:
    """A file of a run, and how far the run has read it.

    name       as messages show it; path: absolute, or a URL; size and mtime_ns tell whether it has changed
    rows       how many were read from its start: accepted + duplicate + refused
    complete   there are no more rows
    """

    name: str
    path: str
    size: int
    mtime_ns: int
    rows: int = 0
    accepted: int = 0
    duplicate: int = 0
    refused: int = 0
    complete: bool = False

    @property
    def is_text(self) -> bool:
        """Whether the file is one source, cut into pieces."""
        return Path(self.name).suffix.lower() in _TEXTS

    @property
    def place(self) -> Path | RemoteFile:
        """Where to read it."""
        found = place(self.path)
        return Path(found) if isinstance(found, str) else found

    def count(self, answer: str) -> None:
        """Count a row. answer: accepted, duplicate or refused."""
        self.rows += 1
        setattr(self, answer, getattr(self, answer) + 1)


def find(paths: Sequence[str], data: Path) -> list[InputFile]:
    """Return the files at the paths and in folders among them, in the order of the paths, each once.

    The data folder and hidden files are left out.
    Raises InputError for what cannot be read a second time (standard input, pipes), what cannot be opened,
    and a folder with nothing to read in it.
    """
    found: dict[str, InputFile] = {}
    for path in paths:
        if path == "-":
            raise InputError(
                "a backfill reads files, which it can go on with: `kgray add -` reads standard input"
            )
        where = place(path)
        if isinstance(where, RemoteFile):
            items = _distant(where)
        else:
            items = [_input(name) for name in (_walked(where, data) if Path(where).is_dir() else (where,))]
        for item in items:
            found.setdefault(item.path, item)
    return list(found.values())


def submitted(path: str) -> str:
    """Return a path as another process of this machine names it; a URL as it is."""
    return path if isinstance(place(path), RemoteFile) else _absolute(path)


def _distant(asked: RemoteFile) -> list[InputFile]:
    """Return the file at a URL, or those of its folder that a backfill takes."""
    root = unquote(asked.name)  # what is typed need not be spelled as what is found
    found = [
        InputFile(name=file.name, path=file.url, size=file.size, mtime_ns=file.mtime_ns)
        for file in asked.found()
        if (name := unquote(file.name)) == root or _is_taken(name.removeprefix(root))
    ]
    if not found:
        raise InputError(_NOTHING.format(folder=asked.name))
    return found


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
    own = _absolute(str(data))

    def broken(error: OSError) -> None:
        raise InputError(f"{error.filename} cannot be read: {error.strerror or error}")

    for where, folders, files in os.walk(folder, onerror=broken):
        inside = [name for name in folders if not name.startswith(".")]
        folders[:] = [name for name in inside if _absolute(os.path.join(where, name)) != own]  # noqa: PTH118
        names += [os.path.join(where, name) for name in files if _is_taken(name)]  # noqa: PTH118 - as typed
    if not names:
        raise InputError(_NOTHING.format(folder=folder))
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
    return InputFile(name=name, path=_absolute(name), size=status.st_size, mtime_ns=status.st_mtime_ns)


def _absolute(path: str) -> str:
    return str(Path(str(place(path))).expanduser().resolve())
