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
from kgray.errors import InputError
from tests.world import Errors, Oracle, World, WorldPlan

_RATE = 0.1  # errors of meaning, of each kind
SHUFFLED = "shuffled"  # the true model, whose answers come in random order
# Flags of a server by model, in addition to the world's flags. A model's reference is its plain loop.
MODELS: dict[str, tuple[str, ...]] = {
    "true": (),
    SHUFFLED: ("--shuffle-s", "0.2"),
    "wild": ("--wild",),
    "errors": (),
}
SETUPS: tuple[Way, ...] = (
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
        setup
        for model in ("wild", "errors")
        for setup in (
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
        """Tell whether a setup gave the plain loop's graph of the same model."""
        return run.digest == self.reference[_meaning(run.way.model)]

    @property
    def holds(self) -> bool:
        """Tell whether all setups gave the same graphs."""
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
    setups: Sequence[Way] = SETUPS,
    profile: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> EqualityResult:
    """Ingest a world in each of these ways; the plain loop of a model comes before its other ways.

    profile: of Ray's actors, None = the laptop's.
    """
    if not plan.episodes:
        raise InputError("--episodes 0: there is nothing to ingest")
    drafts = [episode.draft for episode in World(plan=plan)]
    result = EqualityResult(plan, store)
    with ExitStack() as ends, tempfile.TemporaryDirectory(prefix="kgray-bench-") as folder:
        if any(setup.runtime == "ray" for setup in setups):
            ends.enter_context(one_ray())
        servers: dict[str, str] = {}
        for number, setup in enumerate(setups):
            if setup.model not in servers:
                flags = [*flags_of(Oracle(World(plan=plan), _errors(setup.model))), *MODELS[setup.model]]
                servers[setup.model] = ends.enter_context(ServerProcess(flags)).base_url
            with empty_store(store, Path(folder) / str(number)) as place, ExitStack() as closing:
                settings_table = given_of(setup, place, servers[setup.model], runtime_profile=profile)
                memory = opened(settings_of(settings_table), place.data)
                closing.callback(memory.close)
                ran = carry_out(setup, memory, drafts)
            if setup.runtime == "plain":
                result.reference[_meaning(setup.model)] = ran.digest
            result.runs.append(ran)
            progress(row(result, ran))
    return result


def _errors(model: str) -> Errors:
    return Errors.of_meaning(_RATE, answers=_RATE) if model == "errors" else Errors()


def _meaning(model: str) -> str:
    """Return the model that gives the same answers, in any order."""
    return "true" if model == SHUFFLED else model


def row(result: EqualityResult, ran: WayRun) -> str:
    """Return a way's line."""
    setup, verdict = ran.way, "yes" if result.equal(ran) else "NO"
    head = f"{result.plan.groups:>6} {setup.model:<9} {setup.name:<44}"
    return f"{head} {ran.seconds:>8.1f} {ran.failed:>6} {ran.digest[:12]} {verdict}"


def table(results: Sequence[EqualityResult]) -> str:
    """Return the figures for people."""
    head = f"{'groups':>6} {'model':<9} {'way':<44} {'seconds':>8} {'failed':>6} {'hash':<12} equal"
    lines = [head, *(row(result, ran) for result in results for ran in result.runs)]
    verdicts = [result.equal(ran) for result in results for ran in result.runs]
    return "\n".join(
        [*lines, f"{sum(verdicts)} of {len(verdicts)} runs gave the plain loop's graph of their model"]
    )
