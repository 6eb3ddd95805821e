"""What all tests share: the server of those that need one, and how two workers divide them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.neo4j_server import neo4j_driver, neo4j_server
from tests.ray_session import ray_session

__all__ = ["neo4j_driver", "neo4j_server", "ray_session"]

RUNTIME = Path(__file__).parent / "runtime"


@pytest.hookimpl(tryfirst=True)  # the group is to be known before xdist reads it
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put each server's tests, and Ray's, into one worker, and the longest first."""
    for item in items:
        if "neo4j_server" in getattr(item, "fixturenames", ()):
            item.add_marker("neo4j")
        wanted = [name for name in ("neo4j", "ray") if item.get_closest_marker(name)]
        if wanted:  # one group alone: of two, xdist would make a third
            item.add_marker(pytest.mark.xdist_group(wanted[0]))
    if "PYTEST_XDIST_WORKER" in os.environ:
        # What takes longest first, else one worker would wait for the other at the end.
        items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    ray, neo4j = (bool(item.get_closest_marker(name)) for name in ("ray", "neo4j"))
    return 1 if neo4j else 0 if ray else 2 if RUNTIME in item.path.parents else 3
