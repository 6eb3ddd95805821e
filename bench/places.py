"""Empty stores to measure in: a folder each, or a Neo4j server each."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from kgray.errors import SettingsError

StoreKind = Literal["sqlite", "neo4j"]
_PASSWORD = "KGRAY_STORE_PASSWORD"  # noqa: S105 - the variable's name
_HEAP = "768m"


def free_port() -> int:
    """Return a port that nobody listens at now."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@dataclass(slots=True)
class Place:
    """An empty store. settings: by key with an underscore, as `kgray.open` takes them."""

    data: Path
    settings: Mapping[str, str]
    server: Neo4jServer | None = None


@dataclass(slots=True)
class Neo4jServer:
    """A server of `cluster/neo4j/server` with its data in a folder; it ends with this process."""

    folder: Path
    port: int = field(default_factory=free_port)

    @property
    def uri(self) -> str:
        """Where it answers."""
        return f"bolt://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it; it answers on return."""
        self._do("start", str(self.port))

    def kill(self) -> None:
        """End it as a power cut does."""
        self._do("kill")

    def _do(self, command: str, *more: str) -> None:
        starter = Path(__file__).resolve().parents[1] / "cluster" / "neo4j" / "server"
        if not starter.is_file():
            raise SettingsError(f"--store neo4j needs the checkout: {starter} is not there")
        environ = {"NEO4J_PASSWORD": os.environ[_PASSWORD], "NEO4J_WATCH": str(os.getpid())}
        done = subprocess.run(  # noqa: S603 - our own script
            [starter, command, self.folder, *more],
            env={"NEO4J_HEAP": _HEAP} | os.environ | environ,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            said = done.stderr.strip().splitlines()[-1:]
            raise SettingsError(f"the Neo4j server cannot be used: {' '.join(said)}")


class Places:
    """Gives places."""

    def __init__(self, kind: StoreKind, folder: Path) -> None:
        """Make them below a folder."""
        self._kind, self._folder = kind, folder

    @contextmanager
    def fresh(self, name: str) -> Iterator[Place]:
        """Yield an empty place, which is gone afterwards as far as it costs memory."""
        data = self._folder / name
        data.mkdir(parents=True)
        if self._kind == "sqlite":
            yield Place(data, {"store_backend": "sqlite"})
            return
        server = Neo4jServer(data / "neo4j")
        server.folder.mkdir()
        server.start()
        try:
            yield Place(
                data, {"store_backend": "neo4j", "store_uri": server.uri, "store_user": "neo4j"}, server
            )
        finally:
            server.kill()


@contextmanager
def places(kind: StoreKind, folder: Path) -> Iterator[Places]:
    """Yield a maker of empty stores. For Neo4j this process and its children have a password meanwhile."""
    before = os.environ.get(_PASSWORD)
    if kind == "neo4j":
        os.environ[_PASSWORD] = secrets.token_hex(16)
    try:
        yield Places(kind, folder)
    finally:
        if before is not None:
            os.environ[_PASSWORD] = before
        elif kind == "neo4j":
            del os.environ[_PASSWORD]
