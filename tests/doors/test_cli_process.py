"""Real processes: signals, kills, pipes, two at once, and how fast the help is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from tests.doors.shell import Shell, told, triple


def many(count: int, start: int = 0) -> list[dict]:
    people = ("Ann", "Bob", "Cid", "Dee", "Eve")
    return [
        told(f"m{i}", str(1_700_000_000 + 3600 * i), triple(people[i % 5], "WORKS_AT", f"Firm {i % 17}"))
        for i in range(start, start + count)
    ]


def committed(kgray: Shell) -> int:
    groups = kgray("status", "--json").json["groups"]
    return groups["team"]["committed"] if groups else 0


def wait_for(check, timeout: float = 30.0) -> None:
    end = time.monotonic() + timeout
    while not check():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def undisturbed(kgray: Shell, file: str) -> str:
    assert kgray("add", file, "--data", "reference").code == 0
    return kgray("dump", "--group", "team", "--data", "reference").out


def test_help_answers_at_once(kgray):
    times = []
    for _ in range(3):
        start = time.perf_counter()
        assert kgray.process("--help").code == 0
        times.append(time.perf_counter() - start)
    assert min(times) < 0.3


def test_help_imports_nothing_heavy(kgray):
    code = """
import sys
from kgray.cli import cli
try:
    cli(["--help"])
