"""The openai backend against a real HTTP server: wire form, waiting, failing, repair (R21, R24)."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from kgray.domain import times
from kgray.domain.ontology import shipped
from kgray.domain.records import Episode, Value
from kgray.errors import Garbled, InvalidAnswer, Refused, SettingsError, Unavailable
from kgray.models.openai_api.client import Client, Endpoint
from kgray.models.openai_api.connection import CONNECTIONS
from kgray.models.openai_api.dialects import DIALECTS
from kgray.models.openai_api.extractor import OpenAIExtractor
from kgray.models.openai_api.judge import OpenAIJudge
from kgray.models.openai_api.retrieval import OpenAIEmbedder
from kgray.models.prompting.prompts import Prompts, tokens
from kgray.ports import ExtractionRequest, Question, QuestionRequest
from kgray.settings import Secret
from tests import make
from tests.doors.chat_server import Asked, ChatServer, Say, as_json
from tests.waiting import HANGS_S

T0 = times.parse("2026-03-05T09:00:00Z")[0]
PROMPTS = Prompts(shipped())
KEY = "sk-very-secret"


def episode(text="I work at Acme since 2018.", **fields: Any) -> Episode:
    return make.episode(text, **{"speaker": "Alice", "at": T0, **fields})


ENTITIES = [{"name": "Alice", "type": "Person"}, {"name": "Acme", "type": "Organization"}]
FACT = {
    "subject": "Alice",
    "relation": "WORKS_AT",
    "object": "Acme",
    "fact": "Alice works at Acme",
    "status": "current",
    "start": "2018",
    "end": None,
}
LIKES = FACT | {"relation": "LIKES", "object": "tea", "fact": "Alice likes tea", "start": None}
UNDATED = {name: said for name, said in FACT.items() if name not in ("start", "end")}
GOOD = {"entities": ENTITIES, "facts": [FACT]}
SAME = Question(
    kind="entity",
    item="Al",
    candidates=("Alice", "Alan"),
    cards=("Al: Al left", "Alice: Alice left", "Alan: Alan"),
)
COMPARE = Question(
    kind="compare",
    item="Alice lives in Oslo",
    candidates=("Alice lives in Rome", "Alice likes Rome", "Alice's home is Oslo"),
)
LEFT = Question(kind="compare", item="Alice left Acme", candidates=("Alice works at Acme",))
ALL = (SAME, COMPARE, LEFT)
ANSWERS = {
    SAME.item: {"duplicate_of": 1},
    COMPARE.item: {"reason": "one home", "same": 2, "contradicts": [0], "ends": []},
    LEFT.item: {"reason": "", "same": None, "contradicts": [], "ends": [0]},
}
JUDGED = (
    {"duplicate_of": 1},
    {"reason": "one home", "answers": ["contradicts", "independent", "same"]},
    {"answers": ["ends"]},
)


def answering(asked: Asked) -> Say:
    """Answer questions as the table above says, whatever the task."""
    rows = asked.sections["QUESTIONS"]
    return as_json(
        {"answers": [{"id": row["id"], **ANSWERS[row.get("name", row.get("fact"))]} for row in rows]}
    )


def one_after_the_other(*says: Say):
    """Answer with these in turn; the last one for ever."""
    left = list(says)

    def answer(_: Asked) -> Say:
        return left.pop(0) if len(left) > 1 else left[0]

    return answer


@pytest.fixture
def serve():
    """Start servers."""
    servers: list[ChatServer] = []

    def start(answer, probe=None) -> ChatServer:
        servers.append(ChatServer(answer, probe))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def endpoint(server: ChatServer, **changes) -> Endpoint:
    plain = Endpoint(
        base_url=server.url, name="m", key=Secret(KEY), timeout_s=5, max_concurrency=4, patience_s=0.6,
        first_pause_s=0.06, longest_pause_s=0.1,
    )  # fmt: skip
    return replace(plain, **changes)


def extractor(server: ChatServer, *, separate=False, reflect_rounds=0, **changes) -> OpenAIExtractor:
    client = Client(endpoint(server, **changes))
    return OpenAIExtractor(client, PROMPTS, separate=separate, reflect_rounds=reflect_rounds)


def judge(server: ChatServer, *, apart=False, **changes) -> OpenAIJudge:
    return OpenAIJudge(Client(endpoint(server, **changes)), PROMPTS, apart=apart)


def questions(*asked: Question) -> QuestionRequest:
    return QuestionRequest(episode=episode(), questions=asked)


# -------------------------------------------------------------------------------- good answers


async def test_one_call_reads_an_episode(serve):
    """The reply's "2018" is a year, the present tense and the end are told apart, values are values."""
    price = FACT | {"relation": "COSTS", "subject": "Acme", "object": "90 euros", "start": None}
    server = serve(lambda _: as_json({"entities": ENTITIES, "facts": [FACT, price]}))

    extraction = await extractor(server).extract(ExtractionRequest(episode=episode()))

    works, costs = extraction.facts
    assert [e.name for e in extraction.entities] == ["Alice", "Acme"]
    assert (works.valid_from, works.from_precision, works.inferred) == (times.parse("2018")[0], "year", False)
    assert (costs.value, costs.target, costs.valid_from, costs.inferred) == (
        Value("number", "90", "EUR"),
        None,
        T0,
        True,
    )
    # The probe of the first request is paid for too.
    assert (extraction.calls, extraction.prompt_tokens, extraction.completion_tokens) == (2, 200, 40)
    assert (extraction.model, extraction.prompts) == ("openai:m temperature=0", (PROMPTS["combined"].sha256,))
    assert server.asked[0].task == "combined"
    assert server.asked[0].key == KEY
    assert server.asked[0].head == PROMPTS["combined"].head


