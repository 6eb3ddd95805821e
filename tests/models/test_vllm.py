"""The engine client on vLLM itself, its build for processors, with a tiny random Qwen3: `make test-vllm`.

A random model writes nonsense: the tests check that every reply has the form of its schema.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from bench import models, random_models
from bench.models import PROCESSOR
from kgray.domain.ontology import shipped
from kgray.errors import Unavailable
from kgray.models.openai_api.writing import SCHEMAS as WRITTEN
from kgray.models.prompting.prompts import Prompts
from kgray.models.prompting.reply_schemas import answers_schema, extraction_schemas
from kgray.models.vllm_engine import EngineClient
from kgray.settings.engine import EngineLimits

if find_spec("vllm") is None:
    pytest.skip("vLLM is not installed: make test-vllm", allow_module_level=True)
pytestmark = pytest.mark.models
KINDS = ("entity", "compare")
SCHEMAS = {
    **extraction_schemas(),
    **{kind: answers_schema([kind]) for kind in KINDS},
    "batched": answers_schema(KINDS),
    **WRITTEN,
}
LIMITS = EngineLimits(
    max_num_seqs=64, max_num_batched_tokens=4096, max_model_len=4096, memory_share=0.5, eager=True
)
LONGEST_S = 5400  # twenty starts took 7 minutes on a machine with a load of 20
ROOM = 150  # a random model ends a text by chance


def body(task: str, data: str, temperature: float, room: int = ROOM) -> dict[str, Any]:
    """Return a request with our own head, cut to the tiny tokenizer's length."""
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

    children = psutil.Process().children(recursive=True)
    names = [child.name() for child in children if child.status() != psutil.STATUS_ZOMBIE]
    return [name for name in names if "VLLM" in name]


def segments() -> set[str]:
    """Return the names of Python's shared memory that no other program has mapped; vLLM's is of this kind."""
    import psutil

    segment_names = {path.name for path in Path("/dev/shm").glob("psm_*")}  # noqa: S108 - the folder of the system
    own_pids = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    for process in psutil.process_iter():
        with suppress(OSError):
            text = Path(f"/proc/{process.pid}/maps").read_text() if process.pid not in own_pids else ""
            segment_names -= {name for name in segment_names if name in text}
    return segment_names


async def replies_are_of_their_form(engine: Any) -> None:
    """64 concurrent replies of each schema, half hot: valid, or a valid prefix if truncated."""
    import jsonschema

    from kgray.models.openai_api.client import TokensSpent

    spent, complete_replies = TokensSpent(), dict.fromkeys(SCHEMAS, 0)
    for task, schema in SCHEMAS.items():
        bodies = [body(task, f"I like tea {n}.", float(n % 2)) for n in range(64)]
        for reply in await asyncio.gather(*(engine.chat(item, spent) for item in bodies)):
            choice = reply["choices"][0]
            text = choice["message"]["content"]
            assert text.startswith("{")
            if choice["finish_reason"] == "stop":
                complete_replies[task] += 1
                jsonschema.validate(json.loads(text), schema)
    sys.stdout.write(f"\nwhole of 64: {complete_replies}\n")
    assert sum(complete_replies.values()) >= 64
    assert engine.counts["cached_tokens"] > 0.5 * engine.counts["prompt_tokens"]


async def engines_ended() -> None:
    """Wait for the end of an engine's processes: vLLM kills a slow worker and does not wait for it."""
    for _ in range(300):
        if not engines():
            return
        await asyncio.sleep(0.1)
    assert engines() == []


