"""Errors as `application/problem+json` (RFC 9457): a table from class to status; its name is the code."""

from __future__ import annotations

import json
import logging
import re
import secrets
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from kgray import errors
from kgray.errors import Denied, InputError, KgrayError, Unavailable

_log = logging.getLogger("kgray.server")


class Malformed(InputError):
    """A body or header that cannot be parsed."""


class TooLarge(InputError):
    """A body, or a number of rows, beyond its bound."""


class Conflict(InputError):
    """An id that belongs to other content."""


class Forbidden(Denied):
    """A key that does not reach the group, or lacks the scope."""


class Misdirected(Denied):
    """A Host or Origin of another server."""


class Overloaded(Unavailable):
    """More waiting work than this server accepts; nothing of the request was done. wait_s: before a retry."""

    def __init__(self, reason: str, *, wait_s: int = 1) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


class Unfinished(Overloaded):
    """A file that is being written; ask again, and the work continues."""

    def __init__(self, seconds: float) -> None:
        """seconds: of the work until now."""
        super().__init__(f"the file has been in work for {seconds:.0f} s: ask again, and the work continues")
        self.headers = {"kgray-unfinished": f"{seconds:.0f}"}


class TooMany(Overloaded):
    """More requests than the key may make."""

    def __init__(self, rate: int) -> None:
        """rate: requests a second; also in the headers of draft-ietf-httpapi-ratelimit-headers."""
        super().__init__(f"the key may make {rate} requests a second")
        self.headers = {"ratelimit-policy": f'"key";q={rate};w=1', "ratelimit": '"key";r=0;t=1'}


# Contains every class of kgray.errors; a subclass without an entry is answered like its parent.
STATUS: Mapping[type[KgrayError], int] = {
    KgrayError: 500, InputError: 422, Malformed: 400, TooLarge: 413, Conflict: 409,
    Denied: 401, Forbidden: 403, Misdirected: 421,
    Unavailable: 503, Overloaded: 503, Unfinished: 503, TooMany: 429, errors.Stopped: 503,
    errors.SettingsError: 500, errors.StoreError: 500, errors.Damaged: 500, errors.Unwritable: 500,
    errors.NoStore: 503, errors.StaleWriter: 503, errors.Outrun: 503, errors.Locked: 503, errors.NoSpace: 507,
    errors.NotFound: 404, errors.Ambiguous: 409, errors.NotBuilt: 501,
    errors.ContentError: 422, errors.Refused: 422, errors.InvalidAnswer: 502, errors.Garbled: 502,
}  # fmt: skip
_CODES = {400: "malformed", 408: "too_slow", 413: "too_large"}  # codes of HTTP's own errors; else the phrase


async def answer(request: Request, error: KgrayError) -> Response:
    """Return an error as a response."""
    kind = next(kind for kind in type(error).__mro__ if kind in STATUS)
    status, field = STATUS[kind], getattr(error, "field", None)
    faults = [{"pointer": f"/{field}", "detail": str(error)}] if field else []
    headers = {"retry-after": str(getattr(error, "wait_s", 5))} if status in (429, 503) else {}
    headers |= getattr(error, "headers", {})
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    return problem_of(request, kind, str(error), faults=faults, headers=headers)


def code_of(kind: type[KgrayError]) -> str:
    """Return the code of a class of errors."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


def problem_of(
    request: Request, kind: type[KgrayError], detail: str, *, faults: Sequence[Mapping[str, Any]] = (),
    headers: Mapping[str, str] | None = None, members: Mapping[str, Any] | None = None,
) -> Response:  # fmt: skip
    """Return the problem of a class in STATUS.

    faults  {"pointer", "detail"} of each fault in the body; members: added to the problem, or replace its own
    """
    code, title = code_of(kind), re.split(r"[;:.]", kind.__doc__ or "")[0]
    body = {
        "type": f"urn:kgray:problem:{code}", "title": title, "status": STATUS[kind], "detail": detail,
        "instance": request.scope["path"], "code": code, "errors": list(faults),
        "request_id": id_of(request), **(members or {}),
    }  # fmt: skip
    return Response(json.dumps(body), body["status"], dict(headers or {}), "application/problem+json")


def id_of(request: Request) -> str:
    """Return the id of a request, which its answer's header and its problems contain."""
    state = request.scope.setdefault("state", {})
    return str(state.setdefault("request_id", secrets.token_hex(16)))


async def _on_invalid(request: Request, error: Any) -> Response:  # noqa: ANN401 - a RequestValidationError
    """Answer a request that its model refused: the fields and the reasons, without the values."""
    pairs = [("/" + "/".join(map(str, fault["loc"][1:])), str(fault["msg"])) for fault in error.errors()]
    faults = [{"pointer": pointer, "detail": detail} for pointer, detail in pairs]
    broken = any(fault["type"] == "json_invalid" for fault in error.errors())
    return problem_of(request, Malformed if broken else InputError, ": ".join(pairs[0]), faults=faults)


async def _on_http(request: Request, error: Any) -> Response:  # noqa: ANN401 - an HTTPException
    status, phrase = error.status_code, HTTPStatus(error.status_code).phrase
    code = _CODES.get(status, phrase.lower().replace(" ", "_"))
    about = {"type": f"urn:kgray:problem:{code}", "title": phrase, "status": status, "code": code}
    return problem_of(request, KgrayError, str(error.detail), headers=error.headers, members=about)


async def _on_fault(request: Request, error: Exception) -> Response:
    """Answer a defect of kgray with its class only; the log has the details under the request's id."""
    _log.error("request %s met a fault", id_of(request), exc_info=error)
    detail = f"a fault in kgray ({type(error).__name__}); the server's log has it under the request's id"
    return problem_of(request, KgrayError, detail)


ON_ERROR: Mapping[Any, Any] = {
    KgrayError: answer,
    RequestValidationError: _on_invalid,
    HTTPException: _on_http,
    Exception: _on_fault,
}
