"""The commands on a Neo4j server: the same answers as on a folder, and one-line errors."""

from __future__ import annotations

import re
import socket

import pytest

from tests.doors.shell import JOBS

pytestmark = pytest.mark.neo4j


@pytest.fixture
def on_server(kgray, own_neo4j):
    """Set the environment for a server whose database is empty."""
    kgray.env |= {
        "KGRAY_STORE_BACKEND": "neo4j",
        "KGRAY_STORE_URI": own_neo4j.uri,
        "KGRAY_STORE_USER": own_neo4j.user,
        "KGRAY_STORE_PASSWORD": own_neo4j.password,
        "KGRAY_EMBEDDER_DIMENSIONS": "64",
    }
    return kgray


def test_init_add_search_doctor_and_remove_work_like_in_a_folder(on_server):
    kgray = on_server
    missing = kgray("groups")
    assert (missing.code, "run `kgray init`" in missing.err) == (2, True)
    reply = kgray("init", "--json").json
    assert (reply["data"], reply["store"]) == ("kgray-data", "neo4j")
    assert kgray("init").code == 0
    jobs = kgray.write("jobs.jsonl", *JOBS)
    added = kgray("add", jobs, "--json").json
    assert (added["accepted"], added["committed"], added["failed"]) == (3, 3, 0)
    assert kgray("add", jobs, "--json").json["duplicate"] == 3
    groups = kgray("groups", "--json").json["groups"]
    assert groups == [{"group": "team", "episodes": 3, "entities": 4, "facts": 3}]
    ours = read(kgray)
    server = dict(kgray.env)
    checks = kgray("doctor", "--json").json["checks"]
    wrong = [check for check in checks if not check["ok"]]
    assert wrong == []
    named = {check["name"]: check["detail"] for check in checks}
    assert named["store"].startswith("Neo4j ")
    assert "community" in named["store"]
    assert named["store indexes"] == "all constraints and indexes are online"
    assert {"store writable", "graph of team", "neo4j driver"} <= named.keys()
    for name in [name for name in kgray.env if name.startswith("KGRAY_STORE_")]:
        kgray.env[name] = ""
    kgray("add", jobs, "--data", "folder")
    assert read(kgray, "--data", "folder") == ours
    kgray.env = server
    removed = kgray("remove", "--group", "team", "--episode", "t2", "--yes", "--json").json
    assert (removed["episodes"], removed["facts_reopened"]) == (1, 1)
    assert "Beta" not in kgray("dump", "--group", "team").out
    kgray("remove", "--group", "team", "--all", "--yes")
    assert (kgray("groups", "--json").json, kgray("dump", "--group", "team").out) == ({"groups": []}, "")


def read(kgray, *options):
    """Return the output of the reading commands, without the times at which facts were learned."""
    learned = re.compile(r"learned [^\n]*(?=  [0-9a-f]{8}\n)")
    return {name: learned.sub("learned", kgray(*words, *options).out) for name, words in READS.items()}


READS = {
    "dump": ("dump", "--group", "team"),
    "then": ("search", "Where does Alice work?", "--group", "team", "--as-of", "2026-02-01", "--limit", "1"),
    "history": ("history", "Alice Nguyen", "--group", "team"),
    "status": ("status",),
}


def test_server_and_settings_errors_are_one_line_without_the_password(on_server):
    """Exit code 2 for settings; 75 for an unavailable server, where the same command may work later."""
    kgray = on_server
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    cases = {
        "wrong password": ({"PASSWORD": "hush-hush-1"}, 2, "store.password"),
        "no password": ({"PASSWORD": ""}, 2, "KGRAY_STORE_PASSWORD"),
        "no such file": ({"PASSWORD": "", "PASSWORD_FILE": "absent"}, 2, "store.password_file"),
        "no address": ({"URI": ""}, 2, "store.uri"),
        "a foreign scheme": ({"URI": "http://127.0.0.1:7474"}, 2, "KGRAY_STORE_URI"),
        "a password in the address": ({"URI": "bolt://neo4j:hush-hush-2@127.0.0.1:1"}, 2, "KGRAY_STORE_URI"),
        "nonsense": ({"URI": "bolt://[::1"}, 2, "KGRAY_STORE_URI"),
        "a port that is none": ({"URI": "bolt://127.0.0.1:99999"}, 2, "KGRAY_STORE_URI"),
        "another database": ({"DATABASE": "elsewhere"}, 2, "store.database"),
        "away": ({"URI": f"bolt://127.0.0.1:{port}", "PASSWORD": "hush-hush-3"}, 75, f"127.0.0.1:{port}"),
    }
    environment = dict(kgray.env)
    for name, (changes, code, line) in cases.items():
        kgray.env = environment | {f"KGRAY_STORE_{key}": value for key, value in changes.items()}
        answer = kgray("groups", "--data", "elsewhere")
        assert (answer.code, line in answer.err) == (code, True), (name, answer)
        assert answer.err.count("\n") == 1, (name, answer.err)
        assert "hush" not in answer.err + answer.out, name


@pytest.mark.slow
def test_a_backup_of_each_store_is_restored_to_the_other(on_server):
    """The hashes of all rows and of the graph are equal; the keys of the server are included."""
    kgray, server = on_server, dict(on_server.env)
    folder = server | {name: "" for name in server if name.startswith("KGRAY_STORE_")}
    kgray.env = folder
    for words in (
        ("add", kgray.write("jobs.jsonl", *JOBS)),
        ("remove", "--group", "team", "--episode", "t1", "--yes"),
        ("keys", "add", "--groups", "team", "--scopes", "read"),
        ("backup", "file"),
        ("backup", "rows", "--group", "team"),
    ):
        assert kgray(*words).code == 0, words
    reply, ours = kgray("restore", "file", "--data", "again", "--json").json, kgray("keys", "list").out
    dump = kgray("dump", "--group", "team", "--hash").out

    kgray.env = server
    assert kgray("restore", "rows").code == 0
    restored = kgray("restore", "file", "--json")
    assert (restored.code, restored.json) == (0, reply), "the group that was there is compared"
    assert (kgray("dump", "--group", "team", "--hash").out, kgray("keys", "list").out) == (dump, ours)
    assert kgray("backup", "server", "--json").json == reply
    jobs = kgray.write("more.jsonl", JOBS[0] | {"id": "t9"})
    assert kgray("add", jobs).code == 0
    refused = kgray("restore", "file")
    assert (refused.code, "already, and not the same (as in the backup" in refused.err) == (2, True)
    kgray.env = folder
    assert kgray("restore", "server", "--data", "back", "--json").json == reply
    assert kgray("dump", "--group", "team", "--hash", "--data", "back").out == dump


@pytest.mark.slow
def test_a_different_embedder_can_read_the_database_but_not_add(on_server):
    kgray = on_server
    jobs = kgray.write("jobs.jsonl", *JOBS)
    assert kgray("add", jobs).code == 0
    outputs = {name: answer for name, answer in read(kgray).items() if name in ("dump", "history")}
    kgray.env["KGRAY_EMBEDDER_DIMENSIONS"] = "32"
    assert outputs == {name: answer for name, answer in read(kgray).items() if name in outputs}
    for words in (["groups"], ["failures"], ["show", "t2", "--group", "team"]):
        assert kgray(*words).code == 0
    reply = kgray("status", "--json").json["embedder"]
    assert (reply["name"], "was built with" in reply["fault"]) == ("hashing-1/64", True)
    answer = kgray("add", jobs)
    assert (answer.code, "was built with" in answer.err) == (2, True)
