"""The engine client on vLLM itself, its build for processors, with a tiny random Qwen3: `make test-vllm`.

A random model says nothing sensible: what is tested is that every reply has the form of its schema.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from kgray.errors import Unavailable
from kgray.ontology import shipped
from kgray.prompting.prompts import Prompts
from kgray.prompting.schemas import EXTRACTION_TASKS, answers_schema
from tests.models import tiny

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


def children() -> set[int]:
    import psutil

    return {child.pid for child in psutil.Process().children(recursive=True)}


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


async def test_an_engine_from_its_start_to_its_end(tmp_path, monkeypatch):
    from kgray.backends.openai_api.client import Rejected, TokensSpent
    from kgray.backends.vllm_engine import EngineClient, EngineLimits

    for name, value in PROCESSOR.items():
        monkeypatch.setenv(name, value)
    before, held = children(), segments()
    limits = EngineLimits(
        max_num_seqs=64, max_num_batched_tokens=4096, max_model_len=4096, memory_share=0.5, eager=True
    )
    engine = EngineClient(
        str(tiny.qwen(tmp_path / "qwen-tiny")), limits=limits, timeout_s=600.0, patience_s=1.0,
        heads=[Prompts(shipped())["combined"].head[:1500]],
    )  # fmt: skip
    await engine.start()
    assert children() - before

    await replies_are_of_their_form(engine)
    with pytest.raises(Rejected, match="maximum context length"):
        await engine.chat(body("combined", "tea " * 6000, 0.0), TokensSpent())
    slow = body("combined", "tea", 1.0, room=2000)
    hanging = asyncio.create_task(engine.chat(slow, TokensSpent()))
    await asyncio.sleep(0)
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
    import psutil

    left = children() - before
    psutil.wait_procs([psutil.Process(pid) for pid in left if psutil.pid_exists(pid)], timeout=60)
    names = [psutil.Process(pid).name() for pid in children() - before]
    assert [name for name in names if "VLLM" in name] == []
    assert {name for name in segments() - held if "psm" in name} == set()
