"""Two that start the actors of one store in one Ray at the same moment: one of them does."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import kgray
from kgray.errors import SettingsError
from kgray.runtime.profile import LimitsProfile, Profile, WorkersProfile
from kgray.runtime.spec import DeploymentSpec, spec_of
from kgray.settings import Settings

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]


def spec(folder: Path, workers: int) -> DeploymentSpec:
    profile = Profile(
        extraction=WorkersProfile(workers=workers, cpus=0.1),
        embedding=WorkersProfile(workers=0),
        limits=LimitsProfile(grace_s=0.0),
    )
    return spec_of(Settings(), folder, profile.values())


@pytest.mark.slow
def test_of_two_that_start_otherwise_one_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    from kgray.runtime.actors import answer
    from kgray.runtime.deploy import ensure, find

    kgray.open(tmp_path).close()
    both = threading.Barrier(2)

    def up(workers: int) -> Any:
        both.wait()
        try:
            return ensure(spec(tmp_path, workers), detached=True, chosen=True)
        except SettingsError as error:
            return error

    with ThreadPoolExecutor(2) as threads:
        answers = list(threads.map(up, (1, 2)))
    found = find(spec(tmp_path, 1).namespace)
    assert found is not None
    try:
        (refused,) = [told for told in answers if isinstance(told, SettingsError)]
        (started,) = [told for told in answers if told is not refused]
        assert "profile extraction.workers is" in str(refused)
        assert list(found.actors) == list(started.actors)
        handles = found.actors.values()
        assert {answer(h.describe.remote())["spec"].profile["extraction"]["workers"] for h in handles} == {
            len([name for name in started.actors if name.startswith("models-")])
        }
    finally:
        found.stop(0)


@pytest.mark.slow
def test_what_a_start_that_was_killed_left_behind_is_found_and_ended(tmp_path: Path) -> None:
    """It had come as far as its writer: without a sequencer nobody would look for it."""
    import ray

    from kgray.runtime.deploy import ensure, find

    kgray.open(tmp_path).close()
    whole = ensure(spec(tmp_path, 1), detached=True, chosen=True)
    for name, handle in whole.actors.items():
        if not name.startswith("writer-"):
            ray.kill(handle, no_restart=True)

    left = find(whole.spec.namespace)

    assert left is not None
    assert (left.stop(0), find(whole.spec.namespace)) == (1, None)
