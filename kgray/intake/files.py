"""The format of a file, and its rows as drafts."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Literal

from kgray.errors import InputError
from kgray.intake.drafts import Defaults, Refusal, draft_from
from kgray.intake.formats import NumberedRow, csv_rows, json_array, json_lines, parquet_rows
from kgray.intake.texts import Piece, pieces
from kgray.records import MAX_CLIENT_ID, Draft

Format = Literal["lines", "array", "csv", "tsv", "parquet", "text"]
Share = Callable[[], float]
_EXTENSIONS: dict[str, Format] = {
    ".jsonl": "lines",
    ".ndjson": "lines",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".txt": "text",
    ".md": "text",
}
EXTENSIONS = frozenset(_EXTENSIONS) | {".json"}  # what a folder is searched for
_SNIFFED = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """A draft and its place in the input.

    whole   the file is one source: with --replace, episodes that are no longer in it are retracted
    """

    draft: Draft
    file: str
    line: int | None
    whole: bool = False


class Position:
    """How much of a file was read, as a share of its bytes or rows; for progress bars."""

    def __init__(self) -> None:
        """Start at 0."""
        self.share: Share = lambda: 0.0

    def follow(self, file: BinaryIO) -> None:
        """Measure the share by the position in an open file."""
        size = max(1, os.fstat(file.fileno()).st_size)
        self.share = lambda: 1.0 if file.closed else min(1.0, file.tell() / size)


def read_file(
    path: Path,
    defaults: Defaults,
    *,
    name: str | None = None,
    skip: int = 0,
    position: Position | None = None,
) -> Iterator[Submitted | Refusal]:
    """Yield each row of a file in order, as a draft or a refusal; never raises for what the file contains.

    name      what refusals and text sources call the file; its path unless said
    skip      how many rows to leave out at the start, because an earlier reading yielded them
    position  is updated with how much was read
    """
    shown = name or str(path)
    position = position or Position()
    try:
        form = _format(path)
        if form == "text":
            yield from _text(path, defaults, shown, skip, position)
        elif form == "parquet":
            yield from _drafts(parquet_rows(path, skip=skip, reading=position), defaults, shown)
        else:
            with path.open("rb") as file:
                position.follow(file)
                yield from _drafts(_rows(file, form, skip), defaults, shown)
    except OSError as error:
        yield Refusal(file=shown, line=None, field=None, reason=f"cannot be read: {error.strerror or error}")


@contextmanager
def spooled(stream: BinaryIO | None = None, *, suffix: str = "") -> Iterator[Path]:
    """Copy standard input (or a stream) to a temporary file and yield its path; the file is deleted after."""
    if stream is None:
        if sys.stdin is None:
            raise InputError("- is standard input, and that is closed")
        stream = sys.stdin.buffer
    with tempfile.NamedTemporaryFile(prefix="kgray-", suffix=suffix) as file:
        try:
            shutil.copyfileobj(stream, file)
            file.flush()
        except OSError as error:
            raise InputError(f"the input cannot be kept in {file.name}: {error.strerror or error}") from None
        yield Path(file.name)


def _format(path: Path) -> Format:
    """Return the format by the extension, else by the first byte that is not blank."""
    if known := _EXTENSIONS.get(path.suffix.lower()):
        return known
    with path.open("rb") as file:
        first = file.read(4)
        if first == b"PAR1":
            return "parquet"
        file.seek(0)
        while block := file.read(_SNIFFED).removeprefix(b"\xef\xbb\xbf"):
            if start := block.lstrip():
                return "array" if start.startswith(b"[") else "lines"
    return "lines"


def _rows(file: BinaryIO, form: Format, skip: int) -> Iterator[NumberedRow]:
    if form == "lines":
        return json_lines(file, skip=skip)
    rows = json_array(file) if form == "array" else csv_rows(file, "," if form == "csv" else "\t")
    return islice(rows, skip, None)


def _drafts(rows: Iterator[NumberedRow], defaults: Defaults, shown: str) -> Iterator[Submitted | Refusal]:
    for line, row in rows:
        try:
            if isinstance(row, InputError):
                raise row
            draft = draft_from(row, defaults)
        except InputError as error:
            yield Refusal(file=shown, line=line, field=error.field, reason=str(error))
        else:
            yield Submitted(draft=draft, file=shown, line=line)


def _text(
    path: Path, defaults: Defaults, shown: str, skip: int, position: Position
) -> Iterator[Submitted | Refusal]:
    """Yield the pieces of a text file as `text` episodes of one source.

    A piece's client id is the file's and its number: the same file again is a no-op, an edited one a
    conflict that `replace` resolves piece by piece.
    """
    base = Path(shown).name
    source = defaults.source or base
    prefix = base if source == base else f"{source}/{base}"
    if len(prefix) > MAX_CLIENT_ID - 12:
        prefix = prefix[:100] + "~" + hashlib.sha256(prefix.encode(errors="replace")).hexdigest()[:32]
    line: int | None = None
    number = 0
    try:
        with path.open("rb") as file:
            position.follow(file)
            for number, piece in enumerate(pieces(file), 1):
                line = piece.line
                if number <= skip:
                    continue
                row = _piece_row(piece, number, f"{prefix}#{number}", source)
                draft = draft_from(row, Defaults(group=defaults.group, at=defaults.at))
                yield Submitted(draft=draft, file=shown, line=line, whole=True)
    except InputError as error:
        if number >= skip:  # otherwise an earlier reading has yielded it, after the last piece
            yield Refusal(file=shown, line=line, field=error.field, reason=str(error))
        return
    if not number and not skip:
        yield Refusal(file=shown, line=None, field="text", reason="the file holds no text")


def _piece_row(piece: Piece, number: int, client_id: str, source: str) -> dict[str, object]:
    return {
        "id": client_id,
        "source": source,
        "kind": "text",
        "text": piece.text,
        "part": number,
        "characters": [piece.start, piece.end],
    }
