"""schedule: when communities are refreshed."""

from __future__ import annotations

import click

from kgray import times
from kgray.cli import printing
from kgray.cli.frame import TEXT, Call, common

schedule = click.Group(
    name="schedule",
    short_help="When communities are refreshed: add, list, remove.",
    help=(
        "Add, list and remove the times at which communities are refreshed while `kgray up` is up.\n\n"
        "\b\n"
        "Example:\n"
        '  kgray schedule add nightly --cron "0 3 * * *" --zone Europe/Berlin'
    ),
)
_HEAD = ("name", "cron", "zone", "next", "last", "")


@schedule.command(short_help="Refresh communities at these times.")
@click.argument("name", type=TEXT)
@click.option("--cron", required=True, metavar="EXPR", help="Minute, hour, day, month and weekday.")
@click.option("--zone", required=True, metavar="Z", help="The time zone: UTC, Europe/Berlin, ...")
@common
def add(call: Call, name: str, cron: str, zone: str) -> int:
    r"""Have the actors of `kgray up` refresh the communities of all groups of which a tenth is new.

    Times that nobody was up for are made up for once. A group that has grown by half is done from nothing.

    \b
    Example:
      kgray schedule add nightly --cron "0 3 * * *" --zone Europe/Berlin
    """
    now = times.now()
    with call.memory(create=True) as memory:
        made = memory.schedules.add(name, cron, zone, now).as_dict(now)
    return call.answer(made, lambda: click.echo(f"{name}: the next time is {made['next']}."))


@schedule.command(name="list", short_help="The schedules, and what came of them.")
@common
def list_schedules(call: Call) -> int:
    r"""List the schedules with their next and last times.

    \b
    Example:
      kgray schedule list
    """
    now = times.now()
    with call.memory() as memory:
        found = [one.as_dict(now) for one in memory.schedules.every()]
    rows = [[one[key] or "" for key in (*_HEAD[:-1], "said")] for one in found]
    nothing = "No schedules."
    return call.answer({"schedules": found}, lambda: printing.table(rows, head=_HEAD, nothing=nothing))


@schedule.command(short_help="Remove a schedule.")
@click.argument("name", type=TEXT)
@common
def remove(call: Call, name: str) -> int:
    r"""Remove a schedule. A refresh that goes on is finished.

    \b
    Example:
      kgray schedule remove nightly
    """
    with call.memory() as memory:
        memory.schedules.remove(name)
    return call.answer({"name": name, "removed": True}, lambda: click.echo(f"{name} is removed."))
