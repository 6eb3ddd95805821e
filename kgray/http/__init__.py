"""The memory over HTTP: `create_app` makes an ASGI app, which `kgray serve` and any other server runs.

app         the factory; what stands in front of every route; health, metrics
routes      the table of routes; reading and writing: what they do; models: bodies and answers
door        what a server holds: threads, bounds, loops
appending   rows to drafts; drafts of concurrent requests into one transaction
guard       keys, scopes, Host and Origin
mounted     MCP under the same keys
problems    errors as application/problem+json
"""

from __future__ import annotations

from kgray.http.app import create_app
from kgray.http.door import Bounds

__all__ = ["Bounds", "create_app"]
