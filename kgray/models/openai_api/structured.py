"""A request for a JSON reply: sent in the form that the server obeys, parsed leniently, repaired once.

    call 1  the prompt, in the strongest form that the server obeys: json_schema, json_object, text
    call 2  if the reply is unusable: the prompt with the fault and the reply at the end; or, if the reply was
            cut before its first complete item, the prompt with more room
    call 3  if this reply is unusable too: the prompt in a weaker form

If the server rejects the form or the room of a call, the next call uses a weaker form or less room. A request
that does not reach the server is sent again by the client, not here.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from typing import Any, Never, TypeVar

from kgray.errors import InvalidAnswer, Refused
from kgray.models.prompting.prompts import Prompt, repair_data
from kgray.models.prompting.reply_schemas import Schema
from kgray.ports.ingest import ModelCall, ModelReply, Steps

_T = TypeVar("_T")
MAX_CALLS = 3
_MORE_ROOM = 8192  # minimum tokens after a cut: a model may reason before it replies
RAW_KEPT = 4000  # characters of a bad reply that a repair quotes, and a failure keeps
_ABOUT_FORM = ("response_format", "schema", "grammar", "guided", "structured")  # words of a refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredRequest:
    """A request for a reply that follows a schema."""

    prompt: Prompt
    data: str
    schema: Schema
    room: int  # maximum tokens of the reply
    kinds: tuple[str, ...] = ()  # of questions, see `ModelCall`


def structured(
    request: StructuredRequest, accept: Callable[[Mapping[str, Any]], _T]
) -> Steps[tuple[_T, bool]]:
    """Return the steps of a request; they return the result of `accept`, and True if the reply was cut.

    accept: converts a reply, or raises InvalidAnswer, whose message the repair quotes
    The steps raise InvalidAnswer after the last call, and Refused.
    """
    keys = tuple(request.schema["required"])
    data, temperature, room, weaker = request.data, 0.0, request.room, 0
    shrunk = False
    fault = InvalidAnswer("")
    for number in range(1, MAX_CALLS + 1):
        reply: ModelReply = yield ModelCall(
            task=request.prompt.task,
            data=data,  # in a repair, with the fault at its end
            kinds=request.kinds,
            room=room,
            temperature=temperature,
            weaker=weaker,
        )
        if reply.rejection is not None:
            words = reply.rejection.casefold()
            # The prompt fits, but not together with the room for the reply.
            about_room = "too large" in words and re.search("max_(completion_)?tokens", words)
            about_form = reply.mode != "text" and any(word in words for word in _ABOUT_FORM)
            if number < MAX_CALLS and about_form:
                weaker += 1
            elif number < MAX_CALLS and not shrunk and about_room:
                room, shrunk = room // 4, True
            else:
                raise Refused(f"the server refused the text ({reply.rejection})")
            continue
        try:
            content, cut = _readable(reply.text, keys, cut=reply.cut, last=number == MAX_CALLS)
            return accept(content), cut
        except InvalidAnswer as error:
            fault = error
        data, temperature = request.data, 0.0
        if reply.cut and salvage(reply.text, keys) is None:
            room = room if shrunk else max(2 * room, _MORE_ROOM)
        elif number == 1:
            # Add the fault at the end, so that the server can reuse its cache of the prefix.
            data += repair_data(str(fault), reply.text[:RAW_KEPT])
            temperature = 0.2
        if number == MAX_CALLS - 1:
            weaker += 1
    raise InvalidAnswer(f"no usable reply in {MAX_CALLS} calls: {fault}", raw=fault.raw[:RAW_KEPT])


def _readable(text: str, keys: tuple[str, ...], *, cut: bool, last: bool) -> tuple[Mapping[str, Any], bool]:
    """Return the reply's object and whether it was cut. Raises InvalidAnswer.

    If a reply breaks off although the server reports no cut, only that of the last call is salvaged.
    """
    reply = read_object(text, keys)
    if reply is not None and all(key in reply for key in keys):
        return reply, False
    if cut or (last and breaks_off(text)):
        complete = salvage(text, keys)
        if complete is not None:
            return complete, True
    if cut:
        why = "the reply was cut before its first complete item"
    elif reply is not None:
        why = f"the reply has no {', '.join(repr(key) for key in keys if key not in reply)}"
    else:
        why = "the reply holds no JSON object" if text.strip() else "the reply is empty"
    raise InvalidAnswer(why, raw=text[:RAW_KEPT])


_REASONING = re.compile(r"<(think|thinking|reasoning)>.*?</\1>", re.DOTALL)
# The opening tag was in the chat template.
_REASONED = re.compile(r"^.*</(?:think|thinking|reasoning)>", re.DOTALL)


def read_object(text: str, keys: tuple[str, ...]) -> dict[str, Any] | None:
    """Return the last outermost object with these keys, else the first object; None if there is no object.

    A model may write drafts, and ends with its answer; so the last complete object counts.
    """
    objects: list[dict[str, Any]] = []
    bare, end = _bare(text), 0
    for _ in range(16):  # a text of brackets must not cost quadratic time
        if (start := bare.find("{", end)) < 0:
            break
        try:
            value, end = _DECODER.raw_decode(bare, start)
            objects.append(_clean(value))
        except (ValueError, RecursionError):
            end = start + 1
    complete = [value for value in objects if all(key in value for key in keys)]
    return complete[-1] if complete else objects[0] if objects else None


def salvage(text: str, keys: tuple[str, ...]) -> dict[str, Any] | None:
    """Return the complete list items of a cut text; None if no item is complete.

    The list of a missing key is empty.
    """
    bare = _bare(text)
    ends = [match.end() for match in re.finditer(r"[]}]", bare)]
    for end, closing in product(ends[:-65:-1], ("]}", "}")):  # of an item, of a list
        with suppress(ValueError, RecursionError):
            value = _clean(_DECODER.decode(bare[:end] + closing))
            if isinstance(value, dict) and any(value.values()):
                return {key: [] for key in keys} | value
    return None


def breaks_off(text: str) -> bool:
    """Return whether the text ends inside its first object."""
    bare = _bare(text)
    try:
        _DECODER.raw_decode(bare)
    except json.JSONDecodeError as error:
        # The fault is at the end, in an unfinished string, or in an unfinished word such as `null`.
        ends = "Unterminated" in error.msg or re.fullmatch(r"[a-z]*\s*", bare[error.pos :])
        return bool(bare and ends)
    except (ValueError, RecursionError):
        pass
    return False


def _bare(text: str) -> str:
    """Return the text from its first brace, without closed reasoning; open reasoning may be an answer."""
    return "".join(_REASONED.sub("", _REASONING.sub("", text)).partition("{")[1:])


def _no_number(constant: str) -> Never:
    raise ValueError(f"{constant} is no JSON")


_DECODER = json.JSONDecoder(strict=False, parse_constant=_no_number)


def _clean(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Return the value with texts that can be stored: no control characters, no half of a surrogate pair."""
    if isinstance(value, str):
        if value.isprintable():
            return value
        return "".join(c for c in value if c in "\t\n" or unicodedata.category(c) not in ("Cc", "Cs"))
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    return value
