"""`kgray bench chaos`: a backfill through Ray under random kills ends as the undisturbed one does."""

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

from kgray.bench import processes
from kgray.bench.equality import PLAIN
from kgray.bench.fire import Kill, Log, Scene, Stage
from kgray.bench.model_server import record
from kgray.bench.places import Places, places
from kgray.bench.runs import carry_out, digest, opened, settings_of
from kgray.bench.serving import flags_of, serving
from kgray.bench.world import Oracle, World
from kgray.errors import InputError
from kgray.ledger import dumped_episodes

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
_FIRST, _LAST = 0.03, 0.92  # of the episodes: between them the kills come


@dataclass(slots=True)
class Outcome:
    """What came of it.

    repeated, bound   requests that were answered twice, and how many may have been in flight at the kills
    faults            what is wrong, one line each; none = the promises held
    """

    scene: Scene
    log: Log = field(default_factory=Log)
    digest: str = ""
    expected: str = ""
    ledger: dict[str, int] = field(default_factory=dict)
    asked: int = 0
    repeated: int = 0
    bound: int = 0
    faults: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether nothing is wrong."""
        return not self.faults

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        scene, log = self.scene, self.log
        return {
            "episodes": scene.plan.episodes,
            "groups": scene.plan.groups,
            "store": scene.store,
            "kinds": summary(log.kills),
            "kills": [[k.kind, round(k.at_s, 2), k.committed, k.there_s, k.back_s] for k in log.kills],
            "wall_s": round(log.wall_s, 1),
            "hash": self.digest,
            "expected": self.expected,
            "ledger": self.ledger,
            "asked": self.asked,
            "repeated": self.repeated,
            "repeated_bound": self.bound,
            "epochs": {name: [seen[0], seen[-1]] for name, seen in log.epochs.items()},
            "driver_exits": log.driver_exits,
            "faults": self.faults,
            "holds": self.holds,
        }


def scheduled(episodes: int, kinds: Sequence[str], seed: int, *, outage: bool) -> list[tuple[int, str]]:
    """Return when each kill comes, in commits: at random places, in a random order; the outage half way."""
    dice = random.Random(seed)  # noqa: S311 - a schedule, no secret
    order = list(kinds)
    dice.shuffle(order)
    points = sorted(dice.randint(int(_FIRST * episodes), int(_LAST * episodes)) for _ in order)
    kills = list(zip(points, order, strict=True))
    return sorted([*kills, *([(episodes // 2, "outage")] if outage else [])], key=lambda kill: kill[0])


def kinds_of(kills: int, *, store_kills: int = 0) -> list[str]:
    """Return so many kinds, in their shares."""
    found = [kind for kind, share in SHARES.items() for _ in range(int(kills * share))]
    rest = [kind for kind in SHARES if kind not in ("driver", "node")]
    found += [rest[number % len(rest)] for number in range(kills - len(found))]
    return [*found, *["store"] * store_kills]


def run(scene: Scene, progress: Callable[[str], None] = lambda _: None) -> Outcome:
    """Play a scene: the plain loop first, then the backfill under fire, then the verdict."""
    processes.require_psutil()
    if scene.plan.episodes < len(scene.kills):
        raise InputError(f"{len(scene.kills)} kills need more than {scene.plan.episodes} episodes")
    if scene.address is not None and any(kind == "node" for _, kind in scene.kills):
        raise InputError("a node can be killed only in a cluster that is started for it")
    outcome = Outcome(scene)
    with (
        tempfile.TemporaryDirectory(prefix="kgray-bench-") as name,
        places(scene.store, Path(name)) as rooms,
    ):
        folder = Path(name)
        outcome.expected = _undisturbed(scene, rooms)
        progress(f"undisturbed: {outcome.expected[:12]}")
        with rooms.fresh("data") as place, ExitStack() as ends:
            stage = Stage(scene, place, folder, ends)
            try:
                stage.play(outcome.log, progress)
            finally:
                stage.end()
            outcome.faults += outcome.log.faults
            if not outcome.faults:
                _judge(stage, outcome)
    return outcome


def _undisturbed(scene: Scene, rooms: Places) -> str:
    oracle = Oracle(World(plan=scene.plan))
    with rooms.fresh("undisturbed") as place, serving(flags_of(oracle)) as base_url:
        memory = opened(settings_of(PLAIN, place, base_url), place.data)
        try:
            return carry_out(PLAIN, memory, [episode.draft for episode in oracle.world]).digest
        finally:
            memory.close()


# ------------------------------------------------------------------------------- the verdict


def _judge(stage: Stage, outcome: Outcome) -> None:
    """Hold the store, the epochs and the server's record against what was promised."""
    faults, scene, store = outcome.faults, outcome.scene, stage.reader.store
    outcome.digest = asyncio.run(digest(stage.reader))
    if outcome.digest != outcome.expected:
        faults.append(f"the graph is {outcome.digest[:12]}, undisturbed it is {outcome.expected[:12]}")
    for group, counts in store.counts().items():
        for state in ("accepted", "extracted", "committed", "failed"):
            outcome.ledger[state] = outcome.ledger.get(state, 0) + getattr(counts, state)
        sequences = [episode.sequence for episode in dumped_episodes(store, group)]
        if sequences != sorted(set(sequences)):
            faults.append(f"group {group}: an episode ended more than once")
        faults += [f"group {group}: {line}" for line in asyncio.run(stage.reader.verify(group))[:3]]
    if outcome.ledger != {"accepted": 0, "extracted": 0, "committed": scene.plan.episodes, "failed": 0}:
        faults.append(f"the ledger is {json.dumps(outcome.ledger)}, of {scene.plan.episodes} episodes")
    for name, seen in outcome.log.epochs.items():
        if seen != sorted(seen):
            faults.append(f"the epoch of {name} went back: {seen}")
    answers = Counter(row.request for row in record.read(stage.asked) if row.task != "probe")
    outcome.asked = answers.total()
    outcome.repeated = outcome.asked - len(answers)
    outcome.bound = sum(_in_flight(kill.kind, scene) for kill in outcome.log.kills)
    if outcome.repeated > outcome.bound:
        faults.append(f"{outcome.repeated} requests were answered twice; {outcome.bound} were in flight")


