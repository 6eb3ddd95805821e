"""What `kgray plan` estimates, beside what a simulated world really takes."""

from __future__ import annotations

import json

import pytest

from kgray.bench.model_server.tasks import wire_fact
from kgray.bench.world import Oracle, Plan, World
from kgray.ontology import shipped
from kgray.planning import Shape, plan
from kgray.prompting import Prompts, tokens

EPISODES = 200


def size(*lists: object) -> int:
    return tokens(json.dumps(lists, ensure_ascii=False, separators=(",", ":")))


@pytest.mark.parametrize("extraction", ["combined", "separate"])
def test_replies_are_as_long_as_planned(extraction):
    """Within a tenth, on the texts that the constants were measured on; questions add little to either."""
    oracle = Oracle(World(plan=Plan(episodes=EPISODES)))
    written = 0
    for episode in oracle.world:
        reply = oracle.extraction(episode.draft.text)
        facts = [wire_fact(fact) for fact in reply["facts"]]
        written += size(reply["entities"], facts)
        if extraction == "separate":
            written += size([{"id": 0, "from": f["valid_at"], "to": f["invalid_at"]} for f in facts])
            written -= size([{"from": f["valid_at"], "to": f["invalid_at"]} for f in facts])

    found = plan(
        [episode.draft for episode in oracle.world], Prompts(shipped()), Shape(extraction=extraction)
    )

    assert found.completion_tokens == pytest.approx(written, rel=0.1)


def test_asking_apart_and_for_each_statement_takes_the_most_calls():
    """The calls an episode, as they were measured."""
    drafts = [episode.draft for episode in World(plan=Plan(episodes=EPISODES))]

    calls = {
        (resolution, judging): plan(
            drafts, Prompts(shipped()), Shape(resolution=resolution, judging=judging)
        ).calls
        / EPISODES
        for resolution in ("batched", "per_node")
        for judging in ("relation", "statement")
    }

    assert sorted(calls, key=calls.__getitem__) == [
        ("batched", "relation"),
        ("per_node", "relation"),
        ("batched", "statement"),
        ("per_node", "statement"),
    ]
