"""`python -m bench chaos`: a backfill through Ray under random kills ends as the undisturbed one does."""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.empty_stores import empty_store
from bench.engine import Way, carry_out, given_of, opened, settings_of
from bench.kills import OF_NODES, Kill, KilledBackfill, KillLog, KillSchedule
from bench.processes import ServerProcess, flags_of, require_psutil
from bench.reading import digest, ledger, sequences
from kgray.errors import InputError
from tests.world import Oracle, World
from tests.world.model_server import record

# Shares of the kills; at most a fifth meets driver or node.
SHARES: Mapping[str, float] = {
    "writer": 0.25,
    "worker": 0.25,
    "sequencer": 0.20,
    "server": 0.12,
    "driver": 0.12,
    "node": 0.06,
}
EPISODES_A_KILL = 30
# A change of the number of shards, and of the settings, by a command that is killed and run again or not.
CHANGES = ("scale", "scale-killed", "up", "up-killed")
_FIRST, _LAST = 0.03, 0.92  # of the episodes: between them the kills come


@dataclass(slots=True)
class ChaosOutcome:
    """The outcome of a run with kills.

    repeated, bound   requests that were answered twice, and how many may have been in flight at the kills
    faults            broken promises, a line each; empty = all promises held
    """

    schedule: KillSchedule
    log: KillLog = field(default_factory=KillLog)
    digest: str = ""
    expected: str = ""
    ledger: dict[str, int] = field(default_factory=dict)
    asked: int = 0
    repeated: int = 0
    bound: int = 0
    faults: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Tell whether there are no faults."""
        return not self.faults

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        schedule, log = self.schedule, self.log
        return {
            "episodes": schedule.plan.episodes,
            "groups": schedule.plan.groups,
            "store": schedule.store,
            "kinds": summary(log.kills),
            "kills": [[k.kind, round(k.at_s, 2), k.committed, k.there_s, k.back_s] for k in log.kills],
            "wall_s": round(log.wall_s, 1),
            "hash": self.digest,
            "expected": self.expected,
            "ledger": self.ledger,
            "asked": self.asked,
            "repeated": self.repeated,
            "repeated_bound": self.bound,
            "epochs": {name: [epochs[0], epochs[-1]] for name, epochs in log.epochs.items()},
            "quarantined": log.quarantined,
            "driver_exits": log.driver_exits,
            "faults": self.faults,
            "holds": self.holds,
        }


def scheduled(episodes: int, kinds: Sequence[str], seed: int, *, outage: bool) -> list[tuple[int, str]]:
    """Return when each kill comes, in commits: at random places, in a random order; the outage half way."""
    chance = random.Random(seed)  # noqa: S311 - a schedule, no secret
    order = list(kinds)
    chance.shuffle(order)
    points = sorted(chance.randint(int(_FIRST * episodes), int(_LAST * episodes)) for _ in order)
    kills = [*zip(points, order, strict=True), *([(episodes // 2, "outage")] if outage else [])]
    return sorted(kills, key=lambda kill: kill[0])


def spread(episodes: int, changes: Sequence[str]) -> list[tuple[int, str]]:
    """Return when each change of the deployment begins, in commits: evenly. Raises InputError if unknown."""
    if unknown := set(changes) - {*CHANGES, "notice"}:
        raise InputError(f"--changes does not know {', '.join(sorted(unknown))}: see --help")
    return [(episodes * (1 + place) // (2 + len(changes)), kind) for place, kind in enumerate(changes)]


def kinds_of(kills: int, *, store_kills: int = 0, head_kills: int = 0, control_kills: int = 0) -> list[str]:
    """Return the kinds of kills in their shares, and the requested numbers of the other kinds."""
    kinds = [kind for kind, share in SHARES.items() for _ in range(int(kills * share))]
    process_kinds = [kind for kind in SHARES if kind not in ("driver", "node")]
    kinds += [process_kinds[number % len(process_kinds)] for number in range(kills - len(kinds))]
    kinds += [f"{kind}-node" for kind in ("sequencer", "writer") for _ in range(control_kills)]
    return [*kinds, *["store"] * store_kills, *["head"] * head_kills]


def run(schedule: KillSchedule, progress: Callable[[str], None] = lambda _: None) -> ChaosOutcome:
    """Carry out a schedule: the plain loop first, then the backfill under kills, then the verdict."""
    require_psutil()
    if schedule.plan.episodes < len(schedule.kills):
        raise InputError(f"{len(schedule.kills)} kills need more than {schedule.plan.episodes} episodes")
    if schedule.address is not None and {kind for _, kind in schedule.kills} & OF_NODES:
        raise InputError("a node can be killed only in a cluster that is started for it")
    outcome = ChaosOutcome(schedule)
    with tempfile.TemporaryDirectory(prefix="kgray-bench-") as name:
        folder = Path(name)
        outcome.expected = _undisturbed(schedule, folder / "undisturbed")
        progress(f"undisturbed: {outcome.expected[:12]}")
        with empty_store(schedule.store, folder / "data") as place, ExitStack() as ends:
            backfill = KilledBackfill(schedule, place, folder, ends, progress, outcome.log)
            try:
                backfill.run(outcome.log)
            finally:
                backfill.end()
            outcome.faults += outcome.log.faults
            if not outcome.faults:
                _judge(backfill, outcome)
    return outcome


def _undisturbed(schedule: KillSchedule, folder: Path) -> str:
    oracle, setup = Oracle(World(plan=schedule.plan)), Way(runtime="plain")
    with empty_store(schedule.store, folder) as place, ServerProcess(flags_of(oracle)) as server:
        memory = opened(settings_of(given_of(setup, place, server.base_url)), place.data)
        try:
            return carry_out(setup, memory, [episode.draft for episode in oracle.world]).digest
        finally:
            memory.close()


def _judge(backfill: KilledBackfill, outcome: ChaosOutcome) -> None:
    """Check the store, the epochs and the server's record against the promises."""
    faults, schedule, store = outcome.faults, outcome.schedule, backfill.reader.store
    outcome.digest = asyncio.run(digest(backfill.reader))
    if outcome.digest != outcome.expected:
        faults.append(f"the graph is {outcome.digest[:12]}, undisturbed it is {outcome.expected[:12]}")
    for group in store.heads():
        stored = sequences(store, group)
        if stored != sorted(set(stored)):
            faults.append(f"group {group}: an episode ended more than once")
        faults += [f"group {group}: {line}" for line in asyncio.run(backfill.reader.admin.verify(group))[:3]]
    outcome.ledger = ledger(store)
    if outcome.ledger != {"accepted": 0, "extracted": 0, "committed": schedule.plan.episodes, "failed": 0}:
        faults.append(f"the ledger is {json.dumps(outcome.ledger)}, of {schedule.plan.episodes} episodes")
    named = max(
        (line.count("models-") for line in outcome.log.started if line.startswith("not up yet")), default=0
    )
    if named < schedule.missing:
        faults.append(
            f"{schedule.missing} workers were missing, and {named} were named: {outcome.log.started}"
        )
    faults += _broken_faults(schedule, outcome.log)
    faults += backfill.missed_cuts(outcome.log)
    for name, epochs in outcome.log.epochs.items():
        if epochs != sorted(epochs):
            faults.append(f"the epoch of {name} went back: {epochs}")
    answers = Counter(row.request for row in record.read(backfill.answers_path) if row.task != "probe")
    outcome.asked = answers.total()
    outcome.repeated = outcome.asked - len(answers)
    outcome.bound = sum(_in_flight(kill.kind, schedule) for kill in outcome.log.kills)
    if outcome.repeated > outcome.bound:
        faults.append(f"{outcome.repeated} requests were answered twice; {outcome.bound} were in flight")


