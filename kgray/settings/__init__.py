"""One frozen tree of settings, from TOML, then KGRAY_* variables, then arguments; the later source wins.

tree      the keys, their values and defaults; what a backend needs, and what is not built
sources   where they are read from, and which source wins
checks    kinds of values, and one line for each of pydantic's errors: profile and ontology use them too
"""

from __future__ import annotations

from kgray.settings.checks import Secret
from kgray.settings.sources import CONFIG_NAME, config_file, data_folder, load, public_environ
from kgray.settings.tree import (
    KEYS,
    ModelSettings,
    PipelineSettings,
    Settings,
    StoreSettings,
    require,
    require_built,
    unbuilt,
)

__all__ = [
    "CONFIG_NAME",
    "KEYS",
    "ModelSettings",
    "PipelineSettings",
    "Secret",
    "Settings",
    "StoreSettings",
    "config_file",
    "data_folder",
    "load",
    "public_environ",
    "require",
    "require_built",
    "unbuilt",
]
