"""What commands that accept rows print at the end: counts, refusals, notes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kgray.cli import printing
from kgray.cli.frame import Call
from kgray.errors import FAULTY

if TYPE_CHECKING:
    from pathlib import Path

    from kgray.intake.drafts import Refusal
    from kgray.memory import Report

FIRST = 10  # refusals that are shown one by one
COUNTS = ("accepted", "duplicate", "refused", "committed", "failed")


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
    """Print the JSON document, or its counts and the refusals for people: the first, then how many of a kind.

    kept: the file that has them all; None = it is made where there are more than are shown
    """
    if call.as_json:
        printing.emit_json(document)
        return
    click.echo(", ".join(f"{document[name]} {name}" for name in COUNTS))
    for refusal in refusals[:FIRST]:
        click.echo(refusal_line(refusal))
    if (hidden := document["refused"] - FIRST) > 0:
        _sum_up(call, document, refusals, hidden, kept)


def _sum_up(
    call: Call, document: dict[str, Any], refusals: tuple[Refusal, ...], hidden: int, kept: Path | None
) -> None:
    """Print how many rows were refused for each reason, and where all of them stand."""
    from kgray.intake.drafts import reasons
    from kgray.memory.run_files import keep_refused

    counted = document["report"]["reasons"] if "report" in document else None
    click.echo(f"... and {hidden:,} more. By reason, each as it was said first:")
    for reason, number in (counted or reasons((r.field, r.reason) for r in refusals)).items():
        click.echo(printing.plain(f"  {number:8,}  {reason}"))
    if kept is None and call.folder.is_dir() and len(refusals) == document["refused"]:
        kept = keep_refused(call.folder, (refusal.as_dict() for refusal in refusals))
    if kept is not None:
        click.echo(f"All of them: {kept}")


def say_end(report: Report, *, refused: int) -> None:
    """Print notes on what the user has to know or do; the last says how many were refused or failed."""
    if report.untimed:
        shown = printing.counted(report.untimed, "episode")
        printing.note(f'{shown} without a time got the time of acceptance; give "at" to say when it was')
    if any(refusal.field == "id" for refusal in report.refusals):
        printing.note("--replace retracts what has an id already, and accepts the new content")
    if report.still_retracted:
        shown = printing.counted(report.still_retracted, "duplicate")
        printing.note(f"{shown} retracted before, so still retracted; --again accepts what was retracted")
    if report.left_out:
        for line in report.unread:
            printing.note(f"left out: {printing.plain(line)}")
        more = report.left_out - len(report.unread)
        shown = f"{printing.counted(report.left_out, 'item')} not understood and left out"
        printing.note(shown + (f", {more} of them not shown" if more > 0 and report.unread else ""))
    if report.stopped:
        why = f" ({report.reason})" if report.reason else ""
        printing.note(f"stopped before the end{why}; what was accepted is safe, run it again to go on")
    for group, why in list(report.held.items())[:FIRST]:
        printing.note(printing.plain(f"group {group} is held, and tried again later: {why}"))
    if (refused or report.failed or report.held) and not report.stopped:
        wrong = [f"{refused} refused"] if refused else []
        wrong += [f"{printing.counted(len(report.held), 'group')} held"] if report.held else []
        wrong += [f"{report.failed} failed (`kgray failures` says why)"] if report.failed else []
        printing.note(", ".join(wrong))


def print_report(call: Call, report: Report) -> int:
    """Print the report of `kgray add` and `kgray retry`; return the exit code."""
    call.code = report.exit_code
    print_counts(call, report.as_dict(), report.refusals)
    say_end(report, refused=report.refused)
    return report.exit_code


def refusal_line(refusal: Refusal) -> str:
    """Return `file:line: field: reason`, safe for a terminal."""
    line = f":{refusal.line}" if refusal.line is not None else ""
    told = refusal.reason.startswith(f"{refusal.field}:")  # of a time: "at: 'soon' is not a time"
    field = f" {refusal.field}:" if refusal.field and not told else ""
    return printing.plain(f"{refusal.file or '(input)'}{line}:{field} {refusal.reason}")
