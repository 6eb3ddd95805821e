"""BGE-M3 and its reranker through the real FlagEmbedding, on tiny random models: `make test-embed`."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import kgray
from bench import random_models
from kgray.errors import InputError, SettingsError, StoreError
from kgray.ports import SparseEmbedder
from kgray.schema.rows import as_weights
from tests.graph.record_vectors import episode_vectors, statement_vectors
from tests.ray_session import deployment_of

TOKENS = 256  # of a pass on a processor, as `kgray.models.encoder` has it

if find_spec("FlagEmbedding") is None:
    pytest.skip("FlagEmbedding is not installed: make test-embed", allow_module_level=True)
pytestmark = pytest.mark.models


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {
        "bge": random_models.bge(folder / "bge-tiny"),
        "reranker": random_models.bge(folder / "rank", reranker=True),
    }


@pytest.fixture(scope="module")
def embedder(folders):
    from kgray.models.bge import BgeEmbedder

    return BgeEmbedder(str(folders["bge"]))


@pytest.fixture(scope="module")
def weighing(folders):
    from kgray.models.bge import BgeEmbedder

    return BgeEmbedder(str(folders["bge"]), sparse=True)


@pytest.fixture(scope="module")
def reranker(folders):
    from kgray.models.bge import BgeReranker

    return BgeReranker(str(folders["reranker"]))


def texts_of(count: int, seed: int = 3) -> list[str]:
    """Return distinct texts of 1 to 60 words, most of them short."""
    rng, words = random.Random(seed), random_models.WORDS.split()
    lengths = [rng.randrange(3, 60) if rng.random() < 0.2 else rng.randrange(3, 14) for _ in range(count)]
    return [f"{n} " + " ".join(rng.choices(words, k=length)) for n, length in enumerate(lengths)]


async def test_vectors_equal_the_vectors_of_flag_embedding(folders, embedder):
    from FlagEmbedding import BGEM3FlagModel

    texts = [*texts_of(40), "", "Alice"]
    reference = BGEM3FlagModel(str(folders["bge"]), use_fp16=False, devices="cpu", passage_max_length=512)

    vectors = await embedder.embed(texts)

    assert (vectors.shape, vectors.dtype, embedder.dimensions) == ((42, 64), np.float32, 64)
    assert np.abs(vectors - reference.encode(texts)["dense_vecs"]).max() < 1e-5
    assert np.abs((vectors**2).sum(axis=1) - 1).max() < 1e-5
    assert (await embedder.embed([])).shape == (0, 64)


async def test_weights_of_tokens_equal_the_weights_of_flag_embedding(folders, weighing, embedder):
    """From the pass of the vectors, in half precision: a token's largest weight; special ids have none."""
    from FlagEmbedding import BGEM3FlagModel

    texts = [*texts_of(30), "", "Alice Alice Alice"]
    reference = BGEM3FlagModel(str(folders["bge"]), use_fp16=False, devices="cpu", passage_max_length=512)
    references = reference.encode(texts, return_dense=False, return_sparse=True)["lexical_weights"]
    passes = weighing._model.rows
    row_counts = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            weighing._model,
            "rows",
            lambda inputs, **options: row_counts.append(len(inputs)) or passes(inputs, **options),
        )
        vectors, weights_of_texts = await weighing.embed_both(texts)

    assert row_counts == [32]
    assert np.array_equal(vectors, await embedder.embed(texts))
    assert (isinstance(weighing, SparseEmbedder), isinstance(embedder, SparseEmbedder)) == (True, False)
    assert (weighing.identity, embedder.identity) == ("bge:bge-tiny+sparse", "bge:bge-tiny")
    for weights, reference_weights in zip(weights_of_texts, references, strict=True):
        token_weights = dict(zip(*(part.tolist() for part in as_weights(weights)), strict=True))
        assert token_weights == pytest.approx(
            {int(token): float(w) for token, w in reference_weights.items()}, rel=1e-3, abs=1e-5
        )
    assert weights_of_texts[-2] == b""
    assert (await weighing.embed_both([]))[1] == []
    assert (await weighing.embed_both(texts[::-1]))[1] == weights_of_texts[::-1]  # the bits, in any order
    start = "Alice works at Acme. " * 200
    _, parts = await weighing.embed_both([start + "Dana sails to Oslo.", "Dana sails to Oslo.", start])
    long, end, begun = ({*as_weights(weights)[0].tolist()} for weights in parts)
    # It is read to its end; a random model gives some of those tokens no weight in another company.
    assert long & (end - begun)


