"""bench quality, bench ingest, bench store: how good, how fast, how it grows."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kgray.cli.bench.options import error_options, errors, numbers, plan, show, told, world_options
from kgray.cli.frame import Call, common

if TYPE_CHECKING:
    from kgray.bench.places import StoreKind


@click.command(short_help="Ingest worlds and score the graphs.")
@click.option(
    "--seed", "seeds", type=int, multiple=True, default=(1,), metavar="N", help="Several: one row each."
)
@world_options
@error_options
@click.option("--extraction", type=click.Choice(["combined", "separate"]), default="combined")
@click.option("--resolution", type=click.Choice(["batched", "per_node"]), default="batched")
@click.option("--judging", type=click.Choice(["relation", "statement"]), default="relation")
@click.option("--http", is_flag=True, help="Through a model server and the openai backend.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="The figures as JSON, with the first faults found."
)
@common
def quality(
    call: Call,
    seeds: tuple[int, ...],
    extraction: str,
    resolution: str,
    judging: str,
    http: bool,
    out: Path | None,
    **parameters: Any,  # noqa: ANN401
) -> int:
    r"""Ingest generated worlds with a reader that knows them, and hold the graphs against their truth.

    \b
    Example:
      kgray bench quality --seed 1 --seed 2 --seed 3 --http --out quality.json
    """
    from kgray.bench import quality as bench_quality
    from kgray.settings import PipelineSettings

    models: bench_quality.MakeModels = bench_quality.in_process
    if http:
        from kgray.bench.serving import over_http

        models = over_http
    pipeline = PipelineSettings(
        extraction=extraction,  # type: ignore[arg-type]  # click checks the choices
        resolution=resolution,  # type: ignore[arg-type]
        judging=judging,  # type: ignore[arg-type]
    )
    wrong = errors(parameters)
    results = [
        bench_quality.run(
            plan(seed, parameters),
            pipeline=pipeline,
            errors=wrong,
            models=models,
            progress=told,
        )
        for seed in seeds
    ]
    document = {"results": [result.as_dict() for result in results]}
    show(call, document, out, lambda: bench_quality.table(results))
    return 0


@click.command(short_help="How full the runner keeps a model server.")
@click.option(
    "--seed", "seeds", type=int, multiple=True, default=(1,), metavar="N", help="Several: one row each."
)
@world_options
@click.option("--window", type=click.IntRange(1), default=128, show_default=True, help="Episodes in flight.")
@click.option("--streams", type=click.IntRange(1), default=32, show_default=True, help="Of the server.")
@click.option("--first-token-s", type=click.FloatRange(0), default=0.15, show_default=True)
@click.option(
    "--tokens-per-s", type=click.FloatRange(0), default=100.0, show_default=True, help="0: at once."
)
@click.option("--runtime", type=click.Choice(["local", "ray"]), default="local", show_default=True)
@click.option("--chunk", type=click.IntRange(1), default=8, show_default=True, help="Of requests, on Ray.")
@click.option("--profile", type=click.Path(path_type=Path), help="The cluster profile of the actors.")
@click.option("--out", type=click.Path(path_type=Path), help="The figures as JSON.")
@common
def ingest(
    call: Call,
    seeds: tuple[int, ...],
    window: int,
    streams: int,
    first_token_s: float,
    tokens_per_s: float,
    out: Path | None,
    **parameters: Any,  # noqa: ANN401
) -> int:
    r"""Ingest generated worlds through a simulated model server, against the ceiling of one call an episode.

    \b
    Example:
      kgray bench ingest --episodes 1000 --window 128 --seed 1 --seed 2
      kgray bench ingest --runtime ray --streams 64 --window 256
    """
    from kgray.bench import ingest as bench_ingest
    from kgray.bench.equality import one_ray
    from kgray.bench.world.latency import Latency

    latency = Latency(streams=streams, first_token_s=first_token_s, tokens_per_s=tokens_per_s)
    how = {name: parameters.pop(name) for name in ("runtime", "chunk", "profile")}
    with one_ray() if how["runtime"] == "ray" else nullcontext():
        results = [
            bench_ingest.run(plan(seed, parameters), window=window, latency=latency, **how) for seed in seeds
        ]
    document = {"results": [result.as_dict() for result in results]}
    show(call, document, out, lambda: bench_ingest.table(results))
    return 0


@click.command(short_help="What a group costs as it grows.")
@click.option("--sizes", default="1000,10000", show_default=True, metavar="N,...", help="Numbers of facts.")
@click.option("--slots", default="10,1000", show_default=True, metavar="N,...", help="Values in one slot.")
@click.option(
    "--store",
    "kinds",
    default="sqlite",
    show_default=True,
    metavar="NAME,...",
    help="sqlite, neo4j, or both: on the server of the settings, else one that is started.",
)
@click.option("--out", type=click.Path(path_type=Path), help="The figures as JSON.")
@common
def store(call: Call, sizes: str, slots: str, kinds: str, out: Path | None) -> int:
    r"""Measure deciding, committing, loading, searching and the recall of vectors as one group grows.

    \b
    Example:
      kgray bench store --sizes 1000,10000,100000 --slots 10,1000,10000
      kgray bench store --sizes 1000,10000 --store sqlite,neo4j
    """
    from kgray.bench import store as bench_store

    results = [
        bench_store.run(
            kind,
            numbers("--sizes", sizes, apart=6),  # of 3 facts an episode, two at least to a size
            slot=numbers("--slots", slots, apart=51),  # 50 values are added to a slot to measure it
            settings=call.settings(),
            progress=told,
        )
        for kind in _stores(kinds)
    ]
    show(
        call,
        {"results": [result.as_dict() for result in results]},
        out,
        lambda: bench_store.table(results),
    )
    return 0


def _stores(given: str) -> list[StoreKind]:
    """Return the stores of a list such as sqlite,neo4j."""
    found: list[StoreKind] = []
    for name in given.split(","):
        if name not in ("sqlite", "neo4j"):
            raise click.BadParameter(f"{name!r} is neither sqlite nor neo4j", param_hint="--store")
        found.append(name)  # type: ignore[arg-type]
    return found


COMMANDS = (quality, ingest, store)
