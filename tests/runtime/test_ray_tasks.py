"""Ingestion through Ray runs its stateless steps as tasks, which Ray lists, spreads and retries."""

from __future__ import annotations

import os
import re
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kgray.errors import SettingsError
from kgray.runtime.session import started_at
from tests import make
from tests.ray_session import over_ray
from tests.runtime.test_ray_ingest import drafts, hashes, plain_loops
from tests.waiting import until

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]
NAME = re.compile(r"(extract_episode|resolve_node)(?: group=\S+ sequence=[\d,]+)+")


def tasks(step: str) -> list[Any]:
    """Return the tasks of a step that have run, as `ray list tasks` shows them."""
    import ray
    from ray.util.state import list_tasks
    from ray.util.state.exception import RayStateApiException

    address = ray.get_runtime_context().gcs_address
    by_function: list[tuple[str, str, Any]] = [
        ("func_or_class_name", "=", step),
        ("state", "=", "FINISHED"),
        ("name", "!=", "warm_up"),
    ]
    # Ray reads the newest 10,000 tasks, and raises if the session has had more.
    # Ray's dashboard may answer 500 just after a process was killed: the caller looks again.
    with suppress(RayStateApiException):
        return [
            *list_tasks(
                address, filters=by_function, limit=10_000, detail=True, raise_on_missing_output=False
            )
        ]
    return []


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [1, 8])
async def test_the_tasks_are_listed_with_group_and_sequence_and_make_the_plain_loops_graph(
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
        full_names = [name for listed in names.values() for name in listed if NAME.fullmatch(name)]
        assert {name.partition(" ")[0] for name in full_names} == {"extract_episode", "resolve_node"}
        if chunk == 1:
            assert any("," not in name and name.count("group=") == 1 for name in full_names)


async def test_the_processes_of_tasks_are_killed_and_the_graph_is_the_same(tmp_path: Path) -> None:
    """Ray runs their work again: each episode is committed once. The tasks bear group and sequence."""
    messages = drafts(60)
    expected = await plain_loops(tmp_path / "plain", messages)
    names: set[str] = set()
    with over_ray(tmp_path / "ray") as memory:
        killed: set[int] = set()
        steps = 0

        def on_step(*_: Any) -> None:
            nonlocal steps
            steps += 1
            if steps % 15 == 5:
                rows = tasks("extract_episode")
                names.update(row.name for row in rows)
                for pid in {row.worker_pid for row in rows} - killed:
                    if started_at(pid) is not None:
                        with suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                            killed.add(pid)

        report = await memory.add_many(messages, on_step=on_step)
        assert killed
        assert any(map(NAME.fullmatch, names))
        assert (report.committed, report.failed, report.stopped) == (60, 0, False)
        assert await hashes(memory) == expected


@pytest.mark.parametrize("bad", [0, -1, "many"])
def test_a_chunk_of_no_size_is_refused_in_one_line(tmp_path: Path, bad: object) -> None:
    with (
        pytest.raises(SettingsError, match=r"chunk_episodes") as caught,
        over_ray(tmp_path, runtime_chunk_episodes=bad),
    ):
        pass
    assert "\n" not in str(caught.value)


def test_a_name_is_cut_where_a_chunk_has_many_groups() -> None:
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
