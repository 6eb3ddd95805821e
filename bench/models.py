"""Models in the processes that run them, on random weights: embed, rerank, extract, and a whole ingest.

The weights are made here, at a tiny shape or at that of the real models, so nothing is downloaded; a random
model is as fast as a trained one of its shape. The ingest runs `kgray backfill` with vLLM and BGE in Ray's
actors, and a search that embeds and reranks there: all on one card where there is one.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import random_models
from bench.random_models import Shape
from kgray.domain import times
from kgray.domain.ontology import shipped
from kgray.domain.records import Draft, Episode
from kgray.errors import InputError
from kgray.models.openai_api.client import TokensSpent
from kgray.models.openai_api.dialects import Dialect
from kgray.models.prompting.prompts import Prompts, extraction_data
from kgray.models.prompting.reply_schemas import extraction_schemas
from kgray.ports import ExtractionRequest
from kgray.runtime.fit import config_of, parameters

PARTS = ("embed", "rerank", "extract", "ingest")
Figures = dict[str, Any]
_AT = times.parse("2026-01-01T09:00:00Z")[0]
# Of a card in bf16 without sparsity, in 10^12 operations a second, from the makers' data sheets.
_PEAKS = {"H200": 989.0, "H100": 989.0, "A100": 312.0, "L40S": 362.0, "L4": 121.0, "A10": 125.0}
# vLLM's build for processors: how much cache, and no binding of threads, which starves a busy machine.
PROCESSOR = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "RAY_memory_monitor_refresh_ms": "0",
}
SIZES: Mapping[Shape, Figures] = {
    "tiny": {"chat": (400, 12), "documents": (20, 200), "pairs": 60, "requests": 32, "room": 64},
    "real": {"chat": (20_000, 15), "documents": (2_000, 400), "pairs": 2_000, "requests": 512, "room": 192},
}
_PROFILE = """
[ray]
cpus = 4
dashboard = false

[extraction]
workers = 1
cpus = 1.0
gpus = {engine_gpus}
concurrency = 200
start_deadline_s = 900.0
env = {env}

[embedding]
workers = 1
cpus = 1.0
gpus = {encoder_gpus}
start_deadline_s = 600.0
env = {{ OMP_NUM_THREADS = "1" }}

[reranking]
workers = 1
cpus = 1.0
gpus = {encoder_gpus}
start_deadline_s = 600.0
env = {{ OMP_NUM_THREADS = "1" }}

[engine]
max_num_seqs = 32
max_num_batched_tokens = 4096
max_model_len = 8192
memory_share = {memory_share}
eager = {eager}
args = {arguments}

