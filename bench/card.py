"""The first hour on a card: steps of at most eight minutes, each of parts that are measured once.

Weights are random, and made here; vLLM makes those of its engines while it loads them, from a config and a
tokenizer alone. Nothing is downloaded. Each part runs in a process of its own, so it leaves no memory on the
card. The file of the figures is written after each part; a step that is run again goes on after it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench import models, random_models
from bench.random_models import Shape
from kgray.errors import InputError
from kgray.system.locks import replaced

Figures = dict[str, Any]
Part = Callable[[Path, Shape], Figures]
LONGEST_S = 480.0  # of a step
_END_S = 60.0  # for a part to end its processes after that
_STARTS = 10
_PRECISIONS = ("fp16", "bf16", "fp32")
_SCHEMA = {
    "type": "object",
    "properties": {"words": {"type": "array", "items": {"type": "string"}, "maxItems": 40}},
    "required": ["words"],
    "additionalProperties": False,
}


def run(
    step: str, shape: Shape, folder: Path, file: Path, *, seconds: float, tell: Callable[[str], None]
) -> Figures:
    """Carry out the parts of a step that the file lacks; return the file's content.

    folder: for weights, kept between steps; seconds: no part begins later. Raises InputError if a part fails.
    """
    document = read(file)
    if document.setdefault("shape", shape) != shape:
        raise InputError(
            f"{file} has figures of the shape {document['shape']}: name another file with --file"
        )
    row = document.setdefault("steps", {}).setdefault(step, {"parts": {}})
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    for name in STEPS[step]:
        left = min(seconds, LONGEST_S) - (time.monotonic() - began)
        if name in row["parts"]:
            continue
        if left <= 0:
            tell(f"{step}: {seconds:.0f} s are over before {name}: run the step again, and it goes on there")
            break
        tell(f"{step}: {name}")
        row["parts"][name] = _in_a_process(step, name, shape, folder, LONGEST_S - (time.monotonic() - began))
        document["device"] = row["parts"][name].pop("device")
        write(file, document)
    row["complete"] = row["parts"].keys() >= STEPS[step].keys()
    write(file, document)
    return document


def read(file: Path) -> Figures:
    """Return the content of the file of figures. Raises InputError."""
    try:
        return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}
    except (OSError, ValueError) as error:
        raise InputError(f"{file} is no file of figures ({error}): name another one with --file") from None


def write(file: Path, document: Figures) -> None:
    """Write figures to a file, whole or not at all."""
    with replaced(file) as written:
        written.write(json.dumps(document, indent=1) + "\n")


def _in_a_process(step: str, part: str, shape: Shape, folder: Path, seconds: float) -> Figures:
    command = [sys.executable, "-m", "bench", "card", step, "--part", part, "--shape", shape]
    answer = folder / f"{step}-{part}.json"  # a library may print to the standard output of the part
    command += ["--folder", str(folder), "--file", str(answer)]
    began = time.monotonic()
    process = subprocess.Popen(  # noqa: S603 - this program
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        _, err = process.communicate(timeout=max(1.0, seconds))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # it ends its Ray, which is in a session of its own
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=_END_S)
        raise InputError(
            f"{step}: {part} has not ended within {seconds:.0f} s; it is not in the file"
        ) from None
    finally:
        with_its_children_killed(process)
    if process.returncode:
        line = (err.strip().splitlines() or ["no message"])[-1]
        raise InputError(f"{step}: {part} ended with {process.returncode}: {line[:500]}")
    figures = read(answer)
    answer.unlink()
    return figures | {"wall_s": round(time.monotonic() - began, 1)}


def with_its_children_killed(process: subprocess.Popen[str]) -> None:
    """End what is left of the session of a process that this module started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def part_of(step: str, part: str, folder: Path, shape: Shape) -> Figures:
    """Return the figures of one part, measured in this process, and the device."""
    if shape == "tiny":  # before torch is imported: threads that share a busy processor wait for each other
        os.environ["OMP_NUM_THREADS"] = "1"
    figures = STEPS[step][part](folder, shape)
    return figures | {"device": models.device()}


# ------------------------------------------------------------------------------------------- BGE


