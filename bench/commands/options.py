"""Options that several measurements share, and the output of their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kgray.cli import printing
from kgray.cli.frame import Call, together

if TYPE_CHECKING:
    from tests.world import Errors, WorldPlan

_Command = TypeVar("_Command", bound=Callable[..., Any])
_Option = Callable[[_Command], _Command]


def count(name: str, default: int | None, text: str = "", *, minimum: int = 1) -> _Option[Any]:
    """Return an option that takes a whole number."""
    show_default = default is not None
    return click.option(
        name, type=click.IntRange(minimum), default=default, show_default=show_default, metavar="N", help=text
    )


def number(name: str, default: float | None, text: str = "", *, minimum: float = 0) -> _Option[Any]:
    """Return an option that takes a number: seconds, minutes, tokens a second."""
    show_default = default is not None
    return click.option(
        name, type=click.FloatRange(minimum), default=default, show_default=show_default, help=text
    )


def rate(name: str, default: float, text: str) -> _Option[Any]:
    """Return an option that takes a share of 1."""
    return click.option(
        name, type=click.FloatRange(0, 1), default=default, show_default=default > 0, help=text
    )


def choice(name: str, *values: str, text: str = "") -> _Option[Any]:
    """Return an option that takes one of some words; the first is its default."""
    return click.option(name, type=click.Choice(values), default=values[0], show_default=True, help=text)


def file(name: str, text: str, *, required: bool = False) -> _Option[Any]:
    """Return an option that names a file."""
    return click.option(name, type=click.Path(path_type=Path), required=required, help=text)


def listed(name: str, default: str, text: str, metavar: str = "N,...") -> _Option[Any]:
    """Return an option that takes a list such as 1,2."""
    return click.option(name, default=default, show_default=True, metavar=metavar, help=text)


world_options = together(
    count("--episodes", 1000, minimum=0),
    count("--entities", 120, minimum=20),
    count("--groups", 1),
    rate("--alias-rate", 0.30, "Mentions by another name."),
    rate("--change-rate", 0.25, "Statements that replace one."),
    rate("--homonyms", 0.0, "Persons with another's name."),
    rate("--tickers", 0.0, "Things with a code such as TH-ER."),
    rate("--nicknames", 0.0, "Persons with a name that a text gives."),
    rate("--ends", 0.04, "Statements that end something."),
    choice("--relations", "listed", "free", text="Names that the reader gives to relations."),
)
error_options = together(
    rate("--errors", 0.0, "Missed, spurious, misdated facts."),
    rate("--wrong-answers", 0.0, "Questions answered wrongly: who is whom, and comparisons."),
    click.option("--error-seed", type=int, default=0, metavar="N", help="Other errors at the same rates."),
)
seed_option = click.option("--seed", type=int, default=1, show_default=True, metavar="N")
seeds_option = click.option(
    "--seed", "seeds", type=int, multiple=True, default=(1,), metavar="N", help="Several: one row each."
)
store_option = choice(
    "--store", "sqlite", "neo4j", text="neo4j: on servers that cluster/neo4j/server starts."
)
out_option = file("--out", "The figures as JSON.")


def latency_options(
    streams: int | None = None, first_token_s: float | None = None, tokens_per_s: float | None = None
) -> _Option[Any]:
    """Return the options of a model server's speed, with these defaults."""
    return together(
        count("--streams", streams, "Answers that the server writes at one time."),
        number("--first-token-s", first_token_s, "Seconds to the first token."),
        number("--tokens-per-s", tokens_per_s, "Of one stream; 0: all at once."),
    )


def plan_of(seed: int, world: Mapping[str, Any]) -> WorldPlan:
    """Return the plan that the options of a world describe. Raises InputError."""
    from kgray.errors import InputError
    from tests.world import WorldPlan

    try:
        return WorldPlan(seed=seed, **world)
    except ValueError as error:
        raise InputError(str(error)) from None


def errors_of(options: dict[str, Any]) -> Errors:
    """Remove the options of errors from the parameters."""
    from tests.world import Errors

    rate, answers, seed = (options.pop(name) for name in ("errors", "wrong_answers", "error_seed"))
    return Errors.of_meaning(rate, answers=answers, seed=seed)


def numbers(option: str, text: str, *, apart: int) -> list[int]:
    """Return a list such as 1000,10000, ascending; two of them are at least `apart` apart."""
    try:
        values = sorted(int(part) for part in text.split(","))
    except ValueError:
        values = []
    if not values or values[0] < 1:
        raise click.BadParameter(f"{text!r} is no list such as 1000,10000", param_hint=option)
    if any(later - earlier < apart for earlier, later in pairwise(values)):
        raise click.BadParameter(f"two of {text!r} are less than {apart} apart", param_hint=option)
    return values


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
