"""A world as files: episodes that `kgray add` takes, and the truth apart from them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bench.world.plan import WorldPlan
from bench.world.questions import rounds, true_answers
from bench.world.truth import Truth
from bench.world.world import World
from kgray import times
from kgray.errors import InputError
from kgray.records import Draft, Value, canonical
from kgray.times import Instant


def input_row(draft: Draft) -> dict[str, Any]:
    """Return the line of input that gives this draft."""
    row: dict[str, Any] = {
        "id": draft.client_id,
        "group": draft.group,
        "source": draft.source,
        "kind": draft.kind,
        "at": times.show(draft.reference_time),
        "text": json.loads(draft.text) if draft.kind == "json" else draft.text,
    }
    return row | ({"speaker": draft.speaker} if draft.speaker else {})


def write(plan: WorldPlan, out: Path, truth: Path | None) -> dict[str, int]:
    """Write the episodes and, where asked for, the truth of each group; returns how many of what.

    Episodes are written as they are made; a group's truth is held until it is written.
    Raises InputError where a file cannot be written.
    """
    world, count = World(plan=plan), 0
    truths = {group: Truth(world.things(group)) for group in world.groups}
    try:
        with out.open("w", encoding="utf-8") as lines:
            for episode in world:
                lines.write(canonical(input_row(episode.draft)) + "\n")
                count += 1
                if truth is not None:
                    truths[episode.draft.group].take((episode, episode.said))
        facts = 0
        if truth is not None:
            with truth.open("w", encoding="utf-8") as lines:
                for group, known in truths.items():
                    facts += _write_rows(lines.write, group, known.rows())
                    _write_rows(lines.write, group, _question_rows(known, plan.seed, world.end()))
    except OSError as error:
        raise InputError(f"{error.filename} cannot be written: {error.strerror}") from None
    return {"episodes": count, "facts": facts}


def _write_rows(write_text: Any, group: str, rows: Iterable[dict[str, Any]]) -> int:  # noqa: ANN401
    facts = 0
    for row in rows:
        facts += row["type"] == "fact"
        write_text(canonical({"group": group, **row}) + "\n")
    return facts


def _question_rows(truth: Truth, seed: int, end: Instant) -> Iterator[dict[str, Any]]:
    for questions in rounds(truth, seed, end):
        facts = truth.facts(questions.known_at)
        for asked, answer in zip(questions.asked, true_answers(facts, questions.asked), strict=True):
            shown = [one.as_dict() if isinstance(one, Value) else one for one in answer]
            yield {
                "type": "question",
                "kind": questions.kind,
                "subject": asked.slot[0],
                "relation": asked.slot[1],
                "as_of": times.show(asked.at),
                "known_after": questions.known_at,
                "answer": sorted(shown, key=canonical),
            }
