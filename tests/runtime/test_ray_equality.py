"""One world through Ray in several ways gives the plain loop's graph: a tenth of `bench equality`."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import equality
from bench.engine import Way
from tests.ray_session import SMALL
from tests.world import WorldPlan

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]
# Each setup combines several properties: windows, chunks, lanes, kinds of models. A window of 1 is in
# test_ray_ingest, a truthful model in the chaos run.
EPISODES = 48
FEW_SETUPS = (
    Way(runtime="plain", model="wild"),
    Way(runtime="ray", window=64, chunk=1, model="wild", mixed=True),
    Way(runtime="plain", model="errors"),
)
ALL_SETUPS = (*FEW_SETUPS, Way(runtime="ray", window=64, chunk=16, model="errors", mixed=True))


@pytest.mark.parametrize("setups", [FEW_SETUPS, ALL_SETUPS], ids=["one", "all"])
@pytest.mark.slow  # by default test_ray_ingest compares the graphs
def test_every_way_of_ingestion_makes_the_graph_of_the_plain_loop(
    tmp_path: Path, setups: tuple[Way, ...]
) -> None:
    """Promise 1, R20-R21; different models must give different graphs, or equality proves nothing."""
    profile = tmp_path / "profile.toml"
    profile.write_text(SMALL.format(workers=1, embedders=0, shards=1))

    outcome = equality.run(
        WorldPlan(seed=3, episodes=EPISODES, entities=40, groups=2), setups=setups, profile=profile
    )

    assert [(run.way.name, run.way.model, outcome.equal(run)) for run in outcome.runs] == [
        (setup.name, setup.model, True) for setup in setups
    ]
    assert len(set(outcome.reference.values())) == 2
    assert {run.committed + run.failed for run in outcome.runs} == {EPISODES}
