"""Workers and the writer's port without Ray: the classes that become actors are plain ones."""

from __future__ import annotations

import asyncio
import errno
import json
import re
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import kgray
from kgray.domain.records import Operation
from kgray.errors import Cost, Garbled, Refused, SettingsError, StaleWriter, Unavailable
from kgray.ingest.outbox import refusal_change
from kgray.models.hashing import HashingEmbedder
from kgray.ports import ExtractionRequest, SummaryRequest
from kgray.ports.ingest import NextCall
from kgray.settings import Settings, load
from kgray.storage.ledger import request, result
from kgray.storage.transactions import slot_of
from kgray.system.outages import OUTAGES
from tests import make
from tests.waiting import HANGS_S, until, wait_for

if find_spec("ray") is None:
    pytest.skip('Ray is not installed: pip install "kgray[ray]"', allow_module_level=True)

EPISODE = make.episode("Hi")
RUNTIME = Path(kgray.__file__).parent / "runtime"


def embed_worker(monkeypatch: Any, folder: Path, embedder: Any = None) -> Any:
    """Return the embedding worker of this process, with an embedder or that of the settings."""
    from kgray.runtime import wiring
    from kgray.runtime.spec import spec_of
    from kgray.runtime.workers import EmbedWorker

    if embedder is not None:
        monkeypatch.setattr(wiring, "build_embedder", lambda *_, **__: embedder)
    return EmbedWorker(spec_of(Settings(), folder, {}), "embedder-0")


def model_worker(monkeypatch: Any, folder: Path, models: Any, **settings: Any) -> Any:
    """Return a worker of this process with these models for all its calls."""
    from kgray.runtime import wiring
    from kgray.runtime.spec import Profile, spec_of
    from kgray.runtime.workers import ModelWorker

    monkeypatch.setattr(wiring, "build_models", lambda *_, **__: (models, models))
    monkeypatch.setattr(wiring, "build_summarizer", lambda *_, **__: models)
    values = load(None, environ={}, overrides={f"model.{key}": value for key, value in settings.items()})
    return ModelWorker(spec_of(values, folder, Profile().values()), "models-0")


async def outcomes(worker: Any, chunk: Sequence[tuple[int, Any]]) -> dict[int, Any]:
    """Return the outcomes of a chunk in a worker, by number."""
    return {number: outcome async for ended in worker.work(chunk) for number, outcome in ended}


async def test_concurrent_lists_get_their_own_vectors(tmp_path: Path) -> None:
    from kgray.runtime.spec import spec_of
    from kgray.runtime.workers import EmbedWorker

    worker = EmbedWorker(spec_of(Settings(), tmp_path, {}), "embedder-0")
    long = tuple(f"word {n} " + "x" * 4000 for n in range(20))  # more than one batch
    lists = {1: ("a", "b"), 2: ("c",), 3: long}
    result: dict[int, Any] = {}
    for part in await asyncio.gather(
        outcomes(worker, [(1, lists[1]), (2, lists[2])]), outcomes(worker, [(3, lists[3])])
    ):
        result |= part

    local = HashingEmbedder(result[1][0].shape[1])
    for number, texts in lists.items():
        vectors, weights = result[number]
        assert np.array_equal(vectors, await local.embed(texts))
        assert weights is None
    stats = await worker.stats()
    assert (stats["running"], stats["done"]) == (0, 3)