def _embedder(folder: Path, shape: Shape, precision: str | None = None) -> Any:  # noqa: ANN401 - kgray's
    from kgray.models.bge import BgeEmbedder
    from kgray.models.encoder import Placement

    chosen: Any = precision
    path = models.models(folder, shape, ("bge",))["bge"]
    return BgeEmbedder(str(path), sparse=True, placement=Placement(precision=chosen))


def _speed(kind: str, precision: str, folder: Path, shape: Shape) -> Figures:
    """Return texts and tokens a second of 16 calls at once, and the share of the passes that is padding."""
    embedder, texts = _embedder(folder, shape, precision), models.texts_of(*models.SIZES[shape][kind])

    async def work() -> float:
        await embedder.embed(models.texts_of(64, 20, seed=1))
        before = dict(embedder.counts)
        began = time.perf_counter()
        await asyncio.gather(*(embedder.embed(texts[at::16]) for at in range(16)))
        seconds = time.perf_counter() - began
        counts.update({name: embedder.counts[name] - count for name, count in before.items()})
        return seconds

    counts: dict[str, int] = {}
    seconds = asyncio.run(work())
    return {
        "texts_per_s": len(texts) / seconds,
        "tokens_per_s": counts["tokens"] / seconds,
        "padding": 1 - counts["tokens"] / counts["slots"],
    }


def _bits(folder: Path, shape: Shape) -> Figures:
    """Return how many texts have other bits in other company, and in passes of fewer rows."""
    embedder, texts = _embedder(folder, shape), models.texts_of(200, 20, seed=7)

    async def work() -> Figures:
        alone = np.stack([(await embedder.embed_query(text)).vector for text in texts])
        together = await embedder.embed(texts)
        found = await asyncio.gather(*(embedder.embed(texts[at::8]) for at in range(8)))
        apart = np.empty_like(together)
        for at, rows in enumerate(found):
            apart[at::8] = rows
        return {
            "texts": len(texts),
            "differ_alone": int((alone != together).any(axis=1).sum()),
            "differ_in_parts": int((apart != together).any(axis=1).sum()),
            "lengths_that_fewer_rows_change": await _changed_by_fewer_rows(embedder),
        }

    return asyncio.run(work())


