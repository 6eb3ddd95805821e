"""The shipped examples: they are well formed, they are understood, and the demo answers with the truth."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import kgray
from kgray.cli import cli

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FILES = ("support.jsonl", "catalogue.jsonl", "team.jsonl")


@pytest.mark.parametrize("name", FILES)
def test_every_line_says_who_when_and_where(name):
    rows = [json.loads(line) for line in (EXAMPLES / name).read_text(encoding="utf-8").splitlines()]

    required = {"id", "at", "group", "source"}
    assert [row["id"] for row in rows if not required <= row.keys()] == []
    assert {row["group"] for row in rows} == {name.removesuffix(".jsonl")}
    assert len({row["id"] for row in rows}) == len(rows)
    assert [row["at"] for row in rows] == sorted(row["at"] for row in rows)


@pytest.fixture(scope="module")
def memory(tmp_path_factory):
    """Return a memory that has read all examples."""
    with kgray.open(tmp_path_factory.mktemp("examples")) as opened:
        for name in FILES:
            rows = [json.loads(line) for line in (EXAMPLES / name).read_text(encoding="utf-8").splitlines()]
            report = opened.add_many(rows)
            assert (report.accepted, report.refused, report.failed) == (len(rows), 0, 0)
        yield opened


def test_nothing_of_the_examples_failed(memory):
    assert {group: counts.failed for group, counts in memory.groups().items()} == {
        "catalogue": 0,
        "support": 0,
        "team": 0,
    }


@pytest.mark.parametrize(
    ("group", "query", "moment", "answer"),
    [
        ("team", "Where does Alice Nguyen work?", "2025-10-01", "Lumen Systems"),
        ("team", "Where does Alice Nguyen work?", "2026-02-01", "Harbor Analytics"),
        ("team", "Where does Alice Nguyen work?", "2026-06-01", "Brightwater"),
        ("team", "Where does Bruno Keller live?", "2025-10-31", "Zurich"),
        ("team", "Where does Bruno Keller live?", "2025-11-01", "Lisbon"),
        ("team", "Where does Dana Levy live?", "2025-12-15", "Oslo"),
        ("team", "Where does Elena Rossi work?", "2025-12-15", "Harbor Analytics"),
        ("team", "status of Project Aurora", "2026-02-01", "delayed"),
        ("team", "status of Project Aurora", "2026-04-01", "completed"),
        ("team", "Whom does Hugo Martin report to?", "2025-11-30", "Alice Nguyen"),
        ("team", "Whom does Hugo Martin report to?", "2025-12-01", "Dana Levy"),
        ("catalogue", "How many USD does the Kestrel LaserPro M28 cost?", "2025-11-28", "299 USD"),
        ("catalogue", "How many USD does the Kestrel LaserPro M28 cost?", "2026-05-30", "279 USD"),
        ("support", "What problem does the printer have?", "2026-01-20", "ghost images"),
        ("support", "How were the ghost images solved?", "2026-03-01", "toner cartridge"),
    ],
)
def test_the_answer_is_among_the_first_three(memory, group, query, moment, answer):
    hits = memory.search(query, group=group, scopes=("fact",), as_of=moment, limit=3)

    assert answer in [hit.target for hit in hits]


def demo(folder, runtime):
    """Run `make demo` without its installation; return what it printed under each heading."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / "demo.py", folder],
        env=os.environ | {"KGRAY_RUNTIME_BACKEND": runtime},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return re.split(r"^=== .*$", done.stdout, flags=re.MULTILINE)


def test_the_demo_prints_what_changed(tmp_path):
    *_, jobs, prices, dana, context, history = demo(tmp_path / "demo", "local")

    for part, expected in (
        (jobs, ["Lumen Systems", "Harbor Analytics", "Brightwater"]),
        (prices, ["299 USD", "279 USD"]),
        (dana, ["Haifa", "Oslo"]),
    ):
        answers = re.split(r"^\$ .*$", part, flags=re.MULTILINE)[1:]
        assert [word in text for word, text in zip(expected, answers, strict=True)] == [True] * len(expected)
    assert "ghost images" in context
    assert all(
        name in history for name in ("Lumen Systems", "Harbor Analytics", "Brightwater", "Berlin", "Lyon")
    )


@pytest.mark.ray
def test_the_demo_tells_what_ray_ingested_and_ends_it(tmp_path, capfd):
    """Up to the questions, which need no Ray and are asked in the test before."""
    pytest.importorskip("ray")
    spec = importlib.util.spec_from_file_location("demo", EXAMPLES / "demo.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    folder = tmp_path / "demo"
    folder.mkdir()
    (folder / "kgray.toml").write_text(script.SETTINGS)

    script.over_ray(folder)

    parts = re.split(r"^=== .*$", capfd.readouterr().out, flags=re.MULTILINE)
    assert len(parts) == 6
    read = [int(number) for number in re.findall(r"models-\d +process \d+ +read (\d+) episodes", parts[4])]
    decided = re.findall(r"sequencer-0 +process \d+ +decided (\d+) episodes, .*; 0 failed", parts[4])
    assert (len(read), decided) == (2, ["114"])
    assert sum(read) >= 114, "what is read twice counts once"
    assert re.search(r"^5 actors and \d+ processes of Ray ended\.$", parts[5], re.MULTILINE)
    assert not (folder / "ray.json").exists()


def test_the_first_commands_of_the_readme_answer_as_it_says(tmp_path):
    readme = (EXAMPLES.parent / "README.md").read_text(encoding="utf-8")
    block = readme.split("```console")[1].split("```")[0]
    (lines,) = re.findall(r"<<'LINES'\n(.*?)LINES\n", block, re.DOTALL)
    searches = re.findall(r"^\$ (kgray search .*?) *# (.*)$", block, re.MULTILINE)
    runner, where = CliRunner(), ["--data", str(tmp_path)]
    assert runner.invoke(cli, ["add", "-", "--group", "demo", *where], input=lines).exit_code == 0
    assert len(searches) == 2
    for command, said in searches:
        answer = runner.invoke(cli, [*shlex.split(command)[1:], *where])
        assert said in answer.stdout.splitlines()[0]
    history = runner.invoke(cli, ["history", "Alice Nguyen", "--group", "demo", *where]).stdout
    assert [name in history for name in ("Acme", "Beta Labs", "ended by")] == [True, True, True]
