"""What the actors of one store are built from: settings without secrets, data folder, profile, versions.

Actors outlive the command that started them, so a later command compares its own spec with theirs before
it uses them. Secrets are never in a spec: each actor takes them from the environment of its process.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kgray.errors import SettingsError
from kgray.records import canonical
from kgray.settings import KEYS, Secret, Settings, load

if TYPE_CHECKING:
    from kgray.ingest.committer import Parts

# Where a command finds Ray does not change what the actors do.
_NOT_COMPARED = frozenset({"runtime.address", "runtime.backend", "runtime.profile"})
_SHOWN = 60  # characters of a value in a message
# Page cache of the embedded store: an actor loads groups and writes, and never searches.
_CACHE_MB = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentSpec:
    """What a deployment is built from: plain values, none of them secret, so Ray may transport them.

    values     settings by key, paths absolute; relations, entities: the ontology's tables
    secrets    keys of the secret settings that are set
    store      identity of the store, see `store_identity`
    data       the data folder, absolute
    profile    the cluster profile's values
    versions   of kgray, ray and Python
    """

    values: Mapping[str, Any]
    relations: Mapping[str, Any]
    entities: Mapping[str, Any]
    secrets: tuple[str, ...]
    store: str
    data: str
    profile: Mapping[str, Any]
    versions: Mapping[str, str]

    def settings(self, environ: Mapping[str, str] | None = None) -> Settings:
        """Return the settings, with the secrets of this process's environment.

        environ: default os.environ. Raises SettingsError for a secret that the spec names and it lacks.
        """
        found = os.environ if environ is None else environ
        for key in self.secrets:
            if not found.get(_variable(key)):
                raise SettingsError(
                    f"{key} is set where the command runs, and {_variable(key)} is not set where Ray's "
                    f"processes run: set it there before Ray starts, or use a file that they can read."
                )
        kept = {_variable(key): found[_variable(key)] for key in self.secrets}
        overrides = {**self.values, "relations": self.relations, "entities": self.entities}
        return load(None, environ=kept, overrides=overrides)

    def parts(self) -> Parts:
        """Open the store and build the models in this process. Raises as these steps do."""
        from kgray.wiring import ingesting, open_reader

        return ingesting(open_reader(self.settings(), Path(self.data), cache_mb=_CACHE_MB))

    @property
    def on_one_node(self) -> bool:
        """Whether the store is a folder, which only processes of one node can open."""
        return bool(self.values["store.backend"] == "sqlite")

    @property
    def namespace(self) -> str:
        """The Ray namespace of the store's actors; it keeps stores apart."""
        return f"kgray-{hashlib.sha256(self.store.encode()).hexdigest()[:12]}"


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
        versions={
            "kgray": metadata.version("kgray"),
            "ray": metadata.version("ray"),
            "python": platform.python_version(),
        },
    )


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
            environ[_variable(key)] = value.reveal()


def as_environ(settings: Settings) -> dict[str, str]:
    """Return the settings that are not the defaults as variables, without secrets and without paths."""
    usual, tables = dict(_values(Settings())), settings.ontology
    found = {
        _variable(key): str(value)
        for key, value in _values(settings)
        if value is not None and value != usual[key] and not isinstance(value, Secret | Path)
    }
    for kind, declared in (("RELATIONS", tables.relations), ("ENTITIES", tables.entities)):
        for name, table in declared.items():
            for key, value in table.items():
                said = ",".join(value) if isinstance(value, list | tuple) else str(value)
                text = said.lower() if isinstance(value, bool) else said
                found[f"KGRAY_ONTOLOGY_{kind}_{name}_{key.upper()}"] = text
    return found


def differences(ours: DeploymentSpec, theirs: DeploymentSpec, *, profile: bool = True) -> list[str]:
    """Return one line for each key in which two specs differ. profile: compare the profile's keys too."""
    mine, other = dict(_compared(ours, profile=profile)), dict(_compared(theirs, profile=profile))
    return [
        f"{key} is {_shown(mine.get(key))} here and {_shown(other.get(key))} there"
        for key in sorted(mine.keys() | other.keys())
        if mine.get(key) != other.get(key)
    ]


def _compared(spec: DeploymentSpec, *, profile: bool) -> Iterator[tuple[str, Any]]:
    yield from ((key, value) for key, value in spec.values.items() if key not in _NOT_COMPARED)
    yield from ((f"ontology.relations.{name}", canonical(table)) for name, table in spec.relations.items())
    yield from ((f"ontology.entities.{name}", canonical(table)) for name, table in spec.entities.items())
    yield from ((f"the version of {name}", value) for name, value in spec.versions.items())
    yield from ((key, "set") for key in spec.secrets)
    if spec.on_one_node:
        yield "the data folder", spec.data
    for section, table in spec.profile.items() if profile else ():
        if isinstance(table, Mapping):
            yield from ((f"profile {section}.{key}", value) for key, value in table.items())
        else:
            yield f"profile {section}", table


def _values(settings: Settings) -> Iterator[tuple[str, Any]]:
    for key in KEYS:
        section, name = key.split(".")
        yield key, getattr(getattr(settings, section), name)


def _variable(key: str) -> str:
    return "KGRAY_" + key.upper().replace(".", "_")


def _shown(value: object) -> str:
    text = "not set" if value is None else str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
