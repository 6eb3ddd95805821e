"""bench groups, lag, calls: the costs of many groups, of a large group to others, of a call to a model."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench.commands.options import count, out_option, progress, show, store_option
from kgray.cli.frame import Call, command

if TYPE_CHECKING:
    from bench.empty_stores import StoreKind


@command("What ten thousand groups cost.")
@count("--groups", 10_000)
@count("--deep", 200, "So many more have 20 episodes each, which are ingested.")
@store_option
@out_option
def groups(call: Call, groups: int, deep: int, store: StoreKind, out: Path | None) -> int:
    """Measure the read of pending work, the counts, the failures, and the number of loads of a group's state.

    python -m bench groups --groups 1000 --deep 50
    """
    from bench import groups as measured

    figures = measured.run(store, groups, deep, progress)
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


@command("CPU of the client for a call of a model's server.")
@count("--calls", 2_000, "In each round.")
@count("--concurrency", 32)
@count("--rounds", 5)
@out_option
def calls(call: Call, calls: int, concurrency: int, rounds: int, out: Path | None) -> int:
    """Ask a server of fixed replies, which runs in a process of its own, and measure this process alone.

    python -m bench calls --calls 500
    """
    from bench import calls as measured

    figures = measured.run(calls, concurrency, rounds)
    show(call, asdict(figures), out, lambda: measured.table(figures))
    return 0


COMMANDS = (groups, lag, calls)
