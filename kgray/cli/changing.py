"""add, retry: input to the log and to the graph. merge, ..., remove: corrections of both."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
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
    group_option,
    several,
    together,
)
from kgray.cli.progress import Progress
from kgray.domain import times
from kgray.domain.json_form import as_json
from kgray.errors import FAULTY, ContentError, InputError, exit_code_of

if TYPE_CHECKING:
    from kgray.ingest.preview import Preview
    from kgray.io.intake.drafts import Defaults, Refusal
    from kgray.io.intake.files import Submitted
    from kgray.memory import Report
    from kgray.memory.results import WithdrawalCounts

FIRST = 10  # refusals that are shown one by one
_ON_ERROR = "stop: a refused row makes the whole run accept nothing. Default: skip."
_KINDS = click.Choice(("message", "text", "json", "triples"))
rows_options = together(
    click.option("--group", type=GROUP, metavar="G", help="The group of rows that name none."),
    click.option("--source", type=TEXT, metavar="S", help="The source of rows that name none."),
    click.option("--kind", type=_KINDS, help="The kind of rows that name none."),
    click.option("--at", type=MOMENT, metavar="T", help="The reference time of rows that have none."),
    click.option("--on-error", type=click.Choice(("skip", "stop")), default="skip", help=_ON_ERROR),
    click.option("--replace", is_flag=True, help="Replace episodes that have the same id but other content."),
    click.option("--again", is_flag=True, help="Accept retracted episodes again; else they stay retracted."),
)


def defaults_of(options: dict[str, Any]) -> Defaults:
    """Return the options' values for rows that lack their own."""
    from kgray.io.intake.drafts import Defaults

    at = options["at"] and times.from_datetime(options["at"])
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
        paths = [(name, _regular(name, stack)) for name in files]
        memory = stack.enter_context(call.trial() if options["dry_run"] else call.memory(create=True))
        arguments = {name: options[name] for name in ("replace", "again")}
        if options["dry_run"]:
            return finished(_preview(call, memory.admin.preview(**arguments), _read(paths, defaults)))
        if options["on_error"] == "stop":
            checked = memory.admin.check(_read(paths, defaults), replace=options["replace"])
            if checked.refusals:
                return nothing_accepted(call, checked.as_dict(), checked.refusals)
        with Signals.gentle(), Progress(memory.store.pending_count) as progress:
            arguments |= {
                "accept_only": options["accept_only"],
                "on_step": progress.step,
                "stop": Signals.is_stopping,
            }
            report = finished(memory.add_many(_read(paths, defaults), **arguments))
        if not options["accept_only"]:
            say_quality(call)
    return _print_report(call, report)


@command("Retry failed episodes.")
@any_group_option
@several("--episode", "episodes", metavar="ID", help="This episode only; repeatable.")
def retry(call: Call, group: str | None, episodes: tuple[str, ...]) -> int:
    """Retry failed episodes, at a new place in their group's order.

    kgray retry --group team
    """
    with call.memory() as memory, Signals.gentle(), Progress(memory.store.pending_count) as progress:
        retried = memory.retry(
            group=group, episodes=episodes, on_step=progress.step, stop=Signals.is_stopping
        )
        report = finished(retried)
    return _print_report(call, report)


def _regular(name: str, stack: ExitStack) -> Path:
    """Return a path that can be read twice; standard input and pipes are copied to a file first."""
    from kgray.io.intake.files import spooled

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


def _read(paths: list[tuple[str, Path]], defaults: Defaults) -> Iterator[Submitted | Refusal]:
    from kgray.io.intake.files import read_file

    for name, path in paths:
        yield from read_file(path, defaults, name=name)