@pytest.mark.parametrize(
    ("status", "start", "end", "expected"),
    [
        pytest.param(
            "current", None, None, ("holds", "2026-03-05T09:00:00Z", None, True), id="not-stated-is-now"
        ),
        pytest.param("current", "unknown", None, ("holds", None, None, False), id="unknown-is-always"),
        pytest.param("current", "2018-03", "2020", ("holds", "2018-03", "2020", False), id="both-stated"),
        pytest.param("ended", None, None, ("ended", None, "2026-03-05T09:00:00Z", True), id="ended-now"),
        pytest.param("ended", None, "2020-01-02", ("ended", None, "2020-01-02", False), id="ended-then"),
        pytest.param("ended", "2018", "2020", ("holds", "2018", "2020", False), id="a-span-told-as-ended"),
        pytest.param("ended", "unknown", "2020", ("ended", None, "2020", False), id="an-end-and-no-start"),
        pytest.param(
            "current", "", "null", ("holds", "2026-03-05T09:00:00Z", None, True), id="empty-is-null"
        ),
        pytest.param("denied", None, None, ("denied", None, None, False), id="denied"),
    ],
)
async def test_the_wire_keeps_not_stated_and_unknown_apart(serve, status, start, end, expected):
    """R3: null is the reference time, inferred; "unknown" is before everything."""
    fact = FACT | {"status": status, "start": start, "end": end}
    server = serve(lambda _: as_json({"entities": ENTITIES, "facts": [fact]}))

    extraction = await extractor(server).extract(
        ExtractionRequest(episode=episode("I have always been at Acme"))
    )

    (read,) = extraction.facts
    since, until = (times.parse(t)[0] if t else None for t in expected[1:3])
    assert (read.kind, read.valid_from, read.valid_to, read.inferred) == (
        expected[0],
        since,
        until,
        expected[3],
    )


async def test_separate_tasks_read_the_same(serve):
    """The paper's prompts, one task each: entities, what was missed, facts, dates."""

    def answer(asked: Asked) -> Say:
        match asked.task:
            case "extract_entities":
                return as_json({"entities": ENTITIES[:1]})
            case "reflect":
                known = asked.sections["FACTS"]
                missing = [] if "Alice likes tea" in known else [LIKES]
                return as_json({"entities": ENTITIES[1:], "facts": missing})
            case "extract_facts":
                return as_json({"facts": [UNDATED]})
            case "date_facts":
                return as_json({"facts": [{"id": 0, "start": "2018", "end": None}]})
        raise AssertionError(asked.task)

    server, packed = serve(answer), serve(lambda _: as_json(GOOD | {"facts": [FACT, LIKES]}))
    request = ExtractionRequest(episode=episode(), previous=(episode("Hello", sequence=0),))

    apart = await extractor(server, separate=True, reflect_rounds=3).extract(request)
    full_extraction = await extractor(packed).extract(request)

    assert server.tasks() == ["extract_entities", "extract_facts", "date_facts", "reflect", "reflect"]
    assert (apart.entities, apart.facts, apart.dropped) == (
        full_extraction.entities,
        full_extraction.facts,
        (),
    )
    assert apart.prompts == tuple(
        PROMPTS[t].sha256 for t in ("extract_entities", "extract_facts", "date_facts", "reflect")
    )
    assert server.asked[2].sections["FACTS"] == [
        {"id": 0, "fact": "Alice works at Acme", "status": "current"}
    ]
    assert server.asked[4].sections["FACTS"] == ["Alice works at Acme", "Alice likes tea"]


async def test_rounds_of_reflection_add_entities_and_facts_to_a_combined_reading(serve):
    """They end with the first round that brings nothing new, and every call is paid."""

    def answer(asked: Asked) -> Say:
        if asked.task == "combined":
            return as_json({"entities": ENTITIES[:1], "facts": [FACT]})
        missing = [] if "Alice likes tea" in asked.sections["FACTS"] else [LIKES]
        return as_json({"entities": ENTITIES[1:], "facts": missing})

    server = serve(answer)

    extraction = await extractor(server, reflect_rounds=5).extract(ExtractionRequest(episode=episode()))

    assert server.tasks() == ["combined", "reflect", "reflect"]
    assert [entity.name for entity in extraction.entities] == ["Alice", "Acme"]
    assert [fact.relation for fact in extraction.facts] == ["WORKS_AT", "LIKES"]
    assert extraction.prompts == (PROMPTS["combined"].sha256, PROMPTS["reflect"].sha256)
    assert extraction.calls == 4, "the probe too"


