"""An estimate of the model calls and tokens that some texts would cost; nothing is sent.

The prompts are rendered as they would be sent, and counted at 4 characters a token. Replies and questions are
not known beforehand; they are estimated by the constants below, measured on simulated worlds of 500 and 1,000
episodes of 175 characters, with one fact in 105 characters. Other texts may hold several times as many
facts. Measured there, for an episode:

    extraction  resolution  judging    calls         completion tokens
    combined    batched     relation   1.07 to 1.10  118
    separate    batched     relation   3.10          125
    combined    batched     statement  1.71 to 1.88  131 to 134
    combined    per_node    relation   1.07 to 1.10  118
    combined    per_node    statement  1.85 to 2.18  132 to 135; grows with the facts about the same people
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from kgray.ports import ExtractionRequest, Question
from kgray.prompting.prompts import Prompts, dating_data, extraction_data, questions_data, tokens
from kgray.records import Draft, Episode, ExtractedEntity
from kgray.settings import PipelineSettings

# About 100 characters of text (26 tokens) hold one fact and name two entities. These are the tokens that
# facts, dates and entities take in a reply, as JSON without spaces.
FACT_TEXT_TOKENS, FACT_ENTITIES = 26, 2.0
FACT_TOKENS, DATE_TOKENS, ENTITY_TOKENS = 35, 9, 11
DATED_TOKENS = 12  # of a fact's dates, when they are asked for in a separate call
REPLY_TOKENS, ANSWER_TOKENS = 4, 12  # of the brackets around a list, and of one answer
# Calls with questions an episode, by (resolution, judging) and task: about names that are alike, and with
# judging = "statement" about each new statement that has others to be compared with.
QUESTION_CALLS: Mapping[tuple[str, str], Mapping[str, float]] = {
    ("batched", "relation"): {"batched": 0.1},
    ("batched", "statement"): {"batched": 0.73},
    ("per_node", "relation"): {"resolve_entity": 0.1},
    ("per_node", "statement"): {"resolve_entity": 0.1, "contradiction": 1.1},
}
_NAME = Question(kind="entity", item="x" * 12, candidates=("y" * 12,) * 2, cards=("x" * 80,) * 3)
_FACT = {
    "id": 0, "source": "x" * 12, "target": "x" * 12, "relation": "WORKS_AT", "fact": "x" * 40,
    "kind": "holds",
}  # fmt: skip
_STATEMENT = Question(kind="verdict", item="x" * 40, candidates=("y" * 40,) * 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkEstimate:
    """Calls and tokens. fixed_tokens: those of the prompts' heads, which a server's prefix cache serves."""

    episodes: int = 0
    triples: int = 0  # of the episodes: never sent to a model for extraction
    calls: int = 0
    prompt_tokens: int = 0
    fixed_tokens: int = 0
    completion_tokens: int = 0


def estimate_work(drafts: Iterable[Draft], prompts: Prompts, pipeline: PipelineSettings) -> WorkEstimate:
    """Return what a language model would have to do for these drafts, if none had been ingested before."""
    previous: dict[tuple[str, str], deque[Episode]] = {}
    episodes, triples = 0, 0
    calls, prompt, fixed, completion = 0.0, 0.0, 0.0, 0.0
    for draft in drafts:
        episodes += 1
        if draft.kind == "triples":
            triples += 1
            continue
        episode = draft.episode(episodes, now=0)
        before = previous.setdefault((draft.group, draft.source), deque(maxlen=pipeline.previous_episodes))
        request = ExtractionRequest(episode=episode, previous=tuple(before))
        for task, data, reply, times in (*_extraction(pipeline, request), *_questions(pipeline, episode)):
            head = tokens(prompts[task].head)
            calls += times
            fixed += times * head
            prompt += times * (head + tokens(data))
            completion += times * reply
        before.append(episode)
    return WorkEstimate(
        episodes=episodes,
        triples=triples,
        calls=round(calls),
        prompt_tokens=round(prompt),
        fixed_tokens=round(fixed),
        completion_tokens=round(completion),
    )


# Yielded: the task, its data, the tokens of the reply, and how many calls; a question may be part of one.
_Calls = Iterator[tuple[str, str, float, float]]


def _extraction(pipeline: PipelineSettings, request: ExtractionRequest) -> _Calls:
    facts = max(1.0, tokens(request.episode.text) / FACT_TEXT_TOKENS)
    entities = facts * FACT_ENTITIES
    data = extraction_data(request)
    if pipeline.extraction == "combined":
        written = facts * (FACT_TOKENS + DATE_TOKENS) + entities * ENTITY_TOKENS
        yield "combined", data, 2 * REPLY_TOKENS + written, 1
        return
    named = extraction_data(request, [ExtractedEntity(name="x" * 12, type="Person")] * round(entities))
    dated = dating_data(request.episode, [_FACT] * round(facts))
    yield "extract_entities", data, REPLY_TOKENS + entities * ENTITY_TOKENS, 1
    yield "reflect", named, REPLY_TOKENS, pipeline.reflect_rounds
    yield "extract_facts", named, REPLY_TOKENS + facts * FACT_TOKENS, 1
    yield "date_facts", dated, REPLY_TOKENS + facts * DATED_TOKENS, 1


def _questions(pipeline: PipelineSettings, episode: Episode) -> _Calls:
    for task, calls in QUESTION_CALLS[pipeline.resolution, pipeline.judging].items():
        apart = task == "contradiction"  # the one that is not shown the episode
        data = questions_data(None if apart else episode, (_STATEMENT if apart else _NAME,))
        yield task, data, REPLY_TOKENS + ANSWER_TOKENS, calls
