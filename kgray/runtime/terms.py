"""What actors are built from: the settings without their secrets, the data folder, the versions.

Actors live longer than the command that started them, so a later command compares its own terms with
theirs before it uses them. Secrets never travel: each actor takes them from its own environment.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kgray.errors import SettingsError
from kgray.records import canonical
from kgray.settings import KEYS, Secret, Settings, load

if TYPE_CHECKING:
    from kgray.ingest.parts import Parts

# Where the command found Ray says nothing of what the actors do.
_NOT_COMPARED = frozenset({"runtime.address", "runtime.backend", "runtime.profile"})
_SHOWN = 60  # characters of a value in a message
# Of pages of the embedded store: an actor loads groups and writes, and never searches.
_CACHE_MB = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a deployment is made of; plain values only, none of them secret.

    values    settings by key, paths absolute; relations, entities: the ontology's tables
    secrets   names of the settings that are set and secret
    data      the data folder, absolute
    profile   the cluster profile's values
    versions  of kgray, ray and Python
    """

    values: Mapping[str, Any]
    relations: Mapping[str, Any]
    entities: Mapping[str, Any]
    secrets: tuple[str, ...]
    data: str
    profile: Mapping[str, Any]
    versions: Mapping[str, str]

    def settings(self, environ: Mapping[str, str] | None = None) -> Settings:
        """Return the settings, with the secrets of this process's environment.

        Raises SettingsError for a secret that the terms name and the environment lacks.
        """
        found = os.environ if environ is None else environ
        for key in self.secrets:
            if not found.get(variable(key)):
                raise SettingsError(
                    f"{key} is set where the command runs, and {variable(key)} is not set where Ray's "
                    f"processes run: set it there before Ray starts, or use a file that they can read."
                )
        kept = {variable(key): found[variable(key)] for key in self.secrets}
        overrides = {**self.values, "relations": self.relations, "entities": self.entities}
        return load(None, environ=kept, overrides=overrides)

    def parts(self) -> Parts:
        """Return the parts of this process, its store open; raises as `settings` and `build_parts` do."""
        from kgray.wiring import build_parts

        return build_parts(self.settings(), Path(self.data), create=False, cache_mb=_CACHE_MB)

    def store_identity(self) -> str:
        """Return what names the store: the server and database, or the folder."""
        if self.values["store.backend"] == "neo4j":
            return f"neo4j {self.values.get('store.uri')} {self.values.get('store.database') or ''}"
        return f"sqlite {self.data}"

    def namespace(self) -> str:
        """Return the Ray namespace of the store's actors."""
        return f"kgray-{hashlib.sha256(self.store_identity().encode()).hexdigest()[:12]}"


def terms_of(settings: Settings, data: Path, profile: Mapping[str, Any]) -> Terms:
    """Return the terms of these settings in this process."""
    values: dict[str, Any] = {}
    secrets = []
    for key in KEYS:
        section, name = key.split(".")
        value = getattr(getattr(settings, section), name)
        if isinstance(value, Secret):
            secrets.append(key)
        elif value is not None:
            values[key] = str(value.expanduser().resolve()) if isinstance(value, Path) else value
    return Terms(
        values=values,
        relations={name: dict(table) for name, table in settings.ontology.relations.items()},
        entities={name: dict(table) for name, table in settings.ontology.entities.items()},
        secrets=tuple(secrets),
        data=str(data.expanduser().resolve()),
        profile=dict(profile),
        versions={
            "kgray": metadata.version("kgray"),
            "ray": metadata.version("ray"),
            "python": platform.python_version(),
        },
    )


def hand_over(settings: Settings, environ: Any) -> None:  # noqa: ANN401 - os.environ, or a copy
    """Put the secrets into an environment that a Ray started from here inherits: never into its arguments."""
    for key in KEYS:
        section, name = key.split(".")
        value = getattr(getattr(settings, section), name)
        if isinstance(value, Secret):
            environ[variable(key)] = value.reveal()


def variable(key: str) -> str:
    """Return the variable that sets a key."""
    return "KGRAY_" + key.upper().replace(".", "_")


def differences(ours: Terms, theirs: Terms, *, profile: bool = True) -> list[str]:
    """Return one text for each key in which two terms differ; profile: whether its keys count."""
    mine, other = _flat(ours, profile=profile), _flat(theirs, profile=profile)
    return [
        f"{key} is {_shown(mine.get(key))} here and {_shown(other.get(key))} there"
        for key in sorted(mine.keys() | other.keys())
        if mine.get(key) != other.get(key)
    ]


def _flat(terms: Terms, *, profile: bool) -> dict[str, Any]:
    flat = {key: value for key, value in terms.values.items() if key not in _NOT_COMPARED}
    flat |= {f"ontology.relations.{name}": canonical(table) for name, table in terms.relations.items()}
    flat |= {f"ontology.entities.{name}": canonical(table) for name, table in terms.entities.items()}
    flat |= {f"the version of {name}": value for name, value in terms.versions.items()}
    flat |= dict.fromkeys(terms.secrets, "set")
    if terms.values["store.backend"] == "sqlite":
        flat["the data folder"] = terms.data
    if profile:
        for section, table in terms.profile.items():
            if isinstance(table, Mapping):
                flat |= {f"profile {section}.{key}": value for key, value in table.items()}
            else:
                flat[f"profile {section}"] = table
    return flat


def _shown(value: object) -> str:
    text = "not set" if value is None else str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
