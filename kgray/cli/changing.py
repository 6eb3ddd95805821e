"""add, retry: input into the log, and that into the graph. merge, ..., remove: corrections of both."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kgray import times
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
from kgray.errors import FAULTY, ContentError, InputError, exit_code_of

if TYPE_CHECKING:
    from kgray.ingest.preview import Preview
    from kgray.intake.drafts import Defaults, Refusal
    from kgray.intake.files import Submitted
    from kgray.memory import Report

FIRST = 10  # refusals that are shown one by one
_ON_ERROR = "stop: where anything is refused, nothing of the run is accepted. Default: skip."
_KINDS = click.Choice(("message", "text", "json", "triples"))
rows_options = together(
    click.option("--group", type=GROUP, metavar="G", help="The group of rows that name none."),
    click.option("--source", type=TEXT, metavar="S", help="The source of rows that name none."),
    click.option("--kind", type=_KINDS, help="The kind of rows that name none."),
    click.option("--at", type=MOMENT, metavar="T", help="The reference time of rows that have none."),
    click.option("--on-error", type=click.Choice(("skip", "stop")), default="skip", help=_ON_ERROR),
    click.option("--replace", is_flag=True, help="Replace episodes whose id is taken by other content."),
    click.option("--again", is_flag=True, help="Accept what was retracted, too; else it stays retracted."),
)


def defaults_of(options: dict[str, Any]) -> Defaults:
    """Return what the options say for rows that do not say it themselves."""
    from kgray.intake.drafts import Defaults

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
        how = {name: options[name] for name in ("replace", "again")}
        if options["dry_run"]:
            return finished(_preview(call, memory.admin.preview(**how), _read(paths, defaults)))
        if options["on_error"] == "stop":
            checked = memory.admin.check(_read(paths, defaults), replace=options["replace"])
            if checked.refusals:
                return nothing_accepted(call, checked.as_dict(), checked.refusals)
        with Signals.gentle(), printing.Progress(memory.store.pending_count) as progress:
            how |= {"accept_only": options["accept_only"], "on_step": progress.step, "stop": Signals.asked}
            report = finished(memory.add_many(_read(paths, defaults), **how))
        if not options["accept_only"]:
            say_quality(call)
    return _print_report(call, report)


@command("Take failed episodes up again.")
@any_group_option
@several("--episode", "episodes", metavar="ID", help="This one only; repeatable.")
def retry(call: Call, group: str | None, episodes: tuple[str, ...]) -> int:
    """Take failed episodes up again, at a new place in their group's order.

    kgray retry --group team
    """
    with call.memory() as memory, Signals.gentle(), printing.Progress(memory.store.pending_count) as progress:
        retried = memory.retry(group=group, episodes=episodes, on_step=progress.step, stop=Signals.asked)
        report = finished(retried)
    return _print_report(call, report)


def _regular(name: str, stack: ExitStack) -> Path:
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


def _read(paths: list[tuple[str, Path]], defaults: Defaults) -> Iterator[Submitted | Refusal]:
    from kgray.intake.files import read_file

    for name, path in paths:
        yield from read_file(path, defaults, name=name)


async def _preview(call: Call, preview: Preview, items: Iterator[Submitted | Refusal]) -> int:
    """Print each change, and why rows would be refused or fail; return the exit code."""
    from kgray.intake.drafts import Refusal

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
        more = f", {len(faults) - FIRST} of them not shown" if len(faults) > FIRST else ""
        printing.note(f"{len(faults)} would be refused or fail{more}")
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
    call: Call, document: dict[str, Any], refusals: tuple[Refusal, ...], *, kept: Path | None = None
) -> None:
    """Print the JSON document, or for people its counts and refusals: the first, then how many of a kind.

    kept: the file that has them all; None = it is made where there are more than are shown
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
    from kgray.intake.drafts import reasons
    from kgray.locks import explained, for_owner
    from kgray.memory.correcting import REFUSED

    counted = document["report"]["reasons"] if "report" in document else None
    click.echo(f"... and {hidden:,} more. By reason, each as it was said first:")
    for reason, number in (counted or reasons((r.field, r.reason) for r in refusals)).items():
        click.echo(printing.plain(f"  {number:8,}  {reason}"))
    if kept is None and call.folder.is_dir() and len(refusals) == document["refused"]:
        kept = call.folder / REFUSED
        with explained(kept), open(kept, "w", encoding="utf-8", opener=for_owner) as file:
            file.writelines(json.dumps(refusal.as_dict()) + "\n" for refusal in refusals)
    if kept is not None:
        click.echo(f"All of them: {kept}")


