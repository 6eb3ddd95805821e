"""schedule: when communities are refreshed."""

from __future__ import annotations

import click

from kgray import times
from kgray.cli import printing
from kgray.cli.frame import TEXT, Call, command, group_of

schedule = group_of(
    "schedule",
    "When communities are refreshed: add, list, remove.",
    "Add, list and remove the times at which communities are refreshed while `kgray up` is up.\n\n"
    'kgray schedule add nightly --cron "0 3 * * *" --zone Europe/Berlin',
)
_HEAD = ("name", "cron", "zone", "next", "last", "")


@command("Refresh communities at these times.", of=schedule)
@click.argument("name", type=TEXT)
@click.option("--cron", required=True, metavar="EXPR", help="Minute, hour, day, month and weekday.")
@click.option("--zone", required=True, metavar="Z", help="The time zone: UTC, Europe/Berlin, ...")
def add(call: Call, name: str, cron: str, zone: str) -> int:
    """Have the actors of `kgray up` refresh the communities of all groups of which a tenth is new.

    Times that nobody was up for are made up for once. A group that has grown by half is done from nothing.

      kgray schedule add nightly --cron "0 3 * * *" --zone Europe/Berlin
    """
    now = times.now()
    with call.memory(create=True) as memory:
        made = memory.schedules.add(name, cron, zone, now).as_dict(now)
    return call.answer(made, lambda: click.echo(f"{name}: the next time is {made['next']}."))


@command("The schedules, and what came of them.", name="list", of=schedule)
def list_schedules(call: Call) -> int:
    """List the schedules with their next and last times.

    kgray schedule list
    """
    now = times.now()
    with call.memory() as memory:
        found = [one.as_dict(now) for one in memory.schedules.every()]
    rows = [[one[key] or "" for key in (*_HEAD[:-1], "said")] for one in found]
    nothing = "No schedules."
    return call.answer({"schedules": found}, lambda: printing.table(rows, head=_HEAD, nothing=nothing))


@command("Remove a schedule.", of=schedule)
@click.argument("name", type=TEXT)
def remove(call: Call, name: str) -> int:
    """Remove a schedule. A refresh that goes on is finished.

    kgray schedule remove nightly
    """
    with call.memory() as memory:
        memory.schedules.remove(name)
    return call.answer({"name": name, "removed": True}, lambda: click.echo(f"{name} is removed."))
