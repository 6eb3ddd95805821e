"""The offline models. `extractor` reads English by phrases and JSON by its structure; `RulesJudge` answers.

The judge says "same", "contradicts" or "ends" only if the words of two sentences show it (`comparing`). The
ontology's declarations are applied before a judge is asked (R17). A command that needs only the judge does
not import the extractor.
"""

from __future__ import annotations

from kgray.backends.rules.comparing import compare_sentences
from kgray.ports import Answer, Judged, Question, QuestionRequest
from kgray.prompting.replies import parse_answer
from kgray.records import clean_text


class RulesJudge:
    """Answers both kinds of question.

    The answer to an entity question is the only candidate with the same name (ignoring case): otherwise every
    one-word name, which R15 excludes from the automatic steps, would be a new entity in every episode.
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
    matches = [i for i, text in enumerate(question.candidates) if clean_text(text).casefold() == name]
    return {"duplicate_of": matches[0] if len(matches) == 1 else None}
