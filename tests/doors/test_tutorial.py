"""The commands of README.md and docs/tutorial.md, run in an empty folder, print the output of the pages."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.doors.shell import Shell

ROOT = Path(__file__).resolve().parents[2]
# A block of commands, its mark if the test must not run it, and its expected output if the page shows any.
BLOCK = re.compile(
    r"^(<!-- not run: [^\n]* -->\n)?```sh\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL
)
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\dZ")  # record times: the time of the run


def comparable(output: str) -> list[str]:
    """Return the lines of an output without record times and spaces at line ends."""
    return [MOMENT.sub("MOMENT", line).rstrip() for line in output.rstrip().splitlines()]


def run(commands: str, folder: Path) -> str:
    """Run commands as a user does, with `kgray` and `python` of the tests; return standard output."""
    programs = Path(sys.executable).parent
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KGRAY_")}
    environment |= {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),  # the package of this checkout
    }
    outcome = subprocess.run(
        ["/bin/bash", "-euo", "pipefail", "-c", commands],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert outcome.returncode == 0, f"{commands}{outcome.stdout}{outcome.stderr}"
    return outcome.stdout


PLAIN = re.compile(r"(kgray [^|<>&\n]+\n)+")  # a block of commands that needs no shell


def answer(block: str, folder: Path, *, in_process: bool) -> str:
    """Return the output of a block of commands. in_process: run plain commands in this process, quickly."""
    if not (in_process and PLAIN.fullmatch(block)):
        return run(block, folder)
    answers = [Shell(folder)(*shlex.split(line)[1:]) for line in block.splitlines()]
    assert {item.code for item in answers} == {0}, answers
    return "".join(item.out for item in answers)


@pytest.mark.parametrize(
    ("page", "minimum", "in_process"),
    [
        ("README.md", 3, False),
        ("docs/tutorial.md", 10, True),
        pytest.param("docs/tutorial.md", 10, False, marks=pytest.mark.slow),
    ],
)
def test_the_commands_of_a_page_print_the_shown_output(page, minimum, in_process, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("KGRAY_")]:
        monkeypatch.delenv(name)
    blocks = [block for block in BLOCK.findall((ROOT / page).read_text(encoding="utf-8")) if not block[0]]

    printed = [comparable(answer(commands, tmp_path, in_process=in_process)) for _, commands, _ in blocks]

    assert printed == [comparable(output) for _, _, output in blocks]
    assert len(blocks) >= minimum
