"""Reports of the sequencers to a run: its own steps once, its own reasons, its own totals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from kgray.errors import Unavailable
from kgray.ports.ingest import Totals
from kgray.runtime.ingest import Follower
from kgray.system.outages import OUTAGES

Step = tuple[str, int, str]


class FakeDeployment:
    """A deployment of one sequencer that reports scripted steps; no process is behind it."""

    def __init__(self, *, fresh: bool) -> None:
        self.fresh = fresh
        self.sequencers = ["sequencer-0"]
        self.steps: list[Step] = []
        self.committed = self.given_up = 0
        self.pid, self.shards, self.is_away = 1, 1, False

    def resume(self) -> None:
        """Nothing stands still."""

    async def news(self, starts: Mapping[int, int]) -> list[dict[str, Any]]:
        if self.is_away:
            raise Unavailable("a sequencer does not answer")
        return [
            {
                "shard": shard,
                "pid": self.pid,
                "steps": self.steps[starts.get(shard, 0) :],
                "posting": False,
                "stepped": len(self.steps),
                "totals": asdict(Totals(committed=self.committed)),
                "given_up": self.given_up,
                "reason": "the model is away" if self.given_up else "",
                "waits_for": "",
                "waits": [],
                "fault": None,
            }
            for shard in range(self.shards)
        ]

    def step(self, *sequences: int) -> None:
        self.steps += [("g", n, "committed") for n in sequences]
        self.committed += len(sequences)

    def die(self) -> None:
        """Another process takes its place, which knows of nothing before it."""
        self.pid += 1
        self.steps, self.committed, self.given_up = [], 0, 0


def follow(fake: FakeDeployment, own_sequences: range) -> tuple[Follower, list[int]]:
    heard: list[int] = []
    deployment: Any = fake
    result = Follower(
        deployment, lambda _, n: n in own_sequences, lambda _, n, __: heard.append(n), lambda _: None
    )
    return result, heard


async def test_a_running_service_reports_only_earlier_steps_of_the_run() -> None:
    """A service keeps the steps of all runs; only some steps from before the first look are this run's."""
    fake = FakeDeployment(fresh=False)
    fake.step(1, 2, 3)
    following, heard = follow(fake, range(3, 6))
    fake.given_up = 2  # an outage of last night

    assert await following.look() == ""
    fake.step(4, 5)
    assert await following.look() == ""

    assert heard == [3, 4, 5]
    assert (await following.totals()).committed == 2


async def test_all_steps_of_a_fresh_service_belong_to_the_run() -> None:
    fake = FakeDeployment(fresh=True)
    fake.step(1, 2)
    fake.given_up = 1
    following, heard = follow(fake, range(0))

    assert await following.look() == "the model is away"

    assert heard == [1, 2]
    assert (await following.totals()).committed == 2


async def test_a_restarted_sequencer_is_followed_from_its_start() -> None:
    """Also if it has done more than its predecessor, whose outages do not hide its own."""
    fake = FakeDeployment(fresh=False)
    fake.given_up = 3
    following, heard = follow(fake, range(0))
    await following.look()
    fake.step(1, 2)
    await following.look()
    fake.die()
    fake.step(3, 4, 5)

    assert await following.look() == ""
    assert await following.look() == ""
    fake.given_up = 1
    assert await following.look() == "the model is away"

    assert heard == [1, 2, 3, 4, 5]
    assert (await following.totals()).committed == 5


async def test_an_outage_ends_with_the_first_answer_after_reconnecting() -> None:
    fake = FakeDeployment(fresh=False)
    following, _ = follow(fake, range(0))
    fake.is_away = True
    await following.look()
    assert [outage.what for outage in OUTAGES.current()] == ["the sequencer in Ray"]
    following.follow(following.deployment)
    fake.is_away = False

    await following.look()

    assert not OUTAGES.current()


async def test_a_shard_added_during_a_run_is_followed() -> None:
    fake = FakeDeployment(fresh=False)
    following, heard = follow(fake, range(3))
    fake.step(1, 2)
    await following.look()
    fake.shards = 2  # the second shard reports the same steps
    following.follow(following.deployment)

    assert await following.look() == ""

    assert heard == [1, 2, 1, 2]
