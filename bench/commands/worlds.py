"""bench world, bench model-server: a world as files, and as a model that knows it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench.commands.options import RATE, error_options, errors, plan, seed_option, world_options
from kgray.cli import printing
from kgray.cli.frame import Call, common

if TYPE_CHECKING:
    from bench.model_server import Faults, Service


@click.command(short_help="Write a world's episodes and its truth.")
@seed_option
@world_options
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Episodes, for `kgray add`.")
@click.option("--truth", type=click.Path(path_type=Path), help="Entities, mentions, extractions, facts.")
@common
def world(call: Call, seed: int, out: Path, truth: Path | None, **parameters: Any) -> int:  # noqa: ANN401
    r"""Write a generated world: episodes in the input format, and apart from them what is true.

    \b
    Example:
      python -m bench world --episodes 1000 --seed 1 --out world.jsonl --truth truth.jsonl
    """
    from bench.world.files import write

    told = write(plan(seed, parameters), out, truth)
    if call.as_json:
        printing.emit_json(told)
    else:
        click.echo(f"{told['episodes']} episodes in {out}" + (f", their truth in {truth}" if truth else ""))
    return 0


@click.command(name="model-server", short_help="Serve a model that knows a world.")
@click.option("--seed", "--world-seed", type=int, default=1, show_default=True, metavar="N")
@world_options
@error_options
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="0: a free one.")
@click.option("--latency", type=click.Choice(["zero", "default"]), default="zero", show_default=True)
@click.option("--streams", type=click.IntRange(1), help="Answers written at one time.")
@click.option("--first-token-s", type=click.FloatRange(0), help="Seconds to the first token.")
@click.option("--tokens-per-s", type=click.FloatRange(0), help="Of one stream; 0: all at once.")
@click.option(
    "--shuffle-s", type=click.FloatRange(0), default=0.0, help="Holds each answer back for up to so long."
)
@click.option("--wild", is_flag=True, help="Answer questions with a hash of the whole prompt.")
@click.option("--faults", type=RATE, default=0.0, help="Of each: malformed, truncated, 429, 500.")
@click.option("--hangs", type=RATE, default=0.0, help="Requests that get no answer.")
@click.option("--affinity", type=RATE, default=0.0, help="How near the names of one entity are embedded.")
@click.option(
    "--record",
    type=click.Path(path_type=Path),
    help="Notes what is answered; a server that is started again with it counts on.",
)
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
      python -m bench model-server --seed 1 --port 8000
    """
    import asyncio

    service = _service(seed, rest)
    asyncio.run(_serve(service, port, idle_s, call.as_json))
    return 0


def _service(seed: int, rest: dict[str, Any]) -> Service:
    from dataclasses import replace

    from bench.model_server import Record, Service
    from bench.world import Oracle, World
    from bench.world.latency import PRESETS

    latency = PRESETS[rest.pop("latency")]
    own = {name: rest.pop(name) for name in ("streams", "first_token_s", "tokens_per_s")}
    shape = {name: rest.pop(name) for name in ("wild", "affinity", "shuffle_s")}
    path = rest.pop("record")
    faults = _faults(rest.pop("faults"), rest.pop("hangs"))
    wrong = errors(rest)
    oracle = Oracle(World(plan=plan(seed, rest)), wrong)
    chosen = replace(latency, **{name: given for name, given in own.items() if given is not None})
    record = None if path is None else Record(path)
    return Service(oracle, latency=chosen, faults=faults, record=record, **shape)


def _faults(rate: float, hangs: float) -> Faults:
    from bench.model_server import Faults

    return Faults(malformed=rate, truncated=rate, throttled=rate, failed=rate, hung=hangs)


async def _serve(service: Service, port: int, idle_s: float, as_json: bool) -> None:
    from bench.model_server import ModelServer
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
        with suppress(RuntimeError, ValueError):  # no main thread, or no such signals
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with suppress(asyncio.CancelledError):
        await task


COMMANDS = (world, model_server)
