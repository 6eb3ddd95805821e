"""Questions about states that have changed, each with its right answer, and the memory that is asked."""

from __future__ import annotations

import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from bench.engine import accept, plain_loop, plain_parts
from kgray.domain.records import Draft, Value
from kgray.domain.times import Instant, now
from kgray.memory import AsyncMemory
from kgray.ports import Embedder, Extractor, Judge
from kgray.settings import PipelineSettings
from tests.world import Oracle, TrueFact, World, WorldModel, WorldPlan
from tests.world.schema import RELATIONS

_DATA = Path(__file__).parents[1] / "data" / "changed_states.toml"


@cache
def tables() -> Mapping[str, Any]:
    """Return the relations, questions and names of changed_states.toml."""
    return tomllib.loads(_DATA.read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A question; right, replaced: names of the object that holds then, and of the other objects."""

    text: str
    group: str
    relation: str
    subject: frozenset[str]
    right: frozenset[str]
    replaced: frozenset[str]
    as_of: Instant | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedWorld:
    """Messages of a group, their reader, and the questions."""

    group: str
    drafts: Sequence[Draft]
    reader: Extractor
    judge: Judge
    cases: Sequence[Case]


def generated(seed: int, episodes: int) -> ChangedWorld:
    """Return a world of tests/world with the questions about its single-valued states that changed."""
    world = World(plan=WorldPlan(seed=seed, episodes=episodes, entities=max(40, episodes // 8)))
    oracle, group = Oracle(world), world.groups[0]
    model, entities = WorldModel(oracle), {entity.id: entity for entity in world.entities(group)}
    episodes_of = {item.draft.client_id or "": item for item in world}
    end = now()  # announced states have begun, too
    phrases_by_relation = tables()["world"]
    slots: dict[tuple[str, str], list[TrueFact]] = {}
    for fact in oracle.truth(group).facts():
        if RELATIONS[fact.key[1]].shape == "single" and fact.key[1] in phrases_by_relation:
            slots.setdefault(fact.key[:2], []).append(fact)

    def names(value: object) -> frozenset[str]:
        if isinstance(value, Value):
            return frozenset({value.shown(), value.value})
        entity = entities[str(value)]
        return frozenset({entity.name, *(surface for _, surface in entity.aliases)})

    cases: list[Case] = []
    for (subject, relation), facts in sorted(slots.items()):
        if (change := _changed(facts, end)) is None:
            continue
        current, replaced_fact, moment = change
        for phrase in phrases_by_relation[relation]:
            text = phrase.format(s=entities[subject].name)
            for fact, as_of in ((current, None), (replaced_fact, moment)):
                other_names = (names(item.key[2]) for item in facts if item.key != fact.key)
                replaced = frozenset().union(*other_names) - names(fact.key[2])
                cases.append(
                    Case(
                        text=text, group=group, relation=relation, subject=names(subject), as_of=as_of,
                        right=names(fact.key[2]), replaced=replaced,
                    )
                )  # fmt: skip
    drafts = [episodes_of[id_].draft for id_ in episodes_of]
    return ChangedWorld(group=group, drafts=drafts, reader=model, judge=model, cases=cases)


def _changed(facts: Sequence[TrueFact], end: Instant) -> tuple[TrueFact, TrueFact, Instant] | None:
    """Return the current fact of a slot, its predecessor, and a moment when only the predecessor held."""
    ended = [fact for fact in facts if fact.invalid_at is not None and fact.invalid_at <= end]
    holding = [fact for fact in facts if fact.holds_at(end)]
    if not ended or len(holding) != 1 or holding[0].valid_at is None:
        return None
    earlier = max(ended, key=lambda fact: fact.invalid_at or 0)
    # A state with only its end stated has no message that states it.
    if earlier.key == holding[0].key or earlier.valid_at is None or not earlier.episodes:
        return None
    moment = (earlier.valid_at + (earlier.invalid_at or 0)) // 2
    alone = sum(fact.holds_at(moment) for fact in facts) == 1 and earlier.holds_at(moment)
    return (holding[0], earlier, moment) if alone else None


@contextmanager
def new_memory(world: ChangedWorld, embedder: Embedder) -> Iterator[AsyncMemory]:
    """Ingest a world by the plain loop, and yield its memory."""
    with (
        tempfile.TemporaryDirectory(prefix="kgray-questions-") as folder,
        plain_parts(world.reader, world.judge, embedder, Path(folder), PipelineSettings()) as parts,
    ):
        accept(parts.store, world.drafts)
        plain_loop(parts)
        yield AsyncMemory(parts.store, lambda: embedder, lambda: parts)
