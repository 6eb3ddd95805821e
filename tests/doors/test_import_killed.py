"""An import that is killed is completed by the next import: the same graph, and no episode twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

import kgray as library
from tests.doors.shell import Answer, Shell, triple, triples_row
from tests.waiting import HANGS_S

EPISODES = 12
SLOW = ("graphrag", "lightrag", "zep", "mem0", "parquet")
FORMS = ["cogx", *(pytest.param(form, marks=pytest.mark.slow) for form in SLOW)]
# `kgray`, which kills itself inside its Nth commit to the store.
KILLED = """
import os, signal, sys
import apsw
left = int(sys.argv.pop(1))
def commit():
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    return False
apsw.connection_hooks.append(lambda connection: connection.set_commit_hook(commit))
from kgray.cli import main
main()
"""


def killed(shell: Shell, commits: int, *words: str) -> None:
    """Run a command in a process that is killed inside a commit."""
    environ = os.environ | shell.env | {"PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.run(
        [sys.executable, "-c", KILLED, str(commits), *words],
        cwd=shell.folder, env=environ, capture_output=True, text=True, timeout=HANGS_S, check=False,
    )  # fmt: skip
    assert process.returncode == -signal.SIGKILL, process.stderr


def commits_of(work: Callable[[], Answer], monkeypatch: pytest.MonkeyPatch) -> tuple[Answer, int]:
    """Return the answer of a command, and the number of its commits."""
    commits = 0

    def count() -> bool:
        nonlocal commits
        commits += 1
        return False

    hook = [*apsw.connection_hooks, lambda connection: connection.set_commit_hook(count)]
    with monkeypatch.context() as patch:
        patch.setattr(apsw, "connection_hooks", hook)
        answer = work()
    return answer, commits


def exported(shell: Shell, form: str) -> None:
    """Write the export of a group."""
    rows = [
        triples_row(f"t{n}", "2026-01-01", *(triple(f"P{n}", "KNOWS", f"Q{n % 9 + m}") for m in range(9)))
        for n in range(EPISODES)
    ]
    with library.open(shell.folder / "origin", create=True, settings={"model_backend": "rules"}) as memory:
        assert memory.add_many(rows).exit_code == 0
        memory.export(shell.folder / "in", to=form, group="team")


def written(shell: Shell, form: str) -> None:
    """Write a file of Zep or Mem0 by hand."""
    nodes = [{"uuid": f"n{n}", "name": f"Anna Smith{n}"} for n in range(EPISODES + 1)]
    edges = [
        {"uuid": f"f{n}", "source_node_uuid": f"n{n}", "target_node_uuid": f"n{n + 1}", "name": "KNOWS",
         "fact": "-", "episodes": [f"e{n}"]}
        for n in range(EPISODES)
    ]  # fmt: skip
    at = {"valid_at": "2026-01-01", "created_at": "2026-01-01"}
    texts: list[dict[str, Any]] = [
        {"uuid": f"e{n}", "id": f"e{n}", "content": f"Anna Smith{n} works at Acme."} | at
        for n in range(EPISODES)
    ]
    graph = {"nodes": nodes, "edges": edges, "episodes": texts}
    (shell.folder / "in").write_text(json.dumps(graph if form == "zep" else {"results": texts}))


def check(kgray: Shell, monkeypatch: pytest.MonkeyPatch, form: str, *words: str) -> None:
    """Import without a kill; then into another store, with two killed imports before a complete import."""
    command = ("import", form, *words, "--group", "team")

    def run_import(folder: str) -> Answer:
        return kgray(*command, "--data", folder, "--json")

    def committed() -> int:
        groups: dict[str, Any] = kgray("status", "--data", "torn", "--json").json["groups"]
        return int(groups.get("team", {}).get("committed", 0))

    undisturbed, commits = commits_of(lambda: run_import("whole"), monkeypatch)
    assert undisturbed.code == 0
    killed(kgray, commits // 2, *command, "--data", "torn")
    first = committed()
    killed(kgray, commits // 2, *command, "--data", "torn")
    second = committed()
    last = run_import("torn")

    graph = kgray("dump", "--group", "team", "--data", "whole").out
    assert kgray("dump", "--group", "team", "--data", "torn").out == graph
    counts = ("taken", "changed", "omitted", "reasons")
    assert [last.json[name] for name in counts] == [undisturbed.json[name] for name in counts]
    if form == "parquet":
        assert (first, second, last.code) == (0, 0, 0), "a group is complete or absent"
        return
    assert 0 < first < second < EPISODES == committed()
    assert (last.code, last.json["refused"], last.json["failed"]) == (0, 0, 0)
    assert last.json["accepted"] + last.json["duplicate"] == EPISODES
    assert run_import("torn").json["accepted"] == 0


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.slow  # a killed backfill is resumed by default
def test_a_killed_import_is_completed_by_the_next_one(
    kgray: Shell, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    kgray.env["KGRAY_MODEL_BACKEND"] = "rules"
    (written if form in ("zep", "mem0") else exported)(kgray, form)
    check(kgray, monkeypatch, form, "in")


@pytest.mark.slow
def test_a_killed_import_of_a_graphiti_database_is_completed(
    kgray: Shell, monkeypatch: pytest.MonkeyPatch, own_neo4j: Any, neo4j_driver: Any
) -> None:
    kgray.env |= {"KGRAY_MODEL_BACKEND": "rules", "NEO4J_PASSWORD": own_neo4j.password}
    neo4j_driver.execute_query(
        "UNWIND range(1, $episodes) AS n CREATE (:Episodic {uuid: 'e' + n, group_id: '', content: 'words', "
        "valid_at: datetime('2026-01-01T00:00:00Z')}) CREATE (:Entity {uuid: 'a' + n, group_id: '', "
        "name: 'Ann ' + n})-[:RELATES_TO {uuid: 'f' + n, group_id: '', name: 'KNOWS', fact: 'knows', "
        "episodes: ['e' + n]}]->(:Entity {uuid: 'b' + n, group_id: '', name: 'Bob ' + n})",
        episodes=EPISODES,
    )
    check(kgray, monkeypatch, "graphiti", own_neo4j.uri, "--user", own_neo4j.user)
