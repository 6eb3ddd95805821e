"""Workers whose model does not load, on the real Ray: they get no work, are named, and join when they can."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import kgray
from kgray.cli import cli
from kgray.errors import SettingsError
from kgray.runtime import lifecycle
from kgray.settings import load
from tests.ray_session import deployment_of
from tests.runtime.test_ray_engine import STAND_IN, did
from tests.waiting import wait_for

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]
PROFILE = """
[extraction]
workers = {workers}
cpus = 0.05
env = {{ PYTHONPATH = "{path}", KGRAY_TEST_ENGINE_LOG = "{log}", KGRAY_TEST_ENGINE_BAD = "{bad}" }}

[embedding]
workers = 0

[tasks]
at_once = 1

[limits]
health_every_s = 0.5
"""


def bad(folder: Path, **faults: str) -> None:
    """Note which workers cannot load their models, and how they fail."""
    lines = [f"{name.replace('_', '-')} {fault}\n" for name, fault in faults.items()]
    (folder / "bad").write_text("".join(lines), encoding="utf-8")


def settings(folder: Path, workers: int) -> dict[str, Any]:
    """Return the settings of a deployment with this number of engines."""
    profile, paths = folder / "profile.toml", f"{Path(__file__).parents[2]}:{STAND_IN}"
    profile.write_text(
        PROFILE.format(workers=workers, path=paths, log=folder / "log", bad=folder / "bad"), encoding="utf-8"
    )
    options = {
        "model_backend": "vllm",
        "model_name": "m",
        "runtime_backend": "ray",
        "runtime_profile": profile,
    }
    return options | {"runtime_chunk_episodes": 1}


def rows(count: int) -> list[dict[str, str]]:
    return [{"text": f"I like tea {n}.", "group": f"g{n % 8}", "at": "2026-03-01"} for n in range(count)]


@pytest.mark.slow  # by default test_pools, test_upkeep and test_ray_workers have such workers without Ray
@pytest.mark.parametrize("workers", [2, 8])
def test_a_worker_whose_model_does_not_load_is_quarantined(
    tmp_path: Path, ray_session: Any, workers: int
) -> None:
    """`kgray up` succeeds and names the worker, as status does; the worker joins after its model loads."""
    bad(tmp_path, models_1="fails")
    options = settings(tmp_path, workers)
    chosen = {key.replace("_", ".", 1): value for key, value in options.items()}
    loaded = load(None, environ={}, overrides=chosen | {"runtime.address": ray_session.address})
    data, lines = tmp_path / "d", list[str]()
    with kgray.open(
        data, create=True, settings={**options, "runtime_address": ray_session.address}
    ) as memory:
        try:
            up = lifecycle.up(loaded, data, lines.append)
            assert list(up["quarantined"]) == ["models-1"]
            assert up["quarantined"]["models-1"].startswith(
                "models-1 cannot load its model (MemoryError: no room on the card): "
            )
            assert lines[-1].startswith("models-1 is quarantined: it gets no work, and is started again ")

            report = memory.add_many(rows(24))
            assert (report.committed, report.failed, report.stopped) == (24, 0, False)
            state = lifecycle.status(loaded, data)
            assert list(state["quarantined"]) == ["models-1"]
            readers = {
                name: row.get("read", 0) for name, row in state["actors"].items() if name.startswith("models")
            }
            assert readers.pop("models-1") == 0
            assert sum(readers.values()) > 0
            sequencer = state["actors"]["sequencer-0"]
            assert (sequencer["state"], sequencer["given_up"]) == ("serving", 0)
            assert [row["name"] for row in sequencer["workers"] if "fault" in row] in ([], ["models-1"])
            assert "quarantined, without work: models-1: " in status(data, options, ray_session)

            wait_for(
                lambda: [event for event, _ in did(tmp_path / "log")].count("bad") >= 2
            )  # it is tried again
            bad(tmp_path)
            wait_for(lambda: not lifecycle.status(loaded, data)["quarantined"])
            assert lifecycle.status(loaded, data)["actors"]["models-1"]["loaded"]
        finally:
            lifecycle.down(loaded, data)


@pytest.mark.slow
def test_changed_settings_reach_workers_despite_a_quarantined_worker(
    tmp_path: Path, ray_session: Any
) -> None:
    """A replaced worker whose model did not load before delays nothing: no call waits for it."""
    bad(tmp_path, models_0="fails")
    chosen = {key.replace("_", ".", 1): value for key, value in settings(tmp_path, 2).items()}
    chosen["runtime.address"] = ray_session.address
    first, changed = (load(None, environ={}, overrides=chosen | {"model.timeout_s": s}) for s in (60, 61))
    data = tmp_path / "d"
    kgray.open(data, create=True).close()
    try:
        assert list(lifecycle.up(first, data)["quarantined"]) == ["models-0"]

        up = lifecycle.up(changed, data)

        assert {"models-0", "models-1"} <= up["replaced"].keys()
        assert list(up["quarantined"]) == ["models-0"]
        bad(tmp_path, models_1="fails")  # this worker had loaded its model, so the settings may be the cause
        with pytest.raises(SettingsError, match="models-1 does not come up"):
            lifecycle.up(first, data)
    finally:
        lifecycle.down(first, data)


def status(data: Path, options: dict[str, Any], session: Any) -> str:
    """Return the output of `kgray status`."""
    environ = {f"KGRAY_{key.upper()}": str(value) for key, value in options.items()}
    environ |= {"KGRAY_RUNTIME_ADDRESS": session.address, "KGRAY_DATA": str(data)}
    outcome = CliRunner().invoke(cli, ["status", "--data", str(data)], env=environ, catch_exceptions=False)
    return outcome.output


@pytest.mark.slow
def test_without_any_loaded_model_the_fault_is_reported_and_workers_recover(tmp_path: Path) -> None:
    bad(tmp_path, models_0="fails", models_1="fails")
    with kgray.open(tmp_path / "d", create=True, settings=settings(tmp_path, 2)) as memory:
        with pytest.raises(SettingsError, match=r"cannot load its model .* no room on the card"):
            memory.add("I like tea.", group="g")
        bad(
            tmp_path, models_0="ends"
        )  # the process of a worker ends while it loads; the other worker is healthy
        report = memory.add_many(rows(8))
        assert (report.committed, report.failed) == (9, 0)
        status = deployment_of(memory).status()["sequencer-0"]
        assert status["given_up"] == 0

        def quarantined() -> dict[str, str]:
            status = deployment_of(memory).status()
            return dict(status["sequencer-0"]["quarantined"])

        ended = "its process ended while it loaded its model"
        wait_for(lambda: quarantined().get("models-0", "").startswith(ended))
        bad(tmp_path)
        wait_for(lambda: quarantined() == {})
