"""bench: measurements that anyone can repeat, on worlds whose truth is known.

worlds      a world as files, and as a model server
measures    how good, how fast, how it grows
proofs      the promises, at length: equality, kills, memory
options     what several of them take
"""

from __future__ import annotations

import click

from kgray.cli.bench import measures, proofs, worlds

_ABOUT = """Measure kgray on generated data whose truth is known.

\b
Example:
  kgray bench quality --seed 1 --seed 2 --seed 3

\b
Each measurement takes --data, --config, --json and --debug, as every command does.
"""


@click.group(help=_ABOUT, short_help="Measurements on generated worlds.")
def bench() -> None:
    """Measure kgray on generated data whose truth is known."""


for _command in (*worlds.COMMANDS, *measures.COMMANDS, *proofs.COMMANDS):
    bench.add_command(_command)