async def test_separate_tasks_keep_unknown_and_not_stated_apart(serve):
    """The same wire form, whichever call brings the date."""
    facts = [
        UNDATED | {"relation": relation, "fact": f"Alice {relation} Acme"} for relation in ("KNOWS", "LIKES")
    ]
    dates = [{"id": 0, "start": "unknown", "end": None}, {"id": 1, "start": None, "end": None}]
    replies = {
        "extract_entities": {"entities": ENTITIES},
        "extract_facts": {"facts": facts},
        "date_facts": {"facts": dates},
    }
    server = serve(lambda asked: as_json(replies[asked.task]))

    extraction = await extractor(server, separate=True).extract(
        ExtractionRequest(episode=episode("I have always been at Acme"))
    )

    assert [(f.valid_from, f.inferred) for f in extraction.facts] == [(None, False), (T0, True)]


@pytest.mark.parametrize("apart", [False, True], ids=["batched", "per-node"])
async def test_questions_are_answered_in_their_order(serve, apart):
    server = serve(answering)

    judged = await judge(server, apart=apart).judge(questions(*ALL))

    assert judged.answers == JUDGED
    expected = ["resolve_entity", "compare", "compare"] if apart else ["batched"]
    assert server.tasks() == expected
    assert judged.calls == len(expected) + 1  # the probe
    shown = [list(asked.sections) for asked in server.asked]
    both = ["EPISODE", "QUESTIONS"]
    assert shown == ([both, ["QUESTIONS"], ["QUESTIONS"]] if apart else [both])


def test_the_key_of_a_request_is_its_bytes():
    """R21: another model, question, card or episode is another key; the same is the same in every process."""
    nowhere = Endpoint(base_url="http://127.0.0.1:1/v1", name="m")

    def key(request=questions(SAME, COMPARE), prompts=PROMPTS, apart=False, **changes) -> str:  # noqa: B008
        return OpenAIJudge(Client(replace(nowhere, **changes)), prompts, apart=apart).key(request)

    other = QuestionRequest(episode=episode("Al left."), questions=(SAME, COMPARE))
    keys = [
        key(),
        key(name="n"),
        key(apart=True),
        key(questions(SAME)),
        key(questions(COMPARE, SAME)),
        key(questions(replace(SAME, cards=("Al", "Alice", "Alan")), COMPARE)),
        key(other),
    ]
    assert len(set(keys)) == len(keys)
    assert key() == keys[0]
    assert key(base_url="http://elsewhere/v1", key=Secret("k"), timeout_s=1) == keys[0]


# ------------------------------------------------------------------------------- crooked answers

WRAPPED = {
    "fenced": "Here you are:\n```json\nGOOD\n```\nAnything else?",
    "reasoned": '<think>{"entities": 1} hm, {</think>GOOD',
    "reasoned-without-start": "so {I} think ...</think>\nGOOD",
    "drafted": '{"entities":[],"facts":[]} No: \nGOOD',
    "chatty": "Sure! [1] GOOD {that is all",
}


@pytest.mark.parametrize("form", WRAPPED, ids=str)
async def test_a_reply_is_found_in_what_stands_around_it(serve, form):
    server = serve(lambda _: Say(WRAPPED[form].replace("GOOD", json.dumps(GOOD))))

    extraction = await extractor(server).extract(ExtractionRequest(episode=episode()))

    assert [f.text for f in extraction.facts] == ["Alice works at Acme"]
    assert server.tasks() == ["combined"]


async def test_raw_control_characters_and_half_surrogates_are_dropped(serve):
    text = json.dumps(GOOD).replace("Alice works", "Alice\x07 \\ud83dworks\\u0000")
    server = serve(lambda _: Say(text))

    extraction = await extractor(server).extract(ExtractionRequest(episode=episode()))

    assert [f.text for f in extraction.facts] == ["Alice works at Acme"]


async def test_items_that_fail_are_dropped_one_by_one(serve):
    """R24: the others are kept, and the extraction says what was dropped."""
    wrong = [
        FACT | {"object": None},
        FACT | {"subject": "she"},
        FACT | {"status": "maybe"},
        FACT | {"fact": "Alice is at Acme", "relation": ""},
        7,
    ]
    server = serve(
        lambda _: as_json({"entities": [*ENTITIES, {"name": "", "type": "x"}], "facts": [*wrong, FACT]})
    )

    extraction = await extractor(server).extract(ExtractionRequest(episode=episode()))

    assert [f.text for f in extraction.facts] == ["Alice works at Acme"]
    assert len(extraction.dropped) == 6
    assert server.tasks() == ["combined"]


async def test_a_cut_reply_keeps_its_complete_items(serve):
    """What was complete is kept, nothing is guessed, and it is said."""
    text = json.dumps(
        {"entities": ENTITIES, "facts": [FACT, FACT | {"relation": "LIKES", "fact": "Alice likes"}]}
    )
    server = serve(lambda _: Say(text[: text.index("LIKES") + 3], finish="length"))

    extraction = await extractor(server).extract(ExtractionRequest(episode=episode()))

    assert [f.relation for f in extraction.facts] == ["WORKS_AT"]
    assert extraction.dropped == ("combined: the reply was cut; its complete items are kept",)
    assert len(server.asked) == 1


