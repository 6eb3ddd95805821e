"""What several measurements take, and how they write what they found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kgray.cli import printing
from kgray.cli.frame import Call

if TYPE_CHECKING:
    from bench.world import Errors, Plan

_C = TypeVar("_C", bound=Callable[..., Any])
RATE = click.FloatRange(0, 1)


def options(*options: Callable[[_C], _C]) -> Callable[[_C], _C]:
    """Return one decorator that adds several options."""

    def add(command: _C) -> _C:
        for option in reversed(options):
            command = option(command)
        return command

    return add


world_options = options(
    click.option("--episodes", type=click.IntRange(0), default=1000, show_default=True, metavar="N"),
    click.option("--entities", type=click.IntRange(20), default=120, show_default=True, metavar="N"),
    click.option("--groups", type=click.IntRange(1), default=1, show_default=True, metavar="N"),
    click.option(
        "--alias-rate", type=RATE, default=0.30, show_default=True, help="Mentions by another name."
    ),
    click.option(
        "--change-rate", type=RATE, default=0.25, show_default=True, help="Statements that replace one."
    ),
    click.option(
        "--homonyms", type=RATE, default=0.0, show_default=True, help="Persons with another's name."
    ),
)
error_options = options(
    click.option(
        "--errors", type=RATE, default=0.0, help="Missed, spurious, misdated facts; wrong verdicts."
    ),
    click.option("--merge-errors", type=RATE, default=0.0, help="Entity questions answered wrongly."),
    click.option("--ruling-errors", type=RATE, default=0.0, help="Wrong answers about whole relations."),
    click.option("--error-seed", type=int, default=0, metavar="N", help="Other errors at the same rates."),
)
seed_option = click.option("--seed", type=int, default=1, show_default=True, metavar="N")


def plan(seed: int, world: dict[str, Any]) -> Plan:
    """Return the plan that the options of a world describe. Raises InputError."""
    from bench.world import Plan
    from kgray.errors import InputError

    try:
        return Plan(seed=seed, **world)
    except ValueError as error:
        raise InputError(str(error)) from None


def errors(given: dict[str, Any]) -> Errors:
    """Take the options of errors out of those given."""
    from bench.world import Errors

    rate, merges = given.pop("errors"), given.pop("merge_errors")
    return Errors.of_meaning(
        rate, merges=merges, rulings=given.pop("ruling_errors"), seed=given.pop("error_seed")
    )


def numbers(option: str, text: str, *, apart: int) -> list[int]:
    """Return a list such as 1000,10000, ascending; two of them are at least `apart` apart."""
    try:
        found = sorted(int(part) for part in text.split(","))
    except ValueError:
        found = []
    if not found or found[0] < 1:
        raise click.BadParameter(f"{text!r} is no list such as 1000,10000", param_hint=option)
    if any(later - earlier < apart for earlier, later in pairwise(found)):
        raise click.BadParameter(f"two of {text!r} are less than {apart} apart", param_hint=option)
    return found


def write_json(path: Path, document: object) -> None:
    """Write a document to a file. Raises InputError."""
    import json

    from kgray.errors import InputError

    try:
        path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from None


def show(call: Call, document: Mapping[str, object], out: Path | None, table: Callable[[], str]) -> None:
    """Write the figures to a file where one is named, and print them as JSON or for people."""
    if out is not None:
        write_json(out, document)
    if call.as_json:
        printing.emit_json(document)
    else:
        click.echo(table())


def told(line: str) -> None:
    """Say a line of progress on standard error."""
    click.echo(line, err=True)
