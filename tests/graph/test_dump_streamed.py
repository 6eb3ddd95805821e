"""An export derives a group part by part; at every moment it equals the complete derivation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given

from kgray.graph import dump
from kgray.graph.change import mentioned_entities
from kgray.io.interchange import derived, jsonl
from kgray.io.interchange.snapshot import Snapshot
from kgray.memory.answers import derived as derived_view
from kgray.storage.ledger import dumped_episodes
from tests.graph.engine import Engine, WildJudge
from tests.graph.stores import SqliteStores
from tests.graph.test_promises import HISTORIES, SLOW, play


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteStores]:
    maker = SqliteStores(tmp_path_factory.mktemp("dumped"))
    yield maker
    maker.close()


def fact_episode(
    at: int, source: str, relation: str, target: str, **fields: Any
) -> tuple[str, int, list[Any]]:
    """Return an episode of one fact, for `play`."""
    fact = {"source": source, "relation": relation, "target": target, "wording": "{s} {r} {t}"}
    return ("episode", at, [fact | {"kind": "holds", "start": at, "end": None, "value": None} | fields])


# Rivals of one slot, of either end, of a verdict and of excluding relations, whose parts would differ alone;
# a name that a later episode makes longer; a merge, a split, an undo, and a retraction after them.
RIVALS = [
    fact_episode(1, "Alice", "WORKS_AT", "Acme"),
    fact_episode(1, "Bob", "MARRIED_TO", "Alice"),
    fact_episode(2, "Marcus Webb", "HAS_STATUS", "", value="done"),
    fact_episode(3, "Alice", "WORKS_AT", "Beta"),
    fact_episode(3, "Bob", "LIKES", "IBM"),
    fact_episode(4, "M. Webb", "MARRIED_TO", "Alice"),
    fact_episode(4, "Bob", "DISLIKES", "IBM"),
    fact_episode(5, "Marcus Webb", "HAS_STATUS", "", value=100),
    fact_episode(6, "Bob Jones", "WORKS_AT", "Acme"),
    *(
        fact_episode(6, "Bob", relation, "Q4 report")
        for relation in ("HUMS_TO", "WAVES_AT", "LEANS_ON", "NODS_AT")
    ),
    *(fact_episode(7, "Alice", "HUMS_TO", name) for name in ("Acme Anvils", "Beta", "IBM", "Zeta", "Eta")),
    ("merge", 1, 4),
    fact_episode(7, "Alice Smith", "WORKS_AT", "Q3 report"),
    ("split", 0, 0),
    fact_episode(8, "Bob", "MARRIED_TO", "Alice Smith"),
    ("undo", 0, 0),
    ("retract", 7, 0),
]


@given(history=HISTORIES)
@example(history=RIVALS)
@SLOW
def test_an_export_equals_the_complete_derivation(
    stores: SqliteStores, tmp_path_factory: pytest.TempPathFactory, history: list[Any]
) -> None:
    """At the moment of each entry, and now: the lines of the dump, and the facts with their record times."""
    engine = Engine(store=stores.open(), prefix=stores.fresh(), judge=WildJudge())
    dumps: list[tuple[int, list[str]]] = []
    play(engine, history, dumps)
    folder: Path = tmp_path_factory.mktemp("out")
    store, group = engine.store, engine.named()
    moments: list[int | None] = [*sorted({recorded for recorded, _ in dumps}), None]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(derived, "PART", 2)  # each part has about two pieces of evidence
        for number, moment in enumerate(moments):
            view = derived_view(store, group, moment)
            with closing(Snapshot(store, group, known_at=moment)) as snapshot:
                path = folder / f"{number}.jsonl"
                jsonl.write(snapshot, path)
                lines = dump.lines(dump.rows(view, dumped_episodes(store, group, moment)))
                assert path.read_text("utf-8").splitlines() == lines
                assert list(snapshot.facts()) == sorted(view.all_facts(), key=lambda fact: fact.id)
                entities = [replace(entity, summary="") for entity in snapshot.plain_entities()]
                assert entities == view.all_entities()
                pairs = mentioned_entities(view.graph.fold, view.records.mentions)
                by_sequence = {s: sorted(e for e, at in pairs if at == s) for _, s in pairs}
                assert {s: snapshot.entities_in(s) for s in by_sequence} == by_sequence
    stores.close()
