"""How well a model compares a new sentence with known ones: `python -m bench comparisons`.

The labelled questions are bench/data/comparisons.jsonl: a "fact", and candidates with the accepted "answers",
the best one first. Each form of reply is a prompt and a schema:

    shipped  the prompts and the schema of the engine: a reason, then lists of candidates by word
    lists    the same lists without a reason
    words    one word a candidate, in their order
    rows     one object a candidate: its id and a word
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from bench.labelled_set.shares import share
from bench.tables import Column, aligned
from kgray.domain.records import Episode
from kgray.errors import ContentError, Cost, InputError, InvalidAnswer
from kgray.models.openai_api.asker import Asker
from kgray.models.openai_api.client import Client, Endpoint, TokensSpent
from kgray.models.openai_api.judge import OpenAIJudge
from kgray.models.openai_api.structured import StructuredRequest, structured
from kgray.models.prompting.prompts import Prompt, Prompts, questions_data, section
from kgray.models.prompting.replies import COMPARISONS, parse_answer
from kgray.models.prompting.reply_schemas import INDEX, Schema, choice_of, listed_of, object_of
from kgray.ports import Answer, Question, QuestionRequest

_DATA = Path(__file__).parents[1] / "data"
SHIPPED_SET = _DATA / "comparisons.jsonl"
_PROMPT = _DATA / "comparison_prompt.md"
_ROOM = (256, 128)  # tokens of a reply, and for each question
TIMEOUT_S = 600.0  # a small model on a busy processor takes minutes for a long reply
_EPISODE = Episode(
    group="g", sequence=1, id="e", source="s", kind="text", text="", reference_time=0, content_sha256=""
)  # comparisons do not show it
_LISTED = COMPARISONS[:-1]  # "independent" is the absence from all lists


class LabelledComparison(NamedTuple):
    """A question, and for each candidate the accepted words, the best one first."""

    question: Question
    accepted: tuple[tuple[str, ...], ...]


def load_comparisons(path: Path) -> list[LabelledComparison]:
    """Return the questions of a file. Raises InputError with the line of a fault."""
    labelled = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
            candidates = tuple(candidate["fact"] for candidate in row["candidates"])
            accepted = tuple(tuple(candidate["answers"]) for candidate in row["candidates"])
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}, line {number}: {error!r}") from None
        if not candidates or not all(words and set(words) <= set(COMPARISONS) for words in accepted):
            words = ", ".join(COMPARISONS)
            raise InputError(f"{path}, line {number}: each candidate needs answers among {words}")
        question = Question(kind="compare", item=row["fact"], candidates=candidates)
        labelled.append(LabelledComparison(question, accepted))
    return labelled


# ------------------------------------------------------------------------------------ forms


class ReplyForm(NamedTuple):
    """A form of reply.

    instruction  the sentence of the prompt that names the fields
    schema       of the answer to one question, beside its id
    written      the answer with these words, as the example shows it
    read         the answer in a form that `parse_answer` accepts
    """

    instruction: str
    schema: Mapping[str, Schema]
    written: Callable[[Sequence[str]], dict[str, Any]]
    read: Callable[[Mapping[str, Any]], Mapping[str, Any]]


def _in_lists(words: Sequence[str]) -> dict[str, Any]:
    return {name: [at for at, word in enumerate(words) if word == name] for name in _LISTED}


def _in_rows(words: Sequence[str]) -> dict[str, Any]:
    return {"candidates": [{"id": at, "answer": word} for at, word in enumerate(words)]}


def _from_rows(reply: Mapping[str, Any]) -> Mapping[str, Any]:
    lists: dict[str, list[Any]] = {word: [] for word in COMPARISONS}
    for row in reply.get("candidates", ()):
        if not isinstance(row, dict) or row.get("answer") not in lists:
            raise InvalidAnswer(f"a candidate's answer is none of {', '.join(COMPARISONS)}")
        lists[row["answer"]].append(row.get("id"))
    return lists


FORMS: Mapping[str, ReplyForm] = {
    "lists": ReplyForm(
        'Answer with {"id", "same", "contradicts", "ends"}: each field but "id" lists the ids of the '
        "candidates with this answer. Leave out independent candidates.",
        dict.fromkeys(_LISTED, listed_of(INDEX)),
        _in_lists,
        dict,
    ),
    "words": ReplyForm(
        'Answer with {"id", "answers"}: "answers" lists one of these words for each candidate, in the order '
        "of the candidates.",
        {"answers": listed_of(choice_of(COMPARISONS))},
        lambda words: {"answers": list(words)},
        dict,
    ),
    "rows": ReplyForm(
        'Answer with {"id", "candidates"}: "candidates" has one object {"id", "answer"} for each candidate, '
        "with its id and one of these words.",
        {"candidates": listed_of(object_of(id=INDEX, answer=choice_of(COMPARISONS)))},
        _in_rows,
        _from_rows,
    ),
}
_EXAMPLES: Mapping[str, Mapping[str, str]] = {  # by fact: candidate -> answer
    "Marta Ruiz lives in Oslo": {
        "Marta Ruiz likes Bergen": "independent",
        "Marta Ruiz lives in Bergen": "contradicts",
        "Marta Ruiz has her home in Oslo": "same",
    },
    "Marta Ruiz quit the rowing club": {
        "Marta Ruiz trains with the rowing club": "ends",
        "Marta Ruiz works at Nordwind": "independent",
    },
}


def head_of(form: ReplyForm) -> str:
    """Return the head of a form's prompt: the words, the fields, and the example of the shipped prompt."""
    rows, answers = [], []
    for place, (fact, words) in enumerate(_EXAMPLES.items()):
        candidates = [{"id": at, "fact": text} for at, text in enumerate(words)]
        rows.append({"id": place, "kind": "compare", "fact": fact, "candidates": candidates})
        answers.append({"id": place, **form.written(list(words.values()))})
    example = json.dumps({"answers": answers}, separators=(",", ":"))
    head = _PROMPT.read_text(encoding="utf-8").strip()
    return f"{head} {form.instruction}\n\nExample\n{section('QUESTIONS', rows)}{example}"


