"""Upgrades of stores that earlier versions made: `tests/data/version-*` has two of them."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import kgray
from kgray.domain.ontology import shipped
from kgray.domain.records import statement_id
from kgray.domain.times import parse
from kgray.errors import Locked, NoStore, StoreError
from kgray.graph import dump
from kgray.graph.stored import View, records_of
from kgray.maintenance.upgrade import upgrade
from kgray.ports import Store
from kgray.runtime.wiring import open_earlier
from kgray.schema.kinds import ACCESS_KEYS, EPISODES, OWN, SCHEDULES
from kgray.schema.reads import JUDGED
from kgray.schema.record_rows import judgements
from kgray.settings import Settings, load
from kgray.storage.ledger import dumped_episodes
from kgray.storage.sqlite.schema import FILE, VERSION
from tests.neo4j_dump import database_dump
from tests.neo4j_dump import load as load_dump

DATA = Path(__file__).parent.parent / "data"
FIRST, SECOND = DATA / "version-0.1", DATA / "version-0.2"
neo4j = pytest.mark.neo4j
# The rules of this version differ from version 0.1: sentences are texts of facts
# (R18a), and no model speaks about relation names (R17).
CHANGED = {"fact": {"text"}, "relation": {"judge", "cardinality", "same_as", "inverse_of"}}
# Ends the command by force at its n-th call of a function of this name, or of any, in these files; prints how
# many calls there were.
KILLED = """
import atexit, os, signal, sys
(files, _, name), limit, calls = sys.argv.pop(1).partition(":"), int(sys.argv.pop(1)), 0
def count(frame, event, _):
    global calls
    code = frame.f_code
    if event == "call" and files in code.co_filename and name in ("", code.co_name):
        calls += 1
        if calls == limit:
            os.kill(os.getpid(), signal.SIGKILL)
atexit.register(lambda: print(calls, file=sys.stderr))
sys.setprofile(count)
from kgray.cli import main
main()
"""

# Has a file open until its standard input ends.
READING = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1])
print(database.execute("SELECT count(*) FROM groups").fetchone(), flush=True)
sys.stdin.read()
"""


def unpacked(version: Path, to: Path) -> Path:
    """Return a copy of the data folder of a version."""
    with tarfile.open(version / "data.tar.gz") as tar:
        # Python 3.11.0 to 3.11.3 have no filters.
        filters = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        tar.extractall(to, **filters)  # noqa: S202 - the project's own archive
    return to / "data"


@pytest.fixture
def folder(tmp_path) -> Path:
    """Return a copy of the data folder of version 0.1."""
    return unpacked(FIRST, tmp_path)


@pytest.fixture
def on_neo4j(tmp_path, own_neo4j, neo4j_driver) -> Callable[[Path], Path]:
    """Return a function that loads a version's database, and returns a folder with the settings of it."""

    def loaded(version: Path) -> Path:
        load_dump(neo4j_driver, (version / "neo4j.jsonl.gz").read_bytes())
        settings = (
            f'[embedder]\nbackend = "hashing"\ndimensions = 16\n[records]\nkey = "sku"\n'
            f'[store]\nbackend = "neo4j"\nuri = "{own_neo4j.uri}"\nuser = "{own_neo4j.user}"\n'
            f'password_file = "{tmp_path / "password"}"\n'
        )
        (tmp_path / "password").write_text(own_neo4j.password)
        (tmp_path / "kgray.toml").write_text(settings)
        return tmp_path

    return loaded


def settings_of(folder: Path) -> Settings:
    return load(folder / "kgray.toml", environ={})


def upgraded(folder: Path, **options: Any) -> dict[str, Any]:
    """Upgrade the store of a folder, and return the report."""
    with open_earlier(settings_of(folder), folder, alone=not options.get("dry_run")) as earlier:
        assert earlier is not None
        return dict(upgrade(earlier, shipped(), **options))


