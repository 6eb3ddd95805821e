"""One frozen tree of settings, from TOML, then KGRAY_* variables, then arguments; the later source wins."""

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
