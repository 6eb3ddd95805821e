"""Ingesting through Ray makes the plain loop's graph, despite killed actors (promises 1 and 2; R20-R24)."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import kgray
from bench.plain_loop import Loop
from kgray.domain.records import Draft
from kgray.errors import SettingsError
from kgray.memory import AsyncMemory
from kgray.runtime.session import started_at
from kgray.storage.ledger import accept
from tests.ray_session import deployment_of, kill, over_ray, pid_of
from tests.waiting import until, wait_for
from tests.world import Latency, Oracle, World, WorldPlan
from tests.world.model_server import ModelServer, Service
from tests.world.model_server.service import HttpAnswer

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]
GROUPS = ("red", "green", "blue")
TASK_NAME = re.compile(r"(extract_episode|resolve_node)(?: group=\S+ sequence=[\d,]+)+")


def drafts(count: int) -> list[Draft]:
    """Return generated episodes of three groups, mixed: messages, texts and JSON, late ones and denials."""
    world = enumerate(World(plan=_plan(count)))
    return [replace(episode.draft, group=GROUPS[number % 3]) for number, episode in world]


def _plan(count: int) -> WorldPlan:
    return WorldPlan(seed=11, episodes=count)


class Gate(Service):
    """Reads the world; while `opened` is not set, at most 20 requests get an answer.

    It answers in the event loop of the test, so a machine that stalls the run stalls the answers, too.
    """

    def __init__(self) -> None:
        """Start with the gate open."""
        latency = Latency(streams=4, first_token_s=0.01, tokens_per_s=0)
        super().__init__(Oracle(World(plan=_plan(90))), latency=latency)
        self.opened = asyncio.Event()
        self.opened.set()
        self.requests = 0

    def close(self) -> None:
        """Answer 20 more requests until `opened` is set."""
        self.requests = 0
        self.opened.clear()

    async def chat(self, body: bytes) -> HttpAnswer:
        """Answer at once, or when the gate is open."""
        self.requests += 1
        if self.requests > 20:
            await self.opened.wait()
        return await super().chat(body)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the plain loop's dump hashes by group."""
    return asyncio.run(plain_loops(tmp_path_factory.mktemp("plain"), drafts(90)))


async def plain_loops(folder: Path, messages: list[Draft], **settings: Any) -> dict[str, str]:
    """Return the dump hashes of the plain loop by group."""
    async with kgray.open_async(folder, create=True, settings=settings) as memory:
        accept(memory.store, messages, now=1)
        with memory.store.writing():
            await Loop(memory.parts).run()
        return await hashes(memory)


async def hashes(memory: AsyncMemory) -> dict[str, str]:
    """Return the dump hash of each group, but those that only warm up."""
    groups = [group for group in memory.store.heads() if group != "warm"]
    return {group: await memory.dump_hash(group=group) for group in groups}


def ledger(memory: AsyncMemory) -> dict[str, tuple[int, int, int]]:
    """Return (pending, committed, failed) by group."""
    counts = memory.store.counts()
    return {g: (c.accepted + c.extracted, c.committed, c.failed) for g, c in counts.items()}


def tasks(step: str) -> list[Any]:
    """Return the tasks of a step that have run, as `ray list tasks` shows them."""
    import ray
    from ray.util.state import list_tasks
    from ray.util.state.exception import RayStateApiException

    address = ray.get_runtime_context().gcs_address
    by_function: list[tuple[str, str, Any]] = [
        ("func_or_class_name", "=", step),
        ("state", "=", "FINISHED"),
        ("name", "!=", "warm_up"),
    ]
    # Ray reads the newest 10,000 tasks, and raises if the session has had more.
    # Ray's dashboard may answer 500 just after a process was killed: the caller looks again.
    with suppress(RayStateApiException):
        return [
            *list_tasks(
                address, filters=by_function, limit=10_000, detail=True, raise_on_missing_output=False
            )
        ]
    return []


def end_processes(pids: set[int]) -> Iterator[int]:
    """Kill processes that still run; yield them."""
    for pid in pids:
        if started_at(pid) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                yield pid


