"""Several processes on one folder, and processes that are killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import apsw
import pytest

from kgray.errors import Locked
from kgray.schema.kinds import COMMITTED, EPISODES, MENTIONS, RECORDS
from kgray.schema.reads import FACTS_OF
from kgray.storage.ledger import pending
from kgray.storage.sqlite import schema
from tests.graph.by_hand import all_of, small, worded
from tests.waiting import HANGS_S

ROOT = Path(__file__).parents[2]
APPEND = """
import sys
from pathlib import Path
from tests.graph.by_hand import append, draft, small
store = small(Path(sys.argv[1]))
for n in range(int(sys.argv[3])):
    print(*append(store, *(draft(f"{sys.argv[2]} {n} {part}") for part in range(3))), flush=True)
"""
INGEST = """
import sys
from pathlib import Path
from tests.graph.by_hand import small, tell
from tests.waiting import HANGS_S
store = small(Path(sys.argv[1]))
with store.writing():
    print("holding", flush=True)
    n = store.counts("g")["g"].committed
    while True:
        n += 1
        print(tell(store, f"name{n}", f"value{n}"), flush=True)
"""


def started(code, folder, *arguments):
    """Start a process of ours on the folder."""
    command = [sys.executable, "-c", code, str(folder), *arguments]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )


def lines(process):
    """Return the whole lines that a process wrote."""
    text = process.communicate(timeout=HANGS_S)[0]
    return text[: text.rfind("\n") + 1].splitlines()


def test_concurrent_appending_processes_share_one_order(tmp_path):
    """R19: one sequence a group, without a gap, and each process in its own order; from nothing on."""
    first, second = started(APPEND, tmp_path, "a", "40"), started(APPEND, tmp_path, "b", "40")
    written = [lines(first), lines(second)]
    assert (first.returncode, second.returncode) == (0, 0)
    sequences = [[int(n) for line in part for n in line.split()] for part in written]
    assert [len(part) for part in sequences] == [120, 120]
    assert all(part == sorted(part) for part in sequences)
    assert sorted(sequences[0] + sequences[1]) == list(range(1, 241))
    store = small(tmp_path)
    assert [row.sequence for row in pending(store, "g", 999)] == list(range(1, 241))
    store.close()


def test_acknowledged_rows_of_a_killed_appender_are_stored(tmp_path):
    """Promise 2: durable before it is acknowledged, and a batch is stored completely or not at all."""
    dice = random.Random(3)
    acknowledged: set[int] = set()
    for turn in range(4):
        process = started(APPEND, tmp_path, f"turn{turn}", "100000")
        acknowledged |= {
            int(n) for _ in range(dice.randrange(1, 40)) for n in process.stdout.readline().split()
        }
        process.send_signal(signal.SIGKILL)
        acknowledged |= {int(n) for line in lines(process) for n in line.split()}
    store = small(tmp_path)
    stored_sequences = [row.sequence for row in pending(store, "g", 10**6)]
    assert acknowledged <= set(stored_sequences)
    assert stored_sequences == list(range(1, len(stored_sequences) + 1))
    assert len(stored_sequences) % 3 == 0
    store.close()


def test_a_killed_ingest_leaves_complete_commits_and_a_free_lock(tmp_path):
    """R23: after a crash at any instant an episode is wholly there or not at all."""
    dice = random.Random(4)
    for _ in range(4):
        process = started(INGEST, tmp_path)
        assert process.stdout.readline() == "holding\n"
        process.stdout.readline()
        second_store = small(tmp_path)
        with (
            pytest.raises(Locked, match=rf"process {process.pid} on .* is ingesting"),
            second_store.writing(),
        ):
            pass
        time.sleep(dice.uniform(0.02, 0.2))
        process.send_signal(signal.SIGKILL)
        acknowledged = [int(line) for line in lines(process)]
        with second_store.writing():
            counted = second_store.counts("g")["g"]
            committed = [row.sequence for row in all_of(second_store, EPISODES) if row.state == COMMITTED]
            assert counted.committed == counted.facts == counted.entities == len(committed)
            assert set(acknowledged) <= set(committed)
            assert [row.sequence for row in all_of(second_store, RECORDS)] == committed
            assert sorted(row.sequence for row in all_of(second_store, MENTIONS)) == committed
            assert len(list(second_store.rows(FACTS_OF, "g", [f"F{n}" for n in committed]))) == len(committed)
            assert worded(second_store, "fact", "says") == [(n, 0) for n in committed]
        second_store.close()
    check = apsw.Connection(str(tmp_path / schema.FILE))
    assert check.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    check.close()