async def test_a_reply_that_breaks_off_is_asked_for_again_before_it_is_salvaged(serve):
    """The server did not say that it was cut: whole replies are tried for first."""
    broken = Say(json.dumps(GOOD)[:-9])
    mended, hopeless = serve(one_after_the_other(broken, as_json(GOOD))), serve(lambda _: broken)

    full_extraction = await extractor(mended).extract(ExtractionRequest(episode=episode()))
    parts = await extractor(hopeless).extract(ExtractionRequest(episode=episode()))

    assert ([f.relation for f in full_extraction.facts], full_extraction.dropped, len(mended.asked)) == (
        ["WORKS_AT"],
        (),
        2,
    )
    assert ([e.name for e in parts.entities], parts.facts, len(hopeless.asked)) == (["Alice", "Acme"], (), 3)
    assert parts.dropped == ("combined: the reply was cut; its complete items are kept",)


async def test_a_reply_cut_before_its_first_item_is_asked_for_once_more_with_more_room(serve):
    server = serve(one_after_the_other(Say('{"entities":[{"na', finish="length"), as_json(GOOD)))

    extraction = await extractor(server).extract(ExtractionRequest(episode=episode()))

    assert [f.relation for f in extraction.facts] == ["WORKS_AT"]
    assert [a.body["max_tokens"] for a in server.asked] == [256 + 48 * tokens(episode().text), 8192]
    assert server.asked[0].data == server.asked[1].data


async def test_one_repair_quotes_what_was_wrong_at_the_end(serve):
    """All before it is the first prompt, byte for byte: the server's cached prefix."""
    server = serve(one_after_the_other(Say("I cannot </EPISODE> do that."), as_json(GOOD)))

    extraction = await extractor(server).extract(ExtractionRequest(episode=episode()))

    first, second = server.asked
    assert second.head == first.head
    assert second.data.startswith(first.data)
    assert second.sections["REJECTED"] == {
        "errors": ["the reply holds no JSON object"],
        "reply": "I cannot </EPISODE> do that.",
    }
    assert extraction.calls == 3  # with the probe


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "the reply is empty"),
        ("no", "the reply holds no JSON object"),
        ('{"entities": []}', "the reply has no 'facts'"),
        ('{"entities": {}, "facts": []}', "'entities' of the reply is not a list"),
        ("[" * 5000, "the reply holds no JSON object"),
        ('{"a":' * 5000, "the reply holds no JSON object"),
        ('{"entities": [], "facts": [NaN]}', "the reply holds no JSON object"),
    ],
)
async def test_three_calls_without_an_answer_fail_the_episode(serve, text, why):
    """R24, and the last output is kept with the failure; the last call is one form down."""
    server = serve(lambda _: Say(text))

    with pytest.raises(InvalidAnswer) as failed:
        await extractor(server).extract(ExtractionRequest(episode=episode()))

    assert why in str(failed.value)
    assert failed.value.raw == text[:4000] or text.startswith('{"ent')
    forms = [a.body.get("response_format", {}).get("type") for a in server.asked]
    assert forms == ["json_schema", "json_schema", "json_object"]


@pytest.mark.parametrize("spelled", [KEY, r"sk-very\/secret"], ids=str)
async def test_a_server_that_repeats_the_key_leaves_none_of_it(serve, spelled):
    """Neither in what a failure keeps, nor in the repair that quotes it, nor in what was read."""
    key = spelled.replace("\\", "")
    told = json.dumps(GOOD).replace("works at Acme", f"uses {spelled}")
    bad, good = serve(lambda _: Say(f"I was sent {spelled}.")), serve(lambda _: Say(told))

    with pytest.raises(InvalidAnswer) as failed:
        await extractor(bad, key=Secret(key)).extract(ExtractionRequest(episode=episode()))
    extraction = await extractor(good, key=Secret(key)).extract(ExtractionRequest(episode=episode()))

    assert failed.value.raw == "I was sent ***."
    assert not any(key in asked.data or spelled in asked.data for asked in bad.asked)
    assert [fact.text for fact in extraction.facts] == ["Alice uses ***"]


async def test_a_key_that_is_no_secret_changes_no_reply(serve):
    """Local servers are given keys such as "x"."""
    server = serve(lambda _: as_json(GOOD))

    extraction = await extractor(server, key=Secret("A")).extract(ExtractionRequest(episode=episode()))

    assert [fact.text for fact in extraction.facts] == ["Alice works at Acme"]


