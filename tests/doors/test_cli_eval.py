"""`kgray eval` on small data sets: a real store, and a real server on loopback as reader and judge."""

from __future__ import annotations

import json
import threading

import pytest

from tests.doors.chat_server import ChatRequest, ChatServer, Say, as_json

CHAT = (
    {
        "id": "m1",
        "speaker": "Ada",
        "at": "2024-01-01T10:00:00Z",
        "session": "1",
        "text": "I play the cello now",
    },
    {"id": "m2", "speaker": "Ben", "at": "2024-01-01T10:01:00Z", "session": "1", "text": "Lovely, Ada!"},
    {
        "id": "m3",
        "speaker": "Ben",
        "at": "2024-02-01T10:00:00Z",
        "session": "2",
        "text": "I bake bread at dawn",
    },
)
QUESTIONS = (
    {"question": "What cello does Ada play?", "type": "single", "evidence": ["m1"], "answer": "the cello"},
    {"question": "Who bakes bread?", "type": "single", "evidence": ["m3"], "answer": "Ben"},
    {"question": "Which zebra?", "type": "none"},
)


@pytest.fixture
def talk(kgray):
    """Write a data set; the model needs no server."""
    kgray.env = {"KGRAY_MODEL_BACKEND": "rules"}
    return kgray.write("talk.jsonl", *CHAT, *QUESTIONS)


def test_retrieval_measures_every_question_that_has_evidence(kgray, talk):
    answer = kgray("eval", "retrieval", talk, "--rows", "rows.jsonl", "--json")

    assert answer.code == 0
    overall, by_type = answer.json["overall"], answer.json["by_type"]
    assert overall["questions"] == 2
    assert {name: part["questions"] for name, part in by_type.items()} == {"none": 1, "single": 2}
    assert overall["measures"]["all@5"] == {"mean": 1.0, "low": 0.3424, "high": 1.0, "count": 2}
    assert overall["measures"]["context@500"]["mean"] == 1.0
    assert set(overall["ms"]["search"]) == {"p25", "p50", "p75", "p95", "iqr"}
    assert set(by_type["none"]["measures"]) >= {"nothing", "context_nothing@1000"}
    rows = [json.loads(line) for line in (kgray.folder / "rows.jsonl").read_text("utf-8").splitlines()]
    assert [(row["question"], row["evidence"]) for row in rows[:2]] == [
        ("What cello does Ada play?", ["m1"]),
        ("Who bakes bread?", ["m3"]),
    ]
    assert ["m3"] in rows[1]["found"]


def test_facts_are_measured_now_in_the_past_and_as_known_in_the_past(kgray):
    """The old job is right for its time and wrong now; the new job is unknown before its message."""
    kgray.env = {"KGRAY_MODEL_BACKEND": "rules"}
    jobs = (("m1", "2024-01-10", "Acme"), ("m2", "2024-03-10", "Beta"))
    rows = [
        {"id": id_, "speaker": "Ada", "at": f"{day}T10:00:00Z", "text": f"I work at {firm}."}
        for id_, day, firm in jobs
    ]
    questions = (
        {"type": "now", "fact": "Beta", "outdated": ["Acme"]},
        {"type": "as-of", "at": "2024-02-01T00:00:00Z", "fact": "Acme", "outdated": ["Beta"]},
        {"type": "as-known", "after": "m1", "fact": "Acme", "outdated": ["Beta"]},
        {"type": "wrong", "fact": "Beta", "after": "m1"},
    )
    file = kgray.write(
        "jobs.jsonl", *rows, *({"question": "Where does Ada work?", **question} for question in questions)
    )

    by_type = kgray("eval", "retrieval", file, "--json").json["by_type"]

    def means(kind):
        return {
            name: mark["mean"] for name, mark in by_type[kind]["measures"].items() if "tokens" not in name
        }

    contexts = [f"context_{{}}@{tokens}" for tokens in (500, 950, 1000, 1500)]
    right = {
        name.format(measure): value
        for name in ("{}@10", *contexts)
        for measure, value in (("fact", 1), ("stale", 0))
    }
    assert [means(kind) for kind in ("now", "as-of", "as-known")] == [right, right, right]
    assert means("wrong") == {name.format("fact"): 0 for name in ("{}@10", *contexts)}


