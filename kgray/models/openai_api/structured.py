"""A request for a JSON reply: sent in the form that the server obeys, parsed leniently, repaired once.

    call 1  the prompt, in the strongest form that the server obeys: json_schema, json_object, text
    call 2  if the reply is unusable: the prompt with the fault and the reply at the end; or, if the reply was
            cut before its first complete item, the prompt with more room
    call 3  if this reply is unusable too: the prompt in a weaker form

If the server rejects the form or the room of a call, the next call uses a weaker form or less room. A request
that does not reach the server is sent again by the client, not here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from kgray.errors import InvalidAnswer, Refused
from kgray.models.openai_api.reply_text import RAW_KEPT, read_reply, salvage
from kgray.models.prompting.prompts import Prompt, repair_data
from kgray.models.prompting.reply_schemas import Schema
from kgray.ports.ingest import ModelCall, ModelReply, Steps

_T = TypeVar("_T")
MAX_CALLS = 3
_MORE_ROOM = 8192  # minimum tokens after a cut: a model may reason before it replies
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
            content, cut = read_reply(reply.text, keys, cut=reply.cut, last=number == MAX_CALLS)
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
