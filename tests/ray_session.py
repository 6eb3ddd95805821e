"""One Ray for all tests that need one: a start takes most of ten seconds. Each store has its actors."""

from __future__ import annotations

import os
import re
import signal
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partialmethod
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from kgray.errors import Unavailable
from kgray.memory import AsyncMemory, Memory
from kgray.settings import Settings
from tests.waiting import HANGS_S

# Few processes. A slow worker of a busy machine is not mistaken for a hanging worker and ended.
SMALL = """
[sequencer]
shards = {shards}

[extraction]
workers = {workers}
cpus = 0.1

[embedding]
workers = {embedders}
cpus = 0.1

[tasks]
at_once = 1

[limits]
health_every_s = 0.2
health_deadline_s = 60.0
"""
OF_RAY = {"Component", "NodeAddress", "SessionName", "Version", "WorkerId"}
Samples = list[tuple[str, dict[str, str], float]]  # of metrics: name, tags, value
_RUNNING: list[Any] = []  # the session, while there is one


@pytest.fixture(scope="session")
def ray_session() -> Iterator[Any]:
    """Start a Ray of this process; every test asks for it by name or by the marker `ray`."""
    if find_spec("ray") is None:
        pytest.skip('Ray is not installed: pip install "kgray[ray]"')
    from kgray.runtime import session
    from kgray.runtime.spec import Profile

    environment = dict(os.environ)
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        del os.environ[name]
    # Ray tells its metrics every 10 s by default, and a test waits for them. The name is Ray's own.
    os.environ |= {"RAY_metrics_report_interval_ms": "1000"}
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parent.parent)  # jobs run this checkout, too
    from ray._private.parameter import RayParams

    # The agent that takes jobs has one port for all Rays of a machine; `ray.init` has no option for another.
    RayParams.__init__ = partialmethod(RayParams.__init__, dashboard_agent_listen_port=None)
    for attempts_left in reversed(range(5)):
        try:
            started = session.start(Settings(), Profile(), takes_jobs=True)
            break
        except Unavailable:  # Ray gives its processes 30 s, which a busy machine may not keep
            if not attempts_left:
                raise
    _RUNNING.append(started)
    yield started
    end()
    os.environ.clear()
    os.environ.update(environment)


def end() -> None:
    """End the Ray of this process, if there is one: no later test may ask for it."""
    while _RUNNING:
        _RUNNING.pop().close()


@contextmanager
def over_ray(
    folder: Path, *, workers: int = 1, embedders: int = 0, shards: int = 1, **settings: Any
) -> Iterator[AsyncMemory]:
    """Open a memory whose actors are few; they end with it."""
    import kgray

    folder.mkdir(parents=True, exist_ok=True)
    profile = folder / "profile.toml"
    profile.write_text(SMALL.format(workers=workers, embedders=embedders, shards=shards))
    memory = kgray.open_async(
        folder, create=True, settings={"runtime_backend": "ray", "runtime_profile": profile, **settings}
    )
    try:
        yield memory
    finally:
        memory.runtime.close()
        memory.close()


def deployment_of(memory: Memory | AsyncMemory, settings: Settings | None = None) -> Any:
    """Return the actors of a memory's store, or None. settings: the settings with its server."""
    from kgray.runtime.deploy import find
    from kgray.runtime.spec import spec_of

    data = (memory.asynchronous if isinstance(memory, Memory) else memory).data
    assert data is not None
    return find(spec_of(settings or Settings(), data, {}).namespace)


def kill(memory: AsyncMemory, name: str) -> None:
    """End an actor's process, as the kernel would for want of memory."""
    os.kill(pid_of(memory, name), signal.SIGKILL)


def pid_of(memory: AsyncMemory, name: str) -> int:
    """Return an actor's process, once it answers."""
    from kgray.runtime.deploy import described

    handle = deployment_of(memory).actors[name]
    return int(described(handle, time.monotonic() + HANGS_S)["pid"])


def samples() -> Samples:
    """Return name, tags and value of each metric of the node's Prometheus endpoint; a histogram counts."""
    import ray

    node = ray.nodes()[0]
    address = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    with urllib.request.urlopen(address, timeout=HANGS_S) as answer:
        lines = answer.read().decode().splitlines()
    results = []
    for line in lines:
        name, _, sample = line.partition("{")
        if name.startswith("ray_kgray_") and not name.endswith(("_bucket", "_sum")):
            tags = dict(re.findall(r'(\w+)="([^"]*)"', sample))
            own_tags = {tag: tags[tag] for tag in tags.keys() - OF_RAY if not tag.startswith("otel_")}
            results.append((name.removesuffix("_count"), own_tags, float(sample.rpartition(" ")[2])))
    return results