async def test_a_query_overtakes_ingestion_and_too_many_queries_are_refused(
    tmp_path: Path, monkeypatch: Any
) -> None:
    """The embedder holds the texts of ingestion back until all queries have ended."""
    from kgray.runtime import workers
    from kgray.runtime.pooled import QueryText

    class Waiting(HashingEmbedder):
        async def embed(self, texts: Sequence[str]) -> Any:
            begun.append(texts[0])
            await free[texts[0]].wait()
            return await super().embed(texts)

    begun: list[str] = []
    free = {"text": asyncio.Event(), "query": asyncio.Event()}
    monkeypatch.setattr(workers, "MAX_QUERIES", 2)
    worker = embed_worker(monkeypatch, tmp_path, Waiting(16))
    bulk = asyncio.create_task(outcomes(worker, [(1, ("text",))]))
    queries = asyncio.create_task(outcomes(worker, [(n, QueryText("query")) for n in (2, 3, 4)]))
    await until(lambda: begun.count("query") == 2)
    free["query"].set()
    result = await queries
    refused = [outcome for outcome in result.values() if isinstance(outcome, Unavailable)]
    assert [str(item) for item in refused] == ["2 queries wait at embedder-0: try again"]
    assert sum(isinstance(outcome, tuple) for outcome in result.values()) == 2
    assert not bulk.done()
    free["text"].set()
    assert (await bulk)[1][0].shape[0] == 1
    for n in range(5, 9):  # no earlier query counts any longer
        assert isinstance((await outcomes(worker, [(n, QueryText("query"))]))[n], tuple)


async def test_a_refused_text_does_not_fail_its_batch(tmp_path: Path, monkeypatch: Any) -> None:
    class Refusing(HashingEmbedder):
        async def embed(self, texts: Sequence[str]) -> Any:
            if "too long" in texts:
                raise Refused("a text is too long")
            return await super().embed(texts)

    worker = embed_worker(monkeypatch, tmp_path, Refusing(16))
    texts_by_number = {number: (f"text {number}",) for number in range(20)} | {7: ("fine", "too long")}

    result = await outcomes(worker, list(texts_by_number.items()))

    assert [number for number, item in result.items() if isinstance(item, Refused)] == [7]
    assert all(item[0].shape == (1, 16) for number, item in result.items() if number != 7)


async def test_a_server_with_invalid_answers_is_not_asked_text_by_text(
    tmp_path: Path, monkeypatch: Any
) -> None:
    batches: list[Sequence[str]] = []

    class Garbling(HashingEmbedder):
        garbled: Sequence[str] = ()

        async def embed(self, texts: Sequence[str]) -> Any:
            batches.append(texts)
            if not self.garbled or set(self.garbled) & set(texts):
                raise Garbled("no vectors")
            return await super().embed(texts)

    embedder = Garbling(16)
    worker = embed_worker(monkeypatch, tmp_path, embedder)
    chunk = [(number, (f"text {number}",)) for number in range(64)]

    result = await outcomes(worker, chunk)
    assert all(isinstance(item, Garbled) for item in result.values())
    assert len(batches) <= 1 + 4 * 7  # together, then by halves: 127 would be text by text

    for garbled in ({7}, {7, 40}, {*range(0, 64, 3)}):
        embedder.garbled = tuple(f"text {number}" for number in garbled)
        result = await outcomes(worker, chunk)
        assert {number for number, item in result.items() if isinstance(item, Garbled)} == garbled
        assert all(item[0].shape == (1, 16) for number, item in result.items() if number not in garbled)
    embedder.garbled = ("text 7",)

    batches.clear()
    waited, cancelled = (
        asyncio.get_running_loop().create_future(),
        asyncio.get_running_loop().create_future(),
    )
    cancelled.cancel()
    await worker._embed_batch([("text 7", cancelled), ("text 8", waited)])
    assert waited.result().vector.shape == (16,)
    assert batches == [["text 8"]]  # no caller waits for the other any longer


async def test_only_refused_texts_fail(tmp_path: Path, monkeypatch: Any) -> None:
    """A server that refuses everything is not asked text by text, and fails no text that it was not asked."""
    batches: list[Sequence[str]] = []

    class Refusing(HashingEmbedder):
        refused: Sequence[str] = ()

        async def embed(self, texts: Sequence[str]) -> Any:
            batches.append(texts)
            if set(self.refused) & set(texts):
                raise Refused("too long")
            return await super().embed(texts)

    embedder = Refusing(16)
    worker = embed_worker(monkeypatch, tmp_path, embedder)
    chunk = [(number, (f"text {number}",)) for number in range(64)]
    for bad in ({3, 60}, {*range(1, 64, 2)}, {*range(64)} - {1, 33}):
        batches.clear()
        embedder.refused = tuple(f"text {number}" for number in bad)
        result = await outcomes(worker, chunk)
        assert {number for number, item in result.items() if isinstance(item, Refused)} == bad
        assert len(batches) <= 127

    batches.clear()
    embedder.refused = tuple(f"text {number}" for number in range(64))
    result = await outcomes(worker, chunk)
    alone = {texts[0] for texts in batches if len(texts) == 1}
    assert {f"text {number}" for number, item in result.items() if isinstance(item, Refused)} == alone
    assert all(isinstance(item, Refused | Garbled) for item in result.values())
    assert len(batches) <= 1 + 4 * 7


