"""What all tests share: the server and the Ray of those that need one; how two workers divide the tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from kgray.outages import OUTAGES
from tests import neo4j_server as servers
from tests.neo4j_server import neo4j_driver, neo4j_server, own_neo4j
from tests.ray_session import ray_session

__all__ = ["neo4j_driver", "neo4j_server", "own_neo4j", "ray_session"]

RUNTIME = Path(__file__).parent / "runtime"

# The same examples at every run, and none is too slow: what fails is the change's fault, not that of chance.
# `--hypothesis-profile default` looks for others.
hypothesis.settings.load_profile("ci")


@pytest.hookimpl(tryfirst=True)  # the group is to be known before xdist reads it
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what one worker must run alone into one group, and the longest tests first."""
    for item in items:
        if {"neo4j_server", "own_neo4j"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("neo4j")
        if group := _group(item):
            item.add_marker(pytest.mark.xdist_group(group))
    if "PYTEST_XDIST_WORKER" in os.environ:
        # What takes longest first, else one worker would wait for the other at the end.
        items.sort(key=_turn)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Stop where the workers would not keep to their groups: two Rays, two servers, and no word of it."""
    if "PYTEST_XDIST_WORKER" not in os.environ or not session.config.getvalue("loadgroup"):
        return
    for item in session.items:
        if item.get_closest_marker("xdist_group") and "@" not in item.nodeid:
            raise pytest.UsageError(
                f"{item.nodeid} has a group and xdist does not see it: this pytest and this xdist do not "
                f"understand each other; install the versions of constraints.txt"
            )


def _group(item: pytest.Item) -> str:
    """Return the group of tests that share a worker, "" for none: they share a Ray, or a database.

    A test that needs both starts a server beside the other worker's, but one that is named is one database.
    """
    ray, neo4j = (item.get_closest_marker(name) for name in ("ray", "neo4j"))
    return "neo4j" if neo4j and (servers.NAMED_URI or not ray) else "ray" if ray else ""


def _turn(item: pytest.Item) -> int:
    if group := _group(item):
        return ("ray", "neo4j").index(group)
    return 2 if RUNTIME in item.path.parents else 3


@pytest.fixture(autouse=True)
def no_outages() -> Iterator[None]:
    """Forget what a test waited for: the tests of a worker are one process, which keeps one board."""
    yield
    OUTAGES.forget()