async def test_a_text_has_the_same_bits_in_every_company_and_order(embedder):
    texts = texts_of(60)
    alone = np.stack([(await embedder.embed([text]))[0] for text in texts])
    for seed in range(5):
        order = random.Random(seed).sample(range(60), 60 - 7 * seed)
        vectors = await embedder.embed([texts[place] for place in order])
        assert np.array_equal(vectors, alone[order])


async def test_texts_that_fill_a_whole_pass_have_the_bits_they_have_alone(embedder):
    """All of one length: a pass without padding would run another kernel."""
    await embedder.start()
    by_length: dict[int, list[str]] = {}
    for text in texts_of(4000, seed=5):
        by_length.setdefault(len(embedder._model._ids([text])[0]) + 2, []).append(text)
    for length in (16, 20, 32):
        texts = by_length[length][: TOKENS // length]
        together = await embedder.embed(texts)
        assert np.array_equal((await embedder.embed(texts[:1]))[0], together[0])


async def test_calls_that_run_together_share_passes_and_change_no_bit(folders):
    """32 calls of 8 texts each: a call alone fills few passes; together most of them are full."""
    from kgray.models.bge import BgeEmbedder

    texts = texts_of(256, seed=11)
    calls = [texts[at : at + 8] for at in range(0, 256, 8)]
    shares, vectors = [], []
    for at_once in (False, True):
        embedder = BgeEmbedder(str(folders["bge"]))
        await embedder.start()
        if at_once:
            parts = await asyncio.gather(*map(embedder.embed, calls))
        else:
            parts = [await embedder.embed(call) for call in calls]
        shares.append(1 - embedder.counts["tokens"] / embedder.counts["slots"])
        vectors.append(np.concatenate(parts))
    sys.stderr.write(f"padding: {shares[0]:.2f} one after another, {shares[1]:.2f} together\n")
    assert np.array_equal(*vectors)
    assert shares[1] < 0.6 * shares[0]
    query = await embedder.embed_query(texts[0])
    assert np.array_equal(query.vector, vectors[0][0])


async def test_a_card_that_is_promised_and_missing_is_an_error(folders, tmp_path):
    import torch

    from kgray.models.bge import BgeEmbedder
    from kgray.models.encoder import Placement
    from kgray.runtime.spec import spec_of
    from kgray.runtime.workers import EmbedWorker, RerankWorker
    from kgray.settings import load

    if torch.cuda.is_available():
        pytest.skip("there is a card")
    with pytest.raises(
        SettingsError, match=r'embedder\.device = "cuda" promises a card, and torch sees none'
    ):
        await BgeEmbedder(str(folders["bge"]), placement=Placement(device="cuda")).start()
    settings = load(None, environ={}, overrides={
        "embedder_backend": "bge", "embedder_name": str(folders["bge"]), "runtime_backend": "ray",
        "reranker_backend": "bge", "reranker_name": str(folders["reranker"]),
    })  # fmt: skip
    profile = {"embedding": {"gpus": 0.1}, "reranking": {"gpus": 0.2}}
    spec = spec_of(settings, tmp_path, profile)
    for worker, words in (
        (EmbedWorker, r"embedding\.gpus = 0\.1"),
        (RerankWorker, r"reranking\.gpus = 0\.2"),
    ):
        fault = await worker(spec, "worker-0").ready()
        with pytest.raises(SettingsError, match=words):
            raise fault


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
async def test_a_precision_is_part_of_the_identity_and_changes_the_last_digits(folders, embedder, precision):
    from kgray.models.bge import BgeEmbedder
    from kgray.models.encoder import Placement

    half = BgeEmbedder(str(folders["bge"]), sparse=True, placement=Placement(precision=precision))
    assert half.identity == f"bge:bge-tiny+{precision}+sparse"
    texts = texts_of(20)
    halved, full = await half.embed(texts), await embedder.embed(texts)
    assert np.abs(halved - full).max() > 0
    assert (halved * full).sum(axis=1).min() > 0.95  # the weights of this model are wild


async def test_a_long_text_is_read_to_its_end(embedder):
    start = "Alice works at Acme. " * 200
    first, different, cut = await embedder.embed(
        [start + "Bob moved to Paris.", start + "Dana sails.", start]
    )
    assert np.abs(first - different).max() > 1e-6
    assert np.abs(first - cut).max() > 1e-6
    assert abs(float((first**2).sum()) - 1) < 1e-5


async def test_scores_equal_the_scores_of_the_model(folders, reranker):
    """Each pair alone, as the tokenizer writes it: FlagEmbedding tokenises decoded text again."""
    import torch
    from FlagEmbedding import FlagReranker

    texts = texts_of(30)
    reference = FlagReranker(str(folders["reranker"]), use_fp16=False, devices="cpu")

    all_scores = await reranker.score("Where does Alice work?", texts)

    for text, score in zip(texts, all_scores, strict=True):
        pair = reference.tokenizer("Where does Alice work?", text, return_tensors="pt")
        assert abs(torch.sigmoid(reference.model(**pair).logits).item() - score) < 1e-5
    single_score = await reranker.score("Where does Alice work?", texts[:1])
    assert np.array_equal(single_score, all_scores[:1])
    assert (await reranker.score("q", [])).shape == (0,)
    long = ["hay " * 900 + texts[0], "hay " * 900]
    scores = await reranker.score("Where does Alice work?", long)
    assert scores.min() >= 0
    assert scores.max() <= 1
    with pytest.raises(InputError, match="shorten it"):
        await reranker.score("Alice " * 900, texts)


async def test_a_folder_without_a_model_is_reported(tmp_path):
    from kgray.models.bge import BgeEmbedder

    with pytest.raises(SettingsError, match=r"embedder\.name = .* cannot be loaded"):
        await BgeEmbedder(str(tmp_path)).embed(["a"])


def test_a_memory_searches_and_reranks_with_both(folders, tmp_path, capfd):
    """In this process: added, found by vectors alone, ordered by the reranker; no progress bars."""
    settings: dict[str, Any] = {
        "embedder_backend": "bge", "embedder_name": str(folders["bge"]),
        "reranker_backend": "bge", "reranker_name": str(folders["reranker"]),
    }  # fmt: skip
    with kgray.open(tmp_path / "d", create=True, settings=settings) as memory:
        for n, text in enumerate(("Alice works at Acme.", "Bob moved to Paris.")):
            memory.add(text, group="g", id=f"m{n}")
        assert memory.asynchronous.embedder.identity == "bge:bge-tiny+sparse"
        hits = memory.search("Where does Alice work?", group="g", recipe="reranked")
        assert hits
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
        first, *_ = memory.search("Where does Alice work?", group="g", methods=("sparse",))
        assert first.signals["sparse"] > 0
    assert "it/s" not in capfd.readouterr().err
    with (
        kgray.open(tmp_path / "d", settings={**settings, "embedder_sparse": False}) as memory,
        pytest.raises(StoreError, match=r"'bge:bge-tiny\+sparse'.*: set embedder"),
    ):
        memory.asynchronous.check_embedder()


PROFILE = """
[extraction]
workers = 1
cpus = 0.1
[embedding]
workers = 1
cpus = 0.1
env = { OMP_NUM_THREADS = "1" }
[reranking]
workers = 1
cpus = 0.1
env = { OMP_NUM_THREADS = "1" }
"""


def stored_rows(memory: Any) -> list[list[Any]]:
    """Return the vectors and weights of episodes and of statements."""
    return [kept_of(memory.store, "g") for kept_of in (episode_vectors, statement_vectors)]


def test_a_search_uses_running_workers_and_finds_the_same_as_this_process(folders, tmp_path):
    """Embedder and reranker in actors of their own: neither is loaded here; the scores have the same bits."""
    (tmp_path / "p.toml").write_text(PROFILE)
    settings: dict[str, Any] = {
        "embedder_backend": "bge", "embedder_name": str(folders["bge"]),
        "reranker_backend": "bge", "reranker_name": str(folders["reranker"]),
    }  # fmt: skip
    on_ray = {"runtime_backend": "ray", "runtime_profile": tmp_path / "p.toml"}
    search_options = {"group": "g", "recipe": "reranked", "scopes": ["episode"]}
    with kgray.open(tmp_path / "d", create=True, settings={**settings, **on_ray}) as memory:
        report = memory.add_many(
            [{"text": text, "group": "g", "at": "2026-03-01"} for text in texts_of(12, seed=9)]
        )
        assert (report.committed, report.failed) == (12, 0)
        actors = deployment_of(memory).status()
        assert {"embedder-0", "reranker-0"} <= actors.keys()
        hits = memory.search("tea in Berlin", **search_options)
        weights = asyncio.run(memory.asynchronous.embedder.embed_both(["Alice likes tea."]))[1]
        rows = stored_rows(memory)
        reranker = memory.asynchronous._searcher.reranker
        local_models = (memory.asynchronous.embedder._calls.local._model, reranker._calls.local._model)
        assert [model._passes for model in local_models] == [None, None]
        assert deployment_of(memory).status()["reranker-0"]["done"] == 1
    with kgray.open(tmp_path / "d", create=True, settings=settings) as memory:
        assert [(hit.id, hit.score) for hit in memory.search("tea in Berlin", **search_options)] == [
            (hit.id, hit.score) for hit in hits
        ]
        assert (
            asyncio.run(memory.asynchronous.embedder.embed_both(["Alice likes tea."]))[1] == weights != [b""]
        )
    with kgray.open(
        tmp_path / "here", create=True, settings=settings
    ) as memory:  # the workers' weights equal this process's weights
        memory.add_many([{"text": text, "group": "g", "at": "2026-03-01"} for text in texts_of(12, seed=9)])
        assert stored_rows(memory) == rows
        assert None not in [weights for row_list in rows for _, weights, _ in row_list]


def bare_loops(folder: str, texts: list[str]) -> Any:
    """Return FlagEmbedding's embedder, and two loops over texts sorted by length that return seconds.

    The first pads a pass to its longest text. The second runs the fixed shapes of BgeEmbedder, without which
    a text's vector depends on its neighbours; nothing else.
    """
    import torch
    from FlagEmbedding import BGEM3FlagModel

    from kgray.models.passes import PassQueue, rows_of

    wrapper = BGEM3FlagModel(folder, use_fp16=False, devices="cpu")
    model = wrapper.model.float().eval()

    def ids() -> list[list[int]]:
        token_ids: list[list[int]] = wrapper.tokenizer(texts)["input_ids"]
        return token_ids

    def run(passes: list[tuple[int, int, list[list[int]]]]) -> None:
        with torch.inference_mode():
            for length, count, rows in passes:
                filled = [row + [1] * (length - len(row)) for row in rows]
                tokens = torch.tensor(filled + [[0] + [1] * (length - 1)] * (count - len(rows)))
                model({"input_ids": tokens, "attention_mask": tokens != 1})["dense_vecs"].numpy()

    def padded() -> float:
        started, remaining = time.process_time(), sorted(ids(), key=len, reverse=True)
        passes = []
        while remaining:
            rows = remaining[: max(1, TOKENS // len(remaining[0]))]
            remaining = remaining[len(rows) :]
            passes.append((len(rows[0]), len(rows), rows))
        run(passes)
        return time.process_time() - started

    def fixed() -> float:
        started, queue = time.process_time(), PassQueue(TOKENS)
        queue.put(ids(), is_query=False)
        batches = iter(queue.take, None)
        run([(length, rows_of(length, TOKENS), [row.ids for row in rows]) for length, rows in batches])
        return time.process_time() - started

    return wrapper, padded, fixed


@contextmanager
def in_an_actor(folder: Path, data: Path, texts: list[str]) -> Iterator[tuple[psutil.Process, Any]]:
    """Yield an embedder actor's process, and a function that has it embed the texts."""
    import ray

    from kgray.runtime.actors import actor_of
    from kgray.runtime.spec import spec_of
    from kgray.runtime.workers import EmbedWorker
    from kgray.settings import load

    overrides = {"embedder_backend": "bge", "embedder_name": str(folder)}
    spec = spec_of(load(None, environ={}, overrides=overrides), data, {})
    ray.init(num_cpus=2, include_dashboard=False, logging_level="error")
    one_thread = {"env_vars": {"OMP_NUM_THREADS": "1"}}
    worker = actor_of(EmbedWorker).options(num_cpus=1, runtime_env=one_thread).remote(spec, "embedder-0")

    async def work() -> None:
        async for ended in worker.work.remote([(1, tuple(texts))]):
            ((_, vectors),) = await ended
            assert vectors.shape == (len(texts), 64)

    try:
        yield psutil.Process(ray.get(worker.describe.remote())["pid"]), work
    finally:
        ray.shutdown()


def test_the_bench_of_a_card_measures_bge_and_goes_on_where_it_was(tmp_path):
    """Tiny shapes on a processor: a first run begins no part after its time, a second one ends the step."""
    file = tmp_path / "card.json"
    options = ["--shape", "tiny", "--folder", str(tmp_path / "w"), "--file", str(file), "--json"]
    command = [sys.executable, "-m", "bench", "card", "bge", *options]
    first = subprocess.run([*command, "--seconds", "1"], capture_output=True, text=True, check=False)
    assert first.returncode == 1, first.stderr
    begun = json.loads(file.read_text())["steps"]["bge"]
    assert (len(begun["parts"]), begun["complete"]) == (1, False)
    second = subprocess.run(command, capture_output=True, text=True, check=False)
    assert second.returncode == 0, second.stderr
    parts = json.loads(second.stdout)["steps"]["bge"]["parts"]
    assert parts["chat-fp16"] == begun["parts"]["chat-fp16"]
    assert json.loads(file.read_text()) == json.loads(second.stdout)
    assert parts["bits"]["differ_alone"] == parts["bits"]["differ_in_parts"] == 0
    assert 0 < parts["chat-fp32"]["padding"] < 1
    assert parts["queries"]["alone_s"] > 0
    sys.stderr.write(json.dumps(parts, indent=1))
    wrong_shape = [*command, "--shape", "real"]
    refused = subprocess.run(wrong_shape, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "has figures of the shape tiny: name another file" in refused.stderr


@pytest.mark.slow  # a comparison of speeds
@pytest.mark.parametrize("place", ["in this process", "in an actor"])
def test_it_is_as_fast_as_a_bare_loop_and_much_faster_than_one_text_a_call(
    folders, embedder, tmp_path, place, record_property
):
    """At least 0.9 of a bare loop of the same shapes, and 3 times FlagEmbedding text by text.

    Processor time of one thread, each in turn: other processes of the machine count little. What an actor's
    process uses while it has nothing to do (Ray's threads) is not counted.
    """
    import torch

    texts = texts_of(1000)
    wrapper, padded, fixed = bare_loops(str(folders["bge"]), texts)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    local = nullcontext((psutil.Process(), lambda: embedder.embed(texts)))
    with in_an_actor(folders["bge"], tmp_path, texts) if place == "in an actor" else local as (process, work):

        def used(seconds: float = 0.0) -> float:
            return sum(process.cpu_times()[:2]) - at_rest * seconds

        def ours() -> float:
            started, began = used(), time.monotonic()
            for _ in range(3):  # its clock ticks a hundred times a second
                asyncio.run(work())
            return (used(time.monotonic() - began) - started) / 3

        at_rest = 0.0
        ours(), padded(), fixed()
        if place == "in an actor":
            started = used()
            time.sleep(4)
            at_rest = (used() - started) / 4
        rounds = [(ours(), padded(), fixed()) for _ in range(5)]
        started = time.process_time()
        for text in texts[:100]:
            wrapper.encode([text])
        naive = (time.process_time() - started) * 10
    torch.set_num_threads(threads)
    bare_s, loop_s, fixed_s = (min(seconds) for seconds in zip(*rounds, strict=True))
    ratios = {
        "of_bare": fixed_s / bare_s,
        "of_bare_without_fixed_shapes": loop_s / bare_s,
        "of_naive": naive / bare_s,
    }
    ratios = {name: round(value, 2) for name, value in (ratios | {"at_rest": at_rest}).items()}
    record_property("speed", json.dumps(ratios))
    sys.stderr.write(f"{place}: {ratios}\n")
    assert fixed_s / bare_s >= 0.9
    assert loop_s / bare_s >= 0.75
    assert naive / bare_s >= 3
