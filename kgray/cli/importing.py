"""copy, import: copy a group into another store, and take over the memories of other programs."""

from __future__ import annotations

import os
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any

import click

from kgray.cli import printing
from kgray.cli.changing import print_counts, say_end
from kgray.cli.frame import TEXT, Call, Signals, command, finished, group_of, group_option, together
from kgray.cli.progress import Progress
from kgray.errors import InputError, KgrayError

if TYPE_CHECKING:
    from kgray.io.interchange.importing import ImportReport
    from kgray.settings import Settings

_FILE = click.Path(path_type=Path)
_PASSWORD = "NEO4J_PASSWORD"  # noqa: S105 - the variable's name, which Graphiti's own examples use


@command("Copy a group into another store.")
@group_option
@click.option("--to-data", metavar="DIR", type=TEXT, help="The target's data folder. Default: the source's.")
@click.option("--to-config", metavar="FILE", type=_FILE, help="The target's settings, such as its store.")
def copy(call: Call, group: str, to_data: str | None, to_config: Path | None) -> None:
    """Copy a group into a store that never had it: folder to folder, to Neo4j and back. Verified.

    The target's store is set by --to-config FILE, else by kgray.toml in --to-data DIR, else it is the
    folder's own file; KGRAY_STORE_* variables apply to the source, KGRAY_STORE_PASSWORD to both. All stored
    rows are copied, record times included; then all rows and the graph, now and at earlier moments, are
    compared. The source does not change. A second copy compares again.

      kgray copy --group team --data my-data --to-config neo4j.toml
      kgray copy --group team --config neo4j.toml --to-data back
    """
    from kgray.maintenance.transfer.copying import copy_group
    from kgray.runtime.wiring import open_reader

    if to_data is None and to_config is None:
        raise InputError("no target: name its folder by --to-data, its settings by --to-config, or both")
    folder = call.folder if to_data is None else Path(to_data)
    settings, was_there = _settings_of_target(to_config, to_data), folder.exists()
    with Progress() as progress, closing(open_reader(call.settings(), call.folder)) as source:
        try:
            with closing(open_reader(settings, folder, create=True)) as target:
                copied = copy_group(source, target, group, on_row=lambda: progress.step("row"))
                target_name = target.location
        except KgrayError:
            if not was_there:  # no partial copy stays behind
                rmtree(folder, ignore_errors=True)
            raise
    if not copied.existed:
        printing.note(f"the source is as it was; `kgray remove --group {group} --all` takes it away")
    document = {"group": group, "to": target_name, "already": copied.existed, "rows": dict(copied.rows)}
    if not call.emitted(document | {"moments": copied.moments}):
        did = "was there already" if copied.existed else "is copied"
        summary = f"{group} {did}, in {printing.plain(target_name)}"
        click.echo(f"{summary}: the same in every row, and the same graph")
        printing.pairs((name, f"{count:,}") for name, count in copied.rows.items() if name != "group")
        click.echo(f"graphs compared: now and at {copied.moments - 1} earlier moments")


import_from = group_of(
    "import",
    "Take over another program's memory.",
    "Take over another program's memory.\n\nkgray import graphiti bolt://localhost:7687 --group team",
)

_reading_options = together(
    group_option,
    click.option("--dry-run", is_flag=True, help="Read and count; accept nothing."),
    click.option("--replace", is_flag=True, help="Replace imported episodes that have changed there."),
)


@command("A Graphiti database on Neo4j.", parent=import_from)
@click.argument("uri", type=TEXT)
@_reading_options
@click.option("--from-group", type=TEXT, metavar="ID", help="Its group_id. Default: the only one.")
@click.option("--user", type=TEXT, default="neo4j", show_default=True, metavar="U")
@click.option("--database", type=TEXT, metavar="D", help="Default: the user's own.")
@click.option("--password-file", type=TEXT, metavar="FILE", help=f"Default: {_PASSWORD} in the environment.")
def graphiti(call: Call, uri: str, password_file: str | None, **options: Any) -> int:  # noqa: ANN401 - click's
    """Read a Graphiti database (episodes, entities, facts) into a group; nothing is written to it.

    Each of its episodes becomes an episode of triples: its facts, with their spans and sentences. Its text
    is stored, and a search of episodes finds it; no model reads it. Graphiti's record times become metadata.
    Ids are Graphiti's, so a second import adds only new rows. Rows that cannot be mapped are counted.

      NEO4J_PASSWORD=... kgray import graphiti bolt://localhost:7687 --group team --from-group main
    """
    options["user"] = options["user"] or "neo4j"
    report = _imported(call, uri, form="graphiti", password=_password(password_file), **options)
    if not call.as_json:
        click.echo("read: {episodes} episodes, {facts} facts".format(**report.further))
    if report.lost:
        printing.note(f"{printing.counted(report.lost, 'fact')} could not be mapped")
    return call.code


