"""bench card: the first hour on a card."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench.commands.options import choice, file, number, progress
from kgray.cli.frame import Call, command

if TYPE_CHECKING:
    from bench.random_models import Shape

_STEPS = (
    "bge", "engine-8b", "engine-30b", "starts", "killed", "decoding", "prefix", "cancel", "ingest"
)  # fmt: skip


@command("The first hour on a card, in steps of at most eight minutes.")
@click.argument("step", type=click.Choice(_STEPS))
@choice("--shape", "real", "tiny", text="Of the random weights; tiny: a test of the bench on a processor.")
@file("--folder", "For weights, kept between steps. Default: card-weights.")
@file("--file", "Of the figures. Default: card.json.")
@number("--seconds", 420.0, "No part of the step begins later.")
@click.option("--part", hidden=True)
def card(
    call: Call,
    step: str,
    shape: Shape,
    folder: Path | None,
    file: Path | None,
    seconds: float,
    part: str | None,
) -> int:
    """Measure BGE, engines and an ingest with random weights; a repeated step continues where it stopped.

    Steps: bge; engine-8b, engine-30b (the shapes of Qwen3-8B-FP8 and Qwen3-30B-A3B-FP8); starts (ten of
    engine, embedder and reranker on one card); killed (until the memory is free); decoding (with a schema and
    free); prefix; cancel (256 requests); ingest.

      python -m bench card bge
      python -m bench card decoding --file h100.json
      python -m bench card bge --shape tiny
    """
    from bench import card as measured

    place = folder or Path("card-weights")
    if part is not None:
        measured.write(file or Path("part.json"), measured.part_of(step, part, place, shape))
        return 0
    document = measured.run(step, shape, place, file or Path("card.json"), seconds=seconds, tell=progress)
    if not call.emitted(document):
        click.echo(measured.table(document))
    return 0 if document["steps"][step]["complete"] else 1


COMMANDS = (card,)
