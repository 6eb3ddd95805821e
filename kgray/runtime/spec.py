"""What the actors of one store are built from: a cluster profile, settings without secrets, versions.

Actors outlive the command that started them, so a later command compares its own spec with theirs before it
uses them. Secrets are never in a spec: each actor takes them from the environment of its process.
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

from kgray.errors import SettingsError
from kgray.records import canonical
from kgray.settings import KEYS, EngineLimits, Settings, load, variable_of
from kgray.settings.checks import CLOSED, FilledText, Secret, fault, one_line, places, read_toml, within

if TYPE_CHECKING:
    from kgray.ingest.parts import Parts
    from kgray.ports import Store

DEFAULT_PROFILE = "laptop"
# Kind of worker actors, the first part of their names -> its table of the profile.
POOLS = {"models": "extraction", "judges": "judging", "embedder": "embedding", "reranker": "reranking"}
READING = ("extraction", "judging")  # those of a language model
# Keys that cannot change while actors run: the store, what it is built with, and Ray itself.
FIXED = (
    "store.",
    "embedder.backend",
    "embedder.name",
    "embedder.dimensions",
    "embedder.sparse",
    "profile ray.",
    "the version of",
    "the data folder",
)
# Kind of worker actors -> the keys that its actors use. Actors of the other kinds use all keys.
_READER = ("model.", "pipeline.", "prompts.", "records.", "ontology.", "profile engine.")
_USED = {
    "models": (*_READER, "profile extraction."),
    "judges": (*_READER, "profile judging."),
    "embedder": ("embedder.", "profile embedding."),
    "reranker": ("reranker.", "profile reranking."),
}
_UNUSED = (".workers", ".start_deadline_s")  # by the workers themselves
_MOST = 100_000
_Whole = Annotated[int, within(1, _MOST)]
_Share = Annotated[float, within(0.0, _MOST)]
_Seconds = Annotated[float, within(0.001, _MOST)]


def _workers(value: Any) -> Any:  # noqa: ANN401 - what a user wrote
    spread = isinstance(value, Mapping)
    least, most = (value.get("min"), value.get("max")) if spread else (value, value)
    whole = type(least) is type(most) is int and int(spread) <= least <= most <= _MOST
    if not whole or (spread and len(value) > 2):
        raise fault(f"a whole number from 0 to {_MOST} is needed, or {{ min = 1, max = 4 }}.")
    return value


@dataclass(frozen=True, slots=True, kw_only=True, config=CLOSED)
class RayProfile:
    """A Ray that kgray starts itself; ignored where one is joined by its address."""

    cpus: _Whole = 4  # logical: what actors ask for adds up to less; may be more than the machine has
    object_store_mb: _Whole = 128
    dashboard: StrictBool = True  # of a Ray that stays up: what submits jobs needs it
    card_gb: _Share = 0.0  # memory of one card, for `kgray doctor --profile`; 0 = none


@dataclass(frozen=True, slots=True, kw_only=True, config=CLOSED)
class SequencerProfile:
    """How groups are divided, and where sequencers and writers stand."""

    shards: _Whole = 1  # each has a sequencer, and a writer too; an embedded store has one for all
    cpus: _Share = 0.0  # of each; more than 0 keeps them off a head without CPUs
    memory_mb: Annotated[int, within(0, _MOST)] = 0  # of each
    labels: Mapping[FilledText, FilledText] = field(default_factory=dict)  # of the nodes they may stand on


@dataclass(frozen=True, slots=True, kw_only=True, config=CLOSED)
class WorkersProfile:
    """Worker actors of one kind, each with these resources.

    0 workers that embed = in the sequencer's own process; 0 that judge = those that extract judge too;
    0 that rerank = in the process that searches.
    """

    workers: Annotated[int | Mapping[str, int], BeforeValidator(_workers)] = 1  # or {min, max}
    cpus: _Share = 0.5  # of each
    gpus: _Share = 0.0  # a fraction is a claim in Ray's books: the memory of the card is not divided by it
    memory_mb: Annotated[int, within(0, 100_000_000)] = 0  # of the machine, as a claim; 0 = none
    concurrency: _Whole = 64  # chunks that one takes at a time
    start_deadline_s: _Seconds = 120.0  # to load its model
    labels: Mapping[FilledText, FilledText] = field(default_factory=dict)  # of the nodes it may run on
    env: Mapping[FilledText, FilledText] = field(default_factory=dict)  # of its process; no secret

    @property
    def least(self) -> int:
        """How many there are at any time."""
        return self.workers if isinstance(self.workers, int) else self.workers["min"]

    @property
    def most(self) -> int:
        """How many there are where much waits."""
        return self.workers if isinstance(self.workers, int) else self.workers["max"]


@dataclass(frozen=True, slots=True, kw_only=True, config=CLOSED)
class TasksProfile:
    """The tasks that render prompts and read replies: `extract_episode` and `resolve_node`."""

    cpus: _Share = 0.1  # of each
    at_once: _Whole = 2  # of each sequencer; each needs a process of its own
    linger_ms: _Share = 20.0  # how long a chunk of steps waits for more of its kind
    # So many tasks of each sequencer have group and sequence in their names, then none: Ray keeps a metric
    # for each name, 46 KB, as long as the process lives. The log of each task has both.
    names: Annotated[int, within(0, _MOST)] = 1000
    labels: Mapping[FilledText, FilledText] = field(default_factory=dict)  # of the nodes they may run on


@dataclass(frozen=True, slots=True, kw_only=True, config=CLOSED)
class RefreshProfile:
    """The schedules that `kgray up` adds to a store that has none: cron expressions; "" = none."""

    due: str = ""  # of the groups of which a tenth is new
    full: str = ""  # of all groups, from nothing
    zone: FilledText = "UTC"


@dataclass(frozen=True, slots=True, kw_only=True, config=CLOSED)
class LimitsProfile:
    """Deadlines and restarts, in seconds."""

    health_every_s: _Seconds = 5.0  # how often busy workers are asked if they live, missing actors looked for
    health_deadline_s: _Seconds = 60.0  # no answer for so long: it is restarted, its work goes to another
    write_deadline_s: _Seconds = 400.0  # the same for a writer's batch: longer than a transaction takes
    start_deadline_s: _Seconds = 120.0  # for all actors to answer
    pending_writes: _Whole = 16  # calls that may queue at the writer; a run has one on its way
    grace_s: _Share = 5.0  # a run that is asked to stop commits what it has in flight for so long
    linger_ms: _Share = 2.0  # how long a chunk waits for more of its kind
    idle_s: _Seconds = 300.0  # without work for so long, a worker beyond the least is ended


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
    """Return the laptop's profile: inside the installed package, or beside it in a checkout."""
    here = Path(__file__).resolve().parent.parent
    inside = here / "cluster"
    return (inside if inside.is_dir() else here.parent / "cluster") / f"{DEFAULT_PROFILE}.toml"


