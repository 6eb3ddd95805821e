"""Where settings come from: a TOML file, then KGRAY_* variables, then arguments; the later wins."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from kgray.errors import SettingsError
from kgray.settings.checks import one_line, read_toml, unknown
from kgray.settings.tree import KEYS, NUMBERS, PATHS, PLACES, SECRETS, Settings

DATA_VARIABLE = "KGRAY_DATA"
CONFIG_VARIABLE = "KGRAY_CONFIG"
DEFAULT_DATA = Path("kgray-data")
CONFIG_NAME = "kgray.toml"
_PREFIX = "KGRAY_"
_TABLES = "KGRAY_ONTOLOGY_"  # KGRAY_ONTOLOGY_RELATIONS_NAME_KEY
_TABLE_KEYS: Mapping[str, tuple[str, ...]] = {
    "relations": (
        *("description", "cardinality", "object", "symmetric", "excludes", "same_as", "inverse_of"),
        *("subject_type", "object_type"),
    ),
    "entities": ("description", "attributes"),
}
_LISTS = frozenset({"excludes", "attributes"})
_ENVIRONMENT, _ARGUMENTS = "the environment", "the arguments"
_SHOWN_PATH = 200
_Tree = dict[str, Any]  # section -> key -> value

_SETTINGS = TypeAdapter(Settings)
_VARIABLES = {_PREFIX + key.upper().replace(".", "_"): key for key in KEYS}


def data_folder(asked: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> Path:
    """Return the data folder: as asked, else KGRAY_DATA, else ./kgray-data."""
    return Path(asked or environ.get(DATA_VARIABLE) or DEFAULT_DATA)


def config_file(asked: str | os.PathLike[str] | None, data: Path, environ: Mapping[str, str]) -> Path | None:
    """Return the settings file: as asked, else KGRAY_CONFIG, else kgray.toml in `data` or the current folder.

    None where there is none. Raises SettingsError where a named file does not exist or cannot be looked for.
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
    # Each source is checked by itself, so an error is reported even if a later source overrides it.
    values = _checked(_from_toml(config), str(config), ".".join) if config else {}
    found = _from_environ(os.environ if environ is None else environ, values)
    values = _merged(values, _checked(found, _ENVIRONMENT, lambda place: _PREFIX + "_".join(place).upper()))
    found = _from_arguments(overrides or {})
    values = _merged(values, _checked(found, _ARGUMENTS, "_".join))
    return _SETTINGS.validate_python(values)


def _checked(values: _Tree, source: str, spelled: Callable[[Sequence[str]], str]) -> _Tree:
    """Return the values of one source. Raises SettingsError that names a key as this source spells it."""
    try:
        _SETTINGS.validate_python(values)
    except ValidationError as error:
        raise SettingsError(one_line(error, source, PLACES, spelled=spelled)) from None
    return values


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> _Tree:
    """Return two trees as one; where both have a value, that of `over`."""
    both = {
        name: _merged(under[name], value)
        for name, value in over.items()
        if isinstance(value, Mapping) and isinstance(under.get(name), Mapping)
    }
    return {**under, **over, **both}


def _from_toml(config: Path) -> _Tree:
    """Return the file's values; relative paths in it are resolved against its folder."""
    values = read_toml(config, str(config))
    for key in PATHS:
        section, name = key.split(".")
        table = values.get(section)
        if isinstance(table, dict) and isinstance(text := table.get(name), str) and text:
            table[name] = config.parent / Path(text).expanduser()
    return values


def _from_environ(environ: Mapping[str, str], declared: Mapping[str, Any]) -> _Tree:
    """Return the values of the variables; declared: the values of the settings file."""
    values: _Tree = {}
    for variable in sorted(environ):
        text = environ[variable]
        if not variable.startswith(_PREFIX) or variable.startswith("KGRAY_TEST_"):
            continue
        if variable in (DATA_VARIABLE, CONFIG_VARIABLE):
            continue
        if variable.startswith(_TABLES):
            values = _merged(values, _from_table_variable(variable, text, declared))
        elif variable not in _VARIABLES:
            known = (*_VARIABLES, DATA_VARIABLE, CONFIG_VARIABLE)
            raise SettingsError(unknown(variable, _ENVIRONMENT, known))
        elif text:  # an empty variable counts as not set, as in shells and compose files
            key = _VARIABLES[variable]
            section, name = key.split(".")
            values.setdefault(section, {})[name] = _from_text(key, text)
    return values


def _from_text(key: str, text: str) -> object:
    """Return a variable's text converted to the type of its key; the text itself where it is no number."""
    try:
        return NUMBERS.get(key, str)(text)
    except ValueError:
        return text


def _from_table_variable(variable: str, text: str, declared: Mapping[str, Any]) -> _Tree:
    """Return the tree of a variable such as KGRAY_ONTOLOGY_RELATIONS_OWNS_OBJECT."""
    near = []
    for kind, keys in _TABLE_KEYS.items():
        prefix = f"{_TABLES}{kind.upper()}_"
        for key in keys:
            near.append(f"{prefix}NAME_{key.upper()}")
            found = re.fullmatch(f"{prefix}(.+)_{key.upper()}", variable)
            if found is None:
                continue
            # Variables are mostly in capitals, labels in CamelCase: match declared labels ignoring case.
            labels = declared.get("ontology", {}).get("entities", {}) if kind == "entities" else ()
            name = next((label for label in labels if label.casefold() == found[1].casefold()), found[1])
            value: object = text
            if key == "symmetric":
                value = {"true": True, "false": False}.get(text.lower(), text)
            elif key in _LISTS:
                value = [one.strip() for one in text.split(",") if one.strip()]
            return {"ontology": {kind: {name: {key: value}}}}
    raise SettingsError(unknown(variable, _ENVIRONMENT, near))


def _from_arguments(overrides: Mapping[str, Any]) -> _Tree:
    """Return the values of keyword arguments; `relations` and `entities` mean the ontology's tables."""
    places = {"_".join(place): place for place in PLACES if len(place) > 1}
    places |= {kind: ("ontology", kind) for kind in _TABLE_KEYS}
    values: _Tree = {}
    for typed, value in overrides.items():
        place = places.get(typed.replace(".", "_"))
        if place is None:
            raise SettingsError(unknown(typed, _ARGUMENTS, [key.replace(".", "_") for key in KEYS]))
        section, name = place
        # None takes back what the other sources say.
        default = getattr(getattr(Settings(), section), name)
        values.setdefault(section, {})[name] = default if value is None else value
    return values


def public_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that set no secret and may be sent elsewhere; paths in them are made absolute."""
    found: dict[str, str] = {}
    for variable, text in environ.items():
        key = _VARIABLES.get(variable)
        if text and (variable.startswith(_TABLES) or (key is not None and key not in SECRETS)):
            found[variable] = str(Path(text).expanduser().absolute()) if key in PATHS else text
    return found
