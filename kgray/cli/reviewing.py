"""duplicates: which entities may be one (R16)."""

from __future__ import annotations

import click

from kgray.cli import printing
from kgray.cli.frame import Call, common, finished, group_option


@click.command(short_help="Entities that may be one.")
@group_option
@click.option("--limit", type=click.IntRange(min=1), default=50, metavar="N", help="Length. Default: 50.")
@common
def duplicates(call: Call, group: str, limit: int) -> int:
    r"""List pairs of entities that may be one, the likeliest first: `kgray merge` makes one of a pair.

    `kgray distinct` takes it off the list.

    \b
    Example:
      kgray duplicates --group team
    """
    with call.reader(group) as memory:
        found = finished(memory.duplicates(group=group, limit=limit))
    if call.as_json:
        printing.emit_json({"pairs": [pair.as_dict() for pair in found]})
    elif found:
        rows = [
            [f"{p.score:.2f}", printing.short(p.a), p.names[0], printing.short(p.b), p.names[1], p.why]
            for p in found
        ]
        printing.table(rows, head=("score", "id", "name", "id", "name", "why"))
    else:
        click.echo("No likely duplicates.")
    return 0