async def test_a_worker_with_wrong_settings_refuses_calls_with_the_reason(tmp_path: Path) -> None:
    """The actor starts all the same: a process that fails while it starts would be started for ever."""
    from kgray.runtime.pools import UNFIT
    from kgray.runtime.spec import spec_of
    from kgray.runtime.workers import EmbedWorker

    lacking = load(None, environ={}, overrides={"embedder.api_key": "sk-not-in-the-environment"})
    worker = EmbedWorker(spec_of(lacking, tmp_path, {}), "embedder-0")

    result = await outcomes(worker, [(1, ("a",)), (2, ("b",))])

    fault = (await worker.describe())["fault"]
    assert isinstance(fault, SettingsError)
    assert "KGRAY_EMBEDDER_API_KEY is not set where Ray's processes run" in str(fault)
    assert result == {UNFIT: fault}
    assert await worker.health() is fault


async def test_a_model_that_does_not_load_makes_its_worker_unfit(tmp_path: Path, monkeypatch: Any) -> None:
    """For any error of a library; requests that arrived during the loading get the same answer."""
    from kgray.runtime.pools import UNFIT

    class Model:
        async def start(self) -> None:
            started.append("start")
            await asyncio.sleep(0.01)
            raise MemoryError("CUDA out of\nmemory")

    started: list[str] = []
    worker = embed_worker(monkeypatch, tmp_path, Model())
    first, second, fault = await asyncio.gather(
        outcomes(worker, [(1, ("a",))]), outcomes(worker, [(2, ("b",))]), worker.ready()
    )
    assert first == second == {UNFIT: fault}
    assert isinstance(fault, SettingsError)
    assert str(fault).startswith("embedder-0 cannot load its model (MemoryError: CUDA out of memory): ")
    assert started == ["start"]
    row = await worker.stats()
    assert (row["loaded"], row["loading"], row["fault"]) == (False, False, fault)


async def test_workers_on_one_card_load_one_after_another(tmp_path: Path, monkeypatch: Any) -> None:
    class Model:
        async def start(self) -> None:
            assert not loading
            loading.append(self)
            await asyncio.sleep(0.02)
            loading.remove(self)

    loading: list[Any] = []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    workers = [embed_worker(monkeypatch, tmp_path, Model()) for _ in range(4)]
    starts = asyncio.gather(*(item.ready() for item in workers))
    queued = 0
    while not starts.done():
        queued = max(queued, sum([(await item.describe())["queued"] for item in workers]))
        await asyncio.sleep(0.001)
    assert (queued, await starts) == (3, [None] * 4)
    assert [(await item.describe())["loaded"] for item in workers] == [True] * 4


async def test_an_outage_and_its_end_are_reported_to_each_router(tmp_path: Path, monkeypatch: Any) -> None:
    """Chunks of two routers: neither knows the reports of the other."""
    from kgray.runtime import workers
    from kgray.runtime.pools import OUTAGES_CHANGED

    monkeypatch.setattr(workers, "TELL_S", 0.01)
    models = Blocking()
    worker = model_worker(monkeypatch, tmp_path, models)
    call = NextCall("extract", "g", 1, ExtractionRequest(episode=EPISODE))
    OUTAGES.forget()
    OUTAGES.failed("a server", "is down", since=1.0, patience_s=9.0)

    async def count_reports(number: int) -> list[int]:
        return [
            len(report)
            async for ended in worker.work([(number, call)])
            for at, report in ended
            if at == OUTAGES_CHANGED
        ]

    both = asyncio.gather(count_reports(1), count_reports(2))
    await asyncio.sleep(0.1)
    OUTAGES.answered("a server")
    await asyncio.sleep(0.1)
    models.end.set()
    assert await both == [[1, 0], [1, 0]]


