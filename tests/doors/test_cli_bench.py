"""`python -m bench`: worlds as files, and their graphs compared with the truth."""

from __future__ import annotations

import http.client
import json
import re
from collections import Counter
from pathlib import Path

import click
import pytest

from bench import commands, ingest
from bench.ingest import Throughput
from bench.processes import ServerProcess
from tests.waiting import HANGS_S
from tests.world.model_server import record

COMMANDS = (
    "world", "model-server", "quality", "ingest", "add", "store", "searches", "serve", "communities",
    "models", "card", "reading", "comparisons", "retrieval", "questions", "conflicts",
    "equality", "chaos", "soak", "groups", "lag", "seats", "flight", "nodes", "calls", "interchange",
)  # fmt: skip


def test_every_command_has_help_with_an_example_and_is_in_the_table_of_the_contributors(bench):
    table = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")

    assert list(commands.bench.commands) == list(COMMANDS)
    assert re.findall(r"^\| `python -m bench ([a-z-]+)", table, re.MULTILINE) == list(COMMANDS)
    for name, command in commands.bench.commands.items():
        text = command.get_help(click.Context(command, info_name=name))
        assert f"  python -m bench {name}" in text
    assert bench.process("--help").out.startswith("Usage: python -m bench [OPTIONS] COMMAND")


@pytest.mark.slow  # tests/graph/test_search_* test searches, and a test below a data set for `eval`
def test_retrieval_compares_kgray_with_plain_searches_and_ingests_once(bench, tmp_path):
    bench.env["TMPDIR"] = str(tmp_path)
    arguments = (
        "retrieval",
        "--conversations",
        "1",
        "--turns",
        "30",
        "--questions",
        "12",
        "--budgets",
        "500",
    )
    reply = bench.process(*arguments, "--json", "--rows", "rows.jsonl").json
    stores = list((tmp_path / "kgray-retrieval").iterdir())
    second_outcome = bench.process(*arguments)

    systems = ["kgray", "kgray, messages", "together", "BM25", "BM25 with speakers", "cosine"]
    assert list(reply["handmade"]) == list(reply["two"]) == list(reply["long"]) == systems
    assert reply["handmade"]["together"]["overall"]["measures"]["context@500"]["mean"] > 0
    assert reply["handmade"]["BM25"]["overall"]["questions"] == 60
    assert reply["handmade"]["kgray"]["overall"]["measures"]["context@500"]["mean"] > 0
    assert len((bench.folder / "rows.jsonl").read_text("utf-8").splitlines()) > 6 * 65
    assert list((tmp_path / "kgray-retrieval").iterdir()) == stores
    assert "== handmade: 60 questions, overall" in second_outcome.out


def test_calls_of_a_model_server_are_measured_by_the_cpu_of_the_client(bench):
    reply = bench("calls", "--calls", "20", "--concurrency", "4", "--rounds", "1", "--json").json
    assert (reply["calls"], reply["concurrency"]) == (20, 4)
    assert all(0 < ms < 1000 for ms in [*reply["whole"], *reply["streamed"]])


def test_communities_are_compared_with_networkx(bench):
    answer = bench("communities", "--nodes", "2000", "--mu", "0.2", "--beside", "louvain", "--json")
    rows = {row["what"]: row for row in json.loads(answer.out)["results"]}

    assert {"kgray", "networkx louvain"} <= rows.keys()
    assert rows["kgray"]["nmi"] > 0.9
    assert rows["kgray"]["nmi"] > rows["networkx louvain"]["nmi"]
    assert bench("communities", "--mu", "half").code == 2


def test_a_world_can_be_written_and_added(kgray, bench):
    written = bench(
        *("world", "--episodes", "30", "--groups", "2", "--out", "w.jsonl", "--truth", "t.jsonl", "--json")
    )
    added = kgray("add", "w.jsonl", "--accept-only", "--json")
    repeated = kgray("add", "w.jsonl", "--accept-only", "--json")
    truth = [json.loads(line) for line in (kgray.folder / "t.jsonl").read_text(encoding="utf-8").splitlines()]

    assert written.json["episodes"] == 30
    assert (added.json["accepted"], added.json["refused"]) == (30, 0)
    assert (repeated.json["accepted"], repeated.json["duplicate"]) == (0, 30)
    assert {row["group"] for row in truth} == {"world-0", "world-1"}
    assert sum(row["type"] == "fact" for row in truth) == written.json["facts"]


