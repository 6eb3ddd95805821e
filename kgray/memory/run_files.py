"""The files in which backfill runs keep texts of episodes beside the store, and their removal."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kgray.locks import explained, for_owner

RUNS = "runs"  # the folder of the runs' folders
# Of a run, the rows that were not taken, with the reasons; in the data folder, those of the last `kgray add`
# that refused many.
REFUSED = "refused.jsonl"
REPORT = "report.json"  # of a run: with the messages of episodes that failed


def keep_refused(data: Path, refusals: Iterable[Mapping[str, Any]]) -> Path:
    """Write the refusals of the last submission, one JSON object a line; return the file."""
    path = data / REFUSED
    with explained(path), open(path, "w", encoding="utf-8", opener=for_owner) as file:
        file.writelines(json.dumps(refusal) + "\n" for refusal in refusals)
    return path


def forget_texts(data: Path, quotes: Iterable[str]) -> None:
    """Delete the texts and messages of episodes that runs keep (R25).

    quotes: what the reasons of refused rows may quote of the removed episodes. It is overwritten in place,
    because a run may go on to append to that file.
    """
    lines = {json.dumps(text, ensure_ascii=escaped)[1:-1] for text in quotes for escaped in (True, False)}
    quoted = [line.encode() for line in lines]
    with explained(data):
        (data / REFUSED).unlink(missing_ok=True)
    for run in (data / RUNS).glob("*/"):
        with explained(run):
            shutil.rmtree(run / "sorted", ignore_errors=True)  # rows that an earlier version sorted there
            (run / REPORT).unlink(missing_ok=True)
            if (run / REFUSED).exists():
                with (run / REFUSED).open("r+b") as file:
                    held = file.read()
                    for found in (one for text in quoted for one in re.finditer(re.escape(text), held)):
                        file.seek(found.start())
                        file.write(b"-" * len(found[0]))
