"""communities: find them, list them, show one. schedule: when they are refreshed."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kgray.cli import printing
from kgray.cli.frame import (
    GROUP,
    TEXT,
    Call,
    Signals,
    command,
    finished,
    group_of,
    group_option,
    known_at_option,
)
from kgray.cli.progress import Progress
from kgray.domain import times
from kgray.domain.json_form import as_json
from kgray.errors import STOPPED, InputError

if TYPE_CHECKING:
    from kgray.memory import AsyncMemory
    from kgray.settings import Settings

_COUNTS = "run levels communities kept written offline calls prompt_tokens completion_tokens".split()
_SCHEDULED = ("name", "cron", "zone", "of", "next", "last", "")

communities = group_of(
    "communities",
    "Communities of entities: refresh, list, show.",
    "Find, list and show communities: entities that belong together, with names and summaries.\n\n"
    "kgray communities refresh --group team\nkgray communities list --group team",
)


@command("Find, name and summarise communities.", parent=communities)
@click.option("--group", "groups", multiple=True, type=GROUP, metavar="G", help="Only this; repeatable.")
@click.option("--cold", is_flag=True, help="From nothing, not from the last partition.")
@click.option("--due", is_flag=True, help="Only groups with a tenth of new facts.")
@click.option("--profiles", is_flag=True, help="Also write profiles of entities with 5 facts or more.")
@click.option("--max-tokens", type=click.IntRange(min=1), metavar="N", help="Spend no more tokens.")
@click.option("--dry-run", is_flag=True, help="Print the model calls that it would make; change nothing.")
@click.option("--submit", is_flag=True, help="Run as a Ray job, and follow its log.")
@click.option("--job-server", type=TEXT, metavar="URL", help="Where to submit. Default: runtime.address.")
def refresh(
    call: Call,
    groups: tuple[str, ...],
    submit: bool,
    job_server: str | None,
    **options: Any,  # noqa: ANN401
) -> int | None:
    """Find the communities of all groups, or of the named groups, and write their names and summaries.

    A configured model writes the texts, else they are built without a model. Unchanged texts stay and cost
    no call. Readers see a group's earlier communities until all of the new communities are stored. With
    --submit a job does it. Ctrl-C ends the following, not the job; the same command follows it again.

      kgray communities refresh --group team --max-tokens 200000
    """
    if submit:
        return _as_job(call, groups, job_server, options)
    if job_server:
        raise InputError("--job-server is for --submit")
    with call.memory() as memory, Progress() as progress:
        progress.total = len(groups or memory.store.heads())
        report = finished(memory.communities.refresh(groups, **options, on_group=progress.step))
    rows_by_group = as_json(report.groups)
    rows = [[group, *(row[name] for name in _COUNTS)] for group, row in rows_by_group.items()]
    call.listed("groups", rows_by_group, rows, head=("group", *_COUNTS), nothing="No groups.")
    if rows_by_group and not options["dry_run"]:
        total = {name: sum(row[name] for row in rows_by_group.values()) for name in ("news", *_COUNTS)}
        printing.note(
            f"{total['news']} of {printing.counted(len(rows_by_group), 'group')} refreshed, "
            f"{total['calls']} model calls; texts: {total['kept']} kept, "
            f"{total['written']} written, {total['offline']} offline"
        )
    elif options["dry_run"] and not call.as_json:
        printing.note("nothing was changed; calls and tokens are upper bounds")
    return None


def _as_job(call: Call, groups: tuple[str, ...], job_server: str | None, options: dict[str, Any]) -> int:
    """Submit the refresh, or find the job of an earlier command that goes on, and follow it to its end."""
    from kgray.runtime.job_log import follow
    from kgray.runtime.jobs import Job, JobServer
    from kgray.runtime.spec import as_environ, run_of
    from kgray.settings import config_file, public_environ

    if options["dry_run"]:
        raise InputError("--dry-run changes nothing, so it is run in place: leave --submit out")
    settings = call.settings()
    address, token = _job_server(call, settings, job_server)
    words = [
        "communities",
        "refresh",
        *(f"--{name}" for name in ("cold", "due", "profiles") if options[name]),
    ]
    words += [word for group in groups for word in ("--group", group)]
    words += ["--max-tokens", str(options["max_tokens"])] if options["max_tokens"] else []
    run = run_of(settings, call.folder, "refresh", words)
    words += [flag for flag, is_set in (("--json", call.as_json), ("--debug", call.debug)) if is_set]
    if token is None and settings.store.backend != "sqlite":
        # With a store on a server, a job on another machine needs no file of this machine.
        python, environ = "python", as_environ(settings)
        words += ["--data", call.data] if call.data else []
    else:
        python, environ = sys.executable, public_environ(os.environ)
        words += ["--data", str(call.folder.absolute())]
        if (config := config_file(call.config, call.folder, os.environ)) is not None:
            words += ["--config", str(config.absolute())]
    job = Job(command=[python, "-m", "kgray.cli.job", *words], environ=environ)
    tell = partial(click.echo, err=True)
    with Signals.gentle():
        server = JobServer(address, token=token)
        ended = follow(server, run, job, tell=tell, stop=Signals.is_stopping)
    if ended is None:
        printing.note("the job goes on; the same command follows it again")
        return STOPPED
    if ended.document is not None:
        printing.emit_json(ended.document)
    printing.note(f"job {ended.job}: {ended.status.lower()}{f' ({ended.reason})' if ended.reason else ''}")
    return ended.code


def _job_server(call: Call, settings: Settings, chosen: str | None) -> tuple[str, Path | None]:
    """Return the address of --job-server, else of runtime.address, else of `kgray up`; its token's file."""
    from kgray.runtime.session import read_head

    address = chosen or settings.runtime.address or ""
    head = None if chosen else read_head(call.folder)
    if head is not None and head.jobs and address in ("", head.address, head.jobs):
        return head.jobs, Path(head.token)
    if address.startswith(("http://", "https://")):
        return address, None
    raise InputError(
        "--submit needs the address of Ray's job server, such as http://127.0.0.1:8265: "
        "say --job-server, or set runtime.address to it"
    )


