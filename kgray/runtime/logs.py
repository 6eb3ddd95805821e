"""JSON lines of the actors: stage, episode and trace id; no line holds a text of an episode.

The trace id is a hash of the group and the sequence, which an episode has from its acceptance on, so every
process can compute it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
from typing import Any

from kgray import times
from kgray.runtime.outcomes import Outcome

LOGGER = logging.getLogger("kgray.runtime")
_FIELDS = ("stage", "group", "sequence", "trace", "seconds", "error", "epoch")


class _JsonLines(logging.Formatter):
    """One JSON object a record: time, level, message, role, and kgray's own fields where they are set."""

    def __init__(self, role: str) -> None:
        super().__init__()
        self._role = role

    def format(self, record: logging.LogRecord) -> str:
        row: dict[str, Any] = {
            "at": times.show(round(record.created * 1_000_000)),
            "level": record.levelname,
            "message": record.getMessage(),
            "role": self._role,
        }
        row |= {name: found for name in _FIELDS if (found := getattr(record, name, None)) is not None}
        if record.exc_info:
            row["traceback"] = self.formatException(record.exc_info)
        return json.dumps(row, ensure_ascii=False)


def start(role: str) -> None:
    """Send this process's lines to its standard error, which Ray keeps in a file of the session."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines(role))
    LOGGER.handlers[:] = [handler]
    LOGGER.propagate = False
    LOGGER.setLevel(logging.INFO)


def trace_of(group: str, sequence: int) -> str:
    """Return the trace id of an episode: 32 hex characters."""
    return hashlib.sha256(f"kgray trace\x1f{group}\x1f{sequence}".encode()).hexdigest()[:32]


def stage(
    name: str, group: str, sequence: int, *, seconds: float | None = None, outcome: Outcome = None
) -> None:
    """Log that an episode has passed a stage."""
    extra = {"stage": name, "group": group, "sequence": sequence, "trace": trace_of(group, sequence)}
    if seconds is not None:
        extra["seconds"] = round(seconds, 4)
    if isinstance(outcome, Exception):
        extra["error"] = type(outcome).__name__
    LOGGER.info(name, extra=extra)
