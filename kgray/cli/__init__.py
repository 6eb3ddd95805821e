"""The `kgray` command. Nothing heavy is imported until a command runs, so `kgray --help` is fast."""

from __future__ import annotations

import gc

import click

from kgray import __version__
from kgray.cli.frame import COMMANDS, KgrayGroup

__all__ = ["cli", "main"]

cli = KgrayGroup(
    name="kgray",
    commands=COMMANDS,  # type: ignore[arg-type]  # names alone, to suggest the nearest: imported when they are run
    help=(
        "Long-term memory for AI agents: messages in, a temporal knowledge graph out.\n\n"
        "\b\n"
        "  kgray init\n"
        "  kgray add chat.jsonl --group team\n"
        '  kgray search "Where does Alice work?" --group team --as-of 2026-03-01\n\n'
        "Options follow the command. The data folder is --data, else KGRAY_DATA, else ./kgray-data."
    ),
)

click.version_option(__version__, prog_name="kgray")(cli)


def main() -> None:
    """Run the command line; ends the process with its exit code."""
    # A command's imports are never garbage: fewer collections start it a tenth sooner.
    gc.set_threshold(20_000, 20, 20)
    cli()
