"""init, up, down, status, failures, groups: the folder, what ingests it, and its ledger."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from kgray.cli import printing
from kgray.cli.frame import Call, any_group_option, command, finished
from kgray.cli.waiting import last_outage


@command("Make the data folder and its store.")
def init(call: Call) -> int:
    """Make the data folder and its store. Run again, it changes nothing.

    kgray init --data my-data
    """
    backend = call.settings().store.backend
    with call.memory(create=True) as memory:
        version = memory.store.schema_version
    made = {"data": str(call.folder), "store": backend, "schema_version": version}
    return call.answer(made, lambda: click.echo(f"{call.folder} is ready ({backend}, schema {version})."))


@command("Start Ray and its actors, to stay.")
@click.option("--profile", type=click.Path(path_type=Path), metavar="FILE", help="How big: a TOML file.")
def up(call: Call, profile: Path | None) -> int:
    """Start, or find, the actors that ingest the data folder, and Ray where it is not up.

    They stay when the command ends, and ingest what other commands accept; `kgray down` ends them. With
    runtime.address they are started in the Ray at that address. Run again, it changes nothing.

      kgray up --data my-data
    """
    from kgray.runtime import lifecycle

    settings = call.settings()
    if profile is not None:
        settings = replace(settings, runtime=replace(settings.runtime, profile=profile))
    with call.memory(create=True):
        pass  # make the folder, and report a fault in it, before Ray is started
    with lifecycle.one_at_a_time(call.folder, printing.note):
        found = lifecycle.up(settings, call.folder, printing.note)

    def people() -> None:
        verb = "started" if found["started"] else "are up"
        click.echo(f"{printing.counted(len(found['actors']), 'actor')} {verb} at {found['address']}.")
        if found["jobs"]:
            click.echo(f"Jobs are submitted to {found['jobs']}.")
        if settings.runtime.backend != "ray":
            printing.note('runtime.backend is "local": with "ray" other commands use what is up')

    return call.answer(found, people)


@command("End the actors, and the Ray that up started.")
def down(call: Call) -> int:
    """Commit what is in flight, then end the actors, and the Ray that `kgray up` started.

    What was accepted is safe: the next run goes on.

      kgray down --data my-data
    """
    from kgray.runtime import lifecycle

    settings = call.settings()
    with lifecycle.one_at_a_time(call.folder, printing.note):
        ended = lifecycle.down(settings, call.folder, printing.note)
    line = f"{printing.counted(ended['actors'], 'actor')} and {ended['processes']} processes of Ray ended."
    return call.answer(ended, lambda: click.echo(line if any(ended.values()) else "Nothing is up."))


@command("The ledger: episodes by state.")
@any_group_option
def status(call: Call, group: str | None) -> int:
    """Show how many episodes are in which state, and what the model has cost.

    held: how many of those accepted and extracted wait because their group is held: see `kgray failures`.

      kgray status
    """
    from kgray.memory.reports import ledger_of
    from kgray.runtime import lifecycle

    with call.reader(group, says_pending=False) as memory:
        counts = finished(memory.status(group=group))
    runtime = lifecycle.status(call.settings(), call.folder)
    outage = last_outage(call.folder, runtime.get("actors", {}).values())
    found: dict[str, Any] = ledger_of(counts) | {"outage": outage, "runtime": runtime}
    return call.answer(found, lambda: _print_status(**found))


def _print_status(
    groups: dict[str, Any], model: dict[str, int], outage: dict[str, Any] | None, runtime: dict[str, Any]
) -> None:
    head = ("group", "accepted", "extracted", "committed", "failed", "held")
    rows = [[name, *row.values()] for name, row in groups.items()]
    printing.table(rows, head=head, nothing="No episodes.")
    click.echo(
        f"model: {printing.counted(model['calls'], 'call')}, "
        f"{model['prompt_tokens']} prompt tokens, {model['completion_tokens']} completion tokens"
    )
    if outage is not None:
        over = f"until {outage['until']}" if outage["until"] else f"not over at {outage['seen']}"
        words = f"{outage['what']} {outage['reason']}, since {outage['since']}, {over}"
        click.echo(f"last outage: {printing.plain(words)}")
    if "state" in runtime:
        click.echo(_deployment_line(runtime))


def _deployment_line(runtime: dict[str, Any]) -> str:
    """Return the state of a deployment on Ray in one line."""
    where = f"ray at {runtime['address']}: {runtime['state']}"
    if runtime["state"] != "up":
        return f"{where}{': ' + runtime['reason'] if 'reason' in runtime else ''}"
    gone = [name for name, row in runtime["actors"].items() if row.get("state") == "unreachable"]
    missing = f", not answering: {', '.join(gone)}" if gone else ""
    epochs = ", ".join(map(str, runtime["epochs"]))
    return (
        f"{where}, {printing.counted(len(runtime['actors']), 'actor')}, epoch {epochs}, "
        f"{runtime['in_flight']} of {runtime['window']} in flight, lag {runtime['lag']}{missing}"
    )


@command("Failed episodes with their reasons.")
@any_group_option
def failures(call: Call, group: str | None) -> int:
    """List the episodes that failed by their own content, and the groups that are held (class Held).

    `kgray retry` takes both up again.

    --json gives the model's last reply too; so does `kgray show`.

      kgray failures --group team
    """
    with call.reader(group, says_pending=False) as memory:
        found = finished(memory.failures(group=group))
    rows = [row.as_dict() for row in found]
    head = ("group", "episode", "attempts", "class", "message")
    named = [row | {"episode": row["client_id"] or printing.short(str(row["id"]))} for row in rows]
    cells, nothing = [[row[name] for name in head] for row in named], "No failed episodes."
    return call.answer({"failures": rows}, lambda: printing.table(cells, head=head, nothing=nothing))


@command("Groups with their counts.")
def groups(call: Call) -> int:
    """List the groups.

    kgray groups
    """
    from kgray.memory.reports import group_rows

    with call.memory() as memory:
        rows = group_rows(finished(memory.groups()))
    cells, head = [list(row.values()) for row in rows], ("group", "episodes", "entities", "facts")
    return call.answer({"groups": rows}, lambda: printing.table(cells, head=head, nothing="No groups."))