def test_retrieval_ingests_once_into_a_store_of_its_own(kgray, talk):
    first = kgray("eval", "retrieval", talk)
    repeated = kgray("eval", "retrieval", talk)

    assert "ingesting conversation 1 of 1" in first.err
    assert "ingesting" not in repeated.err
    assert "overall" in repeated.out
    assert "\u2588" in repeated.out
    kgray("init")
    assert kgray("groups", "--json").json == {"groups": []}


def test_unusable_questions_and_evidence_are_reported(kgray, talk):
    name = kgray.write(
        "odd.jsonl", *CHAT, QUESTIONS[0], {"question": "Why?"}, {**QUESTIONS[1], "evidence": ["m3", "m9"]}
    )

    messages = kgray("eval", "retrieval", name).err
    assert "1 questions have neither evidence nor an answer: left out" in messages
    assert "1 ids of evidence name no message: left out" in messages


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (("retrieval", "none.json"), "none.json cannot be read"),
        (("retrieval", "bad.json"), "bad.json is no JSON in UTF-8"),
        (("answers", "talk.jsonl"), "answers need a language model as reader and judge"),
    ],
)
def test_unusable_input_is_a_one_line_error(kgray, talk, args, line):
    kgray.write("bad.json", "[{")
    answer = kgray("eval", *args)

    assert answer.code == 2
    assert line in answer.err
    assert answer.err.count("\n") == 1
    assert not (kgray.folder / "kgray-data").exists()


# ---------------------------------------------------------------------------------------------- answers


def replies(request: ChatRequest) -> Say:
    """Answer as a reader that knows one thing, and as a judge that looks for a word."""
    parts = request.sections
    if request.task == "grade":
        graded = parts["GRADED"]
        return as_json({"correct": graded["right_answer"].split()[-1] in graded["graded_answer"]})
    if request.task == "summarise":
        return as_json({"answer": f"Summary: {parts['SESSION'].splitlines()[0].rpartition(' ')[2]}"})
    return as_json({"answer": "It is Ben" if "bake" in parts["QUESTION"]["question"] else "I do not know"})


@pytest.fixture
def server():
    running = ChatServer(replies)
    yield running
    running.close()


@pytest.fixture
def models(kgray, talk, server):
    """Ingest with the rules, then use a model behind HTTP as reader and judge, for answers only."""
    kgray("eval", "retrieval", talk)
    kgray.env = {
        "KGRAY_MODEL_BACKEND": "openai",
        "KGRAY_MODEL_BASE_URL": server.url,
        "KGRAY_MODEL_NAME": "reader",
        "KGRAY_MODEL_PATIENCE_S": "1",
    }
    return talk


def raw_rows(kgray) -> list[dict]:
    """Return the raw row of each question; a row is written in parts, as the replies arrive."""
    (path,) = (kgray.folder / "kgray-data" / "eval").glob("*/answers-*.jsonl")
    rows: dict[str, dict] = {}
    for part in map(json.loads, path.read_text("utf-8").splitlines()):
        rows[part["id"]] = rows.get(part["id"], {}) | part
    return [*rows.values()]


def test_answers_are_graded_and_the_tolerance_of_the_judge_is_measured(kgray, models, server):
    answer = kgray("eval", "answers", models, "--tokens", "500", "--json")

    assert answer.code == 0
    overall = answer.json["overall"]
    assert overall["questions"] == 2
    measured = {name: cell["mean"] for name, cell in overall["measures"].items()}
    assert measured.pop("tokens") <= 500
    assert measured == {"correct": 0.5, "judge_accepts_right": 1.0, "judge_accepts_wrong": 0.0}
    rows = {row["question"]: row for row in raw_rows(kgray)}
    assert (rows["Who bakes bread?"]["answer"], rows["Who bakes bread?"]["correct"]) == ("It is Ben", True)
    assert "I bake bread at dawn" in rows["Who bakes bread?"]["context"]
    assert server.tasks().count("grade") == 6
    assert "summarise" not in server.tasks()


def test_a_repeated_command_makes_no_calls_and_prints_the_same(kgray, models, server):
    first = kgray("eval", "answers", models, "--json").json
    request_count = len(server.requests)

    assert kgray("eval", "answers", models, "--json").json == first
    assert len(server.requests) == request_count


def test_the_whole_conversation_is_a_baseline(kgray, models, server):
    assert kgray("eval", "answers", models, "--way", "full").code == 0

    contexts = [request.sections["CONTEXT"] for request in server.requests if request.task == "answer"]
    assert contexts[0] == (
        "[2024-01-01T10:00:00Z] Ada: I play the cello now\n[2024-01-01T10:01:00Z] Ben: Lovely, Ada!\n\n"
        "[2024-02-01T10:00:00Z] Ben: I bake bread at dawn"
    )


