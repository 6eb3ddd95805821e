"""Free relation names: states contradict and continue each other, and end, under any names (R17a-R17c)."""

from __future__ import annotations

from pathlib import Path

import pytest

from kgray.ports import Answer, Judged, QuestionRequest
from tests.graph.engine import Engine, reading

ENDS = ("left", "sold", "moved")


class CarefulJudge:
    """A judge of sentences about one person whose last word is the object.

    A sentence with a word of ENDS ends states with its object. Two other sentences agree if they have the
    same object, and contradict each other otherwise.
    """

    identity = "careful"

    def __init__(self) -> None:
        """Start with no question heard."""
        self.compared: list[tuple[str, tuple[str, ...]]] = []

    def key(self, request: QuestionRequest) -> str:
        """Return the request's key."""
        return request.key(self.identity)

    async def judge(self, request: QuestionRequest) -> Judged:
        """Answer comparisons; a name means the first candidate."""
        comparisons = [question for question in request.questions if question.kind == "compare"]
        self.compared += [(question.item, question.candidates) for question in comparisons]
        answers: list[Answer] = [
            {"answers": [self._word(question.item, candidate) for candidate in question.candidates]}
            if question.kind == "compare"
            else {"duplicate_of": 0}
            for question in request.questions
        ]
        return Judged(answers=tuple(answers), calls=1)

    @staticmethod
    def _word(item: str, candidate: str) -> str:
        is_equal = item.rsplit(maxsplit=1)[-1] == candidate.rsplit(maxsplit=1)[-1]
        if any(word in candidate for word in ENDS):
            return "independent"
        if any(word in item for word in ENDS):
            return "ends" if is_equal else "independent"
        return "same" if is_equal else "contradicts"


def spans(folder: Path, *facts: tuple[int, str, str, str, str]) -> list[tuple[str, object, object]]:
    """Return ("RELATION object", from, to); facts: (day, relation, sentence, type of the object, kind)."""
    engine = Engine(folder, judge=CarefulJudge())
    for day, relation, sentence, label, kind in facts:
        target = sentence.split()[-1]
        entities = [{"name": "Ingrid Dahl", "type": "Person"}, {"name": target, "type": label}]
        fact = {"source": 0, "target": 1, "relation": relation, "fact": sentence, "kind": kind}
        engine.add(reading(day, entities, [fact], client_id=f"d{day}"))
    engine.check()
    relations = {fact.relation for fact in engine.view().all_facts()}
    return sorted(
        (f"{relation} {name}", start, end)
        for relation in relations
        for name, periods in engine.spans(relation).items()
        for start, end in periods
    )


def test_states_with_ends_of_equal_type_are_compared_despite_unlike_sentences(tmp_path):
    """Names of places and people make up most of a sentence: its vector hardly shows that both are homes."""
    assert spans(
        tmp_path,
        (0, "DWELLS_IN", "Ingrid Dahl dwells in Longyearbyen", "Place", "holds"),
        (
            10,
            "HAS_A_FLAT_IN",
            "Dahl is the tenant of several small rooms downtown in Oslo",
            "Place",
            "holds",
        ),
    ) == [("DWELLS_IN Longyearbyen", 0, 10), ("HAS_A_FLAT_IN Oslo", 10, None)]


def test_a_return_under_another_relation_name_is_the_same_state(tmp_path):
    """It does not meet the span of the state that it continues, which has ended."""
    assert spans(
        tmp_path,
        (0, "HAS_A_JOB_AT", "Ingrid Dahl has a job at Nordwind", "Organization", "holds"),
        (10, "LEFT", "Ingrid Dahl left Nordwind", "Organization", "ended"),
        (20, "GETS_PAID_BY", "Ingrid Dahl gets paid by Nordwind", "Organization", "holds"),
    ) == [("HAS_A_JOB_AT Nordwind", 0, 10), ("HAS_A_JOB_AT Nordwind", 20, None)]


def test_an_end_does_not_rename_the_state_that_it_ends(tmp_path):
    """SOLD is a listed name and HOLDS_TITLE_TO is not, but there was no sale while she owned it."""
    assert spans(
        tmp_path,
        (0, "HOLDS_TITLE_TO", "Ingrid Dahl holds title to Skybike", "Product", "holds"),
        (10, "SOLD", "Ingrid Dahl sold Skybike", "Product", "ended"),
    ) == [("HOLDS_TITLE_TO Skybike", 0, 10)]


@pytest.mark.parametrize("kind", ["ended", "holds"])
def test_a_second_end_under_one_name_ends_the_reopened_state(tmp_path, kind):
    """The first end belongs to the state too; a fact of its name does not say that the state holds."""
    rows = spans(
        tmp_path,
        (0, "HAS_A_JOB_AT", "Ingrid Dahl has a job at Nordwind", "Organization", "holds"),
        (10, "LEFT", "Ingrid Dahl left Nordwind", "Organization", "happened"),
        (20, "HAS_A_JOB_AT", "Ingrid Dahl has a job at Nordwind", "Organization", "holds"),
        (30, "LEFT", "Ingrid Dahl left Nordwind", "Organization", kind),
    )

    states = [row for row in rows if row[0].startswith("HAS_A_JOB_AT")]
    assert states == [("HAS_A_JOB_AT Nordwind", 0, 10), ("HAS_A_JOB_AT Nordwind", 20, 30)]


def test_a_repeated_event_ends_the_reopened_state(tmp_path):
    rows = spans(
        tmp_path,
        (0, "HAS_A_JOB_AT", "Ingrid Dahl has a job at Nordwind", "Organization", "holds"),
        (10, "LEFT", "Ingrid Dahl left Nordwind", "Organization", "happened"),
        (20, "HAS_A_JOB_AT", "Ingrid Dahl has a job at Nordwind", "Organization", "holds"),
        (30, "LEFT", "Ingrid Dahl left Nordwind", "Organization", "happened"),
    )

    states = [row for row in rows if row[0].startswith("HAS_A_JOB_AT")]
    assert states == [("HAS_A_JOB_AT Nordwind", 0, 10), ("HAS_A_JOB_AT Nordwind", 20, 30)]


def test_an_end_of_an_ended_state_creates_no_span(tmp_path):
    rows = spans(
        tmp_path,
        (0, "HAS_A_JOB_AT", "Ingrid Dahl has a job at Nordwind", "Organization", "holds"),
        (10, "HAS_A_JOB_AT", "Ingrid Dahl has a job at Sudwind", "Organization", "holds"),
        (30, "LEFT", "Ingrid Dahl left Nordwind", "Organization", "ended"),
    )

    assert rows == [("HAS_A_JOB_AT Nordwind", 0, 10), ("HAS_A_JOB_AT Sudwind", 10, None)]