@command("The communities of a group.", name="list", parent=communities)
@group_option
@click.option("--level", type=click.IntRange(min=0), metavar="N", help="This level only; 0 is the finest.")
@known_at_option
def list_(call: Call, group: str, **options: Any) -> None:  # noqa: ANN401
    """List the communities by level, the largest first.

    kgray communities list --group team --level 0
    """
    with call.reader(group) as memory:
        items = finished(memory.communities.list(group=group, **options))
    rows = [
        [printing.short(item.id), item.level, item.size, "stale" * item.stale, item.name] for item in items
    ]
    head, nothing = (
        ("id", "level", "members", "", "name"),
        "No communities: `kgray communities refresh` finds them.",
    )
    call.listed("communities", items, rows, head=head, nothing=nothing)


@command("One community with its members.", parent=communities)
@click.argument("identifier", type=TEXT, metavar="ID")
@group_option
@known_at_option
def show(call: Call, identifier: str, group: str, **options: Any) -> None:  # noqa: ANN401
    """Show a community with its summary and its members. ID: its id, or the beginning of it.

    `kgray history NAME` shows the facts of a member with their speakers.

      kgray communities show 6550e080 --group team
    """
    with call.reader(group) as memory:
        detail = finished(memory.communities.get(identifier, group=group, **options))
    if call.emitted(detail):
        return
    community = detail.community
    click.echo(click.style(printing.plain(community.name), bold=True) + f"  {printing.short(community.id)}")
    stale = ", stale: facts of its members have changed since" if community.stale else ""
    click.echo(f"  level {community.level}, as of {printing.moment(detail.as_of)}{stale}")
    if community.summary:
        click.echo(f"  {printing.plain(community.summary)}")
    if "rating" in community.report:
        click.echo(
            f"  rating {community.report['rating']}: {printing.plain(community.report.get('reason', ''))}"
        )
    for finding in community.report.get("findings", ()):
        cited = ", ".join(printing.short(fact) for fact in finding["facts"])
        click.echo(f"  - {printing.plain(finding['summary'])}{f' [{cited}]' if cited else ''}")
    printing.table([[printing.short(child.id), child.size, child.name] for child in detail.children])
    printing.table([[printing.short(id_), name] for id_, name in detail.members], head=("id", "member"))


