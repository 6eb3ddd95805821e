"""Reads at odd moments, of groups that are not there, of things called by name: on both stores."""

from __future__ import annotations

import pytest

from kgray.errors import NotFound
from kgray.io.intake.drafts import draft_from
from kgray.memory import AsyncMemory
from tests.graph.engine import SMALL, Engine
from tests.graph.stores import EMBEDDED

LONG_AGO = ("0001-01-01", "1969-12-31", 0)  # before every record; the last is the epoch itself
TO_COME = "9999-12-31"
TRIPLES = (
    ("t1", "2026-01-01", "Ann Lee", "WORKS_AT", "Acme"),
    ("t2", "2026-03-01", "Ann Lee", "WORKS_AT", "Beta"),
)


@pytest.fixture
def memory(store, stores, group):
    """Tell of two jobs."""
    engine = Engine(store=store, prefix=stores.prefix)
    for client_id, at, subject, relation, target in TRIPLES:
        triple = {"source": subject, "relation": relation, "target": target}
        engine.add(draft_from({"id": client_id, "at": at, "group": "g", "triples": [triple]}))
    assert engine.named() == group
    return AsyncMemory(store, lambda: SMALL, lambda: engine.parts)


async def read(memory, group, known_at):
    """Return the result of each read at a moment: hits, the context's text, the history, the dump."""
    hits = await memory.search("Where does Ann Lee work?", group=group, known_at=known_at)
    block = await memory.context("Where does Ann Lee work?", group=group, known_at=known_at)
    dumped = await memory.dump(group=group, known_at=known_at)
    return [(hit.scope, hit.text, hit.methods) for hit in hits], block.text.split("\n", 1)[-1], dumped


@EMBEDDED
async def test_a_known_at_that_is_not_past_reads_as_now(memory, group):
    current = await read(memory, group, None)
    last = memory.store.heads([group])[group].last_recorded / 1e6
    assert current[0] != []
    for moment in (TO_COME, last, last + 3600):
        hits, block, dumped = await read(memory, group, moment)
        assert (hits, dumped) == (current[0], current[2])
        assert block.endswith(current[1])
        assert await memory.history("Ann Lee", group=group, known_at=moment) == await memory.history(
            "Ann Lee", group=group
        )


@EMBEDDED
@pytest.mark.parametrize("moment", LONG_AGO)
async def test_known_at_before_the_first_record_gives_an_empty_graph(memory, group, moment):
    hits, block, dumped = await read(memory, group, moment)
    assert (hits, dumped) == ([], [])
    assert "Nothing that this memory holds" in block
    with pytest.raises(NotFound, match="as known then"):
        await memory.history("Ann Lee", group=group, known_at=moment)


@EMBEDDED
@pytest.mark.parametrize("moment", [*LONG_AGO, TO_COME, None])
async def test_an_unknown_group_reads_as_empty_at_every_moment(memory, other_group, moment):
    hits, block, dumped = await read(memory, other_group, moment)
    assert (hits, dumped) == ([], [])
    assert "Nothing that this memory holds" in block
    with pytest.raises(NotFound, match=f"there is no group {other_group}"):
        await memory.history("Ann Lee", group=other_group, known_at=moment)
    with pytest.raises(NotFound, match=f"there is no group {other_group}"):
        await memory.show("t1", group=other_group)
    assert [*(await memory.status(group=other_group)).groups] == [other_group]


@EMBEDDED
@pytest.mark.parametrize("moment", [*LONG_AGO, TO_COME])
async def test_as_of_an_extreme_date_finds_only_facts_of_that_date(memory, group, moment):
    hits = await memory.search("Where does Ann Lee work?", group=group, as_of=moment, scopes=("fact",))
    assert [hit.object for hit in hits] == (["Beta"] if moment == TO_COME else [])
    messages = await memory.search("Where does Ann Lee work?", group=group, as_of=moment, scopes=("episode",))
    assert len(messages) == 2, "as_of hides no message (R5)"


@pytest.mark.seldom_on_neo4j
async def test_entities_are_looked_up_by_name_and_by_id_prefix(memory, group):
    listed = await memory.entities(group=group)
    assert [(row.entity.name, row.facts) for row in listed] == [("Ann Lee", 2), ("Acme", 1), ("Beta", 1)]
    ann = listed[0].entity
    assert [row.entity for row in await memory.entities("ann", group=group)] == [ann]
    full_history = await memory.history(ann.id, group=group)
    assert [fact.object for fact in full_history.facts] == ["Acme", "Beta"]
    for called in ("ann  LEE", ann.id[:6], ann.id[:6].upper()):
        assert await memory.history(called, group=group) == full_history
        assert await memory.show(called, group=group) == await memory.show(ann.id, group=group)
    early_history = await memory.history("Ann Lee", group=group, known_at=full_history.facts[0].created_at)
    assert [(fact.object, fact.invalid_at) for fact in early_history.facts] == [("Acme", None)]
    with pytest.raises(NotFound, match="did you mean 'Ann Lee'"):
        await memory.history("Anne Lee", group=group)


@EMBEDDED
async def test_show_returns_the_episodes_names_and_evidence_words_of_an_entity(memory, group):
    description = await memory.show("Ann Lee", group=group)
    assert description == await memory.show(description.id, group=group)
    assert [fact.object for fact in description.facts] == ["Acme", "Beta"]
    assert set(description.names.values()) == {"Ann Lee", "Acme", "Beta"}
    assert [(episode.client_id, episode.state) for episode in description.episodes] == [
        ("t1", "committed"),
        ("t2", "committed"),
    ]
    for episode, fact in zip(description.episodes, description.facts, strict=True):
        assert episode.recorded_at == fact.created_at
        words = {episode.text[mark.start : mark.end] for mark in episode.marks}
        assert words == {"Ann Lee", fact.object}
        assert {mark.statement for mark in episode.marks} == {fact.statement}
    (fact,) = (fact for fact in description.facts if fact.object == "Beta")
    of_fact = await memory.show(fact.id[:8], group=group)
    assert [episode.client_id for episode in of_fact.episodes] == ["t2"]
