"""The specification of the actors of one store: a cluster profile, settings without secrets, versions.

Actors outlive the command that started them, so a later command compares its own spec with theirs before it
uses them. A spec never has secrets: each actor takes them from the environment of its process.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import platform
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import asdict, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, StrictBool, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from kgray.domain.records import canonical
from kgray.errors import SettingsError
from kgray.settings import KEYS, Settings, load, variable_of
from kgray.settings.checks import (
    CLOSED,
    FilledText,
    Secret,
    error_line,
    fault,
    places,
    read_toml,
    within,
)
from kgray.settings.engine import EngineLimits

if TYPE_CHECKING:
    from kgray.ingest.calls import Parts
    from kgray.ports import Store

DEFAULT_PROFILE = "laptop"
# Kind of worker actors (the first part of an actor's name) -> the table of the profile that configures it.
POOLS = {"models": "extraction", "judges": "judging", "embedder": "embedding", "reranker": "reranking"}
MODEL_TABLES = ("extraction", "judging")  # the tables of workers with a language model
# Keys that cannot change while actors run: the store, the settings that it is built with, and Ray itself.
FIXED = (
    "store.",
    "embedder.backend",
    "embedder.name",
    "embedder.dimensions",
    "embedder.sparse",
    "embedder.device",
    "embedder.precision",
    "profile ray.",
    "the version of",
    "the data folder",
)
# Kind of worker actors -> the keys that its actors use. Actors of the other kinds use all keys.
_USED_BY_MODEL_WORKERS = ("model.", "pipeline.", "prompts.", "records.", "ontology.", "profile engine.")
_USED = {
    "models": (*_USED_BY_MODEL_WORKERS, "profile extraction."),
    "judges": (*_USED_BY_MODEL_WORKERS, "profile judging."),
    "embedder": ("embedder.", "profile embedding."),
    "reranker": ("reranker.", "profile reranking."),
}
_UNUSED = (".workers", ".start_deadline_s")  # keys that the workers themselves do not read
_MAX_COUNT = 100_000
_Count = Annotated[int, within(1, _MAX_COUNT)]
_Share = Annotated[float, within(0.0, _MAX_COUNT)]
_Seconds = Annotated[float, within(0.001, _MAX_COUNT)]


def _workers(value: Any) -> Any:  # noqa: ANN401 - raw user input
    is_range = isinstance(value, Mapping)
    minimum, maximum = (value.get("min"), value.get("max")) if is_range else (value, value)
    is_valid = type(minimum) is type(maximum) is int and int(is_range) <= minimum <= maximum <= _MAX_COUNT
    if not is_valid or (is_range and len(value) > 2):
        example = "{ min = 1, max = 4 } with 1 <= min <= max"
        raise fault(f"a whole number from 0 to {_MAX_COUNT} is needed, or {example}.")
    return value


@dataclass(frozen=True, slots=True, kw_only=True, config=CLOSED)
class RayProfile:
    """A Ray that kgray starts itself; ignored if kgray joins a Ray by its address."""

    cpus: _Count = 4  # logical: at least the sum of the actors' claims; may exceed the machine's
    object_store_mb: _Count = 128
    dashboard: StrictBool = True  # of a Ray that stays up: submitting jobs needs it
    card_gb: _Share = 0.0  # memory of one card, for `kgray doctor --profile`; 0 = none


@dataclass(frozen=True, slots=True, kw_only=True, config=CLOSED)
class SequencerProfile:
    """The number of shards of the groups, and the place of sequencers and writers."""

    shards: _Count = 1  # each has a sequencer and a writer; an embedded store has one writer for all
    cpus: _Share = 0.0  # of each; more than 0 keeps them off a head without CPUs
    memory_mb: Annotated[int, within(0, _MAX_COUNT)] = 0  # of each
    labels: Mapping[FilledText, FilledText] = field(default_factory=dict)  # of the nodes they may run on


@dataclass(frozen=True, slots=True, kw_only=True, config=CLOSED)
class WorkersProfile:
    """Worker actors of one kind, each with these resources.

    No embedding workers = embed in the sequencer's process; no judging workers = extraction workers judge;
    no reranking workers = rerank in the searching process.
    """

    workers: Annotated[int | Mapping[str, int], BeforeValidator(_workers)] = 1  # or {min, max}
    cpus: _Share = 0.5  # of each
    gpus: _Share = 0.0  # a fraction is a claim in Ray's books: the memory of the card is not divided by it
    memory_mb: Annotated[int, within(0, 100_000_000)] = 0  # of the machine, as a claim; 0 = none
    concurrency: _Count = 64  # chunks that a worker takes at a time; one with an engine takes more
    start_deadline_s: _Seconds = 120.0  # to load its model
    labels: Mapping[FilledText, FilledText] = field(default_factory=dict)  # of the nodes it may run on
    env: Mapping[FilledText, FilledText] = field(default_factory=dict)  # of its process; no secret

    @property
    def minimum(self) -> int:
        """The number of workers that always exist."""
        return self.workers if isinstance(self.workers, int) else self.workers["min"]

    @property
    def maximum(self) -> int:
        """The maximum number of workers, while much work is queued."""
        return self.workers if isinstance(self.workers, int) else self.workers["max"]


@dataclass(frozen=True, slots=True, kw_only=True, config=CLOSED)
class TasksProfile:
    """The tasks that render prompts and read replies: `extract_episode` and `resolve_node`."""

    cpus: _Share = 0.1  # of each
    at_once: _Count = 2  # of each sequencer; each needs a process of its own
    linger_ms: _Share = 20.0  # how long a chunk of steps waits for more of its kind
    # The number of tasks of each sequencer with group and sequence in their names; later tasks have neither:
    # Ray keeps a metric of 46 KB for each name while the process lives. The log of each task has both.
    names: Annotated[int, within(0, _MAX_COUNT)] = 1000
    labels: Mapping[FilledText, FilledText] = field(default_factory=dict)  # of the nodes they may run on


@dataclass(frozen=True, slots=True, kw_only=True, config=CLOSED)
class RefreshProfile:
    """The schedules that `kgray up` adds to a store that has none: cron expressions; "" = none."""

    due: str = ""  # of groups whose content is at least one tenth new
    full: str = ""  # of all groups, from nothing
    zone: FilledText = "UTC"


@dataclass(frozen=True, slots=True, kw_only=True, config=CLOSED)
class LimitsProfile:
    """Deadlines, intervals and limits; `_s` is seconds, `_ms` is milliseconds."""

    health_every_s: _Seconds = 5.0  # interval of probes of busy workers, and of searches for missing actors
    # A worker that is silent for this time is restarted, and its work goes to another worker.
    health_deadline_s: _Seconds = 60.0
    # The deadline of a writer for one batch; it must exceed the time of a transaction.
    write_deadline_s: _Seconds = 400.0
    start_deadline_s: _Seconds = 120.0  # for all actors to answer
    pending_writes: _Count = 16  # calls that may queue at the writer; a run has one on its way
    grace_s: _Share = 5.0  # for a run that stops to commit its episodes in flight
    linger_ms: _Share = 2.0  # how long a chunk waits for more of its kind
    idle_s: _Seconds = 300.0  # after this time without work, a surplus worker is ended


@dataclass(frozen=True, slots=True, kw_only=True, config=CLOSED)
class Profile:
    """The whole profile."""

    name: FilledText = DEFAULT_PROFILE
    ray: RayProfile = field(default_factory=RayProfile)
    sequencer: SequencerProfile = field(default_factory=SequencerProfile)
    extraction: WorkersProfile = field(default_factory=lambda: WorkersProfile(workers=2))
    judging: WorkersProfile = field(default_factory=lambda: WorkersProfile(workers=0))
    embedding: WorkersProfile = field(default_factory=WorkersProfile)
    reranking: WorkersProfile = field(default_factory=lambda: WorkersProfile(workers=0))
    tasks: TasksProfile = field(default_factory=TasksProfile)
    engine: EngineLimits = field(default_factory=EngineLimits)
    refresh: RefreshProfile = field(default_factory=RefreshProfile)
    limits: LimitsProfile = field(default_factory=LimitsProfile)

    def values(self) -> dict[str, Any]:
        """Return the profile as plain values, which `profile_of` reads back."""
        return asdict(self)


_PROFILE = TypeAdapter(Profile)


def load_profile(path: Path | None = None) -> Profile:
    """Read a profile; None: the laptop's, which is shipped. Raises SettingsError that names key and file."""
    path = path or shipped()
    return profile_of({"name": path.stem, **read_toml(path, f"cluster profile {path}")}, str(path))


