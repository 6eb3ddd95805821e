"""Reads JSON files of other programs, with one line for a file that is no JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from kgray.errors import InputError

MAX_LINE = 64 << 20  # characters: a longer line or value is no row of a text
_CHUNK = 1 << 20  # characters that are read at once
_DECODER = json.JSONDecoder()


def unreadable(path: Path, form: str, error: Exception) -> InputError:
    """Return the error for a file that cannot be read, or has other content than its format."""
    if isinstance(error, OSError) and error.errno is not None:
        return InputError(f"{path} cannot be read: {os.strerror(error.errno)}")
    reason = " ".join(str(error).split())[:200]
    return InputError(f"{path} cannot be read as {form} ({reason}): it may be truncated")


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"{path} is not there") from None
    except (OSError, ValueError, RecursionError) as error:
        raise unreadable(path, "JSON", error) from None


def read_json(path: Path) -> Any:  # noqa: ANN401 - JSON
    """Return the value of a JSON file. Raises InputError with the path."""
    with _explained(path):
        return json.loads(path.read_text(encoding="utf-8"))


def read_members(path: Path) -> Iterator[tuple[str, Any, bool]]:
    """Yield (key, value, whether it is an item of a list) of a JSON object, one in memory at a time.

    A list under a key comes item by item, but an empty list as a value; the key of a list outside an object
    is "". Raises InputError, with the path, for a file that is no JSON.
    """
    with _explained(path), path.open(encoding="utf-8-sig") as file:
        reader = _Reader(file)
        if reader.peek() == "[":
            yield from reader.items("")
        else:
            yield from reader.members()
        if reader.peek():
            raise ValueError("there is more after the end")


class _Reader:
    """Reads a JSON file value by value."""

    def __init__(self, file: IO[str]) -> None:
        self._file, self._text, self._at, self._ended = file, "", 0, False

    def members(self) -> Iterator[tuple[str, Any, bool]]:
        """Yield the members of an object."""
        self._take("{")
        separator = "" if self.peek() != "}" else self._take("}")
        while separator != "}":
            key = self._value()
            if not isinstance(key, str):
                raise ValueError(f"{key!r:.40} is no key")
            self._take(":")
            if self.peek() == "[":
                yield from self.items(key)
            else:
                yield key, self._value(), False
            separator = self._take(",}")

    def items(self, key: str) -> Iterator[tuple[str, Any, bool]]:
        """Yield the items of a list."""
        separator = self._take("[")
        if self.peek() == "]":
            self._take("]")
            yield key, [], False
            return
        while separator != "]":
            yield key, self._value(), True
            separator = self._take(",]")

    def peek(self) -> str:
        """Return the next character that is no space; "" at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in " \t\r\n":
                self._at += 1
            if self._at < len(self._text) or self._ended:
                return self._text[self._at : self._at + 1]
            self._read()

    def _take(self, expected: str) -> str:
        if (mark := self.peek()) not in expected or not mark:
            raise ValueError(f"{mark or 'the end'} where {' or '.join(expected)} should be")
        self._at += 1
        return mark

    def _value(self) -> Any:  # noqa: ANN401 - JSON
        self.peek()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
                if end < len(self._text) or self._ended:  # else a number may go on
                    self._at = end
                    return value
            except ValueError:
                if self._ended:
                    raise
            if len(self._text) - self._at > MAX_LINE:
                raise ValueError(f"a value with more than {MAX_LINE} characters, or with a fault")
            self._read()

    def _read(self) -> None:
        remainder = self._text[self._at :]
        read_text = self._file.read(max(_CHUNK, len(remainder)))
        self._text, self._at, self._ended = remainder + read_text, 0, not read_text


def read_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (number, object) of each line of a file of JSON lines; nothing of a missing file."""
    if not path.exists():
        return
    try:
        with path.open(encoding="utf-8") as file:
            for number in range(1, 1 << 62):
                line = file.readline(MAX_LINE)
                if not line:
                    return
                if len(line) == MAX_LINE:
                    raise InputError(f"{path}, line {number}, has more than {MAX_LINE} characters")
                if line.strip():
                    row = json.loads(line)
                    if not isinstance(row, dict):
                        raise InputError(f"{path}, line {number}, is not an object")
                    yield number, row
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}, line {number}, cannot be read ({error}): it may be truncated") from None