def test_session_summaries_are_a_baseline_and_are_written_once(kgray, models, server):
    assert kgray("eval", "answers", models, "--way", "summaries").code == 0

    assert server.tasks().count("summarise") == 2
    contexts = {request.sections["CONTEXT"] for request in server.requests if request.task == "answer"}
    assert contexts == {"2024-01-01T10:00:00Z Summary: now\n\n2024-02-01T10:00:00Z Summary: dawn"}


def test_the_settings_of_zeps_paper_show_only_facts_and_entities(kgray, models, server):
    rows = [{"id": "j", "speaker": "Ada", "at": "2024-01-01", "text": "I work at Acme."}]
    question = {"question": "Where does Ada work?", "type": "multi-session", "answer": "Acme"}
    reader, kgray.env = kgray.env, {"KGRAY_MODEL_BACKEND": "rules"}
    file = kgray.write("jobs.jsonl", *rows, question | {"evidence": ["j"]})
    assert kgray("eval", "retrieval", file).code == 0
    kgray.env = reader
    answer = kgray("eval", "answers", file, "--as", "zep", "--json")

    assert answer.code == 0
    (context,) = (request.sections["CONTEXT"] for request in server.requests if request.task == "answer")
    assert "<FACTS>" in context
    assert "Ada works at Acme" in context
    assert "<EPISODES>" not in context
    assert answer.json["overall"]["measures"]["correct"]["count"] == 1


def test_a_recursive_summary_is_a_baseline_and_reads_each_session_once(kgray, models, server):
    def reply(request: ChatRequest) -> Say:
        if request.task != "recursive":
            return replies(request)
        parts = request.sections
        return as_json({"answer": f"{parts['SUMMARY']} / {parts['SESSION'].split()[-1]}"})

    server.answer = reply
    assert kgray("eval", "answers", models, "--way", "recursive").code == 0

    assert server.tasks().count("recursive") == 2
    contexts = {request.sections["CONTEXT"] for request in server.requests if request.task == "answer"}
    assert contexts == {" / Ada! / dawn"}


def test_the_report_has_accuracy_and_latency(kgray, models, server):
    """The model delays its replies, so that the whole latency exceeds that of the search."""
    server.answer = lambda request: Say(**{**vars(replies(request)), "delay": 0.05})
    report = kgray("eval", "answers", models, "--json").json

    assert report["by_type"]["single"]["measures"]["correct"]["count"] == 2
    latency = report["overall"]["ms"]
    assert set(latency["answer"]) == {"p25", "p50", "p75", "p95", "iqr"}
    assert latency["answer"]["p50"] >= latency["search"]["p50"] + 50
    text_output = kgray("eval", "answers", models)
    assert "answer: median " in text_output.err
    assert "interquartile range " in text_output.err
    assert "correct" in text_output.out


TYPES = {  # type of a question -> words of the judge's prompt for it
    "temporal-reasoning": "off by one is correct",
    "knowledge-update": "as the one that holds now",
    "single-session-preference": "is a rubric",
    "abstention": "cannot be answered",
    "multi-session": "only a part of the right answer is wrong",
}


def test_the_judge_has_a_prompt_for_each_question_type(kgray, models, server):
    questions = [{**QUESTIONS[1], "question": f"Who bakes bread {kind}?", "type": kind} for kind in TYPES]
    file = kgray.write("types.jsonl", *CHAT, *questions)
    assert kgray("eval", "answers", file, "--way", "full").code == 0

    judged = {call.sections["GRADED"]["type"]: call.head for call in server.requests if call.task == "grade"}
    assert {kind: words in judged[kind] for kind, words in TYPES.items()} == dict.fromkeys(TYPES, True)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--recipe", "papers"), "recipe 'papers' is unknown: use hybrid, mix,"),
        (("--as", "memgpt"), "'memgpt' is not 'zep'"),
        (("--template", "xml"), "'xml' is not one of 'kgray', 'paper'"),
        (("--limit", "0"), "0 is not in the range 1<=x<=100"),
        (("--way", "half"), "'half' is not one of 'memory', 'full', 'summaries', 'recursive'"),
    ],
)
def test_a_wrong_option_is_a_one_line_error_with_the_allowed_values(kgray, models, server, options, line):
    answer = kgray("eval", "answers", models, *options)
    assert (answer.code, line in answer.err, server.requests) == (2, True, []), answer.err


