"""The script cluster/neo4j/server: its messages, and running servers that it does not change."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.neo4j_server import STARTER


def run(*arguments, **environment):
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("NEO4J_")}
    return subprocess.run(
        [STARTER, *arguments], env=inherited | environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    "arguments", [(), ("start",), ("begin", "here"), ("stop",), ("start", "here", "80", "more")]
)
def test_wrong_arguments_print_the_usage(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    outcome = run(*arguments)

    assert (outcome.returncode, outcome.stdout) == (2, "")
    assert "usage: server start DIR [PORT]" in outcome.stderr


def test_a_missing_folder_and_an_invalid_port_are_reported(tmp_path):
    assert "no such folder" in run("stop", tmp_path / "none").stderr
    assert "many is no port" in run("start", tmp_path / "new", "many").stderr
    assert (run("status", tmp_path).returncode, run("status", tmp_path).stdout) == (
        1,
        f"not running in {tmp_path.resolve()}\n",
    )


def test_a_release_without_a_suitable_java_is_refused(tmp_path):
    """The only Java here is too old for the release."""
    bare = tmp_path / "bin"
    bare.mkdir()
    for name in ("bash", "dirname", "env", "sed", "head"):
        result = next(path for path in ("/bin", "/usr/bin") if os.path.exists(f"{path}/{name}"))  # noqa: PTH110
        (bare / name).symlink_to(f"{result}/{name}")
    java = bare / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    (tmp_path / "jvm").mkdir()
    outcome = run(
        "check", PATH=str(bare), JAVA_HOME="", NEO4J_VERSION="5.26.30", NEO4J_JVMS=str(tmp_path / "jvm")
    )

    assert outcome.returncode == 3
    assert "needs Java 17 or newer" in outcome.stderr


@pytest.mark.neo4j
def test_a_running_server_is_unchanged(neo4j_server):
    if neo4j_server.folder is None:
        pytest.skip("needs a Neo4j server of the tests' own: unset KGRAY_TEST_NEO4J_URI")
    port = neo4j_server.uri.rpartition(":")[2]
    status = run("status", neo4j_server.folder).stdout

    assert status.startswith(f"{neo4j_server.uri}, Neo4j ")
    assert run("start", neo4j_server.folder, port).stdout == f"{neo4j_server.uri}\n"
    assert f"runs in {neo4j_server.folder} already" in run("start", neo4j_server.folder, "1").stderr
    assert run("status", neo4j_server.folder).stdout == status
