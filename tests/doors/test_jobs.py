"""The scripts that jobs run: a backfill from a URL."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import kgray

SCRIPT = Path(__file__).resolve().parents[2] / "jobs" / "backfill.py"
ROWS = [{"text": f"I work at {firm}.", "speaker": "Alice", "id": firm} for firm in ("Acme", "Beta", "Cern")]


@pytest.fixture
def archive(tmp_path):
    folder = tmp_path / "archive" / "2026"
    folder.mkdir(parents=True)
    for name, rows in (("a.jsonl", ROWS[:2]), ("b.jsonl", ROWS[2:])):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder.parent


@pytest.fixture
def site(archive):
    handler = partial(SimpleHTTPRequestHandler, directory=str(archive))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def run(*arguments):
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False
    )


def kept(folder):
    with kgray.open(folder, create=False) as memory:
        return sorted(row["client_id"] for row in memory.log(group="team")["episodes"])


def test_a_folder_at_a_url_is_backfilled_and_again_it_changes_nothing(archive, tmp_path):
    data = tmp_path / "data"
    for accepted, duplicate in ((3, 0), (0, 3)):
        done = run(archive.as_uri(), "--group", "team", "--data", str(data), "--json")
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        assert (told["accepted"], told["duplicate"]) in ((accepted, duplicate), (accepted, 0))
        assert kept(data) == ["Acme", "Beta", "Cern"]


def test_a_file_at_a_web_address_is_backfilled(site, tmp_path):
    done = run(f"{site}/2026/a.jsonl?signature=secret", "--group", "team", "--data", str(tmp_path / "data"))
    assert done.returncode == 0, done.stderr
    assert kept(tmp_path / "data") == ["Acme", "Beta"]


def test_what_cannot_be_copied_is_said_in_one_line_without_secrets(site, tmp_path):
    for url in (
        f"{site}/none.jsonl?signature=secret",
        "http://me:secret@127.0.0.1:9/x.jsonl",
        "nope://x/secret"[:8],
    ):
        done = run(url, "--group", "team", "--data", str(tmp_path / "data"))
        assert (done.returncode, done.stdout) == (75, "")
        assert done.stderr.startswith("kgray: ")
        assert len(done.stderr.splitlines()) == 1
        assert "secret" not in done.stderr
