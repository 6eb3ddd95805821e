"""The public API of the library: `Memory`, in face.py, and what its methods return."""

from __future__ import annotations

from kgray.memory.answers import EntityCount, History
from kgray.memory.face import BothWays, Memory
from kgray.memory.ingesting import Report

__all__ = ["BothWays", "EntityCount", "History", "Memory", "Report"]
