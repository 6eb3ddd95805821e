"""The stages of an episode in a window: only transitions of the table are allowed."""

from __future__ import annotations

import asyncio
from itertools import product

import pytest

from kgray.domain.records import Extraction
from kgray.ingest.flight import STAGES_AFTER, InFlight, Stage
from kgray.ingest.state import Decision, Questions, ReadEpisode
from kgray.ports import Question
from tests import make

EPISODE = make.episode("Hi", sequence=3)
QUESTION = Question(kind="entity", item="Al", candidates=("Alice",))
PATHS: dict[Stage, tuple[Stage, ...]] = {  # a way to each stage
    "accepted": (),
    "reading": ("reading",),
    "asking": ("reading", "asking"),
    "ready": ("reading", "asking", "ready"),
    "committed": ("reading", "asking", "ready", "committed"),
    "failed": ("reading", "failed"),
}


async def flight(stage: Stage) -> InFlight:
    item = InFlight(EPISODE, 0)
    for each in PATHS[stage]:
        item.enter(each)
    return item


@pytest.mark.parametrize(("stage", "next_stage"), list(product(STAGES_AFTER, STAGES_AFTER)))
async def test_only_transitions_of_the_table_are_allowed(stage: Stage, next_stage: Stage) -> None:
    item = await flight(stage)
    if next_stage in STAGES_AFTER[stage]:
        item.enter(next_stage)
        assert item.stage == next_stage
    else:
        with pytest.raises(
            RuntimeError, match=f"sequence 3 of group 'g' is {stage}: it cannot become {next_stage}"
        ):
            item.enter(next_stage)
        assert item.stage == stage


def test_every_stage_is_reachable_and_final_stages_have_no_successor() -> None:
    reached = {later_value for stages in STAGES_AFTER.values() for later_value in stages}
    assert reached == set(STAGES_AFTER) - {"accepted"}
    assert {stage for stage, later_value in STAGES_AFTER.items() if not later_value} == {
        "committed",
        "failed",
    }


async def test_a_ready_episode_asks_again_after_a_commit_opens_a_question() -> None:
    item = await flight("reading")
    item.finish_reading(ReadEpisode(episode=EPISODE, extraction=Extraction(entities=(), facts=())))
    assert item.stage == "asking"
    assert (await asyncio.wait_for(item.read, 1)).episode is EPISODE
    change = object()
    item.enter_after_decision(Decision(questions=Questions(), change=change))  # type: ignore[arg-type]
    assert (item.stage, item.is_decided) == ("ready", False)
    item.enter_after_decision(Decision(questions=Questions(open=[QUESTION]), change=change))  # type: ignore[arg-type]
    assert item.stage == "asking"
    item.enter_after_decision(Decision(questions=Questions(texts=["Hi"])))
    assert item.stage == "asking"
    item.enter_after_decision(Decision(questions=Questions(), change=change))  # type: ignore[arg-type]
    item.enter("committed")
    assert item.is_decided


async def test_a_second_extraction_call_does_not_change_the_stage() -> None:
    item = await flight("accepted")
    item.begin_reading()
    item.begin_reading()
    assert item.stage == "reading"
