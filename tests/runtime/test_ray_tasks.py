"""Ingestion through Ray runs its stateless steps as tasks, which Ray lists, spreads and retries."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from kgray.errors import SettingsError
from tests import make
from tests.ray_session import over_ray
from tests.runtime.test_ray_ingest import TASK_NAME, drafts, hashes, plain_loops, tasks
from tests.waiting import until

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [1, 8])
async def test_ray_lists_tasks_with_group_and_sequence_and_the_graph_is_the_same(
    tmp_path: Path, chunk: int
) -> None:
    messages = drafts(45)
    expected = await plain_loops(tmp_path / "plain", messages)
    chunks = {"runtime_chunk_episodes": chunk, "runtime_chunk_requests": chunk}
    with over_ray(tmp_path / "ray", **chunks) as memory:
        tasks_before = {
            step: {row.task_id for row in tasks(step)} for step in ("extract_episode", "resolve_node")
        }
        report = await memory.add_many(messages)
        assert (report.committed, report.failed) == (45, 0)
        assert await hashes(memory) == expected
        names: dict[str, list[str]] = {}

        def all_are_listed() -> bool:  # Ray tells its head of tasks once a second
            for step, known_ids in tasks_before.items():
                names[step] = [row.name for row in tasks(step) if row.task_id not in known_ids]
            read = {
                (group, int(number))
                for name in names["extract_episode"]
                for group, numbers in re.findall(r"group=(\S+) sequence=([\d,]+)", name)
                for number in numbers.split(",")
            }
            return len(read) == 45 and bool(names["resolve_node"])

        await until(all_are_listed)
        # Ray may list tasks of an earlier test late. Their names may be cut, or have no groups.
        full_names = [name for listed in names.values() for name in listed if TASK_NAME.fullmatch(name)]
        assert {name.partition(" ")[0] for name in full_names} == {"extract_episode", "resolve_node"}
        if chunk == 1:
            assert any("," not in name and name.count("group=") == 1 for name in full_names)


@pytest.mark.parametrize("bad", [0, -1, "many"])
def test_an_invalid_chunk_size_is_refused_in_one_line(tmp_path: Path, bad: object) -> None:
    with (
        pytest.raises(SettingsError, match=r"chunk_episodes") as caught,
        over_ray(tmp_path, runtime_chunk_episodes=bad),
    ):
        pass
    assert "\n" not in str(caught.value)


def test_the_task_name_of_a_chunk_with_many_groups_is_truncated() -> None:
    from kgray.ingest.steps import Reading
    from kgray.ports import ExtractionRequest
    from kgray.runtime.tasks import name_of

    def request(group: str, sequence: int) -> Any:
        episode = make.episode("Hi", group=group, sequence=sequence)
        return Reading(request=ExtractionRequest(episode=episode)), ()

    two = [request("team", 4), request("team", 5), request("other", 1)]
    assert name_of("extract_episode", two) == "extract_episode group=team sequence=4,5 group=other sequence=1"
    long_name = name_of("extract_episode", [request(f"group-{n}", n) for n in range(50)])
    assert len(long_name) == 160
    assert long_name.endswith("...")
