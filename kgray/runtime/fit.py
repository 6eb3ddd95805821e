"""Check that the models of a profile fit on its card: weights, KV cache, room for computing; in 10^9 bytes.

Weights and KV cache follow from the models' configs; other rows are estimates, and say so.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kgray.errors import SettingsError
from kgray.models.bge import EMBEDDER, RERANKER
from kgray.runtime.spec import Profile, shipped
from kgray.settings import Settings

GB = 1e9
REQUEST = 2048  # tokens of a request of kgray: a prompt of 1,700, mostly a shared prefix, and its reply
_CONTEXT_GB = 0.8  # of a process on the card, estimated
_Config = Mapping[str, Any]
Row = tuple[str, float, str]  # name, GB, explanation


def config_of(name: str) -> _Config:
    """Return a model's config, from its folder or the shipped shapes. Raises SettingsError."""
    path = Path(name) / "config.json"
    if path.is_file():
        return dict(json.loads(path.read_text(encoding="utf-8")))
    shapes = tomllib.loads((shipped().parent / "shapes.toml").read_text(encoding="utf-8"))
    if name not in shapes:
        raise SettingsError(
            f"the shape of {name} is not known: name a folder that holds its config.json, or one of "
            f"{', '.join(shapes)}."
        )
    return dict(shapes[name])


def parameters(config: _Config) -> tuple[int, int]:
    """Return the parameters of the layers, and of the token tables, without norms and biases (< 0.1 %)."""
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    heads = config["num_attention_heads"]
    width = config.get("head_dim") or hidden // heads
    shared = config.get("num_key_value_heads") or heads
    attention = hidden * width * (2 * heads + 2 * shared)
    experts = config.get("num_experts") or 0
    if experts:
        wide = 3 * hidden * config["moe_intermediate_size"] * experts + hidden * experts
    else:
        is_roberta = config.get("model_type") == "xlm-roberta"
        wide = (2 if is_roberta else 3) * hidden * config["intermediate_size"]
    tables = 1 if config.get("tie_word_embeddings", True) else 2
    places = config["max_position_embeddings"] if config.get("model_type") == "xlm-roberta" else 0
    return layers * (attention + wide), hidden * (tables * config["vocab_size"] + places)


def kv_of(config: _Config, dtype: str = "auto") -> int:
    """Return the bytes of the KV cache for one token. dtype: vLLM's kv_cache_dtype."""
    heads = config.get("num_key_value_heads") or config["num_attention_heads"]
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return int(2 * config["num_hidden_layers"] * heads * width * _kv_bits(dtype) / 8)


def _kv_bits(dtype: str) -> int:
    """Return the bits of a number of the cache."""
    return 8 if dtype.startswith(("fp8", "int8")) else 4 if dtype.startswith(("int4", "nvfp4")) else 16


def _weight_bits(config: _Config, quantization: str) -> float:
    """Return the bits of a weight. quantization: what vLLM makes of other weights while it loads them."""
    quantised = config.get("quantization_config") or {}
    if quantised:
        return float(quantised.get("bits") or 8)
    if quantization.startswith("fp8"):
        return 8.0
    return 32.0 if (config.get("dtype") or config.get("torch_dtype")) == "float32" else 16.0


def table(profile: Profile, settings: Settings) -> tuple[list[Row], list[str]]:
    """Return the rows of one card, and a line for each row that does not fit. Raises SettingsError."""
    card = profile.ray.card_gb
    if not card:
        raise SettingsError(f"ray.card_gb is not set in the profile {profile.name!r}: there is no card.")
    rows: list[Row] = []
    faults: list[str] = []
    if settings.model.backend == "vllm":
        rows += _engine(profile, str(settings.model.name), faults)
    rows += _encoders(profile, settings)
    remaining = card - sum(size for _, size, _ in rows)
    if remaining < 0:
        faults.append(f"the card has {card:g} GB, and {card - remaining:.1f} GB are asked for")
    return [*rows, ("left", remaining, f"of {card:g} GB")], faults


def _engine(profile: Profile, name: str, faults: list[str]) -> list[Row]:
    """Return the rows of one engine, which add up to its share of the card."""
    engine, config = profile.engine, config_of(name)
    share = profile.ray.card_gb * engine.memory_share
    layers, tables = parameters(config)
    bits = _weight_bits(config, str(engine.args.get("quantization") or ""))
    # The tables of a quantised model are not quantised.
    weights = (layers * bits + tables * max(16.0, bits)) / 8 / GB / engine.cards
    steps = engine.max_num_batched_tokens * (8 * config["hidden_size"]) * 4 / GB
    steps += engine.max_num_seqs * config["vocab_size"] * 4 / GB
    cache = share - weights - steps - _CONTEXT_GB
    a_token = kv_of(config, str(engine.args.get("kv_cache_dtype", "auto"))) / engine.cards
    capacity = max(0, int(cache * GB / a_token))
    max_requests = capacity // REQUEST
    if cache <= 0 or capacity < engine.max_model_len:
        faults.append(
            f"{name}: {share:.1f} GB (engine.memory_share) leave {cache:.1f} GB for the KV cache; "
            f"one request of engine.max_model_len = {engine.max_model_len} needs "
            f"{engine.max_model_len * a_token / GB:.1f} GB"
        )
    elif max_requests < engine.max_num_seqs:
        faults.append(
            f"{name}: the KV cache of {cache:.1f} GB holds {max_requests} requests of {REQUEST} tokens, and "
            f"engine.max_num_seqs = {engine.max_num_seqs}: use {max_requests} or less"
        )
    return [
        (f"weights of {name}", weights, f"{(layers + tables) / GB:.2f} thousand million numbers"),
        ("its steps and process", steps + _CONTEXT_GB, "estimated"),
        ("its KV cache", cache, f"{capacity} tokens: {max_requests} requests of {REQUEST}"),
    ]


def _encoders(profile: Profile, settings: Settings) -> Iterator[Row]:
    """Yield a row for the embedders and rerankers that share the card with the engine."""
    free = 1 - (profile.extraction.gpus if settings.model.backend == "vllm" else 0)
    kinds = (
        ("reranker", settings.reranker, RERANKER, profile.reranking, 1),
        ("embedder", settings.embedder, EMBEDDER, profile.embedding, 0),
    )
    for kind, chosen, usual, pool, on_card in kinds:
        fitting = min(pool.maximum, int(free / pool.gpus + 1e-6)) if pool.gpus else 0
        count = (
            fitting if pool.maximum else on_card
        )  # without workers, a searching process may rerank on the card
        if chosen.backend == "bge" and count:
            config = config_of(chosen.name or usual)
            each = sum(parameters(config)) * 2 / GB + _CONTEXT_GB
            yield f"{kind}: {chosen.name or usual}", count * each, f"{count} in half precision"
