"""An import that is killed is completed by the next import, with the same facts and no episode twice."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

import kgray as library
from tests.doors.shell import Shell, told, triple
from tests.doors.test_import import Fact, facts_of
from tests.waiting import wait_for

EPISODES = 300  # enough for a kill in the middle


def committed(shell: Shell) -> int:
    """Return the number of committed episodes of the group."""
    groups: dict[str, Any] = shell("status", "--json").json["groups"]
    return int(groups.get("copy", {}).get("committed", 0))


def facts(folder: Path, group: str) -> set[Fact]:
    async def read() -> set[Fact]:
        async with library.open_async(folder, settings={"model_backend": "rules"}) as memory:
            return await facts_of(memory, group)

    return asyncio.run(read())


@pytest.mark.slow
@pytest.mark.parametrize("form", ["graphrag", "lightrag", "cogx"])
def test_a_killed_import_is_completed_by_the_next_one(kgray: Shell, form: str) -> None:
    rows = [
        told(f"t{n}", "2026-01-01", *(triple(f"P{n}", "KNOWS", f"Q{n % 50 + m}") for m in range(5)))
        for n in range(EPISODES)
    ]
    with library.open(kgray.folder / "origin", create=True, settings={"model_backend": "rules"}) as memory:
        assert memory.add_many(rows).exit_code == 0
        memory.export(kgray.folder / "out", to=form, group="team")
    expected = facts(kgray.folder / "origin", "team")
    assert kgray("init").code == 0

    process = kgray.start("import", form, "out", "--group", "copy")
    wait_for(lambda: committed(kgray) > 0, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL, "killed in the middle, not after the end"
    before = committed(kgray)
    again = kgray("import", form, "out", "--group", "copy", "--json").json

    assert 0 < before < EPISODES
    assert (again["omitted"], again["refused"], again["failed"]) == (0, 0, 0)
    assert again["accepted"] + again["duplicate"] == committed(kgray) == EPISODES
    assert facts(kgray.folder / "kgray-data", "copy") == expected
    assert kgray("import", form, "out", "--group", "copy", "--json").json["accepted"] == 0
