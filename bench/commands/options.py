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

_Command = TypeVar("_Command", bound=Callable[..., Any])
RATE = click.FloatRange(0, 1)


def _together(*options: Callable[[_Command], _Command]) -> Callable[[_Command], _Command]:
    """Return one decorator that adds several options."""

    def add(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def _number(name: str, least: int, default: int) -> Callable[[_Command], _Command]:
    return click.option(name, type=click.IntRange(least), default=default, show_default=True, metavar="N")


def _rate(name: str, default: float, text: str) -> Callable[[_Command], _Command]:
    return click.option(name, type=RATE, default=default, show_default=default > 0, help=text)


world_options = _together(
    _number("--episodes", 0, 1000),
    _number("--entities", 20, 120),
    _number("--groups", 1, 1),
    _rate("--alias-rate", 0.30, "Mentions by another name."),
    _rate("--change-rate", 0.25, "Statements that replace one."),
    _rate("--homonyms", 0.0, "Persons with another's name."),
)
error_options = _together(
    _rate("--errors", 0.0, "Missed, spurious, misdated facts; wrong verdicts."),
    _rate("--merge-errors", 0.0, "Entity questions answered wrongly."),
    _rate("--ruling-errors", 0.0, "Wrong answers about whole relations."),
    click.option("--error-seed", type=int, default=0, metavar="N", help="Other errors at the same rates."),
)
seed_option = click.option("--seed", type=int, default=1, show_default=True, metavar="N")
seeds_option = click.option(
    "--seed", "seeds", type=int, multiple=True, default=(1,), metavar="N", help="Several: one row each."
)
store_option = click.option(
    "--store",
    type=click.Choice(["sqlite", "neo4j"]),
    default="sqlite",
    show_default=True,
    help="neo4j: on servers that cluster/neo4j/server starts.",
)
out_option = click.option("--out", type=click.Path(path_type=Path), help="The figures as JSON.")


def latency_options(default: tuple[int, float, float] | None) -> Callable[[_Command], _Command]:
    """Return the options of a model server's speed; defaults: streams, first_token_s, tokens_per_s."""
    streams, first, per_s = default or (None, None, None)
    shown = default is not None
    return _together(
        click.option(
            "--streams",
            type=click.IntRange(1),
            default=streams,
            show_default=shown,
            help="Answers that the server writes at one time.",
        ),
        click.option(
            "--first-token-s",
            type=click.FloatRange(0),
            default=first,
            show_default=shown,
            help="Seconds to the first token.",
        ),
        click.option(
            "--tokens-per-s",
            type=click.FloatRange(0),
            default=per_s,
            show_default=shown,
            help="Of one stream; 0: all at once.",
        ),
    )


def plan_of(seed: int, world: Mapping[str, Any]) -> Plan:
    """Return the plan that the options of a world describe. Raises InputError."""
    from bench.world import Plan
    from kgray.errors import InputError

    try:
        return Plan(seed=seed, **world)
    except ValueError as error:
        raise InputError(str(error)) from None


def errors_of(given: dict[str, Any]) -> Errors:
    """Take the options of errors out of those given."""
    from bench.world import Errors

    rate, merges, rulings, seed = (
        given.pop(name) for name in ("errors", "merge_errors", "ruling_errors", "error_seed")
    )
    return Errors.of_meaning(rate, merges=merges, rulings=rulings, seed=seed)


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


def show(call: Call, document: Mapping[str, object], out: Path | None, table: Callable[[], str]) -> None:
    """Write the figures to a file where one is named, and print them as JSON or for people."""
    import json

    from kgray.errors import InputError

    if out is not None:
        try:
            out.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        except OSError as error:
            raise InputError(f"{out} cannot be written: {error.strerror}") from None
    if call.as_json:
        printing.emit_json(document)
    else:
        click.echo(table())


def progress(line: str) -> None:
    """Say a line of progress on standard error."""
    click.echo(line, err=True)