def _broken_faults(schedule: KillSchedule, log: KillLog) -> list[str]:
    """Return a line for each broken promise about workers that cannot load their model."""
    faults, quarantined = [], [*log.quarantined]
    if quarantined != schedule.broken_names:
        faults.append(f"{schedule.broken_names} cannot load their model; status names {quarantined}")
    if log.read_by_broken:
        faults.append(f"workers without a model read {log.read_by_broken} episodes")
    return faults


def _in_flight(kind: str, schedule: KillSchedule) -> int:
    """Return how many answered requests a kill may have lost.

    The death of a writer or a driver loses none. The next episode of each group may have waited for an answer
    of the killed worker, which is requested again once. A sequencer or a store can lose a window.
    """
    next_episodes = schedule.plan.groups
    if kind in CHANGES:  # deciders drop or end windows; replaced workers give their calls back
        return 2 * (schedule.window + next_episodes) + schedule.latency.streams
    if kind in ("sequencer", "sequencer-node", "store"):
        return schedule.window + next_episodes
    lost = 0 if kind in ("writer", "writer-node", "driver", "head", "arrival") else schedule.latency.streams
    return next_episodes + lost


def summary(kills: Sequence[Kill]) -> dict[str, dict[str, Any]]:
    """Return kills and recovery by kind, in seconds; None = one never came back."""
    rows: dict[str, dict[str, Any]] = {}
    for kind in dict.fromkeys(kill.kind for kill in kills):
        durations = [kill.back_s for kill in kills if kill.kind == kind]
        finite = sorted(seconds for seconds in durations if seconds is not None)
        rows[kind] = {
            "kills": len(durations),
            "median_s": finite[len(finite) // 2] if finite else None,
            "longest_s": finite[-1] if len(finite) == len(durations) else None,
        }
    return rows


def table(outcome: ChaosOutcome) -> str:
    """Return the figures for people."""
    log, plan = outcome.log, outcome.schedule.plan
    lines = [f"{'killed':<10} {'kills':>5} {'median':>8} {'longest':>8}  until it was back and more was done"]
    for kind, row in summary(log.kills).items():
        cells = [
            f"{row[key]:.1f} s" if row[key] is not None else "never" for key in ("median_s", "longest_s")
        ]
        lines.append(f"{kind:<10} {row['kills']:>5} {cells[0]:>8} {cells[1]:>8}")
    epochs = ", ".join(
        f"{name} {epochs_of_actor[0]} to {epochs_of_actor[-1]}"
        for name, epochs_of_actor in log.epochs.items()
    )
    verdict = [f"FAULT: {fault}" for fault in outcome.faults]
    lines += [
        f"{plan.episodes} episodes in {log.wall_s:.0f} s; epochs: {epochs or 'not seen'}",
        f"{outcome.asked} requests answered, {outcome.repeated} twice (at most {outcome.bound} in flight)",
        *(f"quarantined: {reason}" for reason in log.quarantined.values()),
        *(verdict or ["the undisturbed graph; every episode ended once; nothing was lost"]),
    ]
    return "\n".join(lines)
