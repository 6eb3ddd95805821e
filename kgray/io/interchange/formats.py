"""The table of formats: the name of each, and the modules that write and read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from kgray.domain.times import Instant
from kgray.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """An export. rows: how many of each kind.

    state           changes with the group (`exporting.state_of`)
    recorded_at     the group's newest record time
    """

    format: str
    files: int
    rows: Mapping[str, int]
    state: str = field(default="", compare=False)
    recorded_at: Instant = field(default=0, compare=False)

    def as_dict(self) -> dict[str, Any]:
        """Return the form of JSON."""
        return {"format": self.format, "files": self.files, "rows": dict(self.rows)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One format.

    suffix   of its file; "" = it is a folder
    writer   a module of this package with `write(snapshot, path) -> rows by kind`: path is a file that does
             not exist yet, or an empty folder. "" = it cannot be written
    reader   a module of this package; "" = it cannot be read
    """

    name: str
    media: str = ""
    suffix: str = ""
    writer: str = ""
    reader: str = ""

    @property
    def is_folder(self) -> bool:
        """Tell whether the format has several files."""
        return not self.suffix

    def code(self, part: str) -> Any:  # noqa: ANN401 - a module
        """Return the module that writes or reads. part: writer or reader."""
        return import_module(f"kgray.io.interchange.{getattr(self, part)}")


FORMATS: Mapping[str, Format] = {
    form.name: form
    for form in (
        Format(name="jsonl", media="application/x-ndjson", suffix=".jsonl", writer="jsonl"),
        Format(name="parquet", writer="parquet", reader="read_parquet"),
        Format(name="graphml", media="application/graphml+xml", suffix=".graphml", writer="graphml"),
        Format(name="gexf", media="application/gexf+xml", suffix=".gexf", writer="gexf"),
        Format(name="graphrag", writer="graphrag", reader="read_graphrag"),
        Format(name="lightrag", writer="lightrag", reader="read_lightrag"),
        Format(name="cogx", writer="cogx", reader="read_cogx"),
        Format(name="okf", writer="okf"),
        Format(name="zep", reader="read_zep"),
        Format(name="mem0", reader="read_mem0"),
        Format(name="graphiti", reader="read_graphiti"),
    )
}


def format_called(name: str, part: str) -> Format:
    """Return the format with a name that can be written or read. Raises InputError with all names."""
    names = [form.name for form in FORMATS.values() if getattr(form, part)]
    if name not in names:
        raise InputError(
            f"there is no format {name[:40]!r}: use {', '.join(names)}",
            field="to" if part == "writer" else "form",
        )
    return FORMATS[name]
