"""Rows with their line numbers from JSON Lines, a JSON array, CSV and Parquet, as streams.

Each reader yields (line, row) or (line, InputError) and never raises for a file's content. It has a single
row in memory, or BATCH rows of Parquet.
"""

from __future__ import annotations

import codecs
import csv
import json
import math
import os
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO

from kgray.errors import InputError
from kgray.intake.drafts import LENIENT, STRICT, parse_json
from kgray.intake.remote import RemoteFile, first_line

MAX_LINE = 16 << 20  # bytes of a row
BATCH = 256  # rows of Parquet at a time
_BLOCK = 1 << 16
_INK = re.compile("[^ \t\r\n]")  # the next character that JSON does not skip
_UNREAD = "the rest of the file was not read"

NumberedRow = tuple[int | None, object]  # (line, row or InputError)


class Position:
    """The share of a file's bytes or rows that was read; for progress bars.

    columns: of a table, after its header was read; None = the file is no table
    """

    def __init__(self) -> None:
        self.share: Callable[[], float] = lambda: 0.0
        self.columns: Sequence[str] | None = None

    def follow(self, file: BinaryIO) -> None:
        """Measure the share by the position in an open file."""
        size = max(1, file.seek(0, os.SEEK_END))
        file.seek(0)
        raw: BinaryIO = getattr(file, "raw", file)  # it knows its position while another thread reads

        def share() -> float:
            with suppress(ValueError):  # closed, maybe by another thread
                return min(1.0, raw.tell() / size)
            return 1.0

        self.share = share


def lines(file: BinaryIO, first: int = 1) -> Iterator[tuple[int, bytes | None]]:
    """Yield (number, line without its end); None in place of a line longer than MAX_LINE bytes."""
    number = first - 1
    while line := file.readline(MAX_LINE + 1):
        number += 1
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if len(line) > MAX_LINE and not line.endswith(b"\n"):
            while (block := file.readline(_BLOCK)) and not block.endswith(b"\n"):
                pass
            yield number, None
        else:
            yield number, line.rstrip(b"\r\n")


def json_lines(file: BinaryIO, first: int = 1, *, skip: int = 0) -> Iterator[NumberedRow]:
    """Yield a row for each line that is not blank, after the first `skip` of them."""
    for number, line in lines(file, first):
        if skip and (line is None or line.strip()):
            skip -= 1
        elif line is None:
            yield number, InputError(f"longer than {MAX_LINE >> 20} MiB")
        elif line.strip():
            try:
                yield number, parse_json(line.decode())
            except UnicodeDecodeError as error:
                yield number, InputError(f"not valid UTF-8 at byte {error.start + 1}")
            except InputError as error:
                yield number, error


class _TextBuffer:
    """The text of a file that was read and not yet consumed, with its line number."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._text = ""
        self._at = 0
        self.line = 1
        self.ended = False

    def grow(self) -> None:
        """Read a block as long as the buffer, so that a long row is scanned only a few times."""
        block = self._file.read(max(_BLOCK, len(self._text) - self._at))
        self.ended = not block
        try:
            decoded = self._decoder.decode(block, self.ended)
        except UnicodeDecodeError:
            raise InputError(f"not valid UTF-8 from here; {_UNREAD}") from None
        if self._at == 0 and not self._text:
            decoded = decoded.removeprefix("\ufeff")
        self._text, self._at = self._text[self._at :] + decoded, 0

    def skip_blanks(self) -> str:
        """Skip blanks and return the next character, "" at the end of the file."""
        while (match := _INK.search(self._text, self._at)) is None:
            self.take(len(self._text))
            if self.ended:
                return ""
            self.grow()
        self.take(match.start())
        return match[0]

    def take(self, end: int) -> None:
        self.line += self._text.count("\n", self._at, end)
        self._at = end

    def take_sign(self) -> str:
        sign = self.skip_blanks()
        self.take(self._at + len(sign))
        return sign

    def value(self) -> object:
        """Consume a JSON value; return it, or its fault. Raises InputError if it has no end."""
        while True:
            try:
                _, end = LENIENT.raw_decode(self._text, self._at)
                if end < len(self._text) or self.ended:
                    break
            except json.JSONDecodeError as error:
                if self.ended:
                    raise InputError(f"not valid JSON ({error.msg}); {_UNREAD}") from None
            except RecursionError:
                raise InputError(f"nested too deep; {_UNREAD}") from None
            if len(self._text) - self._at > MAX_LINE:
                raise InputError(f"not valid JSON, or longer than {MAX_LINE >> 20} MiB; {_UNREAD}")
            self.grow()
        start = self._at
        self.take(end)
        try:
            return STRICT.raw_decode(self._text, start)[0]
        except InputError as error:
            return error

    def remaining_file(self) -> Iterator[NumberedRow]:
        unread_bytes = len(self._text[self._at :].encode()) + len(self._decoder.getstate()[0])
        self._file.seek(-unread_bytes, os.SEEK_CUR)
        yield from json_lines(self._file, self.line)


def json_values(file: BinaryIO) -> Iterator[NumberedRow]:
    """Yield the items of a JSON array, or consecutive values, each with the line where it starts.

    A value without an end ends the file with a refusal, because the next value cannot be found either.
    Lines after the end of an array are read as JSON Lines.
    """
    text = _TextBuffer(file)
    try:
        if text.skip_blanks() != "[":
            while text.skip_blanks():
                yield text.line, text.value()
            return
        text.take_sign()
        sign = text.take_sign() if text.skip_blanks() == "]" else ","
        while sign != "]":
            text.skip_blanks()
            yield text.line, text.value()
            if (sign := text.take_sign()) not in (",", "]"):
                missing = "a comma is missing between two items" if sign else "the array does not end"
                raise InputError(f"not valid JSON: {missing}; {_UNREAD}")
        if text.skip_blanks():
            yield from text.remaining_file()
    except InputError as error:
        yield text.line, error


def csv_rows(file: BinaryIO, delimiter: str, reading: Position) -> Iterator[NumberedRow]:
    """Yield a row for each record, with the header's names; an empty cell is an absent field."""
    header: list[str] | None = None
    for start, cells in _records(file, delimiter):
        if isinstance(cells, InputError):
            yield start, cells
        elif header is None:
            reading.columns = header = [cell.strip() for cell in cells]
            twice = {name for name in header if name and header.count(name) > 1}
            if twice or _undecoded(header):
                fault = f"names {min(twice)[:80]!a} twice" if twice else "is not valid UTF-8"
                yield start, InputError(f"the header {fault}; the file was not read")
                return
        elif len(cells) > len(header):
            yield start, InputError(f"{len(cells)} cells under a header of {len(header)} names")
        elif _undecoded(cells):
            yield start, InputError("not valid UTF-8")
        else:
            named = enumerate(zip(header, cells, strict=False), 1)
            yield start, {name or f"column{i}": cell for i, (name, cell) in named if cell}


