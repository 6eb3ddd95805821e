"""communities: find them, list them, show one. schedule: when they are refreshed."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from kgray import times
from kgray.cli import printing
from kgray.cli.frame import GROUP, TEXT, Call, command, finished, group_of, group_option, known_at_option

_COUNTS = "run levels communities kept written offline calls prompt_tokens completion_tokens".split()
_SCHEDULED = ("name", "cron", "zone", "next", "last", "said")

communities = group_of(
    "communities",
    "What belongs together: refresh, list, show.",
    "Find, list and show communities: entities that belong together, with names and summaries.\n\n"
    "kgray communities refresh --group team\nkgray communities list --group team",
)


@command("Find, name and summarise communities.", of=communities)
@click.option("--group", "groups", multiple=True, type=GROUP, metavar="G", help="Only this; repeatable.")
@click.option("--cold", is_flag=True, help="From nothing, not from what was found last time.")
@click.option("--due", is_flag=True, help="Only groups of which a tenth is new.")
@click.option("--profiles", is_flag=True, help="Have the model write of entities with 5 facts, too.")
@click.option("--max-tokens", type=click.IntRange(min=1), metavar="N", help="Spend no more tokens.")
@click.option("--dry-run", is_flag=True, help="Say which model calls it would make; change nothing.")
def refresh(call: Call, groups: tuple[str, ...], **how: Any) -> None:  # noqa: ANN401
    """Find communities anew, and write their names and summaries, of all groups or those named.

    Where a model is configured it writes, else a text is made without one. What has not changed is kept
    and costs no call. Readers see the earlier communities until all of a group's new ones are there.

      kgray communities refresh --group team --max-tokens 200000
    """
    with call.memory() as memory, printing.Progress() as progress:
        progress.total = len(groups or memory.store.heads())
        found = finished(memory.refresh_communities(groups, **how, on_group=progress.step))
    done = {group: asdict(one) for group, one in found.items()}
    rows = [[group, *(row[name] for name in _COUNTS)] for group, row in done.items()]
    call.listed("groups", done, rows, head=("group", *_COUNTS), nothing="No groups.")
    if how["dry_run"] and not call.as_json:
        printing.note("nothing was changed; calls and tokens are what it would take at most")


@command("The communities of a group.", name="list", of=communities)
@group_option
@click.option("--level", type=click.IntRange(min=0), metavar="N", help="Of this level; 0 is the finest.")
@known_at_option
def list_(call: Call, group: str, **how: Any) -> None:  # noqa: ANN401
    """List the communities, by level, the largest first.

    kgray communities list --group team --level 0
    """
    with call.reader(group) as memory:
        found = finished(memory.communities(group=group, **how))
    rows = [[printing.short(one.id), one.level, one.size, "stale" * one.stale, one.name] for one in found]
    listed, head = [one.as_dict() for one in found], ("id", "level", "members", "", "name")
    nothing = "No communities: `kgray communities refresh` finds them."
    call.listed("communities", listed, rows, head=head, nothing=nothing)


@command("One community with its members.", of=communities)
@click.argument("identifier", type=TEXT, metavar="ID")
@group_option
@known_at_option
def show(call: Call, identifier: str, group: str, **how: Any) -> None:  # noqa: ANN401
    """Show a community with its summary and its members. ID: its id, or the beginning of it.

    `kgray history NAME` shows the facts of a member, and who said them.

      kgray communities show 6550e080 --group team
    """
    with call.reader(group) as memory:
        found = finished(memory.community(identifier, group=group, **how))
    if call.emitted(found.as_dict()):
        return
    one = found.community
    click.echo(click.style(printing.plain(one.name), bold=True) + f"  {printing.short(one.id)}")
    stale = ", stale: facts of its members have changed since" if one.stale else ""
    click.echo(f"  level {one.level}, as of {printing.moment(found.as_of)}{stale}")
    if one.summary:
        click.echo(f"  {printing.plain(one.summary)}")
    if "rating" in one.report:
        click.echo(f"  rating {one.report['rating']}: {printing.plain(one.report.get('reason', ''))}")
    for finding in one.report.get("findings", ()):
        cited = ", ".join(printing.short(fact) for fact in finding["facts"])
        click.echo(f"  - {printing.plain(finding['summary'])}{f' [{cited}]' if cited else ''}")
    printing.table([[printing.short(child.id), child.size, child.name] for child in found.children])
    printing.table([[printing.short(id_), name] for id_, name in found.members], head=("id", "member"))


schedule = group_of(
    "schedule",
    "When communities are refreshed: add, list, remove.",
    "Add, list and remove the times at which communities are refreshed while `kgray up` is up.\n\n"
    'kgray schedule add nightly --cron "0 3 * * *" --zone Europe/Berlin',
)


@command("Refresh communities at these times.", of=schedule)
@click.argument("name", type=TEXT)
@click.option("--cron", required=True, metavar="EXPR", help="Minute, hour, day, month and weekday.")
@click.option("--zone", required=True, metavar="Z", help="The time zone: UTC, Europe/Berlin, ...")
def add(call: Call, name: str, cron: str, zone: str) -> None:
    """Have the actors of `kgray up` refresh the communities of all groups of which a tenth is new.

    Times that nobody was up for are made up for once. A group that has grown by half is done from nothing.

      kgray schedule add nightly --cron "0 3 * * *" --zone Europe/Berlin
    """
    now = times.now()
    with call.memory(create=True) as memory:
        made = memory.schedules.add(name, cron, zone, now).as_dict(now)
    if not call.emitted(made):
        click.echo(f"{name}: the next time is {made['next']}.")


@command("The schedules, and what came of them.", name="list", of=schedule)
def list_schedules(call: Call) -> None:
    """List the schedules with their next and last times.

    kgray schedule list
    """
    now = times.now()
    with call.memory() as memory:
        found = [one.as_dict(now) for one in memory.schedules.every()]
    rows = [[one[key] or "" for key in _SCHEDULED] for one in found]
    call.listed("schedules", found, rows, head=(*_SCHEDULED[:-1], ""), nothing="No schedules.")


@command("Remove a schedule.", of=schedule)
@click.argument("name", type=TEXT)
def remove(call: Call, name: str) -> None:
    """Remove a schedule. A refresh that goes on is finished.

    kgray schedule remove nightly
    """
    with call.memory() as memory:
        memory.schedules.remove(name)
    if not call.emitted({"name": name, "removed": True}):
        click.echo(f"{name} is removed.")
