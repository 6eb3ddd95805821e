"""The commands of `python -m bench`.

worlds      a world as files, and as a model server
measures    how good, how fast, how it grows
card        the first hour on a card
readings    how well a real model reads, through kgray and with a plain prompt, and compares sentences
retrievals  recall of searches and contexts for the evidence of questions
proofs      the promises, at length: equality, kills, memory
scale       the costs of many groups, of a large group, and of its files
options     shared options
"""

from __future__ import annotations

import sys
from typing import Any

import click

from bench.commands import card, measures, proofs, readings, retrievals, scale, worlds
from kgray.errors import KgrayError

__all__ = ["bench"]


class _Bench(click.Group):
    """Ends the process with a command's exit code; a KgrayError is one line on standard error."""

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's signature
        """Run a command."""
        try:
            code = super().invoke(ctx)
        except KgrayError as error:
            if "--debug" in sys.argv:
                raise
            click.echo(f"bench: {error}", err=True)
            code = error.exit_code
        ctx.exit(code or 0)


@click.group(cls=_Bench)
def bench() -> None:
    """Measure kgray on generated worlds whose truth is known."""


for _module in (worlds, measures, card, readings, retrievals, proofs, scale):
    for _command in _module.COMMANDS:
        bench.add_command(_command)
