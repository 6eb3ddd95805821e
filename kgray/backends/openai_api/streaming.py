"""A reply from a slow server: its speed, and whether it only repeats itself."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import AsyncIterable, Callable
from typing import Any

from kgray.outages import OUTAGES

_PASSAGE = 48  # characters, searched for in the text before them
# The text of an item, if it is long enough for a sentence. Many items may have the same date or reason.
_SENTENCE = re.compile(r'"(?:fact|name)"\s*:\s*"([^"\\]{20,})"')


class Repeats(Exception):
    """A reply says one passage over and over. Never leaves this package."""


async def completion(
    events: AsyncIterable[Any], pieces: list[str], on_text: Callable[[str], None], sent: int
) -> dict[str, Any]:
    """Return the body of a completion that comes as events. Raises ValueError if the end is missing.

    pieces: of its text, in order; each is passed on. sent: tokens of the request, for a reply that Repeats
    ends
    """
    usage = finish = None
    try:
        async for event in events:
            usage = event.get("usage") or usage
            for choice in event.get("choices") or ():
                finish = choice.get("finish_reason") or finish
                if piece := (choice.get("delta") or {}).get("content"):
                    pieces.append(piece)
                    on_text(piece)
        if not (finish or usage):
            raise ValueError("the stream ends in the middle")
    except Repeats:
        finish, usage = "length", {"prompt_tokens": sent, "completion_tokens": len(pieces)}
    choice = {"message": {"content": "".join(pieces)}, "finish_reason": finish}
    return {"choices": [choice], "usage": usage}


class ReplyWatch:
    """Receives the pieces of a reply, and reports their speed."""

    def __init__(self, server: str, room: int) -> None:
        """server: its name among outages; room: maximum tokens of the reply."""
        self._server, self._room = server, room
        self._text, self._count, self._start = "", 0, 0.0

    def __call__(self, piece: str) -> None:
        """Take a piece, of about one token. Raises Repeats."""
        clock = time.monotonic()
        self._start = self._start or clock
        self._text += piece
        self._count += 1
        if self._count % 16:
            return
        if repeats(self._text):
            raise Repeats
        rate = self._count / max(clock - self._start, 0.001)
        words = f"writes {rate:.3g} tokens a second, {self._count} so far of at most {self._room}"
        OUTAGES.writes(self._server, words, left_s=(self._room - self._count) / rate)


def repeats(text: str) -> bool:
    """Return whether a JSON reply only repeats itself: a sentence 5 times or its end 3 times."""
    if max(Counter(_SENTENCE.findall(text)).values(), default=0) >= 5:  # in no good reply
        return True
    place = text.rfind(text[-_PASSAGE:], 0, -1)
    period = len(text) - _PASSAGE - place
    span = max(240, 3 * period)
    return place >= 0 and span <= len(text) and text[period - span :] == text[-span:-period]
