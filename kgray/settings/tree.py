"""The settings: each key with its type and default, and which keys each backend requires."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

from pydantic import StrictBool
from pydantic.dataclasses import dataclass

from kgray.errors import NotBuilt, SettingsError
from kgray.settings.checks import (
    CLOSED,
    ApiKey,
    File,
    FilledText,
    Password,
    Seconds,
    Secret,
    Uri,
    Url,
    Whole,
    within,
)

Table = Mapping[str, Any]
_Count = Annotated[int, within(1, 100_000)]


@dataclass(frozen=True, slots=True, kw_only=True, config=CLOSED)
class StoreSettings:
    """Where the graph is stored; all keys but `backend` are for Neo4j."""

    backend: Literal["sqlite", "neo4j"] = "sqlite"
    uri: Uri | None = None
    user: FilledText | None = None
    password: Password | None = None
    password_file: File | None = None
    database: FilledText | None = None


@dataclass(frozen=True, slots=True, kw_only=True, config=CLOSED)
class ModelSettings:
    """The extractor and judge. cache_mb: size of the reply cache that backfills use; 0 = no cache."""

    backend: Literal["rules", "scripted", "openai", "vllm"] = "rules"
    script: File | None = None
    base_url: Url | None = None
    name: FilledText | None = None
    api_key: ApiKey | None = None
    api_key_file: File | None = None
    timeout_s: Seconds = 120.0
    max_concurrency: Whole = 32
    patience_s: Seconds = 600.0
    cache_mb: Annotated[int, within(0)] = 256
    instructions: FilledText | None = None
    instructions_file: File | None = None


@dataclass(frozen=True, slots=True, kw_only=True, config=CLOSED)
class EngineLimits:
    """Limits of an engine of vLLM: a table of the cluster's profile. vLLM's own depend on the card."""

    max_num_seqs: _Count = 256  # requests that run at once
    max_num_batched_tokens: _Count = 8192  # of one step
    max_model_len: Annotated[int, within(256, 10_000_000)] = 8192  # tokens of a prompt and its reply
    memory_share: Annotated[float, within(0.01, 1.0)] = 0.85  # of the card, for weights and KV cache
    tensor_parallel: _Count = 1  # cards of one engine: as many `gpus` of its pool are needed
    # Where these stand: all on one node, or, where none has so many, on as few as possible, or on many.
    placement: Literal["STRICT_PACK", "PACK", "SPREAD"] = "STRICT_PACK"
    eager: StrictBool = False  # no compiled graphs: starts sooner, runs slower


@dataclass(frozen=True, slots=True, kw_only=True, config=CLOSED)
class EmbedderSettings:
    """The embedder. dimensions: None = the backend's own (hashing: 1024; a server is asked once).

    sparse: whether `bge` weighs a text's tokens too; the others cannot.
    """

    backend: Literal["hashing", "openai", "minilm", "bge"] = "hashing"
    base_url: Url | None = None
    name: FilledText | None = None
    api_key: ApiKey | None = None
    dimensions: Annotated[int, within(16, 65_536)] | None = None
    sparse: bool = True


@dataclass(frozen=True, slots=True, kw_only=True, config=CLOSED)
class RerankerSettings:
    """The model that orders the hits of the recipe `reranked`."""

    backend: Literal["none", "bge", "http"] = "none"
    base_url: Url | None = None
    name: FilledText | None = None
    api_key: ApiKey | None = None


@dataclass(frozen=True, slots=True, kw_only=True, config=CLOSED)
class PipelineSettings:
    """How ingestion is divided into model calls (docs/models.md), and how much context these get."""

    extraction: Literal["combined", "separate"] = "combined"
    resolution: Literal["batched", "per_node"] = "batched"
    judging: Literal["relation", "statement"] = "relation"
    reflect_rounds: Annotated[int, within(0, 10)] = 0
    previous_episodes: Annotated[int, within(0, 1000)] = 4


@dataclass(frozen=True, slots=True, kw_only=True, config=CLOSED)
class RecordSettings:
    """How records are told apart. key: fields that identify one, before `id`; several separated by commas."""

    key: FilledText | None = None


@dataclass(frozen=True, slots=True, kw_only=True, config=CLOSED)
class RuntimeSettings:
    """Where ingestion runs. window: most episodes in flight; state_mb: most memory for groups' states.

    profile: of the cluster, a TOML file; None = the laptop's.
    """

    backend: Literal["local", "ray"] = "local"
    address: FilledText | None = None
    profile: File | None = None
    window: Whole = 128
    state_mb: Whole = 1024
    chunk_episodes: Whole | None = None
    chunk_requests: Whole | None = None


@dataclass(frozen=True, slots=True, kw_only=True, config=CLOSED)
class OntologySettings:
    """The tables [ontology.relations.NAME] and [ontology.entities.NAME]; the ontology checks their keys."""

    relations: Mapping[str, Table] = field(default_factory=dict)
    entities: Mapping[str, Table] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, config=CLOSED)
class Settings:
    """The whole tree."""

    store: StoreSettings = field(default_factory=StoreSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    embedder: EmbedderSettings = field(default_factory=EmbedderSettings)
    reranker: RerankerSettings = field(default_factory=RerankerSettings)
    pipeline: PipelineSettings = field(default_factory=PipelineSettings)
    records: RecordSettings = field(default_factory=RecordSettings)
    runtime: RuntimeSettings = field(default_factory=RuntimeSettings)
    ontology: OntologySettings = field(default_factory=OntologySettings)


_SECTIONS = {name: kind for name, kind in get_type_hints(Settings).items() if name != "ontology"}
_KINDS: Mapping[str, tuple[Any, ...]] = {  # key -> its type, or the types beside its None
    f"{section}.{name}": get_args(kind) if type(None) in get_args(kind) else (kind,)
    for section, cls in _SECTIONS.items()
    for name, kind in get_type_hints(cls).items()
}
KEYS: tuple[str, ...] = tuple(_KINDS)
# Of sections, tables and keys in the tree: ("model",), ("ontology", "relations"), ("model", "name").
PLACES: tuple[tuple[str, ...], ...] = (
    *((section,) for section in (*_SECTIONS, "ontology")),
    *(("ontology", kind) for kind in ("relations", "entities")),
    *(tuple(key.split(".")) for key in KEYS),
)
SECRETS = frozenset(key for key, kinds in _KINDS.items() if Secret in kinds)
PATHS = frozenset(key for key, kinds in _KINDS.items() if Path in kinds)
NUMBERS = {key: kind for key, kinds in _KINDS.items() for kind in (int, float) if kind in kinds}
_MODEL_SERVER = {
    "base_url": "the server's address, mostly ending in /v1",
    "name": "the model's name as the server knows it",
}
# What a backend cannot work without, and what that is.
_NEEDS: Mapping[tuple[str, str], Mapping[str, str]] = {
    ("store", "neo4j"): {"uri": "the server's address, such as bolt://localhost:7687"},
    ("model", "scripted"): {"script": "the file of answers"},
    ("model", "openai"): _MODEL_SERVER,
    ("model", "vllm"): {"name": "a folder with the model, or its name on the hub"},
    ("embedder", "openai"): _MODEL_SERVER,
    ("reranker", "http"): _MODEL_SERVER,
}


def require(settings: Settings, section: str) -> None:
    """Raise SettingsError for the first key that the section's backend requires and that is not set."""
    chosen = getattr(settings, section)
    for name, what in _NEEDS.get((section, chosen.backend), {}).items():
        if getattr(chosen, name) is None:
            variable = f"KGRAY_{section}_{name}".upper()
            raise SettingsError(
                f'{section}.backend = "{chosen.backend}" needs {section}.{name} ({variable}): {what}.'
            )


def unbuilt(settings: Settings) -> Iterator[str]:
    """Yield one line for each set value that is valid, and that the others leave nothing to do for."""
    if settings.model.backend == "vllm" and settings.runtime.backend != "ray":
        yield (
            'model.backend = "vllm" runs in actors of Ray, and runtime.backend is '
            f'"{settings.runtime.backend}": use "ray", or vLLM\'s own server with model.backend = "openai".'
        )
    chosen = settings.pipeline
    if chosen.extraction == "separate" and settings.model.backend not in {"openai", "vllm"}:
        yield (
            f'pipeline.extraction = "separate" is for a language model, and model.backend is '
            f'"{settings.model.backend}": use "combined".'
        )
    if chosen.reflect_rounds and chosen.extraction != "separate":
        rounds = f"pipeline.reflect_rounds = {chosen.reflect_rounds}"
        yield f'{rounds} is for pipeline.extraction = "separate": use 0.'


def require_built(settings: Settings) -> None:
    """Raise NotBuilt for the first set value that is not implemented in this version."""
    for line in unbuilt(settings):
        raise NotBuilt(line)
