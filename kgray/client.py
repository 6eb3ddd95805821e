"""`kgray.connect(url, key)`: the verbs of `kgray.open`, against a server (docs/serving.md)."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from datetime import datetime
from functools import cache, partial
from http.client import HTTPException
from inspect import signature
from typing import Any
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import HTTPHandler, HTTPSHandler, OpenerDirector, ProxyHandler, Request

from kgray import errors
from kgray.errors import Denied, InputError, KgrayError, Unavailable
from kgray.graph import Entity, FactSpan, Hit
from kgray.intake.drafts import Refusal
from kgray.memory import BothWays, EntityCount, History, Memory, Report
from kgray.memory.reads import When
from kgray.search import Context
from kgray.times import from_datetime, show

_WAIT_S = 30  # `add` waits so long for what it adds, in one request
_PORTION = 500  # rows of one request
_COUNTS = ("accepted", "duplicate", "committed", "failed", "pending")
# Codes of problems whose class is the server's own.
_CLASSES: Mapping[str, type[KgrayError]] = {
    "malformed": InputError, "too_large": InputError, "conflict": InputError,
    "forbidden": Denied, "misdirected": Denied, "overloaded": Unavailable, "too_many": Unavailable,
}  # fmt: skip
# Verbs of Memory, with its arguments, whose answer is JSON as it comes: method, path, part of the answer.
VERBS: Mapping[str, tuple[str, str, str]] = {
    "show": ("GET", "show/{identifier}", "records"),
    "episode": ("GET", "episodes/{identifier}", ""),
    "operation": ("GET", "operations/{sequence}", ""),
    "communities": ("GET", "communities", "communities"),
    "community": ("GET", "communities/{identifier}", ""),
    "duplicates": ("GET", "duplicates", "pairs"),
    "neighbourhood": ("GET", "graph", ""),
    "diff": ("GET", "diff", ""),
    "changes": ("GET", "changes", ""),
    "log": ("GET", "episodes", ""),
    "status": ("GET", "status", "groups"),
    "failures": ("GET", "failures", "failures"),
    "retry": ("POST", "retry", ""),
    "retract": ("POST", "retract", ""),
    "remove": ("POST", "remove", ""),
}
# Verbs that take their place in a group's order, and what they send.
CORRECTIONS: Mapping[str, Callable[..., dict[str, Any]]] = {
    "merge": lambda first, second: {"entities": [first, second]},
    "distinct": lambda first, second: {"entities": [first, second]},
    "split": lambda entity, surfaces: {"entity": entity, "surfaces": list(surfaces)},
    "undo": lambda sequence: {"sequence": sequence},
}
_IN_PATH = re.compile(r"{(\w+)}")


def connect(
    url: str, key: str | None = None, *, timeout_s: float = 120.0, patience_s: float = 60.0
) -> Remote:
    """Use the memory of a server; `with` gives blocking methods, `async with` awaitable ones.

        with kgray.connect("http://localhost:8321", key) as memory:
            memory.add("I work at Acme now", group="demo", speaker="Alice")

    patience_s  how long to go on where the server has too much to do
    Raises InputError for what is no URL. Methods raise what those of `kgray.open` do; Denied without a key
    that allows it, Unavailable where the server is out of reach.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(f"{url!r} is no address of a server: use http://HOST:PORT")
    return Remote(url.rstrip("/"), key, timeout_s=timeout_s, patience_s=patience_s)


