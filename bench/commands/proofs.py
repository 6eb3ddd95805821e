"""bench equality, bench chaos, bench soak: the promises, at length. Exit code 1 where one does not hold."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.commands.options import (
    count,
    listed,
    number,
    numbers,
    out_option,
    plan_of,
    progress,
    seed_option,
    show,
    store_option,
)
from kgray.cli.frame import Call, command

if TYPE_CHECKING:
    from bench.empty_stores import StoreKind
    from tests.world import WorldPlan

_ENTITIES = 120
_ENTITIES_A_GROUP = 20
_EPISODES_AN_ENTITY = 10  # with many more a group runs out of new statements


def _world(seed: int, episodes: int, groups: int) -> WorldPlan:
    entities = max(_ENTITIES, _ENTITIES_A_GROUP * groups, episodes // _EPISODES_AN_ENTITY)
    return plan_of(seed, {"episodes": episodes, "groups": groups, "entities": entities})


@command("One world, many ways to ingest it, one graph.")
@seed_option
@count("--episodes", 2000)
@listed("--groups", "1,40", "Worlds of so many groups.")
@store_option
@out_option
def equality(call: Call, seed: int, episodes: int, groups: str, store: StoreKind, out: Path | None) -> int:
    """Ingest worlds by the plain loop, the local runner and Ray, and compare the graphs byte for byte.

    Windows of 1, 8 and 64, chunks of 1 and 16, answers in random order, a model that is right about
    nothing, one with 10 % errors, live and backfilled episodes mixed.

      python -m bench equality --episodes 200 --groups 1
    """
    from bench import equality as measured

    results = [
        measured.run(_world(seed, episodes, count), store=store, progress=progress)
        for count in numbers("--groups", groups, apart=1)
    ]
    document = {"results": [result.as_dict() for result in results]}
    show(call, document, out, lambda: measured.table(results))
    return 0 if all(result.holds for result in results) else 1


@command("A backfill through Ray under random kills.")
@seed_option
@count("--kills", 100, minimum=0)
@count("--episodes", None, "Default: 30 a kill.")
@count("--groups", 4)
@count("--store-kills", None, "Of a Neo4j server, besides. Default: 20.", minimum=0)
@count("--head-kills", 0, "Of the head's process, with a Redis behind it.", minimum=0)
@count("--control-kills", 0, "Of each: the sequencer's node, the writer's node.", minimum=0)
@number("--outage-s", 60.0, "Of the model.")
@number("--minutes", 30.0, "Limit.", minimum=0.1)
@count("--nodes", 2, "Worker nodes.")
@count("--workers", 2, "That read.")
@count("--missing", 0, "Of these, no node has room for so many until 60 % is done.", minimum=0)
@count("--broken", 0, "Of these, so many never load their model.", minimum=0)
@count("--shards", 1, "Sequencers.")
@listed("--changes", "", "Evenly spread: scale, up, notice, scale-killed, up-killed.")
@store_option
@out_option
def chaos(call: Call, seed: int, kills: int, store: StoreKind, out: Path | None, **options: Any) -> int:  # noqa: ANN401
    """Backfill a world on a simulated cluster while its processes are killed, and check the result.

    Killed at random: writer, workers, sequencer, model server, the driver, whole nodes; for Neo4j the
    server too; if asked for, the head. The graph must be the undisturbed one, every episode must end once,
    no epoch may go back, and nothing may be asked twice but what was in flight.

    Changes: `kgray scale` to 5 shards and back (scale), `kgray up` with other settings (up), both also
    killed midway and run again (scale-killed, up-killed), and a node that ends 10 s after a notice (notice).

      python -m bench chaos --kills 10 --outage-s 0
      python -m bench chaos --kills 0 --outage-s 0 --shards 2 --episodes 2000 --changes scale,up,scale,notice
    """
    from bench import chaos as measured
    from bench.kills import KillSchedule
    from kgray.errors import InputError

    if options["store_kills"] and store != "neo4j":
        raise InputError("--store-kills is for --store neo4j: the embedded store has no server")
    if options["control_kills"] and (store != "neo4j" or options["shards"] > 1):
        raise InputError("--control-kills is for --store neo4j and one shard: a file's writer has one node")
    if options["missing"] and options["nodes"] != 1:
        raise InputError("--missing needs --nodes 1: another node would have room")
    if not 0 <= options["broken"] < options["workers"]:
        raise InputError("--broken must be less than --workers: nobody else would read")
    of_store = 20 if options["store_kills"] is None else options["store_kills"]
    of_store = of_store if store == "neo4j" else 0
    kinds = measured.kinds_of(
        kills, store_kills=of_store, head_kills=options["head_kills"], control_kills=options["control_kills"]
    )
    changes = [word for word in options["changes"].split(",") if word]
    episodes = options["episodes"] or measured.EPISODES_A_KILL * max(1, len(kinds) + 10 * len(changes))
    kills_at = measured.scheduled(episodes, kinds, seed, outage=options["outage_s"] > 0)
    arrivals = [(6 * episodes // 10, "arrival")] if options["missing"] else []
    schedule = KillSchedule(
        plan=_world(seed, episodes, options["groups"]),
        kills=sorted([*kills_at, *arrivals, *measured.spread(episodes, changes)], key=lambda kill: kill[0]),
        store=store,
        outage_s=options["outage_s"],
        limit_s=60 * options["minutes"],
        seed=seed,
        **{name: options[name] for name in ("nodes", "workers", "missing", "broken", "shards")},
    )
    outcome = measured.run(schedule, progress)
    show(call, outcome.as_dict(), out, lambda: measured.table(outcome))
    return 0 if outcome.holds else 1


@command("Does memory grow beyond the state that is held?")
@number("--minutes", 10.0, minimum=0.5)
@out_option
def soak(call: Call, minutes: float, out: Path | None) -> int:
    """Backfill generated episodes through Ray and watch the memory of driver, sequencer and writer.

    Half of the time with a few groups that grow, half with many under a small bound of the state in
    memory (runtime.state_mb).

      python -m bench soak --minutes 2
    """
    from bench import soak as measured

    results = measured.run(measured.both_phases(minutes), progress)
    document = {"results": [result.as_dict() for result in results]}
    show(call, document, out, lambda: measured.table(results))
    return 1 if any(result.faults for result in results) else 0


COMMANDS = (equality, chaos, soak)
