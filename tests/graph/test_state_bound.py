"""The states in memory obey their bound while all of them grow (design section 5)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from kgray.ingest.runner import Runner
from tests.graph.engine import Engine
from tests.graph.test_runner import drafts

GROUPS = 4
BOUND = 3 << 18  # bytes; a group that is being worked at is never dropped, and takes less


@pytest.mark.slow  # test_state_loads drops a state by default
def test_growing_states_of_groups_stay_within_the_memory_bound(tmp_path: Path) -> None:
    """Nothing is loaded while they grow: their sizes are updated by commits. The graph is the same."""
    sizes: list[int] = []
    dumps = []
    for name, bound in (("free", 1 << 30), ("bound", BOUND)):
        engine = Engine(tmp_path / name)
        engine.accept(*drafts(3, 160, GROUPS))
        runner = Runner(replace(engine.parts, window=16, streams=4, state_bytes=bound))
        with engine.store.writing():
            assert asyncio.run(runner.run()).committed == 160
        sizes.append(runner.committer.size())
        dumps.append({group: engine.dump(group=group) for group in engine.groups()})

    free, bounded = sizes
    assert free > 2 * BOUND, "the bound was never in reach: nothing is tested"
    assert bounded <= BOUND
    assert dumps[0] == dumps[1]
