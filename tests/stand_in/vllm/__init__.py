"""A deterministic stand-in for vLLM: the names that kgray uses, without a model.

It replies with the smallest value of the requested schema. Words in the prompt make it misbehave: [[HANG]]
does not end until it is aborted, [[DIE]] ends the engine, [[LONG]] is longer than the model, [[SPREAD]] takes
a random time. Events are
noted, a line each, in the file that KGRAY_TEST_ENGINE_LOG names. The file that KGRAY_TEST_ENGINE_BAD names
has the actors whose engines cannot start, a line each: name, and "fails" or "ends".
"""

from __future__ import annotations

import json
import os
from argparse import BooleanOptionalAction
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def note(words: str) -> None:
    if path := os.environ.get("KGRAY_TEST_ENGINE_LOG"):
        with Path(path).open("a", encoding="utf-8") as log:
            log.write(f"{words} {os.getpid()}\n")


def noted() -> str:
    path = os.environ.get("KGRAY_TEST_ENGINE_LOG")
    return Path(path).read_text(encoding="utf-8") if path else ""


class AsyncEngineArgs:
    def __init__(self, **values: Any) -> None:
        self.values = values

    @staticmethod
    def add_cli_args(parser: Any) -> Any:
        """Add some of vLLM's arguments, of each kind."""
        parser.add_argument("--kv-cache-dtype", choices=["auto", "fp8"])
        parser.add_argument("--quantization")
        parser.add_argument("--seed", type=int)
        parser.add_argument("--async-scheduling", action=BooleanOptionalAction)
        parser.add_argument("--lora-target-modules", nargs="+")
        parser.add_argument("--speculative-config", type=json.loads)
        return parser


@dataclass(kw_only=True)
class SamplingParams:
    max_tokens: int
    temperature: float
    structured_outputs: Any
    output_kind: Any
