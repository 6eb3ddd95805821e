"""Output at a terminal: colour, a question before a removal, a progress bar of long runs."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

from kgray.cli import progress
from tests.doors.shell import JOBS
from tests.waiting import HANGS_S


def screen(master: int) -> bytes:
    """Return the output on a terminal whose other side is closed."""
    parts = []
    try:
        while part := os.read(master, 65_536):
            parts.append(part)
    except OSError:  # Linux reports a closed other side like this
        pass
    return b"".join(parts)


def test_a_removal_at_a_terminal_needs_confirmation(kgray):
    kgray("add", kgray.write("a.jsonl", *JOBS))
    for answer, code, remaining in ((b"n\n", 2, 3), (b"y\n", 0, 0)):
        master, slave = pty.openpty()
        running = kgray.start("remove", "--group", "team", "--all", stdin=slave)
        os.close(slave)
        os.write(master, answer)
        _, err = running.communicate(timeout=HANGS_S)
        os.close(master)
        assert running.returncode == code
        assert b"Remove everything of group team?" in err
        rows = kgray("groups", "--json").json["groups"]
        assert sum(row["episodes"] for row in rows) == remaining


def test_output_at_a_terminal_has_colour(kgray):
    kgray("add", kgray.write("a.jsonl", *JOBS))
    master, slave = pty.openpty()
    running = kgray.start(
        "history", "Alice Nguyen", "--group", "team", stdout=slave, stderr=subprocess.DEVNULL
    )
    os.close(slave)
    output = screen(master)
    assert running.wait(timeout=HANGS_S) == 0
    assert b"\x1b[1mAlice Nguyen\x1b[0m" in output


def test_a_long_run_draws_a_progress_bar_at_a_terminal(monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    monkeypatch.setattr(progress, "EVERY_S", -1.0)
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with progress.Progress(lambda: 3) as bar:
            for outcome in ("committed", "failed", "committed"):
                bar.step(outcome)
    output = screen(master).decode()
    assert "[#######.......................] 1/4" in output
    assert "] 3/4, 1 failed" in output
    assert output.endswith("\r\x1b[K")


def test_no_bar_is_drawn_without_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    monkeypatch.setattr(progress, "EVERY_S", -1.0)
    with progress.Progress() as bar:
        bar.step("committed")
    assert capsys.readouterr() == ("", "")
