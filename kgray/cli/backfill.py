"""backfill: accepts and ingests files and folders in bulk."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from kgray.cli import printing
from kgray.cli.changing import defaults_of, nothing_accepted, print_counts, rows_options, say_end, say_quality
from kgray.cli.frame import TEXT, Call, Signals, command, finished, number
from kgray.cli.progress import Progress

if TYPE_CHECKING:
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
    from kgray.memory.backfill.inputs import find
    from kgray.memory.backfill.manifest import check_name, run_name
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

    with Signals.gentle(), Progress() as ticker:
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