def shipped() -> Path:
    """Return the path of the laptop's profile: in the installed package, or next to it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    folder = package / "cluster"
    return (folder if folder.is_dir() else package.parent / "cluster") / f"{DEFAULT_PROFILE}.toml"


def profile_of(values: Mapping[str, Any], source: str) -> Profile:
    """Return the profile that plain values describe; source: named in errors. Raises SettingsError."""
    try:
        profile = _PROFILE.validate_python(values)
    except ValidationError as error:
        line = error_line(error, source, places(Profile), subject="a key of a cluster profile")
        raise SettingsError(line) from None
    if not profile.extraction.workers:  # reading needs a worker; embedding may do without
        raise SettingsError(
            f"extraction.workers = 0 in {source}: a whole number from 1 to {_MAX_COUNT} is needed."
        )
    cards = profile.engine.cards
    for table in MODEL_TABLES:
        pool: WorkersProfile = getattr(profile, table)
        if cards > 1 and pool.workers and pool.gpus != cards:
            raise SettingsError(
                f"{table}.gpus = {pool.gpus:g} in {source}: {_cards_of(profile.engine)} needs {cards}."
            )
    return profile


def _cards_of(engine: EngineLimits) -> str:
    """Return the setting that gives an engine several cards, for a message."""
    stages = engine.cards // engine.tensor_parallel
    across = f" with engine.args.pipeline_parallel_size = {stages}" if stages > 1 else ""
    return f"engine.tensor_parallel = {engine.tensor_parallel}{across}"


_MAX_VALUE_TEXT = 60  # characters of a value in a message
# Page cache of the embedded store: an actor loads groups and writes, and never searches.
_CACHE_MB = 8


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentSpec:
    """The specification of a deployment: plain values without secrets, so that Ray may transport them."""

    values: Mapping[str, Any]  # settings by key, paths absolute
    relations: Mapping[str, Any]  # the ontology's tables
    entities: Mapping[str, Any]
    secrets: tuple[str, ...]  # keys of the secret settings that are set
    store: str  # see `store_identity`
    data: str  # the data folder, absolute
    profile: Mapping[
        str, Any
    ]  # the cluster profile as plain values; the property `cluster` returns it as a `Profile`
    versions: Mapping[str, str]  # of kgray, ray and Python

    def settings(self, environ: Mapping[str, str] | None = None) -> Settings:
        """Return the settings, with the secrets of this environment; SettingsError if it lacks a secret."""
        variables = os.environ if environ is None else environ
        for key in self.secrets:
            if not variables.get(variable_of(key)):
                raise SettingsError(
                    f"{key} is set where the command runs, and {variable_of(key)} is not set where Ray's "
                    f"processes run: set it there before Ray starts, or use a file that they can read."
                )
        secrets = {variable_of(key): variables[variable_of(key)] for key in self.secrets}
        overrides = {**self.values, "relations": self.relations, "entities": self.entities}
        return load(None, environ=secrets, overrides=overrides)

    def environ(self) -> dict[str, str]:
        """Return these settings as variables of a job; its node has the secrets in its environment."""
        # The job runs in that Ray, and its actors have the profile.
        needless = {"runtime.address", "runtime.profile"}
        values = {variable_of(key): str(value) for key, value in self.values.items() if key not in needless}
        return values | {variable_of("runtime.backend"): "ray"} | _tables(self.relations, self.entities)

    def parts(self) -> Parts:
        """Open the store and build the models in this process. Raises as these steps do."""
        from kgray.runtime.wiring import ingesting, open_reader

        return ingesting(open_reader(self.settings(), Path(self.data), cache_mb=_CACHE_MB))

    def open_store(self) -> Store:
        """Open the store in this process, without models. Raises as that does."""
        from kgray.runtime.wiring import open_reader

        return open_reader(self.settings(), Path(self.data), cache_mb=_CACHE_MB).store

    def with_shards(self, shards: int) -> DeploymentSpec:
        """Return this spec with another number of shards."""
        sequencer = {**self.profile.get("sequencer", {}), "shards": shards}
        return dataclasses.replace(self, profile={**self.profile, "sequencer": sequencer})

    @property
    def cluster(self) -> Profile:
        """The cluster profile."""
        return profile_of(self.profile, "the deployment")

    @property
    def seats(self) -> int:
        """Concurrent model calls of the minimum number of engines; 0 without engines."""
        if self.values["model.backend"] != "vllm":
            return 0
        profile = self.cluster
        return profile.engine.max_num_seqs * (profile.extraction.minimum + profile.judging.minimum)

    def engine_seats(self, table: str) -> int:
        """Return the concurrent calls of an engine in a worker of a pool; 0: its workers have no engine."""
        has_engine = self.values["model.backend"] == "vllm" and table in MODEL_TABLES
        return self.cluster.engine.max_num_seqs if has_engine else 0

    @property
    def on_one_node(self) -> bool:
        """True if the store is a folder, which only processes of one node can open."""
        return bool(self.values["store.backend"] == "sqlite")

    @property
    def namespace(self) -> str:
        """The Ray namespace of the store's actors; it keeps stores apart."""
        return namespace_of(self.store)


