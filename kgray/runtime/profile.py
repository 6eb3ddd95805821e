"""How big the machine room is: a cluster profile from TOML; `cluster/laptop.toml` where none is named."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from kgray.errors import SettingsError
from kgray.settings import Settings

DEFAULT = "laptop"
_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RayProfile:
    """A Ray that kgray starts by itself; of no meaning where one is joined by its address."""

    cpus: int = 4  # logical: what actors ask for adds up to less; may be more than the machine has
    object_store_mb: int = 128
    dashboard: bool = True  # of a Ray that stays up: what submits jobs needs it


@dataclass(frozen=True, slots=True, kw_only=True)
class SequencerProfile:
    """Who owns the groups. shards: each has a sequencer and a writer; the embedded store has one."""

    shards: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersProfile:
    """Worker actors of one kind; 0 workers = in the sequencer's own process."""

    workers: int = 1
    cpus: float = 0.5  # of each
    concurrency: int = 64  # chunks that one takes at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsProfile:
    """Deadlines and restarts, in seconds."""

    health_every_s: float = 5.0  # how often a worker with work in hand is asked whether it lives
    health_deadline_s: float = 60.0  # no answer for so long: it is started anew, its work goes to another
    write_deadline_s: float = 120.0  # the same for a writer's batch
    start_deadline_s: float = 120.0  # for all actors to answer
    pending_writes: int = 16  # calls that may stand before the writer; a run has one on its way
    grace_s: float = 5.0  # a run that is asked to stop commits what it has in flight for so long
    linger_ms: float = 2.0  # how long a chunk waits for more of its kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The whole profile."""

    name: str = DEFAULT
    ray: RayProfile = field(default_factory=RayProfile)
    sequencer: SequencerProfile = field(default_factory=SequencerProfile)
    extraction: WorkersProfile = field(default_factory=lambda: WorkersProfile(workers=2))
    embedding: WorkersProfile = field(default_factory=WorkersProfile)
    limits: LimitsProfile = field(default_factory=LimitsProfile)

    def values(self) -> dict[str, Any]:
        """Return plain values, as `profile_of` takes them."""
        return asdict(self)


_SECTIONS: Mapping[str, type[Any]] = {
    "ray": RayProfile,
    "sequencer": SequencerProfile,
    "extraction": WorkersProfile,
    "embedding": WorkersProfile,
    "limits": LimitsProfile,
}
_ZERO = {"embedding.workers", "extraction.cpus", "embedding.cpus", "limits.grace_s", "limits.linger_ms"}
_MOST = 100_000


def chosen(settings: Settings) -> Profile:
    """Read the profile that the settings name, else the laptop's; raises as `load` and `fitting` do."""
    return fitting(load(settings.runtime.profile), settings.store.backend)


def fitting(profile: Profile, backend: str) -> Profile:
    """Return a profile. Raises SettingsError where it divides a store that cannot be divided."""
    if profile.sequencer.shards > 1 and backend == "sqlite":
        raise SettingsError(
            f"sequencer.shards = {profile.sequencer.shards} in the cluster profile {profile.name!r}: the "
            f"embedded store has one writer; use 1, or store.backend = 'neo4j'."
        )
    return profile


def load(path: Path | None = None) -> Profile:
    """Read a profile; None: the laptop's, which is shipped. Raises SettingsError that names key and file."""
    path = path or shipped()
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES)
        values = tomllib.loads(raw.decode("utf-8-sig"))
    except OSError as error:
        raise SettingsError(f"cluster profile {path} cannot be read: {error.strerror or error}.") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise SettingsError(f"cluster profile {path} is not valid TOML: {error}.") from None
    return profile_of({"name": path.stem, **values}, str(path))


def shipped() -> Path:
    """Return the laptop's profile: inside the installed package, or beside it in a checkout."""
    here = Path(__file__).resolve().parent.parent
    inside = here / "cluster"
    return (inside if inside.is_dir() else here.parent / "cluster") / f"{DEFAULT}.toml"


def profile_of(values: Mapping[str, Any], source: str) -> Profile:
    """Return the profile that plain values describe; source: named in errors."""
    sections: dict[str, Any] = {}
    for name, value in values.items():
        if name == "name":
            if not isinstance(value, str) or not value:
                raise SettingsError(f"name in {source}: a text in quotes is needed.")
            sections[name] = value
        elif name not in _SECTIONS:
            raise SettingsError(_unknown(name, ["name", *_SECTIONS], source))
        elif not isinstance(value, Mapping):
            raise SettingsError(f"{name} in {source} is not a table: write [{name}] and its keys below it.")
        else:
            sections[name] = _section(name, value, source)
    return Profile(**sections)


def _section(name: str, table: Mapping[str, Any], source: str) -> Any:  # noqa: ANN401 - one of the classes above
    cls = _SECTIONS[name]
    known = {f.name: f.type for f in fields(cls)}
    for key in table:
        if key not in known:
            raise SettingsError(_unknown(f"{name}.{key}", [f"{name}.{k}" for k in known], source))
    return cls(**{key: _checked(f"{name}.{key}", known[key], value, source) for key, value in table.items()})


def _checked(key: str, kind: object, value: object, source: str) -> object:
    if kind == "bool":
        if not isinstance(value, bool):
            raise SettingsError(f"{key} = {value!r} in {source}: use true or false.")
        return value
    kinds = int if kind == "int" else int | float
    least = 0 if key in _ZERO else 1 if kind == "int" else 0.001
    if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value <= _MOST:
        whole = "whole number" if kind == "int" else "number"
        raise SettingsError(f"{key} = {value!r} in {source}: a {whole} from {least} to {_MOST} is needed.")
    return value if kind == "int" else float(value)


def _unknown(typed: str, known: list[str], source: str) -> str:
    near = difflib.get_close_matches(typed, known, n=1, cutoff=0.0)
    return f"{typed} in {source} is not a key of a cluster profile. The nearest one is {near[0]}."
