"""Settings with a different embedder than the store: only commands without vectors work."""

from __future__ import annotations

import shutil

import pytest

import kgray
from kgray.errors import KgrayError
from tests.doors.shell import JOBS

# The folder was made with the hashing embedder of 1,024 numbers.
EMBEDDERS = {
    "another-width": {"embedder_dimensions": 512},
    "out-of-reach": {
        "embedder_backend": "openai", "embedder_base_url": "http://127.0.0.1:9/v1", "embedder_name": "e",
        "embedder_dimensions": 64, "model_patience_s": 1.0,
    },
    "without-its-address": {"embedder_backend": "openai"},
}  # fmt: skip
READS = {
    "status": ["status", "--group", "team"],
    "groups": ["groups"],
    "failures": ["failures"],
    "history": ["history", "Alice Nguyen", "--group", "team"],
    "show": ["show", "t2", "--group", "team"],
    "dump": ["dump", "--group", "team"],
}
REFUSED = {
    "init": ["init"],
    "add": ["add", "more.jsonl"],
    "add --accept-only": ["add", "more.jsonl", "--accept-only"],
    "backfill": ["backfill", "more.jsonl", "--run", "r"],
    "search": ["search", "Where does Alice work?", "--group", "team"],
    "context": ["context", "Where does Alice work?", "--group", "team"],
    "ask": ["ask", "Where does Alice work?", "--group", "team"],
    "merge": ["merge", "Acme", "Beta", "--group", "team"],
    "retry": ["retry"],
    "communities": ["communities", "refresh", "--group", "team"],
}


@pytest.fixture(params=EMBEDDERS)
def embedder_settings(request):
    """Return settings that name another embedder."""
    return EMBEDDERS[request.param]


def use(shell, settings):
    """Have the shell's commands use these settings."""
    shell.env |= {f"KGRAY_{name.upper()}": str(value) for name, value in settings.items()}


@pytest.mark.parametrize("command", READS)
def test_commands_without_vectors_read_the_folder(team, embedder_settings, command):
    words = READS[command]
    outputs = [team(*words).out, team(*words, *["--json"] * (command != "dump")).out]
    use(team, embedder_settings)
    answers = [team(*words), team(*words, *["--json"] * (command != "dump"))]
    assert [answer.code for answer in answers] == [0, 0], answers
    assert [answer.err for answer in answers] == ["", ""]
    if command != "status":
        assert [answer.out for answer in answers] == outputs
        return
    line = answers[1].json["embedder"].pop("fault")
    assert line.count("\n") == 0
    assert f"no search, no new episodes: {line}" in answers[0].out
    assert answers[1].json["embedder"] | {"fault": None} == {
        "name": "hashing-1/1024", "dimensions": 1024, "fault": None,
    }  # fmt: skip


def test_status_names_the_embedder_of_the_graph(team):
    built = {"name": "hashing-1/1024", "dimensions": 1024, "fault": None}
    assert team("status", "--json").json["embedder"] == built
    assert "embedder: hashing-1/1024 (1024 numbers a text)\n" in team("status").out


def test_commands_that_need_vectors_are_refused_and_change_nothing(team, embedder_settings):
    team.write("more.jsonl", JOBS[0] | {"id": "more"})
    outputs = [team("dump", "--group", "team").out, team("groups").out]
    use(team, embedder_settings)
    for name, words in REFUSED.items():
        answer = team(*words)
        assert (answer.code, answer.err.count("\n"), answer.out) == (2, 1, ""), (name, answer)
        assert "embedder" in answer.err, name
    assert [team("dump", "--group", "team").out, team("groups").out] == outputs


def test_python_has_the_same_reads_and_refusals(jobs, tmp_path, embedder_settings):
    shutil.copytree(jobs, tmp_path / "data")
    with kgray.open(tmp_path / "data", create=True, settings=embedder_settings) as memory:
        assert [*memory.status().groups] == [size.group for size in memory.groups()] == ["team"]
        assert memory.failures() == []
        assert memory.history("Alice Nguyen", group="team").facts
        assert memory.show("t2", group="team").episodes
        assert memory.dump(group="team")
        assert memory.duplicates(group="team") == []
        embedder = memory.admin.vectors()
        assert (embedder.name, embedder.dimensions) == ("hashing-1/1024", 1024)
        refused = [
            memory.asynchronous.check_embedder,
            lambda: memory.add("I work at Gamma", group="team", speaker="Alice"),
            lambda: memory.search("Alice", group="team"),
            lambda: memory.remove(group="team", episodes=["t1"]),
            memory.ingest,
        ]
        for verb in refused:
            with pytest.raises(KgrayError, match="embedder"):
                verb()
        assert memory.status().groups["team"].committed == 3


def test_a_server_has_the_same_reads_and_refusals(jobs, tmp_path):
    pytest.importorskip("fastapi", reason="needs the extra `serve`")
    from tests.doors.served import serving

    shutil.copytree(jobs, tmp_path / "data")
    with serving(tmp_path / "data", settings=EMBEDDERS["another-width"]) as server:
        client, team = server.client(), "/v1/groups/team"
        embedder = client.get(f"{team}/status").json()["embedder"]
        assert (embedder["name"], "hashing-1/512" in embedder["fault"]) == ("hashing-1/1024", True)
        history = f"{team}/entities/Alice%20Nguyen/history"
        for path in ("/v1/groups", history, f"{team}/failures", f"{team}/dump", f"{team}/show/t2"):
            assert client.get(path).status_code == 200, path
        rows = [{"text": "I work at Gamma", "speaker": "Alice"}]
        bodies = {"episodes": rows, "search": {"query": "Alice"}, "retry": {}}
        for path, body in bodies.items():
            answer = client.post(f"{team}/{path}", json=body)
            assert (answer.status_code, answer.json()["code"]) == (500, "store_error"), path
        assert server.memory.store.pending_count() == 0
