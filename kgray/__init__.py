"""kgray: long-term memory for AI agents as a temporal knowledge graph.

`kgray.open` opens a data folder, `kgray.connect` a server's memory; `open_async` and `connect_async` return
the same methods to await. The other names are results and errors.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from kgray.domain.graph import Entity, FactSpan, Hit
    from kgray.errors import (
        Ambiguous,
        Denied,
        InputError,
        KgrayError,
        NotBuilt,
        NotFound,
        SettingsError,
        Stopped,
        StoreError,
        Unavailable,
    )
    from kgray.memory import AsyncMemory, EntityCount, GroupSize, History, Memory, Report
    from kgray.memory.client import connect, connect_async
    from kgray.memory.opening import open, open_async  # noqa: A004 - the verb a user expects: kgray.open(...)
    from kgray.search import Context, Filters

_HOMES = {
    name: module
    for module, names in (
        ("memory.client", "connect connect_async"),
        ("memory.opening", "open open_async"),
        ("memory", "AsyncMemory EntityCount GroupSize History Memory Report"),
        ("domain.graph", "Entity FactSpan Hit"),
        ("search", "Context Filters"),
        ("errors", "Ambiguous Denied InputError KgrayError NotBuilt NotFound SettingsError Stopped"),
        ("errors", "StoreError Unavailable"),
    )
    for name in names.split()
}
__all__ = [
    "Ambiguous", "AsyncMemory", "Context", "Denied", "Entity", "EntityCount", "FactSpan", "Filters",
    "GroupSize", "History", "Hit", "InputError", "KgrayError", "Memory", "NotBuilt", "NotFound",
    "Report", "SettingsError", "Stopped", "StoreError", "Unavailable", "__version__", "connect",
    "connect_async", "open", "open_async",
]  # fmt: skip


def __getattr__(name: str) -> Any:  # noqa: ANN401 - PEP 562
    """Import a name on first use, so that `import kgray` and `kgray --help` stay instant."""
    if name in _HOMES:
        return getattr(import_module(f"kgray.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'kgray' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