async def _preview(call: Call, preview: Preview, items: Iterator[Submitted | Refusal]) -> int:
    """Print each change and the reasons of refusals and failures; return the exit code."""
    from kgray.io.intake.drafts import Refusal

    faults, count = list[str](), 0
    for item in items:
        if isinstance(item, Refusal):
            faults.append(f"refused: {_refusal_line(item)}")
            continue
        try:
            for row in await preview.rows(item.draft):
                _print_change(call, row, first=count == 0)
                count += 1
        except InputError as error:
            refusal = Refusal(file=item.file, line=item.line, field=error.field, reason=str(error))
            faults.append(f"refused: {_refusal_line(refusal)}")
        except ContentError as error:
            faults.append(f"would fail: {error}")
    if call.as_json:
        click.echo("]}" if count else '{"changes": []}')
    elif not count:
        click.echo("Nothing would change.")
    for line in faults[:FIRST]:
        printing.note(line)
    if faults:
        hidden = f", {len(faults) - FIRST} of them not shown" if len(faults) > FIRST else ""
        printing.note(f"{len(faults)} would be refused or fail{hidden}")
    return 1 if faults else 0


def _print_change(call: Call, row: dict[str, Any], *, first: bool) -> None:
    if call.as_json:  # one document, written row by row: the input may be long
        start = '{"changes": [' if first else ", "
        click.echo((start + json.dumps(row, ensure_ascii=False)).encode(), nl=False)
        return
    values = (f"{k}={v}" for k, v in row.items() if k not in ("op", "type") and v not in (None, []))
    click.echo(f"{row.get('op', ''):6}  {row['type']:9}  {printing.plain(', '.join(values))}")


def say_quality(call: Call) -> None:
    """Print a note on the quality of the rules model, where it is used."""
    if call.settings().model.backend == "rules":
        printing.note(
            "the rules model reads simple English sentences and JSON only: demo quality, it will miss much"
        )


def nothing_accepted(call: Call, document: dict[str, Any], refusals: tuple[Refusal, ...]) -> int:
    """Print that nothing was accepted because of refusals; return the exit code."""
    print_counts(call, document, refusals)
    printing.note(f"{document['refused']} refused, so nothing of this run was accepted (--on-error stop)")
    return FAULTY


def print_counts(
    call: Call, document: dict[str, Any], refusals: tuple[Refusal, ...], *, file_of_all: Path | None = None
) -> None:
    """Print the JSON document, or its counts, the first refusals, and the number of refusals by reason.

    file_of_all: the file with all refusals; None = create it if some are not printed
    """
    if call.as_json:
        printing.emit_json(document)
        return
    names = ("accepted", "duplicate", "refused", "committed", "failed")
    click.echo(", ".join(f"{document[name]} {name}" for name in names))
    for refusal in refusals[:FIRST]:
        click.echo(_refusal_line(refusal))
    if (hidden := document["refused"] - FIRST) <= 0:
        return
    from kgray.io.intake.drafts import reasons
    from kgray.memory.correcting import REFUSED
    from kgray.system.locks import explained, for_owner

    counted = document["report"]["reasons"] if "report" in document else None
    click.echo(f"... and {hidden:,} more. By reason, with the first message of each:")
    for reason, number in (counted or reasons((r.field, r.reason) for r in refusals)).items():
        click.echo(printing.plain(f"  {number:8,}  {reason}"))
    if file_of_all is None and call.folder.is_dir() and len(refusals) == document["refused"]:
        file_of_all = call.folder / REFUSED
        with explained(file_of_all), open(file_of_all, "w", encoding="utf-8", opener=for_owner) as file:
            file.writelines(json.dumps(refusal.as_dict()) + "\n" for refusal in refusals)
    if file_of_all is not None:
        click.echo(f"All of them: {file_of_all}")


