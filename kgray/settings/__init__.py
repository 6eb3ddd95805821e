"""A frozen tree of settings, from TOML, then KGRAY_* variables, then arguments; the later source wins."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError
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
    WholeNumber,
    error_line,
    places,
    read_toml,
    unknown_key,
    within,
)

Table = Mapping[str, Any]
Device = Literal["cpu", "cuda"]
Precision = Literal["fp32", "fp16", "bf16"]


@dataclass(frozen=True, slots=True, kw_only=True, config=CLOSED)
class StoreSettings:
    """The store of the graph; all keys but `backend` are for Neo4j."""

    backend: Literal["sqlite", "neo4j"] = "sqlite"
    uri: Uri | None = None
    user: FilledText | None = None
    password: Password | None = None
    password_file: File | None = None
    database: FilledText | None = None


@dataclass(frozen=True, slots=True, kw_only=True, config=CLOSED)
class ModelSettings:
    """The extractor and judge."""

    backend: Literal["rules", "scripted", "openai", "vllm"] = "rules"
    script: File | None = None
    base_url: Url | None = None
    name: FilledText | None = None
    api_key: ApiKey | None = None
    api_key_file: File | None = None
    timeout_s: Seconds = 120.0
    max_concurrency: WholeNumber = 32
    patience_s: Seconds = 600.0
    instructions: FilledText | None = None
    instructions_file: File | None = None


@dataclass(frozen=True, slots=True, kw_only=True, config=CLOSED)
class EmbedderSettings:
    """The embedder."""

    backend: Literal["hashing", "openai", "minilm", "bge"] = "hashing"
    base_url: Url | None = None
    name: FilledText | None = None
    api_key: ApiKey | None = None
    dimensions: Annotated[int, within(16, 65_536)] | None = None  # None = the backend's or the server's
    sparse: bool = True  # `bge` also weighs a text's tokens; other backends cannot
    # Of `bge`. None = the card in fp16 if the process sees one, else the processor in fp32.
    # A value that is set is part of the identity of vectors.
    device: Device | None = None
    precision: Precision | None = None


@dataclass(frozen=True, slots=True, kw_only=True, config=CLOSED)
class RerankerSettings:
    """The model that orders the hits of the recipe `reranked`."""

    backend: Literal["none", "bge", "http"] = "none"
    base_url: Url | None = None
    name: FilledText | None = None
    api_key: ApiKey | None = None
    device: Device | None = None  # of `bge`, as that of the embedder
    precision: Precision | None = None


@dataclass(frozen=True, slots=True, kw_only=True, config=CLOSED)
class PipelineSettings:
    """The division of ingestion into model calls (docs/models.md), and the context of each call.

    unit_tokens     maximum tokens of a text that a language model reads in a single call; 0 = no limit. The
                    reply of a call has at most 4,096 tokens: enough for the facts of 1,600 tokens of text
    unit_overlap    tokens of a text unit that the next unit repeats: four or five sentences
    """

    extraction: Literal["combined", "separate"] = "combined"
    resolution: Literal["batched", "per_node"] = "batched"
    reflect_rounds: Annotated[int, within(0, 10)] = 0
    previous_episodes: Annotated[int, within(0, 1000)] = 4
    unit_tokens: Annotated[int, within(0)] = 1200
    unit_overlap: Annotated[int, within(0)] = 100


@dataclass(frozen=True, slots=True, kw_only=True, config=CLOSED)
class PromptSettings:
    """The prompts. folder: the user's files, which replace shipped prompts of the same name."""

    folder: File | None = None


@dataclass(frozen=True, slots=True, kw_only=True, config=CLOSED)
class RecordSettings:
    """The identity of records. key: fields that identify a record, before `id`; separated by commas."""

    key: FilledText | None = None


@dataclass(frozen=True, slots=True, kw_only=True, config=CLOSED)
class RuntimeSettings:
    """The place of ingestion: this process or Ray."""

    backend: Literal["local", "ray"] = "local"
    address: FilledText | None = None
    profile: File | None = None  # of the cluster, a TOML file; None = the laptop's
    window: WholeNumber = 128  # most episodes in flight
    state_mb: WholeNumber = 1024  # most memory for groups' states
    chunk_episodes: WholeNumber | None = None
    chunk_requests: WholeNumber | None = None


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
    prompts: PromptSettings = field(default_factory=PromptSettings)
    records: RecordSettings = field(default_factory=RecordSettings)
    runtime: RuntimeSettings = field(default_factory=RuntimeSettings)
    ontology: OntologySettings = field(default_factory=OntologySettings)


