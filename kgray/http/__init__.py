"""The memory over HTTP: `create_app` makes an ASGI app, which `kgray serve` and any other server runs."""

from __future__ import annotations

from kgray.http.app import create_app
from kgray.http.door import Bounds

__all__ = ["Bounds", "create_app"]
