"""backfill: files and folders to the graph in bulk, resumable, here or as a job of a Ray cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kgray.cli import printing
from kgray.cli.adding import defaults_of, rows_options
from kgray.cli.frame import TEXT, Call, Signals, command, finished, number
from kgray.cli.outcome import nothing_accepted, print_counts, say_end, say_quality
from kgray.cli.progress import Ticker
from kgray.errors import STOPPED, InputError

if TYPE_CHECKING:
    from kgray.backfill.run import RunRequest
    from kgray.memory import Memory
    from kgray.settings import Settings

_ORDER = "reference-time: sort the rows of all files by it first. Default: file."
# Options that are passed on to a job.
_HANDED_ON = ("group", "source", "kind", "on_error", "limit", "max_calls", "max_tokens", "order")


@command("Accept and ingest files and folders in bulk; resumable.")
@click.argument("paths", nargs=-1, required=True, type=TEXT, metavar="PATH...")
@rows_options
@click.option("--dry-run", is_flag=True, help="Check every row and say what it would cost; accept nothing.")
@number("--limit", help="Take N rows; running it again takes the next ones.")
@number("--max-calls", help="Stop when so many model calls were made.")
@number("--max-tokens", help="Stop when so many tokens were used.")
@click.option("--order", type=click.Choice(("file", "reference-time")), default="file", help=_ORDER)
@click.option("--run", type=TEXT, metavar="NAME", help="The run to go on with. Default: by store and paths.")
@click.option("--submit", is_flag=True, help="Run as a Ray job, and follow its log.")
@click.option("--job-server", type=TEXT, metavar="URL", help="Where to submit. Default: runtime.address.")
@click.option("--python", type=TEXT, metavar="FILE", help="The job's interpreter. Default: this one.")
def backfill(call: Call, paths: tuple[str, ...], **options: Any) -> int:  # noqa: ANN401 - click's options
    """Accept the rows of PATH... in bulk, ingest them meanwhile, and report. Folders are searched.

    Files are JSON Lines, a JSON array, CSV, Parquet, or plain text (.txt, .md), read a batch at a time; a
    PATH may be a URL: s3://, gs://, hdfs://, file://.
    Stopped or killed, the same command goes on where it was: a file that has not changed is read on
    behind its last accepted row. The run's manifest, report and refused rows lie in DIR/runs/RUN.

      kgray backfill archive/ --group team --dry-run
      kgray backfill archive/ --group team --max-tokens 2000000
    """
    from kgray.backfill.manifest import check_name, run_name

    settings, given = call.settings(), options["run"]
    run = run_name(settings, call.folder, paths) if given is None else check_name(given)
    if options["submit"]:
        return _as_job(call, settings, run, paths, options)
    if options["job_server"] or options["python"]:
        raise InputError("--job-server and --python are for --submit")
    request = _request(call, run, paths, options)
    with call.trial() if options["dry_run"] else call.memory(create=True) as memory:
        if options["dry_run"]:
            return _dry_run(call, settings, memory, request)
        if options["on_error"] == "stop":
            from kgray.backfill.run import forecast

            found = forecast(memory.store, request)
            if found.refused:
                document = found.as_dict() | {"accepted": 0, "duplicate": 0}
                return nothing_accepted(call, document, found.report.refusals)
        return _in_place(call, memory, request)


def _request(call: Call, run: str, paths: tuple[str, ...], options: dict[str, Any]) -> RunRequest:
    from kgray.backfill.manifest import find
    from kgray.backfill.run import RunRequest

    return RunRequest(
        run=run,
        inputs=find(paths, call.folder),
        defaults=defaults_of(options),
        **{name: options[name] for name in ("replace", "again", "order", "limit", "max_calls", "max_tokens")},
    )


def _in_place(call: Call, memory: Memory, request: RunRequest) -> int:
    from kgray.backfill.manifest import RunFolder
    from kgray.backfill.run import backfill as carried_out

    with Signals.gentle(), Ticker() as ticker:
        found = finished(carried_out(memory, call.folder, request, stop=Signals.asked, watch=ticker))
    call.code = found.exit_code
    document = found.as_dict()
    print_counts(call, document, found.report.refusals, kept=RunFolder(call.folder, request.run).refused)
    if not call.as_json:
        _show(document["report"])
    say_quality(call)
    if document["report"]["state"] == "limited":
        printing.note("--limit is reached; run it again to take the next rows")
    say_end(found.report, refused=found.refused)
    return found.exit_code


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


def _dry_run(call: Call, settings: Settings, memory: Memory, request: RunRequest) -> int:
    from kgray.backfill.run import forecast
    from kgray.prompting.estimate import estimate_work
    from kgray.wiring import build_ontology, build_prompts

    estimate = None
    if settings.model.backend in ("openai", "vllm"):
        prompts = build_prompts(settings, build_ontology(settings))
        estimate = partial(estimate_work, prompts=prompts, pipeline=settings.pipeline)
    found = forecast(memory.store, request, estimate=estimate)
    print_counts(call, found.as_dict(), found.report.refusals)
    if not call.as_json and (plan := found.more["plan"]) is None:
        click.echo("Nothing is accepted. No language model is configured, so there is nothing to pay.")
    elif not call.as_json:
        click.echo(
            f"Nothing is accepted. It would take about {plan['calls']:,} model calls, "
            f"{plan['prompt_tokens']:,} prompt tokens and {plan['completion_tokens']:,} completion tokens."
        )
    if found.refused:
        printing.note(f"{found.refused} would be refused")
    return 1 if found.refused else 0


def _as_job(call: Call, settings: Settings, run: str, paths: tuple[str, ...], options: dict[str, Any]) -> int:
    from kgray.backfill.manifest import submitted
    from kgray.intake.drafts import Refusal
    from kgray.runtime.jobs import Job, follow
    from kgray.runtime.spec import as_environ
    from kgray.settings import public_environ

    if options["dry_run"]:
        raise InputError("--dry-run accepts nothing, so it is run in place: leave --submit out")
    address, token = _job_server(call, settings, options["job_server"])
    python = options["python"] or sys.executable
    # A store on a server needs nothing of this machine where a job server is that is not of `kgray up`.
    elsewhere = token is None and settings.store.backend != "sqlite"
    environ = as_environ(settings) if elsewhere else public_environ(os.environ)
    options |= {"elsewhere": elsewhere}
    command = [python, "-m", "kgray", "backfill", *_job_options(call, run, options)]
    command += ["--", *map(submitted, paths)]
    job = Job(run=run, command=command, environ=environ)
    with Signals.gentle():
        ended = follow(
            address, job, tell=lambda line: click.echo(line, err=True), stop=Signals.asked, token=token
        )
    if ended is None:
        printing.note("the job goes on; the same command follows it again")
        return STOPPED
    call.code = ended.code
    if (document := ended.document) is not None:
        print_counts(call, document, tuple(Refusal(**row) for row in document["refusals"]))
        if not call.as_json and "report" in document:
            _show(document["report"])
    printing.note(f"job {ended.job}: {ended.status.lower()}{f' ({ended.reason})' if ended.reason else ''}")
    return ended.code


def _job_server(call: Call, settings: Settings, said: str | None) -> tuple[str, Path | None]:
    """Return the job server's address and its token's file.

    The address is that of --job-server, else of runtime.address, else of `kgray up`.
    """
    from kgray.runtime import head as heads

    address = said or settings.runtime.address or ""
    head = None if said else heads.read(call.folder)
    if head is not None and head.jobs and address in ("", head.address, head.jobs):
        return head.jobs, Path(head.token)
    if address.startswith(("http://", "https://")):
        return address, None
    raise InputError(
        "--submit needs the address of Ray's job server, such as http://127.0.0.1:8265: "
        "say --job-server, or set runtime.address to it"
    )


def _job_options(call: Call, run: str, options: dict[str, Any]) -> Iterator[str]:
    """Yield the job's options: those of this command, with absolute paths, or without paths elsewhere."""
    from kgray.settings import config_file

    yield from ("--json", "--run", run)
    if options["elsewhere"]:
        yield from ("--data", call.data) if call.data else ()
    else:
        yield from ("--data", str(call.folder.absolute()))
        if (config := config_file(call.config, call.folder, os.environ)) is not None:
            yield from ("--config", str(config.absolute()))
    if call.debug:
        yield "--debug"
    yield from (f"--{name}" for name in ("replace", "again") if options[name])
    if options["at"] is not None:
        yield from ("--at", options["at"].isoformat())
    for name in _HANDED_ON:
        if options[name] is not None:
            yield from (f"--{name.replace('_', '-')}", str(options[name]))