class Connected:
    """A connection to a Ray. closed: how often it was left; looked: set at each check for Ray's end."""

    address, folder, closed = "a", None, 0

    def __init__(self, *, has_ended: bool = False) -> None:
        self.looked, self._has_ended = threading.Event(), has_ended

    def ended(self) -> bool:
        self.looked.set()
        return self._has_ended

    def close(self) -> None:
        self.closed += 1


def test_concurrent_threads_start_the_actors_once(tmp_path: Path, monkeypatch: Any) -> None:
    """Summaries of several groups need the actors concurrently; two starts would conflict."""
    from kgray.runtime import deploy, session
    from kgray.runtime.ingest import RayIngest

    started: list[object] = []

    def ensure(*_: object, **__: object) -> object:
        time.sleep(0.1)
        started.append(object())
        return started[-1]

    monkeypatch.setattr(deploy, "ensure", ensure)
    monkeypatch.setattr(session, "open_session", lambda *_: Connected())
    with kgray.open(tmp_path, create=True) as memory, ThreadPoolExecutor(4) as threads:
        ingest = RayIngest(Settings(), tmp_path, memory.store)
        result = list(threads.map(ingest._up, [print] * 4))
    assert result == started * 4


@pytest.mark.parametrize("ours", [True, False])
def test_actors_looked_up_again_keep_the_owner_that_started_them(
    ours: bool, tmp_path: Path, monkeypatch: Any
) -> None:
    """A sequencer was away for long; the process that started the actors ends them all the same."""
    from kgray.runtime import deploy, session
    from kgray.runtime.ingest import RayIngest

    present = SimpleNamespace(ours=False, sequencers={0: None}, spec=SimpleNamespace(namespace="n"))
    answers = iter([SimpleNamespace(**vars(present) | {"ours": ours}), present])
    monkeypatch.setattr(deploy, "ensure", lambda *_, **__: next(answers))
    monkeypatch.setattr(deploy, "find", lambda _: present)
    monkeypatch.setattr(session, "open_session", lambda *_: Connected())
    with kgray.open(tmp_path, create=True) as memory:
        ingest = RayIngest(Settings(), tmp_path, memory.store)
        assert ingest._up(print).ours is ours
        assert ingest._looked_up_again(print).ours is ours
        assert ingest._up(print).ours is ours


@pytest.mark.parametrize("address", ["127.0.0.1:9", "http://127.0.0.1:9"])
def test_a_search_needs_no_ray(tmp_path: Path, address: str) -> None:
    """Without an answer, or with only a job server, this process has its own models."""
    from kgray.runtime.ingest import RayIngest

    chosen = load(None, environ={}, overrides={"runtime.backend": "ray", "runtime.address": address})
    with kgray.open(tmp_path, create=True) as memory:
        assert RayIngest(chosen, tmp_path, memory.store).pool("embedder") is None


