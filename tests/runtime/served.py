"""A generated world behind a model server, ingested by commands as a user's shell starts them."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kgray
from tests.waiting import HANGS_S

PLAN = {"episodes": 80, "entities": 40, "seed": 5}
WORLD = tuple(word for name, value in PLAN.items() for word in (f"--{name}", str(value)))
STREAMS = 4  # concurrent calls at the server: a kill can lose their answers before the journal stores them


def start(*words: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start the command, as a user's shell would."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("KGRAY_", "RAY_"))}
    package = ["bench", *words[1:]] if words[0] == "bench" else ["kgray", *words]
    command = [sys.executable, "-m", *package]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, env=clean | (env or {}))


def answer(*words: str, env: dict[str, str] | None = None) -> str:
    """Run the command to its end and return its stdout."""
    process = start(*words, env=env)
    out, err = process.communicate(timeout=HANGS_S)
    assert process.returncode == 0, err.decode()
    return out.decode()


@contextmanager
def serving() -> Iterator[str]:
    """Serve the world, 30 ms an answer; yield the address."""
    slow = ("--streams", str(STREAMS), "--first-token-s", "0.03", "--tokens-per-s", "0", "--idle-s", "600")
    server = start("bench", "model-server", *WORLD, *slow, "--json")
    try:
        assert server.stdout is not None
        yield str(json.loads(server.stdout.readline())["base_url"])
    finally:
        server.terminate()
        server.communicate(timeout=HANGS_S)


def stats(base_url: str) -> dict[str, Any]:
    """Return the server's counts."""
    connection = http.client.HTTPConnection(base_url.split("/")[2], timeout=HANGS_S)
    connection.request("GET", "/v1/stats")
    counted: dict[str, Any] = json.loads(connection.getresponse().read())
    connection.close()
    return counted


def settings(base_url: str) -> dict[str, str]:
    """Return the settings: no response cache, so that each unrepeated request is in the journal."""
    return {
        "KGRAY_MODEL_BACKEND": "openai",
        "KGRAY_MODEL_NAME": "world",
        "KGRAY_MODEL_BASE_URL": base_url,
        "KGRAY_MODEL_MAX_CONCURRENCY": str(STREAMS),
    }


def once(counted: dict[str, Any]) -> int:
    """Return how many episodes were read, each counted once."""
    return int(counted["by_task"].get("combined", 0)) - int(counted["repeated"].get("combined", 0))


def ledger(data: Path) -> dict[str, int]:
    """Return the number of episodes of the world in each state; an empty dict before the store exists."""
    if not (data / "kgray.sqlite3").exists():
        return {}
    with kgray.open(data, create=True) as memory:
        counts = memory.status().groups.get("world-0")
    names = ("accepted", "extracted", "committed", "failed")
    return {} if counts is None else {name: getattr(counts, name) for name in names}


def dump_hash(data: Path) -> str:
    """Return the hash of the world's graph."""
    with kgray.open(data, create=True) as memory:
        return memory.dump_hash(group="world-0")


def journaled(data: Path) -> int:
    """Return how many episodes' answers the store keeps."""
    result = ledger(data)
    return result.get("extracted", 0) + result.get("committed", 0)
