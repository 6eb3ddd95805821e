"""The Neo4j servers of the tests: the server that the environment names, else servers started for them.

KGRAY_TEST_NEO4J_URI        a running server; its database is emptied by the tests
KGRAY_TEST_NEO4J_USER       default: `neo4j`
KGRAY_TEST_NEO4J_PASSWORD
NEO4J_VERSION               else: the version that cluster/neo4j/server starts

All tests on a server share it, one after the other, on one worker (tests/conftest.py): a test writes to
groups with names of its own, and asks for `own_neo4j` where it needs the whole database, another schema in
it, or kills the server.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

STARTER = Path(__file__).resolve().parent.parent / "cluster" / "neo4j" / "server"
# Read now: some tests take every KGRAY_ variable away.
NAMED_URI = os.environ.get("KGRAY_TEST_NEO4J_URI", "")
NAMED_USER = os.environ.get("KGRAY_TEST_NEO4J_USER", "neo4j")
NAMED_PASSWORD = os.environ.get("KGRAY_TEST_NEO4J_PASSWORD", "")
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")  # "gw0", "gw1"; "" where one process runs all tests
# Loaded Java classes: with them, the next run's server starts in half the processor time.
JARS = Path(os.environ.get("NEO4J_JARS", Path.home() / ".cache/kgray/neo4j"))
RELEASE = os.environ.get("NEO4J_VERSION") or re.findall(r"NEO4J_VERSION:-([\d.]+)", STARTER.read_text())[0]
CLASSES = JARS / f"classes-{RELEASE}.jsa"
# To write them took 16 s on two busy cores: not at the first run, which may be the only one of a machine.
KEEPS_CLASSES = (JARS / RELEASE).is_dir()
# The server lives for minutes and is never warm: without the optimising compiler it needs half the processor
# time. Java then reserves 48 MB for compiled code, which these tests fill, so the size is set.
JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
NOT_INSTALLED = 3  # the starter's exit code


class Neo4jServer:
    """The address and login of a server; a server started by the tests can be killed and restarted."""

    def __init__(self, uri: str, user: str, password: str, folder: Path | None = None) -> None:
        self.uri, self.user, self.password = uri, user, password
        self.folder = folder

    def kill(self) -> None:
        """End it as a power cut does; skips the test where the server is not ours."""
        self._start_or_end("kill")

    def stop(self) -> None:
        """End it in order."""
        self._start_or_end("stop")

    def start(self) -> None:
        """Start it again, at the same address, with its data; it answers on return."""
        self._start_or_end("start", self.uri.rpartition(":")[2])

    def _start_or_end(self, command: str, *arguments: str) -> None:
        if self.folder is None:
            pytest.skip("needs a Neo4j server that may be killed: unset KGRAY_TEST_NEO4J_URI")
        # The server of a run that is itself killed must not outlive it: under xdist that is our parent.
        watched = os.getppid() if WORKER else os.getpid()
        environment = {"NEO4J_PASSWORD": self.password, "NEO4J_WATCH": str(watched), "NEO4J_HEAP": "768m"}
        environment["NEO4J_JAVA"] = os.environ.get("NEO4J_JAVA", JAVA)
        # In a growing database each statement is planned again every 10 s: a quarter of its processor time.
        environment["NEO4J_SETTINGS"] = "dbms.cypher.min_replan_interval=1h"
        environment["NEO4J_CLASSES"] = str(CLASSES) if KEEPS_CLASSES else ""
        outcome = subprocess.run(
            [STARTER, command, self.folder, *arguments],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if outcome.returncode == NOT_INSTALLED:
            pytest.skip(f"needs a Neo4j server: {outcome.stderr.strip().splitlines()[-1]}")
        assert outcome.returncode == 0, outcome.stderr


def started(folder: Path) -> Neo4jServer:
    """Start a new server with its data in the folder."""
    server = Neo4jServer(f"bolt://127.0.0.1:{free_port()}", "neo4j", secrets.token_hex(16), folder)
    server.start()
    return server


def free_port() -> int:
    """Return a free port below the range that Linux gives to connections while our server is down."""
    while True:
        with socket.socket() as tried, suppress(OSError):
            tried.bind(("127.0.0.1", port := 20_000 + secrets.randbelow(12_000)))
            return port


@pytest.fixture(scope="session")
def neo4j_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Neo4jServer]:
    """Yield this worker's server; skips with the missing requirement if none can start."""
    if NAMED_URI:
        server = Neo4jServer(NAMED_URI, NAMED_USER, NAMED_PASSWORD)
        with driver_of(server) as driver:
            empty(driver)  # it may hold the store of another embedder
        yield server
        return
    server = started(tmp_path_factory.mktemp("neo4j"))
    try:
        yield server
    finally:
        server.stop() if KEEPS_CLASSES and not CLASSES.exists() else server.kill()


@pytest.fixture(scope="session")
def neo4j_driver(neo4j_server: Neo4jServer) -> Iterator[Any]:
    """Yield a driver of the server, for queries that only tests make."""
    with driver_of(neo4j_server) as driver:
        yield driver


def driver_of(server: Neo4jServer) -> Any:
    """Return an open driver of a server."""
    neo4j = pytest.importorskip("neo4j", reason="needs Neo4j's driver: install the extra `neo4j`")
    login = (server.user, server.password)
    return neo4j.GraphDatabase.driver(server.uri, auth=login, notifications_min_severity="OFF")


@pytest.fixture
def own_neo4j(neo4j_server: Neo4jServer, neo4j_driver: Any) -> Iterator[Neo4jServer]:
    """Yield the server with nothing in its database, which is empty again for the next test."""
    empty(neo4j_driver)
    yield neo4j_server
    empty(neo4j_driver)


def empty(driver: Any) -> None:
    """Delete every node; constraints and indexes stay, for making them takes longer than a test."""
    with driver.session() as session:
        session.run("MATCH (n) CALL (n) { DETACH DELETE n } IN TRANSACTIONS OF 5000 ROWS").consume()
