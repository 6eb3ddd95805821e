"""Parquet tables, written in portions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kgray.domain.records import canonical
from kgray.errors import InputError
from kgray.io.interchange.lines import unreadable
from kgray.system.locks import for_owner

_PORTION = 5_000  # rows of a row group
_BATCH = 1_000  # rows that are read at once, at most
_PORTION_BYTES = 4 << 20  # about as much text at most, of rows that are written or read at once
_BUFFER = 1 << 20  # bytes of a column that are read at once
TEXTS = pa.list_(pa.string())


def write_table(path: Path, schema: Any, rows: Iterable[Sequence[Any]], about: Mapping[str, Any]) -> int:  # noqa: ANN401 - pyarrow has no types
    """Write rows, tuples in the order of the schema, as one Parquet file; return how many.

    about: stored in the file's metadata under the key "kgray"
    """
    schema = schema.with_metadata({"kgray": canonical(about)})
    count, size, portion = 0, 0, list[Sequence[Any]]()
    with (
        open(path, "wb", opener=for_owner) as file,
        pq.ParquetWriter(file, schema, compression="zstd") as writer,
    ):

        def flush() -> None:
            columns = zip(*portion, strict=True)
            arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))  # a row group; a batch would wait
            portion.clear()

        for row in rows:
            portion.append(row)
            count += 1
            size += sum(_size(value) for value in row)
            if len(portion) == _PORTION or size > _PORTION_BYTES:
                flush()
                size = 0
        if portion:
            flush()
    return count


def _size(value: object) -> int:
    if isinstance(value, str | bytes):
        return len(value)
    return sum(map(_size, value)) if isinstance(value, list | tuple) else 8


def _check_type(path: Path, field: Any, is_list: bool, exact: Any) -> None:  # noqa: ANN401 - pyarrow has no types
    """Raise InputError where a column has another type than its reader expects."""
    type_ = field.type
    has_list = pa.types.is_list(type_) or pa.types.is_large_list(type_)
    is_as_expected = (
        type_ == exact
        if exact is not None
        else pa.types.is_null(type_) or (has_list if is_list else not pa.types.is_nested(type_))
    )
    if not is_as_expected:
        expected = exact or ("a list" if is_list else "a text, number or time")
        raise InputError(f"{path}: column {field.name} is {type_}, not {expected}")


def read_table(
    path: Path, columns: Sequence[str], optional: Sequence[str] = (), *,
    lists: Sequence[str] = (), types: Mapping[str, Any] | None = None,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Yield the rows of a Parquet file; an optional column that is missing is None in each row.

    lists   the columns that hold lists; the others hold neither lists nor structures
    types   the exact types of columns, by name

    Raises InputError, with the path, where the file is missing or damaged, or lacks a column, or has one of
    another type.
    """
    try:
        with pq.ParquetFile(path, buffer_size=_BUFFER) as file:
            present = set(file.schema_arrow.names)
            if missing := [name for name in columns if name not in present]:
                raise InputError(f"{path} has no column {', '.join(missing)}: is it another program's table?")
            wanted = [name for name in (*columns, *optional) if name in present]
            for name in wanted:
                _check_type(path, file.schema_arrow.field(name), name in lists, (types or {}).get(name))
            blank = dict.fromkeys(optional)
            about = file.metadata
            groups = map(about.row_group, range(about.num_row_groups))
            widest = max((group.total_byte_size // max(1, group.num_rows) for group in groups), default=0)
            rows = max(1, min(_BATCH, _PORTION_BYTES // max(1, widest)))
            for batch in file.iter_batches(batch_size=rows, columns=wanted):
                for row in batch.to_pylist():
                    yield blank | row
    except FileNotFoundError:
        raise InputError(f"{path} is not there: name the folder with the tables") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        raise unreadable(path, "Parquet", error) from None