except SystemExit:
    heavy = {"numpy", "apsw", "pyarrow", "dateparser", "asyncio", "kgray.memory"}
    print(*sorted(heavy & set(sys.modules)), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stderr.strip() == b""


def test_a_search_imports_neither_the_runner_nor_the_model(kgray):
    kgray("add", kgray.write("a.jsonl", *many(1)))
    code = """
import sys
from kgray.cli import cli
try:
    cli(["search", "Alice", "--group", "team", "--json"])
except SystemExit as end:
    print(end.code, file=sys.stderr)
heavy = {"dateparser", "openai", "ray", "kgray.backends.rules.extractor", "kgray.ingest.runner"}
print(*sorted(heavy & set(sys.modules)), file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, cwd=kgray.folder, env=kgray.env
    )
    assert done.stderr.split() == [b"0"]
    assert json.loads(done.stdout)["hits"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_run_with_75_and_the_same_command_completes_it(kgray, number):
    file = kgray.write("a.jsonl", *many(500))
    kgray("init")
    running = kgray.start("add", file, "--json")
    wait_for(lambda: committed(kgray) > 5)
    running.send_signal(number)
    out, err = running.communicate(timeout=30)
    assert running.returncode == 75
    report = json.loads(out)
    assert report["accepted"] == 500
    assert 5 < report["committed"] < 500
    assert report["committed"] == committed(kgray), "what was in flight was committed"
    assert b"run it again" in err
    assert b"Traceback" not in err
    again = kgray("add", file, "--json")
    assert (again.code, again.json["duplicate"], again.json["committed"]) == (
        0,
        500,
        500 - report["committed"],
    )
    assert kgray("dump", "--group", "team").out == undisturbed(kgray, file)


def test_a_signal_while_standard_input_is_read_ends_with_75(kgray):
    running = kgray.start("add", "-", stdin=subprocess.PIPE)
    assert running.stdin is not None
    running.stdin.write(b'{"text": "x", "group": "g"}\n')
    running.stdin.flush()
    time.sleep(0.5)
    running.send_signal(signal.SIGTERM)
    assert running.wait(timeout=10) == 75
    running.stdin.close()


def test_a_killed_run_leaves_whole_episodes_and_the_same_command_completes_it(kgray):
    file = kgray.write("a.jsonl", *many(400))
    kgray("init")
    for part in (20, 120, 250):
        running = kgray.start("add", file)
        wait_for(lambda part=part, run=running: committed(kgray) >= part or run.poll() is not None)
        running.kill()
        running.communicate()
    assert kgray("add", file).code == 0
    assert committed(kgray) == 400
    assert kgray("dump", "--group", "team").out == undisturbed(kgray, file)
    assert kgray("doctor").code == 0


def test_a_second_process_appends_and_waits_for_the_one_that_ingests(kgray):
    slow = {"id": "slow", "at": 0, "group": "g", "text": "Hello"}
    kgray.script(
        {"episode": "slow", "error": "unavailable", "times": 4},
        {"episode": "slow", "extraction": {"entities": [], "facts": []}},
    )
    kgray.write("slow.jsonl", slow)
    kgray.write("next.jsonl", *many(3), {"id": "bad", "at": 0, "group": "g", "text": "not in the script"})
    first = kgray.start("add", "slow.jsonl", "--json")
    wait_for(
        lambda: (
            (kgray.folder / "kgray-data" / "kgray.sqlite3").exists()
            and kgray("status", "--json").json["groups"] != {}
        )
    )
    time.sleep(0.2)
    second = kgray.process("add", "next.jsonl", "--json")
    out, err = first.communicate(timeout=30)
    assert (first.returncode, err.count(b"Traceback")) == (0, 0)
    counts = [
        [json.loads(said)[name] for name in ("accepted", "committed", "failed")] for said in (out, second.out)
    ]
    assert counts == [[1, 1, 0], [4, 3, 1]], "each tells of what it accepted itself"
    assert second.code == 1
    assert second.err.startswith(f"kgray: waiting: process {first.pid} on ")
    assert second.err.count("waiting: ") == 1


def test_two_adds_at_once_each_tell_of_what_they_accepted(kgray):
    kgray("init")
    files = [kgray.write(f"{n}.jsonl", *many(60, 60 * n)) for n in range(2)]
    running = [kgray.start("add", file, "--json") for file in files]
    reports = [json.loads(process.communicate(timeout=60)[0]) for process in running]
    assert [(r["accepted"], r["committed"], r["failed"]) for r in reports] == [(60, 60, 0)] * 2
    assert committed(kgray) == 120


def test_when_the_ingesting_process_dies_the_waiting_one_goes_on(kgray):
    kgray.script({"episode": "slow", "error": "unavailable"})
    kgray.write("slow.jsonl", {"id": "slow", "at": 0, "group": "g", "text": "Hello"})
    kgray.write("next.jsonl", *many(3))
    first = kgray.start("add", "slow.jsonl")
    wait_for(
        lambda: (
            (kgray.folder / "kgray-data" / "kgray.sqlite3").exists()
            and kgray("status", "--json").json["groups"] != {}
        )
    )
    time.sleep(0.2)
    kgray.script({"episode": "slow", "extraction": {"entities": [], "facts": []}})
    second = kgray.start("add", "next.jsonl", "--json")
    wait_for(lambda: kgray("status", "--json").json["groups"].get("team", {}).get("accepted") == 3)
    first.kill()
    first.communicate()
    out, _ = second.communicate(timeout=30)
    assert second.returncode == 0
    assert json.loads(out)["committed"] == 4


def test_a_waiting_process_leaves_with_75_on_a_signal(kgray):
    kgray.script({"episode": "slow", "error": "unavailable"})
    kgray.write("slow.jsonl", {"id": "slow", "at": 0, "group": "g", "text": "Hello"})
    kgray.write("next.jsonl", {"id": "next", "at": 0, "group": "g", "text": "Hello"})
    first = kgray.start("add", "slow.jsonl")
    wait_for(
        lambda: (
            (kgray.folder / "kgray-data" / "kgray.sqlite3").exists()
            and kgray("status", "--json").json["groups"] != {}
        )
    )
    time.sleep(0.2)
    second = kgray.start("add", "next.jsonl")
    wait_for(lambda: kgray("status", "--json").json["groups"]["g"]["accepted"] == 2)
    time.sleep(0.3)
    second.send_signal(signal.SIGTERM)
    assert second.wait(timeout=10) == 75
    first.send_signal(signal.SIGTERM)
    assert first.wait(timeout=10) == 75
    second.communicate()
    first.communicate()
    assert kgray("status", "--json").json["groups"]["g"]["accepted"] == 2


def test_many_processes_may_append_at_once(kgray):
    kgray("init")
    files = [kgray.write(f"{n}.jsonl", *many(60, 60 * n)) for n in range(4)]
    running = [kgray.start("add", file, "--accept-only") for file in files]
    for process in running:
        process.communicate()
    assert [process.returncode for process in running] == [0, 0, 0, 0]
    assert kgray("add", files[0], "--json").json["committed"] == 240


def test_a_closed_pipe_is_no_error(kgray):
    kgray("add", kgray.write("a.jsonl", *many(300)))
    running = kgray.start("dump", "--group", "team")
    assert running.stdout is not None
    assert running.stdout.readline()
    running.stdout.close()
    assert running.stderr is not None
    assert running.stderr.read() == b""
    assert running.wait(timeout=30) == 0


def test_a_named_pipe_is_read_once_and_whole(kgray):
    os.mkfifo(kgray.folder / "pipe.csv")
    content = b"id,group,at,triples\n" + b"".join(
        b'%d,g,0,"[{""source"": ""A%d"", ""relation"": ""KNOWS"", ""target"": ""B""}]"\n' % (i, i)
        for i in range(50)
    )
    writer = threading.Thread(target=(kgray.folder / "pipe.csv").write_bytes, args=(content,))
    writer.start()
    answer = kgray.process("add", "pipe.csv", "--json")
    writer.join()
    assert json.loads(answer.out)["committed"] == 50


def test_output_is_plain_where_it_is_no_terminal(kgray):
    kgray.process("add", kgray.write("a.jsonl", *many(3)))
    for command in (["status"], ["groups"], ["history", "Ann", "--group", "team"], ["doctor"]):
        answer = kgray.process(*command)
        assert answer.code == 0
        assert "\x1b" not in answer.out + answer.err
