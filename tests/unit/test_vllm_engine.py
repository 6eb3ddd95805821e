"""The actor's own logic over an engine, with a deterministic stand-in for vLLM (tests/stand_in)."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from kgray.domain.ontology import shipped
from kgray.errors import NotBuilt, Refused, SettingsError, Unavailable
from kgray.models.engine_args import strip_secrets
from kgray.models.prompting.prompts import Prompts
from kgray.models.prompting.reply_schemas import TEXT, listed_of, object_of
from kgray.models.vllm_engine import EngineClient
from kgray.ports import AnswerRequest, ExtractionRequest
from kgray.runtime.wiring import build_answerer, build_engine, build_models
from kgray.settings import load, require_built
from kgray.settings.engine import EngineLimits
from tests.doors.test_openai_models import ALL, QuestionRequest, episode
from tests.unit.test_belongings import MAPS

STAND_IN = Path(__file__).parent.parent / "stand_in"
VLLM = {"model_backend": "vllm", "model_name": "m", "runtime_backend": "ray"}
LIMITS = EngineLimits(max_num_seqs=8, max_model_len=4096)


@pytest.fixture
def log(tmp_path, monkeypatch):
    """Put the stand-in in vLLM's place; return the log of its engines."""
    monkeypatch.syspath_prepend(str(STAND_IN))
    for name in [name for name in sys.modules if name.split(".")[0] == "vllm"]:
        monkeypatch.delitem(sys.modules, name)
    path = tmp_path / "engine.log"
    monkeypatch.setenv("KGRAY_TEST_ENGINE_LOG", str(path))

    def events() -> list[str]:
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.split()[0] for line in lines if not line.startswith("secrets:")]

    yield events
    for name in [name for name in sys.modules if name.split(".")[0] == "vllm"]:
        del sys.modules[name]  # other tests must not import the stand-in as vLLM


def built(name: str = "m", died: list[str] | None = None, **settings: Any):
    """Return an engine, and the extractor and judge over it."""
    overrides = VLLM | {"model_name": name} | settings
    chosen = load(None, environ={}, overrides=overrides)
    engine = build_engine(chosen, shipped(), LIMITS, on_dead=lambda: died.append("died"))
    assert engine is not None
    return engine, *build_models(chosen, shipped(), engine=engine)


def request_of(text: str) -> ExtractionRequest:
    return ExtractionRequest(episode=episode(text))


async def test_concurrent_replies_are_parsed_like_replies_of_a_server(log):
    engine, extractor, judge = built()

    result = await asyncio.gather(*(extractor.extract(request_of(f"I like tea {n}.")) for n in range(40)))

    assert [entity.name for entity in result[0].entities] == ["Alice"]  # the speaker alone (R18)
    assert result[0].calls == 1
    assert result[0].completion_tokens == len('{"entities":[],"facts":[]}')
    assert log() == ["start"]  # one engine; its limits are the given limits
    assert engine._engine.values["max_num_seqs"] == 8
    assert engine._engine.values["structured_outputs_config"]["disable_any_whitespace"]
    assert (
        1 < engine._engine.max_running <= 16
    )  # at most twice the concurrent requests; the rest waits at the client
    # The heads were read at the start: each of the calls found its own in the cache.
    assert engine.counts["cached_tokens"] == 40 * 1000
    with pytest.raises(Exception, match="no usable reply"):  # the smallest reply answers no question
        await judge.judge(QuestionRequest(episode=episode(), questions=ALL))
    await engine.stop()
    assert log() == ["start", "stop"]
    assert {engine.counts[name] for name in ("calls", "running", "waiting", "aborted", "preempted")} == {0}


def question(text: str) -> AnswerRequest:
    return AnswerRequest(task="answer", question=text, head="Answer.", data=text, room=32)


async def test_an_answer_arrives_in_pieces(log):
    engine, _, _ = built()
    answerer = build_answerer(load(None, environ={}, overrides=VLLM), engine)
    pieces: list[str] = []
    cost = await answerer.answer(question("Who?"), pieces.append)
    assert (pieces, cost.calls, cost.completion_tokens) == (["hel", "lo"], 1, 5)
    schema = object_of(points=listed_of(TEXT))
    # An answer precedes calls of ingestion; the heads were read at the start like ingestion.
    assert {*engine._engine.priorities[:-1]} == {0}
    assert engine._engine.priorities[-1] == -1
    pieces.clear()
    await answerer.answer(replace(question("Who?"), schema=schema), pieces.append)
    assert pieces == ['{"points":[]}']
    await engine.stop()