async def _changed_by_fewer_rows(embedder: Any) -> list[int]:  # noqa: ANN401 - kgray's
    """Return lengths whose rows have other bits in a pass of half the rows: such passes must stay whole."""
    from kgray.models.passes import rows_of

    model = embedder._model  # noqa: SLF001 - its passes are what is measured
    passes, rng, changed = model._passes, np.random.default_rng(3), []  # noqa: SLF001 - as above
    for length in (16, 32, 64, 128, 256):
        rows = rows_of(length, passes.tokens)
        ids = rng.integers(5, 50, (rows, length))
        mask = np.ones_like(ids)
        mask[:, -1], ids[:, -1] = 0, 1
        whole = passes.forward(ids, mask)()
        half = passes.forward(ids[: max(1, rows // 2)], mask[: max(1, rows // 2)])()
        if not all(np.array_equal(a[0], b[0]) for a, b in zip(whole, half, strict=False)):
            changed.append(length)
    return changed


def _queries(folder: Path, shape: Shape) -> Figures:
    """Return the median seconds of a query alone, and beside ingestion that fills the device."""
    embedder, texts = _embedder(folder, shape), models.texts_of(*models.SIZES[shape]["chat"])

    async def median(count: int = 20) -> float:
        seconds = []
        for number in range(count):
            began = time.perf_counter()
            await embedder.embed_query(f"Where does Alice work? {number}")
            seconds.append(time.perf_counter() - began)
        return sorted(seconds)[count // 2]

    async def work() -> Figures:
        await median(3)
        alone = await median()
        bulk = [asyncio.create_task(embedder.embed(texts)) for _ in range(4)]
        await asyncio.sleep(0.05)
        beside = await median()
        ended_early = all(task.done() for task in bulk)
        await asyncio.gather(*bulk)
        return {"alone_s": alone, "beside_ingestion_s": beside, "ingestion_ended_before": ended_early}

    return asyncio.run(work())


def _rerank(folder: Path, shape: Shape) -> Figures:
    return asyncio.run(models.rerank(folder, shape))


# ------------------------------------------------------------------------------------------- vLLM


def _engine(folder: Path, shape: Shape, which: str, *, seqs: int = 64) -> Any:  # noqa: ANN401 - kgray's
    """Return an engine, not yet started, that makes its weights while it loads."""
    from kgray.models.vllm_engine import EngineClient
    from kgray.settings.engine import EngineLimits

    os.environ.update(models.PROCESSOR if models.device() == "processor" else {"VLLM_NO_USAGE_STATS": "1"})
    path = folder / f"{which}-{shape}"
    if not path.exists():
        random_models.config_alone(path, which, shape)
    limits = EngineLimits(
        max_num_seqs=seqs, memory_share=0.5 if shape == "tiny" else 0.8, eager=shape == "tiny",
        max_model_len=4096, args={"load_format": "dummy"},
    )  # fmt: skip
    return EngineClient(str(path), limits=limits, timeout_s=400.0, patience_s=60.0)


def _body(number: int, room: int, *, constrained: bool, head: str = "Write words.") -> Figures:
    form = {"type": "json_schema", "json_schema": {"name": "words", "schema": _SCHEMA, "strict": True}}
    messages = [{"role": "system", "content": head}, {"role": "user", "content": f"Question {number}."}]
    body: Figures = {"messages": messages, "max_tokens": room, "temperature": 1.0}
    return body | ({"response_format": form} if constrained else {})


async def _chat(engine: Any, bodies: Sequence[Figures]) -> float:  # noqa: ANN401 - kgray's
    """Have an engine answer requests at once; return the seconds."""
    from kgray.models.openai_api.client import TokensSpent

    began = time.perf_counter()
    await asyncio.gather(*(engine.chat(body, TokensSpent()) for body in bodies))
    return time.perf_counter() - began


async def _until(test: Callable[[], bool]) -> None:
    """Wait until a test succeeds. Raises TimeoutError after two minutes."""
    async with asyncio.timeout(120):
        while not test():  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.02)


def _start(which: str, folder: Path, shape: Shape) -> Figures:
    """Return the seconds of an engine's start, of its first reply, and of its end."""
    engine = _engine(folder, shape, which)

    async def work() -> Figures:
        began = time.perf_counter()
        await engine.start()
        started = time.perf_counter() - began
        first = await _chat(engine, [_body(0, 1, constrained=False)])
        began = time.perf_counter()
        await engine.stop()
        return {"start_s": started, "first_token_s": first, "stop_s": time.perf_counter() - began}

    return asyncio.run(work())


def _cold_start(_: int, folder: Path, shape: Shape) -> Figures:
    """Return the seconds until engine, embedder and reranker answer on one card, through `kgray up`."""
    path = random_models.config_alone_of(folder, "8b", shape)
    return _without_hits(models.ingest(folder, shape, episodes=2, engine=path))


def _without_hits(figures: Figures) -> Figures:
    """Return figures with the number of hits in place of the hits."""
    return figures | {"hits": len(figures["hits"])}


def _killed(folder: Path, shape: Shape) -> Figures:
    """Return the seconds from a kill of an engine's process until its memory is free."""
    import psutil

    engine = _engine(folder, shape, "8b")

    def used() -> int:
        """Return the bytes of the card that are in use; on a processor those of the engine's processes."""
        if models.device() != "processor":
            import torch

            free, total = torch.cuda.mem_get_info()
            return int(total - free)
        there = [process for process in below if process.is_running()]
        return sum(one.memory_info().rss for one in there if one.status() != psutil.STATUS_ZOMBIE)

    below: list[Any] = []

    async def work() -> Figures:
        before = used()
        await engine.start()
        below.extend(psutil.Process().children(recursive=True))
        full = used()
        for process in below:
            if "EngineCore" in process.name():
                process.kill()
        began = time.perf_counter()
        await _until(lambda: used() <= before + (full - before) * 0.05)
        return {"bytes": full - before, "free_after_s": time.perf_counter() - began, "left": used() - before}

    return asyncio.run(work())


def _decode(seqs: int, constrained: bool, folder: Path, shape: Shape) -> Figures:
    """Return reply tokens a second of so many requests at once, with a schema or free."""
    engine = _engine(folder, shape, "8b", seqs=seqs)
    room = 64 if shape == "tiny" else 256

    async def work() -> Figures:
        await engine.start()
        try:
            await _chat(engine, [_body(0, 8, constrained=constrained)])
            before = engine.counts["reply_tokens"]
            seconds = await _chat(engine, [_body(n, room, constrained=constrained) for n in range(2 * seqs)])
            tokens = engine.counts["reply_tokens"] - before
        finally:
            await engine.stop()
        return {"requests": 2 * seqs, "reply_tokens": tokens, "reply_tokens_per_s": tokens / seconds}

    return asyncio.run(work())


def _prefix(folder: Path, shape: Shape) -> Figures:
    """Return the share of prompts that the prefix cache served, and the seconds without and with it."""
    engine = _engine(folder, shape, "8b")
    heads = [f"{name} {random_models.WORDS}" for name in ("first", "second")]

    async def work() -> Figures:
        await engine.start()
        try:
            await _chat(engine, [_body(0, 1, constrained=False, head=heads[0])])
            before = dict(engine.counts)
            warm = await _chat(engine, [_body(n, 1, constrained=False, head=heads[0]) for n in range(64)])
            counts = {name: engine.counts[name] - before[name] for name in before}
            others = [_body(n, 1, constrained=False, head=f"{n} {heads[1]}") for n in range(64)]
            cold = await _chat(engine, others)
        finally:
            await engine.stop()
        share = counts["cached_tokens"] / counts["prompt_tokens"]
        return {"cached_share": share, "warm_s": warm, "cold_s": cold}

    return asyncio.run(work())


def _cancel(folder: Path, shape: Shape) -> Figures:
    """Return the seconds from the cancellation of 256 requests until the engine has none."""
    engine = _engine(folder, shape, "8b", seqs=128)

    async def work() -> Figures:
        await engine.start()
        try:
            await _chat(engine, [_body(0, 1, constrained=False)])
            asked = [
                asyncio.create_task(_chat(engine, [_body(n, 3000, constrained=False)])) for n in range(256)
            ]
            await _until(lambda: engine.counts["running"] >= 64)
            began = time.perf_counter()
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
            requests = engine._engine.output_processor  # noqa: SLF001 - vLLM's own list
            await _until(lambda: not requests.has_unfinished_requests())
            empty = time.perf_counter() - began
            again = await _chat(engine, [_body(0, 1, constrained=False)])
        finally:
            await engine.stop()
        return {"aborted": engine.counts["aborted"], "empty_after_s": empty, "next_reply_s": again}

    return asyncio.run(work())


def _ingest(folder: Path, shape: Shape) -> Figures:
    """Return how an ingest through engine, embedder and reranker ended, and its seconds."""
    path = random_models.config_alone_of(folder, "8b", shape)
    return _without_hits(models.ingest(folder, shape, episodes=20 if shape == "tiny" else 200, engine=path))


STEPS: Mapping[str, Mapping[str, Part]] = {
    "bge": {
        **{
            f"{kind}-{precision}": partial(_speed, kind, precision)
            for kind in ("chat", "documents")
            for precision in _PRECISIONS
        },
        "bits": _bits,
        "queries": _queries,
        "rerank": _rerank,
    },
    "engine-8b": {"start": partial(_start, "8b")},
    "engine-30b": {"start": partial(_start, "30b")},
    "starts": {f"start-{number}": partial(_cold_start, number) for number in range(1, _STARTS + 1)},
    "killed": {"killed": _killed},
    "decoding": {
        f"{'constrained' if constrained else 'free'}-{seqs}": partial(_decode, seqs, constrained)
        for seqs in (128, 256)
        for constrained in (True, False)
    },
    "prefix": {"prefix": _prefix},
    "cancel": {"cancel": _cancel},
    "ingest": {"ingest": _ingest},
}


def table(document: Figures) -> str:
    """Return the figures as lines of text."""
    lines = [f"device: {document.get('device')}; random weights at the {document['shape']} shape"]
    for step, row in document["steps"].items():
        state = "complete" if row.get("complete") else f"{len(row['parts'])} of {len(STEPS[step])} parts"
        lines.append(f"{step}: {state}")
        for name, figures in row["parts"].items():
            numbers = (
                f"{key} {round(value, 3) if isinstance(value, float) else value}"
                for key, value in figures.items()
                if isinstance(value, int | float | list)
            )
            lines.append(f"  {name}: {', '.join(numbers)}")
    return "\n".join(lines)