async def test_a_repair_completes_the_answers_of_the_first_reply(serve):
    first = as_json({"answers": [{"id": 0, "duplicate_of": 1}, {"id": 1, "contradicts": [7]}, {"id": 9}]})
    second = as_json({"answers": [{"id": 0, "duplicate_of": 0}, {"id": 1, "ends": [1]}]})
    server = serve(one_after_the_other(first, second))

    judged = await judge(server).judge(questions(SAME, COMPARE))

    assert judged.answers == ({"duplicate_of": 1}, {"answers": ["independent", "ends", "independent"]})
    (errors,) = server.asked[1].sections["REJECTED"]["errors"]
    assert "id 9" in errors
    assert "[1]" in errors


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ({"answers": ["same"]}, "1 of them for 3 candidates"),
        ({"answers": ["same", "equal", "ends"]}, "answers.1: Input should be"),
        ({"contradicts": [3]}, "3 is no index of 3 candidates"),
        ({"contradicts": [1], "ends": [1]}, "the candidate 1 is in 'contradicts' too"),
        ({"reason": "one home"}, "answers: Field required"),
    ],
)
async def test_a_wrong_comparison_is_asked_for_again_with_its_fault(serve, answer, fault):
    right = {"id": 0, "same": 2, "contradicts": [0], "ends": []}
    replies = (as_json({"answers": [item]}) for item in ({"id": 0, **answer}, right))
    server = serve(one_after_the_other(*replies))

    judged = await judge(server, apart=True).judge(questions(COMPARE))

    assert judged.answers == ({"answers": ["contradicts", "independent", "same"]},)
    assert server.tasks() == ["compare", "compare"]
    (error,) = server.asked[1].sections["REJECTED"]["errors"]
    assert fault in error


async def test_the_number_of_a_question_stands_for_its_only_candidate(serve):
    """Small models copy it; where there are several candidates it is the number of one of them."""
    sole = replace(SAME, candidates=("Alice",), cards=SAME.cards[:2])
    server = serve(
        lambda _: as_json({"answers": [{"id": 0, "duplicate_of": 1}, {"id": 1, "duplicate_of": 1}]})
    )

    judged = await judge(server).judge(questions(SAME, sole))

    assert judged.answers == ({"duplicate_of": 1}, {"duplicate_of": 0})
    assert len(server.asked) == 1


async def test_a_question_that_stays_open_is_an_invalid_answer(serve):
    server = serve(lambda _: as_json({"answers": [{"id": 0, "duplicate_of": 5}]}))

    with pytest.raises(InvalidAnswer, match=r"no usable answer to the questions with id \[0\]"):
        await judge(server).judge(questions(SAME))

    assert len(server.asked) == 3


# ------------------------------------------------------------------------- what the server obeys


def by_form(**obeyed: Say):
    """Probe answers by the form of the request."""
    return lambda asked: obeyed[asked.body.get("response_format", {}).get("type", "text")]


PROSE = Say("Blue, and 1, 2, 3.")


@pytest.mark.parametrize(
    ("probe", "form"),
    [
        pytest.param(
            by_form(json_schema=PROSE, json_object=as_json({}), text=PROSE), "json_object", id="ignored"
        ),
        pytest.param(
            by_form(json_schema=Say(status=400), json_object=as_json({}), text=PROSE),
            "json_object",
            id="refused",
        ),
        pytest.param(
            by_form(json_schema=as_json({"colour": "blue"}), json_object=PROSE, text=PROSE),
            None,
            id="neither",
        ),
        pytest.param(
            by_form(json_schema=Say(status=422), json_object=Say(status=400), text=PROSE), None, id="none"
        ),
    ],
)
async def test_the_form_is_what_the_server_obeys(serve, probe, form):
    """An answer of 200 is not enough; found out once an address and model."""
    server = serve(lambda _: as_json(GOOD), probe)
    reader = extractor(server)

    await asyncio.gather(
        *(reader.extract(ExtractionRequest(episode=episode(f"I work {i}"))) for i in range(5))
    )
    probes = len(server.probes)
    await extractor(server).extract(ExtractionRequest(episode=episode()))

    assert {a.body.get("response_format", {}).get("type") for a in server.asked} == {form}
    assert len(server.probes) == probes <= 3
    assert all("Reply schema combined: {" in a.head for a in server.asked)
    assert len({a.head for a in server.asked}) == 1


async def test_parameters_that_a_server_does_not_take_are_left_out(serve):
    def probe(asked: Asked) -> Say:
        if "max_tokens" in asked.body:
            return Say(
                "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.", status=400
            )
        if "temperature" in asked.body:
            return Say("Unsupported value: 'temperature' does not support 0", status=400)
        return as_json({"probe": "kgray-7", "numbers": [2]})

    server = serve(lambda _: as_json(GOOD), probe)

    await extractor(server).extract(ExtractionRequest(episode=episode()))

    (asked,) = server.asked
    assert asked.body.keys() == {"model", "messages", "max_completion_tokens", "response_format"}
    assert asked.body["response_format"]["type"] == "json_schema"


async def test_a_server_that_refuses_even_the_probe_is_a_matter_of_settings(serve):
    server = serve(lambda _: as_json(GOOD), lambda _: Say("no model loaded", status=400))

    with pytest.raises(
        SettingsError, match=r"refuses a request of a few words to 'm' \(400: no model loaded"
    ):
        await extractor(server).extract(ExtractionRequest(episode=episode()))


async def test_a_schema_that_is_refused_is_asked_for_one_form_down(serve):
    def answer(asked: Asked) -> Say:
        strict = asked.body["response_format"]["type"] == "json_schema"
        return Say("invalid grammar for this schema", status=400) if strict else as_json(GOOD)

    server = serve(answer)

    extraction = await extractor(server).extract(ExtractionRequest(episode=episode()))

    assert [f.relation for f in extraction.facts] == ["WORKS_AT"]
    assert len(server.asked) == 2


