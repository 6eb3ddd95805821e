"""docs/architecture.md lists the files that a message and a query enter: exactly those that they enter."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from tests.doors import entered

PAGE = entered.ROOT / "docs" / "architecture.md"


@pytest.fixture(scope="module")
def really_entered(tmp_path_factory):
    """In a process of its own: what other tests have cached there is not entered again."""
    command = [sys.executable, "-m", "tests.doors.entered", str(tmp_path_factory.mktemp("data"))]
    outcome = subprocess.run(command, cwd=entered.ROOT, check=True, stdout=subprocess.PIPE)
    return json.loads(outcome.stdout)


@pytest.mark.parametrize("what", ["message", "query"])
def test_the_page_lists_the_files_of_the_path_and_no_others(really_entered, what):
    section = PAGE.read_text(encoding="utf-8").split(f"\n## The path of a {what}\n")[1].split("\n## ")[0]
    listed = re.findall(r"^\| `(kgray/[^`]+)` \|", section, re.MULTILINE)
    missing = [file for file in really_entered[what] if file not in listed]
    wrong = sorted(set(listed) - set(really_entered[what]))

    assert (missing, wrong) == ([], []), (
        f"{PAGE.name}, the path of a {what}: add {missing}, take out {wrong}. "
        "`python -m tests.doors.entered NEW_FOLDER` prints the whole list, in order."
    )
    assert len(listed) == len(set(listed)), "a file is listed twice"
