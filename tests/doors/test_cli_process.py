"""Real processes: signals, kills, pipes, two concurrent processes, and the speed of the help."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import threading
from contextlib import contextmanager

import pytest

from kgray.cli.frame import Signals
from kgray.system.locks import INGEST_LOCK
from tests.doors.chat_server import NOTHING, ChatRequest, ChatServer, Say, at
from tests.doors.shell import Shell, triple, triples_row
from tests.waiting import HANGS_S, line_of, wait_for

STOP = "stop"  # the client id of an episode that no model can read yet


def many(count: int, start: int = 0, *, stops_at: int | None = None) -> list[dict]:
    """Return episodes; only the episode at `stops_at` needs a model, and later episodes wait for it."""
    people = ("Ann", "Bob", "Cid", "Dee", "Eve")
    rows = [
        triples_row(
            f"m{i}", str(1_700_000_000 + 3600 * i), triple(people[i % 5], "WORKS_AT", f"Firm {i % 17}")
        )
        for i in range(start, start + count)
    ]
    if stops_at is not None:
        rows[stops_at] = {"id": STOP, "at": rows[stops_at]["at"], "group": "team", "text": "Hello"}
    return rows


def committed(kgray: Shell) -> int:
    groups = kgray("status", "--json").json["groups"]
    return groups["team"]["committed"] if groups else 0


def undisturbed(kgray: Shell, file: str) -> str:
    assert kgray("add", file, "--data", "reference").code == 0
    return kgray("dump", "--group", "team", "--data", "reference").out


def test_help_takes_little_processor_time(kgray):
    """Compare with the start of a bare interpreter: the speed of the machine changes both."""
    bare, help_ = [], []
    for _ in range(3):
        bare.append(seconds_of([sys.executable, "-c", "import json, re, typing"]))
        help_.append(seconds_of([sys.executable, "-c", "from kgray.cli import main; main()", "--help"]))
    assert min(help_) < 10 * min(bare)


def seconds_of(command: list[str]) -> float:
    """Return the processor time of a command that ends well."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return used.ru_utime + used.ru_stime


def test_help_imports_no_heavy_modules(kgray):
    code = """
import sys
from kgray.cli import cli
try:
    cli(["--help"])
except SystemExit:
    heavy = {"numpy", "apsw", "pyarrow", "dateparser", "asyncio", "kgray.memory"}
    print(*sorted(heavy & set(sys.modules)), file=sys.stderr)
"""
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert outcome.stderr.strip() == b""


def test_a_search_imports_neither_the_runner_nor_the_model(kgray):
    kgray("add", kgray.write("a.jsonl", *many(1)))
    code = """
import sys
from kgray.cli import cli
try:
    cli(["search", "Ann", "--group", "team", "--json"])
except SystemExit as end:
    print(end.code, file=sys.stderr)
heavy = {"dateparser", "aiohttp", "openai", "ray", "kgray.models.rules.extractor", "kgray.ingest.runner"}
print(*sorted(heavy & set(sys.modules)), file=sys.stderr)
"""
    outcome = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, cwd=kgray.folder, env=kgray.env
    )
    assert outcome.stderr.split() == [b"0"]
    assert json.loads(outcome.stdout)["hits"]


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_ends_the_run_with_75_and_the_same_command_resumes(kgray, number):
    file = kgray.write("a.jsonl", *many(100, stops_at=80))
    kgray.script({"episode": STOP, "error": "unavailable"})
    kgray("init")
    running = kgray.start("add", file, "--json")
    wait_for(lambda: committed(kgray) > 5, running)
    running.send_signal(number)
    out, err = running.communicate(timeout=HANGS_S)
    assert running.returncode == 75
    report = json.loads(out)
    assert report["accepted"] == 100
    assert 5 < report["committed"] <= 80
    assert report["committed"] == committed(kgray), "episodes in flight were committed"
    assert b"run it again" in err
    assert b"Traceback" not in err
    kgray.script({"episode": STOP, "extraction": {"entities": [], "facts": []}})
    repeated = kgray("add", file, "--json")
    assert (repeated.code, repeated.json["duplicate"], repeated.json["committed"]) == (
        0,
        100,
        100 - report["committed"],
    )
    assert kgray("dump", "--group", "team").out == undisturbed(kgray, file)


def test_a_signal_while_standard_input_is_read_ends_with_75(kgray):
    running = kgray.start("add", "-", stdin=subprocess.PIPE)
    assert running.stdin is not None
    running.stdin.write(b'{"text": "x", "group": "g"}\n')
    running.stdin.flush()
    wait_for(lambda: unread(running.stdin) == 0, running)
    running.send_signal(signal.SIGTERM)
    assert running.wait(timeout=HANGS_S) == 75
    running.stdin.close()


def test_a_signal_at_the_end_of_a_run_shows_no_traceback(kgray, monkeypatch):
    @contextmanager
    def caught():
        yield
        raise KeyboardInterrupt

    monkeypatch.setattr(Signals, "caught", caught)
    answer = kgray("init")
    assert (answer.code, answer.err) == (0, "")


