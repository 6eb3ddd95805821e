"""`kgray add` with a model over HTTP: failed episodes, stopped runs (R24), settings, dry runs."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from tests.doors.chat_server import ChatRequest, ChatServer, Say, as_json

KEY = "sk-very-secret"
ROWS = [
    {"id": "a", "speaker": "Alice", "text": "I work at Acme.", "at": "2026-01-01"},
    {"id": "b", "speaker": "Alice", "text": "I live in Oslo.", "at": "2026-01-02"},
]


def read(request: ChatRequest) -> Say:
    if request.task != "combined":
        return as_json(
            {"answers": [{"id": q["id"], "duplicate_of": None} for q in request.sections["QUESTIONS"]]}
        )
    episode = request.sections["EPISODE"]
    _, verb, _, object_name = episode["text"].rstrip(".").split()
    relation = {"work": "WORKS_AT", "live": "LIVES_IN"}[verb]
    fact = {
        "subject": "I",
        "relation": relation,
        "object": object_name,
        "fact": f"Alice {relation} {object_name}",
        "status": "current",
        "start": None,
        "end": None,
    }
    entities = [{"name": episode["speaker"], "type": "Person"}, {"name": object_name, "type": ""}]
    return as_json({"entities": entities, "facts": [fact]})


@pytest.fixture
def serve(kgray):
    servers: list[ChatServer] = []

    def start(answer) -> ChatServer:
        servers.append(ChatServer(answer))
        kgray.env = {
            "KGRAY_MODEL_BACKEND": "openai",
            "KGRAY_MODEL_NAME": "m",
            "KGRAY_MODEL_BASE_URL": servers[-1].url,
            "KGRAY_MODEL_API_KEY": KEY,
            "KGRAY_MODEL_PATIENCE_S": "1",
        }
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def facts(kgray) -> list[str]:
    rows = [json.loads(line) for line in kgray("dump", "--group", "g").out.splitlines()]
    return sorted(row["text"] for row in rows if row["type"] == "fact")


def test_a_model_over_http_reads_added_episodes(kgray, serve):
    server = serve(read)

    report = kgray("add", kgray.write("rows.jsonl", *ROWS), "--group", "g", "--json").json

    assert (report["committed"], report["failed"]) == (2, 0)
    assert facts(kgray) == ["Alice lives in Oslo", "Alice works at Acme"]
    assert {a.key for a in server.requests} == {KEY}
    model = kgray("status", "--json").json["model"]
    calls = len(server.probes) + len(server.requests)
    assert calls == 3, "the probe and two episodes: no question about a second Alice"
    assert model == {"calls": calls, "prompt_tokens": 100 * calls, "completion_tokens": 20 * calls}


def test_a_refused_text_fails_only_its_episode(kgray, serve):
    """R24: 400 for the text; the reason quotes the server."""
    serve(
        lambda a: (
            Say("context length exceeded", status=400) if "Acme" in a.sections["EPISODE"]["text"] else read(a)
        )
    )

    answer = kgray("add", kgray.write("rows.jsonl", *ROWS), "--group", "g", "--json")

    assert (answer.code, answer.json["committed"], answer.json["failed"]) == (1, 1, 1)
    (failed,) = kgray("failures", "--json").json["failures"]
    assert (failed["client_id"], failed["class"]) == ("a", "Refused")
    assert failed["message"] == "the server refused the text (400: context length exceeded)"
    serve(read)
    assert kgray("retry", "--json").json["committed"] == 1
    assert facts(kgray) == ["Alice lives in Oslo", "Alice works at Acme"]


def test_an_outage_stops_the_run_and_the_next_run_resumes(kgray, serve):
    """R24: exit 75 after the patience; nothing failed, nothing is lost."""
    serve(lambda _: Say(status=503))

    answer = kgray("add", kgray.write("rows.jsonl", *ROWS), "--group", "g", "--json")

    assert answer.code == 75
    assert re.search(r"answers 503; waited [\d.]+ s \(model\.patience_s = 1\)", answer.err)
    assert kgray("status", "--json").json["groups"]["g"] == {
        "accepted": 2,
        "extracted": 0,
        "committed": 0,
        "failed": 0,
        "held": 0,
    }
    serve(read)
    assert kgray("add", "rows.jsonl", "--group", "g", "--json").json["committed"] == 2


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_wrong_key_or_model_is_a_one_line_error_without_the_key(kgray, serve, status):
    serve(lambda _: Say(f"bad key {KEY}", status=status))

    answer = kgray("add", kgray.write("rows.jsonl", *ROWS), "--group", "g")

    assert answer.code == 2
    assert "The server at http://127.0.0.1:" in answer.err
    assert KEY not in answer.err + answer.out
    assert kgray("failures", "--json").json["failures"] == []


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"KGRAY_MODEL_BASE_URL": ""}, "needs model.base_url (KGRAY_MODEL_BASE_URL)"),
        ({"KGRAY_MODEL_NAME": ""}, "needs model.name (KGRAY_MODEL_NAME)"),
        ({"KGRAY_MODEL_BASE_URL": "localhost:8000"}, "in the environment: an address such as http://"),
        (
            {"KGRAY_MODEL_BASE_URL": f"http://me:{KEY}@host/v1"},
            "KGRAY_MODEL_BASE_URL = *** in the environment: an address such as",
        ),
        (
            {"KGRAY_MODEL_API_KEY": "schlüssel"},
            "KGRAY_MODEL_API_KEY = *** in the environment: one line of plain ASCII text",
        ),
        (
            {"KGRAY_MODEL_API_KEY": "", "KGRAY_MODEL_API_KEY_FILE": "nowhere"},
            "model.api_key_file = 'nowhere' cannot be read",
        ),
        ({"KGRAY_MODEL_INSTRUCTIONS_FILE": "nowhere"}, "model.instructions_file = 'nowhere' cannot be read"),
        ({"KGRAY_PROMPTS_FOLDER": "nowhere"}, "prompts.folder = 'nowhere'"),
        ({"KGRAY_EMBEDDER_BACKEND": "openai"}, "needs embedder.base_url"),
        ({"KGRAY_RERANKER_BACKEND": "http"}, "needs reranker.base_url"),
        ({"KGRAY_EMBEDDER_BACKEND": "minilm", "KGRAY_EMBEDDER_DIMENSIONS": "16"}, "gives 384"),
        ({"KGRAY_PIPELINE_REFLECT_ROUNDS": "1", "KGRAY_MODEL_BACKEND": "rules"}, "is for a language model"),
        (
            {"KGRAY_MODEL_BACKEND": "rules", "KGRAY_PIPELINE_EXTRACTION": "separate"},
            "is for a language model",
        ),
    ],
)
def test_impossible_settings_are_reported_at_the_start(kgray, serve, env, words):
    serve(read)
    kgray.env |= env

    answer = kgray("init", "--data", "d")

    assert answer.code == 2
    assert words in answer.err
    assert KEY not in answer.err


def test_the_key_and_the_instructions_are_read_from_files(kgray, serve):
    server = serve(read)
    del kgray.env["KGRAY_MODEL_API_KEY"]
    kgray.write("key", f"{KEY}\n")
    kgray.write("words.txt", "Leave out small talk.")
    kgray.write(
        "kgray.toml",
        '[model]\napi_key_file = "key"\ninstructions_file = "words.txt"\ninstructions = "Be brief."\n'
        '[ontology.entities.Ship]\ndescription = "a vessel"\n'
        '[ontology.relations.BOARDS]\ndescription = "goes on board"\n',
    )

    kgray("add", kgray.write("rows.jsonl", *ROWS), "--group", "g")

    request = server.requests[0]
    assert request.key == KEY
    assert "- Ship: a vessel" in request.head
    assert "- BOARDS: goes on board" in request.head
    assert request.head.endswith("Leave out small talk.\n\nBe brief.")


def test_vectors_over_http_are_stored_and_searched(kgray, serve):
    def vector(text: str) -> list[float]:
        return [float("Acme" in text), float("Oslo" in text), 1.0, *[0.0] * 13]

    def answer(request: ChatRequest) -> Say:
        if request.path.endswith("/embeddings"):
            rows = [{"index": i, "embedding": vector(t)} for i, t in enumerate(request.body["input"])]
            return Say(raw=json.dumps({"data": rows}).encode())
        return read(request)

    server = serve(answer)
    added = add_with_embedder(kgray, server)
    assert added.json["committed"] == 2, added.err

    hits = kgray("search", "Acme", "--group", "g", "--scope", "fact", "--json").json["hits"]

    assert hits[0]["text"] == "Alice works at Acme"
    assert hits[0]["methods"]["cosine"] == 1


def add_with_embedder(kgray, server):
    """Add ROWS with the server as the embedder; return the answer of the command."""
    kgray.env |= {
        "KGRAY_EMBEDDER_BACKEND": "openai",
        "KGRAY_EMBEDDER_BASE_URL": server.url,
        "KGRAY_EMBEDDER_NAME": "e",
        "KGRAY_EMBEDDER_DIMENSIONS": "16",
    }
    return kgray("add", kgray.write("rows.jsonl", *ROWS), "--group", "g", "--json")


def test_invalid_vectors_hold_the_group_and_fail_no_episode(kgray, serve):
    """R24: the fault is the server's, not the text's."""
    breaks = True

    def answer(request: ChatRequest) -> Say:
        if not request.path.endswith("/embeddings"):
            return read(request)
        number = float("nan") if breaks else 1.0
        rows = [{"index": i, "embedding": [number] * 16} for i, _ in enumerate(request.body["input"])]
        return Say(raw=json.dumps({"data": rows}).encode())

    server = serve(answer)
    added = add_with_embedder(kgray, server)
    assert (added.code, added.json["committed"], added.json["failed"]) == (1, 0, 0)
    reply = kgray("failures", "--group", "g", "--json").json
    assert f"the embedder's server at {server.url} sent vectors that are none, 3 times" in str(reply)

    breaks = False
    assert kgray("retry", "--group", "g", "--json").json["committed"] == 2


# ------------------------------------------------------------------------------------------ plan


def test_a_dry_run_estimates_calls_and_tokens_and_sends_nothing(kgray, serve):
    """Heads and texts of the prompts that `add` sends are counted, questions estimated."""
    server = serve(read)
    kgray.env["KGRAY_EMBEDDER_BACKEND"] = "hashing"
    kgray("init")
    triple = {
        "kind": "triples",
        "triples": [{"source": "A", "relation": "KNOWS", "target": "B"}],
        "at": "2026-01-01",
    }
    file = kgray.write("rows.jsonl", *ROWS, triple, {"text": ""})

    answer = kgray("backfill", file, "--group", "g", "--dry-run", "--json")

    assert (answer.code, answer.json["refused"]) == (1, 1)
    assert server.requests == server.probes == []
    reply = answer.json["plan"]
    assert (reply["episodes"], reply["triples"]) == (3, 1)
    assert reply["calls"] == 3  # two extractions, and half a call of questions for each
    kgray("add", file, "--group", "g")
    sent = sum(-(-len(a.head) // 4) + -(-len(a.data) // 4) for a in server.requests if a.task == "combined")
    assert sent < reply["prompt_tokens"] < sent * 1.6  # plus the questions
    assert reply["fixed_tokens"] > 0.6 * reply["prompt_tokens"]


def test_a_dry_run_follows_the_pipeline_settings(kgray, serve):
    serve(read)
    kgray("init")
    rows = [{**row, "id": f"{n}-{row['id']}"} if "id" in row else row for n in range(20) for row in ROWS]
    command = ("backfill", kgray.write("rows.jsonl", *rows), "--group", "g", "--dry-run", "--json")
    packed = kgray(*command).json["plan"]
    kgray.env |= {"KGRAY_PIPELINE_EXTRACTION": "separate", "KGRAY_PIPELINE_REFLECT_ROUNDS": "1"}

    apart = kgray(*command).json["plan"]

    assert (packed["calls"], apart["calls"]) == (60, 180)
    assert apart["prompt_tokens"] > packed["prompt_tokens"]


def test_help_imports_no_heavy_library():
    code = (
        "import sys; from kgray.cli import cli\n"
        "try: cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        "print({'numpy', 'aiohttp', 'openai', 'pydantic'} & set(sys.modules), file=sys.stderr)"
    )
    outcome = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    assert outcome.stderr == "set()\n"
