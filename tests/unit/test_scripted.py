"""Models that answer from a file, as `model.script` of the settings promises."""

from __future__ import annotations

import json

import pytest

from kgray.domain.records import ExtractedEntity, ExtractedFact, Extraction
from kgray.errors import InvalidAnswer, Refused, SettingsError, Unavailable
from kgray.models.scripted import ScriptedExtractor, ScriptedJudge
from kgray.ports import ExtractionRequest, Judged, Question, QuestionRequest
from tests import make

REPLY = {"entities": [{"name": "Alice"}], "facts": [{"source": 0, "target": "Acme", "relation": "WORKS_AT"}]}


@pytest.fixture
def script(tmp_path):
    """Return a function that writes lines (text, or values as JSON) to a script and returns its path."""

    def write(*lines: object):
        path = tmp_path / "script.jsonl"
        path.write_text(
            "\n".join(item if isinstance(item, str) else json.dumps(item) for item in lines), "utf-8"
        )
        return path

    return write


def request(client_id: str | None) -> ExtractionRequest:
    episode = make.episode("Alice works at Acme", at=7, client_id=client_id)
    return ExtractionRequest(episode=episode)


async def test_an_episode_gets_its_extraction_by_client_id(script):
    extractor = ScriptedExtractor(script("", {"episode": "m1", "extraction": REPLY}, "  "))

    assert await extractor.extract(request("m1")) == Extraction(
        entities=(ExtractedEntity(name="Alice", span=(0, 5)), ExtractedEntity(name="Acme", span=(15, 19))),
        facts=(
            ExtractedFact(
                source=0,
                target=1,
                relation="WORKS_AT",
                text="Alice works at Acme",
                valid_from=7,
                from_precision="instant",
                inferred=True,
            ),
        ),
        model="scripted-1",
        calls=1,
    )


@pytest.mark.parametrize(
    ("client_id", "reason"),
    [
        ("m2", "the script has no extraction of the episode 'm2'"),
        (None, "a script knows episodes by the client's id, and this one has none"),
    ],
)
async def test_a_request_missing_from_the_script_is_an_invalid_answer(script, client_id, reason):
    extractor = ScriptedExtractor(script({"episode": "m1", "extraction": REPLY}))

    with pytest.raises(InvalidAnswer, match=reason):
        await extractor.extract(request(client_id))


async def test_an_extraction_of_the_wrong_shape_fails_its_episode(script):
    extractor = ScriptedExtractor(script({"episode": "m1", "extraction": {"entities": []}}))

    with pytest.raises(InvalidAnswer, match="'facts' of the reply"):
        await extractor.extract(request("m1"))


async def test_scripted_errors_precede_the_extraction(script):
    extractor = ScriptedExtractor(
        script(
            {"episode": "m1", "extraction": REPLY},
            {"episode": "m1", "error": "unavailable", "times": 2},
            {"episode": "m1", "error": "refused", "times": 1},
            {"episode": "m2", "error": "invalid"},
        )
    )

    for expected in (Unavailable, Unavailable, Refused):
        with pytest.raises(expected, match="to the episode 'm1'"):
            await extractor.extract(request("m1"))
    assert len((await extractor.extract(request("m1"))).facts) == 1
    for _ in range(3):
        with pytest.raises(InvalidAnswer, match="the script says 'invalid' to the episode 'm2'"):
            await extractor.extract(request("m2"))


async def test_questions_are_matched_by_kind_and_items(script):
    entity = Question(kind="entity", item="B. Smith", candidates=("Bob Smith",), cards=("any", "card"))
    compare = Question(kind="compare", item="Bob left Acme", candidates=("Bob is at Acme", "Bob likes Acme"))
    judge = ScriptedJudge(
        script(
            {
                "answer": {"duplicate_of": 0},
                "question": {"items": ["B. Smith", ["Bob Smith"]], "kind": "entity"},
            },
            {
                "question": {"kind": "compare", "items": [compare.item, list(compare.candidates)]},
                "answer": {"ends": [0], "reason": "he left"},
            },
        )
    )
    question_request = QuestionRequest(episode=request("m1").episode, questions=(compare, entity))

    answers = ({"answers": ["ends", "independent"]}, {"duplicate_of": 0})
    assert await judge.judge(question_request) == Judged(answers=answers, calls=1)


