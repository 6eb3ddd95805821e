"""bench world, bench model-server: a world as files, and as a model that knows it."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench.commands.options import (
    choice,
    error_options,
    errors_of,
    file,
    latency_options,
    number,
    plan_of,
    rate,
    seed_option,
    world_options,
)
from kgray.cli import printing
from kgray.cli.frame import Call, command

if TYPE_CHECKING:
    from tests.world.model_server import Service


@command("Write a world's episodes and its truth.")
@seed_option
@world_options
@file("--out", "Episodes, for `kgray add`.", required=True)
@file("--truth", "Entities, mentions, extractions, facts.")
@file("--asked", "Messages and questions, for `kgray eval retrieval`.")
def world(
    call: Call,
    seed: int,
    out: Path,
    truth: Path | None,
    asked: Path | None,
    **parameters: Any,  # noqa: ANN401
) -> None:
    """Write a generated world: episodes in the input format, and a separate file with the truth.

    python -m bench world --episodes 1000 --seed 1 --out world.jsonl --truth truth.jsonl
    """
    from tests.world.files import write

    written = write(plan_of(seed, parameters), out, truth, asked)
    if call.as_json:
        printing.emit_json(written)
    else:
        click.echo(
            f"{written['episodes']} episodes in {out}" + (f", their truth in {truth}" if truth else "")
        )


@command("Serve a model that knows a world.", name="model-server")
@click.option("--seed", "--world-seed", type=int, default=1, show_default=True, metavar="N")
@world_options
@error_options
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="0: a free one.")
@choice("--latency", "zero", "default")
@latency_options()
@number("--shuffle-s", 0.0, "Holds each answer back for up to so long.")
@click.option("--wild", is_flag=True, help="Answer questions with a hash of the whole prompt.")
@rate("--faults", 0.0, "Of each: malformed, truncated, 429, 500.")
@rate("--hangs", 0.0, "Requests that get no answer.")
@rate("--affinity", 0.0, "How near the names of one entity are embedded.")
@file("--record", "Notes what is answered; a server that is started again with it counts on.")
@number("--idle-s", 600.0, "Ends after so long.", minimum=1)
def model_server(call: Call, seed: int, port: int, idle_s: float, **options: Any) -> None:  # noqa: ANN401
    """Serve an OpenAI-compatible model on the loopback address that answers from a world's truth.

    The first line on standard output names its address. It ends on SIGTERM, when its parent process has
    ended, or after --idle-s without a request.

      python -m bench model-server --seed 1 --port 8000
    """
    import asyncio

    for signal_number in (signal.SIGTERM, signal.SIGINT):
        # uvicorn takes the signal, closes in order and raises it again: then it has done its work.
        signal.signal(signal_number, lambda *_: None)
    asyncio.run(_serve(_service(seed, options), port, idle_s, as_json=call.as_json))


def _service(seed: int, options: dict[str, Any]) -> Service:
    from dataclasses import replace

    from tests.world import Oracle, World
    from tests.world.latency import PRESETS
    from tests.world.model_server import Faults, ServerRecord, Service

    latency = PRESETS[options.pop("latency")]
    limits = {name: options.pop(name) for name in ("streams", "first_token_s", "tokens_per_s")}
    behaviour = {name: options.pop(name) for name in ("wild", "affinity", "shuffle_s")}
    path, rate = options.pop("record"), options.pop("faults")
    faults = Faults(malformed=rate, truncated=rate, throttled=rate, failed=rate, hung=options.pop("hangs"))
    errors = errors_of(options)
    return Service(
        Oracle(World(plan=plan_of(seed, options)), errors),
        latency=replace(latency, **{name: value for name, value in limits.items() if value is not None}),
        faults=faults,
        record=None if path is None else ServerRecord(path),
        **behaviour,
    )


async def _serve(service: Service, port: int, idle_s: float, *, as_json: bool) -> None:
    from kgray.errors import SettingsError
    from tests.world.model_server import ModelServer

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
        await server.wait()
    finally:
        await server.__aexit__(None, None, None)


COMMANDS = (world, model_server)
