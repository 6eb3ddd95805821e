"""A real model reads labelled messages: its server's address is KGRAY_TEST_MODEL_URL (minutes on a slow one).

The scores are not tested, because they are the model's; both readers must get an answer to each message.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.small
URL = os.environ.get("KGRAY_TEST_MODEL_URL")
if not URL:
    pytest.skip("KGRAY_TEST_MODEL_URL names no server of a model", allow_module_level=True)
ROOT = Path(__file__).parent.parent.parent
MESSAGES = 3


def test_both_readers_get_an_answer_to_each_message(tmp_path):
    command = [sys.executable, "-m", "bench", "reading", "--url", URL, "--limit", str(MESSAGES)]
    command += ["--part", "development", "--out", str(tmp_path / "out.json")]

    subprocess.run(command, check=True, cwd=ROOT, timeout=600 * MESSAGES)

    document = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    (part,) = document["parts"]
    for reader in ("kgray", "plain prompt"):
        figures = part[reader]
        assert figures["messages"] == MESSAGES
        assert figures["right"] + figures["wrong"] >= 1, f"{reader} listed no fact"
        assert figures["extraction_calls"] >= 1
        assert figures["prompt_tokens_a_call"] > 100
    assert part["difference_f1"]["low"] <= part["difference_f1"]["high"]
