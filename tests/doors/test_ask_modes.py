"""`kgray ask` with keywords, levels of communities, a conversation, general knowledge, and wrong options."""

from __future__ import annotations

import json
import threading

import pytest

from tests.doors.chat_server import ChatRequest, ChatServer, Say, as_json

ROWS = [
    {"id": "a", "speaker": "Alice", "text": "I work at Acme.", "at": "2026-01-01"},
    {"id": "b", "speaker": "Alice", "text": "I left Acme, and work at Beta now.", "at": "2026-03-01"},
    {"id": "c", "speaker": "Bob", "text": "I play the cello.", "at": "2026-03-02"},
]
QUESTION = "Where does Alice work?"
RULES = {"KGRAY_MODEL_BACKEND": "rules"}


@pytest.fixture
def team(kgray):
    """Return a shell with a memory that the rules have read, and no model that answers yet."""
    kgray.env = RULES
    assert kgray("add", kgray.write("a.jsonl", *ROWS), "--group", "team").code == 0
    return kgray


@pytest.fixture
def serve(team):
    """Return a function that starts a model server with an answer to everything."""
    servers = []

    def start(answer):
        servers.append(ChatServer(answer))
        team.env = {
            "KGRAY_MODEL_BACKEND": "openai",
            "KGRAY_MODEL_NAME": "m",
            "KGRAY_MODEL_BASE_URL": servers[-1].url,
            "KGRAY_MODEL_PATIENCE_S": "1",
        }
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def circles(kgray, count):
    """Ingest circles of three people each, and find their communities without a model."""
    kgray.env = RULES
    names = [[f"{name}{number}" for name in ("Ann", "Bob", "Cid")] for number in range(count)]
    pairs = [pair for a, b, c in names for pair in ((a, b), (b, c), (c, a))]
    triples = [{"source": a, "relation": "KNOWS", "target": b} for a, b in pairs]
    row = {"id": "t", "kind": "triples", "triples": triples, "at": "2026-01-01"}
    assert kgray("add", kgray.write("t.jsonl", row), "--group", "g").code == 0
    assert kgray("communities", "refresh", "--group", "g").code == 0


# -------------------------------------------------------------------------------------------- keywords


def test_a_call_extracts_keywords_that_join_the_context(serve, team):
    """The question has no name and no word of the messages: its keywords match them."""
    server = serve(
        lambda request: (
            as_json({"high_level": ["employment", "work", " "], "low_level": ["her", "Alice", "Beta", 7]})
            if request.task == "keywords"
            else Say(pieces=["At Beta [1]."])
        )
    )
    question = "Who pays her salary?"
    plain = team("ask", question, "--group", "team", "--json").json
    reply = team("ask", question, "--group", "team", "--mode", "keywords", "--json").json

    assert (plain["found"], plain["calls"]) == (False, 0)
    assert (reply["answer"], reply["calls"]) == ("At Beta [1].", 2)
    assert reply["keywords"] == {"high_level": ["employment", "work"], "low_level": ["Alice", "Beta"]}
    assert "Alice works at Beta" in "\n".join(server.requests[-1].sections["MEMORY"])
    assert server.requests[0].body["response_format"]["json_schema"]["name"] == "keywords"


def test_keywords_by_hand_take_no_call(serve, team):
    server = serve(lambda _: Say(pieces=["At Beta [1]."]))
    options = ("--mode", "keywords", "--high", "work", "--low", "Alice")
    answer = team("ask", "Who pays her?", "--group", "team", *options)

    assert answer.out.startswith("At Beta [1].\n\n[1] b  Alice works at Beta")
    assert "keywords: high_level work; low_level Alice" in answer.err
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("options", "reply", "calls"),
    [
        pytest.param(("--max-calls", "1"), None, 1, id="no-call-is-left"),
        pytest.param((), Say("no keywords today"), 3, id="the-reply-cannot-be-read"),
    ],
)
def test_the_words_of_the_question_replace_missing_keywords(serve, team, options, reply, calls):
    serve(lambda request: reply if request.task == "keywords" and reply else Say(pieces=["At Beta [1]."]))
    results = team("ask", QUESTION, "--group", "team", "--mode", "keywords", *options, "--json").json

    assert results["keywords"] == {"high_level": ["work"], "low_level": ["Alice"]}
    assert (results["answer"], results["calls"]) == ("At Beta [1].", calls)


# -------------------------------------------------------------------------------------------- global


def pointed(request: ChatRequest) -> Say:
    """Answer as a reader of reports that gives each a point with a score by its place."""
    if request.task != "points":
        return Say(pieces=["All [1]."])
    numbers = range(1, len(request.sections["MEMORY"]) + 1)
    return as_json({"points": [{"text": f"Point {n}", "reports": [n], "score": 120 - n} for n in numbers]})


