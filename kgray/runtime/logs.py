"""JSON lines of the actors: stage, episode and trace id; no line holds a text of an episode.

The trace id is a hash of the group and the sequence, which an episode has from its acceptance on, so every
process can compute it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
import time
from contextlib import suppress
from typing import Any

from kgray import times
from kgray.runtime.outcomes import Outcome

LOGGER = logging.getLogger("kgray.runtime")
_encoded = json.JSONEncoder(ensure_ascii=False).encode


def _line(created: float, level: str, message: str, role: str, **more: Any) -> str:  # noqa: ANN401 - JSON
    at = times.show(round(created * 1_000_000))
    return _encoded({"at": at, "level": level, "message": message, "role": role, **more})


class _JsonLines(logging.Formatter):
    """One JSON object a record: time, level, message, role, and the epoch where it is set."""

    role = ""

    def format(self, record: logging.LogRecord) -> str:
        more = {"epoch": found} if (found := getattr(record, "epoch", None)) is not None else {}
        if record.exc_info:
            more["traceback"] = self.formatException(record.exc_info)
        return _line(record.created, record.levelname, record.getMessage(), self.role, **more)


_LINES = _JsonLines()


def start(role: str) -> None:
    """Send this process's lines to its standard error, which Ray keeps in a file of the session."""
    _LINES.role = role
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_LINES)
    LOGGER.handlers[:] = [handler]
    LOGGER.propagate = False
    LOGGER.setLevel(logging.INFO)


def trace_of(group: str, sequence: int) -> str:
    """Return the trace id of an episode: 32 hex characters."""
    return hashlib.sha256(f"kgray trace\x1f{group}\x1f{sequence}".encode()).hexdigest()[:32]


def stage(
    name: str, group: str, sequence: int, *, seconds: float | None = None, outcome: Outcome = None
) -> None:
    """Log that an episode has passed a stage. One write a line: `logging` takes twice as long."""
    more: dict[str, Any] = {} if seconds is None else {"seconds": round(seconds, 4)}
    if isinstance(outcome, Exception):
        more["error"] = type(outcome).__name__
    of = {"stage": name, "group": group, "sequence": sequence, "trace": trace_of(group, sequence)}
    with suppress(OSError, ValueError):  # a full disk under the logs stops no work
        sys.stderr.write(_line(time.time(), "INFO", name, _LINES.role, **of, **more) + "\n")
