"""`kgray serve` and `kgray keys` as processes: signals, kills, and rows that survive them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

import httpx2

from kgray import open as kgray_open
from kgray.storage.ledger import pending
from tests.waiting import HANGS_S

ROOT = Path(__file__).resolve().parents[2]


def started(kgray, *options):
    """Start a server; return the process and its address."""
    running = kgray.start("serve", "--port", "0", *options)
    line = running.stdout.readline().decode()
    assert line.startswith("kgray serves http://127.0.0.1:"), running.communicate()[1]
    return running, line.split()[-1]


def test_accepted_rows_survive_a_kill(kgray):
    running, url = started(kgray, "--accept-only")
    accepted: list[str] = []

    def appends(n: int) -> None:
        with httpx2.Client(base_url=url, timeout=HANGS_S) as client:
            for i in range(200):
                row = {"text": "Hello", "id": f"r{n}-{i}"}
                try:
                    if client.post("/v1/groups/team/episodes", json=row).status_code == 202:
                        accepted.append(row["id"])
                except httpx2.TransportError:
                    return
                if len(accepted) > 60:
                    running.kill()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(appends, range(8)))
    running.communicate()
    assert len(accepted) > 60
    with kgray_open(kgray.folder / "kgray-data") as memory:
        stored = pending(memory.store, "team", 5000)
    assert set(accepted) <= {row.client_id for row in stored}


def test_keys_are_shown_once_and_revoked(kgray):
    reply = kgray("keys", "add", "--groups", "team,project-/*", "--scopes", "read,add", "--json").json
    listed = kgray("keys", "list", "--json")
    assert kgray("keys", "revoke", reply["id"]).code == 0

    assert reply["key"].startswith(f"kg_{reply['id']}_")
    assert (listed.json["keys"][0]["groups"], listed.json["keys"][0]["revoked_at"]) == (
        ["team", "project-/*"],
        None,
    )
    assert reply["key"].split("_", 2)[2] not in listed.out
    assert kgray("keys", "list", "--json").json["keys"][0]["revoked_at"] is not None
    for folder in kgray.folder.rglob("*.sqlite3*"):
        assert reply["key"].split("_", 2)[2].encode() not in folder.read_bytes()


@pytest.mark.parametrize(
    "wrong",
    [
        ("add", "--groups", "team", "--scopes", "write"),
        ("add", "--groups", "a b", "--scopes", "read"),
        ("add", "--groups", "", "--scopes", "read"),
        ("add", "--groups", "team", "--scopes", "read", "--expires", "2020-01-01"),
        ("revoke", "nothing"),
    ],
)
def test_a_wrong_key_is_refused(kgray, wrong):
    kgray("init")
    answer = kgray("keys", *wrong)

    assert (answer.code, answer.out) == (2, "")
    assert kgray("keys", "list", "--json").json == {"keys": []}
    assert json.loads(kgray("groups", "--json").out) == {"groups": []}


@pytest.mark.slow
def test_the_bench_of_a_server_loses_no_rows(tmp_path):
    out = tmp_path / "figures.json"
    words = ["serve", "--clients", "8", "--searchers", "2", "--seconds", "4", "--out", str(out)]
    subprocess.run([sys.executable, "-m", "bench", *words], check=True, timeout=300, cwd=ROOT)
    accepting, ingesting = json.loads(out.read_text(encoding="utf-8"))["results"]

    for figures in (accepting, ingesting):
        assert figures["lost"] == 0
        assert figures["statuses"]["202"] > 20
        assert set(figures["statuses"]) <= {"202", "503"}
        assert figures["server_cpu_ms_per_append"] > 0


def test_sigterm_ends_a_server_with_an_open_stream_and_the_webhook_key_is_created_once(kgray, tmp_path):
    """Only the owner can read the key; the next server uses the same key."""
    file = tmp_path / "webhooks.key"
    keys = []
    for _ in range(2):
        running, url = started(kgray, "--webhooks", str(file))
        request = urllib.request.Request(f"{url}/v1/groups/team/events")  # noqa: S310 - loopback
        with urllib.request.urlopen(request, timeout=HANGS_S) as stream:  # noqa: S310 - loopback
            assert stream.readline().startswith(b": commits of team")
            running.send_signal(signal.SIGTERM)
            assert running.wait(HANGS_S) == 0
        assert b"Traceback" not in running.communicate()[1]
        keys.append(file.read_bytes())
    assert (len(keys[0]), keys[0] == keys[1], file.stat().st_mode & 0o777) == (32, True, 0o600)
    file.write_bytes(b"short")
    for path in (file, tmp_path / "nowhere" / "key"):
        answer = kgray("serve", "--port", "0", "--webhooks", str(path))
        assert (answer.code, answer.out) == (2, "")
        assert str(path) in answer.err
