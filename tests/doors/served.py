"""A real server on loopback in a thread, and its clients."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

import kgray
from kgray.memory import AsyncMemory
from kgray.server.app import create_app
from kgray.server.protocol import server_of
from tests.waiting import HANGS_S, wait_for

# Loopback has no TLS; to read the system's certificates takes 40 ms for each client.
PLAIN = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class Served:
    """A server, its memory, and a client for each key."""

    def __init__(self, memory: AsyncMemory, url: str, app: Any) -> None:
        self.memory, self.url, self.app = memory, url, app
        self.clients: list[httpx2.Client] = []

    @property
    def door(self) -> Any:
        return self.app.state.door

    def client(self, key: str | None = None, **headers: str) -> httpx2.Client:
        authorization = {"authorization": f"Bearer {key}"} if key else {}
        new_client = httpx2.Client(
            base_url=self.url, headers=authorization | headers, timeout=HANGS_S, verify=PLAIN
        )
        self.clients.append(new_client)
        return new_client

    def memory_now(self) -> Any:
        """Open the same folder once more, to ask it directly."""
        return kgray.open(self.memory.store.folder, create=False)

    def key(self, groups: str, scopes: str, **options: Any) -> str:
        key = self.memory.admin.access.add(groups.split(","), scopes.split(","), **options).key
        self.door.guard.refresh()
        return key


@contextmanager
def serving(folder: Path, **options: Any) -> Iterator[Served]:
    """Serve a folder until the block ends."""
    memory = kgray.open_async(folder, create=True, settings=options.pop("settings", {}))
    app = create_app(memory, **options)
    server = server_of(app, "127.0.0.1", 0, grace_s=2)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_for(lambda: server.started or not thread.is_alive())
    served = Served(memory, f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}", app)
    try:
        yield served
    finally:
        for client in served.clients:
            client.close()
        server.should_exit = True
        thread.join(HANGS_S)
        memory.close()
