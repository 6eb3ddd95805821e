"""up, down: Ray actors that stay when a command ends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from kgray.cli import printing
from kgray.cli.frame import Call, common


@click.command(short_help="Start Ray and its actors, to stay.")
@click.option("--profile", type=click.Path(path_type=Path), metavar="FILE", help="How big: a TOML file.")
@common
def up(call: Call, profile: Path | None) -> int:
    r"""Start, or find, the actors that ingest the data folder, and Ray where it is not up.

    They stay when the command ends, and ingest what other commands accept; `kgray down` ends them. With
    runtime.address they are started in the Ray at that address. Run again, it changes nothing.

    \b
    Example:
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
    if call.as_json:
        printing.emit_json(found)
        return 0
    verb = "started" if found["started"] else "are up"
    click.echo(f"{printing.counted(len(found['actors']), 'actor')} {verb} at {found['address']}.")
    if found["jobs"]:
        click.echo(f"Jobs are submitted to {found['jobs']}.")
    if settings.runtime.backend != "ray":
        printing.note('runtime.backend is "local": with "ray" other commands use what is up')
    return 0


@click.command(short_help="End the actors, and the Ray that up started.")
@common
def down(call: Call) -> int:
    r"""Commit what is in flight, then end the actors, and the Ray that `kgray up` started.

    What was accepted is safe: the next run goes on.

    \b
    Example:
      kgray down --data my-data
    """
    from kgray.runtime import lifecycle

    settings = call.settings()
    with lifecycle.one_at_a_time(call.folder, printing.note):
        ended = lifecycle.down(settings, call.folder, printing.note)
    if call.as_json:
        printing.emit_json(ended)
    elif not any(ended.values()):
        click.echo("Nothing is up.")
    else:
        actors = printing.counted(ended["actors"], "actor")
        click.echo(f"{actors} and {ended['processes']} processes of Ray ended.")
    return 0
