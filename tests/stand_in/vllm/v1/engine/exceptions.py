from __future__ import annotations


class EngineDeadError(Exception):
    """The engine has ended."""
