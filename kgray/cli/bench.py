"""bench: measurements that anyone can repeat, on worlds whose truth is known."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kgray.cli import printing
from kgray.cli.frame import Call, common

if TYPE_CHECKING:
    from kgray.bench.model_server import Faults, Service
    from kgray.bench.world import Errors, Plan

_C = TypeVar("_C", bound=Callable[..., Any])
RATE = click.FloatRange(0, 1)


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


def _options(*options: Callable[[_C], _C]) -> Callable[[_C], _C]:
    def add(command: _C) -> _C:
        for option in reversed(options):
            command = option(command)
        return command

    return add


world_options = _options(
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
error_options = _options(
    click.option(
        "--errors", type=RATE, default=0.0, help="Missed, spurious, misdated facts; wrong verdicts."
    ),
    click.option("--merge-errors", type=RATE, default=0.0, help="Entity questions answered wrongly."),
    click.option("--ruling-errors", type=RATE, default=0.0, help="Wrong answers about whole relations."),
    click.option("--error-seed", type=int, default=0, metavar="N", help="Other errors at the same rates."),
)
seed_option = click.option("--seed", type=int, default=1, show_default=True, metavar="N")


def _plan(seed: int, world: dict[str, Any]) -> Plan:
    from kgray.bench.world import Plan
    from kgray.errors import InputError

    try:
        return Plan(seed=seed, **world)
    except ValueError as error:
        raise InputError(str(error)) from None


def _errors(given: dict[str, Any]) -> Errors:
    """Take the options of errors out of those given."""
    from kgray.bench.world import Errors

    rate, merges = given.pop("errors"), given.pop("merge_errors")
    return Errors.of_meaning(
        rate, merges=merges, rulings=given.pop("ruling_errors"), seed=given.pop("error_seed")
    )


@bench.command(short_help="Write a world's episodes and its truth.")
@seed_option
@world_options
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Episodes, for `kgray add`.")
@click.option("--truth", type=click.Path(path_type=Path), help="Entities, mentions, extractions, facts.")
@common
def world(call: Call, seed: int, out: Path, truth: Path | None, **parameters: Any) -> int:  # noqa: ANN401
    r"""Write a generated world: episodes in the input format, and apart from them what is true.

    \b
    Example:
      kgray bench world --episodes 1000 --seed 1 --out world.jsonl --truth truth.jsonl
    """
    from kgray.bench.world.files import write

    told = write(_plan(seed, parameters), out, truth)
    if call.as_json:
        printing.emit_json(told)
    else:
        click.echo(f"{told['episodes']} episodes in {out}" + (f", their truth in {truth}" if truth else ""))
    return 0


@bench.command(name="model-server", short_help="Serve a model that knows a world.")
@click.option("--seed", "--world-seed", type=int, default=1, show_default=True, metavar="N")
@world_options
@error_options
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="0: a free one.")
@click.option("--latency", type=click.Choice(["zero", "default"]), default="zero", show_default=True)
@click.option("--streams", type=click.IntRange(1), help="Answers written at one time.")
@click.option("--first-token-s", type=click.FloatRange(0), help="Seconds to the first token.")
@click.option("--tokens-per-s", type=click.FloatRange(0), help="Of one stream; 0: all at once.")
@click.option("--wild", is_flag=True, help="Answer questions with a hash of the whole prompt.")
@click.option("--faults", type=RATE, default=0.0, help="Of each: malformed, truncated, 429, 500.")
@click.option("--hangs", type=RATE, default=0.0, help="Requests that get no answer.")
@click.option("--affinity", type=RATE, default=0.0, help="How near the names of one entity are embedded.")
@click.option(
    "--idle-s", type=click.FloatRange(1), default=600.0, show_default=True, help="Ends after so long."
)
@common
def model_server(call: Call, seed: int, port: int, idle_s: float, **rest: Any) -> int:  # noqa: ANN401
    r"""Serve an OpenAI-compatible model on the loopback address that answers from a world's truth.

    The first line on standard output names its address. It ends on SIGTERM, or after --idle-s without
    a request.

    \b
    Example:
      kgray bench model-server --seed 1 --port 8000
    """
    import asyncio

    service = _service(seed, rest)
    asyncio.run(_serve(service, port, idle_s, call.as_json))
    return 0


def _service(seed: int, rest: dict[str, Any]) -> Service:
    from dataclasses import replace

    from kgray.bench.model_server import Service
    from kgray.bench.world import Oracle, World
    from kgray.bench.world.latency import PRESETS

    latency = PRESETS[rest.pop("latency")]
    own = {name: rest.pop(name) for name in ("streams", "first_token_s", "tokens_per_s")}
    shape = {name: rest.pop(name) for name in ("wild", "affinity")}
    faults = _faults(rest.pop("faults"), rest.pop("hangs"))
    errors = _errors(rest)
    oracle = Oracle(World(plan=_plan(seed, rest)), errors)
    chosen = replace(latency, **{name: given for name, given in own.items() if given is not None})
    return Service(oracle, latency=chosen, faults=faults, **shape)


def _faults(rate: float, hangs: float) -> Faults:
    from kgray.bench.model_server import Faults

    return Faults(malformed=rate, truncated=rate, throttled=rate, failed=rate, hung=hangs)


async def _serve(service: Service, port: int, idle_s: float, as_json: bool) -> None:
    from kgray.bench.model_server import ModelServer
    from kgray.errors import SettingsError

    server = ModelServer(service, port=port, idle_s=idle_s)
    try:
        await server.__aenter__()
    except OSError as error:
        raise SettingsError(f"--port {port} cannot be used: {error.strerror}; 0 takes a free one.") from None
    try:
        if as_json:
            printing.emit_json({"base_url": server.base_url, "model": "world"})
        else:
            click.echo(f"serving the model 'world' at {server.base_url}")
        sys.stdout.flush()
        await _until_stopped(server.wait())
    finally:
        await server.__aexit__(None, None, None)


async def _until_stopped(wait: Coroutine[Any, Any, None]) -> None:
    """Await; SIGTERM and SIGINT end it, as the way in which a server is meant to end."""
    import asyncio

    task = asyncio.ensure_future(wait)
    for number in (signal.SIGTERM, signal.SIGINT):
        with suppress(NotImplementedError, RuntimeError, ValueError):  # no main thread, or no such signals
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with suppress(asyncio.CancelledError):
        await task


@bench.command(short_help="Ingest worlds and score the graphs.")
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
    from kgray.ingest.parts import Pipeline

    models: bench_quality.MakeModels = bench_quality.in_process
    if http:
        from kgray.bench.serving import over_http

        models = over_http
    pipeline = Pipeline(extraction=extraction, resolution=resolution, judging=judging)
    wrong = _errors(parameters)
    results = [
        bench_quality.run(
            _plan(seed, parameters),
            pipeline=pipeline,
            errors=wrong,
            models=models,
            progress=lambda line: click.echo(line, err=True),
        )
        for seed in seeds
    ]
    document = {"results": [result.as_dict() for result in results]}
    if out is not None:
        _write_json(out, document)
    if call.as_json:
        printing.emit_json(document)
    else:
        click.echo(bench_quality.table(results))
    return 0


@bench.command(short_help="How full the runner keeps a model server.")
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
    """
    from kgray.bench import ingest as bench_ingest
    from kgray.bench.world.latency import Latency

    latency = Latency(streams=streams, first_token_s=first_token_s, tokens_per_s=tokens_per_s)
    results = [bench_ingest.run(_plan(seed, parameters), window=window, latency=latency) for seed in seeds]
    document = {"results": [result.as_dict() for result in results]}
    if out is not None:
        _write_json(out, document)
    if call.as_json:
        printing.emit_json(document)
    else:
        click.echo(bench_ingest.table(results))
    return 0


