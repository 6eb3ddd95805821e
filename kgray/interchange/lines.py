"""Reads JSON files of other programs, with one line for a file that is no JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kgray.errors import InputError

MAX_LINE = 64 << 20  # characters: a longer line is no row of a text


def read_json(path: Path) -> Any:  # noqa: ANN401 - JSON
    """Return the value of a JSON file. Raises InputError with the path."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path} is not there") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as JSON ({error}): it may be truncated") from None


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