@pytest.mark.slow  # test_cli_eval has the command, test_world_stream the questions
def test_a_worlds_questions_are_a_data_set_for_eval(kgray, bench):
    """Questions about now, the past and past knowledge, with outdated facts; and about unknown persons."""
    arguments = ("world", "--episodes", "30", "--entities", "20", "--alias-rate", "0", "--out", "w.jsonl")
    assert bench(*arguments, "--asked", "asked.jsonl").code == 0
    lines = (kgray.folder / "asked.jsonl").read_text(encoding="utf-8").splitlines()
    questions = [row for row in map(json.loads, lines) if "question" in row]
    kgray.env = {"KGRAY_MODEL_BACKEND": "rules"}

    reply = kgray("eval", "retrieval", "asked.jsonl", "--json").json["by_type"]

    assert {name: part["questions"] for name, part in reply.items()} == Counter(
        row["type"] for row in questions
    )
    assert set(reply) == {"now", "as-of", "as-known", "none"}
    assert reply["now"]["measures"]["any@10"]["mean"] > 0.8, "the messages are found by their words"
    assert {"fact@10", "stale@10", "context_fact@950"} <= set(reply["as-known"]["measures"])
    assert "nothing" in reply["none"]["measures"]


def test_an_impossible_world_is_a_one_line_error(bench):
    answer = bench("world", "--groups", "9", "--out", "w.jsonl")

    assert answer.code == 2
    assert answer.err == "bench: 120 entities are too few: each group needs at least 20\n"


def test_an_unwritable_file_is_a_one_line_error(bench):
    answer = bench("world", "--episodes", "3", "--out", "no/such/folder/w.jsonl")

    assert answer.code == 2
    assert answer.err == "bench: no/such/folder/w.jsonl cannot be written: No such file or directory\n"


def test_the_graph_of_a_true_reader_is_nearly_the_truth(kgray, bench):
    answer = bench("quality", "--episodes", "200", "--json", "--out", "q.json")

    (result,) = answer.json["results"]
    scores = result["scores"]
    assert (result["committed"], result["failed"], result["unrecognised"]) == (200, 0, 0)
    assert scores["mention_recall"] == 1.0
    assert (
        min(scores[name] for name in ("er_f1", "fact_recall", "acc_now", "acc_asof", "acc_asknown")) >= 0.97
    )
    assert result["calls"] <= 1.35
    assert json.loads((kgray.folder / "q.json").read_text(encoding="utf-8")) == answer.json


def test_a_faulty_reader_costs_only_its_own_errors(bench):
    """Accuracy stays within 2 % of the timeline's over the same extractions with true identities.

    Without aliases, so that nothing but the reader's errors counts.
    """
    answer = bench(
        *("quality", "--seed", "1", "--episodes", "120", "--alias-rate", "0", "--errors", "0.1", "--json")
    )

    (result,) = answer.json["results"]
    for name in ("now", "asof", "asknown"):
        assert result["scores"][f"acc_{name}"] >= result[f"baseline_{name}"] - 0.02
    assert result["baseline_now"] < 0.95


@pytest.mark.slow  # test_model_server compares each answer
def test_the_same_world_over_http_gives_the_same_scores(bench):
    local = bench("quality", "--episodes", "40", "--json").json["results"][0]
    remote = bench("quality", "--episodes", "40", "--http", "--json").json["results"][0]

    assert remote["scores"] == local["scores"]
    assert remote["prefix_share"] > 0.6
    assert remote["prompt_tokens"] <= 1500, "in a small world most persons are new, and asked about"


@pytest.mark.slow  # other tests run the bench in this process
def test_a_folder_named_kgray_does_not_replace_the_package(kgray, bench):
    """The command and its server are processes, started in the folder."""
    (kgray.folder / "kgray").mkdir()
    kgray.write("kgray/__init__.py", "raise SystemExit(3)")

    answer = bench.process("quality", "--episodes", "5", "--http", "--json")

    assert answer.code in (0, 1), answer.err
    assert answer.json["results"][0]["committed"] == 5


def test_the_table_has_a_row_for_each_seed(bench):
    answer = bench("quality", "--seed", "1", "--seed", "2", "--episodes", "20")

    rows = answer.out.splitlines()
    assert rows[0].split()[:3] == ["seed", "ER", "F1"]
    assert [row.split()[0] for row in rows[1:3]] == ["1", "2"]


def test_each_round_of_a_store_ingests_all_episodes(bench):
    answer = bench("add", "--episodes", "12", "--groups", "2", "--rounds", "2", "--json")

    first, second = answer.json["results"]
    assert [(item["round"], item["episodes"], item["rows"]) for item in (first, second)] == [
        (1, 12, None),
        (2, 12, None),
    ]
    assert first["episodes_per_s"] > 0
    assert first["engine_ms"] > 0