async def test_a_comparison_needs_a_word_for_each_candidate(script):
    question = Question(kind="compare", item="a", candidates=("b", "c"))
    answer = {"answers": ["same"]}
    judge = ScriptedJudge(
        script({"question": {"kind": "compare", "items": ["a", ["b", "c"]]}, "answer": answer})
    )

    with pytest.raises(InvalidAnswer, match="1 of them for 2 candidates"):
        await judge.judge(QuestionRequest(episode=request("m1").episode, questions=(question,)))


async def test_a_question_without_a_scripted_answer_reports_the_missing_line(script):
    judge = ScriptedJudge(script())
    question_request = QuestionRequest(
        episode=request("m1").episode, questions=(Question(kind="compare", item="a", candidates=("b",)),)
    )

    with pytest.raises(InvalidAnswer) as caught:
        await judge.judge(question_request)
    assert str(caught.value) == 'the script has no answer to {"items":["a",["b"]],"kind":"compare"}'


async def test_an_extended_script_keeps_its_identity_and_keys(script, tmp_path):
    """A folder works with an extended script: journaled answers are still used (R21)."""
    question = Question(kind="compare", item="a", candidates=("b",))
    question_request = QuestionRequest(episode=request("m1").episode, questions=(question,))
    short = ScriptedJudge(script())
    longer = ScriptedJudge(script({"question": question.brief(), "answer": {}}))

    assert (short.identity, short.key(question_request)) == (longer.identity, longer.key(question_request))
    assert ScriptedExtractor(tmp_path / "script.jsonl").identity == "scripted-1"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "Expecting property name"),
        ("[1]", "a line has"),
        ({"episode": "m1"}, "a line has"),
        ({"episode": "m1", "extraction": REPLY, "times": 2}, "a line has"),
        ({"episode": 1, "extraction": REPLY}, '"episode" is a client id'),
        ({"episode": "m1", "extraction": []}, '"extraction" is an object'),
        ({"episode": "m1", "error": "lost"}, '"error" is one of refused, invalid, unavailable'),
        ({"episode": "m1", "error": ["refused"]}, '"error" is one of refused, invalid, unavailable'),
        ({"episode": "m1", "error": "refused", "times": 0}, '"times" is a whole number from 1 up'),
        ({"episode": "m1", "error": "refused", "times": True}, '"times" is a whole number from 1 up'),
        ({"question": "?", "answer": {}}, '"question" has "kind" and "items"'),
        ({"question": {"kind": "entity", "items": []}, "answer": None}, '"answer" is an object'),
        ('{"episode": "m1", "extraction": {"facts": NaN}}', "NaN is not JSON"),
        ({"episode": "m0", "extraction": {}}, "it says something else of m0 than an earlier line"),
        ("[" * 100_000, "recursion"),
    ],
)
def test_a_malformed_script_names_its_line(script, line, reason):
    path = script({"episode": "m0", "extraction": REPLY}, "", line)

    for backend in (ScriptedExtractor, ScriptedJudge):
        with pytest.raises(SettingsError) as caught:
            backend(path)
        assert str(caught.value).startswith(f"model.script: {path}, line 3: ")
        assert reason in str(caught.value)


def test_a_script_that_cannot_be_read_is_a_settings_error(tmp_path):
    missing = tmp_path / "none.jsonl"
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")

    for path in (missing, binary, tmp_path):
        with pytest.raises(SettingsError, match="cannot be read"):
            ScriptedExtractor(path)
