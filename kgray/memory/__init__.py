"""The public API of the library: `Memory`, which blocks, `AsyncMemory`, and the results of their methods."""

from __future__ import annotations

from kgray.memory.answers import EntityCount, History
from kgray.memory.face import AsyncMemory, Memory
from kgray.memory.ingesting import Report
from kgray.memory.results import GroupSize

__all__ = ["AsyncMemory", "EntityCount", "GroupSize", "History", "Memory", "Report"]
