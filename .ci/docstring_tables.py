"""An extension of griffe: the tables of arguments in docstrings become Markdown lists."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

ROW = re.compile(r"([\w.*]+(?:, [\w.*]+)*) {2,}(\S.*)")
CONTINUATION = re.compile(r" {6,}(\S.*)")


class DocstringTables(Extension):
    """Rewrites rows such as `limit    the number of hits` of every docstring."""

    def on_object(self, *, obj: Object, **_: Any) -> None:  # noqa: ANN401 - griffe's other arguments
        """Rewrite the docstring of an object, if it has one."""
        if obj.docstring is not None:
            obj.docstring.value = with_lists(obj.docstring.value)


def with_lists(text: str) -> str:
    """Return a docstring whose tables are lists, each between blank lines."""
    lines: list[str] = []
    in_table = False
    for line in text.splitlines():
        if row := ROW.fullmatch(line):
            lines += [] if in_table else [""]
            lines.append(f"- `{row[1]}`: {row[2]}")
            in_table = True
        elif in_table and (more := CONTINUATION.fullmatch(line)):
            lines[-1] += f" {more[1]}"
        else:
            lines += [""] if in_table else []
            lines.append(line)
            in_table = False
    return "\n".join(lines)