[limits]
start_deadline_s = 900.0
"""


def device() -> str:
    """Return the name of the card, or "processor"."""
    import torch

    return str(torch.cuda.get_device_name(0)) if torch.cuda.is_available() else "processor"


def measure(
    parts: Sequence[str], shape: Shape, folder: Path, *, episodes: int, profile: Path | None
) -> Figures:
    """Return the figures of each part. folder: for weights and the store, new or empty."""
    if shape == "tiny":  # before torch is imported: threads that share a busy processor wait for each other
        os.environ["OMP_NUM_THREADS"] = "1"
    found: Figures = {"device": device(), "shape": shape}
    if "embed" in parts:
        found["embed"] = asyncio.run(embed(folder, shape))
    if "rerank" in parts:
        found["rerank"] = asyncio.run(rerank(folder, shape))
    if "extract" in parts:
        found["extract"] = asyncio.run(extract(folder, shape))
    if "ingest" in parts:
        found["ingest"] = ingest(folder, shape, episodes=episodes, profile=profile)
    return found


def models(folder: Path, shape: Shape, names: Sequence[str] = ("bge", "reranker", "qwen")) -> dict[str, Path]:
    """Make the named random models, unless they are there; return their folders."""
    made = {name: folder / f"{name}-{shape}" for name in names}
    for name, path in made.items():
        if path.exists():
            continue
        if name == "qwen":
            random_models.qwen(path, shape)
        else:
            random_models.bge(path, shape, reranker=name == "reranker")
    return made


def texts_of(count: int, words: int, seed: int = 3) -> list[str]:
    """Return distinct texts, most of about so many words."""
    rng, known = random.Random(seed), random_models.WORDS.split()  # noqa: S311 - data of a measurement
    lengths = [max(3, round(rng.gauss(words, words / 4))) for _ in range(count)]
    return [f"{n} " + " ".join(rng.choices(known, k=length)) for n, length in enumerate(lengths)]


async def embed(folder: Path, shape: Shape) -> Figures:
    """Return tokens a second at the lengths of chat messages and of documents, and the share of the peak."""
    from tokenizers import Tokenizer

    from kgray.models.bge import BgeEmbedder

    model = models(folder, shape, ("bge",))["bge"]
    embedder, tokenizer = BgeEmbedder(str(model)), Tokenizer.from_file(str(model / "tokenizer.json"))
    await embedder.embed(texts_of(20, 20))  # loads it
    peak = next((peak for name, peak in _PEAKS.items() if name in device()), None)
    layers, _ = parameters(config_of(str(model)))
    found: Figures = {}
    for kind in ("chat", "documents"):
        texts = texts_of(*SIZES[shape][kind])
        count = sum(len(one.ids) for one in tokenizer.encode_batch(texts))
        seconds = await _seconds(embedder.embed(texts))
        rate = count / seconds
        row = {"texts": len(texts), "tokens_a_text": count / len(texts), "tokens_per_s": rate}
        found[kind] = row | ({"share_of_peak": 2 * layers * rate / (peak * 1e12)} if peak else {})
    return found


async def rerank(folder: Path, shape: Shape) -> Figures:
    """Return pairs a second."""
    from kgray.models.bge import BgeReranker

    reranker = BgeReranker(str(models(folder, shape, ("reranker",))["reranker"]))
    texts = texts_of(SIZES[shape]["pairs"], 15)
    await reranker.score("Where does Alice work?", texts[:10])
    seconds = await _seconds(reranker.score("Where does Alice work?", texts))
    return {"pairs": len(texts), "pairs_per_s": len(texts) / seconds}


async def extract(folder: Path, shape: Shape) -> Figures:
    """Return requests and tokens a second, the prompts' share that was cached, and the first token's time.

    The prompts are ours: `head_share` of their tokens is the fixed head.
    """
    from kgray.models.vllm_engine import EngineClient
    from kgray.settings.engine import EngineLimits

    os.environ.update(PROCESSOR if device() == "processor" else {"VLLM_NO_USAGE_STATS": "1"})
    prompt, sizes = Prompts(shipped())["combined"], SIZES[shape]
    limits = EngineLimits(max_num_seqs=64, memory_share=0.5, eager=shape == "tiny")
    engine = EngineClient(
        str(models(folder, shape, ("qwen",))["qwen"]), limits=limits, timeout_s=600.0, patience_s=60.0,
        heads=[prompt.head],
    )  # fmt: skip
    await engine.start()

    def body(text: str, room: int) -> Figures:
        data, schema = (
            extraction_data(ExtractionRequest(episode=_episode(text))),
            extraction_schemas()["combined"],
        )
        return Dialect().body(prompt, data, schema, room=room, temperature=1.0)

    try:
        spent = TokensSpent()
        firsts = [await _seconds(engine.chat(body(text, 1), spent)) for text in texts_of(8, 12, seed=5)]
        before = dict(engine.counts)
        bodies = [body(text, sizes["room"]) for text in texts_of(sizes["requests"], 12)]
        seconds = await _seconds(asyncio.gather(*(engine.chat(one, spent) for one in bodies)))
        counts = {name: count - before[name] for name, count in engine.counts.items()}
        head = await engine.chat(Dialect().chat(prompt.head, "", room=1, temperature=0.0), spent)
    finally:
        await engine.stop()
    return {
        "requests": len(bodies),
        "requests_per_s": len(bodies) / seconds,
        "reply_tokens_per_s": counts["reply_tokens"] / seconds,
        "prompt_tokens": counts["prompt_tokens"] / len(bodies),
        "cached_share": counts["cached_tokens"] / counts["prompt_tokens"],
        "head_share": head["usage"]["prompt_tokens"] * len(bodies) / counts["prompt_tokens"],
        "first_token_s": sorted(firsts)[len(firsts) // 2],
    }


_RERANKED = ("--scope", "episode", "--recipe", "reranked")  # a search of messages


def _profile(shape: Shape, *, loads_weights: bool) -> str:
    """Return a cluster profile with one worker of each model on this machine's device."""
    pairs = (f'{name} = "{value}"' for name, value in PROCESSOR.items())
    on_card = device() != "processor"
    return _PROFILE.format(
        env="{ " + ", ".join(pairs) + " }",
        engine_gpus=0.8 if on_card else 0.0,
        encoder_gpus=0.1 if on_card else 0.0,
        memory_share=0.7 if on_card else 0.5,
        eager=str(shape == "tiny").lower(),
        arguments="{}" if loads_weights else '{ load_format = "dummy" }',
    )