@bench.command(short_help="What a group costs as it grows.")
@click.option("--sizes", default="1000,10000", show_default=True, metavar="N,...", help="Numbers of facts.")
@click.option("--slots", default="10,1000", show_default=True, metavar="N,...", help="Values in one slot.")
@common
def store(call: Call, sizes: str, slots: str) -> int:
    r"""Measure deciding, committing, loading and searching as one group grows.

    \b
    Example:
      kgray bench store --sizes 1000,10000,100000 --slots 10,1000,10000
    """
    from kgray.bench import store as bench_store

    found = bench_store.run(
        _numbers("--sizes", sizes, apart=1),
        slot=_numbers("--slots", slots, apart=51),  # 50 values are added to a slot to measure it
        progress=lambda line: click.echo(line, err=True),
    )
    if call.as_json:
        printing.emit_json(found.as_dict())
    else:
        click.echo(bench_store.table(found))
    return 0


def _numbers(option: str, text: str, *, apart: int) -> list[int]:
    try:
        found = sorted(int(part) for part in text.split(","))
    except ValueError:
        found = []
    if not found or found[0] < 1:
        raise click.BadParameter(f"{text!r} is no list such as 1000,10000", param_hint=option)
    if any(later - earlier < apart for earlier, later in pairwise(found)):
        raise click.BadParameter(f"two of {text!r} are less than {apart} apart", param_hint=option)
    return found


def _write_json(path: Path, document: object) -> None:
    import json

    from kgray.errors import InputError

    try:
        path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from None
