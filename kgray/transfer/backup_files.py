"""The files of a backup, in a folder or at a URL.

    backup.json             the contents of the backup, with verifying hashes; written last
    kgray.sqlite3           the store's file, of a full backup of an embedded store to a folder; else
    rows-000001.jsonl.gz    a file for each group: its text (see `copying`), compressed
    kgray.toml              the settings of the data folder, without secrets

A folder or URL without backup.json is no backup: the process that writes it still runs, or was killed.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from kgray import __version__
from kgray.errors import InputError, NotFound, StoreError
from kgray.intake.remote import RemoteFile, first_line, place
from kgray.kinds import KINDS
from kgray.locks import explained, for_owner

FORMAT = 1  # of a backup; a greater number is refused
MANIFEST = "backup.json"
_BUFFER = 1 << 20
SCHEMA = {kind.name: [f"{column.name} {column.type}" for column in kind.columns] for kind in KINDS}
Root = Path | RemoteFile  # the folder of the files, or the prefix of their URLs


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEntry:
    """A group in a backup.

    rows    number of rows
    sha256  of its text
    file    the name of the file that has the text; None: the group is in the store's file
    """

    rows: int
    sha256: str
    file: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The content of backup.json.

    version         of kgray
    schema          the kinds of rows, with their columns
    store_sha256    of the store's file; None: each group has a file of its own
    """

    format: int = FORMAT
    version: str = __version__
    made_at: str
    embedder: str
    dimensions: int
    schema: Mapping[str, Sequence[str]]
    store_sha256: str | None
    groups: Mapping[str, GroupEntry]

    def sums(self) -> dict[str, Any]:
        """Return the rows of all groups, and a hash that equal groups have on every store.

        It is the SHA-256 of the groups' hashes, in lines as `sha256sum` prints them, sorted by group.
        """
        lines = "".join(f"{self.groups[name].sha256}  {name}\n" for name in sorted(self.groups))
        rows = sum(entry.rows for entry in self.groups.values())
        return {"rows": rows, "sha256": hashlib.sha256(lines.encode()).hexdigest()}

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON document of the commands."""
        groups = {name: {"rows": entry.rows, "sha256": entry.sha256} for name, entry in self.groups.items()}
        return {"groups": groups, **self.sums()}

    def part(self, groups: Sequence[str], root: Root) -> Manifest:
        """Return the manifest of some of the groups. Raises NotFound."""
        if missing := sorted(set(groups) - self.groups.keys()):
            raise NotFound(f"there is no group {missing[0]!r} in the backup at {root}")
        return replace(self, groups={name: self.groups[name] for name in sorted(set(groups))})


def root_at(name: str) -> Root:
    """Return the folder or URL that a user names. Raises InputError."""
    root = place(name)
    return Path(root).resolve() if isinstance(root, str) else root


def open_file(file: Root) -> BinaryIO:
    """Open a file of a backup to read it. Raises FileNotFoundError, InputError, Unavailable."""
    try:
        return file.open("rb")
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(file) from None
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read: {first_line(error)}") from None


@contextmanager
def write_file(file: Root) -> Iterator[BinaryIO]:
    """Write a file, complete and durable at the end of the block; a local file is for its owner only.

    Raises InputError, StoreError, NoSpace, Unavailable.
    """
    if isinstance(file, RemoteFile):
        try:
            remote = file.open("wb")
        except (OSError, ValueError) as error:
            raise InputError(f"{file} cannot be written: {first_line(error)}") from None
        with remote:
            yield remote
        return
    with explained(file), open(file, "wb", opener=for_owner) as out:
        yield out
        out.flush()
        os.fsync(out.fileno())


def write_manifest(root: Root, manifest: Manifest) -> None:
    """Write the manifest of a backup, which completes it."""
    with write_file(root / MANIFEST) as out:
        out.write(json.dumps(asdict(manifest) | manifest.sums(), indent=1).encode() + b"\n")


def read_manifest(root: Root) -> Manifest:
    """Return the manifest of a backup. Raises InputError, StoreError, Unavailable."""
    try:
        with open_file(root / MANIFEST) as file:
            document = json.load(file)
        if document["format"] > FORMAT:
            newer = f"the backup at {root} was written by a newer kgray ({document['version']})"
            raise StoreError(f"{newer}: upgrade kgray")
        sums = {name: document.pop(name) for name in ("rows", "sha256")}
        groups = {name: GroupEntry(**entry) for name, entry in document["groups"].items()}
        manifest = Manifest(**document | {"groups": groups})
        if sums != manifest.sums():
            raise ValueError("the sums are those of other groups")
    except FileNotFoundError:
        raise InputError(
            f"there is no backup at {root}: it has no {MANIFEST}, which is written when the rest is whole"
        ) from None
    except (AttributeError, KeyError, TypeError, ValueError):
        raise damage_error(root / MANIFEST) from None
    return manifest


def damage_error(file: Root) -> StoreError:
    """Return the refusal of a file that is missing, damaged, or another than the manifest says."""
    return StoreError(f"{file} is missing, damaged, or was changed since: restore from another backup")


def file_sha256(file: Root, to: Path | None = None) -> str:
    """Return the SHA-256 of a file; copy it to `to`, if set. Raises like `open_file` and `write_file`."""
    digest = hashlib.sha256()
    with ExitStack() as stack:
        source = stack.enter_context(open_file(file))
        target = None if to is None else stack.enter_context(write_file(to))
        while part := source.read(_BUFFER):
            digest.update(part)
            if target is not None:
                target.write(part)
    return digest.hexdigest()


def text_lines(file: Root) -> Generator[bytes, None, None]:
    """Yield the lines of a group's text. Raises StoreError if the file is missing or damaged."""
    try:
        with open_file(file) as raw, gzip.GzipFile(fileobj=raw) as text:
            yield from text
    except (FileNotFoundError, EOFError, gzip.BadGzipFile, zlib.error):
        raise damage_error(file) from None
