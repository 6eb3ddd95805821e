"""A complete Neo4j database: its creation, refusals, Graphiti's searches, and removals."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

import pytest

from kgray.errors import StoreError, Unavailable
from kgray.ports import GroupCounts, GroupHead
from kgray.storage.ledger import pending_groups
from kgray.storage.neo4j.schema import VERSION
from kgray.system.outages import OUTAGES
from tests.graph.by_hand import (
    EMBEDDER,
    WIDTH,
    append,
    draft,
    failed,
    head,
    metadata,
    remove,
    statement_commit,
    tell,
)
from tests.graph.stores import WholeNeo4jStores, opened
from tests.neo4j_server import empty
from tests.waiting import wait_for

pytestmark = pytest.mark.neo4j


@pytest.fixture
def stores(own_neo4j, neo4j_driver):
    maker = WholeNeo4jStores(own_neo4j, neo4j_driver)
    yield maker
    maker.close()


@pytest.fixture
def group():
    """Return a plain name: Graphiti's full-text searches take one word for a group."""
    return "g"


def test_a_store_records_its_embedder_and_refuses_another_schema(stores, own_neo4j, ask):
    with pytest.raises(StoreError, match="kgray init"):
        opened(own_neo4j, embedder="")
    stores.open()
    answer_before = ask("MATCH (m:KgrayMeta) RETURN properties(m)")
    for options in ({"embedder": "other"}, {"dimensions": WIDTH + 1}, {"embedder": "", "create": False}):
        with closing(opened(own_neo4j, **options)) as store:
            assert (store.embedder, store.dimensions) == (EMBEDDER, WIDTH)
    assert ask("MATCH (m:KgrayMeta) RETURN properties(m)") == answer_before
    ask("MATCH (m:KgrayMeta) SET m.schema = 99")
    with pytest.raises(StoreError, match=rf"schema 99; this one knows {VERSION}\): upgrade kgray"):
        opened(own_neo4j)
    ask("MATCH (m:KgrayMeta) SET m.schema = 1")
    with pytest.raises(StoreError, match=r"an earlier kgray.*run `kgray upgrade`"):
        opened(own_neo4j)
    ask("MATCH (m:KgrayMeta) DELETE m")
    with pytest.raises(StoreError, match="kgray init"):
        opened(own_neo4j, create=False)


# Statements that break a schema, and the names that are affected.
BREAKS = {
    "kgray_facts": ["DROP CONSTRAINT kgray_facts"],
    "kgray_facts_source": ["DROP INDEX kgray_facts_source"],
    "edge_name_and_fact": ["DROP INDEX edge_name_and_fact"],
    # A server was killed while it made a constraint: its index remains.
    "kgray_values": [
        "DROP CONSTRAINT kgray_values",
        "CREATE INDEX kgray_values FOR (n:Value) ON (n.group_id, n.uuid)",
    ],
    # A database that was emptied of another version's nodes.
    "kgray_mentions": [
        "DROP CONSTRAINT kgray_mentions",
        "CREATE CONSTRAINT kgray_mentions FOR ()-[n:MENTIONS]-() REQUIRE n.uuid IS UNIQUE",
    ],
    "kgray_facts_target": [
        "DROP INDEX kgray_facts_target",
        "CREATE INDEX kgray_facts_target FOR ()-[n:RELATES_TO]-() ON (n.group_id, n.name)",
    ],
}


@pytest.fixture
def repaired(own_neo4j, neo4j_driver):
    """Leave the schema complete for other tests, after any change to it."""
    yield
    empty(neo4j_driver)
    opened(own_neo4j).close()


@pytest.mark.usefixtures("repaired")
def test_a_missing_index_or_constraint_is_detected_and_recreated(stores, own_neo4j, ask, caplog):
    """Commands that may create a store do it in an existing database; others before their first write."""
    stores.open()
    statements = [statement for broken in BREAKS.values() for statement in broken]
    for statement in statements:
        ask(statement)
    reader = opened(own_neo4j, create=False)
    assert reader.missing() == sorted(BREAKS)
    assert all(name in caplog.text for name in BREAKS), "a reader makes nothing, and says so"
    stores.open()
    assert reader.missing() == []

    for statement in statements:
        ask(statement)
    append(reader, draft("a"))
    assert reader.missing() == []
    reader.close()


