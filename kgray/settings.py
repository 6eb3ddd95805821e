"""One frozen tree of settings, from TOML, then KGRAY_* variables, then arguments; the later wins.

Every key is a row of a table below: its dataclass field says the type, the choices and the default.
A key that nobody knows, or a value that a key does not take, is an error that names the key as it
was typed and where. What the interface knows and this version has not built is NotBuilt.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args, get_type_hints

from kgray.errors import NotBuilt, SettingsError

DATA_VARIABLE = "KGRAY_DATA"
CONFIG_VARIABLE = "KGRAY_CONFIG"
DEFAULT_DATA = Path("kgray-data")
CONFIG_NAME = "kgray.toml"
_PREFIX = "KGRAY_"
_RELATIONS = "KGRAY_ONTOLOGY_RELATIONS_"
_ENTITIES = "KGRAY_ONTOLOGY_ENTITIES_"
_ONTOLOGY = ("relations", "entities")  # [ontology.relations.NAME], [ontology.entities.NAME]
_Tables = dict[str, dict[str, dict[str, Any]]]  # relations | entities -> NAME -> keys
_RELATION_KEYS = (
    "description",
    "cardinality",
    "object",
    "symmetric",
    "excludes",
    "same_as",
    "inverse_of",
    "subject_type",
    "object_type",
)
_ENTITY_KEYS = ("description", "attributes")
_LISTS = frozenset({"excludes", "attributes"})
_MAX_CONFIG = 1 << 20  # a settings file is a page; anything longer is another file by mistake
_SHOWN_PATH = 200  # characters of a path in a message


class Secret:
    """A text that no message, repr or traceback shows."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        """Wrap the text."""
        self._text = text

    def reveal(self) -> str:
        """Return the text, for the one call that needs it."""
        return self._text

    def __repr__(self) -> str:
        """Return stars."""
        return "Secret('***')"

    def __eq__(self, other: object) -> bool:
        """Compare by the text."""
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        """Hash by the text."""
        return hash(self._text)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """Where the graph lives; all but `backend` are Neo4j's."""

    backend: Literal["sqlite", "neo4j"] = "sqlite"
    uri: str | None = None
    user: str | None = None
    password: Secret | None = None
    password_file: Path | None = None
    database: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """Who extracts and judges. cache_mb: the most that replies kept for backfills may take; 0 = none are."""

    backend: Literal["rules", "scripted", "openai", "vllm"] = "rules"
    script: Path | None = None
    base_url: str | None = None
    name: str | None = None
    api_key: Secret | None = None
    api_key_file: Path | None = None
    timeout_s: float = 120.0
    max_concurrency: int = 32
    patience_s: float = 600.0
    cache_mb: int = 256
    instructions: str | None = None
    instructions_file: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedderSettings:
    """Who turns texts into vectors. dimensions: None = the backend's own (hashing: 1024)."""

    backend: Literal["hashing", "openai", "minilm", "bge"] = "hashing"
    base_url: str | None = None
    name: str | None = None
    api_key: Secret | None = None
    dimensions: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankerSettings:
    """Who orders hits once more."""

    backend: Literal["none", "bge", "http"] = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings:
    """How many calls carry the steps of ingestion."""

    extraction: Literal["combined", "separate"] = "combined"
    resolution: Literal["batched", "per_node"] = "batched"
    judging: Literal["relation", "statement"] = "relation"
    reflect_rounds: int = 0
    previous_episodes: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeSettings:
    """Where the work runs. window: episodes in flight; state_mb: groups' state in memory.

    profile: of the cluster, a TOML file; None = the laptop's.
    """

    backend: Literal["local", "ray"] = "local"
    address: str | None = None
    profile: Path | None = None
    window: int = 128
    state_mb: int = 1024
    chunk_episodes: int | None = None
    chunk_requests: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The whole tree. relations, entities: the tables of [ontology.KIND.NAME], checked by the ontology."""

    store: StoreSettings = field(default_factory=StoreSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    embedder: EmbedderSettings = field(default_factory=EmbedderSettings)
    reranker: RerankerSettings = field(default_factory=RerankerSettings)
    pipeline: PipelineSettings = field(default_factory=PipelineSettings)
    runtime: RuntimeSettings = field(default_factory=RuntimeSettings)
    relations: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: MappingProxyType({}))
    entities: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: MappingProxyType({}))


_SECTIONS: Mapping[str, type[Any]] = {
    "store": StoreSettings,
    "model": ModelSettings,
    "embedder": EmbedderSettings,
    "reranker": RerankerSettings,
    "pipeline": PipelineSettings,
    "runtime": RuntimeSettings,
}
_TYPES: Mapping[str, Any] = {
    f"{section}.{name}": kind
    for section, cls in _SECTIONS.items()
    for name, kind in get_type_hints(cls).items()
}
KEYS: tuple[str, ...] = tuple(_TYPES)
_VARIABLES = {_PREFIX + key.upper().replace(".", "_"): key for key in KEYS}
_SECRETS = frozenset(key for key, kind in _TYPES.items() if Secret in get_args(kind))
# The least a number may be; others may be 1.
_LEAST = {
    "pipeline.reflect_rounds": 0,
    "pipeline.previous_episodes": 0,
    "embedder.dimensions": 16,
    "model.cache_mb": 0,
}
_MOST = {"embedder.dimensions": 65_536, "pipeline.previous_episodes": 1000, "pipeline.reflect_rounds": 10}


def data_folder(asked: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> Path:
    """Return the data folder: as asked, else KGRAY_DATA, else ./kgray-data."""
    return Path(asked or environ.get(DATA_VARIABLE) or DEFAULT_DATA)


def config_file(asked: str | os.PathLike[str] | None, data: Path, environ: Mapping[str, str]) -> Path | None:
    """Return the settings file: as asked, else KGRAY_CONFIG, else kgray.toml in `data` or here, where it is.

    Raises SettingsError where one is named and is not there, and where that cannot be seen.
    """
    named = asked or environ.get(CONFIG_VARIABLE)
    if named:
        if not _is_file(Path(named)):
            source = "--config" if asked else CONFIG_VARIABLE
            raise SettingsError(f"{source} names {str(named)!r}, and there is no such file.")
        return Path(named)
    found = (path for path in (data / CONFIG_NAME, Path(CONFIG_NAME)) if _is_file(path))
    return next(found, None)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError as error:  # a folder on the way that may not be entered, a name that is too long
        shown = str(path) if len(str(path)) < _SHOWN_PATH else f"{str(path)[:_SHOWN_PATH]}..."
        raise SettingsError(f"{shown} cannot be looked for: {error.strerror or error}.") from None


def load(
    config: Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Settings:
    """Read the settings; overrides are keys with a dot or an underscore (`model.script`, `model_script`).

    A path in a settings file is relative to that file. Raises SettingsError.
    """
    values: dict[str, Any] = {}
    tables: _Tables = {kind: {} for kind in _ONTOLOGY}
    if config is not None:
        _read_toml(config, values, tables)
    _read_environ(os.environ if environ is None else environ, values, tables)
    _read_overrides(overrides or {}, values, tables)
    parts = {
        section: cls(**{f.name: values[key] for f in fields(cls) if (key := f"{section}.{f.name}") in values})
        for section, cls in _SECTIONS.items()
    }
    return Settings(**parts, relations=_frozen(tables["relations"]), entities=_frozen(tables["entities"]))


def _frozen(named: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Mapping[str, Any]]:
    return MappingProxyType({name: MappingProxyType(table) for name, table in named.items()})


def public_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that set what is no secret, files by their absolute paths: what may travel."""
    found: dict[str, str] = {}
    for variable, text in environ.items():
        key = _VARIABLES.get(variable)
        if text and (
            (key is not None and key not in _SECRETS) or variable.startswith((_RELATIONS, _ENTITIES))
        ):
            is_path = key is not None and _kind(key) is Path
            found[variable] = str(Path(text).expanduser().absolute()) if is_path else text
    return found