def profile_of(values: Mapping[str, Any], source: str) -> Profile:
    """Return the profile that plain values describe; source: named in errors. Raises SettingsError."""
    try:
        found = _PROFILE.validate_python(values)
    except ValidationError as error:
        line = one_line(error, source, places(Profile), what="a key of a cluster profile")
        raise SettingsError(line) from None
    if not found.extraction.workers:  # reading needs a worker; embedding may do without
        raise SettingsError(
            f"extraction.workers = 0 in {source}: a whole number from 1 to {_MOST} is needed."
        )
    cards = found.engine.tensor_parallel
    for table in READING:
        of: WorkersProfile = getattr(found, table)
        if cards > 1 and of.workers and of.gpus != cards:
            raise SettingsError(
                f"{table}.gpus = {of.gpus:g} in {source}: engine.tensor_parallel = {cards} needs {cards}."
            )
    return found


_SHOWN = 60  # characters of a value in a message
# Page cache of the embedded store: an actor loads groups and writes, and never searches.
_CACHE_MB = 8


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentSpec:
    """What a deployment is built from: plain values, none of them secret, so Ray may transport them."""

    values: Mapping[str, Any]  # settings by key, paths absolute
    relations: Mapping[str, Any]  # the ontology's tables
    entities: Mapping[str, Any]
    secrets: tuple[str, ...]  # keys of the secret settings that are set
    store: str  # see `store_identity`
    data: str  # the data folder, absolute
    profile: Mapping[str, Any]  # the cluster profile's values
    versions: Mapping[str, str]  # of kgray, ray and Python

    def settings(self, environ: Mapping[str, str] | None = None) -> Settings:
        """Return the settings, with the secrets of this environment; SettingsError where it lacks one."""
        found = os.environ if environ is None else environ
        for key in self.secrets:
            if not found.get(variable_of(key)):
                raise SettingsError(
                    f"{key} is set where the command runs, and {variable_of(key)} is not set where Ray's "
                    f"processes run: set it there before Ray starts, or use a file that they can read."
                )
        kept = {variable_of(key): found[variable_of(key)] for key in self.secrets}
        overrides = {**self.values, "relations": self.relations, "entities": self.entities}
        return load(None, environ=kept, overrides=overrides)

    def environ(self) -> dict[str, str]:
        """Return these settings as variables of a job; its node has the secrets in its environment."""
        where = {
            "runtime.address",
            "runtime.profile",
        }  # the job is in the Ray, and its actors have the profile
        values = {variable_of(key): str(value) for key, value in self.values.items() if key not in where}
        return values | {variable_of("runtime.backend"): "ray"} | _tables(self.relations, self.entities)

    def parts(self) -> Parts:
        """Open the store and build the models in this process. Raises as these steps do."""
        from kgray.wiring import ingesting, open_reader

        return ingesting(open_reader(self.settings(), Path(self.data), cache_mb=_CACHE_MB))

    def open_store(self) -> Store:
        """Open the store in this process, without models. Raises as that does."""
        from kgray.wiring import open_reader

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
        """Calls of a language model that the engines there are at least work on; 0 without engines."""
        if self.values["model.backend"] != "vllm":
            return 0
        profile = self.cluster
        return profile.engine.max_num_seqs * (profile.extraction.least + profile.judging.least)

    @property
    def on_one_node(self) -> bool:
        """Whether the store is a folder, which only processes of one node can open."""
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


