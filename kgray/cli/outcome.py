"""What commands that accept rows print at the end: counts, refusals, notes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kgray.cli import printing
from kgray.cli.frame import Call
from kgray.errors import FAULTY

if TYPE_CHECKING:
    from kgray.intake import Refusal
    from kgray.memory import Report

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


def print_counts(call: Call, document: dict[str, Any], refusals: tuple[Refusal, ...]) -> None:
    """Print the JSON document, or its counts and the refusals for people."""
    if call.as_json:
        printing.emit_json(document)
        return
    click.echo(", ".join(f"{document[name]} {name}" for name in COUNTS))
    for refusal in refusals:
        click.echo(refusal_line(refusal))
    if (hidden := document["refused"] - len(refusals)) > 0:
        click.echo(f"... and {hidden} more")


def say_end(report: Report, *, refused: int) -> None:
    """Print notes on what the user has to know or do; the last says how many were refused or failed."""
    if report.untimed:
        shown = printing.counted(report.untimed, "episode")
        printing.note(f'{shown} without a time got the time of acceptance; give "at" to say when it was')
    if report.stopped:
        why = f" ({report.reason})" if report.reason else ""
        printing.note(f"stopped before the end{why}; what was accepted is safe, run it again to go on")
    elif refused or report.failed:
        wrong = [f"{refused} refused"] if refused else []
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
    field = f" {refusal.field}:" if refusal.field else ""
    return printing.plain(f"{refusal.file or '(input)'}{line}:{field} {refusal.reason}")
