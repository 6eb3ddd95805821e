"""Communities that tasks of Ray detect, a task for each group: equal to those of this process."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import kgray
from kgray.communities.detection import detect_levels
from kgray.errors import SettingsError
from kgray.runtime import ingest as runtime_ingest
from kgray.runtime import scheduler
from kgray.schema import kinds
from kgray.settings import Settings, load
from tests.doors.chat_server import ChatServer, as_json
from tests.ray_session import SMALL
from tests.waiting import HANGS_S, wait_for

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]
GROUPS = ("one", "two", "three")


def filled(folder: Path) -> None:
    with kgray.open(folder, create=True) as memory:
        for number, group in enumerate(GROUPS):
            for name in ("Ann", "Bob", "Cara", "Dan")[: 2 + number]:
                memory.add(f"I work at {group.title()} Labs.", group=group, speaker=name, at="2026-01-01")


def stored_rows(memory: Any) -> dict[str, list[Any]]:
    return {group: list(memory.store.rows(kinds.COMMUNITIES.all, group)) for group in GROUPS}


def test_a_task_for_each_group_finds_the_same_communities(
    tmp_path: Path, monkeypatch: Any, ray_session: Any
) -> None:
    filled(tmp_path / "here")
    filled(tmp_path / "there")
    notes = tmp_path / "notes"
    notes.mkdir()

    def noting(problem: Any) -> Any:
        (notes / f"{os.getpid()}-{len(problem.graph.ends)}").touch()
        return detect_levels(problem)

    monkeypatch.setattr(scheduler, "detect_levels", noting)
    with kgray.open(tmp_path / "here", create=True) as memory:
        memory.communities.refresh()
        expected = stored_rows(memory)
    assert list(notes.iterdir()) == []
    with kgray.open(
        tmp_path / "there",
        create=True,
        settings={"runtime_backend": "ray", "runtime_address": ray_session.address},
    ) as memory:
        report = memory.communities.refresh()
        assert list(report.groups) == sorted(GROUPS)
        assert stored_rows(memory) == expected
    noted = [note.name.partition("-") for note in notes.iterdir()]
    assert sorted(int(size) for *_, size in noted) == [4, 6, 8]
    assert str(os.getpid()) not in {pid for pid, *_ in noted}


@pytest.mark.slow
def test_calls_reach_a_restarted_or_replaced_worker(
    tmp_path: Path, monkeypatch: Any, ray_session: Any
) -> None:
    """Calls keep the handle of a worker; if another actor has its name, its settings are compared first."""
    import ray

    from kgray.runtime import deploy
    from kgray.runtime.pooled import OnWorkers
    from kgray.runtime.spec import load_profile, spec_of

    (tmp_path / "profile.toml").write_text(SMALL.format(workers=1, embedders=1, shards=1))
    values = load_profile(tmp_path / "profile.toml").values()
    spec, looks, compared = spec_of(Settings(), tmp_path, values), [], []
    listed, joined = deploy.list_named_actors, deploy.joined
    monkeypatch.setattr(
        deploy, "list_named_actors", lambda **options: (looks.append(1), listed(**options))[1]
    )
    monkeypatch.setattr(deploy, "joined", lambda spec: (compared.append(1), joined(spec))[1])
    monkeypatch.setattr(
        runtime_ingest, "WATCH_S", HANGS_S
    )  # so that it looks for workers only after failed calls
    up = deploy.ensure(spec, detached=True, chosen=False)
    memory = kgray.open_async(
        tmp_path, create=True, settings={"runtime_backend": "ray", "runtime_address": ray_session.address}
    )
    calls = OnWorkers(partial(memory.runtime.pool, "embedder"), local=None)

    def pid() -> int:
        return int(deploy.described(ray.get_actor("embedder-0", spec.namespace), HANGS_S)["pid"])

    def replaced() -> bool:
        with suppress(ValueError):
            return ray.get_actor("embedder-0", spec.namespace) != up.actors["embedder-0"]
        return False

    try:
        (first, _), looks_before = asyncio.run(calls.ask(("a",))), len(looks)
        assert asyncio.run(calls.ask(("a",)))[0].tolist() == first.tolist()
        assert len(looks) == looks_before
        died = pid()
        os.kill(died, signal.SIGKILL)
        assert asyncio.run(calls.ask(("a",)))[0].tolist() == first.tolist()
        assert pid() != died
        assert (len(looks), len(compared)) == (looks_before, 1)

        ray.kill(up.actors["embedder-0"], no_restart=True)
        wait_for(replaced)  # by the deployment's keeper
        looks_before = len(looks)
        assert asyncio.run(calls.ask(("a",)))[0].tolist() == first.tolist()
        assert (len(looks) > looks_before, len(compared)) == (True, 2)
    finally:
        memory.runtime.close()
        memory.close()
        up.stop(0)


@pytest.mark.slow
def test_running_workers_write_summaries(tmp_path: Path, ray_session: Any) -> None:
    """Level by level through the model's actors; with other settings than theirs nothing is written."""
    from kgray.runtime import deploy
    from kgray.runtime.spec import load_profile, spec_of

    def answer(call: Any) -> Any:
        return as_json({"name": f"{len(call.sections['MEMBERS'])} at work", "summary": "They work."})

    filled(tmp_path)
    (tmp_path / "profile.toml").write_text(SMALL.format(workers=2, embedders=0, shards=1))
    server = ChatServer(answer)
    model = {"backend": "openai", "name": "m", "base_url": server.url, "patience_s": 60.0}
    settings = load(None, environ={}, overrides={f"model.{key}": value for key, value in model.items()})
    opened = {f"model_{key}": value for key, value in model.items()}
    opened |= {"runtime_backend": "ray", "runtime_address": ray_session.address}
    spec = spec_of(settings, tmp_path, load_profile(tmp_path / "profile.toml").values())
    early = kgray.open(tmp_path, create=True, settings=opened | {"model_name": "other"})
    assert early.asynchronous.runtime.pool("models") is None  # no worker is up
    up = deploy.ensure(spec, detached=True, chosen=False)
    try:
        with kgray.open(tmp_path, create=True, settings=opened) as memory:
            report = memory.communities.refresh()
            assert [(item.written, item.offline) for item in report.groups.values()] == [(1, 0)] * 3
            names = {group: [item.name for item in memory.communities.list(group=group)] for group in GROUPS}
            assert names == {"one": ["3 at work"], "two": ["4 at work"], "three": ["5 at work"]}
            assert [item.calls for item in memory.communities.refresh(cold=True).groups.values()] == [0, 0, 0]
        wrote = [row["done"] for name, row in up.status().items() if name.startswith("models-")]
        # A request without an answer so far may be repeated elsewhere; only workers wrote.
        assert len(wrote) == 2
        assert 3 <= sum(wrote) <= len(server.requests)
        with early as memory:
            with pytest.raises(SettingsError, match=r"model\.name"):
                memory.communities.refresh(cold=True)
            # A search needs no actors: where theirs have other settings, its own model answers.
            assert memory.asynchronous.runtime.pool("embedder") is None
    finally:
        up.stop(0)
        server.close()