class Remote(BothWays):
    """A memory behind a server; its methods are those of `kgray.memory.Memory`."""

    def __init__(self, url: str, key: str | None, *, timeout_s: float, patience_s: float) -> None:
        self._url, self._key = url, key
        self._timeout_s, self._patience_s = timeout_s, patience_s

    async def add(self, text: object, *, group: str, **row: Any) -> Report:  # noqa: ANN401 - of the row
        """Add one episode and wait until it is ingested; see `Memory.add`."""
        how = {name: bool(row.pop(name, False)) for name in ("replace", "again")}
        metadata = row.pop("metadata", None) or {}
        field = "triples" if row.get("kind") == "triples" else "text"
        report = await self.add_many([{**metadata, **row, field: text}], group=group, **how)
        for refusal in report.refusals:
            raise InputError(refusal.reason, field=refusal.field)
        return report

    async def add_many(
        self, items: Iterable[Mapping[str, Any]], *, group: str,
        replace: bool = False, again: bool = False, accept_only: bool = False,
    ) -> Report:  # fmt: skip
        """Add rows, and wait until they are ingested unless `accept_only`; see `Memory.add_many`."""
        rows, total, refused = list(items), dict[str, Any](), list[Refusal]()
        headers = {} if accept_only else {"prefer": f"wait={_WAIT_S}"}
        path = f"episodes?replace={str(replace).lower()}&again={str(again).lower()}"
        for start in range(0, len(rows), _PORTION):
            try:
                found = await self._ask("POST", group, path, rows[start : start + _PORTION], headers)
            except InputError as error:  # each row was refused, or the request is at fault
                found = {"accepted": (), "refusals": getattr(error, "refusals", ())}
                if not found["refusals"]:
                    raise
            found["accepted"] = len(found["accepted"])
            for name in _COUNTS:
                total[name] = total.get(name, 0) + found.get(name, 0)
            refused += [Refusal(**row | {"line": row["line"] + start}) for row in found["refusals"]]
        total |= {"stopped": True, "reason": "still pending"} if total.pop("pending", 0) else {}
        return Report(**total, refusals=tuple(refused))

    async def search(self, query: str, *, group: str, **asked: Any) -> list[Hit]:  # noqa: ANN401
        """Return ranked hits; see `Memory.search`."""
        found = await self._ask("POST", group, "search", _asked(query, asked))
        return [_hit(row) for row in found["hits"]]

    async def context(self, query: str, *, group: str, **asked: Any) -> Context:  # noqa: ANN401
        """Return the text to put into a prompt; see `Memory.context`."""
        found = await self._ask("POST", group, "context", _asked(query, asked))
        return Context(text=found["text"], tokens=found["tokens"], hits=tuple(map(_hit, found["hits"])))

    async def entities(self, query: str = "", *, group: str, limit: int = 20) -> list[EntityCount]:
        """Return entities; see `Memory.entities`."""
        found = await self._ask("GET", group, "entities", {"q": query, "limit": limit})
        return [_read(EntityCount, {"entity": row, **row}) for row in found["entities"]]

    async def history(
        self, name_or_id: str, *, group: str, as_of: When | None = None, known_at: When | None = None
    ) -> History:
        """Return the spans of an entity's facts; see `Memory.history`."""
        asked, name = {"as_of": as_of, "known_at": known_at}, quote(name_or_id, safe="")
        found = await self._ask("GET", group, f"entities/{name}/history", asked)
        facts = tuple(_fact(row) for row in found["facts"])
        clients = {id_: client for fact in facts for id_, client in fact.episodes}
        entity, profile = _entity(found["entity"]), found["entity"]["profile"]
        return History(group=group, entity=entity, profile=profile, facts=facts, clients=clients)

    def __getattr__(self, verb: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        """Return a verb of the tables above, as a coroutine function."""
        if verb in CORRECTIONS:
            return partial(self._correct, verb)
        if verb not in VERBS:
            raise AttributeError(f"a remote memory has no {verb!r}")
        method, path, gives = VERBS[verb]
        taken = signature(getattr(Memory, verb))

        async def ask(*args: Any, group: str, **asked: Any) -> Any:  # noqa: ANN401 - the verb's own
            asked = taken.bind(self, *args, group=group, **asked).arguments
            del asked["self"], asked["group"]
            named = {name: quote(str(asked.pop(name)), safe="") for name in _IN_PATH.findall(path)}
            found = await self._ask(method, group, path.format(**named), asked)
            return found[gives] if gives else found

        return ask

    async def dump(self, *, group: str, known_at: Any = None) -> list[str]:  # noqa: ANN401 - a moment
        """Return the lines of the whole graph; see `Memory.dump`."""
        text: str = await self._ask("GET", group, "dump", {"known_at": known_at})
        return text.splitlines()

    async def groups(self) -> list[dict[str, Any]]:
        """Return the groups that the key reaches, with their sizes, as `kgray groups --json` prints them."""
        found: list[dict[str, Any]] = (await self._ask("GET", None, "", {}))["groups"]
        return found

    async def _correct(self, kind: str, *args: Any, group: str) -> dict[str, Any]:  # noqa: ANN401 - the verb's own
        body = CORRECTIONS[kind](*args)
        done = await self._ask("POST", group, kind, body, {"prefer": f"wait={_WAIT_S}"})
        if done.pop("state") == "pending":
            raise errors.Stopped(f"{kind} {done['sequence']} is requested, and waits for what is before it")
        return dict(done)

    async def _ask(
        self, method: str, group: str | None, path: str, asked: object,
        headers: Mapping[str, str] | None = None,
    ) -> Any:  # noqa: ANN401 - JSON  # fmt: skip
        """Return the answer; asked: the body of a POST, else the query; group None: of all."""
        if isinstance(asked, Mapping):  # a row's null is the user's, and goes along
            asked = {name: value for name, value in asked.items() if value is not None}
        given = json.dumps(asked, default=_plain)
        target = "/v1/groups" + (f"/{quote(group, safe='')}/{path}" if group is not None else "")
        body = None if method == "GET" else given.encode()
        target += f"?{urlencode(json.loads(given))}" if method == "GET" else ""
        told = {"content-type": "application/json", **(headers or {})}
        return await asyncio.to_thread(self._send, method, target, body, told)

    def _send(self, method: str, target: str, body: bytes | None, headers: dict[str, str]) -> Any:  # noqa: ANN401
        """Send a request, again while the server has too much to do; return what was answered."""
        headers |= {"authorization": f"Bearer {self._key}"} if self._key else {}
        until = time.monotonic() + self._patience_s
        while True:
            asked = Request(self._url + target, body, headers, method=method)  # noqa: S310 - checked by `connect`
            try:
                with _OPENER.open(asked, timeout=self._timeout_s) as answer:
                    status, told, answered = answer.status, answer.headers, answer.read()
            except (OSError, HTTPException) as error:
                where = urlsplit(self._url).netloc
                raise Unavailable(f"{where} gave no answer ({type(error).__name__}): is it up?") from None
            pause = float(after) if (after := told.get("retry-after", "1")).isdecimal() else 1.0
            if status not in (429, 503) or time.monotonic() + pause > until:
                return _answer(told.get_content_type(), answered, status)
            time.sleep(pause)

    def close(self) -> None:
        """Do nothing: no connection is kept."""


# Raises for no status, and follows no redirect: the key would go along, to whatever host it names.
_OPENER = OpenerDirector()
for _handler in (ProxyHandler(), HTTPHandler(), HTTPSHandler()):
    _OPENER.add_handler(_handler)


def _answer(kind: str, answered: bytes, status: int) -> Any:  # noqa: ANN401 - JSON, or the text of a dump
    """Return what was answered. Raises the error that a problem tells of; Unavailable if kgray made none."""
    try:
        if status < 300 and kind == "application/x-ndjson":
            return answered.decode()
        found = json.loads(answered)
        if status < 300 and kind == "application/json":
            return found
        detail, code, faults = str(found["detail"]), str(found["code"]), found["errors"]
        field = next((one["pointer"].strip("/") for one in faults), None)
    except (ValueError, LookupError, TypeError):
        said = f"the server answered {status}, and not as kgray does: is it a kgray server?"
        raise Unavailable(said) from None
    name = "".join(part.title() for part in code.split("_"))
    kind_: Any = _CLASSES.get(code) or getattr(errors, name, KgrayError)
    made: KgrayError = InputError(detail, field=field) if kind_ is InputError else kind_(detail)
    made.refusals = found.get("refusals", ())  # type: ignore[attr-defined]
    raise made


def _asked(query: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of a search; filters are fields of it."""
    body = {"query": query, **asked}
    filters = body.pop("filters", None)
    names = ("relations", "labels", "sources", "speakers") if filters is not None else ()
    return body | {name: list(chosen) for name in names if (chosen := getattr(filters, name))}


def _plain(value: Any) -> Any:  # noqa: ANN401 - a moment, or a mapping that is no dict
    return show(from_datetime(value)) if isinstance(value, datetime) else dict(value)


def _read(kind: Any, row: Mapping[str, Any]) -> Any:  # noqa: ANN401 - a class, and a value of it
    """Return a value made of its JSON form, whose other keys are passed over."""
    return _reader(kind).validate_python(row)


@cache
def _reader(kind: type) -> Any:  # noqa: ANN401 - pydantic's
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _entity(row: Mapping[str, Any]) -> Any:  # noqa: ANN401 - an Entity
    return _read(Entity, {"name": row.get("text"), **row})


def _fact(row: Mapping[str, Any]) -> Any:  # noqa: ANN401 - a FactSpan
    episodes = [(one["id"], one["client_id"]) for one in row["episodes"]]
    return _read(FactSpan, {"statement": "", "ended_by": None, **row, "episodes": episodes})


def _hit(row: Mapping[str, Any]) -> Any:  # noqa: ANN401 - a Hit; a community's name and summary are its text
    nested = {"fact": _fact, "entity": _entity}.get(row["scope"])
    return _read(Hit, {**row, row["scope"]: nested(row)} if nested else row)
