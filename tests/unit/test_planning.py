"""The estimate of a dry run against the real cost of a simulated world."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kgray.domain.ontology import shipped
from kgray.models.prompting.estimate import QUESTION_CALLS, estimate_work
from kgray.models.prompting.prompts import Prompts, tokens
from kgray.settings import PipelineSettings
from tests import make
from tests.world import Oracle, World, WorldPlan
from tests.world.model_server.tasks import model_facts

EPISODES = 200
DATES = ("start", "end")


def size(reply: object) -> int:
    return tokens(json.dumps(reply, ensure_ascii=False, separators=(",", ":")))


@pytest.mark.parametrize("extraction", ["combined", "separate"])
def test_planned_reply_lengths_match_simulated_replies(extraction):
    """Within a tenth, on the texts that the constants were measured on, without answers to questions."""
    oracle = Oracle(World(plan=WorldPlan(episodes=EPISODES)))
    written = 0
    for episode in oracle.world:
        reply = oracle.extraction(episode.draft.text)
        facts = model_facts(reply)
        if extraction == "combined":
            written += size({"entities": reply["entities"], "facts": facts})
            continue
        bare = [{key: f[key] for key in f if key not in DATES} for f in facts]
        dates = [{"id": place, **{key: f[key] for key in DATES}} for place, f in enumerate(facts)]
        written += size({"entities": reply["entities"]}) + size({"facts": bare}) + size({"facts": dates})

    result = estimate_work(
        [episode.draft for episode in oracle.world],
        Prompts(shipped()),
        PipelineSettings(extraction=extraction),
    )

    answers = EPISODES * sum(share * reply for share, _, reply in QUESTION_CALLS["batched"].values())
    assert result.completion_tokens - answers == pytest.approx(written, rel=0.1)


@pytest.mark.parametrize(("resolution", "calls"), [("batched", 1.5), ("per_node", 1.8)])
def test_planned_calls_for_questions_match_the_measured_rate(resolution, calls):
    drafts = [episode.draft for episode in World(plan=WorldPlan(episodes=EPISODES))]

    result = estimate_work(drafts, Prompts(shipped()), PipelineSettings(resolution=resolution))

    assert result.calls == round(calls * EPISODES)


@pytest.mark.parametrize(
    ("text", "speaker", "shows"),
    [
        ("Alice works at Acme.", "Bob", False),
        ("She works at Acme.", "Bob", True),  # a word in place of a name
        ("yes, for years", "Ann", True),  # the answer to a question of another speaker
        ("yes, for years", "Bob", False),
    ],
)
def test_the_previous_context_is_counted_only_if_the_prompt_has_it(text, speaker, shows):
    first = make.draft("x" * 400 + " Is that so?", "Bob")
    later_value = make.draft(text, speaker, "message")
    prompts = Prompts(shipped())

    def prompt_tokens(**settings):
        return estimate_work([first, later_value], prompts, PipelineSettings(**settings)).prompt_tokens

    context = prompt_tokens() - prompt_tokens(previous_episodes=0)

    assert (context > 100) == shows
    assert shows or context == 0


@pytest.mark.parametrize("extraction", ["combined", "separate"])
def test_a_long_text_is_planned_by_its_units(extraction):
    """10,000 tokens are 9 units of 1,200 that share 100; each has a prompt's head and the previous text."""
    text = ("Alice works at Acme since 2019, and Bob too. " * 1000)[:40_000]
    draft = make.draft(text, at=0)
    prompts = Prompts(shipped())

    def planned(kind, **keys):
        drafts = [draft, replace(draft, kind=kind, text=f"{text[:-1]}!")]
        return estimate_work(drafts, prompts, PipelineSettings(extraction=extraction, **keys))

    units, complete_result = planned("text"), planned("text", unit_tokens=0)
    calls = {"combined": 1, "separate": 3}[extraction]
    assert round(complete_result.calls) == round(2 * (calls + 0.5))
    assert round(units.calls) == round(2 * (9 * calls + 0.5))
    questions = 2 * 0.5 * tokens(prompts["batched"].head)  # asked once for any number of units
    expected = 9 * (complete_result.fixed_tokens - questions) + questions
    assert units.fixed_tokens == pytest.approx(expected, abs=2)
    # Per unit at most 1,200 tokens of its text, and as many of the text before it.
    output = (units.prompt_tokens - units.fixed_tokens) / units.calls
    assert output < 2 * 1200 + 1500
    assert planned("json").calls == round(calls * 10 + 2 * 0.5)
