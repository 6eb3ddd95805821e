"""Empty stores to measure in: a folder each, or a Neo4j server each."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from bench.processes import free_port
from kgray.errors import SettingsError

StoreKind = Literal["sqlite", "neo4j"]
_PASSWORD = "KGRAY_STORE_PASSWORD"  # noqa: S105 - the variable's name
_HEAP = "768m"
_STARTER = Path(__file__).resolve().parents[1] / "cluster" / "neo4j" / "server"


@dataclass(slots=True)
class Neo4jServer:
    """A server of `cluster/neo4j/server` with its data in a folder; it ends with this process."""

    folder: Path
    port: int = field(default_factory=free_port)

    @property
    def pid(self) -> int:
        """The id of its process."""
        return int((self.folder / "pid").read_text())

    def start(self) -> None:
        """Start it; it answers on return."""
        self._do("start", str(self.port))

    def kill(self) -> None:
        """End it as a power cut does."""
        self._do("kill")

    def _do(self, command: str, *arguments: str) -> None:
        environ = {"NEO4J_PASSWORD": os.environ[_PASSWORD], "NEO4J_WATCH": str(os.getpid())}
        result = subprocess.run(  # noqa: S603 - our own script
            [_STARTER, command, self.folder, *arguments],
            env={"NEO4J_HEAP": _HEAP} | os.environ | environ,
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode:
            last_line = result.stderr.strip().splitlines()[-1:]
            raise SettingsError(f"the Neo4j server cannot be used: {' '.join(last_line)}")


@dataclass(slots=True)
class EmptyStore:
    """An empty store. settings: by key with an underscore, as `kgray.open` takes them."""

    data: Path
    settings: Mapping[str, str] = field(default_factory=lambda: {"store_backend": "sqlite"})
    server: Neo4jServer | None = None
    password: str = field(default="", repr=False)  # of the server

    @property
    def kind(self) -> StoreKind:
        """Which store it is."""
        return "sqlite" if self.server is None else "neo4j"


@contextmanager
def empty_store(kind: StoreKind, data: Path) -> Iterator[EmptyStore]:
    """Yield an empty store below a new folder, which is gone afterwards as far as it costs memory.

    For Neo4j, this process and its children have a password during the block.
    """
    data.mkdir(parents=True)
    if kind == "sqlite":
        yield EmptyStore(data)
        return
    password_before = os.environ.get(_PASSWORD)
    os.environ[_PASSWORD] = secrets.token_hex(16)
    server = Neo4jServer(data / "neo4j")
    server.folder.mkdir()
    try:
        server.start()
        uri = f"bolt://127.0.0.1:{server.port}"
        try:
            settings = {"store_backend": "neo4j", "store_uri": uri, "store_user": "neo4j"}
            yield EmptyStore(data, settings, server, os.environ[_PASSWORD])
        finally:
            server.kill()
    finally:
        if password_before is None:
            del os.environ[_PASSWORD]
        else:
            os.environ[_PASSWORD] = password_before
