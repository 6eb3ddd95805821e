"""backfill: ingests files and folders. copy, import: take over the contents of other memories."""

from __future__ import annotations

import os
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any

import click

from kgray.cli import printing
from kgray.cli.changing import defaults_of, nothing_accepted, print_counts, rows_options, say_end, say_quality
from kgray.cli.frame import (
    TEXT,
    Call,
    Signals,
    command,
    finished,
    group_of,
    group_option,
    number,
    together,
)
from kgray.errors import InputError, KgrayError

if TYPE_CHECKING:
    from kgray.io.interchange.importing import ImportReport
    from kgray.memory import AsyncMemory
    from kgray.memory.backfill.run import RunRequest
    from kgray.settings import Settings

_ORDER = "reference-time: sort the rows of all files by it first. Default: file."


@command("Accept and ingest files and folders in bulk; resumable.")
@click.argument("paths", nargs=-1, required=True, type=TEXT, metavar="PATH...")
@rows_options
@click.option("--dry-run", is_flag=True, help="Check every row and say what it would cost; accept nothing.")
@number("--limit", help="Take N rows; running it again takes the next ones.")
@number("--max-calls", help="Stop after N model calls.")
@number("--max-tokens", help="Stop after N tokens.")
@click.option("--order", type=click.Choice(("file", "reference-time")), default="file", help=_ORDER)
@click.option("--run", type=TEXT, metavar="NAME", help="The run to continue. Default: by store and paths.")
def backfill(call: Call, paths: tuple[str, ...], **options: Any) -> int:  # noqa: ANN401 - click's options
    """Accept the rows of PATH... in bulk, ingest them meanwhile, and report. Folders are searched.

    Files are JSON Lines, a JSON array, CSV, Parquet, or plain text (.txt, .md), read a batch at a time; a
    PATH may be a URL: s3://, gs://, hdfs://, file://.
    After a stop or a kill, the same command continues: an unchanged file is read from the row after its
    last accepted row. The run's manifest, report and refused rows are in DIR/runs/RUN.
    On a cluster of Ray: `ray job submit -- python -m kgray.cli.job backfill PATH...`.

      kgray backfill archive/ --group team --dry-run
      kgray backfill archive/ --group team --max-tokens 2000000
    """
    from kgray.memory.backfill.manifest import check_name, find, run_name
    from kgray.memory.backfill.run import RunRequest, forecast

    settings, run_option = call.settings(), options["run"]
    run = run_name(settings, call.folder, paths) if run_option is None else check_name(run_option)
    request = RunRequest(
        run=run,
        inputs=find(paths, call.folder),
        defaults=defaults_of(options),
        **{name: options[name] for name in ("replace", "again", "order", "limit", "max_calls", "max_tokens")},
    )
    with call.trial() if options["dry_run"] else call.memory(create=True) as memory:
        memory.check_embedder()
        if options["dry_run"]:
            return _dry_run(call, settings, memory, request)
        if options["on_error"] == "stop":
            expected = forecast(memory.store, request)
            if expected.refused:
                document = expected.as_dict() | {"accepted": 0, "duplicate": 0}
                return nothing_accepted(call, document, expected.refusals)
        return _in_place(call, memory, request)


def _in_place(call: Call, memory: AsyncMemory, request: RunRequest) -> int:
    from kgray.memory.backfill.manifest import RunFolder
    from kgray.memory.backfill.run import backfill as carried_out

    with Signals.gentle(), printing.Progress() as ticker:
        result = finished(carried_out(memory, call.folder, request, stop=Signals.is_stopping, watch=ticker))
    call.code = result.exit_code
    document = result.as_dict()
    print_counts(call, document, result.refusals, file_of_all=RunFolder(call.folder, request.run).refused)
    if not call.as_json:
        _show(document["report"])
    say_quality(call)
    if document["report"]["state"] == "limited":
        printing.note("--limit is reached; run it again to take the next rows")
    say_end(result, refused=result.refused)
    return result.exit_code


def _show(report: dict[str, Any]) -> None:
    """Print the report for people."""
    tokens = f"{report['prompt_tokens']:,} prompt tokens, {report['completion_tokens']:,} completion tokens"
    rate = report["episodes_per_s"]
    rows = {
        "run": f"{report['run']}, attempt {report['attempt']}: {report['state']}",
        "input": f"{printing.counted(report['files'], 'file')}, {printing.counted(report['rows'], 'row')} "
        f"({report['skipped']} taken before)",
        "model": f"{report['calls']:,} calls, {tokens}",
        "ahead": f"{report['requests']} requests, {report['stalls']} stalls, {report['wasted']} wasted "
        f"({report['wasted_tokens']} tokens)",
        "seconds": "not known: another process ingests this folder, and did the work"
        if report["seconds"] is None
        else ", ".join(f"{stage} {spent:.2f}" for stage, spent in report["seconds"].items()),
        "rate": "not known" if rate is None else f"{rate} episodes/s from the first claim to the last commit",
    }
    if classes := report["failures"]["classes"]:
        rows["failed"] = ", ".join(f"{number} {name}" for name, number in sorted(classes.items()))
    printing.pairs(rows)
    for row in report["failures"]["first"]:
        name = row["client_id"] or row["id"]
        click.echo(printing.plain(f"  {row['group']} {name}: {row['class']}: {row['message']}"))


def _dry_run(call: Call, settings: Settings, memory: AsyncMemory, request: RunRequest) -> int:
    from kgray.memory.backfill.run import forecast
    from kgray.models.prompting.estimate import estimate_work
    from kgray.runtime.wiring import build_ontology, build_prompts

    estimate = None
    if settings.model.backend in ("openai", "vllm"):
        prompts = build_prompts(settings, build_ontology(settings))
        estimate = partial(estimate_work, prompts=prompts, pipeline=settings.pipeline)
    expected = forecast(memory.store, request, estimate=estimate)
    print_counts(call, expected.as_dict(), expected.refusals)
    cost = "No language model is configured, so there is nothing to pay."
    if plan := expected.more["plan"]:
        cost = (
            f"It would take about {plan['calls']:,} model calls, {plan['prompt_tokens']:,} prompt tokens and "
            f"{plan['completion_tokens']:,} completion tokens."
        )
    if not call.as_json:
        click.echo(f"Nothing is accepted. {cost}")
    if expected.refused:
        printing.note(f"{expected.refused} would be refused")
    return 1 if expected.refused else 0


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
    with printing.Progress() as progress, closing(open_reader(call.settings(), call.folder)) as source:
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
        printing.Progress() as progress,
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
