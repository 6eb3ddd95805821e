"""`python -m bench equality`: one world, one order, many ways to ingest it, one graph (promise 1)."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.empty_stores import StoreKind, empty_store
from bench.engine import Way, WayRun, carry_out, given_of, one_ray, opened, settings_of
from bench.processes import ServerProcess, flags_of
from bench.world import Errors, Oracle, World, WorldPlan
from kgray.errors import InputError

_RATE = 0.1  # errors of meaning, of each kind
SHUFFLED = "shuffled"  # the true model, whose answers come in random order
# What a server answers by, by model: flags beside those of the world. A model's reference is its plain loop.
MODELS: dict[str, tuple[str, ...]] = {
    "true": (),
    SHUFFLED: ("--shuffle-s", "0.2"),
    "wild": ("--wild",),
    "errors": (),
}
WAYS: tuple[Way, ...] = (
    Way(runtime="plain"),
    Way(window=8),
    Way(window=64),
    Way(window=64, model=SHUFFLED),
    Way(window=64, mixed=True),
    *(Way(runtime="ray", window=window, chunk=chunk) for window in (1, 8, 64) for chunk in (1, 16)),
    Way(runtime="ray", window=8, model=SHUFFLED),
    Way(runtime="ray", window=64, model=SHUFFLED),
    Way(runtime="ray", window=64, mixed=True),
    *(
        way
        for model in ("wild", "errors")
        for way in (
            Way(runtime="plain", model=model),
            Way(window=64, model=model),
            Way(runtime="ray", window=1, chunk=16, model=model),
            Way(runtime="ray", window=64, chunk=1, model=model),
            Way(runtime="ray", window=64, chunk=16, model=model, mixed=True),
        )
    ),
)


@dataclass(slots=True)
class EqualityResult:
    """The ways of one world. reference: by model, the plain loop's hash."""

    plan: WorldPlan
    store: StoreKind
    runs: list[WayRun] = field(default_factory=list)
    reference: dict[str, str] = field(default_factory=dict)

    def equal(self, run: WayRun) -> bool:
        """Whether a way gave the plain loop's graph of the same model."""
        return run.digest == self.reference[_meaning(run.way.model)]

    @property
    def holds(self) -> bool:
        """Whether all did."""
        return all(map(self.equal, self.runs))

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        rows = [
            {
                "way": run.way.name,
                "model": run.way.model,
                "seconds": round(run.seconds, 2),
                "wall_s": round(run.wall_s, 2),
                "hash": run.digest,
                "equal": self.equal(run),
                "committed": run.committed,
                "failed": run.failed,
            }
            for run in self.runs
        ]
        plan = {"episodes": self.plan.episodes, "groups": self.plan.groups, "seed": self.plan.seed}
        return {**plan, "store": self.store, "equal": self.holds, "runs": rows}


def run(
    plan: WorldPlan,
    *,
    store: StoreKind = "sqlite",
    ways: Sequence[Way] = WAYS,
    profile: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> EqualityResult:
    """Ingest a world in each of these ways; the plain loop of a model stands before its others.

    profile: of Ray's actors, None = the laptop's.
    """
    if not plan.episodes:
        raise InputError("--episodes 0: there is nothing to ingest")
    drafts = [episode.draft for episode in World(plan=plan)]
    found = EqualityResult(plan, store)
    with ExitStack() as ends, tempfile.TemporaryDirectory(prefix="kgray-bench-") as folder:
        if any(way.runtime == "ray" for way in ways):
            ends.enter_context(one_ray())
        servers: dict[str, str] = {}
        for number, way in enumerate(ways):
            if way.model not in servers:
                flags = [*flags_of(Oracle(World(plan=plan), _errors(way.model))), *MODELS[way.model]]
                servers[way.model] = ends.enter_context(ServerProcess(flags)).base_url
            with empty_store(store, Path(folder) / str(number)) as place, ExitStack() as closing:
                given = given_of(way, place, servers[way.model], runtime_profile=profile)
                memory = opened(settings_of(given), place.data)
                closing.callback(memory.close)
                ran = carry_out(way, memory, drafts)
            if way.runtime == "plain":
                found.reference[_meaning(way.model)] = ran.digest
            found.runs.append(ran)
            progress(row(found, ran))
    return found


def _errors(model: str) -> Errors:
    return Errors.of_meaning(_RATE, answers=_RATE) if model == "errors" else Errors()


def _meaning(model: str) -> str:
    """Return the model that gives the same answers, whatever their order."""
    return "true" if model == SHUFFLED else model


def row(found: EqualityResult, ran: WayRun) -> str:
    """Return a way's line."""
    way, verdict = ran.way, "yes" if found.equal(ran) else "NO"
    head = f"{found.plan.groups:>6} {way.model:<9} {way.name:<44}"
    return f"{head} {ran.seconds:>8.1f} {ran.failed:>6} {ran.digest[:12]} {verdict}"


def table(results: Sequence[EqualityResult]) -> str:
    """Return the figures for people."""
    head = f"{'groups':>6} {'model':<9} {'way':<44} {'seconds':>8} {'failed':>6} {'hash':<12} equal"
    lines = [head, *(row(found, ran) for found in results for ran in found.runs)]
    verdicts = [found.equal(ran) for found in results for ran in found.runs]
    return "\n".join(
        [*lines, f"{sum(verdicts)} of {len(verdicts)} runs gave the plain loop's graph of their model"]
    )