class Losing:
    """The handle of a writer of this process, whose first answer to every kind of call is lost."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self.calls: list[str] = []

    def __getattr__(self, method: str) -> Any:
        from ray.exceptions import RaySystemError

        async def remote(*args: Any) -> Any:
            answer = getattr(self._writer, method)(*args)
            self.calls.append(method)
            if self.calls.count(method) == 1:
                raise RaySystemError(ConnectionError("the answer is lost"))
            return answer

        return type("Method", (), {"remote": staticmethod(remote)})


async def test_a_batch_with_a_lost_answer_is_resent_and_written_once(
    tmp_path: Path,
) -> None:
    """R23: neither the order of calls nor their repetition is trusted."""
    from kgray.runtime.spec import spec_of
    from kgray.runtime.writer import GraphWriter, RemoteWriter

    memory = kgray.open(tmp_path, create=True)
    operation = Operation(group="g", kind="undo", target=1)
    batch = [
        refusal_change(replace(operation, sequence=request(memory.store, operation)), "no such merge", 5)
    ]
    graph_writer = GraphWriter(spec_of(Settings(), tmp_path, {}), "writer-0")
    handle = Losing(graph_writer)
    idle = RemoteWriter(lambda: handle, 0, deadline_s=60.0, patience_s=60.0)

    lost = await idle.begin()
    assert isinstance(lost, Unavailable)
    assert "the answer is lost" in str(lost)
    port = await idle.begin()
    assert isinstance(port, RemoteWriter)
    await port.write(batch)

    assert handle.calls == ["begin", "begin", "write", "write"]
    stats = graph_writer.stats()
    assert (stats["epochs"], stats["batches"]) == ({"0": port.epoch}, 2)
    assert OUTAGES.current() == []
    assert result(memory.store, "g", 1) == {"error": "no such merge"}
    newer = await port.begin()
    assert isinstance(newer, RemoteWriter)
    with pytest.raises(StaleWriter):  # also where both runs are of one process
        await port.write(batch)
    graph_writer._release(0)
    graph_writer._store.close()
    memory.close()


def test_the_epoch_of_a_shard_cannot_write_groups_of_another_shard(tmp_path: Path) -> None:
    """R23: also where the writer holds both."""
    from kgray.runtime.spec import spec_of
    from kgray.runtime.writer import GraphWriter

    memory = kgray.open(tmp_path, create=True)
    operation = Operation(group="g", kind="undo", target=1)
    batch = [
        refusal_change(replace(operation, sequence=request(memory.store, operation)), "no such merge", 5)
    ]
    writer = GraphWriter(spec_of(Settings(), tmp_path, {"sequencer": {"shards": 2}}), "writer-0")
    epochs, own_shard = [writer.begin(shard) for shard in (0, 1)], slot_of("g") % 2

    assert isinstance(writer.write(1 - own_shard, epochs[1 - own_shard], batch), StaleWriter)
    assert result(memory.store, "g", 1) is None
    writer.begin(1 - own_shard)  # a writer of foreign groups has lost its lock
    assert writer.write(own_shard, epochs[own_shard], batch) is None
    for shard in (0, 1):
        writer._release(shard)
    writer._store.close()
    memory.close()


def test_a_full_disk_under_the_logs_does_not_stop_work(monkeypatch: Any) -> None:
    from kgray.runtime import telemetry

    class Full:
        def write(self, line: str) -> None:
            lines.append(line)
            raise OSError(errno.ENOSPC, "no space")

    lines: list[str] = []
    monkeypatch.setattr(sys, "stderr", Full())
    telemetry.stage("committed", "g", 1, seconds=0.1)
    assert [json.loads(line)["sequence"] for line in lines] == [1]


def test_the_runtime_uses_no_private_name_of_ray() -> None:
    private = re.compile(
        r"ray\.cluster_utils|\bray(?:\.\w+)*\._\w+|from ray[\w.]*\._\w+ import|from ray[\w.]* import .*\b_\w+"
    )
    result = {path.name: private.findall(path.read_text(encoding="utf-8")) for path in RUNTIME.glob("*.py")}

    # The notice that a node ends: Ray has no public call for it.
    assert {name: uses for name, uses in result.items() if uses} == {"draining.py": ["ray._private"]}


class Blocking:
    """Models whose calls end on request."""

    identity = "blocking"

    def __init__(self) -> None:
        self.began: list[Any] = []
        self.end = asyncio.Event()

    async def extract(self, request: Any) -> str:
        self.began.append(request)
        await self.end.wait()
        return "read"

    async def write(self, request: Any) -> tuple[dict[str, str], Any]:
        self.began.append(request)
        return {"summary": request.data}, Cost(1, 5, 2)


async def test_a_leaving_worker_finishes_or_returns_its_calls(tmp_path: Path, monkeypatch: Any) -> None:
    from kgray.runtime.pools import LEAVING

    read = list(enumerate([NextCall("extract", "g", 1, ExtractionRequest(episode=EPISODE))] * 2))
    for ends, expected in ((True, {0: "read", 1: "read", LEAVING: None}), (False, {LEAVING: None})):
        models = Blocking()
        worker = model_worker(monkeypatch, tmp_path, models)
        reading = asyncio.create_task(outcomes(worker, read))
        await until(lambda models=models: len(models.began) == 2)
        leaving = asyncio.create_task(worker.drain(30.0 if ends else 0.0))
        while await worker.health():  # noqa: ASYNC110 - a thread ends it
            await asyncio.sleep(0.001)
        assert await outcomes(worker, read) == {LEAVING: None}, "it takes no more"
        assert await worker.health() is False
        if ends:
            models.end.set()
        assert await reading == expected
        await leaving
        assert (await worker.stats())["running"] == 0


def test_without_a_drain_notice_of_ray_a_node_is_kept() -> None:
    from kgray.runtime.draining import drain_notice

    assert drain_notice() is None


async def test_a_summary_waits_for_free_capacity_or_a_time_limit(tmp_path: Path, monkeypatch: Any) -> None:
    from kgray.runtime import workers

    at = {"backend": "openai", "name": "m", "base_url": "http://127.0.0.1:1/v1", "max_concurrency": 4}
    models = Blocking()
    worker = model_worker(monkeypatch, tmp_path, models, **at)
    read = [ExtractionRequest(episode=EPISODE), ExtractionRequest(episode=EPISODE)]
    calls = [NextCall("extract", "g", 1, request) for request in read]
    summary = SummaryRequest(task="community", head="", data="all", room=9)

    reading = asyncio.create_task(outcomes(worker, list(enumerate(calls))))
    writing = asyncio.create_task(outcomes(worker, [(7, summary), (8, summary)]))
    await asyncio.sleep(4 * workers.LOOK_S)
    assert models.began == read, "two of the four streams are this worker's, of two: both are taken"
    models.end.set()
    written = ({"summary": "all"}, Cost(1, 5, 2))
    assert await writing == {7: written, 8: written}
    assert await reading == {0: "read", 1: "read"}

    models.end.clear()
    monkeypatch.setattr(workers, "BEHIND_S", 2 * workers.LOOK_S)
    reading = asyncio.create_task(outcomes(worker, list(enumerate(calls))))
    await asyncio.sleep(0)
    assert await outcomes(worker, [(9, summary)]) == {9: written}, "it does not wait for ever"
    models.end.set()
    await reading


def test_workers_of_a_growing_pool_share_the_server_by_the_maximum_size(
    tmp_path: Path,
) -> None:
    from kgray.runtime import workers
    from kgray.runtime.spec import Profile, WorkersProfile, spec_of

    at = {"backend": "openai", "name": "m", "base_url": "http://127.0.0.1:1/v1", "max_concurrency": 8}
    settings = load(None, environ={}, overrides={f"model.{key}": value for key, value in at.items()})
    profile = Profile(extraction=WorkersProfile(workers={"min": 1, "max": 4}))
    assert workers.ModelWorker(spec_of(settings, tmp_path, profile.values()), "models-0")._share == 2


class Call:
    """A method of an actor, as its handle has it."""

    def __init__(self, answer: Any) -> None:
        self.remote = answer


async def test_a_worker_without_a_model_is_up_at_once_and_a_stopped_worker_loads_none(
    tmp_path: Path, monkeypatch: Any
) -> None:
    class Model:
        async def start(self) -> None:
            started.append("start")

    async def up(worker: Any) -> list[bool]:
        return [(await worker.describe())["loaded"], (await worker.stats())["loaded"], await worker.health()]

    started: list[str] = []
    assert await up(embed_worker(monkeypatch, tmp_path)) == [True] * 3
    worker = embed_worker(monkeypatch, tmp_path, Model())
    assert await up(worker) == [False] * 3
    await worker.ready()
    assert await up(worker) == [True] * 3
    assert started == ["start"]
    await worker.stop()
    await worker.ready()  # a call that was on its way
    assert started == ["start"]


def starting(
    monkeypatch: Any, tmp_path: Path, looks: Sequence[dict[str, Any]], *extra: str
) -> tuple[Any, list[str]]:
    """Return a deployment of models-0, writer-0 and more that is looked at so often, a second apart.

    looks: the answers of each look, by name. Returned with it: the names of the models that were asked.
    """
    from kgray.runtime import deploy
    from kgray.runtime.spec import LimitsProfile, Profile, WorkersProfile, spec_of

    class StartedDeployment(deploy.Deployment):
        def status(self, *_: object) -> dict[str, dict[str, Any]]:
            clock.append(clock[-1] + 1.0)
            state = {"spec": self.spec, "fault": None, "loading": False, "queued": False, "pid": 1}
            return {name: state | row for name, row in next(answers).items()}

    clock, calls, answers = [0.0], list[str](), iter(looks)
    fakes = SimpleNamespace(monotonic=lambda: clock[-1], sleep=lambda _: None)
    monkeypatch.setattr(deploy, "time", fakes)
    monkeypatch.setattr(deploy, "head_listens", lambda: True)
    monkeypatch.setattr(deploy, "ray", SimpleNamespace(nodes=list))
    profile = Profile(
        extraction=WorkersProfile(start_deadline_s=9.0),
        limits=LimitsProfile(start_deadline_s=3.0, health_every_s=2.0),
    )
    handle = SimpleNamespace(ready=Call(lambda: calls.append("models-0")))
    actors = {"writer-0": None, "models-0": handle} | dict.fromkeys(extra, handle)
    return StartedDeployment(spec_of(Settings(), tmp_path, profile.values()), actors, fresh=True), calls


def test_a_worker_restarted_during_its_start_is_checked_again(tmp_path: Path, monkeypatch: Any) -> None:
    """Neither who did not answer one look, nor a writer that was up before, ends the start."""
    from kgray.runtime import deploy

    def loads(**options: object) -> dict[str, Any]:
        return {"writer-0": {}, "models-0": {"loaded": False} | options}

    second_result = [*[loads(pid=2)] * 3, loads(pid=2, loading=True)]
    looks = [loads(), loads(loading=True), {}, {}, *second_result, {"models-0": {"loaded": True, "pid": 2}}]
    result, calls = starting(monkeypatch, tmp_path, looks)
    assert len(deploy._come_up(result, lambda _: None)) == 2
    assert calls == ["models-0"] * 2  # after a pause: the first process has ended while it loaded
    assert result.quarantined == {}


def test_a_start_succeeds_unless_all_workers_fail(tmp_path: Path, monkeypatch: Any) -> None:
    from kgray.runtime import deploy

    reports: list[str] = []
    bad = {"loaded": False, "fault": SettingsError("no memory on the card")}
    late = {"writer-0": {}, "models-0": bad, "models-1": {"loaded": False, "loading": True}}
    result, _ = starting(monkeypatch, tmp_path, [late, late | {"models-1": {"loaded": True}}], "models-1")
    assert len(deploy._come_up(result, reports.append)) == 2
    assert result.quarantined == {"models-0": "no memory on the card"}
    assert reports[-1] == (
        "models-0 is quarantined: it gets no work, and is started again after growing pauses "
        "(no memory on the card)"
    )
    result, _ = starting(monkeypatch, tmp_path, [late, late | {"models-1": bad}], "models-1")
    with pytest.raises(SettingsError, match="no memory on the card"):
        deploy._come_up(result, reports.append)


@pytest.mark.parametrize(
    ("row", "why", "looks"),
    [
        ({}, "is there a node with room for them?", 4),
        (
            {"models-0": {"loaded": False}},
            "they run, and have not loaded their models within extraction.start_deadline_s",
            11,
        ),
    ],
)
def test_a_start_that_takes_too_long_names_the_missing_actors(
    row: dict[str, Any], why: str, looks: int, tmp_path: Path, monkeypatch: Any
) -> None:
    from kgray.runtime import deploy

    rows = [{"writer-0": {}} | row] * looks
    result, _ = starting(monkeypatch, tmp_path, rows)
    with pytest.raises(Unavailable) as late:
        deploy._come_up(result, lambda _: None)
    assert str(late.value) == f"not up in time: models-0; {why}"


def test_workers_are_maintained_even_if_missing_actors_cannot_start(tmp_path: Path, monkeypatch: Any) -> None:
    from kgray.runtime import keeper
    from kgray.runtime.spec import LimitsProfile, Profile, spec_of

    def fails(*_: object) -> None:
        looked.append(len(looked))
        raise OSError("Ray's head is away")

    looked: list[int] = []
    profile = Profile(limits=LimitsProfile(health_every_s=0.01))
    monkeypatch.setattr(keeper, "FIRST_LOOK_S", 0.0)
    monkeypatch.setattr(keeper, "names_in", fails)
    spec = spec_of(Settings(), tmp_path, profile.values())
    both, item = (
        keeper.Keeper(spec, is_detached=True, has_workers=True),
        keeper.Keeper(spec, is_detached=False),
    )
    wait_for(lambda: len(looked) > 3)
    both.end()
    item.end()


@pytest.mark.parametrize("come_up", [True, False])
def test_the_ray_session_is_closed_only_if_actors_fail_to_start(
    come_up: bool, tmp_path: Path, monkeypatch: Any
) -> None:
    """The session stays open if the actors start, and is closed if they do not."""
    from kgray.runtime import deploy, ingest, session

    def ensure(*_: object, **__: object) -> Any:
        assert connected.looked.wait(HANGS_S)
        time.sleep(0.05)
        assert connected.closed == 0
        if come_up:
            return SimpleNamespace(ours=False)
        raise Unavailable("not up in time")

    connected = Connected(has_ended=True)
    monkeypatch.setattr(ingest, "WATCH_S", 0.01)
    monkeypatch.setattr(session, "open_session", lambda *_: connected)
    monkeypatch.setattr(session, "head_listens", lambda: True)
    monkeypatch.setattr(deploy, "ensure", ensure)
    with kgray.open(tmp_path, create=True) as memory:
        runtime = ingest.RayIngest(Settings(), tmp_path, memory.store)
        if come_up:
            runtime._up(print)
            time.sleep(0.05)
            assert connected.closed == 0
        else:
            with pytest.raises(Unavailable):
                runtime._up(print)
            wait_for(lambda: connected.closed == 1)
        runtime.close()
    assert connected.closed == 1


@pytest.mark.parametrize(
    ("backend", "expected"), [pytest.param("vllm", 3 * 40, id="engines"), pytest.param("rules", 0, id="none")]
)
def test_a_runtime_counts_the_seats_of_its_engines(tmp_path: Path, backend: str, expected: int) -> None:
    """A backfill keeps twice as many entries in the log, where that is more than its usual bound."""
    from kgray.runtime.ingest import RayIngest

    profile = tmp_path / "profile.toml"
    profile.write_text("[extraction]\nworkers = 3\n[engine]\nmax_num_seqs = 40\n")
    chosen = {"model.backend": backend, "model.name": "m", "runtime.profile": profile}
    settings = load(None, environ={}, overrides=chosen)
    assert RayIngest(settings, tmp_path, None).seats() == expected  # type: ignore[arg-type]


def test_a_keeper_starts_no_surplus_worker_after_its_end(tmp_path: Path, monkeypatch: Any) -> None:
    from kgray.runtime import keeper
    from kgray.runtime.spec import Profile, spec_of

    def start(_: object, *names: str, **__: object) -> Any:
        started.extend(names)
        ending.start()
        ending.join(0.1)
        assert ending.is_alive(), "the end waits for a start that is under way"
        return SimpleNamespace(actors={})

    started: list[str] = []
    monkeypatch.setattr(keeper, "start_actors", start)
    kept = keeper.Keeper(spec_of(Settings(), tmp_path, Profile().values()), is_detached=False)
    ending = threading.Thread(target=kept.end)
    size: Any = SimpleNamespace(update=lambda *_: ([1], []), idle_s=0.0)
    kept._size("models", size, {})
    ending.join(HANGS_S)
    kept._size("models", size, {})
    assert started == ["models-1"]
