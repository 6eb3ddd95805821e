"""backup, restore: a whole store, or groups of it, to a folder or a URL and back."""

from __future__ import annotations

import os
from contextlib import closing
from shutil import rmtree
from typing import TYPE_CHECKING

import click

from kgray.cli import printing
from kgray.cli.frame import GROUP, TEXT, Call, command
from kgray.cli.progress import Progress
from kgray.errors import KgrayError

if TYPE_CHECKING:
    from kgray.maintenance.transfer.backup_files import Manifest

_HELP = "This group only; may be repeated."
_some_groups = click.option("--group", "groups", type=GROUP, multiple=True, metavar="G", help=_HELP)


@command("Copy the store to a folder or a URL.")
@click.argument("to", type=TEXT, metavar="TO")
@_some_groups
def backup(call: Call, to: str, groups: tuple[str, ...]) -> None:
    """Copy all groups, or some, to TO, while others add and ingest. Verified by hash.

    TO is a new or empty folder, or a URL: s3://, gs://, hdfs://, file://. The backup is complete when
    backup.json exists, which is written last. A whole data folder copied to a folder is a snapshot of one
    moment, and is itself a data folder; else each group becomes a file that any store can restore. Without
    --group the server's keys, its audit log, webhooks and schedules are copied too.

      kgray backup backups/2026-12-01
      kgray backup s3://bucket/kgray/2026-12-01 --group team
    """
    from kgray.maintenance.transfer.backups import backup as make_backup
    from kgray.runtime.wiring import open_reader

    with Progress() as progress, closing(open_reader(call.settings(), call.folder)) as source:
        manifest = make_backup(source, to, groups, on_row=lambda: progress.step("row"))
    _tell(call, manifest, f"are in {to.partition('?')[0]}")


@command("Put a backup back into a store.")
@click.argument("origin", type=TEXT, metavar="FROM")
@_some_groups
@click.option("--dry-run", is_flag=True, help="Read and verify the backup; change nothing.")
def restore(call: Call, origin: str, groups: tuple[str, ...], dry_run: bool) -> None:
    """Restore the groups of the backup in FROM into the store of the settings; a missing store is created.

    The backup is verified before anything is changed, and each group after it is written; no group can be
    read before it is complete. A group that exists already is compared: if it differs, nothing is changed.
    If the command is killed, run it again to continue. A new data folder gets the settings of the backup,
    unless --config names others.

      kgray restore backups/2026-12-01 --data new-data
      kgray restore s3://bucket/kgray/2026-12-01 --config neo4j.toml
    """
    from kgray.maintenance.transfer import restoring
    from kgray.settings import CONFIG_VARIABLE

    if dry_run:
        _tell(call, restoring.verify(origin, groups), "are whole; nothing was changed")
        return
    was_there = call.folder.exists()
    try:
        if not (call.config or os.environ.get(CONFIG_VARIABLE)):
            restoring.lend_settings(origin, call.folder)
        with Progress() as progress:
            manifest = restoring.restore(
                call.settings(), call.folder, origin, groups, on_row=lambda: progress.step("row")
            )
    except KgrayError:
        if not was_there:
            rmtree(call.folder, ignore_errors=True)
        raise
    _tell(call, manifest, f"are in {call.folder}")


def _tell(call: Call, manifest: Manifest, sentence_end: str) -> None:
    if not call.emitted(manifest.as_dict()):
        sums, groups = manifest.sums(), printing.counted(len(manifest.groups), "group")
        click.echo(printing.plain(f"{groups}, {printing.counted(sums['rows'], 'row')} {sentence_end}"))
        click.echo(f"sha256 {sums['sha256']}")