def ingest(
    folder: Path, shape: Shape, *, episodes: int, profile: Path | None = None, engine: Path | None = None
) -> Figures:
    """Return how a backfill through the actors ended, how fast it was, and a reranked search's hits.

    engine: a config and a tokenizer, of which vLLM makes the weights. up_s: until all models were loaded;
    done: how many requests each of the actors with a model has answered
    """
    made = {"qwen": engine} if engine else {}
    made |= models(folder, shape, ("bge", "reranker") if engine else ("bge", "reranker", "qwen"))
    lines = [
        {"id": f"m{n}", "group": "bench", "speaker": "Alice", "at": "2026-01-01T09:00:00Z",
         "text": text}
        for n, text in enumerate(texts_of(episodes, 8, seed=9))
    ]  # fmt: skip
    messages, chosen = folder / "messages.jsonl", profile or folder / "profile.toml"
    messages.write_text("".join(json.dumps(line) + "\n" for line in lines))
    if profile is None:
        chosen.write_text(_profile(shape, loads_weights=engine is None))
    shutil.rmtree(data := folder / "data", ignore_errors=True)  # of an earlier run
    environ = os.environ | PROCESSOR | {
        "KGRAY_MODEL_BACKEND": "vllm", "KGRAY_MODEL_NAME": str(made["qwen"]), "KGRAY_MODEL_TIMEOUT_S": "600",
        "KGRAY_EMBEDDER_BACKEND": "bge", "KGRAY_EMBEDDER_NAME": str(made["bge"]),
        "KGRAY_RERANKER_BACKEND": "bge", "KGRAY_RERANKER_NAME": str(made["reranker"]),
        "KGRAY_RUNTIME_BACKEND": "ray", "KGRAY_RUNTIME_PROFILE": str(chosen),
    }  # fmt: skip

    def kgray(*arguments: str, ends: Sequence[int] = (0,)) -> Any:  # noqa: ANN401 - JSON
        command = [sys.executable, "-m", "kgray", *arguments, "--data", str(data), "--json"]
        done = subprocess.run(command, env=environ, check=False, capture_output=True, text=True)  # noqa: S603
        if done.returncode not in ends:
            raise InputError(f"{' '.join(arguments)} ended with {done.returncode}: {done.stderr[-2000:]}")
        return json.loads(done.stdout)

    since = time.monotonic()
    try:
        kgray("up")
        up_s = time.monotonic() - since
        since = time.monotonic()
        report = kgray("backfill", str(messages), ends=(0, 1))
        seconds = time.monotonic() - since
        failures = kgray("failures", "--group", "bench")["failures"]
        hits = kgray("search", "tea in Berlin", "--group", "bench", *_RERANKED)["hits"]
        actors = kgray("status")["runtime"]["actors"]
    finally:
        kgray("down")
    done = {name: row["done"] for name, row in actors.items() if "done" in row}
    return {"report": report, "up_s": up_s, "seconds": seconds} | {
        "failures": failures, "hits": hits, "done": done
    }  # fmt: skip


async def _seconds(work: Any) -> float:  # noqa: ANN401 - an awaitable
    since = time.perf_counter()
    await work
    return time.perf_counter() - since


def _episode(text: str) -> Episode:
    draft = Draft(
        group="bench", source="bench", kind="message", text=text, speaker="Alice", reference_time=_AT
    )
    return Episode(
        group=draft.group, sequence=1, id=draft.id, source=draft.source, kind=draft.kind, text=text,
        reference_time=_AT, content_sha256=draft.content_sha256, speaker=draft.speaker,
    )  # fmt: skip


def faults(found: Figures) -> list[str]:
    """Return a line for each figure that is a failure."""
    lines = []
    if (row := found.get("extract")) and row["cached_share"] < row["head_share"] / 2:
        lines.append(
            f"of the prompts {row['cached_share']:.2f} were cached; their head is {row['head_share']:.2f}"
        )
    if row := found.get("ingest"):
        report = row["report"]
        if (
            report["accepted"] != report["committed"] + report["failed"]
            or len(row["failures"]) != report["failed"]
        ):
            lines.append(f"an episode neither ended committed nor failed with a reason: {report}")
    return lines


def table(found: Figures) -> str:
    """Return the figures as lines of text."""
    lines = [f"device: {found['device']}; random weights at the {found['shape']} shape"]
    for kind, row in (found.get("embed") or {}).items():
        peak = row.get("share_of_peak")
        share = f", {peak:.0%} of the card's bf16 peak" if peak else ""
        lines.append(
            f"embed {kind}: {row['tokens_per_s']:.0f} tokens/s, {row['tokens_a_text']:.0f} a text{share}"
        )
    if row := found.get("rerank"):
        lines.append(f"rerank: {row['pairs_per_s']:.0f} pairs/s")
    if row := found.get("extract"):
        lines.append(
            f"extract: {row['requests_per_s']:.1f} requests/s, {row['reply_tokens_per_s']:.0f} tokens/s; "
            f"{row['cached_share']:.2f} of the prompts cached (their head is {row['head_share']:.2f}); "
            f"first token after {row['first_token_s']:.2f} s"
        )
    if row := found.get("ingest"):
        report = row["report"]
        lines.append(
            f"ingest: {report['accepted']} episodes in {row['seconds']:.0f} s, "
            f"{report['committed']} committed, {report['failed']} failed with a reason; "
            f"{len(row['hits'])} hits reranked"
        )
    return "\n".join([*lines, *faults(found)])
