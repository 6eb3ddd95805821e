"""The input files of a run: found at paths, in folders and at URLs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from kgray.errors import InputError
from kgray.io.intake.files import EXTENSIONS
from kgray.io.intake.remote import RemoteFile, place


@dataclass(slots=True, kw_only=True)
class InputFile:
    """A file of a run, and how far the run has read it."""

    name: str  # as messages show it
    path: str  # absolute, or a URL
    size: int  # bytes; a different size or mtime_ns means that the file has changed
    mtime_ns: int
    rows: int = 0  # read from its start: accepted + duplicate + refused
    accepted: int = 0
    duplicate: int = 0
    refused: int = 0
    complete: bool = False  # there are no more rows

    @property
    def is_text(self) -> bool:
        """True if the file is one source, cut into pieces."""
        return Path(self.name).suffix.lower() in (".txt", ".md")

    @property
    def place(self) -> Path | RemoteFile:
        """The local or remote location of the file."""
        location = place(self.path)
        return Path(location) if isinstance(location, str) else location


def find(paths: Sequence[str], data: Path) -> list[InputFile]:
    """Return the files at the paths and in folders among them, each once, without hidden and kgray's files.

    Raises InputError for empty folders, unreadable files, and input that cannot be read twice (pipes).
    """
    inputs: dict[str, InputFile] = {}
    for path in paths:
        if path == "-":
            raise InputError(
                "a backfill reads files, which it can go on with: `kgray add -` reads standard input"
            )
        location = place(path)
        if isinstance(location, RemoteFile):
            root = unquote(location.name)  # the user may escape a URL differently from the server
            items = [
                InputFile(name=file.name, path=file.url, size=file.size, mtime_ns=file.mtime_ns)
                for file in location.files()
                if (name := unquote(file.name)) == root or _is_taken(name.removeprefix(root))
            ]
        else:
            items = [
                _input(name) for name in (_walked(location, data) if Path(location).is_dir() else (location,))
            ]
        if not items:
            folder = location.name if isinstance(location, RemoteFile) else location
            raise InputError(f"{folder} holds no file to read: {', '.join(sorted(EXTENSIONS))} are taken")
        for item in items:
            inputs.setdefault(item.path, item)
    return list(inputs.values())


def submitted(path: str) -> str:
    """Return the absolute path, which any process of this machine can read; a URL unchanged."""
    location = place(path)
    return path if isinstance(location, RemoteFile) else str(Path(location).expanduser().resolve())


def _is_taken(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return PurePosixPath(name).suffix.lower() in EXTENSIONS and not any(p.startswith(".") for p in parts)


def check_sources(inputs: Iterable[InputFile]) -> None:
    """Raise InputError where text files share a name: it is their source, so one would replace the other."""
    first_names: dict[str, str] = {}
    for item in inputs:
        base = Path(item.name).name
        if item.is_text and first_names.setdefault(base, item.name) != item.name:
            raise InputError(
                f"{first_names[base]} and {item.name} are one source ({base}), and with --replace one would "
                f"retract the other: fill them in separately, each with its own --source"
            )


def _walked(folder: str, data: Path) -> list[str]:
    names: list[str] = []
    data_folder = submitted(str(data))

    def broken(error: OSError) -> None:
        raise InputError(f"{error.filename} cannot be read: {error.strerror or error}")

    for folder_path, folders, files in os.walk(folder, onerror=broken):
        visible = [name for name in folders if not name.startswith(".")]
        folders[:] = [name for name in visible if submitted(os.path.join(folder_path, name)) != data_folder]  # noqa: PTH118
        names += [os.path.join(folder_path, name) for name in files if _is_taken(name)]  # noqa: PTH118 - as typed
    return sorted(names)


def _input(name: str) -> InputFile:
    path = Path(name)
    try:
        with path.open("rb"):  # an unreadable file is reported before any row is accepted
            status = path.stat()
        regular = path.is_file()
    except (OSError, ValueError) as error:
        raise InputError(f"{name} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not regular:
        raise InputError(
            f"{name} is no regular file, and a backfill reads what it can go on with: use `kgray add`"
        )
    return InputFile(name=name, path=submitted(name), size=status.st_size, mtime_ns=status.st_mtime_ns)
