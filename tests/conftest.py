"""What all tests share: the servers of those that need one, and how two workers divide the tests."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import neo4j_server as servers
from tests.neo4j_server import neo4j_driver, neo4j_server, own_neo4j, own_neo4j_driver, own_neo4j_server
from tests.ray_session import ray_session

__all__ = [
    "neo4j_driver",
    "neo4j_server",
    "own_neo4j",
    "own_neo4j_driver",
    "own_neo4j_server",
    "ray_session",
]

RUNTIME = Path(__file__).parent / "runtime"


@pytest.hookimpl(tryfirst=True)  # the group is to be known before xdist reads it
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what one worker must run alone into one group, and the longest tests first."""
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if {"neo4j_server", "own_neo4j_server"} & set(fixtures):
            item.add_marker("neo4j")
        group = _group(item, fixtures)
        if group:
            item.add_marker(pytest.mark.xdist_group(group))
    if "PYTEST_XDIST_WORKER" in os.environ:
        # What takes longest first, else one worker would wait for the other at the end.
        items.sort(key=_turn)


def _group(item: pytest.Item, fixtures: Sequence[str]) -> str:
    """Return the group of tests that share a worker, "" for none: one Ray, one own server a run.

    A server that is named is one database: whoever needs all of it must not run beside the others.
    """
    if item.get_closest_marker("ray") or "own_neo4j_server" in fixtures:
        return "alone"
    return "alone" if servers.NAMED_URI and item.get_closest_marker("neo4j") else ""


def _turn(item: pytest.Item) -> int:
    ray, neo4j = (bool(item.get_closest_marker(name)) for name in ("ray", "neo4j"))
    return 1 if neo4j else 0 if ray else 2 if RUNTIME in item.path.parents else 3