def test_the_schemas_are_what_constrained_decoders_take():
    """All required, nothing extra, inline, no bounds; order as in the prompt."""
    from kgray.models.prompting.reply_schemas import answers_schema, extraction_schemas

    def walk(schema):
        bounds = {"minLength", "maxLength", "pattern", "minimum", "maximum", "minItems", "maxItems"}
        assert not {"$ref", *bounds} & set(schema)
        if schema.get("type") == "object":
            assert schema["additionalProperties"] is False
            assert schema["required"] == list(schema["properties"])
            for inner in schema["properties"].values():
                walk(inner)
        if schema.get("type") == "array":
            walk(schema["items"])
        for option in schema.get("anyOf", ()):
            walk(option)

    for schema in (*extraction_schemas().values(), answers_schema(q.kind for q in ALL)):
        walk(schema)
    fact = extraction_schemas()["combined"]["properties"]["facts"]["items"]
    assert list(fact["properties"]) == list(FACT)


# ------------------------------------------------------------------------------ waiting and failing

AGAIN = {
    "429": Say(status=429),
    "408": Say(status=408),
    "409": Say(status=409),
    "500": Say(status=500),
    "503": Say(status=503),
    "a cut connection": Say(cut_connection=True),
    "no JSON": Say(raw=b"<html>maintenance</html>"),
    "no choices": Say(raw=b'{"choices": []}'),
    "a list": Say(raw=b"[]"),
    "a head that is no HTTP": Say(headers={"x-long": "a" * 20_000}),
}


@pytest.mark.parametrize("fault", AGAIN, ids=str)
async def test_what_only_waits_is_waited_out_once(serve, fault):
    """R24: the server's trouble is not the episode's; the library's own retries are off."""
    server = serve(one_after_the_other(AGAIN[fault], AGAIN[fault], as_json(GOOD)))

    extraction = await extractor(server).extract(ExtractionRequest(episode=episode()))

    assert [f.relation for f in extraction.facts] == ["WORKS_AT"]
    assert len(server.asked) == 3
    # The probe and the answer; a call that the server refused at once cost nothing.
    assert extraction.calls == 2 + (0 if fault.isdigit() else 2)


async def test_beyond_the_patience_the_run_stops_and_nobody_waits_again(serve):
    server = serve(lambda _: Say(status=503))

    with pytest.raises(
        Unavailable, match=r"answers 503; waited [\d.]+ s \(model\.patience_s = 0\.6\)"
    ) as gone:
        await extractor(server).extract(ExtractionRequest(episode=episode()))

    assert gone.value.waited
    assert gone.value.exit_code == 75


async def test_a_server_that_is_not_there_is_out_of_reach():
    nowhere = Endpoint(base_url="http://127.0.0.1:9/v1", name="m", patience_s=0.2)

    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:9/v1 cannot be reached"):
        await OpenAIExtractor(Client(nowhere), PROMPTS).extract(ExtractionRequest(episode=episode()))


async def test_redirects_without_end_fail_no_episode(serve):
    server = serve(lambda _: Say(status=307, headers={"location": "/v1/chat/completions"}))
    with pytest.raises(Unavailable, match="cannot be reached"):
        await extractor(server).extract(ExtractionRequest(episode=episode()))


async def test_another_server_than_the_named_one_never_gets_the_key(serve):
    other = serve(lambda _: as_json(GOOD))
    named = serve(lambda _: Say(status=307, headers={"location": f"{other.url}/chat/completions"}))
    extraction = await extractor(named).extract(ExtractionRequest(episode=episode()))
    assert [f.relation for f in extraction.facts] == ["WORKS_AT"]
    assert {asked.key for asked in named.asked} == {KEY}
    assert {asked.key for asked in other.asked} == {""}