def _imported(call: Call, source: str, *, form: str, dry_run: bool, **options: Any) -> ImportReport:  # noqa: ANN401 - click's
    """Import a source, and print the report."""
    ends_gently = not dry_run and form != "parquet"  # these two read no flag
    with (
        call.trial() if dry_run else call.memory(create=True) as memory,
        Signals.gentle() if ends_gently else nullcontext(),
        Progress() as progress,
    ):
        options |= {"form": form, "on_step": progress.step, "stop": Signals.is_stopping}
        report = finished(memory.import_from(source, dry_run=dry_run, **options))
    ingested: Any = report.ingestion
    call.code = report.exit_code
    if ingested is not None and not call.as_json:
        print_counts(call, report.as_dict(), ingested.refusals)
    if not call.emitted(report.as_dict()):
        click.echo(f"{report.taken} taken, {report.changed} changed, {report.omitted} omitted")
        printing.pairs((f"  {reason}", count) for reason, count in report.reasons.items())
    if ingested is not None:
        say_end(ingested, refused=ingested.refused)
    return report


def _importer(form: str, source: str, example: str) -> None:
    """Add the command that imports files of a format."""

    def work(call: Call, path: str, **options: Any) -> int:  # noqa: ANN401 - click's
        return _imported(call, path, form=form, **options).exit_code

    work.__doc__ = (
        f"Read {source} into a group. Importing again adds only new rows.\n\nkgray import {example}"
    )
    decorated = together(click.argument("path", type=TEXT, metavar="SOURCE"), _reading_options)(work)
    command(f"{source[0].upper()}{source[1:]}.", name=form, parent=import_from)(decorated)


for _form, _source, _example in (
    ("graphrag", "the Parquet tables of GraphRAG", "graphrag output/ --group team"),
    ("lightrag", "LightRAG's storage folder or a custom_kg file", "lightrag rag_storage/ --group team"),
    ("cogx", "a COGX archive of cognee", "cogx archive.cogx.tar.gz --group team"),
    ("zep", "JSON of Zep or Graphiti", "zep graph.json --group team"),
    ("mem0", "memories of Mem0", "mem0 memories.json --group team --dry-run"),
):
    _importer(_form, _source, _example)


@command("kgray's own Parquet tables, whole.", parent=import_from)
@click.argument("path", type=TEXT, metavar="SOURCE")
@group_option
@click.option("--dry-run", is_flag=True, help="Read and count; accept nothing.")
def parquet(call: Call, path: str, **options: Any) -> int:  # noqa: ANN401 - click's
    """Restore a group that `kgray export --to parquet` wrote: each row unchanged, record times included.

    kgray import parquet export/ --group team
    """
    return _imported(call, path, form="parquet", **options).exit_code


def _password(file: str | None) -> str:
    if file is None:
        if password := os.environ.get(_PASSWORD):
            return password
        raise InputError(f"no password: set {_PASSWORD} in the environment, or name --password-file")
    try:
        return Path(file).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise InputError(f"--password-file {file!r} cannot be read: {reason}") from None


def _settings_of_target(config: Path | None, data: str | None) -> Settings:
    """Return the target's settings; the only variable used is the password, if the file has none."""
    from kgray.settings import CONFIG_NAME, load
    from kgray.settings.checks import Secret

    if config is None and data is not None and (default_file := Path(data, CONFIG_NAME)).is_file():
        config = default_file
    environ = {name: text for name, text in os.environ.items() if not name.startswith("KGRAY_STORE_")}
    settings, password = load(config, environ=environ), os.environ.get("KGRAY_STORE_PASSWORD")
    if password and settings.store.password is None and settings.store.password_file is None:
        settings = replace(settings, store=replace(settings.store, password=Secret(password)))
    return settings
