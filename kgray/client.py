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
# Codes of problems whose class is the server's own.
_CLASSES: Mapping[str, type[KgrayError]] = {
    "malformed": InputError, "too_large": InputError, "conflict": InputError, "http": InputError,
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
        self._parts, self._key = urlsplit(url), key
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
        self,
        items: Iterable[Mapping[str, Any]],
        *,
        group: str,
        replace: bool = False,
        again: bool = False,
        accept_only: bool = False,
    ) -> Report:
        """Add rows, and wait until they are ingested unless `accept_only`; see `Memory.add_many`."""
        rows, total, refused = list(items), dict[str, Any](), list[Refusal]()
        headers = {} if accept_only else {"prefer": f"wait={_WAIT_S}"}
        for start in range(0, len(rows), _PORTION):
            body = rows[start : start + _PORTION]
            query = urlencode({name: "true" for name, on in (("replace", replace), ("again", again)) if on})
            try:
                found = await self._ask("POST", group, f"episodes?{query}", body, headers)
            except InputError as error:
                refused += _all_refused(error, start)
                continue
            counts = found | {"accepted": len(found["accepted"])}
            for name in ("accepted", "duplicate", "committed", "failed", "pending"):
                total[name] = total.get(name, 0) + counts.get(name, 0)
            refused += [Refusal(file="", **{**row, "line": row["line"] + start}) for row in found["refusals"]]
        if total.pop("pending", 0):
            total |= {"stopped": True, "reason": "still pending"}
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
        return [_reader(EntityCount).validate_python({"entity": row, **row}) for row in found["entities"]]

    async def history(
        self, name_or_id: str, *, group: str, as_of: When | None = None, known_at: When | None = None
    ) -> History:
        """Return the spans of an entity's facts; see `Memory.history`."""
        asked, name = {"as_of": as_of, "known_at": known_at}, quote(name_or_id, safe="")
        found = await self._ask("GET", group, f"entities/{name}/history", asked)
        facts = tuple(_fact(row) for row in found["facts"])
        clients = {id_: client for fact in facts for id_, client in fact.episodes}
        entity, profile = found["entity"], found["entity"]["profile"]
        return History(group=group, entity=_entity(entity), profile=profile, facts=facts, clients=clients)

    def __getattr__(self, verb: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        """Return a verb of VERBS, as a coroutine function."""
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
        self,
        method: str,
        group: str | None,
        path: str,
        asked: object,
        headers: Mapping[str, str] | None = None,
    ) -> Any:  # noqa: ANN401 - JSON
        """Return the answer; asked: the body of a POST, else the query; group None: of all."""
        if isinstance(asked, Mapping):  # a row's null is the user's, and goes along
            asked = {name: value for name, value in asked.items() if value is not None}
        target = f"{self._parts.path}/v1/groups" + (
            f"/{quote(group, safe='')}/{path}" if group is not None else ""
        )
        given = json.dumps(asked, default=_plain)
        body = None if method == "GET" else given.encode()
        target += f"?{urlencode(json.loads(given))}" if method == "GET" else ""
        told = {"content-type": "application/json", **(headers or {})}
        return await asyncio.to_thread(self._send, method, target, body, told)

    def _send(self, method: str, target: str, body: bytes | None, headers: dict[str, str]) -> Any:  # noqa: ANN401
        """Send a request, again while the server has too much to do; return what was answered."""
        where = f"{self._parts.scheme}://{self._parts.netloc}"
        headers |= {"authorization": f"Bearer {self._key}"} if self._key else {}
        until = time.monotonic() + self._patience_s
        while True:
            asked = Request(where + target, body, headers, method=method)  # noqa: S310 - checked by `connect`
            try:
                with _OPENER.open(asked, timeout=self._timeout_s) as answer:
                    status, told, answered = answer.status, answer.headers, answer.read()
            except (OSError, HTTPException) as error:
                raise Unavailable(f"{where} gave no answer ({type(error).__name__}): is it up?") from None
            if status < 300:
                return _read(told.get_content_type(), answered, status)
            pause = float(after) if (after := told.get("retry-after", "1")).isdecimal() else 1.0
            if status not in (429, 503) or time.monotonic() + pause > until:
                raise _error(status, answered)
            time.sleep(pause)

    def close(self) -> None:
        """Do nothing: no connection is kept."""


# Raises for no status, and follows no redirect: the key would go along, to whatever host it names.
_OPENER = OpenerDirector()
for _handler in (ProxyHandler(), HTTPHandler(), HTTPSHandler()):
    _OPENER.add_handler(_handler)


def _read(kind: str, answered: bytes, status: int) -> Any:  # noqa: ANN401 - JSON, or the text of a dump
    """Return what was answered. Raises Unavailable where something else than kgray did."""
    try:
        if kind == "application/json":
            return json.loads(answered)
        if kind == "application/x-ndjson":
            return answered.decode()
    except ValueError:
        pass
    raise _error(status, b"")


def _error(status: int, answered: bytes) -> KgrayError:
    """Return the error that a problem tells of."""
    try:
        told = json.loads(answered)
        detail, code = str(told["detail"]), str(told["code"])
        field = next((one["pointer"].strip("/") for one in told["errors"]), None)
    except (ValueError, LookupError, TypeError):
        return Unavailable(f"the server answered {status}, and not as kgray does: is it a kgray server?")
    name = "".join(part.title() for part in code.split("_"))
    kind: Any = _CLASSES.get(code) or getattr(errors, name, KgrayError)
    made: KgrayError = InputError(detail, field=field) if kind is InputError else kind(detail)
    made.faults = told["errors"]  # type: ignore[attr-defined]
    return made


def _all_refused(error: InputError, before: int) -> list[Refusal]:
    """Return why each row of a request was refused, where the error says that; before: rows before them."""
    found = []
    for fault in getattr(error, "faults", ()):
        _, row, field = [*fault["pointer"].split("/", 2), "", ""][:3]
        if not row.isdecimal():
            raise error
        line = before + int(row) + 1
        found.append(Refusal(file="", line=line, field=field or None, reason=fault["detail"]))
    if not found:
        raise error
    return found


def _asked(query: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of a search; filters are fields of it."""
    body = {"query": query, **asked}
    filters = body.pop("filters", None)
    for name in ("relations", "labels", "sources", "speakers"):
        if filters is not None and (chosen := getattr(filters, name)):
            body[name] = list(chosen)
    return body


def _plain(value: Any) -> Any:  # noqa: ANN401 - a moment, or a mapping that is no dict
    return show(from_datetime(value)) if isinstance(value, datetime) else dict(value)


@cache
def _reader(kind: type) -> Any:  # noqa: ANN401 - pydantic's
    """Return what makes a value of its JSON form, whose other keys are passed over."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _entity(row: Mapping[str, Any]) -> Any:  # noqa: ANN401 - an Entity
    return _reader(Entity).validate_python({"name": row.get("text"), **row})


def _fact(row: Mapping[str, Any]) -> Any:  # noqa: ANN401 - a FactSpan
    episodes = [(one["id"], one["client_id"]) for one in row["episodes"]]
    more = {"statement": "", "ended_by": None, **row, "episodes": episodes}
    return _reader(FactSpan).validate_python(more)


def _hit(row: Mapping[str, Any]) -> Any:  # noqa: ANN401 - a Hit; a community's name and summary are its text
    nested = {"fact": _fact, "entity": _entity}.get(row["scope"])
    return _reader(Hit).validate_python({**row, row["scope"]: nested(row)} if nested else row)
