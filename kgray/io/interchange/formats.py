"""The table of formats: the name of each, and whether it can be written and read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal

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
    """A format: the module of its name has `write(snapshot, path) -> rows by kind`, and the reader `units`.

    suffix   of its file; "" = it is a folder
    writer   it can be written, to a path that does not exist yet, or to an empty folder
    reader   it can be read
    """

    name: str
    media: str = ""
    suffix: str = ""
    writer: bool = False
    reader: bool = False

    @property
    def is_folder(self) -> bool:
        """Tell whether the format has several files."""
        return not self.suffix

    def module(self) -> Any:  # noqa: ANN401 - a module
        """Return the module that writes and reads the format."""
        return import_module(f"kgray.io.interchange.{self.name}")


FORMATS: Mapping[str, Format] = {
    form.name: form
    for form in (
        Format(name="jsonl", media="application/x-ndjson", suffix=".jsonl", writer=True),
        Format(name="parquet", writer=True, reader=True),
        Format(name="graphml", media="application/graphml+xml", suffix=".graphml", writer=True),
        Format(name="gexf", media="application/gexf+xml", suffix=".gexf", writer=True),
        Format(name="graphrag", writer=True, reader=True),
        Format(name="lightrag", writer=True, reader=True),
        Format(name="cogx", writer=True, reader=True),
        Format(name="okf", writer=True),
        Format(name="zep", reader=True),
        Format(name="mem0", reader=True),
        Format(name="graphiti", reader=True),
    )
}


def format_called(name: str, part: Literal["writer", "reader"]) -> Format:
    """Return the format with a name that can be written or read. Raises InputError with all names."""
    names = [form.name for form in FORMATS.values() if getattr(form, part)]
    if name not in names:
        raise InputError(
            f"there is no format {name[:40]!r}: use {', '.join(names)}",
            field="to" if part == "writer" else "form",
        )
    return FORMATS[name]