@pytest.mark.parametrize(
    ("chunk", "workers", "embedders"),
    [pytest.param(1, 1, 0, marks=pytest.mark.slow), (8, 1, 1)],  # chunks of one: test_ray_equality, too
)
async def test_a_stopped_and_continued_run_makes_the_graph_of_the_plain_loop(
    tmp_path: Path, chunk: int, workers: int, embedders: int
) -> None:
    """Promise 1, with chunks of one and of many; texts are embedded in the tasks or by an actor.

    R24: a stopped run commits its window and leaves the rest to the next run. R23: the second run's processes
    of tasks are killed, and Ray runs their work again. R25: a removal reopens a fact. A run without episodes
    starts no Ray, and each episode is counted once.
    """
    steps: list[tuple[str, int, str]] = []
    names: set[str] = set()
    killed: set[int] = set()

    def stop() -> bool:
        if steps:
            gate.opened.set()
        return bool(steps)

    def kill_tasks(*step: Any) -> None:
        steps.append(step)
        if len(steps) % 40 == 5:  # a killed process costs seconds of processor time
            rows = tasks("extract_episode")
            names.update(row.name for row in rows)
            killed.update(end_processes({row.worker_pid for row in rows} - killed))

    gate = Gate()
    async with ModelServer(gate) as server:
        model = {"model_backend": "openai", "model_name": "world", "model_base_url": server.base_url}
        plain = await plain_loops(tmp_path / "plain", drafts(90), **model)
        gate.close()
        with over_ray(
            tmp_path / "ray",
            workers=workers,
            embedders=embedders,
            runtime_window=16,
            runtime_chunk_episodes=chunk,
            runtime_chunk_requests=chunk,
            **model,
        ) as memory:
            assert (await memory.add_many([])).committed == 0
            assert deployment_of(memory) is None
            report = await memory.add_many(drafts(90), on_step=lambda *step: steps.append(step), stop=stop)
            pending, committed = (sum(each) for each in list(zip(*ledger(memory).values(), strict=True))[:2])
            assert (report.stopped, report.committed, pending) == (True, committed, 90 - committed)
            assert 0 < committed < 90
            steps.clear()  # a stopped run does not report its later commits
            rest_report = await memory.ingest(on_step=kill_tasks)
            assert (rest_report.committed, rest_report.failed, rest_report.stopped) == (
                90 - committed,
                0,
                False,
            )
            assert killed
            assert any(map(TASK_NAME.fullmatch, names))  # names of tasks contain group and sequence
            assert ledger(memory) == dict.fromkeys(sorted(GROUPS), (0, 30, 0))
            assert await hashes(memory) == plain
            second_report = await memory.add_many(drafts(90))
            assert (second_report.committed, second_report.duplicate) == (0, 90)
            assert len(steps) == len(set(steps)) == rest_report.committed
            for name, employer, at in (("a", "Acme", "2026-01-01"), ("b", "Beta", "2026-02-01")):
                triples = [{"source": "Alice", "relation": "WORKS_AT", "target": employer}]
                await memory.add(triples, kind="triples", group="g", id=name, at=at)
            result = await memory.remove(group="g", episodes=["b"])
            assert (result.episodes, result.facts_reopened) == (1, 1)
            hits = await memory.search("Where does Alice work?", group="g", scopes=("fact",))
            facts = [(hit.text, hit.fact.invalid_at) for hit in hits if hit.fact]
            assert facts == [("Alice works at Acme", None)]


@pytest.mark.slow  # by default the chaos run kills each kind, and test_pools has a worker that hangs
async def test_killed_and_hanging_actors_change_nothing(tmp_path: Path, plain: dict[str, str]) -> None:
    """R23: the work of a killed actor is repeated; nothing is lost, and nothing is stored twice."""
    actors_left = ["sequencer-0", "models-0", "writer-0", "hangs"]
    hung: list[int] = []
    with over_ray(tmp_path, workers=2) as memory:
        await memory.add("Ada works at Acme", group="warm", id="w1")  # everything is up
        steps_seen = 0

        def on_step(*_: Any) -> None:
            nonlocal steps_seen
            steps_seen += 1
            if actors_left and steps_seen >= 5:
                steps_seen = 0
                if (victim := actors_left.pop()) != "hangs":
                    kill(memory, victim)
                else:
                    hung.append(pid_of(memory, "models-1"))
                    os.kill(hung[0], signal.SIGSTOP)

        report = await memory.add_many(drafts(90), on_step=on_step)
        assert actors_left == []
        assert (report.committed, report.failed, report.stopped) == (90, 0, False)
        assert ledger(memory) == {
            "blue": (0, 30, 0),
            "green": (0, 30, 0),
            "red": (0, 30, 0),
            "warm": (0, 1, 0),
        }
        assert await hashes(memory) == plain
    until_gone(hung[0])


