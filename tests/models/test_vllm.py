"""The engine client on vLLM itself, its build for processors, with a tiny random Qwen3: `make test-vllm`.

A random model says nothing sensible: what is tested is that every reply has the form of its schema.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from bench import random_models
from kgray.errors import Unavailable
from kgray.ontology import shipped
from kgray.prompting.prompts import Prompts
from kgray.prompting.schemas import EXTRACTION_TASKS, answers_schema

if find_spec("vllm") is None:
    pytest.skip("vLLM is not installed: make test-vllm", allow_module_level=True)
pytestmark = pytest.mark.models
KINDS = ("entity", "relation", "cardinality", "variant", "verdict")
SCHEMAS = {
    **EXTRACTION_TASKS,
    **{kind: answers_schema([kind]) for kind in KINDS},
    "batched": answers_schema(KINDS),
}
ROOM = 600  # a random model ends a text by chance
# In a build for processors: how much cache, and no binding of threads, which starves a busy machine.
PROCESSOR = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


def body(task: str, data: str, temperature: float, room: int = ROOM) -> dict[str, Any]:
    """Return a request with a head of ours, cut to what the tiny tokenizer makes of it."""
    head = Prompts(shipped())["combined"].head[:1500]
    form = {"name": task, "schema": SCHEMAS[task], "strict": True}
    return {
        "messages": [{"role": "system", "content": head}, {"role": "user", "content": data}],
        "max_tokens": room,
        "temperature": temperature,
        "response_format": {"type": "json_schema", "json_schema": form},
    }


def engines() -> list[str]:
    """Return the names of this process's processes of an engine."""
    import psutil

    there = psutil.Process().children(recursive=True)
    names = [child.name() for child in there if child.status() != psutil.STATUS_ZOMBIE]
    return [name for name in names if "VLLM" in name]


def segments() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}  # noqa: S108 - where the system keeps them


async def replies_are_of_their_form(engine: Any) -> None:
    """64 at once, of every schema, at temperature 0 and 1: whole ones are valid, cut ones begin so."""
    import jsonschema

    from kgray.backends.openai_api.client import TokensSpent

    asked = [(task, temperature) for task in SCHEMAS for temperature in (0.0, 1.0)]
    asked = (asked * 3)[:64]
    spent = TokensSpent()
    found = await asyncio.gather(
        *(engine.chat(body(task, f"I like tea {n}.", hot), spent) for n, (task, hot) in enumerate(asked))
    )
    whole = 0
    for (task, _), reply in zip(asked, found, strict=True):
        choice = reply["choices"][0]
        text = choice["message"]["content"]
        assert text.startswith("{")
        if choice["finish_reason"] == "stop":
            whole += 1
            jsonschema.validate(json.loads(text), SCHEMAS[task])
    assert whole >= 16
    assert engine.counts["cached_tokens"] > 0.5 * engine.counts["prompt_tokens"]


async def life(folder: Path) -> None:
    """Have an engine start, reply, refuse, abort and end."""
    from kgray.backends.openai_api.client import Rejected, TokensSpent
    from kgray.backends.vllm_engine import EngineClient, EngineLimits

    limits = EngineLimits(
        max_num_seqs=64, max_num_batched_tokens=4096, max_model_len=4096, memory_share=0.5, eager=True
    )
    engine = EngineClient(
        str(random_models.qwen(folder / "qwen-tiny")), limits=limits, timeout_s=600.0, patience_s=1.0,
        heads=[Prompts(shipped())["combined"].head[:1500]],
    )  # fmt: skip
    await engine.start()
    assert engines()

    await replies_are_of_their_form(engine)
    with pytest.raises(Rejected, match="maximum context length"):
        await engine.chat(body("combined", "tea " * 6000, 0.0), TokensSpent())
    slow = body("combined", "tea", 1.0, room=2000)
    hanging = asyncio.create_task(engine.chat(slow, TokensSpent()))
    for _ in range(500):
        await asyncio.sleep(0.01)
        if engine.counts["running"]:
            break
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging
    engine.endpoint = replace(engine.endpoint, timeout_s=0.01, patience_s=0.02)
    with pytest.raises(Unavailable, match="gave no reply"):
        await engine.chat(slow, TokensSpent())
    for _ in range(500):
        if not engine._engine.output_processor.has_unfinished_requests():
            break
        await asyncio.sleep(0.01)
    assert not engine._engine.output_processor.has_unfinished_requests()  # aborted in the engine, too
    await engine.stop()
    for _ in range(300):  # vLLM kills a worker that is slow to end, and does not wait for its death
        if not engines():
            break
        await asyncio.sleep(0.1)
    assert engines() == []
    sys.stdout.write(f"\n{json.dumps(engine.counts)}\n")


def test_an_engine_from_its_start_to_its_end_leaves_nothing():
    """In a process of its own: what an engine held in shared memory goes with the process that stopped it."""
    held = segments()
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.models.test_vllm", folder]
        done = subprocess.run(
            command, env=os.environ | PROCESSOR, timeout=1500, check=False, capture_output=True, text=True
        )
    assert done.returncode == 0, done.stderr[-4000:]
    counts = json.loads(
        next(line for line in done.stdout.splitlines() if line.startswith('{"prompt_tokens"'))
    )
    assert counts["aborted"] >= 2
    assert segments() - held == set()


if __name__ == "__main__":
    asyncio.run(life(Path(sys.argv[1])))
