"""kgray: long-term memory for AI agents as a temporal knowledge graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["__version__", "open"]

if TYPE_CHECKING:
    from kgray.opening import open  # noqa: A004 - the verb a user expects: kgray.open(...)


def __getattr__(name: str) -> Any:  # noqa: ANN401 - PEP 562: the face is imported when first used
    """Import `kgray.open` on first use, so that `import kgray` and `kgray --help` stay instant."""
    if name == "open":
        from kgray.opening import open as opened

        return opened
    raise AttributeError(f"module 'kgray' has no attribute {name!r}")
