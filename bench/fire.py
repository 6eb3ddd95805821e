"""What runs while things are killed: model server, Ray, actors, driver; and who kills and looks."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.places import Place, StoreKind
from bench.runs import Way, opened, settings_of
from bench.serving import Server, flags_of
from bench.victims import (
    STOPPED,
    Actors,
    ActorVictim,
    Away,
    Driver,
    NodeVictim,
    ServerVictim,
    StoreVictim,
    Victim,
)
from bench.world import Oracle, Plan, World
from bench.world.files import write
from bench.world.latency import Latency
from kgray.errors import Unavailable
from kgray.memory import Memory
from kgray.settings import Settings

if TYPE_CHECKING:
    from bench.simulated import SimulatedCluster
    from kgray.runtime.profile import Profile

_LATENCY = Latency(streams=12, first_token_s=0.15, tokens_per_s=100.0)
_WINDOW = 48
_LOOK_S = 0.1
_COUNT_EVERY_S = 1.0
_EPOCH_EVERY_S = 0.5
_DOWN_S = 1.0  # how long a killed model server stays away


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What is played. kills: kinds in their order; each comes when so many episodes are committed.

    address   of a Ray that runs; None = a simulated cluster of `nodes` worker nodes is started for this
    """

    plan: Plan
    kills: Sequence[tuple[int, str]]
    store: StoreKind = "sqlite"
    latency: Latency = _LATENCY
    window: int = _WINDOW
    outage_s: float = 0.0
    limit_s: float = 1800.0
    seed: int = 1
    nodes: int = 2
    address: str | None = None
    profile: Profile | None = None


@dataclass(slots=True)
class Kill:
    """One kill, in seconds; None = never.

    there_s   until another stood in its place
    back_s    until, with that, the run had committed more
    """

    kind: str
    at_s: float
    committed: int
    there_s: float | None = None
    back_s: float | None = None


@dataclass(slots=True)
class Log:
    """What was seen. epochs: by actor, in the order of seeing them; faults: why the play could not go on."""

    kills: list[Kill] = field(default_factory=list)
    wall_s: float = 0.0
    epochs: dict[str, list[int]] = field(default_factory=dict)
    driver_exits: list[int] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