async def test_a_server_that_takes_no_connection_is_told_of_as_such():
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, ExitStack() as ends:
        for _ in range(3):
            ends.enter_context(waiting := socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        port = full.getsockname()[1]
        nowhere = Endpoint(base_url=f"http://127.0.0.1:{port}/v1", name="m", timeout_s=0.3, patience_s=0.1)
        with pytest.raises(Unavailable, match="cannot be reached"):
            await OpenAIExtractor(Client(nowhere), PROMPTS).extract(ExtractionRequest(episode=episode()))


async def test_a_netrc_has_no_part_in_requests(serve, monkeypatch, tmp_path):
    """Its names and passwords are for other programs; beside a key aiohttp would refuse every request."""
    (tmp_path / "netrc").write_text("default login somebody password of-somebody")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    server = serve(lambda _: as_json(GOOD))
    await extractor(server).extract(ExtractionRequest(episode=episode()))
    assert {asked.key for asked in server.asked} == {KEY}


async def test_a_proxy_of_the_environment_is_used(serve, monkeypatch):
    server = serve(lambda _: as_json(GOOD))
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("http_proxy", server.url.removesuffix("/v1"))
    elsewhere = extractor(server, base_url="http://model.invalid/v1")
    await elsewhere.extract(ExtractionRequest(episode=episode()))
    assert [asked.path for asked in server.asked] == ["http://model.invalid/v1/chat/completions"]
    DIALECTS.clear()
    monkeypatch.setenv("no_proxy", "model.invalid")
    with pytest.raises(Unavailable, match="cannot be reached"):
        await extractor(server, base_url="http://model.invalid/v2").extract(
            ExtractionRequest(episode=episode())
        )


async def test_a_slow_answer_counts_as_none(serve):
    server = serve(one_after_the_other(replace(as_json(GOOD), delay=0.7), as_json(GOOD)))

    extraction = await extractor(server, timeout_s=0.3, patience_s=HANGS_S).extract(
        ExtractionRequest(episode=episode())
    )

    assert [f.relation for f in extraction.facts] == ["WORKS_AT"]
    assert len(server.asked) >= 2, "more than twice where this machine is slow"


async def test_retry_after_may_be_a_date(serve):
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=3600), usegmt=True)
    server = serve(lambda _: Say(status=429, headers={"retry-after": soon}))

    with pytest.raises(Unavailable, match=r"answers 429 and asks for 3[56]\d\d s; waited 0 s"):
        await extractor(server).extract(ExtractionRequest(episode=episode()))


@pytest.mark.parametrize("words", ["when it suits", "-5", "nan", ""])
async def test_a_retry_after_that_says_nothing_is_no_reason_to_wait(serve, words):
    refused = Say(status=503, headers={"retry-after": words})
    server = serve(one_after_the_other(refused, as_json(GOOD)))

    extraction = await extractor(server).extract(ExtractionRequest(episode=episode()))

    assert [f.relation for f in extraction.facts] == ["WORKS_AT"]


@pytest.mark.parametrize("header", [{"retry-after": "1"}, {"retry-after-ms": "900"}], ids=str)
async def test_retry_after_is_honoured_by_all_requests(serve, header):
    refused = Say(status=429, headers=header)
    server = serve(one_after_the_other(refused, as_json(GOOD)))
    reader = extractor(server, patience_s=HANGS_S, max_concurrency=1)
    requests = [ExtractionRequest(episode=episode(f"I work at Acme {i}")) for i in range(3)]

    await asyncio.gather(*(reader.extract(r) for r in requests))

    first, *others = [a.at for a in server.asked]
    assert min(others) - first >= 0.85


async def test_a_retry_after_beyond_the_patience_is_not_waited_for(serve):
    server = serve(lambda _: Say(status=429, headers={"retry-after": "3600"}))

    with pytest.raises(Unavailable, match="answers 429 and asks for 3600 s; waited 0 s"):
        await extractor(server).extract(ExtractionRequest(episode=episode()))


async def test_no_more_requests_stand_at_the_server_than_allowed(serve):
    """One limiter a server and key: extractor and judge share it."""
    full = threading.Event()

    def answer(asked: Asked) -> Say:
        if server.most_at_once >= 4:
            full.set()
        full.wait(HANGS_S)  # until four are there; a fifth would come within the delay
        return replace(answering(asked) if asked.task == "batched" else as_json(GOOD), delay=0.03)

    server = serve(answer)
    reader, judging = extractor(server), judge(server)

    calls = [reader.extract(ExtractionRequest(episode=episode(f"I work at {i}"))) for i in range(10)]
    asks = [judging.judge(questions(SAME)) for _ in range(10)]
    await asyncio.gather(*calls, *asks)

    assert server.most_at_once == 4


async def test_429_halves_what_stands_at_the_server_and_successes_grow_it_back(serve):
    from kgray.models.openai_api.client import Limiter

    limiter = Limiter(16)
    sent = time.monotonic()
    limiter.throttled(sent)
    limiter.throttled(sent)  # of the same round

    assert limiter.width == 8

    for _ in range(200):
        limiter.succeeded()

    assert limiter.width == 16


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_a_refused_text_fails_its_episode_at_once(serve, status):
    """R24: too long or malformed; the server's words stand in the reason, the key never does."""
    server = serve(lambda _: Say(f"context of 4096 tokens exceeded by {KEY}", status=status))

    with pytest.raises(Refused, match=rf"\({status}: context of 4096 tokens exceeded by \*\*\*\)"):
        await extractor(server).extract(ExtractionRequest(episode=episode()))

    assert len(server.asked) == 1


@pytest.mark.parametrize(
    "say", [Say(finish="content_filter"), Say(refusal="I will not")], ids=["filter", "refusal"]
)
async def test_a_model_that_will_not_is_a_refusal(serve, say):
    server = serve(lambda _: say)

    with pytest.raises(Refused, match="the model refused the text"):
        await extractor(server).extract(ExtractionRequest(episode=episode()))

    assert len(server.asked) == 1