@pytest.mark.slow  # other tests cover commits, loads, searches and slots
def test_the_store_is_measured_at_each_size(bench):
    answer = bench("store", "--sizes", "60,120", "--slots", "3,60", "--json")

    (reply,) = answer.json["results"]
    assert [size["facts"] for size in reply["sizes"]] == pytest.approx([60, 120], rel=0.15)
    assert [size["recall"] for size in reply["sizes"]] == [1.0, 1.0]
    assert min(size[name] for size in reply["sizes"] for name in ("single_per_s", "gathered_per_s")) > 0
    assert list(reply["slot_cpu_ms"]) == ["3", "60"]
    assert (reply["beside"]["recall"], reply["beside"]["found"]) == (1.0, 1.0)
    assert (reply["beside"]["hub_facts"], reply["beside"]["hub_right"]) == (2, True)


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("--sizes", "many", "'many' is no list such as 1000,10000"),
        ("--sizes", "0", "'0' is no list such as 1000,10000"),
        ("--store", "sqlite,files", "'files' is neither sqlite nor neo4j"),
        ("--slots", "10,20", "two of '10,20' are less than 51 apart"),
    ],
)
def test_sizes_that_cannot_be_measured_are_refused(bench, option, value, reason):
    answer = bench("store", option, value)

    assert answer.code == 2
    assert reason in answer.err


def answer_of(server: ServerProcess, text: str) -> str:
    """Return the content of a model server's answer to an extraction."""
    form = {"type": "json_schema", "json_schema": {"name": "combined", "schema": {"type": "object"}}}
    data = json.dumps({"kind": "text", "time": "", "text": text})
    messages = [{"role": "user", "content": f"<EPISODE>\n{data}\n</EPISODE>\n"}]
    body = json.dumps({"model": "world", "messages": messages, "response_format": form}).encode()
    connection = http.client.HTTPConnection(server.base_url.split("/")[2], timeout=HANGS_S)
    connection.request("POST", "/v1/chat/completions", body)
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return str(answer["choices"][0]["message"]["content"])


@pytest.mark.slow  # test_model_server has the counts by default
def test_a_restarted_model_server_keeps_its_address_answers_and_counts(tmp_path):
    """Also if the kill has truncated the last line of its record."""
    notes = tmp_path / "asked.tsv"
    with ServerProcess(["--episodes", "20", "--record", str(notes), "--shuffle-s", "0.01"]) as server:
        first = [answer_of(server, f"text {number}") for number in range(3)]
        server.kill()
        with pytest.raises(OSError, match="refused"):
            answer_of(server, "text 0")
        with notes.open("a") as lines:
            lines.write("17635.2\tcombi")
        server.start()
        repeated = [answer_of(server, f"text {number}") for number in range(4)]
        counted = server.stats()

    assert repeated[:3] == first
    assert (counted["by_task"], counted["repeated"]) == ({"combined": 7}, {"combined": 3})
    assert len({row.request for row in record.read(notes)}) == 4
    assert sum(row.tokens > 0 for row in record.read(notes)) == 7


@pytest.mark.slow  # a measurement, and no promise
def test_the_fill_of_a_runtime_is_measured_with_the_processor_time_of_each_role(bench):
    answer = bench(
        *("ingest", "--episodes", "30", "--streams", "8", "--window", "16"),
        *("--first-token-s", "0.01", "--tokens-per-s", "0", "--json"),
    )

    (result,) = answer.json["results"]
    assert (result["runtime"], result["failed"], result["episodes"]) == ("local", 0, 30)
    assert set(result["cpu_by_role"]) == {"model server", "driver"}
    assert 0 < result["share"] <= 1
    assert 0 <= result["waste_share"] < 0.5
    assert len(result["digest"]) == 64
    assert result["calls_by_task"]["combined"] == 1
    assert sum(result["calls_by_task"].values()) >= result["calls"]
    assert set(result["questions"]) <= {"entity", "compare"}


def test_cold_groups_are_measured_after_each_world(monkeypatch, bench):
    """The second world has 32 short groups, about which little is known."""
    plans = []

    def run(plan, options, **_):
        plans.append(plan)
        return Throughput(
            plan.seed, plan.episodes, plan.groups, options.runtime, options.window, options.chunk, 1
        )

    monkeypatch.setattr(ingest, "run", run)
    answer = bench("ingest", "--episodes", "30", "--seed", "7", "--cold")

    assert [(p.seed, p.groups, p.episodes, p.entities) for p in plans] == [
        (7, 1, 30, 120),
        (7, 32, 1600, 640),
    ]
    assert "questions by kind: none" in answer.out


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("equality", "--groups", "0"), "'0' is no list such as"),
        (("chaos", "--kills", "5", "--store-kills", "2"), "the embedded store has no server"),
        (("chaos", "--kills", "5", "--episodes", "3"), "6 kills need more than 3 episodes"),
    ],
)
def test_an_impossible_proof_is_a_one_line_error(bench, words, reason):
    answer = bench(*words)

    assert answer.code == 2
    assert reason in answer.err