class Stage:
    """Everything that runs: model server, Ray, actors, driver; and a reader of the store."""

    def __init__(self, scene: Scene, place: Place, folder: Path, ends: ExitStack) -> None:
        self._scene = scene
        self._counted_at = 0.0
        self.asked = folder / "asked.tsv"
        world = folder / "world.jsonl"
        write(scene.plan, world, None)
        latency = scene.latency
        flags = [
            *flags_of(Oracle(World(plan=scene.plan))),
            *("--streams", str(latency.streams), "--first-token-s", str(latency.first_token_s)),
            *("--tokens-per-s", str(latency.tokens_per_s), "--record", str(self.asked)),
        ]
        self.server = ends.enter_context(Server(flags))
        way = Way(runtime="ray", window=scene.window)
        more = {"model_max_concurrency": latency.streams}
        self.settings = settings_of(way, place, self.server.base_url, more)
        # The reader's: it must see the store and never start anything.
        self.reader: Memory = opened(
            settings_of(Way(), place, self.server.base_url, more), place.data, create=True
        )
        ends.callback(self.reader.close)
        cluster = ends.enter_context(_cluster(scene))
        address = scene.address or cluster.address  # type: ignore[union-attr]
        profile = scene.profile or cluster.profile  # type: ignore[union-attr]
        self._deployment = _deployed(self.settings, place.data, profile, address, ends)
        self.actors = Actors(self._deployment)
        self.driver = Driver([world], place.data, _environ(self.settings, address))
        away = Away()
        self.victims: dict[str, Victim] = {
            "writer": ActorVictim(self.actors, "writer"),
            "worker": ActorVictim(self.actors, "models", "embedder"),
            "sequencer": ActorVictim(self.actors, "sequencer"),
            "server": ServerVictim(self.server, _DOWN_S, away),
            "outage": ServerVictim(self.server, scene.outage_s, away),
            "driver": self.driver,
        }
        if cluster is not None:
            self.victims["node"] = NodeVictim(cluster, self.actors)
        if place.server is not None:
            self.victims["store"] = StoreVictim(place.server)

    def play(self, log: Log, progress: Callable[[str], None]) -> None:
        """Have the world ingested, and kill as scheduled; what stays away too long is a fault."""
        chance = random.Random(self._scene.seed)  # noqa: S311 - a choice of victims
        left, away = list(self._scene.kills), list[Kill]()
        since, committed, epoch_at = time.monotonic(), 0, 0.0
        self.driver.start()
        while True:
            now = time.monotonic() - since
            committed = self._committed(committed)
            away = [kill for kill in away if not self._is_back(kill, committed, now, progress)]
            if self._over(log, committed, now, left=left, away=away):
                break
            if left and committed >= left[0][0] and self.victims[left[0][1]].kill(chance):
                _, kind = left.pop(0)
                away.append(Kill(kind, now, committed))
                log.kills.append(away[-1])
            if now >= epoch_at:
                epoch_at = now + _EPOCH_EVERY_S
                self._note_epochs(log.epochs)
            time.sleep(_LOOK_S)
        log.wall_s = time.monotonic() - since
        log.driver_exits = self.driver.exits

    def _committed(self, last: int) -> int:
        """Return how many episodes have ended, as the store tells; the last number while it is away.

        A server is asked less often: on the machine of all the others it would be busy with that.
        """
        now = time.monotonic()
        if self._scene.store == "neo4j" and now < self._counted_at + _COUNT_EVERY_S:
            return last
        self._counted_at = now
        try:
            counts = self.reader.store.counts().values()
        except Unavailable:
            return last
        return sum(one.committed + one.failed for one in counts)

    def _is_back(self, kill: Kill, committed: int, now: float, progress: Callable[[str], None]) -> bool:
        if kill.there_s is None and self.victims[kill.kind].back():
            kill.there_s = round(now - kill.at_s, 2)
        done = committed >= self._scene.plan.episodes
        if kill.there_s is None or not (committed > kill.committed or done):
            return False
        kill.back_s = round(now - kill.at_s, 2)
        progress(
            f"{now:7.1f} s  {committed:>6} committed  {kill.kind} is back after {kill.back_s:.1f} s "
            f"(there after {kill.there_s:.1f} s)"
        )
        return True

    def _over(
        self,
        log: Log,
        committed: int,
        now: float,
        *,
        left: Sequence[tuple[int, str]],
        away: Sequence[Kill],
    ) -> bool:
        """Whether the play has ended: the driver says that all is done, or something is wrong for good."""
        code = self.driver.look()
        if now > self._scene.limit_s:
            log.faults.append(
                f"not done after {now:.0f} s: {committed} of {self._scene.plan.episodes} episodes, "
                f"{len(left)} kills to come, away: {', '.join(kill.kind for kill in away) or 'nothing'}"
            )
            return True
        if code is None:
            return False
        if code not in (0, STOPPED):
            log.faults.append(f"the driver ended with {code}: {self.driver.said[-300:]}")
            return True
        if code == 0 and not left and not away:
            return True
        if code == 0 and committed >= self._scene.plan.episodes and left:
            log.faults.append(f"{len(left)} kills did not fit: all was committed before")
            return True
        if code == STOPPED or left or away:
            self.driver.start()  # it gave up in an outage, or waits for what was killed
        return False

    def _note_epochs(self, epochs: dict[str, list[int]]) -> None:
        for kind in ("sequencer", "writer"):
            for name in self.actors.names(kind):
                told = self.actors.told(name)
                if told is not None and told["epoch"]:
                    epochs.setdefault(name, []).append(int(told["epoch"]))

    def end(self) -> None:
        """End driver and actors."""
        self.driver.stop()
        self._deployment.stop(1.0)


@contextmanager
def _cluster(scene: Scene) -> Iterator[SimulatedCluster | None]:
    if scene.address is not None:
        yield None
        return
    from bench.simulated import SimulatedCluster

    cluster = SimulatedCluster(scene.nodes)
    try:
        yield cluster
    finally:
        cluster.close()


def _deployed(settings: Settings, data: Path, profile: Profile, address: str, ends: ExitStack) -> Any:  # noqa: ANN401
    from kgray.runtime import session
    from kgray.runtime.deploy import ensure
    from kgray.runtime.terms import terms_of

    joined = session.join(address)
    ends.callback(joined.close)
    return ensure(terms_of(settings, data, profile.values()), detached=True, chosen=True)


def _environ(settings: Settings, address: str) -> dict[str, str]:
    """Return the variables that give a driver these settings."""
    model, runtime, store = settings.model, settings.runtime, settings.store
    found = {
        "KGRAY_MODEL_BACKEND": "openai",
        "KGRAY_MODEL_BASE_URL": str(model.base_url),
        "KGRAY_MODEL_NAME": str(model.name),
        "KGRAY_MODEL_CACHE_MB": str(model.cache_mb),
        "KGRAY_MODEL_MAX_CONCURRENCY": str(model.max_concurrency),
        "KGRAY_RUNTIME_BACKEND": "ray",
        "KGRAY_RUNTIME_ADDRESS": address,
        "KGRAY_RUNTIME_WINDOW": str(runtime.window),
        "KGRAY_RUNTIME_CHUNK_EPISODES": str(runtime.chunk_episodes),
        "KGRAY_RUNTIME_CHUNK_REQUESTS": str(runtime.chunk_requests),
        "KGRAY_STORE_BACKEND": store.backend,
    }
    if store.backend == "neo4j":
        found |= {"KGRAY_STORE_URI": str(store.uri), "KGRAY_STORE_USER": str(store.user)}
        found["KGRAY_STORE_PASSWORD"] = os.environ["KGRAY_STORE_PASSWORD"]
    return found