def _records(file: BinaryIO, delimiter: str) -> Iterator[tuple[int, list[str] | InputError]]:
    """Yield (first line, cells) of each record that is not blank."""
    csv.field_size_limit(MAX_LINE)
    too_long: list[int] = []

    def texts() -> Iterator[str]:
        for number, line in lines(file):
            if line is None:
                too_long.append(number)
            # A byte that is no UTF-8 becomes a lone surrogate, and its whole record is refused.
            yield "\n" if line is None else line.decode(errors="surrogateescape") + "\n"

    reader = csv.reader(texts(), delimiter=delimiter, strict=True)
    cells: list[str] | InputError | None = []
    while cells is not None:
        start = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            cells = InputError(f"not valid CSV: {error}")
        for number in too_long:
            yield number, InputError(f"longer than {MAX_LINE >> 20} MiB")
        too_long.clear()
        if isinstance(cells, InputError) or (cells and any(cell.strip() for cell in cells)):
            yield start, cells


def _undecoded(cells: list[str]) -> bool:
    """Tell whether a cell has an invalid UTF-8 byte: a lone surrogate."""
    return any("\udc80" <= c <= "\udcff" for cell in cells if not cell.isascii() for c in cell)


def parquet_rows(path: Path | RemoteFile, skip: int, reading: Position) -> Iterator[NumberedRow]:
    """Yield the rows of a Parquet file after the first `skip`, by number; null and NaN are absent fields."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path if isinstance(path, Path) else path.open()) as file:
            rows, groups = max(1, file.metadata.num_rows), range(file.metadata.num_row_groups)
            reading.share = lambda: number / rows
            reading.columns = file.schema_arrow.names
            # A row group that is skipped completely is not read.
            ends = [*accumulate(file.metadata.row_group(i).num_rows for i in groups)]
            first = bisect_right(ends, skip)
            number = ends[first - 1] if first else 0
            for batch in file.iter_batches(batch_size=BATCH, row_groups=list(groups[first:])):
                for row in _micros(batch).to_pylist():
                    number += 1
                    if number > skip:
                        yield number, _bare(row)
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        if skip and number < skip:  # an earlier reading yielded this fault as its last row
            return
        reason = InputError(f"not readable as Parquet: {first_line(error)}; {_UNREAD}")
        yield number + 1 if number else None, reason


def _micros(batch: Any) -> Any:  # noqa: ANN401 - pyarrow has no types
    """Return the batch with nanosecond times cut to microseconds, kgray's finest precision."""
    import pyarrow as pa

    for i, column in enumerate(batch.schema):
        if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
            micros = batch.column(i).cast(pa.timestamp("us", column.type.tz), safe=False)
            batch = batch.set_column(i, column.name, micros)
    return batch


def _bare(value: object) -> object:
    """Return a value without inner nulls and NaN: every struct of a column has all the keys."""
    if isinstance(value, dict):
        bare = ((key, _bare(inner)) for key, inner in value.items() if inner is not None)
        return {key: inner for key, inner in bare if not (isinstance(inner, float) and math.isnan(inner))}
    return [_bare(inner) for inner in value] if isinstance(value, list) else value