schedule = group_of(
    "schedule",
    "When communities are refreshed: add, list, remove.",
    "Add, list and remove the times at which the actors of `kgray up` refresh communities.\n\n"
    'kgray schedule add nightly --cron "0 3 * * *" --zone Europe/Berlin',
)


@command("Refresh communities at these times.", parent=schedule)
@click.argument("name", type=TEXT)
@click.option("--cron", required=True, metavar="EXPR", help="Minute, hour, day, month and weekday.")
@click.option("--zone", default="UTC", metavar="Z", help="The time zone: Europe/Berlin, ... Default: UTC.")
@click.option("--full", is_flag=True, help="All groups from nothing, as `refresh --cold`.")
@click.option(
    "--due", is_flag=True, help="Groups with a tenth of new facts, as `refresh --due`. The default."
)
@click.option("--group", "groups", multiple=True, type=GROUP, metavar="G", help="Only this; repeatable.")
def add(
    call: Call, name: str, cron: str, zone: str, *, full: bool, due: bool, groups: tuple[str, ...]
) -> None:
    """Have the actors of `kgray up` submit a refresh of the communities as a Ray job at these times.

    After a downtime, only the latest missed refresh is made up. One refresh runs at a time.

      kgray schedule add nightly --cron "0 3 * * *" --zone Europe/Berlin
      kgray schedule add weekly --cron "0 4 * * 0" --full
    """
    if full and due:
        raise InputError("--full and --due exclude each other: add two schedules")
    clock = times.now()
    with call.memory(create=True) as memory:
        document = memory.admin.schedules.add(name, cron, zone, clock, full=full, groups=groups).as_dict(
            clock
        )
    if not call.emitted(document | {"schedules": [document]}):
        click.echo(f"{name}: the next time is {document['next']}.")


@command("The schedules with their last outcomes.", name="list", parent=schedule)
def list_schedules(call: Call) -> None:
    """List the schedules with their next and last times.

    kgray schedule list
    """
    with call.memory() as memory:
        schedules = schedule_rows(call, memory)
    rows = [_cells(row) for row in schedules]
    call.listed("schedules", schedules, rows, head=_SCHEDULED, nothing="No schedules.")


def schedule_rows(call: Call, memory: AsyncMemory) -> list[dict[str, Any]]:
    """Return the schedules of a store as JSON rows; job: the submission id in Ray of the latest run."""
    from kgray.runtime.spec import namespace_of, store_identity

    clock, store = times.now(), namespace_of(store_identity(call.settings(), call.folder))
    rows = [schedule.as_dict(clock) for schedule in memory.admin.schedules.every()]
    return [row | {"job": row["job"] and f"{store}-{row['job']}"} for row in rows]


def _cells(row: dict[str, Any]) -> list[str]:
    """Return a schedule's cells in the table."""
    extent = f"{'full' if row['full'] else 'due'}{', ' * bool(row['groups'])}{', '.join(row['groups'])}"
    outcome = f"runs as job {row['job']}" if row["running"] else row["said"]
    return [row["name"], row["cron"], row["zone"], extent, row["next"], row["last"] or "", outcome]


@command("Remove a schedule.", parent=schedule)
@click.argument("name", type=TEXT)
def remove(call: Call, name: str) -> None:
    """Remove a schedule. A job that runs is not ended.

    kgray schedule remove nightly
    """
    with call.memory() as memory:
        memory.admin.schedules.remove(name)
    if not call.emitted({"name": name, "removed": True}):
        click.echo(f"{name} is removed.")
