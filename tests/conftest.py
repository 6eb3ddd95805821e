"""Shared by all tests: the server and the Ray session, and the assignment of tests to workers."""

from __future__ import annotations

import gc
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from kgray.system.outages import OUTAGES
from tests import ray_session as ray_session_of
from tests.neo4j_server import neo4j_driver, neo4j_server, own_neo4j
from tests.ray_session import ray_session
from tests.tries import FEW, FEW_EXAMPLES, RANDOM_PROFILE

__all__ = ["neo4j_driver", "neo4j_server", "own_neo4j", "ray_session"]

RUNTIME = Path(__file__).parent / "runtime"
# Modules outside the groups with tests of 7 to 17 s on a busy machine.
LONG = frozenset(
    {"test_backfill_urls", "test_cli_backfill", "test_cli_backup", "test_cli_process", "test_outages"}
    | {"test_page", "test_state_bound", "test_tutorial", "test_upgrade", "test_worked_cases"}
)
MEMORY = Path("/dev/shm")  # noqa: S108 - pytest makes a folder there that is its user's alone
ROOM = 4 * 2**30  # bytes that must be free there: several times the size of the tests' folders

# Folders of tests lie in memory where there is room: stores wait for the disk at every commit, and no test
# cuts the power. An explicit folder is left as it is; some tests run a script of theirs.
if (
    os.access(MEMORY, os.W_OK)
    and shutil.disk_usage(MEMORY).free > ROOM
    and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC
):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
# Else each process that a test starts would compile the package again: 0.2 s of a command's 0.8 s.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Imports and collection produce no garbage, so the collector is off until the end of the collection.
gc.disable()

# A test that needs Ray asks for `ray_session`: else the first call would start a Ray by itself, unseen.
os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"

# The same few examples at every run, and no deadline: a failure is the fault of the change, not of chance.
# `--hypothesis-profile default` looks for others, and for more.
hypothesis.settings.register_profile(
    RANDOM_PROFILE, hypothesis.settings.get_profile(RANDOM_PROFILE), deadline=None
)
hypothesis.settings.register_profile(FEW, hypothesis.settings.get_profile("ci"), max_examples=FEW_EXAMPLES)
hypothesis.settings.load_profile(FEW)


@pytest.hookimpl(tryfirst=True)  # the group is to be known before xdist reads it
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put tests that need the same worker into a group, and the longest tests first."""
    for item in items:
        if {"neo4j_server", "own_neo4j"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("neo4j")
        if item.get_closest_marker("seldom_on_neo4j") and item.get_closest_marker("neo4j"):
            item.add_marker("neo4j_alone")
        if group := _group(item):
            item.add_marker(pytest.mark.xdist_group(group))
    if "PYTEST_XDIST_WORKER" in os.environ:
        # The longest tests first, else one worker would wait for another at the end.
        items.sort(key=_turn)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fail if the workers would ignore test groups: two Rays or two servers would start unnoticed."""
    # A search for garbage among 4,000 tests and all that they import takes a second, again and again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # as the command has it: by default a search after 700 objects
    gc.enable()
    if "PYTEST_XDIST_WORKER" not in os.environ or not session.config.getvalue("loadgroup"):
        return
    for item in session.items:
        if item.get_closest_marker("xdist_group") and "@" not in item.nodeid:
            raise pytest.UsageError(
                f"{item.nodeid} has a group and xdist does not see it: this pytest and this xdist do not "
                f"understand each other; install the versions of constraints.txt"
            )


@pytest.hookimpl(trylast=True)  # the test's own fixtures end first
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End the worker's Ray after the last test that may need it: its ten processes are never quite idle."""
    if "@" in item.nodeid and nextitem is not None and _on_ray(item) and not _on_ray(nextitem):
        ray_session_of.end()


def _group(item: pytest.Item) -> str:
    """Return the name of the group of tests that share a worker, by server or by Ray; "" = none.

    Both mostly wait for other processes, which keep the processors busy: hence one worker more than
    processors. A test that needs both has a Ray beside the server: to start that, and to have it plan every
    statement once more, would take five times as long.
    """
    return next((name for name in ("neo4j", "ray") if item.get_closest_marker(name)), "")


def _on_ray(item: pytest.Item) -> bool:
    return item.get_closest_marker("ray") is not None


def _turn(item: pytest.Item) -> tuple[int, ...]:
    if group := _group(item):
        # A server forgets how it planned every statement where a test changes the schema: those come last.
        order = {"test_neo4j_whole": 2}.get(item.path.stem, int("own_neo4j" in item.fixturenames))  # type: ignore[attr-defined]
        return ("ray", "neo4j").index(group), order, not _on_ray(item)
    return (2 if RUNTIME in item.path.parents or item.path.stem in LONG else 3), 0, 0


@pytest.fixture(autouse=True)
def no_outages() -> Iterator[None]:
    """Clear the outages that a test recorded: the tests of a worker are one process with one board."""
    yield
    OUTAGES.forget()