async def dies_and_restarts(engine: EngineClient, died: list[bool]) -> None:
    """Have an engine killed: its actor gets the reason, no process of it remains, and the next replies."""
    import psutil

    from kgray.models.openai_api.client import TokensSpent

    def go_on() -> list[psutil.Process]:
        return [child for child in processes if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]

    processes = [child for child in psutil.Process().children(recursive=True) if "VLLM" in child.name()]
    engine.endpoint = replace(engine.endpoint, timeout_s=600.0, patience_s=1.0)
    next(process for process in processes if "EngineCore" in process.name()).kill()
    with pytest.raises(Unavailable, match="has died"):
        await engine.chat(body("combined", "tea", 0.0, room=4), TokensSpent())
    assert died
    for _ in range(600):
        if not go_on():
            break
        await asyncio.sleep(0.1)
    assert go_on() == []
    await engine.stop()
    fork_what_is_spawned()
    await engine.chat(body("combined", "tea", 0.0, room=4), TokensSpent())


async def life(folder: Path) -> None:
    """Have an engine start, reply, refuse, abort, die, start again and end."""
    from kgray.models.openai_api.client import Rejected, TokensSpent

    died: list[bool] = []
    engine = EngineClient(
        str(random_models.qwen(folder / "qwen-tiny")), limits=LIMITS, timeout_s=600.0, patience_s=1.0,
        heads=[Prompts(shipped())["combined"].head[:1500]], on_dead=lambda: died.append(True),
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
        if engine.counts["calls"]:
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
    await dies_and_restarts(engine, died)
    await engine.stop()
    await engines_ended()
    sys.stdout.write(f"\n{json.dumps(engine.counts)}\n")


def fork_what_is_spawned() -> None:
    """Have vLLM's processes be forks of this process, which has imported all their modules.

    vLLM spawns those of its build for processors: 26 of the 31 s of processor time of a start are imports.
    The resources and the ends of the processes are the same.
    """
    importlib.import_module("vllm.v1.worker.cpu_worker")
    get = multiprocessing.get_context
    multiprocessing.get_context = lambda method=None: get("fork" if method == "spawn" else method)


async def starts_and_stops(folder: Path, times: int = 20, spawned: int = 2) -> None:
    """Start an engine, have it reply, and stop it, again and again: each leaves no process, no memory."""
    from kgray.models.openai_api.client import TokensSpent

    engine = EngineClient(
        str(random_models.qwen(folder / "qwen-tiny")), limits=LIMITS, timeout_s=600.0, patience_s=1.0
    )
    segments_before = segments()
    for number in range(times):
        if number == spawned:
            fork_what_is_spawned()
        await engine.start()
        assert engines()
        await engine.chat(body("extract_entities", "tea", 0.0, room=4), TokensSpent())
        await engine.stop()
        await engines_ended()
        assert segments() - segments_before == set()
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()


def in_its_own_process(task: str) -> str:
    """Run `life` or `starts_and_stops`, and return its output; no process or segment of it remains.

    Shared memory of an engine is freed with the process that stopped it, at the latest.
    """
    segments_before = segments()
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.models.test_vllm", task, folder]
        process = subprocess.run(
            command,
            env=os.environ | PROCESSOR,
            timeout=LONGEST_S,
            check=False,
            capture_output=True,
            text=True,
        )
    assert process.returncode == 0, process.stdout[-400:] + process.stderr[-4000:]
    assert segments() - segments_before == set()
    return process.stdout


def test_the_life_of_an_engine_leaves_no_process_or_memory():
    output_lines = in_its_own_process("life").splitlines()
    counts = json.loads(next(line for line in output_lines if line.startswith('{"prompt_tokens"')))
    assert counts["aborted"] >= 2


def test_twenty_starts_and_stops_leave_no_process_or_memory():
    assert len(in_its_own_process("starts_and_stops").splitlines()) >= 20


async def killed(folder: Path) -> None:
    """Start an engine, and die."""
    engine = EngineClient(
        str(random_models.qwen(folder / "qwen-tiny")), limits=LIMITS, timeout_s=600.0, patience_s=1.0
    )
    await engine.start()
    assert engines()
    import psutil

    children = psutil.Process().children(recursive=True)
    (folder / "engines").write_text(" ".join(str(child.pid) for child in children if "VLLM" in child.name()))
    record = engine._belongings._record.name
    (folder / "record").write_text(f"{record}\n{(folder / record).read_text()}")
    os.kill(os.getpid(), signal.SIGKILL)


def test_the_next_start_on_a_node_removes_the_remains_of_a_killed_engine(tmp_path):
    from kgray.models.belongings import Belongings
    from tests.unit.test_belongings import lives
    from tests.waiting import wait_for

    segments_before = segments()
    command = [sys.executable, "-m", "tests.models.test_vllm", "killed", str(tmp_path)]
    with (tmp_path / "said").open("w") as output:
        process = subprocess.run(
            command, env=os.environ | PROCESSOR, timeout=LONGEST_S, check=False, stdout=output, stderr=output
        )
    assert process.returncode == -signal.SIGKILL, (tmp_path / "said").read_text()[-4000:]
    record, *noted = (tmp_path / "record").read_text().splitlines()
    names = [line.split()[0] for line in noted[1:]]  # behind the namespace
    segments_left = [name for name in names if Path("/dev/shm", name).exists()]  # noqa: S108
    sys.stdout.write(f"\n{segments_left} left; noted: {noted}\n")
    pids = [int(pid) for pid in (tmp_path / "engines").read_text().split()]
    assert len(pids) >= 2  # the engine's core, and its worker
    wait_for(lambda: not any(map(lives, pids)))  # the guard ends them

    belongings = Belongings()
    with belongings.noting():
        pass
    belongings.end()

    assert not Path(record).exists()
    assert segments() - segments_before == set()
    assert [name for name in names if Path("/dev/shm", name).exists()] == []  # noqa: S108


def test_a_backfill_with_engine_and_embedder_ends_and_can_be_searched(tmp_path):
    """The models say nothing sensible: each of 20 episodes ends committed, or failed with a reason."""
    outcome = models.ingest(tmp_path, "tiny", episodes=20)

    report = outcome["report"]
    assert report["accepted"] == 20 == report["committed"] + report["failed"]
    assert len(outcome["failures"]) == report["failed"]
    assert all(failure["message"] for failure in outcome["failures"])
    assert [hit["score"] for hit in outcome["hits"]] == sorted(
        (h["score"] for h in outcome["hits"]), reverse=True
    )
    assert outcome["hits"]
    assert {"models-0", "embedder-0", "reranker-0"} == outcome["done"].keys()
    assert outcome["done"]["models-0"] >= 20
    assert outcome["done"]["embedder-0"] > 0
    assert outcome["done"]["reranker-0"] == 1  # by the search, which loads no model itself


WITH_ARGUMENTS = """
[extraction]
workers = 1
cpus = 0.1
concurrency = 100
start_deadline_s = 900.0
env = {{ {env}, HF_TOKEN = "hf_secret" }}

[embedding]
workers = 0

[engine]
max_num_seqs = 8
max_num_batched_tokens = 4096
max_model_len = 4096
memory_share = 0.5
eager = true
args = {{ seed = 7, enable_chunked_prefill = true, load_format = "dummy" }}
"""


def test_an_engine_uses_arguments_of_the_profile_and_exports_metrics_of_vllm(tmp_path):
    """The weights are made by vLLM (`load_format`); Prometheus reads both kinds of metrics from Ray."""
    import ray

    import kgray
    from tests.waiting import wait_for

    env = ", ".join(f'{name} = "{value}"' for name, value in PROCESSOR.items())
    profile = tmp_path / "profile.toml"
    profile.write_text(WITH_ARGUMENTS.format(env=env))
    settings: dict[str, Any] = {
        "model_backend": "vllm", "model_name": str(random_models.qwen(tmp_path / "qwen-tiny")),
        "model_timeout_s": 600.0, "runtime_backend": "ray", "runtime_profile": profile,
    }  # fmt: skip
    with kgray.open(tmp_path / "d", create=True, settings=settings) as memory:
        report = memory.add_many([{"text": "I like tea.", "group": "g", "at": "2026-03-01"}])
        assert report.committed + report.failed == 1
        pieces: list[str] = []
        answer = memory.ask("Who?", group="g", general=True, on_text=pieces.append)
        assert answer.cost.calls == 1
        assert pieces

        def metrics() -> set[str]:
            port = ray.nodes()[0]["MetricsExportPort"]
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answered:
                lines = answered.read().decode().splitlines()
            names = {line.split("{")[0] for line in lines if not line.startswith("#")}
            return {name for name in names if name.startswith(("ray_vllm_", "ray_kgray_engine"))}

        expected_metrics = {
            "ray_kgray_engine",
            "ray_vllm_num_requests_running",
            "ray_vllm_kv_cache_usage_perc",
        }
        wait_for(lambda: expected_metrics <= metrics())
        sys.stdout.write(f"{sorted(metrics())}\n")
        assert any(name.startswith("ray_vllm_time_to_first_token_seconds") for name in metrics())


def test_the_openai_backend_uses_the_server_of_vllm(tmp_path):
    """Started as in docs/models.md: after its replies each message ends with facts or with a reason."""
    import kgray
    from tests.waiting import wait_for

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    form = json.dumps({"backend": "guidance", "disable_any_whitespace": True})
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(random_models.qwen(tmp_path / "qwen-tiny")), "--served-model-name", "tiny"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", "8192", "--enforce-eager"]
    command += ["--structured-outputs-config", form, "--max-num-seqs", "8"]

    def answers() -> bool:
        assert server.poll() is None, (tmp_path / "log").read_text()[-3000:]
        with (
            suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as health,
        ):
            return bool(health.status == 200)
        return False

    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(
            command, env=os.environ | PROCESSOR, stdout=log, stderr=log, start_new_session=True
        )
    try:
        wait_for(answers)
        settings: dict[str, Any] = {
            "model_backend": "openai", "model_base_url": f"http://127.0.0.1:{port}/v1", "model_name": "tiny",
            "model_timeout_s": 300.0,
        }  # fmt: skip
        with kgray.open(tmp_path / "d", create=True, settings=settings) as memory:
            rows = [{"text": f"I like tea {n}.", "group": "g", "at": "2026-03-01"} for n in range(4)]
            report = memory.add_many(rows)
            assert report.committed + report.failed == 4
            assert all(failed.failure.message for failed in memory.failures(group="g"))
        replies = (tmp_path / "log").read_text().count('"POST /v1/chat/completions HTTP/1.1" 200')
        assert replies >= 4
    finally:
        server.terminate()
        server.wait(60)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (
            {"quantisation": "fp8"},
            "quantisation is no argument of vLLM's engine. The nearest one is quantization",
        ),
        ({"kv_cache_dtype": "fp9"}, "is refused by vLLM: argument --kv-cache-dtype: invalid choice: 'fp9'"),
    ],
)
def test_the_parser_of_vllm_knows_the_arguments_that_kgray_sets(args, words):
    import dataclasses

    from vllm import AsyncEngineArgs

    from kgray.errors import SettingsError
    from kgray.models.engine_args import arguments_of, parsed
    from kgray.settings.engine import PROTECTED

    with pytest.raises(SettingsError) as refused:
        parsed("m", EngineLimits(args=args))
    assert words in str(refused.value)
    known_fields = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    assert {*PROTECTED, *arguments_of("m", EngineLimits())} <= known_fields
    right = parsed(
        "m", EngineLimits(args={"quantization": "awq", "kv_cache_dtype": "fp8", "revision": "main"})
    )
    assert (right.quantization, right.kv_cache_dtype, right.revision) == ("awq", "fp8", "main")
    assert right.scheduling_policy == "priority"


if __name__ == "__main__":
    asyncio.run(
        {task.__name__: task for task in (life, starts_and_stops, killed)}[sys.argv[1]](Path(sys.argv[2]))
    )
