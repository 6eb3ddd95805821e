"""What a dry run estimates, beside what a simulated world really takes."""

from __future__ import annotations

import json

import pytest

from bench.model_server.tasks import wire_fact
from bench.world import Oracle, World, WorldPlan
from kgray.ontology import shipped
from kgray.prompting.estimate import estimate_work
from kgray.prompting.prompts import Prompts, tokens
from kgray.settings import PipelineSettings

EPISODES = 200
DATES = ("valid_at", "invalid_at")


def size(reply: object) -> int:
    return tokens(json.dumps(reply, ensure_ascii=False, separators=(",", ":")))


@pytest.mark.parametrize("extraction", ["combined", "separate"])
def test_replies_are_as_long_as_planned(extraction):
    """Within a tenth, on the texts that the constants were measured on; questions add little."""
    oracle = Oracle(World(plan=WorldPlan(episodes=EPISODES)))
    written = 0
    for episode in oracle.world:
        reply = oracle.extraction(episode.draft.text)
        facts = [wire_fact(fact) for fact in reply["facts"]]
        if extraction == "combined":
            written += size({"entities": reply["entities"], "facts": facts})
            continue
        bare = [{key: f[key] for key in f if key not in DATES} for f in facts]
        dates = [{"id": place, **{key: f[key] for key in DATES}} for place, f in enumerate(facts)]
        written += size({"entities": reply["entities"]}) + size({"facts": bare}) + size({"facts": dates})

    found = estimate_work(
        [episode.draft for episode in oracle.world],
        Prompts(shipped()),
        PipelineSettings(extraction=extraction),
    )

    assert found.completion_tokens == pytest.approx(written, rel=0.1)


@pytest.mark.parametrize(
    ("resolution", "judging", "calls"),
    [
        ("batched", "relation", 1.1),
        ("batched", "statement", 1.73),
        ("per_node", "relation", 1.1),
        ("per_node", "statement", 2.2),
    ],
)
def test_questions_take_the_calls_that_were_measured(resolution, judging, calls):
    drafts = [episode.draft for episode in World(plan=WorldPlan(episodes=EPISODES))]

    found = estimate_work(
        drafts, Prompts(shipped()), PipelineSettings(resolution=resolution, judging=judging)
    )

    assert found.calls == round(calls * EPISODES)