def say_end(report: Report, *, refused: int) -> None:
    """Print notes on what the user has to know or do; the last says how many were refused or failed."""
    note, counted = printing.note, printing.counted
    if report.untimed:
        shown = counted(report.untimed, "episode")
        note(f'{shown} without a time got the time of acceptance; give "at" to say when it was')
    if any(refusal.field == "id" for refusal in report.refusals):
        note("--replace retracts what has an id already, and accepts the new content")
    if report.still_retracted:
        shown = counted(report.still_retracted, "duplicate")
        note(f"{shown} retracted before, so still retracted; --again accepts what was retracted")
    if report.left_out:
        for line in report.unread:
            note(f"left out: {printing.plain(line)}")
        more = report.left_out - len(report.unread)
        hidden = f", {more} of them not shown" if more > 0 and report.unread else ""
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
    told = refusal.reason.startswith(f"{refusal.field}:")  # of a time: "at: 'soon' is not a time"
    field = f" {refusal.field}:" if refusal.field and not told else ""
    return printing.plain(f"{refusal.file or '(input)'}{line}:{field} {refusal.reason}")


_BYTES_LEFT = {
    "sqlite": "a reader keeps the old pages in the files for now; run it again when it is gone",
    "neo4j": "no query finds it any more, but its bytes stay in the server's files, logs and backups until "
    "it writes over them; to be rid of them now, copy the groups into a new database and delete this one",
}
_TWO = together(
    click.argument("first", type=TEXT, metavar="NAME_OR_ID"),
    click.argument("second", type=TEXT, metavar="NAME_OR_ID"),
    group_option,
)


def _carried_out(call: Call, verb: str, *what: Any, **how: Any) -> int:  # noqa: ANN401 - the method's own
    """Call this method of the memory, print its result, and return the exit code."""
    with call.memory() as memory, Signals.gentle():
        result: dict[str, Any] = finished(getattr(memory, verb)(*what, **how, stop=Signals.asked))
    apart = ("absent", "context_of", "reread")
    told = {name.replace("_", " "): value for name, value in result.items() if name not in apart}
    told |= {name: ", ".join(value) for name, value in told.items() if isinstance(value, list | tuple)}
    if not call.emitted(result):
        printing.pairs(told)
    if result.get("compacted") is False:
        printing.note(_BYTES_LEFT[call.settings().store.backend])
    again: Mapping[str, Any] = result.get("reread") or {}
    if context := result.get("context_of"):
        names = [str(row["client_id"] or row["id"]) for row in context]
        more = f" and {len(names) - 10} more" if len(names) > 10 else ""
        read = f"{printing.counted(len(names), 'episode')} read with what was removed as context"
        kept = "what was understood then is kept; --reread reads them anew"
        done = f"{again['committed']} read anew, {again['failed']} failed" if again else kept
        printing.note(f"{read}: {', '.join(names[:10])}{more}; {done}")
    if absent := result.get("absent"):
        printing.note(f"not there, so nothing was done about it: {', '.join(map(repr, absent))}")
    if again.get("stopped"):
        reason = f" ({again['reason']})" if again["reason"] else ""
        printing.note(f"stopped before all of it was read anew{reason}; the next add goes on")
    return exit_code_of(stopped=bool(again.get("stopped")), incomplete=bool(absent or again.get("failed")))


