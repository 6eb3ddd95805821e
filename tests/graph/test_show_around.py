"""`show` derives the part of a group around one id; it prints the same as for the whole group."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from hypothesis import given

from kgray.graph.stored import records_of
from kgray.memory.answers import matches, shown, view_around
from kgray.schema.kinds import EPISODES
from kgray.storage.ledger import dumped_episodes, find
from tests.graph.engine import Engine, WildJudge, triples, works
from tests.graph.stores import SqliteStores
from tests.graph.test_promises import HISTORIES, SLOW, play


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteStores]:
    maker = SqliteStores(tmp_path_factory.mktemp("shown"))
    yield maker
    maker.close()


def ids_of(engine: Engine) -> set[str]:
    """Return every id that something in the group has or had: the client's, recorded ones, derived ones."""
    store, group = engine.store, engine.named()
    results: set[str | None] = {*records_of(store, group).births}
    for row in store.rows(EPISODES.all, group):
        results |= {row.id, row.client_id}
    for line in map(json.loads, engine.dump()):
        results |= {line[key] for key in ("id", "statement") if line.get(key)}
    return {id_ for id_ in results if id_ is not None and find(store, group, id_)}


@given(history=HISTORIES)
@SLOW
def test_show_prints_the_derivation_of_the_whole_group(stores, history):
    engine = Engine(store=stores.open(), prefix=stores.fresh(), judge=WildJudge())
    play(engine, history)
    store, group = engine.store, engine.named()
    view, episodes = engine.view(), list(dumped_episodes(store, group))

    for id_ in sorted(ids_of(engine)):
        rows = [row for row in shown(store, group, id_) if row["type"] != "left_out"]
        assert rows == matches(id_, find(store, group, id_), view, episodes), id_
    stores.close()


def test_only_the_episodes_around_an_id_are_derived(stores):
    """300 people work at 7 companies; showing one person's facts reads no facts of the other people."""
    engine = Engine(store=stores.open(), prefix=stores.fresh())
    drafts = [
        triples(n, works(f"Company {n % 7}", source=f"Person {n}"), client_id=f"e{n}") for n in range(300)
    ]
    drafts += [triples(400 + n, works(f"Shop {n}", source="Person 5"), client_id=f"p{n}") for n in range(2)]
    engine.add(*drafts)
    store, group = engine.store, engine.named()

    view = view_around(store, group, "p1", find(store, group, "p1"))

    assert [head.sequence for head in view.records.heads] == [6, 301, 302]
    stores.close()
