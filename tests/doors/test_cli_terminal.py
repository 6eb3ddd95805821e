"""What a person at a terminal sees: colour, a question before removal, a progress bar when it takes long."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

from kgray.cli import progress
from tests.doors.shell import JOBS
from tests.waiting import HANGS_S


def screen(master: int) -> bytes:
    """Return what was written to a terminal whose other side is closed."""
    parts = []
    try:
        while part := os.read(master, 65_536):
            parts.append(part)
    except OSError:  # how Linux says that the other side is closed
        pass
    return b"".join(parts)


def test_removal_asks_at_a_terminal_and_no_changes_nothing(kgray):
    kgray("add", kgray.write("a.jsonl", *JOBS))
    for answer, code, left in ((b"n\n", 2, 3), (b"y\n", 0, 0)):
        master, slave = pty.openpty()
        running = kgray.start("remove", "--group", "team", "--all", stdin=slave)
        os.close(slave)
        os.write(master, answer)
        _, err = running.communicate(timeout=HANGS_S)
        os.close(master)
        assert running.returncode == code
        assert b"Remove everything of group team?" in err
        rows = kgray("groups", "--json").json["groups"]
        assert sum(row["episodes"] for row in rows) == left


def test_colour_is_for_terminals(kgray):
    kgray("add", kgray.write("a.jsonl", *JOBS))
    master, slave = pty.openpty()
    running = kgray.start(
        "history", "Alice Nguyen", "--group", "team", stdout=slave, stderr=subprocess.DEVNULL
    )
    os.close(slave)
    shown = screen(master)
    assert running.wait(timeout=HANGS_S) == 0
    assert b"\x1b[1mAlice Nguyen\x1b[0m" in shown


def test_a_progress_bar_is_drawn_at_a_terminal_once_it_takes_long(monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    monkeypatch.setattr(progress, "EVERY_S", -1.0)
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with progress.Progress(lambda: 3) as bar:
            for outcome in ("committed", "failed", "committed"):
                bar.step(outcome)
    shown = screen(master).decode()
    assert "[#######.......................] 1/4" in shown
    assert "] 3/4, 1 failed" in shown
    assert shown.endswith("\r\x1b[K")


def test_no_bar_is_drawn_where_standard_error_is_no_terminal(monkeypatch, capsys):
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    monkeypatch.setattr(progress, "EVERY_S", -1.0)
    with progress.Progress() as bar:
        bar.step("committed")
    assert capsys.readouterr() == ("", "")