def spec_of(settings: Settings, data: Path, profile: Mapping[str, Any]) -> DeploymentSpec:
    """Return the spec of these settings in this process."""
    values: dict[str, Any] = {}
    secrets = []
    for key, value in _values(settings):
        if isinstance(value, Secret):
            secrets.append(key)
        elif value is not None:
            values[key] = str(value.expanduser().resolve()) if isinstance(value, Path) else value
    return DeploymentSpec(
        values=values,
        relations={name: dict(table) for name, table in settings.ontology.relations.items()},
        entities={name: dict(table) for name, table in settings.ontology.entities.items()},
        secrets=tuple(secrets),
        store=store_identity(settings, data),
        data=str(data.expanduser().resolve()),
        profile=dict(profile),
        versions={name: metadata.version(name) for name in ("kgray", "ray")}
        | {"python": platform.python_version()},
    )


def namespace_of(store: str) -> str:
    """Return the namespace of the store of this identity; the ids of its jobs begin with it, too."""
    return f"kgray-{hashlib.sha256(store.encode()).hexdigest()[:12]}"


def run_of(settings: Settings, data: Path, purpose: str, words: Sequence[str]) -> str:
    """Return the common name of the jobs of one command: store, purpose, and a hash of its words."""
    digest = hashlib.sha256("\0".join(words).encode()).hexdigest()[:8]
    return f"{namespace_of(store_identity(settings, data))}-{purpose}-{digest}"


