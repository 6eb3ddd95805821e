"""init, status, failures, groups: the folder and its ledger."""

from __future__ import annotations

from typing import Any

import click

from kgray.cli import printing
from kgray.cli.frame import Call, any_group_option, common, finished
from kgray.cli.waiting import last_outage


@click.command(short_help="Make the data folder and its store.")
@common
def init(call: Call) -> int:
    r"""Make the data folder and its store. Run again, it changes nothing.

    \b
    Example:
      kgray init --data my-data
    """
    settings = call.settings()
    with call.memory(create=True) as memory:
        version = memory.store.schema_version
    made = {"data": str(call.folder), "store": settings.store.backend, "schema_version": version}
    if call.as_json:
        printing.emit_json(made)
    else:
        click.echo(f"{made['data']} is ready ({made['store']}, schema {version}).")
    return 0


@click.command(short_help="The ledger: episodes by state.")
@any_group_option
@common
def status(call: Call, group: str | None) -> int:
    r"""Show how many episodes are in which state, and what the model has cost.

    \b
    Example:
      kgray status
    """
    from kgray.runtime import lifecycle

    with call.reader(group, says_pending=False) as memory:
        counts = finished(memory.status(group=group))
    runtime = lifecycle.status(call.settings(), call.folder)
    outage = last_outage(call.folder, runtime.get("actors", {}).values())
    states = ("accepted", "extracted", "committed", "failed")
    costs = ("calls", "prompt_tokens", "completion_tokens")
    model = {name: sum(getattr(count, name) for count in counts.values()) for name in costs}
    if call.as_json:
        groups = {name: {state: getattr(row, state) for state in states} for name, row in counts.items()}
        printing.emit_json({"groups": groups, "model": model, "outage": outage, "runtime": runtime})
        return 0
    rows = [[name, *(str(getattr(row, state)) for state in states)] for name, row in counts.items()]
    if rows:
        printing.table(rows, head=("group", *states))
    else:
        click.echo("No episodes.")
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
    return 0


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


@click.command(short_help="Failed episodes with their reasons.")
@any_group_option
@common
def failures(call: Call, group: str | None) -> int:
    r"""List the episodes that failed by their own content; `kgray retry` takes them up again.

    --json gives the model's last reply too; so does `kgray show`.

    \b
    Example:
      kgray failures --group team
    """
    with call.reader(group, says_pending=False) as memory:
        found = finished(memory.failures(group=group))
    rows = [
        {
            "id": row.episode.id,
            "client_id": row.episode.client_id,
            "class": row.failure.kind,
            "message": row.failure.message,
            "attempts": row.failure.attempts,
            "reply": row.failure.raw or None,
            "group": row.group,
        }
        for row in found
    ]
    if call.as_json:
        printing.emit_json({"failures": rows})
    elif rows:
        shown = ("group", "episode", "attempts", "class", "message")
        cells = [row | {"episode": row["client_id"] or printing.short(str(row["id"]))} for row in rows]
        printing.table([[str(row[name]) for name in shown] for row in cells], head=shown)
    else:
        click.echo("No failed episodes.")
    return 0


@click.command(short_help="Groups with their counts.")
@common
def groups(call: Call) -> int:
    r"""List the groups.

    \b
    Example:
      kgray groups
    """
    with call.memory() as memory:
        counts = finished(memory.groups())
    rows = []
    for name, row in counts.items():
        episodes = row.accepted + row.extracted + row.committed + row.failed
        rows.append({"group": name, "episodes": episodes, "entities": row.entities, "facts": row.facts})
    if call.as_json:
        printing.emit_json({"groups": rows})
    elif rows:
        printing.table([[str(cell) for cell in row.values()] for row in rows], head=tuple(rows[0]))
    else:
        click.echo("No groups.")
    return 0