def say_end(report: Report, *, refused: int) -> None:
    """Print notes that need the user's attention; the last counts refusals and failures."""
    note, counted = printing.note, printing.counted
    if report.untimed:
        duplicates = counted(report.untimed, "episode")
        note(f'{duplicates} without a time got the time of acceptance; give "at" to say when it was')
    if any(refusal.field == "id" for refusal in report.refusals):
        note("--replace retracts what has an id already, and accepts the new content")
    if report.still_retracted:
        duplicates = counted(report.still_retracted, "duplicate")
        note(f"{duplicates} retracted before, so still retracted; --again accepts what was retracted")
    if report.left_out:
        for line in report.unread:
            note(f"left out: {printing.plain(line)}")
        hidden_count = report.left_out - len(report.unread)
        hidden = f", {hidden_count} of them not shown" if hidden_count > 0 and report.unread else ""
        note(f"{counted(report.left_out, 'item')} not understood and left out{hidden}")
    if report.stopped:
        why = f" ({report.reason})" if report.reason else ""
        note(f"stopped before the end{why}; what was accepted is safe, run it again to go on")
    for group, why in list(report.held.items())[:FIRST]:
        note(printing.plain(f"group {group} is held, and tried again later: {why}"))
    wrong = [f"{refused} refused"] if refused else []
    wrong += [f"{counted(len(report.held), 'group')} held"] if report.held else []
    wrong += [f"{report.failed} failed (`kgray failures` says why)"] if report.failed else []
    if wrong and not report.stopped:
        note(", ".join(wrong))


def _print_report(call: Call, report: Report) -> int:
    call.code = report.exit_code
    print_counts(call, report.as_dict(), report.refusals)
    say_end(report, refused=report.refused)
    return report.exit_code


def _refusal_line(refusal: Refusal) -> str:
    """Return `file:line: field: reason`, safe for a terminal."""
    line = f":{refusal.line}" if refusal.line is not None else ""
    has_field = refusal.reason.startswith(f"{refusal.field}:")  # of a time: "at: 'soon' is not a time"
    field = f" {refusal.field}:" if refusal.field and not has_field else ""
    return printing.plain(f"{refusal.file or '(input)'}{line}:{field} {refusal.reason}")


_REMAINING_BYTES = {
    "sqlite": "a reader keeps the old pages in the files for now; run it again when it is gone",
    "neo4j": "no query finds it any more, but its bytes stay in the server's files, logs and backups until "
    "it writes over them; to be rid of them now, copy the groups into a new database and delete this one",
}
_NOTED = ("absent", "context_of", "reread")  # parts of a result that notes tell
_TWO = together(
    click.argument("first", type=TEXT, metavar="NAME_OR_ID"),
    click.argument("second", type=TEXT, metavar="NAME_OR_ID"),
    group_option,
)


def _call(call: Call, verb: str, *words: Any, **options: Any) -> Any:  # noqa: ANN401 - the method's own
    """Call the memory's method `verb`, print its result, and return it."""
    with call.memory() as memory, Signals.gentle():
        result = finished(getattr(memory, verb)(*words, **options, stop=Signals.is_stopping))
    if not call.emitted(result):
        values = {name: value for name, value in as_json(result).items() if name not in _NOTED}
        printing.pairs(
            {
                name.replace("_", " "): ", ".join(value) if isinstance(value, list) else value
                for name, value in values.items()
            }
        )
    return result


def _say_withdrawn(call: Call, result: WithdrawalCounts) -> int:
    """Print the notes on a retraction or removal; return the exit code."""
    if result.compacted is False:
        printing.note(_REMAINING_BYTES[call.settings().store.backend])
    reread = result.reread
    if context := result.context_of:
        names = [row.client_id or row.id for row in context]
        hidden = f" and {len(names) - 10} more" if len(names) > 10 else ""
        read = f"{printing.counted(len(names), 'episode')} read with what was removed as context"
        advice = "what was understood then is kept; --reread reads them anew"
        outcome = f"{reread.committed} read anew, {reread.failed} failed" if reread else advice
        printing.note(f"{read}: {', '.join(names[:10])}{hidden}; {outcome}")
    if result.absent:
        printing.note(f"not there, so nothing was done about it: {', '.join(map(repr, result.absent))}")
    stopped, failed = (reread.stopped, reread.failed) if reread else (False, 0)
    if reread and stopped:
        reason = f" ({reread.reason})" if reread.reason else ""
        printing.note(f"stopped before all of it was read anew{reason}; the next add goes on")
    return exit_code_of(stopped=stopped, incomplete=bool(result.absent or failed))


