"""An estimate of the model calls and tokens that some texts would cost; nothing is sent.

Heads and texts are counted at 4 characters a token. Replies and questions are not known beforehand; they are
estimated by the constants below, measured on simulated worlds of 200 to 1,000 episodes of 175 characters,
with one fact in 105 characters. Other texts may hold several times as many facts. The replies there have 116
to 120 tokens an episode with "combined", 123 to 127 with "separate".

An episode costs one call with "combined", three with "separate". Questions are counted as a real model of
1.5 B parameters caused them with 136 labelled messages (`python -m bench reading`): 0.5 calls with "batched",
where the questions of an episode share a call, and one for each question with "per_node". They cost less
where the ontology lists most relations, because it then answers: 0.2 calls in generated worlds.

The previous context is counted where the prompt shows it: by the whole text, also if this has several units.
A long text is counted with all its units, as if they were full.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kgray.domain.records import Draft, EpisodeKind
from kgray.models.prompting.model_checks import needed_context
from kgray.models.prompting.prompts import Prompts, tokens
from kgray.settings import PipelineSettings

FACT_TEXT_TOKENS = 26  # about 100 characters of a text hold one fact, and name two entities
# Task -> tokens of a reply around its lists, and for each fact, as JSON without spaces; tokens of a fact that
# the data lists in addition to the texts; whether the data shows the previous context.
_TASKS: Mapping[str, tuple[int, int, int, bool]] = {
    "combined": (8, 65, 0, True),
    "extract_entities": (4, 21, 0, True),
    "reflect": (7, 0, 30, True),
    "extract_facts": (4, 37, 19, True),
    "date_facts": (4, 8, 20, False),
}
# Resolution -> task -> calls with questions an episode, calls that show its text, tokens of a reply.
QUESTION_CALLS: Mapping[str, Mapping[str, tuple[float, float, int]]] = {
    "batched": {"batched": (0.5, 0.4, 40)},
    "per_node": {"resolve_entity": (0.54, 0.54, 16), "compare": (0.26, 0.0, 40)},
}
_EPISODE = 25  # tokens around the text of an episode: its time, its speaker
_QUESTION = 80  # tokens of one question
_TAIL = 100  # characters kept of a previous text: its end shows if it is a question


class _Previous(NamedTuple):
    """A previous episode, as `needed_context` reads it, and the tokens of its whole text."""

    kind: EpisodeKind
    text: str  # its last characters: whole texts of many sources would fill the memory
    speaker: str | None
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkEstimate:
    """Calls and tokens. fixed_tokens: tokens of the prompts' heads, which a server's prefix cache serves."""

    episodes: int = 0
    triples: int = 0  # episodes that are never sent to a model for extraction
    calls: int = 0
    prompt_tokens: int = 0
    fixed_tokens: int = 0
    completion_tokens: int = 0


def estimate_work(drafts: Iterable[Draft], prompts: Prompts, pipeline: PipelineSettings) -> WorkEstimate:
    """Return the work of a language model for these drafts, if none of them had been ingested earlier."""
    questions = QUESTION_CALLS[pipeline.resolution]
    steps = ["combined"]
    if pipeline.extraction == "separate":
        steps = ["extract_entities", "extract_facts", "date_facts"]
    rounds = {**dict.fromkeys(steps, 1), "reflect": pipeline.reflect_rounds}
    heads = {task: tokens(prompts[task].head) for task in (*rounds, *questions)}
    previous: dict[tuple[str, str], deque[_Previous]] = {}  # by source: its last episodes
    episodes, triples, prompt, completion = 0, 0, 0.0, 0.0
    totals = dict.fromkeys(heads, 0.0)  # calls, by task
    for draft in drafts:
        episodes += 1
        if draft.kind == "triples":
            triples += 1
            continue
        length = tokens(draft.text)
        earlier = previous.setdefault((draft.group, draft.source), deque(maxlen=pipeline.previous_episodes))
        units = _units(draft.kind, length, pipeline)
        context = _context(draft, earlier, pipeline)
        text = length + (units - 1) * pipeline.unit_overlap
        facts = max(1.0, text / FACT_TEXT_TOKENS)
        for task, times in rounds.items():
            around, reply, listed, has_context = _TASKS[task]
            calls = times * units
            prompt += times * (text + facts * listed) + calls * (
                heads[task] + _EPISODE + has_context * context
            )
            completion += calls * around + times * facts * reply
            totals[task] += calls
        for task, (share, with_text, reply) in questions.items():  # questions are about the whole episode
            prompt += share * (heads[task] + _QUESTION) + with_text * (text / units + _EPISODE)
            completion += share * reply
            totals[task] += share
        earlier.append(_Previous(draft.kind, draft.text[-_TAIL:], draft.speaker, length))
    return WorkEstimate(
        episodes=episodes,
        triples=triples,
        calls=round(sum(totals.values())),
        prompt_tokens=round(prompt),
        fixed_tokens=round(sum(calls * heads[task] for task, calls in totals.items())),
        completion_tokens=round(completion),
    )


def _context(draft: Draft, previous: Sequence[_Previous], pipeline: PipelineSettings) -> int:
    """Return the tokens of the previous context that the prompt of a text shows."""
    context = needed_context(draft, tuple(previous))
    total = sum(episode.tokens for episode in context)
    return (min(total, pipeline.unit_tokens) if pipeline.unit_tokens else total) + len(context) * _EPISODE


def _units(kind: str, length: int, pipeline: PipelineSettings) -> int:
    """Return the number of text units of a text of `length` tokens if all of them are full."""
    if kind == "json" or not pipeline.unit_tokens or length <= pipeline.unit_tokens:
        return 1
    return -(-(length - pipeline.unit_overlap) // (pipeline.unit_tokens - pipeline.unit_overlap))
