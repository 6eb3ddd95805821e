"""Data that version 0.1 stored: `tests/data/version-0.1/README.md` says what is in it and how it was made."""

from __future__ import annotations

import gzip
import json
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest

import kgray
from tests.neo4j_dump import database_dump, load

DATA = Path(__file__).parent.parent / "data" / "version-0.1"
HASHES: dict[str, dict[str, dict[str, str]]] = json.loads((DATA / "hashes.json").read_text())
MACHINE = re.compile(rb'/(?:home|root|tmp|work|Users)/|localhost|127\.0\.0\.1|"(?:host|pid|holder)"')


def hashes_of(
    folder: Path, expected: dict[str, dict[str, str]], **settings: Any
) -> dict[str, dict[str, str]]:
    """Return the dump's hash of each group at each moment of the expected ones."""
    with kgray.open(folder, create=False, **settings) as memory:
        return {
            group: {
                moment: memory.dump_hash(group=group, known_at=None if moment == "now" else moment)
                for moment in moments
            }
            for group, moments in expected.items()
        }


@pytest.fixture
def folder(tmp_path) -> Path:
    """Yield a copy of the data folder."""
    with tarfile.open(DATA / "data.tar.gz") as tar:
        tar.extractall(tmp_path, filter="data")
    return tmp_path / "data"


def test_a_data_folder_of_version_0_1_is_the_graph_that_was_stored(folder):
    assert hashes_of(folder, HASHES["sqlite"]) == HASHES["sqlite"]


def test_nothing_of_the_machine_that_made_a_folder_is_in_it(folder):
    named = [path.name for path in folder.iterdir() if MACHINE.search(path.read_bytes())]
    database = gzip.decompress((DATA / "neo4j.jsonl.gz").read_bytes())

    assert (named, MACHINE.findall(database)) == ([], [])
    assert sum(path.stat().st_size for path in DATA.iterdir()) < 400_000


def test_a_database_of_version_0_1_is_the_graph_that_was_stored(tmp_path, own_neo4j, neo4j_driver):
    dump = (DATA / "neo4j.jsonl.gz").read_bytes()
    load(neo4j_driver, dump)
    store = {f"store_{name}": getattr(own_neo4j, name) for name in ("uri", "user", "password")}

    hashes = hashes_of(tmp_path, HASHES["neo4j"], store_backend="neo4j", embedder_dimensions=16, **store)

    assert hashes == HASHES["neo4j"]
    assert {name: group["now"] for name, group in HASHES["sqlite"].items()} == {
        name: group["now"] for name, group in hashes.items()
    }


def test_a_dump_is_loaded_as_it_was_written(own_neo4j, neo4j_driver):
    dump = (DATA / "neo4j.jsonl.gz").read_bytes()
    load(neo4j_driver, dump)

    assert _graph(database_dump(neo4j_driver)) == _graph(dump)


def _graph(dump: bytes) -> list[str]:
    """Return the nodes and relationships of a dump: the database may have more indexes than it needs."""
    return [line for line in gzip.decompress(dump).decode().splitlines() if not line.startswith('{"index"')]
