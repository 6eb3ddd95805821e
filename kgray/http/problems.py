"""Errors as `application/problem+json` (RFC 9457): one table from class to status and code."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from kgray import errors
from kgray.errors import Denied, InputError, KgrayError, Unavailable

TYPE = "urn:kgray:problem:"
JSON = "application/problem+json"


class Problem(NamedTuple):
    """What a class of errors is answered with."""

    status: int
    title: str


class Malformed(InputError):
    """A body or header that cannot be read at all."""


class TooLarge(InputError):
    """A body, or a number of rows, beyond its bound."""


class Conflict(InputError):
    """An id that other content has."""


class Forbidden(Denied):
    """A key that does not reach the group, or lacks the scope."""


class Misdirected(Denied):
    """A Host or Origin that is not this server's."""


class Overloaded(Unavailable):
    """More waits than this server takes; nothing of the request was done. wait_s: when to try again."""

    def __init__(self, reason: str, *, wait_s: int = 1) -> None:
        """Set the message and when to try again."""
        super().__init__(reason)
        self.wait_s = wait_s


class TooMany(Overloaded):
    """More requests than the key may make."""

    def __init__(self, rate: int) -> None:
        """rate: of requests a second, told in the headers of draft-ietf-httpapi-ratelimit-headers too."""
        super().__init__(f"the key may make {rate} requests a second")
        self.headers = {"ratelimit-policy": f'"key";q={rate};w=1', "ratelimit": '"key";r=0;t=1'}


# Every class of kgray.errors is here; a class without an entry of its own gets that of the class above it.
PROBLEMS: Mapping[type[KgrayError], Problem] = {
    KgrayError: Problem(500, "The server has a fault"),
    InputError: Problem(422, "The request cannot be used as it is"),
    Malformed: Problem(400, "The request cannot be read"),
    TooLarge: Problem(413, "The request is too large"),
    Conflict: Problem(409, "The id is taken by other content"),
    Denied: Problem(401, "A key is needed"),
    Forbidden: Problem(403, "The key does not allow this"),
    Misdirected: Problem(421, "The server does not answer to this name"),
    TooMany: Problem(429, "The key makes too many requests"),
    Overloaded: Problem(503, "The server has too much to do"),
    errors.SettingsError: Problem(500, "The server's settings have a fault"),
    errors.StoreError: Problem(500, "The store cannot be used"),
    errors.Damaged: Problem(500, "The records of the group are damaged"),
    errors.Unwritable: Problem(500, "The store refuses what is written to the group"),
    errors.NoStore: Problem(503, "There is no store yet"),
    errors.StaleWriter: Problem(503, "Another process has taken over"),
    errors.Outrun: Problem(503, "The group is written too fast to be read"),
    errors.NoSpace: Problem(507, "The disk is full"),
    errors.Locked: Problem(503, "Another process holds the store"),
    errors.NotFound: Problem(404, "It is not there"),
    errors.Ambiguous: Problem(409, "Several are called so"),
    errors.NotBuilt: Problem(501, "This version has not built it"),
    errors.Stopped: Problem(503, "The server stopped before the end"),
    Unavailable: Problem(503, "The model or the store is out of reach"),
    errors.Garbled: Problem(502, "The model's server gave no usable answer"),
    errors.ContentError: Problem(422, "The content cannot be used"),
    errors.Refused: Problem(422, "The model refused the text"),
    errors.InvalidAnswer: Problem(502, "The model gave no usable answer"),
}


def problem_of(error: KgrayError) -> tuple[str, Problem]:
    """Return the code and the problem of an error: those of its class, or of the nearest class above."""
    kind = next(kind for kind in type(error).__mro__ if kind in PROBLEMS)
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower(), PROBLEMS[kind]


def answer(request: Request, error: KgrayError) -> Response:
    """Return an error as a response."""
    code, problem = problem_of(error)
    field = getattr(error, "field", None)
    faults = [{"pointer": f"/{field}", "detail": str(error)}] if field else []
    headers = {"retry-after": str(getattr(error, "wait_s", 5))} if problem.status in (429, 503) else {}
    headers |= getattr(error, "headers", {})
    if problem.status == 401:
        headers["www-authenticate"] = "Bearer"
    return told(request, problem, code, str(error), faults=faults, headers=headers)


def told(
    request: Request,
    problem: Problem,
    code: str,
    detail: str,
    *,
    faults: Sequence[Mapping[str, Any]] = (),
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return a problem as a response. faults: {"pointer", "detail"} of each fault in the body."""
    body = {
        "type": TYPE + code, "title": problem.title, "status": problem.status, "detail": detail,
        "instance": request.scope["path"], "code": code, "errors": list(faults), "request_id": id_of(request),
    }  # fmt: skip
    return Response(json.dumps(body), problem.status, dict(headers or {}), JSON)


def id_of(request: Request) -> str:
    """Return the id of a request: in its answer's header, in problems, and nowhere else."""
    state = request.scope.setdefault("state", {})
    if "request_id" not in state:
        state["request_id"] = secrets.token_hex(16)
    return str(state["request_id"])
