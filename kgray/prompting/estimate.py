"""An estimate of the model calls and tokens that some texts would cost; nothing is sent.

Heads and texts are counted at 4 characters a token. Replies and questions are not known beforehand; they are
estimated by the constants below, measured on simulated worlds of 200 to 1,000 episodes of 175 characters,
with one fact in 105 characters. Other texts may hold several times as many facts. The replies there have 116
to 120 tokens an episode with "combined", 123 to 127 with "separate". Calls measured there, for an episode:

    extraction  resolution  judging    calls
    combined    batched     relation   1.07 to 1.10
    separate    batched     relation   3.10
    combined    batched     statement  1.71 to 1.88
    combined    per_node    relation   1.07 to 1.10
    combined    per_node    statement  1.85 to 2.18; grows with the facts about the same people

A prompt is counted with its previous context, though a text that explains itself is read without. A long text
is counted with all its units, as if they were full.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kgray.prompting.prompts import Prompts, tokens
from kgray.records import Draft
from kgray.settings import PipelineSettings

FACT_TEXT_TOKENS = 26  # about 100 characters of a text hold one fact, and name two entities
# By task: the tokens of a reply around its lists, and for each fact, as JSON without spaces; those for each
# fact that the data shows beside the texts.
_TASKS: Mapping[str, tuple[int, int, int]] = {
    "combined": (8, 65, 0),
    "extract_entities": (4, 21, 0),
    "reflect": (7, 0, 30),
    "extract_facts": (4, 37, 19),
    "date_facts": (4, 8, 20),
}
# Calls with questions an episode, by (resolution, judging) and task: about names that are alike, and with
# judging = "statement" about each new statement that has others to be compared with.
QUESTION_CALLS: Mapping[tuple[str, str], Mapping[str, float]] = {
    ("batched", "relation"): {"batched": 0.1},
    ("batched", "statement"): {"batched": 0.73},
    ("per_node", "relation"): {"resolve_entity": 0.1},
    ("per_node", "statement"): {"resolve_entity": 0.1, "contradiction": 1.1},
}
_EPISODE = 25  # tokens around the text of an episode: its time, its speaker
_ANSWER = (16, 0, 0)  # of a reply with one answer
_QUESTION = 80  # tokens of one question; that of a contradiction comes without the texts


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
    asked = QUESTION_CALLS[pipeline.resolution, pipeline.judging]
    steps = ["combined"]
    if pipeline.extraction == "separate":
        steps = ["extract_entities", "extract_facts", "date_facts"]
    calls = {**dict.fromkeys(steps, 1.0), "reflect": float(pipeline.reflect_rounds), **asked}
    heads = {task: tokens(prompts[task].head) for task in calls}
    previous: dict[tuple[str, str], deque[int]] = {}  # by source: tokens of the last episodes
    episodes, triples, prompt, completion = 0, 0, 0.0, 0.0
    totals = dict.fromkeys(calls, 0.0)  # calls, by task
    for draft in drafts:
        episodes += 1
        if draft.kind == "triples":
            triples += 1
            continue
        length = tokens(draft.text)
        before = previous.setdefault((draft.group, draft.source), deque(maxlen=pipeline.previous_episodes))
        units = _units(draft.kind, length, pipeline)
        context = sum(before) if not pipeline.unit_tokens else min(sum(before), pipeline.unit_tokens)
        text = length + (units - 1) * pipeline.unit_overlap
        facts = max(1.0, text / FACT_TEXT_TOKENS)
        for task, times in calls.items():
            around, reply, shown = _TASKS.get(task, _ANSWER)
            count = times if task in asked else times * units  # questions are about the whole episode
            texts = text + count / times * (context + (1 + len(before)) * _EPISODE) if times else 0
            data = facts * shown + (0 if task == "contradiction" else texts) + (task in asked) * _QUESTION
            prompt += times * data + count * heads[task]
            completion += count * around + times * facts * reply
            totals[task] += count
        before.append(length)
    return WorkEstimate(
        episodes=episodes,
        triples=triples,
        calls=round(sum(totals.values())),
        prompt_tokens=round(prompt),
        fixed_tokens=round(sum(count * heads[task] for task, count in totals.items())),
        completion_tokens=round(completion),
    )


def _units(kind: str, length: int, pipeline: PipelineSettings) -> int:
    """Return how many text units a text of `length` tokens has if all of them are full."""
    if kind == "json" or not pipeline.unit_tokens or length <= pipeline.unit_tokens:
        return 1
    return -(-(length - pipeline.unit_overlap) // (pipeline.unit_tokens - pipeline.unit_overlap))