async def test_a_truncated_answer_is_not_requested_again(log):
    died: list[str] = []
    engine, _, _ = built(died=died)
    answerer = build_answerer(load(None, environ={}, overrides=VLLM), engine)
    pieces: list[str] = []
    with pytest.raises(Unavailable, match="died in the middle of an answer: ask again"):
        await answerer.answer(question("[[DIE BETWEEN]]"), pieces.append)
    assert (pieces, died) == (["hel"], ["died"])


async def test_a_process_without_an_engine_refuses_to_answer(log):
    answerer = build_answerer(load(None, environ={}, overrides=VLLM))
    with pytest.raises(SettingsError, match="answers in Ray's workers alone"):
        await answerer.answer(question("Who?"), lambda _: None)


async def test_the_start_caches_the_head_of_every_prompt_of_the_pipeline(log):
    apart = ("extract_entities", "reflect", "extract_facts", "date_facts")
    tasks = (*apart, "resolve_entity", "compare")
    engine, _, _ = built(pipeline_extraction="separate", pipeline_resolution="per_node")
    await engine.start()
    assert engine._engine.prefixes == {Prompts(shipped())[task].head[:1000] for task in tasks}
    await engine.stop()


async def test_a_call_cancelled_during_loading_starts_no_second_engine(log):
    engine, _, _ = built()
    first = asyncio.create_task(engine.start())
    await asyncio.sleep(0)
    first.cancel()
    await engine.start()
    await engine.stop()
    assert log() == ["start", "stop"]


async def test_a_call_that_is_cancelled_or_too_slow_is_aborted(log):
    engine, extractor, _ = built(model_timeout_s=1.0, model_patience_s=1.0)
    hanging = asyncio.create_task(extractor.extract(request_of("[[HANG]]")))
    await extractor.extract(request_of("I like tea."))
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging
    assert log() == ["start", "abort"]

    engine.endpoint = replace(engine.endpoint, timeout_s=0.05, patience_s=0.1)
    with pytest.raises(Unavailable, match=r"gave no reply within 0\.05 s"):
        await extractor.extract(request_of("[[HANG]]"))

    assert set(log()[2:]) == {"abort"}
    assert engine._engine.running == 0
    await engine.stop()


async def test_a_text_that_is_too_long_for_the_model_is_refused(log):
    engine, extractor, _ = built()
    with pytest.raises(Refused, match="maximum context length"):
        await extractor.extract(request_of("[[LONG]]"))
    await extractor.extract(request_of("short"))
    await engine.stop()


async def test_a_dead_engine_is_reported_to_its_actor_and_stop_waits_for_the_end(log):
    died: list[str] = []
    engine, extractor, _ = built(died=died)
    engine.endpoint = replace(engine.endpoint, patience_s=0.1)
    with pytest.raises(Unavailable, match="has died"):
        await extractor.extract(request_of("[[DIE]]"))
    assert died
    await engine.stop()
    assert log()[-1] == "stop"


@pytest.fixture
def segments(log, monkeypatch):
    """Have the engine come with a process that maps a segment; return it, another program's, and the process.

    Both appear while the engine loads, and no process has the other segment mapped.
    """
    from vllm.v1.engine.async_llm import AsyncLLM

    own_segment, foreign_segment = (Path(f"/dev/shm/psm_{uuid4().hex[:8]}") for _ in range(2))  # noqa: S108
    processes: list[subprocess.Popen[str]] = []
    start, stop = AsyncLLM.from_engine_args, AsyncLLM.shutdown

    def starts(*arguments: Any, **fields: Any) -> Any:
        foreign_segment.write_bytes(bytes(8))
        process = subprocess.Popen(
            [sys.executable, "-c", MAPS, str(own_segment)], stdout=subprocess.PIPE, text=True
        )
        processes.append(process)
        process.stdout.readline()
        if arguments[0].values["model"] == "missing":
            time.sleep(0.5)
            kill()
        return start(*arguments, **fields)

    def kill() -> None:
        while processes:
            process = processes.pop()
            process.kill()
            process.communicate()

    def stops(engine: Any, timeout: float | None = None) -> None:
        kill()
        stop(engine, timeout)

    monkeypatch.setattr(AsyncLLM, "from_engine_args", starts)
    monkeypatch.setattr(AsyncLLM, "shutdown", stops)
    yield own_segment, foreign_segment
    kill()
    own_segment.unlink(missing_ok=True)
    foreign_segment.unlink(missing_ok=True)


async def test_only_shared_memory_of_a_killed_engine_is_removed(segments):
    """Processes that vLLM has to kill at the end cannot remove theirs."""
    engine, extractor, _ = built()
    await extractor.extract(request_of("I like tea."))
    assert [segment.exists() for segment in segments] == [True, True]
    await engine.stop()
    assert [segment.exists() for segment in segments] == [False, True]


