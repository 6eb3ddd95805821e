"""JSON lines with stage and episode, and one trace id from acceptance to commit; no text of an episode.

The trace id follows from the group and the sequence, which the log gives an episode when it is accepted:
every process knows it without being told.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
from typing import Any

from kgray import times
from kgray.runtime.outcomes import Fault, Outcome

LOGGER = logging.getLogger("kgray.runtime")
_OWN = ("role", "stage", "group", "sequence", "trace", "seconds", "error", "count", "epoch")


class JsonLines(logging.Formatter):
    """One JSON object a record."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON: when, how grave, what, and our own fields where they are set."""
        row: dict[str, Any] = {
            "at": times.show(round(record.created * 1_000_000)),
            "level": record.levelname,
            "message": record.getMessage(),
        }
        row |= {name: getattr(record, name) for name in _OWN if getattr(record, name, None) is not None}
        if record.exc_info:
            row["traceback"] = self.formatException(record.exc_info)
        return json.dumps(row, ensure_ascii=False)


def start(role: str) -> None:
    """Send this process's lines to its standard error, which Ray keeps in a file of the session."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())

    def mark(record: logging.LogRecord) -> bool:
        record.role = role
        return True

    handler.addFilter(mark)
    LOGGER.handlers[:] = [handler]
    LOGGER.propagate = False
    LOGGER.setLevel(logging.INFO)


def trace_of(group: str, sequence: int) -> str:
    """Return the trace id of an episode: 32 hex characters."""
    return hashlib.sha256(f"kgray trace\x1f{group}\x1f{sequence}".encode()).hexdigest()[:32]


def stage(
    name: str, group: str, sequence: int, *, seconds: float | None = None, outcome: Outcome = None
) -> None:
    """Say that an episode has passed a stage."""
    extra = {"stage": name, "group": group, "sequence": sequence, "trace": trace_of(group, sequence)}
    if seconds is not None:
        extra["seconds"] = round(seconds, 4)
    if isinstance(outcome, Fault):
        extra["error"] = outcome.kind
    LOGGER.info(name, extra=extra)
