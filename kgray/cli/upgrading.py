"""upgrade: converts the store of an earlier version to this version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from kgray.cli import printing
from kgray.cli.frame import Call, command
from kgray.cli.progress import Progress

_MAX_ROWS = 20  # changed rows to print


@command("Convert an earlier version's store.")
@click.option("--dry-run", is_flag=True, help="Print the changes; change nothing.")
def upgrade(call: Call, dry_run: bool) -> None:
    """Convert the store of an earlier version of kgray to the format of this version. No model is called.

    End every process that uses the store first. The log, the answers of models and the records are copied;
    the rest is derived again and compared with the stored graph. Readers see the earlier store, then the new
    store, never a part. If it is interrupted, run it again.

    In a data folder the earlier file stays next to the new file. It still has texts that you remove later:
    delete it when you do not need it any more.

      kgray upgrade --data my-data --dry-run
      kgray upgrade --data my-data
    """
    from kgray.maintenance.upgrade import upgrade as run
    from kgray.runtime.wiring import build_ontology, open_earlier

    settings = call.settings()
    with Progress() as progress, open_earlier(settings, call.folder, alone=not dry_run) as earlier:
        if earlier is not None:
            ontology = build_ontology(settings)
            report = run(earlier, ontology, dry_run=dry_run, on_group=lambda _: progress.step("group"))
    if earlier is None:
        version = _version(settings.store.backend)
        report = {"from": version, "to": version, "groups": {}, "rows": {}, "verified": True, "kept": ""}
    if not call.emitted(report):
        _print(report, dry_run=dry_run)
    if changed := sum(len(group["changed"]) for group in report["groups"].values()):
        printing.note(f"{printing.counted(changed, 'row')} of facts and entities differ from the stored ones")


def _version(backend: str) -> int:
    if backend == "sqlite":
        from kgray.storage.sqlite.schema import VERSION
    else:
        from kgray.storage.neo4j.schema import VERSION
    return VERSION


def _print(report: Mapping[str, Any], *, dry_run: bool) -> None:
    if report["from"] == report["to"]:
        click.echo(f"The store is of this version (schema {report['to']}): there is nothing to upgrade.")
        return
    head = ("group", "episodes", "entities", "facts", "verdicts", "attached", "changed")
    rows = [
        [name, *(group[column] for column in head[1:-1]), len(group["changed"])]
        for name, group in report["groups"].items()
    ]
    printing.table(rows, head=head, nothing="No groups.")
    for name, group in report["groups"].items():
        for row in group["changed"][:_MAX_ROWS]:
            click.echo(f"{name}: {row['kind']} {row['id']}: {row['before']} -> {row['after']}")
    if dry_run:
        click.echo(f"Schema {report['from']} would become schema {report['to']}: nothing was changed.")
        return
    verified = (
        "all rows were read back, and give the same graph" if report["verified"] else "some facts differ"
    )
    click.echo(f"Schema {report['from']} has become schema {report['to']}: {verified}.")
    if report["kept"]:
        click.echo(f"The earlier file is {report['kept']}: delete it when you do not need it any more.")