def unbuilt(settings: Settings) -> Iterator[str]:
    """Yield one line for each value that the interface knows and this version has not built."""
    asked = (
        ("store.backend", settings.store.backend, ("sqlite", "neo4j")),
        ("model.backend", settings.model.backend, ("rules", "scripted", "openai")),
        ("embedder.backend", settings.embedder.backend, ("hashing", "openai", "minilm")),
        ("reranker.backend", settings.reranker.backend, ("none",)),
        ("runtime.backend", settings.runtime.backend, ("local", "ray")),
    )
    for key, value, built in asked:
        if value not in built:
            use = " or ".join(map(_quoted, built))
            yield f"{key} = {_quoted(value)} is not built in this version of kgray: use {use}."
    chosen = settings.pipeline
    if chosen.extraction == "separate" and settings.model.backend != "openai":
        yield (
            f'pipeline.extraction = "separate" is for a language model, and model.backend is '
            f'{_quoted(settings.model.backend)}: use "combined".'
        )
    if chosen.reflect_rounds and chosen.extraction != "separate":
        rounds = f"pipeline.reflect_rounds = {chosen.reflect_rounds}"
        yield f'{rounds} is for pipeline.extraction = "separate": use 0.'


def require_built(settings: Settings) -> None:
    """Raise NotBuilt for the first value that this version has not built."""
    for line in unbuilt(settings):
        raise NotBuilt(line)


