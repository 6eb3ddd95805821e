"""A backfill through Ray during kills of all processes: the short form of `python -m bench chaos`."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from bench import chaos
from bench.kills import KillSchedule
from tests.world import WorldPlan
from tests.world.latency import Latency

EPISODES = 100
KINDS = ("writer", "worker", "sequencer", "server", "driver")


def _schedule(ray_session, plan: WorldPlan, kills, *, first_token_s: float, **options) -> KillSchedule:
    """Return a schedule for two shards and two workers on the Ray of the session."""
    from kgray.runtime.spec import LimitsProfile, Profile, SequencerProfile, WorkersProfile

    profile = Profile(
        sequencer=SequencerProfile(shards=2),
        extraction=WorkersProfile(workers=2, cpus=0.1),
        embedding=WorkersProfile(workers=0, cpus=0.1),
        limits=LimitsProfile(health_every_s=0.2, health_deadline_s=30.0),
    )
    return KillSchedule(
        plan=plan,
        kills=kills,
        latency=Latency(streams=6, first_token_s=first_token_s, tokens_per_s=0.0),
        window=24,
        limit_s=1200,  # a hung run ends the test; on a quiet machine it takes a fiftieth of it
        address=ray_session.address,
        profile=profile,
        **options,
    )


@pytest.mark.slow
@pytest.mark.ray
def test_a_backfill_with_kills_ends_like_an_undisturbed_backfill(ray_session) -> None:
    """Promises 1 and 2, R19-R24: the same graph, every episode ended once, epochs grow.

    Two sequencers feed one writer, each with its own epoch.
    """
    if find_spec("psutil") is None:
        pytest.skip("psutil is not installed")
    kills = [(10 + 16 * place, kind) for place, kind in enumerate(KINDS)]
    plan = WorldPlan(seed=5, episodes=EPISODES, entities=60, groups=3)
    schedule = _schedule(ray_session, plan, kills, first_token_s=0.2)

    outcome = chaos.run(schedule)

    assert outcome.faults == []
    assert [kill.kind for kill in outcome.log.kills] == list(KINDS)
    assert all(kill.back_s is not None for kill in outcome.log.kills)
    assert outcome.ledger == {"accepted": 0, "extracted": 0, "committed": EPISODES, "failed": 0}
    assert outcome.digest == outcome.expected
    first, last = zip(*((instants[0], instants[-1]) for instants in outcome.log.epochs.values()), strict=True)
    assert set(outcome.log.epochs) == {"sequencer-0", "sequencer-1", "writer-0 0", "writer-0 1"}
    assert max(last) > max(first)


@pytest.mark.slow
@pytest.mark.ray
def test_a_backfill_continues_during_changes_of_its_deployment(ray_session) -> None:
    """From 2 shards to 5 and back, and other settings: by commands that are killed and repeated."""
    kinds = ("scale-killed", "up-killed", "scale")
    kills = [(20 + 60 * place, kind) for place, kind in enumerate(kinds)]
    plan = WorldPlan(seed=5, episodes=300, entities=120, groups=6)
    schedule = _schedule(ray_session, plan, kills, first_token_s=0.3, shards=2)

    outcome = chaos.run(schedule)

    assert outcome.faults == []
    assert [kill.kind for kill in outcome.log.kills] == list(kinds)
    assert outcome.digest == outcome.expected


def test_at_most_a_fifth_of_the_kills_hits_driver_or_node() -> None:
    kinds = chaos.kinds_of(100, store_kills=20)

    assert len(kinds) == 120
    assert sum(kind in ("driver", "node") for kind in kinds) <= 20
    assert {kind: kinds.count(kind) >= 6 for kind in chaos.SHARES} == dict.fromkeys(chaos.SHARES, True)
    assert chaos.scheduled(1000, kinds, 3, outage=True) == chaos.scheduled(1000, kinds, 3, outage=True)