def kgray_run(*arguments: str, files: str = "storage/sqlite", limit: int = 0) -> Any:
    """Run the command; end it by force at its n-th call in files ("FILES", "FILES:FUNCTION"), 0: never."""
    command = [sys.executable, "-c", KILLED, files, str(limit), *arguments]
    environment = {name: text for name, text in os.environ.items() if not name.startswith("KGRAY_")}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def opened(folder: Path) -> kgray.AsyncMemory:
    return kgray.open_async(folder, create=False)


def refused(folder: Path) -> bool:
    """Return True if a reader must upgrade the store; otherwise it reads the new store."""
    try:
        opened(folder).close()
    except StoreError as error:
        return "run `kgray upgrade`" in str(error)
    return False


def lines_of(store: Store, group: str, moment: str = "now") -> list[str]:
    known_at = None if moment == "now" else parse(moment)[0]
    with store.reading():
        view = View(records_of(store, group, known_at), lambda _: [])
        return dump.lines(dump.rows(view, dumped_episodes(store, group, known_at)))


def digest_of(lines: list[str]) -> str:
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()


def hashes_of(folder: Path, expected: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    with closing(opened(folder)) as memory:
        return {
            group: {moment: digest_of(lines_of(memory.store, group, moment)) for moment in moments}
            for group, moments in expected.items()
        }


def without_changed(lines: list[str]) -> list[dict[str, Any]]:
    rows = map(json.loads, lines)
    return [
        {key: value for key, value in row.items() if key not in CHANGED.get(row["type"], ())} for row in rows
    ]


def first_dumps() -> dict[str, dict[str, list[str]]]:
    """Return the dumps of version 0.1, whose hashes are on record."""
    texts = json.loads(gzip.decompress((FIRST / "dumps.json.gz").read_bytes()))
    dumps = {group: {at: text.splitlines() for at, text in ats.items()} for group, ats in texts.items()}
    recorded = json.loads((FIRST / "hashes.json").read_text())["sqlite"]
    assert {g: {at: digest_of(lines) for at, lines in ats.items()} for g, ats in dumps.items()} == recorded
    return dumps


def check_first(folder: Path, moments: dict[str, dict[str, str]]) -> None:
    """Compare a store with the dumps of version 0.1, except for the changes of the rules."""
    with closing(opened(folder)) as memory:
        for group, dumps in first_dumps().items():
            for (_, old), moment in zip(dumps.items(), moments[group], strict=True):
                new = lines_of(memory.store, group, moment)
                assert sorted(map(repr, without_changed(new))) == sorted(map(repr, without_changed(old)))
        assert memory.store.heads([OWN])[OWN].last == 2
        (schedule,) = memory.store.rows(SCHEDULES.all, OWN)
        (key,) = memory.store.rows(ACCESS_KEYS.all, OWN)
    assert (schedule[0], schedule[1], schedule[2]) == ("nightly", "0 3 * * *", "Europe/Berlin")
    assert key[3:5] == (("team",), ("read",))


HASHES: dict[str, dict[str, dict[str, dict[str, str]]]] = {
    version.name: json.loads((version / "hashes.json").read_text()) for version in (FIRST, SECOND)
}


def test_a_folder_of_version_0_1_gives_its_old_graph_except_for_changed_rules(folder):
    report = upgraded(folder)

    assert (report["from"], report["to"], report["verified"]) == (9, VERSION, True)
    assert {name: (g["entities"], g["facts"], g["changed"]) for name, g in report["groups"].items()} == {
        "desk": (8, 7, []),
        "team": (18, 19, []),
    }
    check_first(folder, HASHES[FIRST.name]["sqlite"])


def test_a_folder_of_version_0_2_gives_the_same_hashes(tmp_path):
    folder = unpacked(SECOND, tmp_path)
    if VERSION > 10:
        assert upgraded(folder)["verified"]

    expected = HASHES[SECOND.name]["sqlite"]
    assert hashes_of(folder, expected) == expected


@neo4j
@pytest.mark.seldom_on_neo4j
def test_a_database_of_version_0_1_gives_its_old_graph_except_for_changed_rules(on_neo4j, neo4j_driver):
    folder = on_neo4j(FIRST)
    report = upgraded(folder)

    assert (report["from"], report["verified"], report["kept"]) == (8, True, "")
    assert [g["changed"] for g in report["groups"].values()] == [[], []]
    check_first(folder, HASHES[FIRST.name]["neo4j"])
    answer = neo4j_driver.execute_query(
        "MATCH (n) WHERE n:KgrayOld OR n:KgrayRuling OR n.old_kind IS NOT NULL RETURN count(n)"
    )
    assert answer.records[0][0] == 0


@neo4j
@pytest.mark.slow
def test_a_database_of_version_0_2_gives_the_same_hashes(on_neo4j):
    folder = on_neo4j(SECOND)
    if VERSION > 10:
        assert upgraded(folder)["verified"]

    expected = HASHES[SECOND.name]["neo4j"]
    assert hashes_of(folder, expected) == expected


def test_an_upgrade_keeps_the_earlier_file_for_a_rollback(folder):
    copy_before = shutil.copy(folder / FILE, folder.parent / "before")

    copy_kept = Path(upgraded(folder)["kept"])

    assert sorted(path.name for path in folder.iterdir() if FILE in path.name) == [
        FILE, f"{FILE}.made", f"{FILE}.schema-9",
    ]  # fmt: skip
    assert copy_kept.stat().st_mode & 0o777 == 0o600
    with (
        closing(sqlite3.connect(copy_kept)) as database,
        closing(sqlite3.connect(copy_before)) as database_before,
    ):
        assert list(database.iterdump()) == list(database_before.iterdump())
        assert database.execute("PRAGMA user_version").fetchone() == (9,)


def test_a_dry_run_reports_the_plan_and_changes_nothing(folder):
    files_before = {path.name: path.read_bytes() for path in folder.iterdir()}

    planned = upgraded(folder, dry_run=True)

    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files_before
    upgraded_report = upgraded(folder)
    assert (planned["groups"], planned["rows"]) == (upgraded_report["groups"], upgraded_report["rows"])
    assert (planned["verified"], planned["kept"]) == (False, "")


@neo4j
@pytest.mark.slow
def test_a_dry_run_changes_nothing_in_a_database(on_neo4j, neo4j_driver):
    folder = on_neo4j(FIRST)
    content_before = database_dump(neo4j_driver)

    assert upgraded(folder, dry_run=True)["groups"].keys() == {"desk", "team"}

    assert database_dump(neo4j_driver) == content_before


async def test_pending_episodes_are_committed_and_more_can_be_added(folder):
    upgraded(folder)

    async with opened(folder) as memory:
        await memory.add("I work at Acme now.", group="team", speaker="Gil Roy", at="2025-09-01")
        await memory.ingest()
        counts = (await memory.status(group="team")).groups
        [facts] = [await memory.history("Alice Nguyen", group="team")]
        judged = [judgements(row.judged) for row in memory.store.rows(JUDGED, "team")]
        declared = [item for each in judged for item, _ in each.declarations if item.sequence > 27]

    assert (counts["team"].accepted, counts["team"].failed) == (0, 2)
    assert "Oslo" in {fact.object for fact in facts.facts}
    # Declarations by the ontology of version 0.1 are not repeated.
    assert not [item for item in declared if item.name in ("WORKS_AT", "LIVES_IN", "LIKES")]


async def test_a_removal_after_an_upgrade_leaves_text_only_in_the_earlier_file(folder):
    copy_kept = Path(upgraded(folder)["kept"])

    async with opened(folder) as memory:
        await memory.remove(group="team", episodes=["m8"])

    having = {path.name for path in folder.iterdir() if b"Lagoon" in path.read_bytes()}
    assert having == {copy_kept.name}


@pytest.mark.parametrize("often", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.slow  # an undisturbed upgrade runs by default
def test_a_killed_upgrade_leaves_the_earlier_store_and_can_be_repeated(folder, tmp_path, *, often):
    uninterrupted = kgray_run("upgrade", "--data", str(shutil.copytree(folder, tmp_path / "whole")), "--json")
    calls, results = int(uninterrupted.stderr.split()[-1]), set()
    # The last limits fall into the copying, renaming and closing of the file.
    extra_limits = (calls // 4, calls - 20, calls - 8, calls - 4) if often else ()
    for limit in (calls // 2, *extra_limits, calls - 1):
        copy = shutil.copytree(folder, tmp_path / str(limit))
        assert kgray_run("upgrade", "--data", str(copy), limit=limit).returncode == -signal.SIGKILL

        is_earlier = refused(copy)
        results.add(is_earlier)
        with open_earlier(settings_of(copy), copy, alone=True) as earlier:
            assert (earlier is not None) == is_earlier
            if earlier is not None:
                assert upgrade(earlier, shipped())["groups"] == json.loads(uninterrupted.stdout)["groups"]
        names = [sorted(path.name for path in each.iterdir()) for each in (copy, tmp_path / "whole")]
        assert names[0] == names[1]
        check_first(copy, HASHES[FIRST.name]["sqlite"])
    assert results == {True, False}


@neo4j
@pytest.mark.slow  # `make test` kills the upgrade of a folder, `make test-neo4j` upgrades a database
@pytest.mark.parametrize(
    "kills",
    [
        {"building": ("row_writer.py:write", 2)},
        {
            "moving": ("earlier.py:_repeat", 3),
            "building": ("row_writer.py:write", 2),
            "dropping": ("earlier.py:_repeat", 1),
        },
    ],
    ids=["once", "in each phase"],
)
def test_a_killed_upgrade_of_a_database_can_be_continued(on_neo4j, neo4j_driver, kills):
    """Rows move, then groups are built, then the old rows go; a kill loses nothing in any phase."""
    folder = on_neo4j(FIRST)
    phases = []
    for function, limit in kills.values():
        run = kgray_run(
            "upgrade", "--data", str(folder), "--json", files=f"storage/neo4j/{function}", limit=limit
        )
        assert run.returncode == -signal.SIGKILL
        meta = neo4j_driver.execute_query("MATCH (m:KgrayMeta) RETURN m.upgrading")
        phases.append(meta.records[0][0])
        assert refused(folder)
    assert phases == list(kills)

    report = upgraded(folder)

    assert {name: (g["facts"], g["changed"]) for name, g in report["groups"].items()} == {
        "desk": (7, []),
        "team": (19, []),
    }
    check_first(folder, HASHES[FIRST.name]["neo4j"])


def changed_folder(folder: Path, *statements: str) -> None:
    """Change rows of the file of version 0.1."""
    with closing(sqlite3.connect(folder / FILE)) as database, database:
        for statement in statements:
            database.execute(statement)


def facts_of(folder: Path, group: str = "team") -> dict[str, dict[str, Any]]:
    with closing(opened(folder)) as memory:
        rows = map(json.loads, lines_of(memory.store, group))
        return {row["id"]: row for row in rows if row["type"] == "fact"}


def test_a_fact_ended_by_a_ruling_of_a_model_stays_ended_by_a_verdict(folder, tmp_path):
    expected = facts_of(upgraded_copy(folder, tmp_path / "copy"))
    changed_folder(folder, "UPDATE rulings SET judge = 'some-model' WHERE name = 'LIVES_IN'")

    report = upgraded(folder)

    assert report["groups"]["team"]["verdicts"] == 1
    assert (report["groups"]["team"]["changed"], report["verified"]) == ([], True)
    assert facts_of(folder) == expected
    with closing(opened(folder)) as memory:
        rows = map(json.loads, lines_of(memory.store, "team"))
        judges = [row["judge"] for row in rows if row["type"] == "verdict"]
    assert sorted(judges) == ["scripted-1", "upgrade"]


def upgraded_copy(folder: Path, to: Path) -> Path:
    copy = shutil.copytree(folder, to)
    upgraded(copy)
    return copy


def test_statements_that_a_model_judged_equal_are_merged(folder):
    """Erin coaches Gil: of its own, as before the ruling that folded it into "Erin mentors Gil"."""
    own_id = statement_id("team", (11, 0))
    changed_folder(
        folder,
        f"INSERT INTO births SELECT no, '{own_id}', 11, 0 FROM groups WHERE name = 'team'",  # noqa: S608
        f"UPDATE evidence SET statement = '{own_id}' WHERE relation = 'COACHES'",  # noqa: S608
    )

    report = upgraded(folder)

    assert report["groups"]["team"]["attached"] == 1
    assert report["groups"]["team"]["changed"] == []
    check_first(folder, HASHES[FIRST.name]["sqlite"])


def test_a_fact_that_differs_without_a_ruling_is_reported(folder):
    changed_folder(folder, "UPDATE facts SET invalid_at = 1 WHERE relation = 'KNOWS' OR relation = 'OWNS'")

    report = upgraded(folder)

    (row,) = report["groups"]["team"]["changed"]
    assert (row["before"], row["after"]) == ({"invalid_at": 1}, {"invalid_at": None})


def test_sequences_of_a_removed_group_are_not_used_again(folder):
    digest = hashlib.sha256(b"gone").hexdigest()
    removed = f"INSERT INTO groups (digest, last, last_recorded) VALUES (x'{digest}', 7, 9)"  # noqa: S608
    changed_folder(folder, removed)

    upgraded(folder)

    with closing(opened(folder)) as memory:
        assert memory.store.heads(["gone"])["gone"].last == 7


def test_a_folder_opened_by_another_process_is_refused(folder):
    command = [sys.executable, "-c", READING, folder / FILE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        reader.stdout.readline()
        with pytest.raises(Locked, match=r"another process has .* open: end it"):
            upgraded(folder)
        reader.communicate("")
    assert upgraded(folder)["verified"]


@neo4j
@pytest.mark.slow
def test_an_upgrade_completes_an_interrupted_removal(on_neo4j, neo4j_driver):
    folder = on_neo4j(FIRST)
    neo4j_driver.execute_query(
        "MATCH (g:KgrayGroup {name: 'desk'}) SET g.cleared_name = 'desk', g.clearing = 8 REMOVE g.name"
    )

    assert upgraded(folder)["groups"].keys() == {"team"}

    with closing(opened(folder)) as memory:
        assert (memory.store.heads(["desk"])["desk"].named, memory.store.heads(["desk"])["desk"].last) == (
            False,
            8,
        )
        assert [*memory.store.rows(EPISODES.all, "desk")] == []
    answer = neo4j_driver.execute_query("MATCH (n {group_id: 'desk'}) RETURN count(n)")
    assert answer.records[0][0] == 0


@neo4j
@pytest.mark.seldom_on_neo4j
def test_a_database_in_use_by_an_earlier_process_is_refused(on_neo4j, neo4j_driver):
    folder = on_neo4j(FIRST)
    neo4j_driver.execute_query(
        "MATCH (s:KgrayShard) SET s.holder = 'process 7 on host', s.beat = timestamp()"
    )
    content_before = database_dump(neo4j_driver, omit=["locked"])

    with pytest.raises(Locked, match="process 7 on host is ingesting"):
        upgraded(folder)

    neo4j_driver.execute_query("MATCH (u:KgrayUpgrade) DELETE u")
    assert nodes_of(database_dump(neo4j_driver, omit=["locked"])) == nodes_of(content_before)


def nodes_of(dump_: bytes) -> list[str]:
    return [line for line in gzip.decompress(dump_).decode().splitlines() if not line.startswith('{"index"')]


@pytest.mark.parametrize(
    ("version", "message"),
    [(8, "can upgrade data from schema 9 on"), (VERSION + 1, "was written by a newer kgray")],
)
def test_other_schemas_get_a_clear_error(folder, version, message):
    changed_folder(folder, f"PRAGMA user_version = {version}")

    with pytest.raises(StoreError, match=re.escape(message)) as raised:
        upgraded(folder)

    assert "\n" not in str(raised.value)


def test_an_upgrade_refuses_an_empty_folder_and_keeps_a_current_store(folder, tmp_path):
    with pytest.raises(NoStore), open_earlier(Settings(), tmp_path / "none", alone=True):
        pass
    upgraded(folder)

    with open_earlier(settings_of(folder), folder, alone=True) as earlier:
        assert earlier is None