@command("Merge two entities.")
@_TWO
def merge(call: Call, first: str, second: str, group: str) -> None:
    """Merge two entities into a single entity. Nothing is lost: `kgray undo` reverses it.

    kgray merge "Bob Smith" 9f3e42d1 --group team
    """
    _call(call, "merge", first, second, group=group)


@command("Mark two entities as different.")
@_TWO
def distinct(call: Call, first: str, second: str, group: str) -> None:
    """Mark two entities as different: they are not proposed as duplicates again. `kgray undo` reverses it.

    kgray distinct 5b0c17aa 9f3e42d1 --group team
    """
    _call(call, "distinct", first, second, group=group)


@command("Move some names to another entity.")
@click.argument("identifier", type=TEXT, metavar="NAME_OR_ID")
@several("--surface", "surfaces", required=True, metavar="S", help="A name as it was written; repeatable.")
@click.argument("moved_names", nargs=-1, type=TEXT, metavar="[S]...")
@group_option
def split(
    call: Call, identifier: str, surfaces: tuple[str, ...], moved_names: tuple[str, ...], group: str
) -> None:
    """Move the mentions with these surfaces to another entity.

    kgray split "Bob Smith" --surface "B. Smith" --group team
    """
    _call(call, "split", identifier, [*surfaces, *moved_names], group=group)


@command("Undo a merge or a split.")
@click.argument("sequence", type=int)
@group_option
def undo(call: Call, sequence: int, group: str) -> None:
    """Undo a merge or a split, by the sequence number that it printed.

    kgray undo 42 --group team
    """
    _call(call, "undo", sequence, group=group)


_choice = together(
    several("--episode", "episodes", metavar="ID", help="kgray's id or the client's; repeatable."),
    click.argument("more", nargs=-1, type=TEXT, metavar="[ID]..."),
    click.option("--source", type=TEXT, metavar="S", help="All episodes of this source."),
    click.option("--all", "everything", is_flag=True, help="All episodes of the group."),
    click.option("--yes", is_flag=True, help="Do not ask; required if standard input is no terminal."),
)


@command("Take episodes out of the graph from now on.")
@group_option
@_choice
def retract(call: Call, group: str, **chosen: Any) -> int:  # noqa: ANN401
    """Take episodes out of the graph from now on; reads with an earlier --known-at still see them.

    Complete on return, without a model, even while episodes are pending. Exits 1 if a named episode does
    not exist.

      kgray retract --group team --episode chat-17 --yes
    """
    return _take_out(call, "retract", group, chosen)


@command("Erase episodes with every trace.")
@group_option
@_choice
@click.option("--reread", is_flag=True, help="Read episodes again that had a removed episode as context.")
def remove(call: Call, group: str, **chosen: Any) -> int:  # noqa: ANN401
    """Erase episodes with every trace of them. Facts that they had ended reopen. This cannot be undone.

    Complete on return, without a model, even while episodes are pending. Exits 1 if a named episode does
    not exist. Episodes that were read with a removed episode as context are named; their facts stay.

      kgray remove --group team --source chat.txt --yes
    """
    return _take_out(call, "remove", group, chosen)


def _take_out(call: Call, verb: str, group: str, chosen: dict[str, Any]) -> int:
    ids = (*chosen.pop("episodes"), *chosen.pop("more"))
    yes, source, everything = chosen.pop("yes"), chosen["source"], chosen["everything"]
    if sum((bool(ids), source is not None, everything)) != 1:
        raise InputError("say which episodes: --episode ID..., or --source S, or --all; one of these")
    if not yes:
        if sys.stdin is None or not sys.stdin.isatty():
            needs = f"kgray {verb} needs --yes where standard input is no terminal"
            raise InputError(f"{needs}; nothing was changed")
        some = f"source {source!r}" if source else "everything"
        selection = printing.counted(len(ids), "episode") if ids else some
        if not click.confirm(f"{verb.capitalize()} {selection} of group {group}?", err=True):
            raise InputError("nothing was changed")
    return _say_withdrawn(call, _call(call, verb, group=group, episodes=ids, **chosen))