def _in_flight(kind: str, scene: Scene) -> int:
    """Return how many requests a kill may have had answered for nothing.

    A writer's and a driver's death lose none; a head of line that waited for the death of others is asked
    once more (late). What a sequencer or a store out of reach had in hand is a window.
    """
    late = scene.plan.groups
    if kind in ("sequencer", "store"):
        return scene.window + late
    return late + (0 if kind in ("writer", "driver") else scene.latency.streams)


def summary(kills: Sequence[Kill]) -> dict[str, dict[str, Any]]:
    """Return kills and recovery by kind, in seconds; None = one never came back."""
    found: dict[str, dict[str, Any]] = {}
    for kind in dict.fromkeys(kill.kind for kill in kills):
        own = [kill.back_s for kill in kills if kill.kind == kind]
        known = sorted(seconds for seconds in own if seconds is not None)
        found[kind] = {
            "kills": len(own),
            "median_s": known[len(known) // 2] if known else None,
            "longest_s": known[-1] if len(known) == len(own) else None,
        }
    return found


def table(outcome: Outcome) -> str:
    """Return the figures for people."""
    log, plan = outcome.log, outcome.scene.plan
    lines = [f"{'killed':<10} {'kills':>5} {'median':>8} {'longest':>8}  until it was back and more was done"]
    for kind, row in summary(log.kills).items():
        shown = [
            f"{row[key]:.1f} s" if row[key] is not None else "never" for key in ("median_s", "longest_s")
        ]
        lines.append(f"{kind:<10} {row['kills']:>5} {shown[0]:>8} {shown[1]:>8}")
    epochs = ", ".join(f"{name} {seen[0]} to {seen[-1]}" for name, seen in log.epochs.items())
    verdict = [f"FAULT: {fault}" for fault in outcome.faults]
    lines += [
        f"{plan.episodes} episodes in {log.wall_s:.0f} s; epochs: {epochs or 'not seen'}",
        f"{outcome.asked} requests answered, {outcome.repeated} twice (at most {outcome.bound} in flight)",
        *(verdict or ["the undisturbed graph; every episode ended once; nothing was lost"]),
    ]
    return "\n".join(lines)
