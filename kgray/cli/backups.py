"""backup, restore: a whole store, or groups of it, to a folder or a URL and back."""

from __future__ import annotations

import os
from contextlib import closing
from shutil import rmtree
from typing import TYPE_CHECKING

import click

from kgray.cli import printing
from kgray.cli.frame import GROUP, TEXT, Call, command
from kgray.errors import KgrayError

if TYPE_CHECKING:
    from kgray.transfer.backup_files import Manifest

_HELP = "This group only; may be repeated."
_some_groups = click.option("--group", "groups", type=GROUP, multiple=True, metavar="G", help=_HELP)


@command("Copy the store to a folder or a URL.")
@click.argument("to", type=TEXT, metavar="TO")
@_some_groups
def backup(call: Call, to: str, groups: tuple[str, ...]) -> None:
    """Copy all groups, or some, to TO, while others add and ingest. Verified by hash.

    TO is a folder that is new or empty, or a URL: s3://, gs://, hdfs://, file://. It is a backup once it has
    backup.json, which is written last. All of a data folder that goes to a folder is as of one moment, and a
    data folder again; else each group has a file of its own, which any store takes. Without --group the keys
    of the server, its audit log, webhooks and schedules go along.

      kgray backup backups/2026-12-01
      kgray backup s3://bucket/kgray/2026-12-01 --group team
    """
    from kgray.transfer.backups import backup as make_backup
    from kgray.wiring import open_reader

    with printing.Progress() as progress, closing(open_reader(call.settings(), call.folder)) as source:
        made = make_backup(source, to, groups, on_row=lambda: progress.step("row"))
    _tell(call, made, f"are in {to.partition('?')[0]}")


@command("Put a backup back into a store.")
@click.argument("origin", type=TEXT, metavar="FROM")
@_some_groups
@click.option("--dry-run", is_flag=True, help="Read and verify the backup; change nothing.")
def restore(call: Call, origin: str, groups: tuple[str, ...], dry_run: bool) -> None:
    """Put the groups of the backup in FROM into the store of the settings, which is made if there is none.

    The backup is verified before anything is changed, and each group after it was put; no group can be read
    before it is whole. A group that is there already is compared: where it differs, nothing is changed.
    Killed, the same command goes on. A new data folder gets the settings of the backup, unless --config
    names others.

      kgray restore backups/2026-12-01 --data new-data
      kgray restore s3://bucket/kgray/2026-12-01 --config neo4j.toml
    """
    from kgray.settings import CONFIG_VARIABLE
    from kgray.transfer import restoring

    if dry_run:
        _tell(call, restoring.verify(origin, groups), "are whole; nothing was changed")
        return
    was_there = call.folder.exists()
    try:
        if not (call.config or os.environ.get(CONFIG_VARIABLE)):
            restoring.lend_settings(origin, call.folder)
        with printing.Progress() as progress:
            found = restoring.restore(
                call.settings(), call.folder, origin, groups, on_row=lambda: progress.step("row")
            )
    except KgrayError:
        if not was_there:
            rmtree(call.folder, ignore_errors=True)
        raise
    _tell(call, found, f"are in {call.folder}")


def _tell(call: Call, found: Manifest, where: str) -> None:
    if not call.emitted(found.as_dict()):
        sums, groups = found.sums(), printing.counted(len(found.groups), "group")
        click.echo(printing.plain(f"{groups}, {printing.counted(sums['rows'], 'row')} {where}"))
        click.echo(f"sha256 {sums['sha256']}")
