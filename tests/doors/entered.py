"""Prints which files of kgray one message and one query enter, with the backends that are the default.

    python -m tests.doors.entered FOLDER

Output: JSON {"message": [file, ...], "query": [file, ...]}, in the order of first entry. FOLDER is an empty
data folder. Its memory is open, and one message and one query went before: work that a process does once
(settings, schema, imports, caches) is not on the path. A file counts as entered if a function or method
that it defines was called; class bodies, lambdas and comprehensions do not count.
"""

from __future__ import annotations

import inspect
import json
import sys
import threading
from pathlib import Path
from types import FrameType

import kgray

ROOT = Path(kgray.__file__).resolve().parent.parent
PACKAGE = f"{ROOT / 'kgray'}/"


def main(folder: str) -> None:
    """Print the entered files; see above."""
    entered: dict[str, None] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        called = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")
        if event == "call" and called and code.co_filename.startswith(PACKAGE):
            entered.setdefault(Path(code.co_filename).relative_to(ROOT).as_posix())

    def next_files() -> list[str]:
        results = list(entered)
        entered.clear()
        return results

    # Before the memory opens: threads that already run are not profiled.
    threading.setprofile(note)
    sys.setprofile(note)
    with kgray.open(folder, create=True) as memory:
        memory.add(
            "I work at Acme, and I live in Berlin.", group="demo", speaker="Alice Nguyen", at="2026-03-01"
        )
        memory.search("Where does Alice work?", group="demo")
        next_files()
        memory.add(
            "I left Acme. I work at Beta Labs now.", group="demo", speaker="Alice Nguyen", at="2026-05-01"
        )
        message = next_files()
        memory.search("Where does Alice work now?", group="demo")
        query = next_files()
    sys.setprofile(None)
    threading.setprofile(None)
    print(json.dumps({"message": message, "query": query}, indent=1))  # noqa: T201 - the output


if __name__ == "__main__":
    main(sys.argv[1])
