"""What all tests share: the server of those that need one, and how two workers divide them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.neo4j_server import neo4j_server
from tests.ray_session import ray_session

__all__ = ["neo4j_server", "ray_session"]

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
        # The tests of kills take most of a minute each: at the end one worker would wait for the other.
        items.sort(key=lambda item: RUNTIME not in item.path.parents)