def waits():
    """Return the message of a command about its waiting, after a while."""
    return [waited.reason for waited in OUTAGES.current(time.time() + 60)]


@pytest.mark.usefixtures("repaired")
@pytest.mark.seldom_on_neo4j
def test_a_constraint_that_cannot_be_created_gives_a_clear_error(
    stores, own_neo4j, neo4j_driver, ask, monkeypatch
):
    """The error comes at once if stored rows contradict it; after a bounded time if its lock is held."""
    from kgray.storage.neo4j import schema

    stores.open()
    ask("DROP CONSTRAINT kgray_values")
    monkeypatch.setattr(schema, "LIMIT_S", 2.0)
    with (
        ThreadPoolExecutor(1) as pool,
        neo4j_driver.session() as session,
        session.begin_transaction() as transaction,
    ):
        transaction.run("CREATE (:Value {group_id: 'v', uuid: 'v'})").consume()
        opening, rule_count = pool.submit(opened, own_neo4j), len(schema.RULES)
        words = f"makes constraints and indexes ({rule_count - 1} of {rule_count} are online)"
        wait_for(lambda: words in waits() or opening.done())
        assert not opening.done()
        with pytest.raises(StoreError, match=r"kgray_values is missing \(not done in 2 s.*SHOW TRANSACTIONS"):
            opening.result()
    monkeypatch.undo()
    ask("UNWIND [1, 2] AS i CREATE (:Value {group_id: 'v', uuid: 'v'})")
    with pytest.raises(StoreError, match=r"kgray_values is missing .*kgray init") as refusal:
        opened(own_neo4j)
    assert "\n" not in str(refusal.value)


@pytest.mark.seldom_on_neo4j
def test_concurrent_processes_can_create_the_same_database(stores, own_neo4j, ask):
    """Each holds the lock of a label that another waits for: a transaction that is rolled back retries."""
    stores.open()
    for (name,) in ask("SHOW CONSTRAINTS YIELD name WHERE name STARTS WITH 'kgray_'"):
        ask(f"DROP CONSTRAINT {name}")
    ask("MATCH (m:KgrayMeta) DELETE m")

    def missing(_):
        with closing(opened(own_neo4j)) as store:
            return store.missing()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(missing, range(4))) == [[]] * 4


@pytest.mark.seldom_on_neo4j
def test_queries_about_all_groups_cover_all_groups(stores):
    """The same as on the embedded store (test_store_log), in a separate database."""
    store = stores.open()
    assert (store.heads(), store.counts(), store.pending_count()) == ({}, {}, 0)
    append(store, draft("a"), draft("b"), draft("a", group="h"))
    with store.writing():
        store.apply([failed(1, 9), statement_commit(1, "Al", "one", 9, group="h")])
    assert store.heads() == {
        "g": GroupHead(named=True, last=2, last_recorded=9),
        "h": GroupHead(named=True, last=1, last_recorded=9),
    }
    assert store.counts() == {
        "g": GroupCounts(accepted=1, failed=1),
        "h": GroupCounts(committed=1, entities=1, facts=1),
    }
    assert pending_groups(store) == {"g": True}
    assert store.pending_count() == 1


# Index, query, displayed property, matches.
GRAPHITIS_SEARCHES = [
    ("edge_name_and_fact", "two", "fact", "Bo says two"),
    ("node_name_and_content", "bo", "name", "Bo"),
    ("episode_content", "two", "content", "Bo says two"),
    ("community_name", "bo", "name", None),
]