def run_of(settings: Settings, data: Path, what: str, words: Sequence[str]) -> str:
    """Return the common name of the jobs of one command: store, purpose, and a hash of its words."""
    digest = hashlib.sha256("\0".join(words).encode()).hexdigest()[:8]
    return f"{namespace_of(store_identity(settings, data))}-{what}-{digest}"


def store_identity(settings: Settings, data: Path) -> str:
    """Return a text that names the store: the server and its database, or the folder."""
    store = settings.store
    if store.backend == "neo4j":
        return f"neo4j {store.uri} {store.database or ''}"
    return f"sqlite {data.expanduser().resolve()}"


def export_secrets(settings: Settings, environ: MutableMapping[str, str]) -> None:
    """Put the secrets into the environment of a Ray that is to be started; arguments would show them."""
    for key, value in _values(settings):
        if isinstance(value, Secret):
            environ[variable_of(key)] = value.reveal()


def as_environ(settings: Settings) -> dict[str, str]:
    """Return the settings that are not the defaults as variables, without secrets and without paths."""
    usual, tables = dict(_values(Settings())), settings.ontology
    found = {
        variable_of(key): str(value)
        for key, value in _values(settings)
        if value is not None and value != usual[key] and not isinstance(value, Secret | Path)
    }
    return found | _tables(tables.relations, tables.entities)


def _tables(relations: Mapping[str, Any], entities: Mapping[str, Any]) -> dict[str, str]:
    """Return the ontology's tables as variables."""
    found = {}
    for kind, declared in (("RELATIONS", relations), ("ENTITIES", entities)):
        for name, table in declared.items():
            for key, value in table.items():
                text = ",".join(value) if isinstance(value, list | tuple) else str(value)
                shown = text.lower() if isinstance(value, bool) else text
                found[f"KGRAY_ONTOLOGY_{kind}_{name}_{key.upper()}"] = shown
    return found


def differences(ours: DeploymentSpec, theirs: DeploymentSpec, *, profile: bool = True) -> list[str]:
    """Return one line for each key in which two specs differ. profile: compare the profile's keys too."""
    mine, other = _compared(ours, profile=profile), _compared(theirs, profile=profile)
    return [
        f"{key} is {_shown(mine.get(key))} here and {_shown(other.get(key))} there"
        for key in _changed(mine, other)
    ]


def changed_keys(ours: DeploymentSpec, theirs: DeploymentSpec, kind: str) -> list[str]:
    """Return the keys in which two specs differ, of those that an actor of this kind uses."""
    keys = _changed(_compared(ours, profile=True), _compared(theirs, profile=True))
    used = _USED.get(kind)
    return keys if used is None else [k for k in keys if k.startswith(used) and not k.endswith(_UNUSED)]


def _changed(mine: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    return [key for key in sorted(mine.keys() | other.keys()) if mine.get(key) != other.get(key)]


def _compared(spec: DeploymentSpec, *, profile: bool) -> dict[str, Any]:
    # Where a command finds Ray does not change what the actors do.
    free = {"runtime.address", "runtime.backend", "runtime.profile"}
    found = {key: value for key, value in spec.values.items() if key not in free}
    for kind, tables in (("relations", spec.relations), ("entities", spec.entities)):
        found |= {f"ontology.{kind}.{name}": canonical(table) for name, table in tables.items()}
    found |= {f"the version of {name}": value for name, value in spec.versions.items()}
    found |= dict.fromkeys(spec.secrets, "set")
    if spec.on_one_node:
        found["the data folder"] = spec.data
    for section, table in spec.profile.items() if profile else ():
        if section == "refresh":
            continue  # no actor reads it
        if isinstance(table, Mapping):
            found |= {f"profile {section}.{key}": value for key, value in table.items()}
        else:
            found[f"profile {section}"] = table
    return found


def _values(settings: Settings) -> Iterator[tuple[str, Any]]:
    for key in KEYS:
        section, name = key.split(".")
        yield key, getattr(getattr(settings, section), name)


def _shown(value: object) -> str:
    text = "not set" if value is None else str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
