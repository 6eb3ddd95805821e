"""bench groups, lag, calls, interchange: costs of many groups, a large group, a call to a model, files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench.commands.options import (
    count,
    file,
    listed,
    number,
    numbers,
    out_option,
    progress,
    show,
    store_option,
)
from kgray.cli.frame import Call, command

if TYPE_CHECKING:
    from bench.empty_stores import StoreKind


@command("What ten thousand groups cost.")
@count("--groups", 10_000)
@count("--deep", 200, "So many more have several episodes each, which are ingested.")
@count("--each", 20, "Episodes of each of these.")
@store_option
@out_option
def groups(call: Call, groups: int, deep: int, each: int, store: StoreKind, out: Path | None) -> int:
    """Measure the read of pending work, the counts, the failures, and the number of loads of a group's state.

    python -m bench groups --groups 1000 --deep 50
    """
    from bench import groups as measured

    figures = measured.run(store, groups, deep, each, progress)
    show(call, asdict(figures), out, lambda: measured.table(figures))
    return 0


@command("How late the loop comes while a large group is loaded.")
@count("--facts", 100_000)
@count("--episodes", 2_000, "Of 40 other groups, ingested meanwhile.")
@store_option
@click.option("--ray", is_flag=True, help="Through the actors of a Ray on this machine.")
@out_option
def lag(call: Call, facts: int, episodes: int, store: StoreKind, ray: bool, out: Path | None) -> int:
    """Load a large group and remove an episode of it while other groups are ingested, in one runner.

    python -m bench lag --facts 10000
    """
    from bench import lag as measured

    figures = (measured.through_ray if ray else measured.run)(store, facts, episodes, progress)
    show(call, asdict(figures), out, lambda: measured.table(figures))
    return 0


@command("Seats of thousands of calls, divided among simulated sequencers.")
@count("--engines", 100)
@count("--seats", 128, "Of each engine.")
@count("--shards", 20)
@out_option
def seats(call: Call, engines: int, seats: int, shards: int, out: Path | None) -> int:
    """Lease the seats of engines by the registry's own code, in simulated time and without processes.

    python -m bench seats --engines 10 --shards 4
    """
    from bench import seats as measured

    figures = measured.run(engines, seats, shards)
    show(call, asdict(figures), out, lambda: measured.table(figures))
    return 0


@command("One decider with thousands of slow calls in flight, and live episodes beside them.")
@listed("--seats", "128,1600,12800", "Calls in flight; a backfill of as many groups fills them.")
@number("--rate", 60.0, "Episodes that end in a second.")
@number("--seconds", 20.0, "Of the measurement, and of the arrival of live episodes.")
@out_option
def flight(call: Call, seats: str, rate: float, seconds: float, out: Path | None) -> int:
    """Fill all seats with a backfill, measure the runner's loop, then append a live episode every 0.1 s.

    python -m bench flight --seats 128,1600
    """
    from bench import flight as measured

    figures = [
        measured.run(count, count, rate, seconds, progress) for count in numbers("--seats", seats, apart=1)
    ]
    show(call, {"figures": list(map(asdict, figures))}, out, lambda: measured.table(figures))
    return 0


@command("Calls to Ray's head of a deployment on several simulated nodes.")
@count("--nodes", 8, "Each with an engine that sleeps.")
@count("--shards", 8)
@count("--seats", 1024, "Of all engines.")
@number("--call-s", 20.0, "Of a call of an engine.")
@number("--seconds", 30.0, "Of each count.")
@out_option
def nodes(
    call: Call, nodes: int, shards: int, seats: int, call_s: float, seconds: float, out: Path | None
) -> int:
    """Start a cluster on this machine, count calls to its head, and append live episodes beside a backfill.

    python -m bench nodes --nodes 2 --shards 2 --seats 64
    """
    from bench import nodes as measured

    figures = measured.run(nodes, shards, seats, call_s, seconds, progress)
    show(call, asdict(figures), out, lambda: measured.table(figures))
    return 0


@command("CPU of the client for a call of a model's server.")
@count("--calls", 2_000, "In each round.")
@count("--concurrency", 32)
@count("--rounds", 5)
@out_option
def calls(call: Call, calls: int, concurrency: int, rounds: int, out: Path | None) -> int:
    """Call a server of fixed replies in a separate process, and measure only this process.

    python -m bench calls --calls 500
    """
    from bench import calls as measured

    figures = measured.run(calls, concurrency, rounds)
    show(call, asdict(figures), out, lambda: measured.table(figures))
    return 0


@command("Rate and memory of exports and imports.")
@listed("--facts", "10000,100000", "Sizes of the group.")
@listed("--exports", "all", "Formats, or all.", "FORMAT,...")
@listed("--imports", "all", "Formats among them that are imported again, or all, or none.", "FORMAT,...")
@count("--most", 100_000, "Facts of the largest group that is imported.")
@click.option(
    "--past", is_flag=True, help="Also export the knowledge before the last commit, but for parquet."
)
@file("--stores", "A folder where the stores stay, for a next run.")
@out_option
def interchange(
    call: Call, facts: str, exports: str, imports: str, most: int, past: bool, stores: Path | None,
    out: Path | None,
) -> int:  # fmt: skip
    """Grow a group by triples, export it in each format, and import what can be imported.

    python -m bench interchange --facts 1000 --exports graphml,graphrag
    """
    from bench import interchange as measured

    sizes = numbers("--facts", facts, apart=1)
    written = _formats("--exports", exports, measured.EXPORTS)
    read = _formats("--imports", imports, measured.IMPORTS)
    figures = measured.run(sizes, written, read, most, past, stores, progress)
    show(call, {"figures": list(map(asdict, figures))}, out, lambda: measured.table(figures))
    return 0


def _formats(option: str, text: str, names: Sequence[str]) -> Sequence[str]:
    if text in ("all", "none"):
        return names if text == "all" else ()
    if unknown := [name for name in text.split(",") if name not in names]:
        raise click.BadParameter(f"{unknown[0]!r} is none of {', '.join(names)}", param_hint=option)
    return text.split(",")


COMMANDS = (groups, lag, seats, flight, nodes, calls, interchange)