def store_identity(settings: Settings, data: Path) -> str:
    """Return a text that names the store: the server and its database, or the folder."""
    store = settings.store
    if store.backend == "neo4j":
        return f"neo4j {store.uri} {store.database or ''}"
    return f"sqlite {data.expanduser().resolve()}"


def export_secrets(settings: Settings, environ: MutableMapping[str, str]) -> None:
    """Put the secrets into the environment of a Ray before its start; arguments would show them."""
    for key, value in _values(settings):
        if isinstance(value, Secret):
            environ[variable_of(key)] = value.reveal()


def as_environ(settings: Settings) -> dict[str, str]:
    """Return the settings that are not the defaults as variables, without secrets and without paths."""
    usual, tables = dict(_values(Settings())), settings.ontology
    changed = {
        variable_of(key): str(value)
        for key, value in _values(settings)
        if value is not None and value != usual[key] and not isinstance(value, Secret | Path)
    }
    return changed | _tables(tables.relations, tables.entities)


def _tables(relations: Mapping[str, Any], entities: Mapping[str, Any]) -> dict[str, str]:
    """Return the ontology's tables as variables."""
    variables = {}
    for kind, declared in (("RELATIONS", relations), ("ENTITIES", entities)):
        for name, table in declared.items():
            for key, value in table.items():
                text = ",".join(value) if isinstance(value, list | tuple) else str(value)
                value_text = text.lower() if isinstance(value, bool) else text
                variables[f"KGRAY_ONTOLOGY_{kind}_{name}_{key.upper()}"] = value_text
    return variables


def differences(ours: DeploymentSpec, theirs: DeploymentSpec, *, profile: bool = True) -> list[str]:
    """Return a line for each key that differs between two specs. profile: compare the profile's keys too."""
    mine, remote = _compared(ours, profile=profile), _compared(theirs, profile=profile)
    return [
        f"{key} is {_value_text(mine.get(key))} here and {_value_text(remote.get(key))} there"
        for key in _changed(mine, remote)
    ]


def changed_keys(ours: DeploymentSpec, theirs: DeploymentSpec, kind: str) -> list[str]:
    """Return the keys that differ between two specs and that an actor of this kind uses."""
    keys = _changed(_compared(ours, profile=True), _compared(theirs, profile=True))
    used = _USED.get(kind)
    return keys if used is None else [k for k in keys if k.startswith(used) and not k.endswith(_UNUSED)]


def _changed(mine: Mapping[str, Any], remote: Mapping[str, Any]) -> list[str]:
    return [key for key in sorted(mine.keys() | remote.keys()) if mine.get(key) != remote.get(key)]


def _compared(spec: DeploymentSpec, *, profile: bool) -> dict[str, Any]:
    # The way to find Ray does not change the actors' work.
    free = {"runtime.address", "runtime.backend", "runtime.profile"}
    values = {key: value for key, value in spec.values.items() if key not in free}
    for kind, tables in (("relations", spec.relations), ("entities", spec.entities)):
        values |= {f"ontology.{kind}.{name}": canonical(table) for name, table in tables.items()}
    values |= {f"the version of {name}": value for name, value in spec.versions.items()}
    values |= dict.fromkeys(spec.secrets, "set")
    if spec.on_one_node:
        values["the data folder"] = spec.data
    for section, table in spec.profile.items() if profile else ():
        if section == "refresh":
            continue  # no actor reads it
        if isinstance(table, Mapping):
            keys = table.keys() - {"shards"}  # the store has their number (`kgray scale`)
            values |= {f"profile {section}.{key}": table[key] for key in keys}
        else:
            values[f"profile {section}"] = table
    return values


def _values(settings: Settings) -> Iterator[tuple[str, Any]]:
    for key in KEYS:
        section, name = key.split(".")
        yield key, getattr(getattr(settings, section), name)


def _value_text(value: object) -> str:
    text = "not set" if value is None else str(value)
    return text if len(text) <= _MAX_VALUE_TEXT else f"{text[:_MAX_VALUE_TEXT]}..."
