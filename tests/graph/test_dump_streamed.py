"""The `jsonl` export derives a group part by part; its lines equal the complete derivation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given

from kgray.io.interchange import jsonl
from kgray.io.interchange.snapshot import Snapshot
from tests.graph.engine import Engine, WildJudge
from tests.graph.stores import SqliteStores
from tests.graph.test_promises import HISTORIES, SLOW, play


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteStores]:
    maker = SqliteStores(tmp_path_factory.mktemp("dumped"))
    yield maker
    maker.close()


@given(history=HISTORIES)
@SLOW
def test_the_lines_equal_the_complete_derivation(stores, tmp_path_factory, history):
    engine = Engine(store=stores.open(), prefix=stores.fresh(), judge=WildJudge())
    play(engine, history)
    path: Path = tmp_path_factory.mktemp("out") / "dump.jsonl"
    with pytest.MonkeyPatch.context() as patch, closing(Snapshot(engine.store, engine.named())) as snapshot:
        patch.setattr(jsonl, "_PART", 2)  # each part has about two pieces of evidence
        assert snapshot.is_stored
        jsonl.write(snapshot, path)

    assert path.read_text("utf-8").splitlines() == engine.dump()
    path.unlink()
    stores.close()