def unread(pipe) -> int:
    """Return the number of bytes in a pipe that its reader has not read."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


@pytest.mark.slow  # by default tests/runtime/test_kills_http.py kills runs
def test_a_killed_run_leaves_complete_episodes_and_the_same_command_resumes(kgray):
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


def start_waiting(kgray: Shell, file: str) -> subprocess.Popen[bytes]:
    """Start a command that ingests the file and waits for the model of its first episode."""
    running = kgray.start("add", file, "--json")
    name = f"process {running.pid} on "
    lock = kgray.folder / "kgray-data" / INGEST_LOCK
    wait_for(lambda: lock.exists() and lock.read_text().startswith(name), running)
    wait_for(lambda: in_ledger(kgray, "g") >= 1, running)
    return running


def in_ledger(kgray: Shell, group: str) -> int:
    return sum(kgray("status", "--json").json["groups"].get(group, {}).values())


def test_a_second_process_appends_and_waits_for_the_ingesting_process(kgray):
    ready = threading.Event()

    def read(request: ChatRequest) -> Say:
        ready.wait(HANGS_S)
        return Say("no") if request.sections["EPISODE"]["text"] == "not to be read" else NOTHING

    server = ChatServer(read)
    kgray.env = at(server.url)
    kgray.write("slow.jsonl", {"id": "slow", "at": 0, "group": "g", "text": "Hello"})
    bad = {"id": "bad", "at": 0, "group": "g", "text": "not to be read"}
    kgray.write("next.jsonl", *many(3), bad)
    first = start_waiting(kgray, "slow.jsonl")
    second = kgray.start("add", "next.jsonl", "--json")
    notice = line_of(second)
    ready.set()
    ended = [process.communicate(timeout=HANGS_S) for process in (first, second)]
    server.close()
    (_, first_err), (_, err) = ended
    assert (first.returncode, first_err.count(b"Traceback")) == (0, 0)
    counts = [[json.loads(out)[name] for name in ("accepted", "committed", "failed")] for out, _ in ended]
    assert counts == [[1, 1, 0], [4, 3, 1]], "each process reports its own rows"
    assert second.returncode == 1
    assert notice.startswith(f"kgray: waiting: process {first.pid} on ")
    assert b"waiting: " not in err


@pytest.mark.slow  # by default a second process waits for the first
def test_two_concurrent_adds_report_their_own_rows(kgray):
    kgray("init")
    files = [kgray.write(f"{n}.jsonl", *many(60, 60 * n)) for n in range(2)]
    running = [kgray.start("add", file, "--json") for file in files]
    reports = [json.loads(process.communicate(timeout=HANGS_S)[0]) for process in running]
    assert [(r["accepted"], r["committed"], r["failed"]) for r in reports] == [(60, 60, 0)] * 2
    assert committed(kgray) == 120


def test_a_waiting_process_ingests_after_the_ingesting_process_dies(kgray):
    kgray.script({"episode": "slow", "error": "unavailable"})
    kgray.write("slow.jsonl", {"id": "slow", "at": 0, "group": "g", "text": "Hello"})
    kgray.write("next.jsonl", *many(3))
    first = start_waiting(kgray, "slow.jsonl")
    # A new script file: the first process may still have to read its own.
    kgray.write("healed.jsonl", {"episode": "slow", "extraction": {"entities": [], "facts": []}})
    kgray.env["KGRAY_MODEL_SCRIPT"] = str(kgray.folder / "healed.jsonl")
    second = kgray.start("add", "next.jsonl", "--json")
    assert line_of(second).startswith(f"kgray: waiting: process {first.pid} on ")
    assert in_ledger(kgray, "team") == 3
    first.kill()
    first.communicate()
    out, _ = second.communicate(timeout=HANGS_S)
    assert second.returncode == 0
    assert json.loads(out)["committed"] == 4


@pytest.mark.slow  # by default the process that ingests gets the signal
def test_a_waiting_process_ends_with_75_on_a_signal(kgray):
    kgray.script({"episode": "slow", "error": "unavailable"})
    kgray.write("slow.jsonl", {"id": "slow", "at": 0, "group": "g", "text": "Hello"})
    kgray.write("next.jsonl", {"id": "next", "at": 0, "group": "g", "text": "Hello"})
    first = start_waiting(kgray, "slow.jsonl")
    second = kgray.start("add", "next.jsonl")
    assert line_of(second).startswith(f"kgray: waiting: process {first.pid} on ")
    for process in (second, first):
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=HANGS_S)
        assert process.returncode == 75
    assert kgray("status", "--json").json["groups"]["g"]["accepted"] == 2


def test_a_closed_pipe_is_no_error(kgray):
    kgray("add", kgray.write("a.jsonl", *many(100)))
    running = kgray.start("dump", "--group", "team")
    assert running.stdout is not None
    assert running.stdout.readline()
    running.stdout.close()
    assert running.stderr is not None
    assert running.stderr.read() == b""
    assert running.wait(timeout=HANGS_S) == 0


def test_a_named_pipe_is_read_once_and_completely(kgray):
    os.mkfifo(kgray.folder / "pipe.csv")
    content = b"id,group,at,triples\n" + b"".join(
        b'%d,g,0,"[{""source"": ""A%d"", ""relation"": ""KNOWS"", ""target"": ""B""}]"\n' % (i, i)
        for i in range(50)
    )
    writer = threading.Thread(target=(kgray.folder / "pipe.csv").write_bytes, args=(content,))
    writer.start()
    answer = kgray("add", "pipe.csv", "--json")
    writer.join()
    assert answer.json["committed"] == 50


def test_output_without_a_terminal_has_no_control_sequences(kgray):
    kgray("add", kgray.write("a.jsonl", *many(3)))
    answer = kgray.process("history", "Ann", "--group", "team")
    assert answer.code == 0
    assert "\x1b" not in answer.out + answer.err
