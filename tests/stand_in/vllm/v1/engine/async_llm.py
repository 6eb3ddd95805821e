from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from vllm import AsyncEngineArgs, SamplingParams, note, noted
from vllm.exceptions import VLLMClientError
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.exceptions import EngineDeadError

# Seconds of a step; each step serves all running requests.
STEP_S = float(os.environ.get("KGRAY_TEST_ENGINE_STEP_S", "0.01"))


def smallest(schema: dict[str, Any]) -> Any:
    kind = schema.get("type")
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        return smallest(schema["anyOf"][-1])
    if isinstance(kind, list):
        return None
    if kind == "object":
        return {name: smallest(part) for name, part in schema["properties"].items()}
    return {"array": [], "integer": 0, "boolean": False, "string": ""}[kind]


def cards() -> str:
    """Return the bundles of this actor's placement group, and their strategy: where vLLM puts its workers."""
    import ray
    from ray.util import placement_group_table

    group = ray.util.get_current_placement_group()
    assert group is not None
    assert all(bundle.get("GPU", 0) <= 1 for bundle in group.bundle_specs)  # vLLM refuses others
    count = sum(bundle.get("GPU", 0) for bundle in group.bundle_specs)
    return f"{placement_group_table(group)['strategy']} {count:g}"


def secrets() -> str:
    """Return the names of the variables of this process that hold a secret, or "none"."""
    words = ("PASSWORD", "SECRET", "TOKEN", "KEY")
    return ",".join(sorted(name for name in os.environ if name.endswith(words))) or "none"


def fail_if_bad() -> None:
    """Fail where this actor's name is in the file that KGRAY_TEST_ENGINE_BAD names; after "ends", at once."""
    path = os.environ.get("KGRAY_TEST_ENGINE_BAD")
    if path and Path(path).exists():
        import ray

        bad = dict(line.split() for line in Path(path).read_text(encoding="utf-8").splitlines())
        match bad.get(ray.get_runtime_context().get_actor_name()):
            case "fails":
                note("bad")
                raise MemoryError("no room on the card")
            case "ends":
                note("bad")
                os._exit(1)


class Tokenizer:
    def apply_chat_template(self, messages: list[dict[str, str]], **template_options: Any) -> list[int]:
        assert template_options == {
            "add_generation_prompt": True, "tokenize": True, "return_dict": False, "enable_thinking": False
        }  # fmt: skip
        return [ord(letter) for message in messages for letter in message["content"]]


class AsyncLLM:
    def __init__(self, values: dict[str, Any], loggers: Sequence[Callable[..., Any]]) -> None:
        self.values, self.running, self.max_running, self.dead = values, 0, 0, False
        self.prefixes: set[str] = set()
        self.priorities: list[int] = []
        self.loggers = [logger(None, 0) for logger in loggers]
        for logger in self.loggers:
            logger.log_engine_initialized()

    @classmethod
    def from_engine_args(
        cls, arguments: AsyncEngineArgs, stat_loggers: Sequence[Callable[..., Any]] = ()
    ) -> AsyncLLM:
        if arguments.values["model"] == "missing":
            raise OSError("missing is not a folder with a model")
        fail_if_bad()
        if arguments.values["distributed_executor_backend"] == "ray":
            note(f"cards {cards()}")
        note(f"secrets:{secrets()}")
        note("start")
        return cls(arguments.values, stat_loggers)

    def stepped(self) -> None:
        """Record the number of running requests; requests above the limit wait."""
        runs = min(self.running, self.values["max_num_seqs"])
        scheduled = SimpleNamespace(num_running_reqs=runs, num_waiting_reqs=self.running - runs)
        for logger in self.loggers:
            logger.record(scheduled, SimpleNamespace(num_preempted_reqs=0), mm_cache_stats=None, engine_idx=0)

    def get_tokenizer(self) -> Tokenizer:
        return Tokenizer()

    async def generate(
        self, prompt: dict[str, Any], parameters: SamplingParams, request_id: str, priority: int = 0
    ) -> AsyncIterator[Any]:
        assert request_id.startswith("kgray-")
        self.priorities.append(priority)
        text = "".join(map(chr, prompt["prompt_token_ids"]))
        if self.dead:
            raise EngineDeadError
        if "[[LONG]]" in text:
            raise VLLMClientError("This model's maximum context length is 8192 tokens.")
        self.running += 1
        self.max_running = max(self.max_running, self.running)
        self.stepped()
        try:
            step_s = STEP_S * (2 * random.random() if "[[SPREAD]]" in text else 1.0)
            await (asyncio.Event().wait() if "[[HANG]]" in text else asyncio.sleep(step_s))
            if "[[DIE]]" in text or ("[[DIE ONCE]]" in text and "die" not in noted()):
                self.dead = True
                note("die")
                raise EngineDeadError
        except asyncio.CancelledError:
            note("abort")
            raise
        finally:
            self.running -= 1
            self.stepped()
        head = text[:1000]
        cached = 1000 if head in self.prefixes else 0
        self.prefixes.add(head)
        form = parameters.structured_outputs
        reply = json.dumps(smallest(form.json), separators=(",", ":")) if form else "hello"
        cut = len(reply) > parameters.max_tokens
        reply = reply[: parameters.max_tokens]
        # Requested streams have pieces of three letters, a step apart; other replies are complete.
        size = 3 if parameters.output_kind is RequestOutputKind.DELTA else max(len(reply), 1)
        for start in range(0, len(reply), size):
            piece, is_last = reply[start : start + size], start + size >= len(reply)
            end = ("length" if cut else "stop") if is_last else None
            out = SimpleNamespace(text=piece, token_ids=list(piece), finish_reason=end)
            yield SimpleNamespace(outputs=[out], num_cached_tokens=cached)
            if "[[DIE BETWEEN]]" in text:
                self.dead = True
                raise EngineDeadError
            await asyncio.sleep(STEP_S)

    def shutdown(self, timeout: float | None = None) -> None:  # noqa: ARG002 - as vLLM has it
        note("stop")
        self.dead = True