@pytest.mark.slow
def test_graphitis_full_text_searches_find_our_rows(stores, ask, group):
    """The indexes follow a commit within moments, and contain nothing of removed episodes."""
    store = stores.open()

    def by_word(index, word, property_name, _):
        ask("CALL db.index.fulltext.awaitEventuallyConsistentIndexRefresh()")
        kind, result = ("Relationships", "relationship") if property_name == "fact" else ("Nodes", "node")
        query = (
            f"CALL db.index.fulltext.query{kind}($index, $words) YIELD {result} AS x RETURN x.{property_name}"
        )
        return [row[0] for row in ask(query, index=index, words=f'group_id:"g" AND ({word})')]

    with store.writing():
        for name, value in (("Al", "one"), ("Bo", "two"), ("Cy", "three")):
            tell(store, name, value, group=group)
        tell(store, "Bo", "two", group="other")
        for search in GRAPHITIS_SEARCHES:
            assert by_word(*search) == [result for result in search[3:] if result]
        remove(store, [2], episodes=("x",), group=group)
        assert [by_word(*search) for search in GRAPHITIS_SEARCHES] == [[]] * 4


# --------------------------------------------------------------------------------- hard removal

EVERY_WORD = """
MATCH (n) RETURN labels(n) AS kinds, properties(n) AS held
UNION ALL MATCH ()-[r]->() RETURN [type(r)] AS kinds, properties(r) AS held
"""


def test_a_removal_deletes_the_words_of_episodes_from_all_properties(stores, ask, group):
    """R25: no node or relationship, whether derived, indexed or journaled, contains its words."""
    store = stores.open()
    with store.writing():
        tell(store, "Kept", "keptvalue", client_id="keptclient", group=group)
        tell(
            store,
            "Zqname",
            "zqvalue",
            client_id="zqclient",
            source="zqsource",
            metadata=metadata(a="zqmeta"),
            group=group,
        )
        assert "zq" in str(ask(EVERY_WORD)).lower()
        remove(store, [2], episodes=("zqclient",), group=group)
        remaining_words = str(ask(EVERY_WORD)).lower()
        assert "zq" not in remaining_words
        assert "kept" in remaining_words
        remove(store, [1], everything=True, group=group)
    nodes = "MATCH (n) WHERE NOT n:KgrayMeta AND NOT n:KgraySlot RETURN labels(n)[0] ORDER BY labels(n)[0]"
    assert ask(nodes) == [["KgrayCall"], ["KgrayGroup"], ["KgrayOperation"], ["KgrayShard"]]
    assert "'g'" not in str(ask(EVERY_WORD))
    assert store.heads() == {}
    assert head(store, group).last == 4
    assert store.compact() is False, "its bytes are in the server's files, which no client can clear"


class Wire:
    """A connection to a server that can be cut and restored: its clients then cannot reach the server."""

    def __init__(self, uri: str) -> None:
        host, _, port = uri.rpartition("/")[2].rpartition(":")
        self._address = host, int(port)
        self._ends: list[socket.socket] = []
        self.port = 0
        self.mend()
        self.uri = f"bolt://127.0.0.1:{self.port}"

    def mend(self) -> None:
        """Listen, at the same port as before; pass all incoming data on."""
        listener = socket.create_server(("127.0.0.1", self.port))
        self.port = listener.getsockname()[1]
        self._ends.append(listener)
        threading.Thread(target=self._take, args=(listener,), daemon=True).start()

    def cut(self) -> None:
        """End every connection, and take none."""
        while self._ends:
            end = self._ends.pop()
            with suppress(OSError):  # the connection is closed already
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _take(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                near, far = listener.accept()[0], socket.create_connection(self._address)
                self._ends += [near, far]
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._pass_on, args=pair, daemon=True).start()

    @staticmethod
    def _pass_on(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while statement_commit := source.recv(1 << 16):
                target.sendall(statement_commit)
            target.shutdown(socket.SHUT_WR)


def test_a_thread_can_read_again_after_an_outage(stores, own_neo4j):
    """R24: a read that begins while the server is away leaves nothing behind that breaks the next one."""
    stores.open()
    wire = Wire(own_neo4j.uri)
    with closing(opened(own_neo4j, uri=wire.uri, patience_s=1.0)) as store:
        append(store, draft("a"))
        wire.cut()
        try:
            with pytest.raises(Unavailable), store.reading():
                store.heads()
        finally:
            wire.mend()
        assert pending_groups(store) == {"g": True}
        with store.reading():
            assert store.heads()["g"].last == 1
    wire.cut()