def until_gone(pid: int) -> None:
    """Wait for the end of a process: Ray gives it five seconds to end by itself."""
    wait_for(lambda: started_at(pid) is None)


@pytest.mark.slow  # test_runner has both without Ray
async def test_failures_equal_those_of_the_plain_loop_and_a_long_outage_stops_the_run(
    tmp_path: Path,
) -> None:
    """R24: class, message and raw output come back as they were; a short outage of the script is waited out.

    After a long outage the episodes remain accepted, and the reason is reported.
    """
    script = tmp_path / "script.jsonl"
    rows = [
        {"episode": "e1", "extraction": {"entities": [{"name": "Ada"}], "facts": []}},
        {"episode": "e2", "error": "refused"},
        {"episode": "e3", "error": "invalid"},
        {"episode": "e4", "error": "unavailable", "times": 1},
        {"episode": "e4", "extraction": {"entities": [{"name": "Bob"}], "facts": []}},
        {"episode": "e5", "error": "unavailable", "times": 100},
    ]
    script.write_text("".join(json.dumps(row) + "\n" for row in rows))
    messages = [{"id": f"e{n}", "text": f"text {n}", "at": "2026-01-01", "group": "g"} for n in range(1, 5)]
    settings = {"model_backend": "scripted", "model_script": script, "model_patience_s": 3}
    outcomes = []
    async with kgray.open_async(tmp_path / "plain", create=True, settings=settings) as memory:
        await memory.add_many(messages)
        failed = await memory.failures()
        outcomes.append(([(f.id, f.kind, f.message) for f in failed], await memory.dump(group="g")))
    with over_ray(tmp_path / "ray", **settings) as memory:
        report = await memory.add_many(messages)
        assert (report.committed, report.failed) == (2, 2)
        failed = await memory.failures()
        outcomes.append(([(f.id, f.kind, f.message) for f in failed], await memory.dump(group="g")))
        report = await memory.add_many([{"id": "e5", "text": "x", "group": "h"}])
        assert (report.committed, report.failed, report.stopped) == (0, 0, True)
        assert report.reason == "the script says 'unavailable' to the episode 'e5'"
        assert ledger(memory)["h"] == (1, 0, 0)
    assert outcomes[0] == outcomes[1]


class Server(BaseHTTPRequestHandler):
    """A model's server that knows no model, until it does; then it reads nothing in any text."""

    knows = False

    def do_POST(self) -> None:
        """Answer a request."""
        self.rfile.read(int(self.headers["content-length"]))
        reply = {"entities": [], "facts": []}
        completion = {"choices": [{"message": {"content": json.dumps(reply)}, "finish_reason": "stop"}]}
        body = json.dumps(completion if Server.knows else {"error": {"message": "no such model"}}).encode()
        self.send_response(200 if Server.knows else 404)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.mark.slow
async def test_actors_retry_a_server_that_did_not_know_the_model(tmp_path: Path) -> None:
    """The command ends with a one-line error; the actors pause, and continue by themselves."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    model_settings = {"model_base_url": f"http://127.0.0.1:{server.server_port}/v1", "model_name": "m"}
    try:
        with over_ray(tmp_path, model_backend="openai", **model_settings) as memory:
            with pytest.raises(SettingsError, match=r"model\.name"):
                await memory.add_many([{"text": "Alice works at Acme", "group": "g", "at": "2026-01-01"}])
            Server.knows = True
            await until(lambda: ledger(memory)["g"][0] == 0)
    finally:
        server.shutdown()
        server.server_close()
