"""Both readers read a labelled set, in turns."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from bench.labelled_set.engine import EngineReader
from bench.labelled_set.labels import Conversation
from bench.labelled_set.plain import PlainReader
from bench.labelled_set.scores import ConversationReading, MessageReading


def run(
    conversations: Sequence[Conversation],
    *,
    base_url: str,
    model: str,
    api_key: str | None,
    pipeline: Mapping[str, str],
    replies: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> list[ConversationReading]:
    """Read every message twice, in turns: with kgray and with the plain prompt. Raises KgrayError.

    Which reader goes first changes from message to message, so that both meet the same load.
    replies: the file of the plain prompt's replies in earlier runs.
    """
    plain = PlainReader(base_url, model, api_key, replies)
    total, number = sum(len(item.messages) for item in conversations), 0
    readings = []
    with (
        tempfile.TemporaryDirectory(prefix="kgray-bench-") as folder,
        closing(EngineReader(Path(folder), base_url, model, pipeline)) as engine,
    ):
        for conversation in conversations:
            messages = []
            for index, message in enumerate(conversation.messages):
                previous = conversation.messages[:index]
                if number % 2:
                    read = plain.read(message, previous)
                    cost = engine.add(conversation.id, message)
                else:
                    cost = engine.add(conversation.id, message)
                    read = plain.read(message, previous)
                messages.append(MessageReading(message=message, cost=cost, plain=read))
                number += 1
                seconds = f"kgray {cost.seconds:.1f} s, plain {read.seconds:.1f} s"
                progress(f"{number}/{total} {message.id}: {seconds}")
            result = engine.result(conversation)
            readings.append(ConversationReading(conversation=conversation, messages=messages, engine=result))
    return readings
