"""kgray: long-term memory for AI agents as a temporal knowledge graph.

`kgray.open` opens a memory, `kgray.connect` connects to a server; the other names are results and errors of
their methods.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from kgray.client import connect
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
    from kgray.graph import Entity, FactSpan, Hit
    from kgray.memory import EntityCount, History, Memory, Report
    from kgray.opening import open  # noqa: A004 - the verb a user expects: kgray.open(...)
    from kgray.search import Context, Filters

_HOMES = {
    name: module
    for module, names in (
        ("client", "connect"),
        ("opening", "open"),
        ("memory", "EntityCount History Memory Report"),
        ("graph", "Entity FactSpan Hit"),
        ("search", "Context Filters"),
        ("errors", "Ambiguous Denied InputError KgrayError NotBuilt NotFound SettingsError Stopped"),
        ("errors", "StoreError Unavailable"),
    )
    for name in names.split()
}
__all__ = [
    "Ambiguous", "Context", "Denied", "Entity", "EntityCount", "FactSpan", "Filters", "History", "Hit",
    "InputError", "KgrayError", "Memory", "NotBuilt", "NotFound", "Report", "SettingsError", "Stopped",
    "StoreError", "Unavailable", "__version__", "connect", "open",
]  # fmt: skip


def __getattr__(name: str) -> Any:  # noqa: ANN401 - PEP 562
    """Import a name on first use, so that `import kgray` and `kgray --help` stay instant."""
    if name in _HOMES:
        return getattr(import_module(f"kgray.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'kgray' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
