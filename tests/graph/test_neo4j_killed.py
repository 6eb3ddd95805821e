"""A Neo4j server that is killed while constraints and indexes are made: the next process repairs them."""

from __future__ import annotations

import random
import threading
import time
from contextlib import closing, suppress

import pytest

from kgray.errors import Unavailable
from tests.graph.by_hand import tell
from tests.graph.stores import opened
from tests.neo4j_server import driver_of

pytestmark = [pytest.mark.neo4j, pytest.mark.slow]

KILLS = 10
NAMES = "YIELD name WHERE name STARTS WITH 'kgray_' RETURN name"


def names(server, kind):
    """Return the names of kgray's constraints, or of its indexes."""
    with driver_of(server) as driver:
        return [name for (name,) in driver.execute_query(f"SHOW {kind} {NAMES}").records]


def clear(server):
    """Delete the store with its constraints and indexes."""
    with driver_of(server) as driver:
        driver.execute_query("MATCH (n) DETACH DELETE n")
        for kind in ("CONSTRAINT", "INDEX"):
            for name in names(server, kind):
                driver.execute_query(f"DROP {kind} {name} IF EXISTS")


def prepare(server):
    """Make the store, as a process does whose server may go away."""
    with suppress(Unavailable):
        opened(server, patience_s=1.0).close()


def test_a_database_killed_during_its_creation_is_repaired(own_neo4j):
    """Ten kills: the next process opens the store in a bounded time, with every constraint and index."""
    clear(own_neo4j)
    begin = time.monotonic()
    prepare(own_neo4j)
    whole_s, constraint_count = time.monotonic() - begin, len(names(own_neo4j, "CONSTRAINT"))
    moments, partly = random.Random(31), 0
    for _ in range(KILLS):
        clear(own_neo4j)
        maker = threading.Thread(target=prepare, args=(own_neo4j,))
        maker.start()
        time.sleep(moments.uniform(0, whole_s))
        own_neo4j.kill()
        maker.join()
        own_neo4j.start()
        constraints, indexes = names(own_neo4j, "CONSTRAINT"), names(own_neo4j, "INDEX")
        partly += len(indexes) > 0 and len(constraints) < constraint_count

        begin = time.monotonic()
        with closing(opened(own_neo4j)) as store:
            took_s = time.monotonic() - begin
            assert store.missing() == []
            with store.writing():
                tell(store, "Al", "one", group="g")
            assert store.heads()["g"].last == 1
        assert took_s < 60 + 5 * whole_s
    assert partly > 0, "no kill met the preparation"
