"""Two processes that start the actors of one store in one Ray at the same moment: only one succeeds."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import kgray
from kgray.domain import times
from kgray.errors import SettingsError
from kgray.runtime.spec import DeploymentSpec, LimitsProfile, Profile, WorkersProfile, spec_of
from kgray.settings import Settings
from kgray.storage.ledger import accept
from tests import make
from tests.waiting import wait_for

AFTERWARDS_S = 6.0  # longer than the interval between two checks for missing actors

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]


def spec(folder: Path, workers: int) -> DeploymentSpec:
    profile = Profile(
        extraction=WorkersProfile(workers=workers, cpus=0.1),
        embedding=WorkersProfile(workers=0),
        limits=LimitsProfile(grace_s=0.0),
    )
    return spec_of(Settings(), folder, profile.values())


@pytest.mark.slow
def test_one_of_two_concurrent_starts_with_different_profiles_is_refused(tmp_path: Path) -> None:
    from kgray.runtime.actors import answer
    from kgray.runtime.deploy import ensure, find

    kgray.open(tmp_path, create=True).close()
    both = threading.Barrier(2)

    def up(workers: int) -> Any:
        both.wait()
        try:
            return ensure(spec(tmp_path, workers), detached=True, chosen=True)
        except SettingsError as error:
            return error

    with ThreadPoolExecutor(2) as threads:
        answers = list(threads.map(up, (1, 2)))
    deployment = find(spec(tmp_path, 1).namespace)
    assert deployment is not None
    try:
        (refused,) = [answer for answer in answers if isinstance(answer, SettingsError)]
        (started,) = [answer for answer in answers if answer is not refused]
        assert "profile extraction.workers is" in str(refused)
        assert list(deployment.actors) == list(started.actors)
        handles = deployment.actors.values()
        assert {answer(h.describe.remote())["spec"].profile["extraction"]["workers"] for h in handles} == {
            len([name for name in started.actors if name.startswith("models-")])
        }
    finally:
        deployment.stop(0)


@pytest.mark.slow
def test_missing_actors_of_a_deployment_are_restored(tmp_path: Path) -> None:
    """Actors are killed without a restart, as after a killed start or a lost node.

    The writer restores all other actors; they work with its replacement. After `stop`, none is restored.
    """
    import ray

    from kgray.runtime.deploy import ensure, find

    with closing(kgray.open_async(tmp_path, create=True)) as memory:
        full_deployment = ensure(spec(tmp_path, 1), detached=True, chosen=True)
        names = list(full_deployment.actors)
        for kinds in (("sequencer", "models"), ("writer", "models")):
            for name in names:
                if name.startswith(kinds):
                    ray.kill(ray.get_actor(name, namespace=full_deployment.spec.namespace), no_restart=True)
            wait_for(
                lambda: (
                    (deployment := find(full_deployment.spec.namespace)) and list(deployment.actors) == names
                )
            )
            draft = make.draft(f"Ann met {kinds[0]}.", at=1)
            accept(memory.store, [draft], now=times.now())
            wait_for(lambda: not memory.store.pending_count())

        deployment = find(full_deployment.spec.namespace)
        assert deployment is not None
        assert deployment.stop(0) == len(names)
    wait_for(lambda: find(full_deployment.spec.namespace) is None)
    time.sleep(AFTERWARDS_S)
    assert find(full_deployment.spec.namespace) is None