# ------------------------------------------------------------------------------------ running


@dataclass(slots=True, kw_only=True)
class ComparisonScores:
    """Answers of a model to labelled questions. A question without a usable reply has no answers."""

    form: str
    questions: int = 0
    failed: int = 0
    candidates: int = 0
    best: int = 0  # candidates with the best word
    accepted: int = 0  # candidates with an accepted word
    pairs: dict[str, int] = field(default_factory=dict)  # "best word > given word" -> candidates
    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0

    def add(self, labelled: LabelledComparison, words: Sequence[str] | None) -> None:
        """Count one question. words: the answer; None = there was no usable reply."""
        self.questions += 1
        self.failed += words is None
        for place, accepted in enumerate(labelled.accepted):
            word = words[place] if words is not None else "none"
            pair = f"{accepted[0]} > {word}"
            self.pairs[pair] = self.pairs.get(pair, 0) + 1
            self.candidates += 1
            self.best += word == accepted[0]
            self.accepted += word in accepted

    @property
    def best_share(self) -> float:
        """Share of the candidates with the best word."""
        return share(self.best, self.candidates)

    @property
    def accepted_share(self) -> float:
        """Share of the candidates with an accepted word."""
        return share(self.accepted, self.candidates)

    @property
    def false_share(self) -> float:
        """Share of the independent candidates that were called anything else: each would harm a fact."""
        wrong, total = 0, 0
        for pair, count in self.pairs.items():
            best, _, word = pair.partition(" > ")
            if best == "independent" and word != "none":
                total += count
                wrong += count * (word != best)
        return wrong / total if total else 0.0

    def recall(self, word: str) -> float:
        """Share of the candidates with this best word that were given it."""
        total = sum(count for pair, count in self.pairs.items() if pair.startswith(f"{word} >"))
        return share(self.pairs.get(f"{word} > {word}", 0), total)

    @property
    def same(self) -> float:
        """Recall of "same"."""
        return self.recall("same")

    @property
    def contradicts(self) -> float:
        """Recall of "contradicts"."""
        return self.recall("contradicts")

    @property
    def ends(self) -> float:
        """Recall of "ends"."""
        return self.recall("ends")


