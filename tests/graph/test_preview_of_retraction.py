"""A preview of a retraction derives a part of the graph; it equals that of the whole graph."""

from __future__ import annotations

import random

import pytest

import kgray
from kgray.domain.records import Operation
from kgray.graph import dump
from kgray.graph.change import retracted
from kgray.graph.stored import View, records_of
from kgray.ingest import preview
from kgray.storage.ledger import dumped_episodes, named_episodes

PEOPLE = ["Ada Berg", "Bo Dahl", "Cleo Ek", "Dag Falk", "Eva Gran", "Finn Holm", "Gry Iversen"]
PLACES = ["Oslo", "Lund", "Turku", "Bergen"]


def stories(seed):
    """Return episodes whose facts end one another, with names in several forms."""
    rng = random.Random(seed)
    for number in range(60):
        person, second_person = rng.sample(PEOPLE, 2)
        place = rng.choice(PLACES)
        text = rng.choice(
            [
                f"{person} lives in {place}.", f"{person} works at {second_person.split()[1]} Labs.",
                f"{person.split()[0]} knows {second_person}.", f"{person} no longer lives in {place}.",
                f"{person} moved to {place}.", f"{person} likes {place}.",
            ]
        )  # fmt: skip
        yield {
            "text": text,
            "speaker": rng.choice(PEOPLE),
            "at": f"2026-01-{1 + number % 28:02d}",
            "group": "g",
        }
    for relation in ("ADMIRES", "ADVISES"):
        triple = {"source": rng.choice(PEOPLE), "relation": relation, "target": "Zora Quist"}
        yield {"kind": "triples", "triples": [triple], "group": "g", "at": "2026-02-01"}


def difference_of_groups(store, operation):
    """Return the changes between two derivations of the whole group."""
    sequences = {row.sequence for row in named_episodes(store, operation)}
    records_before = records_of(store, operation.group)
    episodes = [
        episode for episode in dumped_episodes(store, operation.group) if episode.sequence in sequences
    ]
    view_before, view_after = (
        View(records, lambda _: [])
        for records in (records_before, retracted(records_before, sequences).records)
    )
    return preview.difference(dump.rows(view_before, episodes), dump.rows(view_after, []))


def lines(rows):
    return sorted(repr(sorted(row.items())) for row in rows)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
def test_a_preview_of_a_retraction_equals_the_difference_of_complete_graphs(tmp_path, seed):
    with kgray.open(tmp_path / "data", create=True, settings={"model_backend": "rules"}) as memory:
        memory.add_many(list(stories(seed)))
        pair = memory.duplicates(group="g", limit=1)
        if pair:
            memory.merge(pair[0].a, pair[0].b, group="g")
        store = memory.store
        episodes = [item.id for item in memory.log(group="g", limit=1000).episodes]
        rng = random.Random(seed)
        chosen = [(id_,) for id_ in rng.sample(episodes, 15)]
        chosen += [tuple(rng.sample(episodes, 5)) for _ in range(4)]
        for ids in chosen:
            operation = Operation(group="g", kind="retract", episodes=ids)
            assert lines(preview.correction_rows(store, operation)) == lines(
                difference_of_groups(store, operation)
            )
