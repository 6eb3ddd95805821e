"""The offline models. `extractor` reads English by phrases and JSON by its structure; `RulesJudge` answers.

The judge says "same", "contradicts" or "ends" only where the words of two sentences show it (`comparing`).
What the ontology declares is decided before a judge is asked (R17). A command that needs only the judge does
not import the extractor.
"""

from __future__ import annotations

from kgray.backends.rules.comparing import compare_sentences
from kgray.ports import Answer, Judged, Question, QuestionRequest
from kgray.prompting.replies import parse_answer
from kgray.records import clean_text


class RulesJudge:
    """Answers both kinds of question.

    An entity question with exactly one candidate of the very same name (case aside) is answered with it: else
    every one-word name, which R15 keeps from the automatic steps, would be a new entity in every episode.
    """

    identity = "rules-2"

    def key(self, request: QuestionRequest) -> str:
        return request.key(self.identity)

    async def judge(self, request: QuestionRequest) -> Judged:
        return Judged(answers=tuple(map(_answer, request.questions)))


def _answer(question: Question) -> Answer:
    if question.kind == "compare":
        words = [compare_sentences(question.item, candidate) for candidate in question.candidates]
        return parse_answer(question, {"answers": words})
    name = clean_text(question.item).casefold()
    same = [i for i, other in enumerate(question.candidates) if clean_text(other).casefold() == name]
    return {"duplicate_of": same[0] if len(same) == 1 else None}
