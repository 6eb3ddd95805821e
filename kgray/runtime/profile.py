"""A cluster profile: number and size of actors, and limits. From TOML, by default `cluster/laptop.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, StrictBool, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from kgray.errors import SettingsError
from kgray.settings.checks import CLOSED, FilledText, fault, one_line, read_toml, within
from kgray.settings.tree import EngineLimits

DEFAULT = "laptop"
# Kind of worker actors, the first part of their names -> its table of the profile.
POOLS = {"models": "extraction", "judges": "judging", "embedder": "embedding", "reranker": "reranking"}
READING = ("extraction", "judging")  # those of a language model
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
class LimitsProfile:
    """Deadlines and restarts, in seconds."""

    health_every_s: _Seconds = 5.0  # how often a worker with work in hand is asked whether it lives
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

    name: FilledText = DEFAULT
    ray: RayProfile = field(default_factory=RayProfile)
    sequencer: SequencerProfile = field(default_factory=SequencerProfile)
    extraction: WorkersProfile = field(default_factory=lambda: WorkersProfile(workers=2))
    judging: WorkersProfile = field(default_factory=lambda: WorkersProfile(workers=0))
    embedding: WorkersProfile = field(default_factory=WorkersProfile)
    reranking: WorkersProfile = field(default_factory=lambda: WorkersProfile(workers=0))
    engine: EngineLimits = field(default_factory=EngineLimits)
    limits: LimitsProfile = field(default_factory=LimitsProfile)

    def values(self) -> dict[str, Any]:
        """Return the profile as plain values, which `profile_of` reads back."""
        return asdict(self)


def load(path: Path | None = None) -> Profile:
    """Read a profile; None: the laptop's, which is shipped. Raises SettingsError that names key and file."""
    path = path or shipped()
    return profile_of({"name": path.stem, **read_toml(path, f"cluster profile {path}")}, str(path))


def shipped() -> Path:
    """Return the laptop's profile: inside the installed package, or beside it in a checkout."""
    here = Path(__file__).resolve().parent.parent
    inside = here / "cluster"
    return (inside if inside.is_dir() else here.parent / "cluster") / f"{DEFAULT}.toml"


def profile_of(values: Mapping[str, Any], source: str) -> Profile:
    """Return the profile that plain values describe; source: named in errors. Raises SettingsError."""
    try:
        found = TypeAdapter(Profile).validate_python(values)
    except ValidationError as error:
        tables = Profile().values()
        known: list[tuple[str, ...]] = [(name,) for name in tables]
        known += [(name, key) for name, table in tables.items() if isinstance(table, dict) for key in table]
        raise SettingsError(one_line(error, source, known, what="a key of a cluster profile")) from None
    if not found.extraction.workers:  # reading needs a worker; embedding may do without
        raise SettingsError(
            f"extraction.workers = 0 in {source}: a whole number from 1 to {_MOST} is needed."
        )
    cards = found.engine.tensor_parallel
    for table in POOLS.values():
        of: WorkersProfile = getattr(found, table)
        if table in READING and cards > 1 and of.workers and of.gpus != cards:
            raise SettingsError(
                f"{table}.gpus = {of.gpus:g} in {source}: engine.tensor_parallel = {cards} needs {cards}."
            )
    return found
