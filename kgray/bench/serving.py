"""A model server in a process of its own, and the shipped HTTP backend in front of it."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kgray.bench.quality import Models
from kgray.bench.world import Oracle
from kgray.errors import KgrayError
from kgray.ingest.parts import Pipeline
from kgray.ontology import shipped
from kgray.settings import ModelSettings, PipelineSettings, Settings
from kgray.wiring import build_models

_STOP_S = 10.0


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


@contextmanager
def serving(flags: Sequence[str]) -> Iterator[str]:
    """Yield the base URL of a server with these options; it ends with the block, or by itself when idle."""
    # -P: a folder named kgray where the command runs would be taken for this package.
    command = [sys.executable, "-P", "-m", "kgray", "bench", "model-server", "--json", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - our own
        try:
            line = process.stdout.readline() if process.stdout else ""
            if not line:
                raise KgrayError(f"The model server did not start (exit {process.wait(_STOP_S)}).")
            yield str(json.loads(line)["base_url"])
        finally:
            process.terminate()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


@contextmanager
def over_http(oracle: Oracle, pipeline: Pipeline, more: Sequence[str] = ()) -> Iterator[Models]:
    """Yield the `openai` backend before a model server that knows the world; more: its further flags."""
    with serving([*flags_of(oracle), *more]) as base_url:
        settings = Settings(
            model=ModelSettings(backend="openai", base_url=base_url, name="world"),
            pipeline=PipelineSettings(
                extraction=pipeline.extraction,  # type: ignore[arg-type]
                resolution=pipeline.resolution,  # type: ignore[arg-type]
                judging=pipeline.judging,  # type: ignore[arg-type]
                reflect_rounds=pipeline.reflect_rounds,
            ),
        )
        extractor, judge = build_models(settings, shipped())
        yield Models(extractor, judge, lambda: _stats(base_url))


def _stats(base_url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{base_url}/stats", timeout=10) as answer:  # noqa: S310 - loopback, http
        found: dict[str, Any] = json.load(answer)
    return found