# ------------------------------------------------------------------------------------- sources


def _read_toml(config: Path, values: dict[str, Any], tables: _Tables) -> None:
    for section, table in _parsed(config).items():
        if section == "ontology":
            _read_ontology(table, str(config), tables)
            continue
        if section not in _SECTIONS:
            raise SettingsError(_unknown(section, [*_SECTIONS, "ontology"], str(config)))
        if not isinstance(table, dict):
            raise SettingsError(
                f"{section} in {config} is not a table: write [{section}] and its keys below it."
            )
        for name, value in table.items():
            key = f"{section}.{name}"
            if key not in _TYPES:
                raise SettingsError(_unknown(key, KEYS, str(config)))
            values[key] = _checked(key, value, key, str(config), config.parent)


def _parsed(config: Path) -> dict[str, Any]:
    try:
        with config.open("rb") as file:
            raw = file.read(_MAX_CONFIG + 1)
        if len(raw) > _MAX_CONFIG:
            raise SettingsError(f"{config} is longer than 1 MiB: it is no settings file.")
        return tomllib.loads(raw.decode("utf-8-sig"))
    except OSError as error:
        raise SettingsError(f"{config} cannot be read: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{config} is not UTF-8 text.") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SettingsError(f"{config} is not valid TOML: {error}.") from None


def _read_ontology(table: object, source: str, tables: _Tables) -> None:
    if not isinstance(table, dict):
        raise SettingsError(f"ontology in {source} is not a table: write [ontology.relations.NAME].")
    for name in table:
        if name not in _ONTOLOGY:
            raise SettingsError(_unknown(f"ontology.{name}", [f"ontology.{k}" for k in _ONTOLOGY], source))
        _read_tables(name, table[name], source, tables[name])


def _read_tables(kind: str, given: object, source: str, named: dict[str, dict[str, Any]]) -> None:
    if not isinstance(given, dict):
        raise SettingsError(f"ontology.{kind} in {source} is not a table: write [ontology.{kind}.NAME].")
    for name, keys in given.items():
        if not isinstance(keys, dict):
            where = f"ontology.{kind}.{name}"
            raise SettingsError(f"{where} in {source} is not a table: write [{where}].")
        named.setdefault(name, {}).update(keys)


def _read_environ(environ: Mapping[str, str], values: dict[str, Any], tables: _Tables) -> None:
    for variable in sorted(environ):
        text = environ[variable]
        if not variable.startswith(_PREFIX) or variable.startswith("KGRAY_TEST_"):
            continue
        if variable in (DATA_VARIABLE, CONFIG_VARIABLE):
            continue
        if variable.startswith(_RELATIONS):
            name, key = _table_variable(variable, _RELATIONS, _RELATION_KEYS)
            tables["relations"].setdefault(name, {})[key] = _table_value(variable, key, text)
        elif variable.startswith(_ENTITIES):
            typed, key = _table_variable(variable, _ENTITIES, _ENTITY_KEYS)
            # Variables are mostly typed in capitals, and labels are CamelCase: a declared one is meant.
            name = next((n for n in tables["entities"] if n.casefold() == typed.casefold()), typed)
            tables["entities"].setdefault(name, {})[key] = _table_value(variable, key, text)
        elif variable not in _VARIABLES:
            raise SettingsError(
                _unknown(variable, [*_VARIABLES, DATA_VARIABLE, CONFIG_VARIABLE], "the environment")
            )
        elif text:  # set and empty is how shells and compose files say "not set"
            key = _VARIABLES[variable]
            values[key] = _checked(key, _from_text(key, text), variable, "the environment", None)


