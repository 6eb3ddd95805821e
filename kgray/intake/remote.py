"""Files at URLs that pyarrow's file systems read and write: s3://, gs://, hdfs://, and file:// for paths.

Credentials come from the environment, as documented for each file system: a URL would be stored with the
run's name and progress.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote, urlsplit
from urllib.request import url2pathname

from kgray.errors import InputError, Unavailable

_SCHEMES = ("s3", "gs", "hdfs")
_BUFFER = 1 << 20  # bytes of one request


def place(path: str) -> str | RemoteFile:
    """Return the local path, or the remote file of a URL. Raises InputError."""
    if "://" not in path:
        return path
    parts = urlsplit(path)
    if parts.scheme == "file":
        return url2pathname(parts.path)
    if parts.scheme not in _SCHEMES:
        raise InputError(
            f"{parts.scheme}:// is not read or written: give a path, or a URL: {', '.join(_SCHEMES)} or file"
        )
    # A bucket has no port: the text after a colon is a secret key, possibly cut at a slash.
    keyed = parts.username or ":" in parts.netloc
    if parts.password or (keyed and parts.scheme != "hdfs"):
        raise InputError(
            f"a {parts.scheme}:// URL with a key in it is not taken, because URLs are kept and shown: set "
            f"the key in the environment, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    return RemoteFile(path)


@dataclass(frozen=True)
class RemoteFile:
    """A file, or a folder of files, at a URL; the options of its file system follow a question mark."""

    url: str
    size: int = 0
    mtime_ns: int = 0
    _open_system: tuple[Any, str] | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return self.name

    @property
    def name(self) -> str:
        """The URL without its options."""
        return self.url.partition("?")[0]

    @property
    def suffix(self) -> str:
        """The extension, with its dot."""
        return Path(self.name).suffix

    def __truediv__(self, name: str) -> RemoteFile:
        """Return the file of this name in this folder."""
        _, mark, options = self.url.partition("?")
        return RemoteFile(f"{self.name.rstrip('/')}/{quote(name)}{mark}{options}")

    def open(self, mode: str = "rb") -> BinaryIO:
        """Return a stream that reads the file's bytes ("rb"), or writes them ("wb"): complete when closed.

        Raises OSError if the file is missing or forbidden, and the stream's Unavailable.
        """
        verb = "read" if mode == "rb" else "written"
        with _outages(self.name, verb):
            system, path = self._system()
            if mode == "rb":
                raw: Any = _Stream(self.name, verb, system.open_input_file(path))
                return io.BufferedReader(raw, _BUFFER)
            # No compression by extension: the content of such a file is compressed already.
            raw = _Stream(self.name, verb, system.open_output_stream(path, compression=None))
            return io.BufferedWriter(raw, _BUFFER)

    def files(self) -> Iterator[RemoteFile]:
        """Yield the file itself, or all files in the folder, sorted. Raises InputError if there are none."""
        from pyarrow import fs

        try:
            system, path = self._system()
            info = system.get_file_info(path)
            entries = [info]
            if info.type == fs.FileType.Directory:
                entries = system.get_file_info(fs.FileSelector(path, recursive=True))
        except (OSError, ValueError) as error:
            raise InputError(f"{self.name} cannot be read: {first_line(error)}") from None
        if info.type == fs.FileType.NotFound:
            raise InputError(f"{self.name} cannot be read: there is no such file or folder")
        parts = urlsplit(self.url)
        root = f"hdfs://{parts.netloc}" if parts.scheme == "hdfs" else f"{parts.scheme}://"
        options = f"?{parts.query}" if parts.query else ""
        for entry in sorted(entries, key=lambda entry: str(entry.path)):
            if entry.type == fs.FileType.File:
                url = f"{root}{quote(entry.path)}{options}"
                yield RemoteFile(url, entry.size, entry.mtime_ns or 0, (system, entry.path))

    def _system(self) -> tuple[Any, str]:
        from pyarrow import fs

        system: tuple[Any, str] = self._open_system or fs.FileSystem.from_uri(self.url)
        return system


class _Stream:
    """A pyarrow file with the interface of `io`; its failures are outages: a new run continues."""

    def __init__(self, name: str, verb: str, file: Any) -> None:  # noqa: ANN401 - pyarrow has no types
        self._name, self._verb, self._file = name, verb, file

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the file has
        attribute = getattr(self._file, name)
        return _outages(self._name, self._verb)(attribute) if callable(attribute) else attribute


@contextmanager
def _outages(name: str, verb: str) -> Iterator[None]:
    """Turn errors of a file system inside into Unavailable, except for missing or forbidden files."""
    try:
        yield
    except (FileNotFoundError, PermissionError):
        raise
    except OSError as error:
        raise Unavailable(f"{name} cannot be {verb} now: {first_line(error)}", waited=True) from None


def first_line(error: Exception) -> str:
    """Return the first line of a library's error."""
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__