def test_a_judge_can_have_its_own_settings(kgray, models, server):
    kgray.write("judge.toml", f'[model]\nbackend = "openai"\nbase_url = "{server.url}"\nname = "strict"\n')
    kgray("eval", "answers", models, "--judge", "judge.toml")

    names = {(request.task, request.body["model"]) for request in server.requests}
    assert names == {("answer", "reader"), ("grade", "strict")}


def test_a_refused_answer_counts_as_wrong_and_an_unreadable_verdict_is_not_counted(kgray, models, server):
    def odd(request: ChatRequest) -> Say:
        if request.task == "grade":
            return Say("maybe") if "Ben" in request.data else replies(request)
        return (
            Say("too long", status=400)
            if "cello" in request.data.partition("<QUESTION>")[2]
            else replies(request)
        )

    server.answer = odd
    answer = kgray("eval", "answers", models, "--json")
    overall = answer.json["overall"]
    assert "1 question without an answer, which counts as wrong: the server refuses" in answer.err

    rows = {row["question"]: row for row in raw_rows(kgray)}
    assert rows["What cello does Ada play?"]["correct"] is False
    assert "400" in rows["What cello does Ada play?"]["error"]
    assert rows["Who bakes bread?"]["correct"] is None
    assert overall["measures"]["correct"]["mean"] == 0.0


def test_an_outage_stops_the_run_and_received_answers_are_stored(kgray, models, server):
    server.answer = lambda request: Say(status=503) if "cello" in request.data else replies(request)
    answer = kgray("eval", "answers", models)
    assert answer.code == 75
    assert "503" in answer.err

    server.answer = replies
    assert kgray("eval", "answers", models).code == 0
    assert len(raw_rows(kgray)) == 2


@pytest.mark.slow  # a killed backfill is resumed by default
def test_a_killed_run_resumes_with_the_unanswered_questions(kgray, models, server):
    """The second question gets no answer before the kill; the next run asks only this question."""
    answered, hanging = threading.Event(), threading.Event()

    def first_only(request: ChatRequest) -> Say:
        if request.task == "answer" and "cello" in request.sections["QUESTION"]["question"]:
            answered.set()
            hanging.wait(60)
        return replies(request)

    server.answer = first_only
    running = kgray.start("eval", "answers", models)
    try:
        assert answered.wait(60)
        (path,) = _until(lambda: [p for p in _raw(kgray) if p.read_bytes().endswith(b"\n")], running)
    finally:
        running.kill()
        running.communicate()
        hanging.set()
    with path.open("ab") as file:
        file.write(b'{"id": "half a li')  # as a kill in the middle of a write leaves it
    server.answer, earlier = replies, len(server.requests)

    assert kgray("eval", "answers", models).code == 0
    assert {
        request.sections["QUESTION"]["question"]
        for request in server.requests[earlier:]
        if request.task == "answer"
    } == {"What cello does Ada play?"}
    assert len(raw_rows(kgray)) == 2


@pytest.mark.slow
def test_a_received_reply_is_never_requested_again(kgray, models, server):
    """Each process gets one reply and is killed in its next call, until no call is left."""
    is_hanging, ends = threading.Event(), threading.Event()

    def first_only(request: ChatRequest) -> Say:
        if len(server.requests) > 1:
            is_hanging.set()
            ends.wait(60)
        return replies(request) if request.task != "recursive" else as_json({"answer": "cello, bread"})

    server.answer = first_only
    requests = []
    for _ in range(20):
        for event in (is_hanging, ends):
            event.clear()
        running = kgray.start("eval", "answers", models, "--way", "recursive", "--at-once", "1")
        while running.poll() is None and not is_hanging.wait(0.05):
            pass
        running.kill()
        running.communicate()
        ends.set()
        requests += [request.data for request in server.requests[:1]]
        server.requests.clear()
        if running.returncode == 0:
            break
    assert running.returncode == 0
    assert len(requests) == len({*requests}) == 10  # two summaries, two answers, six verdicts


def _raw(kgray):
    return list((kgray.folder / "kgray-data" / "eval").glob("*/answers-*.jsonl"))


def _until(read, running):
    """Return the first result of `read` that is not empty; the process must not end earlier."""
    while not (some := read()):
        assert running.poll() is None, running.communicate()
    return some