_PLACES = tuple(places(Settings))  # of sections and keys: ("model",), ("model", "name"), ...
KEYS = tuple(".".join(place) for place in _PLACES if len(place) == 2 and place[0] != "ontology")
_KINDS = {  # key -> its type, and the members of an optional type
    key: (kind, *get_args(kind))
    for key in KEYS
    for section, name in [key.split(".")]
    for kind in [get_type_hints(get_type_hints(Settings)[section])[name]]
}
_SECRETS = {key for key, kinds in _KINDS.items() if Secret in kinds}
_PATHS = {key for key, kinds in _KINDS.items() if Path in kinds}
_MODEL_SERVER = {
    "base_url": "the server's address, mostly ending in /v1",
    "name": "the model's name on the server",
}
# Required keys by section and backend, with a description.
_NEEDS: Mapping[tuple[str, str], Mapping[str, str]] = {
    ("store", "neo4j"): {"uri": "the server's address, such as bolt://localhost:7687"},
    ("model", "scripted"): {"script": "the file of answers"},
    ("model", "openai"): _MODEL_SERVER,
    ("model", "vllm"): {"name": "a folder with the model, or its name on the hub"},
    ("embedder", "openai"): _MODEL_SERVER,
    ("reranker", "http"): _MODEL_SERVER,
}


def require(settings: Settings, section: str) -> None:
    """Raise SettingsError for the first missing key that the section's backend requires."""
    chosen = getattr(settings, section)
    for name, description in _NEEDS.get((section, chosen.backend), {}).items():
        if getattr(chosen, name) is None:
            variable = f"KGRAY_{section}_{name}".upper()
            raise SettingsError(
                f'{section}.backend = "{chosen.backend}" needs {section}.{name} ({variable}): {description}.'
            )


def unbuilt(settings: Settings) -> Iterator[str]:
    """Yield a line for each valid value that has no effect because of other settings."""
    if settings.model.backend == "vllm" and settings.runtime.backend != "ray":
        yield (
            'model.backend = "vllm" runs in actors of Ray, and runtime.backend is '
            f'"{settings.runtime.backend}": use "ray", or vLLM\'s own server with model.backend = "openai".'
        )
    if settings.model.backend in {"openai", "vllm"}:
        return
    chosen, model = settings.pipeline, f'model.backend is "{settings.model.backend}"'
    if chosen.extraction == "separate":
        yield f'pipeline.extraction = "separate" is for a language model, and {model}: use "combined".'
    if chosen.reflect_rounds:
        rounds = f"pipeline.reflect_rounds = {chosen.reflect_rounds}"
        yield f"{rounds} is for a language model, and {model}: use 0."


def require_built(settings: Settings) -> None:
    """Raise NotBuilt for the first set value that is not implemented in this version."""
    for line in unbuilt(settings):
        raise NotBuilt(line)


DATA_VARIABLE, CONFIG_VARIABLE = "KGRAY_DATA", "KGRAY_CONFIG"
CONFIG_NAME = "kgray.toml"
_TABLES = "KGRAY_ONTOLOGY_"  # KGRAY_ONTOLOGY_RELATIONS_NAME_KEY
_TABLE_KEYS: Mapping[str, tuple[str, ...]] = {
    "relations": (
        *("description", "cardinality", "object", "symmetric", "excludes", "same_as", "inverse_of"),
        *("subject_type", "object_type", "independent", "may_end"),
    ),
    "entities": ("description", "attributes"),
}
_ENVIRONMENT, _ARGUMENTS = "the environment", "the arguments"
_MAX_PATH_TEXT = 200
_Tree = dict[str, Any]  # section -> key -> value

_SETTINGS = TypeAdapter(Settings)


def variable_of(key: str) -> str:
    """Return the variable that sets a key."""
    return "KGRAY_" + key.upper().replace(".", "_")


_VARIABLES = {variable_of(key): key for key in KEYS}


