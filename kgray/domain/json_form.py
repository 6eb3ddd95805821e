"""The JSON form of results: an object for each dataclass; its keys are the fields, in their order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from functools import cache, lru_cache
from typing import Any

from kgray.domain.times import from_datetime, show

OPTIONAL = {"optional": True}  # the metadata of a field that JSON leaves out while it is None


def renamed(**keys: str) -> dict[str, Any]:
    """Return the `__pydantic_config__` of a dataclass; keys: the JSON keys that differ from the fields."""
    return {"alias_generator": lambda name: keys.get(name, name)}


def as_json(value: Any) -> Any:  # noqa: ANN401 - a result, and its JSON form
    """Return a result as JSON values; a class with a method `as_dict` makes its own form."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, datetime):
        return moment(value)
    if hasattr(value, "as_dict"):
        return value.as_dict()
    if isinstance(value, Mapping):
        return {key: as_json(item) for key, item in value.items()}
    if is_dataclass(kind := type(value)):
        return {
            key: as_json(item)
            for name, key, optional in _keys(kind)
            if (item := getattr(value, name)) is not None or not optional
        }
    return [as_json(item) for item in value]


@lru_cache(maxsize=1 << 15)  # the facts of one answer share many moments
def moment(at: datetime) -> str:
    """Return a moment as JSON shows it."""
    return str(show(from_datetime(at)))


@cache
def _keys(kind: type[Any]) -> tuple[tuple[str, str, bool], ...]:
    """Return (field, JSON key, is optional) for each field of a dataclass."""
    alias = getattr(kind, "__pydantic_config__", renamed())["alias_generator"]
    return tuple((field.name, alias(field.name), "optional" in field.metadata) for field in fields(kind))
