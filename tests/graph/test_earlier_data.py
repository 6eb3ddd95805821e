"""Data of version 0.1 are refused, and left as they are until they are upgraded (`test_upgrade`)."""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import kgray
from kgray.errors import StoreError
from kgray.storage.sqlite.schema import FILE, VERSION
from tests.neo4j_dump import database_dump, load

DATA = Path(__file__).parent.parent / "data" / "version-0.1"
HASHES: dict[str, dict[str, dict[str, str]]] = json.loads((DATA / "hashes.json").read_text())
MACHINE = re.compile(rb'/(?:home|root|tmp|work|Users)/|localhost|127\.0\.0\.1|"(?:host|pid|holder)"')


def refused(folder: Path, **settings: Any) -> str:
    """Return the message of kgray's refusal to open a store."""
    with pytest.raises(StoreError) as raised:
        kgray.open(folder, create=False, settings=settings).close()
    return str(raised.value)


@pytest.fixture
def folder(tmp_path) -> Path:
    """Yield a copy of the data folder."""
    with tarfile.open(DATA / "data.tar.gz") as tar:
        # Python 3.11.0 to 3.11.3 have no filters.
        filters = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        tar.extractall(tmp_path, **filters)  # noqa: S202 - the project's own archive
    return tmp_path / "data"


def test_a_data_folder_of_version_0_1_is_refused_and_unchanged(folder):
    files_before = {path.name: path.read_bytes() for path in folder.iterdir()}

    message = refused(folder)

    assert message == (
        f"{folder / FILE} was written by an earlier kgray (schema 9; this one knows {VERSION}): "
        "stop the processes that use it, and run `kgray upgrade`, which asks no model; --dry-run says what "
        "it would do"
    )
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files_before


def test_a_data_folder_of_version_0_1_has_the_groups_with_the_recorded_hashes(folder):
    """The tests of upgrades rest on these hashes, so the folder and the list must fit together."""
    with closing(sqlite3.connect(folder / FILE)) as database:
        names = {name for (name,) in database.execute("SELECT name FROM groups WHERE name IS NOT NULL")}
        [state] = database.execute("PRAGMA integrity_check").fetchone()

    names.discard("kgray/own")  # the group of schedules and access keys has no dump
    assert (names, state) == (HASHES["sqlite"].keys(), "ok")
    assert {name: group["now"] for name, group in HASHES["sqlite"].items()} == {
        name: group["now"] for name, group in HASHES["neo4j"].items()
    }


def test_data_folders_of_tests_contain_no_machine_paths(folder):
    named = [path.name for path in folder.iterdir() if MACHINE.search(path.read_bytes())]
    database = gzip.decompress((DATA / "neo4j.jsonl.gz").read_bytes())

    assert (named, MACHINE.findall(database)) == ([], [])
    assert sum(path.stat().st_size for path in DATA.iterdir()) < 400_000


@pytest.mark.slow
def test_a_database_of_version_0_1_is_refused_and_unchanged(tmp_path, own_neo4j, neo4j_driver):
    dump = (DATA / "neo4j.jsonl.gz").read_bytes()
    load(neo4j_driver, dump)
    store = {f"store_{name}": getattr(own_neo4j, name) for name in ("uri", "user", "password")}

    message = refused(tmp_path, store_backend="neo4j", embedder_dimensions=16, **store)

    assert "was written by an earlier kgray (schema 8;" in message
    assert "\n" not in message
    assert _graph(database_dump(neo4j_driver)) == _graph(dump)


@pytest.mark.seldom_on_neo4j
def test_a_loaded_database_dump_equals_the_written_dump(own_neo4j, neo4j_driver):
    dump = (DATA / "neo4j.jsonl.gz").read_bytes()
    load(neo4j_driver, dump)

    assert _graph(database_dump(neo4j_driver)) == _graph(dump)


def _graph(dump: bytes) -> list[str]:
    """Return the nodes and relationships of a dump: the database may have more indexes than it needs."""
    return [line for line in gzip.decompress(dump).decode().splitlines() if not line.startswith('{"index"')]
