"""The shipped examples: they are well formed, all are ingested, and the demo prints true answers."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

import kgray
from kgray.cli import cli

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FILES = ("support.jsonl", "catalogue.jsonl", "team.jsonl")


@pytest.mark.parametrize("name", FILES)
def test_every_line_has_an_id_a_time_a_group_and_a_source(name):
    rows = [json.loads(line) for line in (EXAMPLES / name).read_text(encoding="utf-8").splitlines()]

    required = {"id", "at", "group", "source"}
    assert [row["id"] for row in rows if not required <= row.keys()] == []
    assert {row["group"] for row in rows} == {name.removesuffix(".jsonl")}
    assert len({row["id"] for row in rows}) == len(rows)
    assert [row["at"] for row in rows] == sorted(row["at"] for row in rows)


@pytest.fixture(scope="module")
def memory(tmp_path_factory):
    """Return a memory that has read all examples."""
    with kgray.open(tmp_path_factory.mktemp("examples"), create=True) as opened:
        for name in FILES:
            rows = [json.loads(line) for line in (EXAMPLES / name).read_text(encoding="utf-8").splitlines()]
            report = opened.add_many(rows)
            assert (report.accepted, report.refused, report.failed) == (len(rows), 0, 0)
        yield opened


def test_no_episode_of_the_examples_failed(memory):
    assert {group: counts.failed for group, counts in memory.status().groups.items()} == {
        "catalogue": 0,
        "support": 0,
        "team": 0,
    }


# Questions of users, and the content of the right answer: facts if the reader of plain English understood
# the message, the message itself otherwise.
@pytest.mark.parametrize(
    ("group", "query", "moment", "answer"),
    [
        ("support", "What comes out on every page?", "2026-01-20", "faint copy"),
        ("support", "Which printer did Martha buy?", "2026-03-01", "Kestrel LaserPro M28"),
        ("support", "What did Martha replace against the ghosting?", "2026-03-01", "toner cartridge"),
        ("support", "Whom is ticket KS-20871 assigned to?", "2026-01-25", "Priya Raman"),
        ("support", "Where does Martha Oduya live?", "2026-02-10", "Leeds"),
        ("support", "Where does Martha Oduya live?", "2026-04-01", "Liverpool"),
        ("support", "Is the ticket KS-20871 closed?", "2026-02-10", "closed"),
        ("support", "What was replaced against the paper jams?", "2026-06-01", "pickup roller"),
        ("support", "Who has sold the Kestrel LaserPro M28?", "2026-07-01", "sold the Kestrel LaserPro M28"),
        ("support", "Which firmware is on the printer?", "2026-01-20", "2.4.1"),
        ("support", "Which paper does Martha use?", "2026-01-14T12:00", "recycled paper"),
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
        ("team", "Who is Hugo Martin married to?", "2026-01-01", "Clara Martin"),
        ("team", "Does Dana Levy like filter coffee?", "2025-10-10", "filter coffee"),
        ("team", "Where did Bruno Keller work in 2017?", "2017-06-01", "Lumen Systems"),
        ("team", "Who keeps bees?", "2026-06-01", "I keep bees"),
        ("team", "Who is Elena's manager at Harbor?", "2026-06-01", "Nadia Brandt"),
        ("team", "What does Bruno Keller use for the roadmap?", "2025-10-01", "Airtable"),
        ("team", "Where is Brightwater headquartered?", "2026-03-01", "Accra"),
        ("catalogue", "How many USD does the Kestrel LaserPro M28 cost?", "2025-11-28", "299 USD"),
        ("catalogue", "How many USD does the Kestrel LaserPro M28 cost?", "2026-05-30", "279 USD"),
        ("catalogue", "status of the Kestrel Toner T28", "2026-01-01", "backordered"),
    ],
)
def test_a_search_returns_the_answer(memory, group, query, moment, answer):
    hits = memory.search(query, group=group, as_of=moment)

    assert any(answer in hit.text for hit in hits), [hit.text for hit in hits]


@pytest.mark.parametrize(
    ("group", "name", "moment", "facts"),
    [
        pytest.param(
            "team",
            "Elena Rossi",
            "2026-03-01",
            {("WORKS_AT", "Harbor Analytics"), ("HAS_ROLE", "data lead"), ("LIKES", "Airtable")},
            id="a denied rumour is no fact",
        ),
        pytest.param(
            "team", "Chidi Okafor", "2026-02-05", {("VISITED", "Lisbon")}, id="no job between two jobs"
        ),
        pytest.param(
            "support",
            "Martha Oduya",
            "2026-04-01",
            {
                ("BOUGHT", "Kestrel LaserPro M28"),
                ("LIVES_IN", "Liverpool"),
                ("OWNS", "Kestrel LaserPro M28"),
                ("REPLACED", "toner cartridge"),
                ("RESTARTED", "Kestrel LaserPro M28"),
            },
            id="no ended habits and no earlier home",
        ),
    ],
)
def test_history_as_of_a_moment_has_exactly_the_facts_of_a_person(memory, group, name, moment, facts):
    history = memory.history(name, group=group, as_of=moment).as_dict()["facts"]

    assert {(fact["relation"], fact["target"]) for fact in history if fact["source"] == name} == facts


@pytest.fixture
def demo(tmp_path):
    """Return the script behind `make demo`, and the folder of its data."""
    spec = importlib.util.spec_from_file_location("demo", EXAMPLES / "demo.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    folder = tmp_path / "demo"
    folder.mkdir()
    return script, folder


def printed(capfd):
    """Return the output of a demo under each heading."""
    return re.split(r"^=== .*$", capfd.readouterr().out, flags=re.MULTILINE)


def test_the_demo_prints_changed_facts(demo, capfd, monkeypatch):
    """Its commands run in this process, except in pipes; in the next test each command is a process."""
    script, folder = demo
    (folder / "kgray.toml").write_text('[runtime]\nbackend = "local"\n')
    monkeypatch.chdir(EXAMPLES.parent)

    def command(folder, *words):
        outcome = CliRunner().invoke(cli, [*words, "--data", str(folder)])
        assert outcome.exit_code == 0, outcome.stderr
        print(f"$ kgray {shlex.join(words)}\n{outcome.stdout}\n", flush=True)  # noqa: T201 - as the demo does

    monkeypatch.setattr(script, "kgray", command)
    script.ask(folder, script.alone(folder))

    *_, jobs, prices, dana, context, together, pictures = printed(capfd)

    for part, expected in (
        (jobs, ["Lumen Systems", "Harbor Analytics", "Brightwater"]),
        (prices, ["299 USD", "279 USD"]),
        (dana, ["Haifa", "Oslo"]),
    ):
        answers = re.split(r"^\$ .*$", part, flags=re.MULTILINE)[1:]
        assert [word in text for word, text in zip(expected, answers, strict=True)] == [True] * len(expected)
    assert "toner cartridge" in context
    assert "faint copy" in context
    assert re.search(r"^[0-9a-f]{8} +0 +\d+ .*Lumen Systems", together, re.MULTILINE)
    printer, alice = re.split(r"^\$ .*$", pictures, flags=re.MULTILINE)[1:]
    assert re.search(
        r"^Martha Oduya owns Kestrel LaserPro M28 +┣━+┫ +2026-01-05 - 2026-06-20 +said in ",
        printer,
        re.MULTILINE,
    )
    assert re.search(
        r"^Martha Oduya sold the Kestrel LaserPro M28 +● +2026-06-20 +said in s035$", printer, re.MULTILINE
    )
    assert re.findall(r"^works at (.*?)  ", alice, re.MULTILINE) == [
        "Lumen Systems",
        "Harbor Analytics",
        "Brightwater",
    ]


@pytest.mark.ray
@pytest.mark.slow  # by default test_ray_deploy has a Ray up, and the words of the demo for it
def test_the_demo_reports_the_episodes_that_ray_ingested_and_ends_ray(demo, capfd):
    """Without the questions, which need no Ray and which the test above covers."""
    pytest.importorskip("ray")
    script, folder = demo
    (folder / "kgray.toml").write_text(script.SETTINGS)

    script.over_ray(folder)

    parts = printed(capfd)
    assert len(parts) == 6
    read = [int(number) for number in re.findall(r"models-\d +process \d+ +read (\d+) episodes", parts[4])]
    decided = re.findall(r"sequencer-0 +process \d+ +decided (\d+) episodes, .*; 0 failed", parts[4])
    assert (len(read), decided) == (2, ["124"])
    assert sum(read) >= 124, "an episode that is read twice counts once"
    assert re.search(r"^6 actors and \d+ processes of Ray ended\.$", parts[5], re.MULTILINE)
    assert not (folder / "ray.json").exists()