def _table_variable(variable: str, prefix: str, keys: tuple[str, ...]) -> tuple[str, str]:
    for key in keys:
        name = variable.removeprefix(prefix).removesuffix(f"_{key.upper()}")
        if name and len(name) < len(variable) - len(prefix):
            return name, key
    near = [f"{prefix}NAME_{key.upper()}" for key in keys]
    raise SettingsError(_unknown(variable, near, "the environment"))


def _table_value(variable: str, key: str, text: str) -> object:
    if key in _LISTS:
        return [name.strip() for name in text.split(",") if name.strip()]
    if key == "symmetric":
        if text.lower() not in ("true", "false"):
            raise SettingsError(f"{variable} = {text!r} in the environment: use true or false.")
        return text.lower() == "true"
    return text


def _read_overrides(overrides: Mapping[str, Any], values: dict[str, Any], tables: _Tables) -> None:
    spelled = {key.replace(".", "_"): key for key in KEYS}
    for typed, value in overrides.items():
        kind = typed.removeprefix("ontology_")
        if kind in _ONTOLOGY:
            _read_tables(kind, value, "the arguments", tables[kind])
            continue
        key = spelled.get(typed.replace(".", "_"))
        if key is None:
            raise SettingsError(_unknown(typed, [*spelled], "the arguments"))
        if value is None:
            values.pop(key, None)
        else:
            values[key] = _checked(key, value, typed, "the arguments", None)


# -------------------------------------------------------------------------------------- values


def _unknown(typed: str, known: Iterable[str], source: str) -> str:
    near = difflib.get_close_matches(typed, list(known), n=1, cutoff=0.0)
    return f"{typed} in {source} is not a setting. The nearest one is {near[0]}."


def _quoted(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def _kind(key: str) -> Any:  # noqa: ANN401 - a type, or a Literal of choices
    """Return the type of a key without its None."""
    kind = _TYPES[key]
    options = get_args(kind)
    return next(option for option in options if option is not type(None)) if type(None) in options else kind


def _from_text(key: str, text: str) -> object:
    """Return what a variable's text means for the type of its key; the text itself where it means nothing."""
    kind = _kind(key)
    try:
        if kind is int:
            return int(text)
        if kind is float:
            return float(text)
    except ValueError:
        pass
    return text


def _checked(key: str, value: object, typed: str, source: str, folder: Path | None) -> object:
    """Return a value in the type of its key. Raises SettingsError that names the key as typed."""
    kind = _kind(key)
    shown = "***" if key in _SECRETS else _quoted(value)[:120]
    wrong = f"{typed} = {shown} in {source}: "
    if kind in (int, float):
        return _number(key, value, wrong, whole=kind is int)
    if kind is Secret and isinstance(value, Secret):
        return value
    if kind is Path and isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, str):
        raise SettingsError(wrong + "a text in quotes is needed.")
    if choices := get_args(kind):
        if value not in choices:
            raise SettingsError(wrong + f"use one of {', '.join(map(_quoted, choices))}.")
        return value
    if not value or "\0" in value:
        raise SettingsError(wrong + "a text that is not empty is needed.")
    if kind is Secret:
        return Secret(value)
    if kind is Path:
        path = Path(value).expanduser()
        return path if folder is None else folder / path
    return value


def _number(key: str, value: object, wrong: str, *, whole: bool) -> int | float:
    least, most = _LEAST.get(key, 1), _MOST.get(key, 1_000_000)
    kinds = int if whole else int | float
    if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value <= most:
        raise SettingsError(
            wrong + f"a {'whole number' if whole else 'number'} from {least} to {most} is needed."
        )
    return value if whole else float(value)
