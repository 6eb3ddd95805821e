"""A model server in a process of its own, and the shipped HTTP backend in front of it."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

from kgray.bench.places import free_port
from kgray.bench.quality import Models
from kgray.bench.world import Oracle
from kgray.errors import KgrayError
from kgray.ontology import shipped
from kgray.settings import ModelSettings, PipelineSettings, Settings
from kgray.wiring import build_models

_STOP_S = 10.0
MODEL = "world"  # the model's name, as the server knows it


def flags_of(oracle: Oracle) -> list[str]:
    """Return the options under which `kgray bench model-server` knows this world, with these errors."""
    plan, errors = oracle.world.plan, oracle.errors
    return [
        *("--seed", str(plan.seed), "--episodes", str(plan.episodes), "--entities", str(plan.entities)),
        *("--groups", str(plan.groups), "--alias-rate", str(plan.alias_rate)),
        *("--change-rate", str(plan.change_rate), "--homonyms", str(plan.homonyms)),
        *("--errors", str(errors.missed_fact), "--merge-errors", str(errors.missed_merge)),
        *("--ruling-errors", str(errors.wrong_ruling), "--error-seed", str(errors.seed)),
    ]


class Server:
    """`kgray bench model-server` at an address that it keeps: one that was killed can be started again."""

    def __init__(self, flags: Sequence[str]) -> None:
        """Choose a free port; `start` starts it with these options."""
        port = free_port()
        # -P: a folder named kgray where the command runs would be taken for this package.
        self._command = [sys.executable, "-P", "-m", "kgray", "bench", "model-server", "--json", *flags]
        self._command += ["--port", str(port)]
        self._process: subprocess.Popen[str] | None = None
        self.base_url = f"http://127.0.0.1:{port}/v1"

    @property
    def pid(self) -> int:
        """The process's id; 0 while there is none."""
        return self._process.pid if self._process is not None else 0

    def start(self) -> None:
        """Start it; it answers on return."""
        process = self._process = subprocess.Popen(  # noqa: S603 - our own
            self._command, stdout=subprocess.PIPE, text=True
        )
        line = process.stdout.readline() if process.stdout else ""
        if not line:
            raise KgrayError(f"The model server did not start (exit {process.wait(_STOP_S)}).")

    def kill(self) -> None:
        """End it at once; whoever asks meets a refused connection."""
        self._end(lambda process: process.kill())

    def stop(self) -> None:
        """End it in order. Idempotent."""
        self._end(lambda process: process.terminate())

    def stats(self) -> dict[str, Any]:
        """Return what it has counted."""
        return stats(self.base_url)

    def __enter__(self) -> Self:
        """Start it."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self.stop()

    def _end(self, ask: Any) -> None:  # noqa: ANN401 - what is done to the process
        process, self._process = self._process, None
        if process is None:
            return
        ask(process)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


@contextmanager
def serving(flags: Sequence[str]) -> Iterator[str]:
    """Yield the base URL of a server with these options; it ends with the block, or by itself when idle."""
    with Server(flags) as server:
        yield server.base_url


@contextmanager
def over_http(oracle: Oracle, pipeline: PipelineSettings, more: Sequence[str] = ()) -> Iterator[Models]:
    """Yield the `openai` backend before a model server that knows the world; more: its further flags."""
    with serving([*flags_of(oracle), *more]) as base_url:
        settings = Settings(
            model=ModelSettings(backend="openai", base_url=base_url, name=MODEL),
            pipeline=pipeline,
        )
        extractor, judge = build_models(settings, shipped())
        yield Models(extractor, judge, lambda: stats(base_url))


def stats(base_url: str) -> dict[str, Any]:
    """Return what a model server has counted."""
    with urllib.request.urlopen(f"{base_url}/stats", timeout=10) as answer:  # noqa: S310 - loopback, http
        found: dict[str, Any] = json.load(answer)
    return found
