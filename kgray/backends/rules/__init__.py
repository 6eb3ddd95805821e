"""The offline models. `extractor` reads English by phrases and JSON by its structure; `RulesJudge` answers.

The judge never says that two things are one, because a wrong "same" costs more than a duplicate (R15), and
never that two statements exclude each other, because that ends facts. What the ontology declares is decided
before a judge is asked (R17). A command that needs only the judge does not import the extractor.
"""

from __future__ import annotations

from kgray.ports import Answer, Judged, QuestionRequest
from kgray.records import clean_text


class RulesJudge:
    """Answers each kind of question in one way.

    An entity question with exactly one candidate of the very same name (case aside) is answered with it: else
    every one-word name, which R15 keeps from the automatic steps, would be a new entity in every episode.
    """

    identity = "rules-1"

    def key(self, request: QuestionRequest) -> str:
        return request.key(self.identity)

    async def judge(self, request: QuestionRequest) -> Judged:
        answers: list[Answer] = []
        for question in request.questions:
            name = clean_text(question.item).casefold()
            same = [i for i, other in enumerate(question.candidates) if clean_text(other).casefold() == name]
            by_kind: dict[str, Answer] = {
                "entity": {"duplicate_of": same[0] if len(same) == 1 else None},
                "variant": {"duplicate_of": None},
                "relation": {},  # independent
                "cardinality": {"cardinality": "many"},
                "verdict": {"contradicts": []},
            }
            answers.append(by_kind[question.kind])
        return Judged(answers=tuple(answers))
