"""A world as files: episodes that `kgray add` takes, and the truth apart from them."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from kgray.domain import times
from kgray.domain.records import Draft, Value, canonical
from kgray.domain.times import Instant
from kgray.errors import InputError
from tests.world.plan import WorldPlan
from tests.world.questions import TrueSlot, rounds, true_answers
from tests.world.schema import RELATIONS
from tests.world.things import WorldEntity
from tests.world.truth import Truth
from tests.world.world import World


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


def write(
    plan: WorldPlan, out: Path, truth: Path | None, questions_file: Path | None = None
) -> dict[str, int]:
    """Write the episodes and, if a file is named, the truth of each group; return the counts.

    questions_file: gets messages and questions for `kgray eval retrieval`

    Episodes are written as they are made; a group's truth is held until it is written.
    Raises InputError where a file cannot be written.
    """
    world, count = World(plan=plan), 0
    truths = {group: Truth(world.entities(group)) for group in world.groups}
    try:
        with out.open("w", encoding="utf-8") as lines:
            for episode in world:
                lines.write(canonical(input_row(episode.draft)) + "\n")
                count += 1
                if truth is not None or questions_file is not None:
                    truths[episode.draft.group].take((episode, episode.said))
        facts = 0
        if questions_file is not None:
            with questions_file.open("w", encoding="utf-8") as lines:
                for group, truth_of_group in truths.items():
                    _write_rows(lines.write, group, _told_rows(truth_of_group))
                    strangers = World(plan=replace(plan, seed=plan.seed + 1)).entities(group)
                    _write_rows(
                        lines.write, group, _eval_rows(truth_of_group, strangers, plan.seed, world.end())
                    )
        if truth is not None:
            with truth.open("w", encoding="utf-8") as lines:
                for group, truth_of_group in truths.items():
                    facts += _write_rows(lines.write, group, truth_of_group.rows())
                    _write_rows(lines.write, group, _question_rows(truth_of_group, plan.seed, world.end()))
    except OSError as error:
        raise InputError(f"{error.filename} cannot be written: {error.strerror}") from None
    return {"episodes": count, "facts": facts}


def _write_rows(write_text: Any, group: str, rows: Iterable[dict[str, Any]]) -> int:  # noqa: ANN401
    facts = 0
    for row in rows:
        facts += row.get("type") == "fact"
        write_text(canonical({"group": group, **row}) + "\n")
    return facts


def _question_rows(truth: Truth, seed: int, end: Instant) -> Iterator[dict[str, Any]]:
    for questions in rounds(truth, seed, end):
        facts = truth.facts(questions.known_at)
        for question, answer in zip(questions.asked, true_answers(facts, questions.asked), strict=True):
            objects = [value.as_dict() if isinstance(value, Value) else value for value in answer]
            yield {
                "type": "question",
                "kind": questions.kind,
                "subject": question.slot[0],
                "relation": question.slot[1],
                "as_of": times.show(question.at),
                "known_after": questions.known_at,
                "answer": sorted(objects, key=canonical),
            }


# ------------------------------------------------------------------------------ for `kgray eval retrieval`

_MAX_QUESTIONS = 100  # questions of a kind


def _told_rows(truth: Truth) -> Iterator[dict[str, Any]]:
    for episode, _ in truth.readings:
        yield {**input_row(episode.draft), "text": episode.draft.text}


def _eval_rows(
    truth: Truth, strangers: Iterable[WorldEntity], seed: int, end: Instant
) -> Iterator[dict[str, Any]]:
    """Yield questions about slots with a single object: present, past, outdated; and of strangers.

    Questions use the full name of an object, which no text may have mentioned: see --alias-rate.
    """
    names = {entity.id: entity.name for entity in truth.entities}
    facts_of_truth, count = truth.facts(), Counter[str]()
    objects: dict[TrueSlot, set[str]] = defaultdict(set)
    for fact in facts_of_truth:
        objects[fact.key[:2]].add(_name_of(fact.key[2], names))
    for round_ in rounds(truth, seed, end):
        facts = truth.facts(round_.known_at)
        for question in round_.asked:
            holding = [fact for fact in facts if fact.key[:2] == question.slot and fact.holds_at(question.at)]
            if (
                RELATIONS[question.slot[1]].shape != "single"
                or len(holding) != 1
                or count[round_.kind] == _MAX_QUESTIONS
            ):
                continue
            count[round_.kind] += 1
            right = _name_of(holding[0].key[2], names)
            row = _question(names[question.slot[0]], question.slot[1], round_.kind) | {
                "id": f"{round_.kind}-{count[round_.kind]}",
                "evidence": holding[0].episodes,
                "fact": right,
                "outdated": sorted(objects[question.slot] - {right}),
            }
            row |= {} if round_.kind == "now" else {"at": times.show(question.at)}
            if round_.known_at is not None:
                row["after"] = truth.readings[round_.known_at - 1][0].draft.client_id
            yield row
    for entity in strangers:
        if entity.kind == "Person" and entity.name not in names.values():
            yield _question(entity.name, "LIVES_IN", "none") | {"id": f"none-{entity.id}"}


def _question(subject: str, relation: str, kind: str) -> dict[str, Any]:
    return {"question": f"{subject} {RELATIONS[relation].words[1]} what?", "type": kind}


def _name_of(target: str | Value, names: dict[str, str]) -> str:
    return target.shown() if isinstance(target, Value) else names[target]