def test_global_reads_all_reports_of_a_level_and_counts_them(serve, kgray):
    circles(kgray, 60)
    listed = kgray("communities", "list", "--group", "g", "--json").json["communities"]
    server = serve(pointed)
    reply = kgray("ask", "Who?", "--group", "g", "--mode", "global", "--level", "0", "--json").json

    finest = [item for item in listed if item["level"] == 0]
    assert reply["reports"]["read"] == len(finest) == 60
    report_lines = [line for request in server.requests[:-1] for line in request.sections["MEMORY"]]
    assert len(report_lines) == 60
    assert reply["calls"] == len(server.requests)
    bound = kgray(
        "ask", "Who?", "--group", "g", "--mode", "global", "--level", "0", "--report-tokens", "200", "--json"
    ).json["reports"]
    assert 0 < bound["read"] < 60
    assert bound["read"] + bound["left_out"] == 60
    wrong = kgray("ask", "Who?", "--group", "g", "--mode", "global", "--level", "9")
    assert wrong.code == 2
    assert "level 9 is unknown: the group has communities of the levels 0" in wrong.err


def test_readings_are_sent_together(serve, kgray):
    """Each call waits for the other, so sequential calls would never end."""
    circles(kgray, 150)
    expected = threading.Barrier(2)

    def answer(request):
        if request.task == "points":
            expected.wait(30)
        return pointed(request)

    server = serve(answer)
    result = kgray("ask", "Who?", "--group", "g", "--mode", "global", "--level", "0", "--json")
    assert result.code == 0
    assert server.most_at_once >= 2


def test_an_unusable_reading_is_counted_and_the_others_continue(serve, kgray):
    circles(kgray, 150)
    server = serve(lambda request: Say("nonsense") if "Ann149" in request.data else pointed(request))
    reply = kgray("ask", "Who?", "--group", "g", "--mode", "global", "--level", "0", "--json").json

    assert reply["found"]
    assert reply["reports"]["read"] > 0
    assert reply["reports"]["left_out"] > 0
    assert reply["reports"]["read"] + reply["reports"]["left_out"] == 150
    assert reply["calls"] == len(server.requests)


def test_irrelevant_reports_give_no_answer(serve, kgray):
    circles(kgray, 2)
    server = serve(lambda _: as_json({"points": [{"text": "Nothing", "reports": [1], "score": 0}]}))
    reply = kgray("ask", "Who?", "--group", "g", "--mode", "global", "--json").json
    assert (reply["answer"], reply["found"], len(server.requests)) == ("Not in memory.", False, 1)
    assert reply["reports"] == {"read": 2, "left_out": 0, "points": 0}


# -------------------------------------------------------------------------------------- conversations


def test_a_conversation_is_stored_in_a_file_and_sent_within_its_budget(serve, team):
    server = serve(lambda _: Say(pieces=["At Beta [1]."]))
    for question in (QUESTION, "Since when?"):
        assert team("ask", question, "--group", "team", "--history", "talk.jsonl").code == 0

    rows = [json.loads(line) for line in (team.folder / "talk.jsonl").read_text("utf-8").splitlines()]
    turns = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": "At Beta [1]."},
        {"role": "user", "content": "Since when?"},
        {"role": "assistant", "content": "At Beta [1]."},
    ]
    assert rows == turns
    assert "HISTORY" not in server.requests[0].sections
    assert server.requests[1].sections["HISTORY"] == [turns[0], {"role": "assistant", "content": "At Beta."}]
    assert "Alice works at Beta" in "\n".join(server.requests[1].sections["MEMORY"]), (
        "the question names nobody"
    )
    options = ("--history", "talk.jsonl", "--history-tokens", "6")
    team("ask", "And Bob?", "--group", "team", *options)
    assert server.requests[2].sections["HISTORY"] == [{"role": "assistant", "content": "At Beta."}]


def test_the_form_is_sent_to_the_model(serve, team):
    server = serve(lambda _: Say(pieces=["At Beta [1]."]))
    team("ask", QUESTION, "--group", "team", "--form", "a list of 3 points")
    assert server.requests[0].sections["FORM"] == "a list of 3 points"


def test_general_knowledge_needs_an_option_and_is_marked(serve, team):
    server = serve(lambda _: Say(pieces=["It has four strings [general knowledge]."]))
    question = "How many strings has a violin?"
    assert team("ask", question, "--group", "team", "--json").json["found"] is False
    result = team("ask", question, "--group", "team", "--general", "--json")
    assert (result.json["found"], result.json["general_knowledge"]) == (True, True)
    assert "statements marked [general knowledge] are not from the memory" in result.err
    assert "[general knowledge]" in server.requests[-1].head


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--mode", "dual"), "'dual' is not one of 'local', 'keywords', 'global', 'drift'"),
        (("--low", "Alice"), "mode local takes no keywords: use mode keywords"),
        (("--level", "1"), "mode local takes no level or rating: use mode global"),
        (("--min-rating", "11"), "11 is not in the range 0<=x<=10"),
        (("--suggest", "21"), "21 is not in the range 0<=x<=20"),
        (("--form", "x" * 301), "form is too long: use at most 300 characters"),
        (
            ("--history", "odd.jsonl"),
            'odd.jsonl, turn 1: use {"role": "user" or "assistant", "content": text}',
        ),
        (("--history", "bad.jsonl"), "bad.jsonl is no file of JSON lines in UTF-8"),
    ],
)
def test_a_wrong_option_is_a_one_line_error(serve, team, options, line):
    server = serve(lambda _: Say(pieces=["x"]))
    team.write("odd.jsonl", {"role": "system", "content": "x"})
    team.write("bad.jsonl", "[{")
    answer = team("ask", QUESTION, "--group", "team", *options)
    assert (answer.code, line in answer.err, server.requests) == (2, True, []), answer.err
