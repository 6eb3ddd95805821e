"""docs/architecture.md lists exactly the files that a message and a query enter."""

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
    """Run in a new process, because files behind the caches of other tests would not be entered."""
    command = [sys.executable, "-m", "tests.doors.entered", str(tmp_path_factory.mktemp("data"))]
    outcome = subprocess.run(command, cwd=entered.ROOT, check=True, stdout=subprocess.PIPE)
    return json.loads(outcome.stdout)


@pytest.mark.parametrize("path", ["message", "query"])
def test_the_page_lists_exactly_the_files_of_the_path(really_entered, path):
    section = PAGE.read_text(encoding="utf-8").split(f"\n## The path of a {path}\n")[1].split("\n## ")[0]
    listed = re.findall(r"^\| `(kgray/[^`]+)` \|", section, re.MULTILINE)
    missing = [file for file in really_entered[path] if file not in listed]
    wrong = sorted(set(listed) - set(really_entered[path]))

    assert (missing, wrong) == ([], []), (
        f"{PAGE.name}, the path of a {path}: add {missing}, take out {wrong}. "
        "`python -m tests.doors.entered NEW_FOLDER` prints the whole list, in order."
    )
    assert len(listed) == len(set(listed)), "a file is listed twice"
