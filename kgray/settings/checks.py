"""Validation of tables that users write: types of values, and a line for each of pydantic's errors."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, SecretStr, ValidationError
from pydantic_core import PydanticCustomError

from kgray.errors import SettingsError

CLOSED = ConfigDict(extra="forbid", hide_input_in_errors=True)  # for a class that a user's table fills
_MAX_FILE = 1 << 20  # bytes; settings fit on a page, so a larger file is a mistake
_MAX_VALUE_TEXT = 120  # characters of a value in a message
_EMPTY = "a text that is not empty is needed."
_HIDDEN = "hidden"  # pydantic's type of an error whose value is not shown


class Secret(SecretStr):
    """A text that no message, repr or traceback shows; it cannot be pickled, so it stays in its process."""

    def reveal(self) -> str:
        """Return the text, for the call that needs it."""
        return self.get_secret_value()

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a secret is not pickled: each process reads it from its own environment or file")


def fault(words: str, *, secret: bool = False) -> PydanticCustomError:
    """Return the error for a validator to raise. words: shown after key and value; secret: hide the value."""
    return PydanticCustomError(_HIDDEN if secret else "fault", words)


def within(minimum: float, maximum: float = 1_000_000) -> BeforeValidator:
    """Return a validator that bounds a number; if `minimum` is an int, the number must be an int."""
    kinds = int if isinstance(minimum, int) else int | float
    number = int if isinstance(minimum, int) else float

    def check(value: Any, info: Any) -> Any:  # noqa: ANN401 - a user's value; pydantic's info
        if info.context and isinstance(value, str):  # a variable's
            with suppress(ValueError):
                value = number(value)
        if isinstance(value, bool) or not isinstance(value, kinds) or not minimum <= value <= maximum:
            prefix = "whole " if kinds is int else ""
            raise fault(f"a {prefix}number from {minimum:g} to {maximum:.0f} is needed.")
        return value

    return BeforeValidator(check)


def is_address(url: str, schemes: Sequence[str]) -> bool:
    """Tell whether a text is a server's address: a known scheme, a host, and no user or password."""
    try:
        parts = urlsplit(url)
        return "@" not in url and parts.scheme in schemes and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        return False


def _address(schemes: Sequence[str], example: str, instead: str) -> AfterValidator:
    # Without this check, a wrong address would look like an unreachable server.

    def check(url: str) -> str:
        if not is_address(url, schemes):
            form = f"{', '.join(schemes)}; a host; no user or password: {instead} for that"
            raise fault(f"an address such as {example} is needed ({form}).")
        return url

    return AfterValidator(check)


def _path(value: object) -> object:
    """Return a path with ~ expanded; any other value unchanged, for pydantic to refuse."""
    if value == "" or "\0" in str(value):
        raise fault(_EMPTY)
    return Path(value).expanduser() if isinstance(value, str | os.PathLike) else value


def _secret(value: object) -> object:
    if not isinstance(value, str | Secret):
        raise fault(_WORDS["string_type"], secret=True)
    if value == "" or "\0" in str(value):
        raise fault(_EMPTY, secret=True)
    return value


def is_sendable(key: Secret) -> bool:
    """Tell whether a key can be sent in an HTTP header."""
    text = key.reveal()
    return bool(text) and text.isascii() and text.isprintable()


def _key(key: Secret) -> Secret:
    if not is_sendable(key):
        raise fault("one line of plain ASCII text is needed.", secret=True)
    return key


NEO4J_SCHEMES = ("neo4j", "neo4j+s", "neo4j+ssc", "bolt", "bolt+s", "bolt+ssc")
FilledText = Annotated[str, Field(pattern=r"^[^\x00]+$")]
File = Annotated[Path, BeforeValidator(_path)]
Password = Annotated[Secret, BeforeValidator(_secret)]
ApiKey = Annotated[Password, AfterValidator(_key)]
WholeNumber = Annotated[int, within(1)]
Seconds = Annotated[float, within(1.0)]
Url = Annotated[FilledText, _address(("http", "https"), "http://localhost:8000/v1", "the api_key is")]
Uri = Annotated[
    FilledText, _address(NEO4J_SCHEMES, "bolt://localhost:7687", "store.user and store.password are")
]


_WORDS: Mapping[str, str] = {  # by pydantic's type of error; other types keep pydantic's message
    "bool_type": "use true or false.",
    "string_type": "a text in quotes is needed.",
    "path_type": "a text in quotes is needed.",
    "string_pattern_mismatch": _EMPTY,
    "string_too_short": _EMPTY,
    "tuple_type": "a list of texts is needed.",
}


def places(cls: type[Any]) -> Iterator[tuple[str, ...]]:
    """Yield the paths of the tables and keys that a class declares: ("model",), ("model", "name"), ..."""
    for name, kind in get_type_hints(cls).items():
        yield (name,)
        if isinstance(kind, type) and is_dataclass(kind):
            yield from ((name, *rest_of_path) for rest_of_path in places(kind))


def error_line(
    error: ValidationError,
    source: str,
    known_keys: Iterable[tuple[str, ...]],
    *,
    spelled: Callable[[Sequence[str]], str] = ".".join,
    subject: str = "a setting",
) -> str:
    """Return the first of pydantic's errors as a line for the user; a secret is printed as ***.

    known_keys  the paths of all keys and tables; for an unknown key the nearest is suggested
    spelled     path -> the key in the spelling of the source
    subject     noun for a known key in the message
    """
    first = error.errors(include_url=False)[0]
    place = tuple(str(step) for step in first["loc"] if isinstance(step, str))
    typed = spelled(place)
    match first["type"]:
        case "unexpected_keyword_argument":
            siblings = [spelled(key) for key in known_keys if len(key) == len(place)]
            return unknown_key(typed, source, siblings, subject)
        case "dataclass_type" | "dict_type":
            return f"{typed} in {source} is not a table: write [{typed}] and its keys below it."
        case "literal_error":
            choices = re.findall(r"'([^']*)'", first["ctx"]["expected"])
            words = f"use one of {', '.join(map(quoted, choices))}."
        case kind:
            words = _WORDS.get(kind, first["msg"])
    # "@" precedes the host of an address with a password.
    hidden = first["type"] == _HIDDEN or "@" in str(first["input"])
    return f"{typed} = {'***' if hidden else quoted(first['input'])[:_MAX_VALUE_TEXT]} in {source}: {words}"


def unknown_key(typed: str, source: str, known_keys: Iterable[str], subject: str = "a setting") -> str:
    """Return the message for an unknown key; known_keys: in the spelling of the source."""
    near = difflib.get_close_matches(typed, list(known_keys), n=1, cutoff=0.0)
    return f"{typed} in {source} is not {subject}. The nearest one is {near[0]}."


def quoted(value: object) -> str:
    """Return a value in TOML."""
    return f'"{value}"' if isinstance(value, str) else str(value)


def read_toml(path: Path, name: str) -> dict[str, Any]:
    """Return the content of a TOML file. name: the file's name in messages. Raises SettingsError."""
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_FILE + 1)
        if len(raw) > _MAX_FILE:
            raise SettingsError(f"{name} is longer than 1 MiB: it is no settings file.")
        return tomllib.loads(raw.decode("utf-8-sig"))
    except OSError as error:
        raise SettingsError(f"{name} cannot be read: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{name} is not UTF-8 text.") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SettingsError(f"{name} is not valid TOML: {error}.") from None