@command("Say that two entities are one.")
@_TWO
def merge(call: Call, first: str, second: str, group: str) -> int:
    """Say that two entities are one. Nothing is lost: `kgray undo` takes it back.

    kgray merge "Bob Smith" 9f3e42d1 --group team
    """
    return _carried_out(call, "merge", first, second, group=group)


@command("Say that two entities are not one.")
@_TWO
def distinct(call: Call, first: str, second: str, group: str) -> int:
    """Say that two entities are not one: neither is offered for the other again. `kgray undo` takes it back.

    kgray distinct 5b0c17aa 9f3e42d1 --group team
    """
    return _carried_out(call, "distinct", first, second, group=group)


@command("Say that some names are another entity.")
@click.argument("identifier", type=TEXT, metavar="NAME_OR_ID")
@several("--surface", "surfaces", required=True, metavar="S", help="A name as it was written; repeatable.")
@click.argument("more", nargs=-1, type=TEXT, metavar="[S]...")
@group_option
def split(call: Call, identifier: str, surfaces: tuple[str, ...], more: tuple[str, ...], group: str) -> int:
    """Say that the mentions with these surfaces are another entity.

    kgray split "Bob Smith" --surface "B. Smith" --group team
    """
    return _carried_out(call, "split", identifier, [*surfaces, *more], group=group)


@command("Take a merge or a split back.")
@click.argument("sequence", type=int)
@group_option
def undo(call: Call, sequence: int, group: str) -> int:
    """Take a merge or a split back, by the sequence that it printed.

    kgray undo 42 --group team
    """
    return _carried_out(call, "undo", sequence, group=group)


_choice = together(
    several("--episode", "episodes", metavar="ID", help="Ours or the client's; repeatable."),
    click.argument("more", nargs=-1, type=TEXT, metavar="[ID]..."),
    click.option("--source", type=TEXT, metavar="S", help="All of this source."),
    click.option("--all", "everything", is_flag=True, help="All of the group."),
    click.option("--yes", is_flag=True, help="Do not ask; needed where standard input is no terminal."),
)


@command("Take episodes out of what is true from now on.")
@group_option
@_choice
def retract(call: Call, group: str, **chosen: Any) -> int:  # noqa: ANN401
    """Take episodes out of what is derived from now on; reads with an earlier --known-at still see them.

    Done when it returns, without a model and whatever is pending. Exits 1 where something named is not there.

      kgray retract --group team --episode chat-17 --yes
    """
    return _take_out(call, "retract", group, chosen)


@command("Erase episodes with every trace.")
@group_option
@_choice
@click.option("--reread", is_flag=True, help="Read anew the episodes that a removed one was context of.")
def remove(call: Call, group: str, **chosen: Any) -> int:  # noqa: ANN401
    """Erase episodes with every trace of them. What they had closed reopens. There is no way back.

    Done when it returns, without a model and whatever is pending. Exits 1 where something named is not there.
    Episodes that were read with a removed one as context are named: what was understood of them is kept.

      kgray remove --group team --source chat.txt --yes
    """
    return _take_out(call, "remove", group, chosen)


def _take_out(call: Call, verb: str, group: str, chosen: dict[str, Any]) -> int:
    episodes, more, yes = (chosen.pop(name) for name in ("episodes", "more", "yes"))
    source, everything = chosen["source"], chosen["everything"]
    if sum((bool(episodes), source is not None, everything)) != 1 or (more and not episodes):
        raise InputError("say which episodes: --episode ID..., or --source S, or --all; one of these")
    ids = (*episodes, *more)
    if not yes:
        if sys.stdin is None or not sys.stdin.isatty():
            needs = f"kgray {verb} needs --yes where standard input is no terminal"
            raise InputError(f"{needs}; nothing was changed")
        some = f"source {source!r}" if source else "everything"
        what = printing.counted(len(ids), "episode") if ids else some
        if not click.confirm(f"{verb.capitalize()} {what} of group {group}?", err=True):
            raise InputError("nothing was changed")
    return _carried_out(call, verb, group=group, episodes=ids, **chosen)
