"""The Neo4j server of the tests: the one that the environment names, else one that is started for them.

KGRAY_TEST_NEO4J_URI        a server that is there; its database is emptied by the tests
KGRAY_TEST_NEO4J_USER       `neo4j` where nothing is said
KGRAY_TEST_NEO4J_PASSWORD
NEO4J_VERSION               else: which one cluster/neo4j/server starts
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

STARTER = Path(__file__).resolve().parent.parent / "cluster" / "neo4j" / "server"
# Read now: some tests take every KGRAY_ variable away.
NAMED_URI = os.environ.get("KGRAY_TEST_NEO4J_URI", "")
NAMED_USER = os.environ.get("KGRAY_TEST_NEO4J_USER", "neo4j")
NAMED_PASSWORD = os.environ.get("KGRAY_TEST_NEO4J_PASSWORD", "")
NOT_INSTALLED = 3  # the starter's exit code


class Neo4jServer:
    """Where a server is, and how to log in; one of ours can be killed and started again."""

    def __init__(self, uri: str, user: str, password: str, folder: Path | None = None) -> None:
        self.uri, self.user, self.password = uri, user, password
        self.folder = folder

    def kill(self) -> None:
        """End it as a power cut does; skips the test where the server is not ours."""
        self._start_or_end("kill")

    def start(self) -> None:
        """Start it again, at the same address, with its data; it answers on return."""
        self._start_or_end("start", self.uri.rpartition(":")[2])

    def _start_or_end(self, command: str, *more: str) -> None:
        if self.folder is None:
            pytest.skip("needs a Neo4j server that may be killed: unset KGRAY_TEST_NEO4J_URI")
        # The server of a run that is itself killed must not outlive it.
        environment = {"NEO4J_PASSWORD": self.password, "NEO4J_WATCH": str(os.getpid()), "NEO4J_HEAP": "768m"}
        # It lives for a minute and is never warm: half the processor time without the best compiler.
        environment["NEO4J_JAVA"] = os.environ.get("NEO4J_JAVA", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
        done = subprocess.run(
            [STARTER, command, self.folder, *more],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == NOT_INSTALLED:
            pytest.skip(f"needs a Neo4j server: {done.stderr.strip().splitlines()[-1]}")
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def neo4j_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Neo4jServer]:
    """Yield a server; skips, and says what is missing, where none is named and none can be started."""
    if NAMED_URI:
        yield Neo4jServer(NAMED_URI, NAMED_USER, NAMED_PASSWORD)
        return
    # Free a moment ago: servers of tests that start at the same time get others.
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folder = tmp_path_factory.mktemp("neo4j")
    server = Neo4jServer(f"bolt://127.0.0.1:{port}", "neo4j", secrets.token_hex(16), folder)
    server.start()
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="session")
def neo4j_driver(neo4j_server: Neo4jServer) -> Iterator[Any]:
    """Yield a driver for what only a test does to a database."""
    neo4j = pytest.importorskip("neo4j", reason="needs Neo4j's driver: install the extra `neo4j`")
    with neo4j.GraphDatabase.driver(
        neo4j_server.uri, auth=(neo4j_server.user, neo4j_server.password), notifications_min_severity="OFF"
    ) as driver:
        yield driver