async def run(
    labelled: Sequence[LabelledComparison],
    endpoint: Endpoint,
    form: str,
    *,
    together: int = 1,
    progress: Callable[[str], None] = lambda _: None,
) -> ComparisonScores:
    """Ask a model all questions, one request after the other, and score its answers.

    together: questions a request; with the form "shipped", more than one use the prompt of "batched".
    Raises Unavailable, SettingsError.
    """
    scores = ComparisonScores(form=form)
    start = time.perf_counter()
    client = Client(endpoint)
    for first in range(0, len(labelled), together):
        part = labelled[first : first + together]
        questions = tuple(item.question for item in part)
        answers: Sequence[Answer | None] = [None] * len(part)
        try:
            answers, cost = await _answers(client, form, questions)
        except ContentError as error:
            cost = error.spent
            progress(f"{questions[0].item}: {error}")
        scores.calls += cost.calls
        scores.prompt_tokens += cost.prompt_tokens
        scores.completion_tokens += cost.completion_tokens
        for item, answer in zip(part, answers, strict=True):
            scores.add(item, None if answer is None else answer["answers"])
    scores.seconds = time.perf_counter() - start
    return scores


async def _answers(
    client: Client, form: str, questions: tuple[Question, ...]
) -> tuple[Sequence[Answer], Cost]:
    if form == "shipped":
        judge = OpenAIJudge(client, Prompts(), apart=len(questions) == 1)
        judged = await judge.judge(QuestionRequest(episode=_EPISODE, questions=questions))
        return judged.answers, judged.cost
    chosen, spent = FORMS[form], TokensSpent()

    def accept(reply: Mapping[str, Any]) -> list[Answer]:
        rows = {row.get("id"): row for row in reply["answers"] if isinstance(row, dict)}
        if missing := [place for place in range(len(questions)) if place not in rows]:
            raise InvalidAnswer(f"no answer to the questions with id {missing}")
        return [parse_answer(q, chosen.read(rows[place])) for place, q in enumerate(questions)]

    request = StructuredRequest(
        prompt=Prompt(f"compare_{form}", head_of(chosen)),
        data=questions_data(None, questions),
        schema=object_of(answers=listed_of(object_of(id=INDEX, **chosen.schema))),
        room=_ROOM[0] + _ROOM[1] * len(questions),
    )
    with spent.on_errors():
        steps, prompt_form = structured(request, accept), (request.prompt, request.schema)
        answers, _ = await Asker(client).carry_out(steps, lambda _: prompt_form, spent)
    return answers, spent.cost


def run_forms(
    labelled: Sequence[LabelledComparison],
    forms: Sequence[str],
    endpoint: Endpoint,
    *,
    together: int,
    progress: Callable[[str], None],
) -> list[ComparisonScores]:
    """Return the scores of each form."""

    async def all_forms() -> list[ComparisonScores]:
        return [await run(labelled, endpoint, form, together=together, progress=progress) for form in forms]

    return asyncio.run(all_forms())


_COLUMNS: Sequence[Column] = (
    ("form", "form", ""), ("questions", "questions", "d"), ("failed", "failed", "d"),
    ("best_share", "best", ".3f"), ("accepted_share", "accepted", ".3f"), ("false_share", "false", ".3f"),
    ("same", "same", ".2f"), ("contradicts", "contradicts", ".2f"), ("ends", "ends", ".2f"),
    ("calls", "calls", "d"), ("prompt_tokens", "prompt", "d"), ("completion_tokens", "reply", "d"),
    ("seconds", "s", ".0f"),
)  # fmt: skip


def table(results: Sequence[ComparisonScores]) -> str:
    """Return one line a form: shares of the candidates, recall of each word, tokens of all questions."""
    return "\n".join(aligned(_COLUMNS, results))
