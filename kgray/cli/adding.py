"""add, retry: input into the log, and what is pending into the graph."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kgray.cli import printing
from kgray.cli.frame import (
    GROUP,
    MOMENT,
    TEXT,
    Call,
    Signals,
    any_group_option,
    command,
    finished,
    several,
    together,
)
from kgray.cli.outcome import FIRST, nothing_accepted, print_report, refusal_line, say_quality
from kgray.cli.progress import Progress
from kgray.errors import ContentError, InputError

if TYPE_CHECKING:
    from kgray.ingest.preview import Preview
    from kgray.intake.drafts import Defaults, Refusal
    from kgray.intake.files import Submitted
    from kgray.memory import Memory
    from kgray.ports.ingest import OnStep

_ON_ERROR = "stop: where anything is refused, nothing of the run is accepted. Default: skip."
_KINDS = ("message", "text", "json", "triples")
rows_options = together(
    click.option("--group", type=GROUP, metavar="G", help="The group of rows that name none."),
    click.option("--source", type=TEXT, metavar="S", help="The source of rows that name none."),
    click.option("--kind", type=click.Choice(_KINDS), help="The kind of rows that name none."),
    click.option("--at", type=MOMENT, metavar="T", help="The reference time of rows that have none."),
    click.option("--on-error", type=click.Choice(("skip", "stop")), default="skip", help=_ON_ERROR),
    click.option("--replace", is_flag=True, help="Replace episodes whose id is taken by other content."),
    click.option("--again", is_flag=True, help="Accept what was retracted, too; else it stays retracted."),
)


def defaults_of(options: dict[str, Any]) -> Defaults:
    """Return what the options say for rows that do not say it themselves."""
    from kgray.intake.drafts import Defaults
    from kgray.times import from_datetime

    at = None if options["at"] is None else from_datetime(options["at"])
    return Defaults(group=options["group"], source=options["source"], kind=options["kind"], at=at)


@command("Accept files and ingest them.")
@click.argument("files", nargs=-1, required=True, type=TEXT, metavar="FILE...")
@rows_options
@click.option("--dry-run", is_flag=True, help="Print what would change; accept nothing.")
@click.option("--accept-only", is_flag=True, help="Accept and return; a later add ingests.")
def add(call: Call, files: tuple[str, ...], **options: Any) -> int:  # noqa: ANN401 - click's options
    """Accept the rows of FILE... and ingest until nothing is pending. "-" is standard input.

    Files are JSON Lines, a JSON array, CSV, Parquet, or plain text (.txt, .md).

      kgray add chat.jsonl --group team
      echo '{"text": "I work at Acme now", "speaker": "Alice"}' | kgray add - --group team
    """
    defaults = defaults_of(options)
    with ExitStack() as stack:
        paths = [(name, regular(name, stack)) for name in files]
        memory = stack.enter_context(call.trial() if options["dry_run"] else call.memory(create=True))
        how = {name: options[name] for name in ("replace", "again")}
        if options["dry_run"]:
            return finished(_preview(call, memory.preview(**how), read(paths, defaults)))
        if options["on_error"] == "stop":
            checked = memory.check(read(paths, defaults), replace=options["replace"])
            if checked.refusals:
                return nothing_accepted(call, checked.as_dict(), checked.refusals)
        with Signals.gentle(), _watched(memory) as on_step:
            how |= {"accept_only": options["accept_only"], "on_step": on_step, "stop": Signals.asked}
            report = finished(memory.add_many(read(paths, defaults), **how))
        if not options["accept_only"]:
            say_quality(call)
    return print_report(call, report)


@command("Take failed episodes up again.")
@any_group_option
@several("--episode", "episodes", metavar="ID", help="This one only; repeatable.")
def retry(call: Call, group: str | None, episodes: tuple[str, ...]) -> int:
    """Take failed episodes up again, at a new place in their group's order.

    kgray retry --group team
    """
    with call.memory() as memory, Signals.gentle(), _watched(memory) as on_step:
        retried = memory.retry(group=group, episodes=episodes, on_step=on_step, stop=Signals.asked)
        report = finished(retried)
    return print_report(call, report)


def regular(name: str, stack: ExitStack) -> Path:
    """Return a path that can be read twice: standard input, pipes and the like are copied to a file first."""
    from kgray.intake.files import spooled

    if name == "-":
        return stack.enter_context(spooled())
    path = Path(name)
    try:
        if path.is_dir():
            raise InputError(f"{name} is a folder: name the files in it")
        if path.is_file():
            with path.open("rb"):
                return path
        with path.open("rb") as stream:
            return stack.enter_context(spooled(stream, suffix=path.suffix))
    except (OSError, ValueError) as error:
        raise InputError(f"{name} cannot be read: {getattr(error, 'strerror', None) or error}") from None


def read(paths: list[tuple[str, Path]], defaults: Defaults) -> Iterator[Submitted | Refusal]:
    """Yield the rows of files. paths: the name that is shown of each, and where it is read."""
    from kgray.intake.files import read_file

    for name, path in paths:
        yield from read_file(path, defaults, name=name)


@contextmanager
def _watched(memory: Memory) -> Iterator[OnStep]:
    """Draw a progress bar; yields the callback for steps.

    At the first step all input is accepted, so it counts what is pending.
    """
    with Progress() as progress:

        def step(_group: str, _sequence: int, outcome: str) -> None:
            if not progress.total:
                progress.total = memory.store.pending_count() + 1
            progress.step(outcome)

        yield step


async def _preview(call: Call, preview: Preview, items: Iterator[Submitted | Refusal]) -> int:
    """Print each change, and why rows would be refused or fail; return the exit code."""
    from kgray.intake.drafts import Refusal

    faults: list[str] = []
    count = 0
    for item in items:
        if isinstance(item, Refusal):
            faults.append(f"refused: {refusal_line(item)}")
            continue
        try:
            for row in await preview.rows(item.draft):
                _print_change(call, row, first=count == 0)
                count += 1
        except InputError as error:
            refusal = Refusal(file=item.file, line=item.line, field=error.field, reason=str(error))
            faults.append(f"refused: {refusal_line(refusal)}")
        except ContentError as error:
            faults.append(f"would fail: {error}")
    if call.as_json:
        click.echo("]}" if count else '{"changes": []}')
    elif not count:
        click.echo("Nothing would change.")
    for line in faults[:FIRST]:
        printing.note(line)
    if faults:
        more = f", {len(faults) - FIRST} of them not shown" if len(faults) > FIRST else ""
        printing.note(f"{len(faults)} would be refused or fail{more}")
    return 1 if faults else 0


def _print_change(call: Call, row: dict[str, Any], *, first: bool) -> None:
    import json

    if call.as_json:  # one document, written row by row: the input may be long
        start = '{"changes": [' if first else ", "
        click.echo((start + json.dumps(row, ensure_ascii=False)).encode(), nl=False)
        return
    values = (f"{k}={v}" for k, v in row.items() if k not in ("op", "type") and v not in (None, []))
    click.echo(f"{row.get('op', ''):6}  {row['type']:9}  {printing.plain(', '.join(values))}")