def data_folder(requested: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> Path:
    """Return the data folder: the requested folder, else KGRAY_DATA, else ./kgray-data."""
    return Path(requested or environ.get(DATA_VARIABLE) or "kgray-data")


def config_file(
    requested: str | os.PathLike[str] | None, data: Path, environ: Mapping[str, str]
) -> Path | None:
    """Return the settings file: requested, of KGRAY_CONFIG, or kgray.toml in `data` or the current folder."""
    if named := requested or environ.get(CONFIG_VARIABLE):
        if not _is_file(Path(named)):
            source = "--config" if requested else CONFIG_VARIABLE
            raise SettingsError(f"{source} names {str(named)!r}, and there is no such file.")
        return Path(named)
    return next(filter(_is_file, (data / CONFIG_NAME, Path(CONFIG_NAME))), None)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError as error:  # a parent folder without permission, a name that is too long
        name = str(path) if len(str(path)) < _MAX_PATH_TEXT else f"{str(path)[:_MAX_PATH_TEXT]}..."
        raise SettingsError(f"{name} cannot be opened: {error.strerror or error}.") from None


def load(
    config: Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Settings:
    """Read the settings; a path in a settings file is relative to that file. Raises SettingsError.

    overrides: keys with a dot or an underscore; `relations` and `entities` mean the ontology's tables
    """
    values = read_toml(config, str(config)) if config else {}
    for key in _PATHS:
        section, name = key.split(".")
        table = values.get(section)
        if config and isinstance(table, dict) and isinstance(text := table.get(name), str) and text:
            table[name] = config.parent / Path(text).expanduser()
    _check(values, str(config), ".".join)
    tree = _from_environ(os.environ if environ is None else environ, values)
    _check(tree, _ENVIRONMENT, lambda place: variable_of(".".join(place)))
    values = _merged(values, tree)
    keys = {"_".join(place): place for place in _PLACES if len(place) > 1}
    keys |= {kind: ("ontology", kind) for kind in _TABLE_KEYS}
    tree = {}
    for typed, value in (overrides or {}).items():
        if (place := keys.get(typed.replace(".", "_"))) is None:
            raise SettingsError(unknown_key(typed, _ARGUMENTS, [key.replace(".", "_") for key in KEYS]))
        section, name = place
        # None restores the default, against other sources.
        default = getattr(getattr(Settings(), section), name)
        tree.setdefault(section, {})[name] = default if value is None else value
    _check(tree, _ARGUMENTS, "_".join)
    settings = _SETTINGS.validate_python(_merged(values, tree), context=True)
    pipeline = settings.pipeline
    if pipeline.unit_tokens and pipeline.unit_overlap >= pipeline.unit_tokens:
        raise SettingsError(
            f"pipeline.unit_overlap = {pipeline.unit_overlap} is as long as a text unit "
            f"(pipeline.unit_tokens = {pipeline.unit_tokens}): set a smaller overlap."
        )
    return settings


def _check(tree: _Tree, source: str, spelled: Callable[[Sequence[str]], str]) -> None:
    """Check a source separately, so that its errors are reported even if a later source overrides them."""
    try:
        _SETTINGS.validate_python(tree, context=source == _ENVIRONMENT)  # its numbers are texts
    except ValidationError as error:
        raise SettingsError(error_line(error, source, _PLACES, spelled=spelled)) from None


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> _Tree:
    """Merge two trees; if both have a value, the value of `over` wins."""
    both = {
        name: _merged(under[name], value)
        for name, value in over.items()
        if isinstance(value, Mapping) and isinstance(under.get(name), Mapping)
    }
    return {**under, **over, **both}


def _from_environ(environ: Mapping[str, str], declared: Mapping[str, Any]) -> _Tree:
    """Return the values of the variables; declared: the values of the settings file."""
    values: _Tree = {}
    none = (DATA_VARIABLE, CONFIG_VARIABLE)
    for variable, text in sorted(environ.items()):
        if not variable.startswith("KGRAY_") or variable.startswith("KGRAY_TEST_") or variable in none:
            continue
        if variable.startswith(_TABLES):
            values = _merged(values, _from_table_variable(variable, text, declared))
        elif variable not in _VARIABLES:
            raise SettingsError(unknown_key(variable, _ENVIRONMENT, (*_VARIABLES, *none)))
        elif text:  # an empty variable counts as not set, like in shells and compose files
            section, name = _VARIABLES[variable].split(".")
            values.setdefault(section, {})[name] = text
    return values


def _from_table_variable(variable: str, text: str, declared: Mapping[str, Any]) -> _Tree:
    """Return the tree of a variable such as KGRAY_ONTOLOGY_RELATIONS_OWNS_OBJECT."""
    for kind, keys in _TABLE_KEYS.items():
        form = f"{_TABLES}{kind}_(.+)_({'|'.join(keys)})".upper()
        if (match := re.fullmatch(form, variable)) is None:
            continue
        name, key = match[1], match[2].lower()
        # Variables are mostly in capitals, labels in CamelCase: match declared labels ignoring case.
        labels = declared.get("ontology", {}).get("entities", {}) if kind == "entities" else ()
        name = next((label for label in labels if label.casefold() == name.casefold()), name)
        value: object = text
        if key == "symmetric":
            value = {"true": True, "false": False}.get(text.lower(), text)
        elif key in ("excludes", "independent", "may_end", "attributes"):
            value = [item.strip() for item in text.split(",") if item.strip()]
        return {"ontology": {kind: {name: {key: value}}}}
    near = [f"{_TABLES}{kind}_NAME_{key}".upper() for kind, keys in _TABLE_KEYS.items() for key in keys]
    raise SettingsError(unknown_key(variable, _ENVIRONMENT, near))


def public_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without secrets, which may be sent to other machines; paths become absolute."""
    public: dict[str, str] = {}
    for variable, text in environ.items():
        key = _VARIABLES.get(variable)
        if text and (variable.startswith(_TABLES) or (key is not None and key not in _SECRETS)):
            public[variable] = str(Path(text).expanduser().absolute()) if key in _PATHS else text
    return public


def portable_toml(config: Path) -> str:
    """Return a settings file as TOML without secrets and without [store]: a copy has its own store."""
    values = read_toml(config, str(config))
    values.pop("store", None)
    for key in _SECRETS:
        section, name = key.split(".")
        values.get(section, {}).pop(name, None)
    return "".join(_toml(values))


def _toml(table: Mapping[str, Any], *place: str) -> Iterator[str]:
    """Yield the lines of a table and its subtables. Texts, numbers and lists are alike in JSON and TOML."""
    if place:
        yield f"[{'.'.join(json.dumps(name, ensure_ascii=False) for name in place)}]\n"
    for name, value in table.items():
        if not isinstance(value, Mapping):
            yield f"{json.dumps(name, ensure_ascii=False)} = {json.dumps(value, ensure_ascii=False)}\n"
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _toml(value, *place, name)
