"""A backfill while processes are killed: the run, the schedule of kills, and the observations."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench.empty_stores import EmptyStore, StoreKind
from bench.engine import Way, deployed, environ_of, given_of, opened, settings_of
from bench.processes import ChildProcess, ServerProcess, flags_of, options_of, redis_server
from bench.reading import ledger
from bench.targets import (
    Actors,
    ActorTarget,
    CommandTarget,
    Driver,
    DriverTarget,
    OutageTarget,
    RestartedTarget,
    Target,
)
from kgray.errors import STOPPED, Unavailable
from kgray.memory import AsyncMemory
from kgray.storage.ledger import failures
from tests.world import Latency, Oracle, World, WorldPlan
from tests.world.files import write

if TYPE_CHECKING:
    from bench.simulated import SimulatedCluster
    from kgray.runtime.spec import Profile

_LATENCY = Latency(streams=12, first_token_s=0.15, tokens_per_s=100.0)
_DOWN_S = 1.0  # how long a killed model server stays away
_HEAD_AWAY_S = 5.0  # and a killed head, which Kubernetes starts again
_NOTICE_S = 10.0  # before the end of a preempted node
_MORE_SHARDS = 5  # a change of the number of shards goes there, the next one back
_LOOK_S = 0.1
_COUNT_EVERY_S = 1.0
_EPOCH_EVERY_S = 0.5
_NAMED_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KillSchedule:
    """The schedule of kills. kills: kinds in order, each with the number of committed episodes before it.

    missing   reading workers without room on any node until the kill "arrival"
    broken    number of the last reading workers that cannot load their model
    address   of a Ray that runs; None = a simulated cluster of `nodes` worker nodes is started for this
    """

    plan: WorldPlan
    kills: Sequence[tuple[int, str]]
    store: StoreKind = "sqlite"
    latency: Latency = _LATENCY
    window: int = 48
    outage_s: float = 0.0
    limit_s: float = 1800.0
    seed: int = 1
    nodes: int = 2
    workers: int = 2
    missing: int = 0
    broken: int = 0
    shards: int = 1
    address: str | None = None
    profile: Profile | None = None

    @property
    def broken_names(self) -> list[str]:
        """The workers that cannot load their model."""
        return [f"models-{number}" for number in range(self.workers - self.broken, self.workers)]


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
class KillLog:
    """The observations of a run.

    started   lines on the start of the actors, which name who is missing
    epochs    by actor, in the order of seeing them
    quarantined      workers that `kgray status` names at the end, with its reasons
    read_by_broken   extractions by workers that cannot load their model
    faults    reasons why the run could not continue
    """

    kills: list[Kill] = field(default_factory=list)
    wall_s: float = 0.0
    started: list[str] = field(default_factory=list)
    epochs: dict[str, list[int]] = field(default_factory=dict)
    driver_exits: list[int] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    quarantined: dict[str, str] = field(default_factory=dict)
    read_by_broken: int = 0


class KilledBackfill:
    """Everything that runs: model server, Ray, actors, driver; and a reader of the store."""

    def __init__(
        self,
        schedule: KillSchedule,
        place: EmptyStore,
        folder: Path,
        ends: ExitStack,
        progress: Callable[[str], None],
        log: KillLog,
    ) -> None:
        """Start all but the driver; `ends` ends them."""
        self._schedule, self._progress = schedule, progress
        self._counted_at, self._log_offset = 0.0, 0
        self._owners: Sequence[int] = ()  # of the slots, before a change of their number
        self.answers_path, world = folder / "asked.tsv", folder / "world.jsonl"
        write(schedule.plan, world, None)
        latency = schedule.latency
        server = ends.enter_context(ServerProcess(_server_flags(schedule, self.answers_path)))
        # The reader must see the store and never start anything: it is a local one.
        local = given_of(Way(), place, server.base_url)
        self.reader: AsyncMemory = opened(settings_of(local), place.data)
        ends.callback(self.reader.close)
        cluster = ends.enter_context(_cluster(schedule, folder))
        address = schedule.address or cluster.address  # type: ignore[union-attr]
        setup = Way(runtime="ray", window=schedule.window)
        settings_table = given_of(setup, place, server.base_url, model_max_concurrency=latency.streams)
        from kgray.runtime import lifecycle, session

        ends.callback(session.join(address).close)
        profile = schedule.profile or cluster.profile  # type: ignore[union-attr]
        joined = settings_of({**settings_table, "runtime_address": address})
        self._status = partial(lifecycle.status, joined, place.data)
        deployment = deployed(settings_of(settings_table), place.data, profile, tell=log.started.append)
        self._deployment = deployment
        self.actors = Actors(deployment)
        environ = environ_of({**settings_table, "runtime_address": address})
        self.driver = Driver([world], place.data, environ)
        of_server = RestartedTarget(lambda _: server.kill(), server.start, down_s=_DOWN_S)
        self.targets: dict[str, Target] = {
            "writer": ActorTarget(self.actors, "writer"),
            "worker": ActorTarget(self.actors, "models", "embedder"),
            "sequencer": ActorTarget(self.actors, "sequencer"),
            "server": of_server,
            "outage": OutageTarget(of_server, schedule.outage_s),
            "driver": DriverTarget(self.driver),
        }
        self.targets |= self._changes(place.data, environ)
        if cluster is not None:
            self.targets |= _targets_of(cluster, self.actors, schedule.missing)
        if (database := place.server) is not None:
            self.targets["store"] = RestartedTarget(lambda _: database.kill(), database.start)

    def _changes(self, data: Path, environ: Mapping[str, str]) -> dict[str, Target]:
        """Return the changes of the running deployment, undisturbed, and killed and run again."""
        log, first, environ = data.parent / "changes.log", self._schedule.shards, dict(environ)

        def scaled() -> Iterator[ChildProcess]:
            for number in itertools.cycle((_MORE_SHARDS, first)):
                words = ["scale", "--shards", str(number), "--data", str(data)]
                self._owners = self.reader.store.shard_map().owners
                yield ChildProcess("kgray", words, environ=environ, log=log)

        def updated() -> Iterator[ChildProcess]:
            for number in itertools.count(1):
                variables = {"KGRAY_MODEL_TIMEOUT_S": str(60 + number)}
                variables["KGRAY_RUNTIME_WINDOW"] = str(self._schedule.window // 2 + number)
                self.driver.use(variables)  # later commands have the new settings
                environ.update(variables)
                self._log_offset = log.stat().st_size if log.exists() else 0
                yield ChildProcess("kgray", ["up", "--data", str(data)], environ=environ, log=log)

        def has_moved() -> bool:
            return bool(self.reader.store.shard_map().owners != self._owners)

        def has_replaced() -> bool:
            return b"replacing models" in log.read_bytes()[self._log_offset :]

        scales, updates, end = scaled(), updated(), self.actors.refresh
        targets = {
            "scale": CommandTarget(scales, log, end),
            "scale-killed": CommandTarget(scales, log, end, has_moved),
            "up": CommandTarget(updates, log, end),
            "up-killed": CommandTarget(updates, log, end, has_replaced),
        }
        for target in targets.values():
            target.siblings = [*targets.values()]
        return {**targets}

    def run(self, log: KillLog) -> None:
        """Ingest the world, and kill as scheduled; a target that stays away too long is a fault."""
        chance = random.Random(self._schedule.seed)  # noqa: S311 - a choice of targets
        remaining, away = list(self._schedule.kills), list[Kill]()
        started, committed, epoch_at = time.monotonic(), 0, 0.0
        self.driver.start()
        while True:
            elapsed = time.monotonic() - started
            committed = self._committed(committed)
            away = [kill for kill in away if not self._is_back(kill, committed, elapsed)]
            if self._over(log, committed, elapsed, remaining=remaining, away=away):
                break
            if remaining and committed >= remaining[0][0] and self.targets[remaining[0][1]].kill(chance):
                _, kind = remaining.pop(0)
                away.append(Kill(kind, elapsed, committed))
                log.kills.append(away[-1])
            if elapsed >= epoch_at:
                epoch_at = elapsed + _EPOCH_EVERY_S
                self._note_epochs(log.epochs)
                log.read_by_broken = max(log.read_by_broken, self._read_by_broken())
            time.sleep(_LOOK_S)
        log.wall_s = time.monotonic() - started
        log.driver_exits = self.driver.exits
        deadline = time.monotonic() + _NAMED_S  # a new sequencer names them after two looks
        while len(log.quarantined) < self._schedule.broken and time.monotonic() < deadline:
            log.quarantined = dict(self._status().get("quarantined", {}))
            time.sleep(_LOOK_S)

    def _committed(self, last: int) -> int:
        """Return how many episodes have ended, as the store tells; the last number while it is away.

        A server is asked less often: on the machine of all the others it would be busy with that.
        """
        clock = time.monotonic()
        if self._schedule.store == "neo4j" and clock < self._counted_at + _COUNT_EVERY_S:
            return last
        self._counted_at = clock
        try:
            states = ledger(self.reader.store)
        except Unavailable:
            return last
        return states["committed"] + states["failed"]

    def _is_back(self, kill: Kill, committed: int, elapsed: float) -> bool:
        if kill.there_s is None and self.targets[kill.kind].back():
            kill.there_s = round(elapsed - kill.at_s, 2)
        is_complete = committed >= self._schedule.plan.episodes
        if kill.there_s is None or not (committed > kill.committed or is_complete):
            return False
        kill.back_s = round(elapsed - kill.at_s, 2)
        self._progress(
            f"{elapsed:7.1f} s  {committed:>6} committed  {kill.kind} is back after {kill.back_s:.1f} s "
            f"(there after {kill.there_s:.1f} s)"
        )
        return True

    def _over(
        self,
        log: KillLog,
        committed: int,
        elapsed: float,
        *,
        remaining: Sequence[tuple[int, str]],
        away: Sequence[Kill],
    ) -> bool:
        """Tell whether the run has ended: the driver is done, or a fault is permanent."""
        code, episodes = self.driver.ended(), self._schedule.plan.episodes
        if elapsed > self._schedule.limit_s:
            missing = ", ".join(kill.kind for kill in away) or "nothing"
            log.faults.append(
                f"not done after {elapsed:.0f} s: {committed} of {episodes} episodes, "
                f"{len(remaining)} kills to come, away: {missing}"
            )
        elif code is None:
            return False
        elif code not in (0, STOPPED):
            failed = (row.failure for row in failures(self.reader.store))
            why = "; ".join(f"{failure.kind}: {failure.message}" for failure in failed)
            log.faults.append(f"the driver ended with {code}: {why or self.driver.last_lines()}")
        elif code == 0 and committed >= episodes and remaining:
            log.faults.append(f"{len(remaining)} kills did not fit: all was committed before")
        elif code == STOPPED or remaining or away:
            self.driver.start()  # it gave up in an outage, or waits for the killed processes
            return False
        return True

    def missed_cuts(self, log: KillLog) -> list[str]:
        """Return a line for each kind of command that was not always killed midway."""
        lines = []
        for kind, target in self.targets.items():
            if isinstance(target, CommandTarget) and kind.endswith("-killed"):
                changes = sum(kill.kind == kind for kill in log.kills)
                if target.cuts < changes:
                    lines.append(f"{target.cuts} of {changes} commands were killed midway ({kind})")
        return lines

    def _read_by_broken(self) -> int:
        stats = [self.actors.stats(name) for name in self._schedule.broken_names]
        return sum(row["read"] for row in stats if row is not None)

    def _note_epochs(self, epochs: dict[str, list[int]]) -> None:
        for name in self.actors.names("sequencer", "writer"):
            stats = self.actors.stats(name)
            for shard, epoch in (stats or {}).get("epochs", {"": (stats or {}).get("epoch")}).items():
                if epoch:
                    epochs.setdefault(f"{name} {shard}".strip(), []).append(int(epoch))

    def end(self) -> None:
        """End driver and actors."""
        self.driver.stop()
        self._deployment.stop(1.0)


def _server_flags(schedule: KillSchedule, record: Path) -> list[str]:
    names = ("streams", "first_token_s", "tokens_per_s")
    speed = {name: getattr(schedule.latency, name) for name in names}
    return flags_of(Oracle(World(plan=schedule.plan))) + options_of({**speed, "record": record})


# The targets that need a cluster of the bench: the keys of `_targets_of`.
OF_NODES = frozenset(("node", "arrival", "notice", "sequencer-node", "writer-node", "head"))


def _targets_of(cluster: SimulatedCluster, actors: Actors, missing: int) -> dict[str, Target]:
    arrived = not missing

    def work() -> bool:
        answering = [name for name in actors.names("models", "embedder") if actors.stats(name) is not None]
        return len(answering) >= len(actors.names("models", "embedder")) - (0 if arrived else missing)

    def arrive() -> None:
        nonlocal arrived
        arrived = True
        cluster.add()

    def target_of(kind: str) -> RestartedTarget:
        def end(_: random.Random) -> None:
            while (stats := actors.stats(f"{kind}-0")) is None:
                time.sleep(_LOOK_S)
            cluster.kill_under(stats["pid"])

        return RestartedTarget(end, cluster.add_control, answers=lambda: actors.all_answer(kind))

    return {
        "node": RestartedTarget(cluster.kill, cluster.add, answers=work),
        "arrival": RestartedTarget(lambda _: None, arrive, answers=work),
        "notice": RestartedTarget(
            lambda chance: cluster.give_notice(chance, _NOTICE_S),
            cluster.end_noticed,
            down_s=_NOTICE_S,
            answers=work,
        ),
        "sequencer-node": target_of("sequencer"),
        "writer-node": target_of("writer"),
        "head": RestartedTarget(lambda _: cluster.kill_head(), cluster.start_head, down_s=_HEAD_AWAY_S),
    }


@contextmanager
def _cluster(schedule: KillSchedule, folder: Path) -> Iterator[SimulatedCluster | None]:
    if schedule.address is not None:
        yield None
        return
    from bench.simulated import SimulatedCluster

    kinds = {kind for _, kind in schedule.kills}
    with ExitStack() as ends:
        redis = ends.enter_context(redis_server(folder)) if "head" in kinds else None
        cluster = SimulatedCluster(
            schedule.nodes,
            workers=schedule.workers,
            missing=schedule.missing,
            broken=schedule.broken_names,
            shards=schedule.shards,
            apart=bool({"sequencer-node", "writer-node"} & kinds),
            redis=redis,
        )
        ends.callback(cluster.close)
        yield cluster
