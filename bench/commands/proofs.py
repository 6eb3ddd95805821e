"""bench equality, bench chaos, bench soak: the promises, at length. Exit code 1 where one does not hold."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench.commands.options import numbers, plan, seed_option, show, told
from kgray.cli.frame import Call, common

if TYPE_CHECKING:
    from bench.places import StoreKind
    from bench.world import Plan

_ENTITIES_A_GROUP = 20
_ENTITIES = 120
_EPISODES_AN_ENTITY = 10  # with many more a group runs out of what is new
store_option = click.option(
    "--store",
    type=click.Choice(["sqlite", "neo4j"]),
    default="sqlite",
    show_default=True,
    help="neo4j: on servers that cluster/neo4j/server starts.",
)
out_option = click.option("--out", type=click.Path(path_type=Path), help="The figures as JSON.")


def _world(seed: int, episodes: int, groups: int) -> Plan:
    entities = max(_ENTITIES, _ENTITIES_A_GROUP * groups, episodes // _EPISODES_AN_ENTITY)
    return plan(seed, {"episodes": episodes, "groups": groups, "entities": entities})


@click.command(short_help="One world, many ways to ingest it, one graph.")
@seed_option
@click.option("--episodes", type=click.IntRange(1), default=2000, show_default=True, metavar="N")
@click.option(
    "--groups", default="1,40", show_default=True, metavar="N,...", help="Worlds of so many groups."
)
@store_option
@out_option
@common
def equality(call: Call, seed: int, episodes: int, groups: str, store: StoreKind, out: Path | None) -> int:
    r"""Ingest worlds by the plain loop, the local runner and Ray, and compare the graphs byte for byte.

    Windows of 1, 8 and 64, chunks of 1 and 16, answers in random order, a model that is right about
    nothing, one with 10 % errors, live and bulk episodes mixed.

    \b
    Example:
      python -m bench equality --episodes 200 --groups 1
    """
    from bench import equality as bench_equality

    results = [
        bench_equality.run(_world(seed, episodes, count), store=store, progress=told)
        for count in numbers("--groups", groups, apart=1)
    ]
    document = {"results": [result.as_dict() for result in results]}
    show(call, document, out, lambda: bench_equality.table(results))
    return 0 if all(result.holds for result in results) else 1


@click.command(short_help="A backfill through Ray under random kills.")
@seed_option
@click.option("--kills", type=click.IntRange(1), default=100, show_default=True, metavar="N")
@click.option("--episodes", type=click.IntRange(1), metavar="N", help="Default: 30 a kill.")
@click.option("--groups", type=click.IntRange(1), default=4, show_default=True, metavar="N")
@click.option(
    "--store-kills", type=click.IntRange(0), metavar="N", help="Of a Neo4j server, besides. Default: 20."
)
@click.option("--outage-s", type=click.FloatRange(0), default=60.0, show_default=True, help="Of the model.")
@click.option("--minutes", type=click.FloatRange(min=0.1), default=30.0, show_default=True, help="Limit.")
@click.option("--nodes", type=click.IntRange(1), default=2, show_default=True, help="Worker nodes.")
@store_option
@out_option
@common
def chaos(call: Call, seed: int, kills: int, store: StoreKind, out: Path | None, **rest: Any) -> int:  # noqa: ANN401
    r"""Backfill a world on a simulated cluster while its processes are killed, and judge what comes of it.

    Killed at random: writer, workers, sequencer, model server, the driver, whole nodes; for Neo4j the
    server too. The graph must be the undisturbed one, every episode must end once, no epoch may go back,
    and nothing may be asked twice but what was in flight.

    \b
    Example:
      python -m bench chaos --kills 10 --outage-s 0
    """
    from bench import chaos as bench_chaos
    from bench.fire import Scene
    from kgray.errors import InputError

    of_store = rest["store_kills"]
    if of_store and store != "neo4j":
        raise InputError("--store-kills is for --store neo4j: the embedded store has no server")
    besides = (20 if of_store is None else of_store) if store == "neo4j" else 0
    episodes = rest["episodes"] or bench_chaos.EPISODES_A_KILL * (kills + besides)
    kinds = bench_chaos.kinds_of(kills, store_kills=besides)
    scene = Scene(
        plan=_world(seed, episodes, rest["groups"]),
        kills=bench_chaos.scheduled(episodes, kinds, seed, outage=rest["outage_s"] > 0),
        store=store,
        outage_s=rest["outage_s"],
        limit_s=60 * rest["minutes"],
        seed=seed,
        nodes=rest["nodes"],
    )
    outcome = bench_chaos.run(scene, told)
    show(call, outcome.as_dict(), out, lambda: bench_chaos.table(outcome))
    return 0 if outcome.holds else 1


@click.command(short_help="Does memory grow beyond the state that is held?")
@click.option("--minutes", type=click.FloatRange(min=0.5), default=10.0, show_default=True)
@out_option
@common
def soak(call: Call, minutes: float, out: Path | None) -> int:
    r"""Backfill generated episodes through Ray and watch the memory of driver, sequencer and writer.

    Half of the time with a few groups that grow, half with many under a small bound of the state in
    memory (runtime.state_mb).

    \b
    Example:
      python -m bench soak --minutes 2
    """
    from bench import soak as bench_soak

    results = bench_soak.run(bench_soak.phases(minutes), told)
    document = {"results": [result.as_dict() for result in results]}
    show(call, document, out, lambda: bench_soak.table(results))
    return 1 if any(result.faults for result in results) else 0


COMMANDS = (equality, chaos, soak)
