"""plan: what ingesting will cost; nothing is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from kgray.cli import printing
from kgray.cli.adding import read, regular
from kgray.cli.frame import GROUP, TEXT, Call, common
from kgray.cli.progress import duration

if TYPE_CHECKING:
    from kgray.intake import Submitted
    from kgray.prompting.estimate import WorkEstimate
    from kgray.records import Draft
    from kgray.settings import Settings

_PRICE = click.FloatRange(min=0)
_RATE = click.FloatRange(min=0, min_open=True)


@click.command(short_help="What ingesting files will cost; nothing is sent.")
@click.argument("files", nargs=-1, required=True, type=TEXT, metavar="FILE...")
@click.option("--group", type=GROUP, metavar="G", help="The group of rows that name none. Default: plan.")
@click.option(
    "--throughput",
    type=_RATE,
    default=100.0,
    metavar="N",
    help="Tokens a second of one stream. Default: 100.",
)
@click.option(
    "--first-token", type=_PRICE, default=0.15, metavar="S", help="Seconds to the first. Default: 0.15."
)
@click.option(
    "--streams",
    type=click.IntRange(min=1),
    metavar="N",
    help="Calls at once. Default: model.max_concurrency.",
)
@click.option("--input-price", type=_PRICE, metavar="P", help="Price of a million prompt tokens.")
@click.option("--output-price", type=_PRICE, metavar="P", help="Price of a million completion tokens.")
@common
def plan(call: Call, files: tuple[str, ...], **options: Any) -> int:  # noqa: ANN401 - click's options
    r"""Estimate model calls, tokens, time and cost of adding FILE..., with the pipeline of the settings.

    Prompts are rendered and counted (4 characters a token); replies are estimated. Every row is taken
    as new. Nothing is sent, nothing is stored.

    \b
    Example:
      kgray plan chat.jsonl --input-price 0.15 --output-price 0.60
    """
    from kgray.intake import Defaults, Refusal
    from kgray.settings import require_built

    settings = call.settings()
    require_built(settings)
    refused: list[Refusal] = []

    def drafts(items: Iterable[Submitted | Refusal]) -> Iterator[Draft]:
        for item in items:
            if isinstance(item, Refusal):
                refused.append(item)
            else:
                yield item.draft

    with ExitStack() as stack:
        paths = [(name, regular(name, stack)) for name in files]
        found = estimator(settings)(drafts(read(paths, Defaults(group=options["group"] or "plan"))))
    _show(call, settings, found, len(refused), options)
    if refused:
        first = refused[0]
        where = f"{first.file}:{first.line}" if first.line else first.file
        printing.note(f"{printing.counted(len(refused), 'row')} refused; the first: {where}: {first.reason}")
    return 1 if refused else 0


def estimator(settings: Settings) -> Callable[[Iterable[Draft]], WorkEstimate]:
    """Return a function that estimates what ingesting drafts costs with the pipeline of the settings."""
    from kgray.prompting.estimate import estimate_work
    from kgray.wiring import build_ontology, build_prompts

    prompts = build_prompts(settings, build_ontology(settings))
    return lambda drafts: estimate_work(drafts, prompts, settings.pipeline)


def _show(call: Call, settings: Settings, found: WorkEstimate, refused: int, options: dict[str, Any]) -> None:
    streams = options["streams"] or settings.model.max_concurrency
    seconds = found.seconds(
        tokens_per_second=options["throughput"], first_token_s=options["first_token"], streams=streams
    )
    cost = None
    if options["input_price"] is not None or options["output_price"] is not None:
        cost = found.cost(input_price=options["input_price"] or 0, output_price=options["output_price"] or 0)
    if call.as_json:
        rounded = {"seconds": round(seconds, 1), "cost": None if cost is None else round(cost, 6)}
        printing.emit_json({**found.as_dict(), "refused": refused, **rounded, "streams": streams})
        return
    share = f" ({found.fixed_tokens / found.prompt_tokens:.0%} a fixed prefix)" if found.prompt_tokens else ""
    rows = [
        ("episodes", f"{found.episodes:,}"),
        ("model calls", f"about {found.calls:,}"),
        ("prompt tokens", f"about {found.prompt_tokens:,}{share}"),
        ("completion tokens", f"about {found.completion_tokens:,}"),
        ("time", f"about {duration(seconds)} at {options['throughput']:g} tokens/s on {streams} streams"),
        ("cost", "give --input-price and --output-price" if cost is None else f"about {cost:,.2f}"),
    ]
    printing.pairs(rows)