async def test_room_that_the_model_does_not_have_is_asked_for_again_smaller(serve):
    too_large = Say(
        "'max_tokens' is too large: 4096. This model's maximum context length is 4096", status=400
    )
    server = serve(one_after_the_other(too_large, as_json(GOOD)))

    await extractor(server).extract(ExtractionRequest(episode=episode()))

    room = 256 + 48 * tokens(episode().text)
    assert [a.body["max_tokens"] for a in server.asked] == [room, room // 4]


@pytest.mark.parametrize(
    ("status", "words"),
    [(401, "model.api_key"), (403, "model.api_key"), (404, "model.base_url")],
)
async def test_a_wrong_key_or_address_is_one_line_about_the_settings(serve, status, words):
    server = serve(lambda _: Say(f"wrong key {KEY}", status=status))

    with pytest.raises(SettingsError) as wrong:
        await extractor(server).extract(ExtractionRequest(episode=episode()))

    assert words in str(wrong.value)
    assert KEY not in str(wrong.value)
    assert "\n" not in str(wrong.value)
    assert wrong.value.exit_code == 2
    assert len(server.asked) == 1


async def test_tokens_are_estimated_where_the_server_does_not_count(serve, caplog):
    server = serve(lambda _: replace(as_json(GOOD), usage=None))

    extraction = await extractor(server).extract(ExtractionRequest(episode=episode()))

    asked = server.asked[0]
    assert extraction.prompt_tokens == 100 + -(-len(asked.head) // 4) + -(-len(asked.data) // 4)
    assert extraction.completion_tokens == 20 + -(-len(json.dumps(GOOD)) // 4)


def test_each_event_loop_has_connections_of_its_own(serve):
    """`asyncio.run` a verb: what one loop opened is closed with it, and the next opens anew."""
    server = serve(lambda _: as_json(GOOD))
    reader = extractor(server)

    for _ in range(3):
        asyncio.run(reader.extract(ExtractionRequest(episode=episode())))

    assert server.tasks() == ["combined"] * 3
    assert len(server.probes) == 1
    gc.collect()
    assert not [loop for loop in CONNECTIONS if loop.is_closed()], "a loop that is over stays"


# ------------------------------------------------------------------------------------ embeddings


def embedding(asked: Asked) -> Say:
    """Vectors (length of the text, 1, 0), in reversed order with their indexes."""
    rows = [
        {"object": "embedding", "index": i, "embedding": [float(len(text)), 1.0, 0.0]}
        for i, text in enumerate(asked.body["input"])
    ]
    return Say(raw=json.dumps({"object": "list", "data": rows[::-1], "model": "m"}).encode())


def embedder(server: ChatServer, dimensions=3) -> OpenAIEmbedder:
    return OpenAIEmbedder(Client(endpoint(server, setting="embedder")), dimensions=dimensions)


async def test_texts_become_unit_vectors_in_their_order(serve):
    server = serve(embedding)
    texts = [("x" * (i % 90 + 1)) for i in range(200)] + [""]

    rows = await embedder(server).embed(texts)

    assert rows.shape == (201, 3)
    assert [round(float(r[0] / r[1])) for r in rows] == [max(1, len(t)) for t in texts]
    assert abs((rows**2).sum(axis=1) - 1).max() < 1e-5
    assert sorted(len(a.body["input"]) for a in server.asked) == [27, 64]  # each distinct text once
    assert server.asked[0].body["encoding_format"] == "float"
    assert (await embedder(server).embed([])).shape == (0, 3)


async def test_another_width_is_an_error_that_names_both(serve):
    with pytest.raises(SettingsError, match=r"gives 3 numbers a text, but embedder\.dimensions = 8"):
        await embedder(serve(embedding), dimensions=8).embed(["a"])


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        ([[1, 2, 3]], Unavailable),  # one row for two texts
        ([[1, 2, 3], [1, 2]], Garbled),
        ([[1, 2, 3], None], Garbled),
        ([[], []], Garbled),
        ([[1, 2, 3], ["a", "b", "c"]], Garbled),
        ([[1, 2, 3], [1, 2, float("nan")]], Garbled),
    ],
)
async def test_vectors_that_are_none_are_not_stored(serve, rows, error):
    data = [{"index": i, "embedding": row} for i, row in enumerate(rows)]
    server = serve(lambda _: Say(raw=json.dumps({"data": data}).encode()))

    with pytest.raises(error):
        await embedder(server).embed(["a", "b"])


async def test_vectors_that_are_none_are_asked_for_again(serve):
    """A server that is just coming up may send such; the text is not to blame (R24)."""
    broken = Say(raw=b'{"data": [{"index": 0, "embedding": [NaN, 1, 2]}]}')
    whole = Say(raw=b'{"data": [{"index": 0, "embedding": [0, 2, 0]}]}')

    rows = await embedder(serve(one_after_the_other(broken, whole))).embed(["a"])

    assert rows.tolist() == [[0.0, 1.0, 0.0]]
    with pytest.raises(
        Garbled, match="its log; if it is one text alone, remove the episode that `kgray fail"
    ):
        await embedder(serve(lambda _: broken)).embed(["a"])


async def test_a_text_of_zeros_is_still_of_unit_length(serve):
    server = serve(lambda _: Say(raw=json.dumps({"data": [{"index": 0, "embedding": [0, 0, 0]}]}).encode()))

    assert (await embedder(server).embed(["a"])).tolist() == [[1.0, 0.0, 0.0]]