async def test_shared_memory_of_an_engine_that_fails_to_start_is_removed(segments):
    engine, _, _ = built("missing")
    with pytest.raises(SettingsError):
        await engine.start()
    assert [segment.exists() for segment in segments] == [False, True]


async def test_a_segment_that_cannot_be_removed_does_not_fail_the_stop(segments, monkeypatch):
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    engine, extractor, _ = built()
    await extractor.extract(request_of("I like tea."))
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refuse)
        await engine.stop()


async def test_a_missing_model_is_a_settings_error(log):
    engine, _, _ = built("missing")
    with pytest.raises(SettingsError, match=r"model\.name = 'missing': vLLM cannot start it"):
        await engine.start()


async def test_without_vllm_the_error_names_the_extra(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "vllm"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "vllm", None)
    engine, _, _ = built()
    with pytest.raises(SettingsError, match=r"pip install 'kgray\[vllm\]'"):
        await engine.start()


async def test_a_process_without_the_engine_has_its_keys_and_refuses_calls():
    overrides = {"model_backend": "vllm", "model_name": "m", "runtime_backend": "ray"}
    extractor, judge = build_models(load(None, environ={}, overrides=overrides), shipped())
    _, second_extractor, second_judge = built()
    request = QuestionRequest(episode=episode(), questions=ALL)
    assert (extractor.identity, judge.key(request)) == (second_extractor.identity, second_judge.key(request))
    with pytest.raises(SettingsError, match="in Ray's workers alone"):
        await extractor.extract(request_of("I like tea."))


def test_the_vllm_backend_requires_ray():
    settings = load(None, environ={}, overrides={"model_backend": "vllm", "model_name": "m"})
    with pytest.raises(NotBuilt, match="runs in actors of Ray"):
        require_built(settings)


def with_arguments(**args: Any) -> EngineLimits:
    return EngineLimits(max_num_seqs=8, max_model_len=4096, args=args)


async def test_profile_arguments_reach_vllm_as_parsed_options(log, monkeypatch):
    monkeypatch.delenv("VLLM_BATCH_INVARIANT", raising=False)
    limits = with_arguments(
        kv_cache_dtype="fp8",
        seed=-1,
        async_scheduling=False,
        lora_target_modules=["a", "b"],
        speculative_config={"method": "ngram"},
        structured_outputs_config={"backend": "xgrammar"},
    )
    engine = EngineClient("m", limits=replace(limits, batch_invariant=True), timeout_s=9.0, patience_s=9.0)
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "0")
    await engine.start()
    values = engine._engine.values
    assert {name: values[name] for name in limits.args} == dict(limits.args) | {
        "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True}
    }
    assert (values["max_num_seqs"], values["scheduling_policy"]) == (8, "priority")
    assert os.environ["VLLM_BATCH_INVARIANT"] == "1"
    await engine.stop()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (
            {"kv_cache_dtyp": "fp8"},
            "args.kv_cache_dtyp is no argument of vLLM's engine. The nearest one is kv_cac",
        ),
        ({"kv_cache_dtype": "fp9"}, "is refused by vLLM: argument --kv-cache-dtype: invalid choice: 'fp9'"),
        ({"seed": "many"}, "is refused by vLLM: argument --seed: invalid int value"),
    ],
)
async def test_an_invalid_argument_gets_a_clear_error_before_the_engine_starts(log, args, words):
    engine = EngineClient("m", limits=with_arguments(**args), timeout_s=9.0, patience_s=9.0)
    with pytest.raises(SettingsError) as refused:
        await engine.start()
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert log() == []


def test_secrets_leave_the_environment_and_the_ray_token_is_in_a_memory_file():
    environ = {
        "KGRAY_STORE_PASSWORD": "p", "KGRAY_MODEL_API_KEY": "k", "AWS_SECRET_ACCESS_KEY": "s",
        "RAY_AUTH_TOKEN": "t", "HF_TOKEN_PATH": "/f", "HF_TOKEN": "h", "PATH": "/bin",
    }  # fmt: skip
    names = strip_secrets(environ)
    assert len({*names}) == 5
    path = environ.pop("RAY_AUTH_TOKEN_PATH")
    read = "import sys, pathlib; print(pathlib.Path(sys.argv[1]).read_text())"
    other_outcome = subprocess.run(
        [sys.executable, "-c", read, path], capture_output=True, text=True, check=True
    )
    assert other_outcome.stdout == "t\n"
    assert environ == {"HF_TOKEN_PATH": "/f", "PATH": "/bin"}
