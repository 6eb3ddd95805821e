"""The response cache: what was answered is not asked again; what is removed is gone from it (R25)."""

from __future__ import annotations

import json
import shutil

import apsw
import pytest

from kgray.backends.openai_api.client import Client, Endpoint
from kgray.backends.openai_api.judge import OpenAIJudge
from kgray.ledger import pending
from kgray.ports import QuestionRequest
from kgray.stores.sqlite.cache import FILE, _digest
from tests.doors.chat_server import Asked, ChatServer, Say, as_json
from tests.doors.test_openai_models import ALL, JUDGED, PROMPTS, answering
from tests.graph.by_hand import append, draft, small

ROWS = [
    {"id": "a", "source": "s", "speaker": "Alice", "text": "zqalpha Acme", "at": "2026-01-01"},
    {"id": "b", "source": "s", "speaker": "Alice", "text": "zqbravo Globex", "at": "2026-01-02"},
    {"id": "c", "source": "t", "speaker": "Alice", "text": "zqcharlie Initech", "at": "2026-01-03"},
]


def read(asked: Asked) -> Say:
    """Say that the speaker saw the last word; answer every question with a reason that quotes the text."""
    if asked.task != "combined":
        text = asked.sections["EPISODE"]["text"]
        said = {"cardinality": "many", "contradicts": [], "reason": f"{text} because"}
        answers = [
            {"id": q["id"], "duplicate_of": 0 if q.get("candidates") else None, **said}
            for q in asked.sections["QUESTIONS"]
        ]
        return as_json({"answers": answers})
    told = asked.sections["EPISODE"]
    mark, other = told["text"].split()
    fact = {"source": 0, "target": 1, "relation": "SAW", "fact": f"Alice saw {other} {mark}", "kind": "holds"}
    entities = [{"name": told["speaker"], "type": "Person"}, {"name": other, "type": ""}]
    return as_json(
        {"entities": entities, "facts": [fact | {"valid_at": None, "invalid_at": None, "value": None}]}
    )


@pytest.fixture
def serve(kgray):
    servers: list[ChatServer] = []

    def start(answer=read) -> ChatServer:
        servers.append(ChatServer(answer))
        kgray.env = {
            "KGRAY_MODEL_BACKEND": "openai",
            "KGRAY_MODEL_NAME": "m",
            "KGRAY_MODEL_BASE_URL": servers[-1].url,
            "KGRAY_MODEL_PATIENCE_S": "1",
            "KGRAY_RUNTIME_WINDOW": "1",  # nothing is asked ahead, which another run may not need
        }
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def add(kgray, data: str, *rows, group: str = "g"):
    report = kgray("add", kgray.write("rows.jsonl", *rows), "--group", group, "--data", data, "--json")
    assert (report.code, report.json["committed"]) == (0, len(rows)), report.err


def hashed(kgray, data: str, group: str = "g") -> str:
    return str(kgray("dump", "--group", group, "--hash", "--data", data).out)


def readable(folder) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))


def entries(folder) -> int:
    connection = apsw.Connection(str(folder / FILE))
    found = connection.execute("SELECT count(*) FROM entries").fetchall()[0][0]
    connection.close()
    return int(found)


def test_a_new_folder_with_a_copy_of_the_cache_asks_nothing_again(kgray, serve):
    first = serve()
    add(kgray, "one", *ROWS)
    assert len(first.asked) == len({(a.task, a.data) for a in first.asked}) > len(ROWS)
    silent = serve(lambda _: Say(status=500))
    (kgray.folder / "two").mkdir()
    shutil.copy(kgray.folder / "one" / FILE, kgray.folder / "two" / FILE)

    add(kgray, "two", *ROWS)

    assert (silent.asked, silent.probes) == ([], [])
    assert hashed(kgray, "two") == hashed(kgray, "one")
    model = kgray("status", "--data", "two", "--json").json["model"]
    assert model == {"calls": 0, "prompt_tokens": 0, "completion_tokens": 0}


async def test_what_took_two_replies_is_kept_whole(serve, tmp_path):
    """The first reply answers some questions, the repair the others: what is kept answers them all."""

    def in_part(asked: Asked) -> Say:
        (first, *_), repaired = asked.sections["QUESTIONS"], "<REJECTED>" in asked.data
        told = json.loads(answering(asked).text)["answers"]
        return as_json({"answers": [a for a in told if (a["id"] == first["id"]) != repaired]})

    store = small(tmp_path)
    append(store, draft("I left", client_id="a"))
    request = QuestionRequest(episode=pending(store, "g", 1)[0], questions=ALL)
    server = serve(in_part)
    endpoint = Endpoint(base_url=server.url, name="m", patience_s=1)
    judge = OpenAIJudge(Client(endpoint), PROMPTS, cache=store.responses(max_bytes=1 << 20))
    first = await judge.judge(request)
    again = await judge.judge(request)
    store.close()

    assert (first.answers, first.calls - len(server.probes)) == (JUDGED, 2)
    assert (again.answers, again.calls, len(server.asked)) == (JUDGED, 0, 2)


def test_what_a_server_refuses_is_not_kept(kgray, serve):
    serve(lambda _: Say("no", status=400))

    refused = kgray("add", kgray.write("r.jsonl", ROWS[0]), "--group", "g", "--data", "one", "--json")

    assert refused.json["failed"] == 1
    assert not (kgray.folder / "one" / FILE).exists()


def test_a_reply_that_was_cut_is_not_kept(kgray, serve):
    def cut(asked: Asked) -> Say:
        whole = read(asked)
        return whole if asked.task != "combined" else Say(whole.text[:-1], finish="length")

    serve(cut)
    add(kgray, "one", ROWS[0])
    kept = entries(kgray.folder / "one") if (kgray.folder / "one" / FILE).exists() else 0
    server = serve()
    (kgray.folder / "two").mkdir()
    if kept:
        shutil.copy(kgray.folder / "one" / FILE, kgray.folder / "two" / FILE)
    add(kgray, "two", ROWS[0])

    assert "combined" in server.tasks()


def test_without_a_cache_no_file_is_made_and_all_is_asked_again(kgray, serve):
    serve()
    kgray.env["KGRAY_MODEL_CACHE_MB"] = "0"

    add(kgray, "one", *ROWS)

    assert not (kgray.folder / "one" / FILE).exists()


def test_a_preview_keeps_nothing(kgray, serve):
    server = serve()
    kgray("init")

    answer = kgray("add", kgray.write("rows.jsonl", *ROWS), "--group", "g", "--dry-run", "--json")

    assert answer.code == 0
    assert len(server.asked) >= len(ROWS)
    assert not (kgray.folder / "kgray-data" / FILE).exists()


def test_two_groups_never_share_a_reply(kgray, serve):
    server = serve()
    add(kgray, "one", ROWS[0], group="g")
    asked = len(server.asked)
    add(kgray, "one", ROWS[0], group="h")
    assert len(server.asked) == 2 * asked

    assert kgray("remove", "--group", "h", "--all", "--yes", "--data", "one").code == 0

    assert entries(kgray.folder / "one") == asked
    serve(lambda _: Say(status=500))
    (kgray.folder / "two").mkdir()
    shutil.copy(kgray.folder / "one" / FILE, kgray.folder / "two" / FILE)
    add(kgray, "two", ROWS[0], group="g")


@pytest.mark.parametrize(
    ("removed", "gone", "left"),
    [
        (["--episode", "c"], ("zqcharlie",), ("zqalpha", "zqbravo")),
        (["--source", "s"], ("zqalpha", "zqbravo"), ("zqcharlie",)),
        (["--all"], ("zqalpha", "zqbravo", "zqcharlie", "Acme", "because"), ()),
    ],
)
@pytest.mark.parametrize("later", ["as before", "no cache", "no model"])
def test_a_removal_leaves_no_byte_of_text_or_reply(kgray, serve, removed, gone, left, later):
    """R25, R27: whatever the settings say of model and cache when the removal comes."""
    serve()
    add(kgray, "one", *ROWS)
    folder = kgray.folder / "one"
    before = (folder / FILE).read_bytes()
    assert all(word.encode() in before for word in (*gone, *left))
    match later:
        case "no cache":
            kgray.env["KGRAY_MODEL_CACHE_MB"] = "0"
        case "no model":
            kgray.env = {}

    answer = kgray("remove", "--group", "g", *removed, "--yes", "--data", "one", "--json")

    assert answer.code == 0, answer.err
    after = readable(folder)
    assert [word for word in gone if word.encode() in after] == []
    assert [word for word in left if word.encode() not in (folder / FILE).read_bytes()] == []


def test_what_follows_a_removed_episode_in_its_source_is_asked_anew(kgray, serve):
    """A reply to a prompt that showed the removed text as context goes with it."""
    serve()
    add(kgray, "one", *ROWS)

    kgray("remove", "--group", "g", "--episode", "a", "--yes", "--data", "one")

    connection = apsw.Connection(str(kgray.folder / "one" / FILE))
    kept = [json.loads(row[0]) for row in connection.execute("SELECT reply FROM entries").fetchall()]
    connection.close()
    assert [r["entities"][1]["name"] for r in kept if "entities" in r] == ["Initech"]


def test_the_file_names_no_group_no_episode_and_no_request(kgray, serve):
    serve()
    add(kgray, "one", {**ROWS[0], "id": "zqclient"}, group="zqgroup")

    content = (kgray.folder / "one" / FILE).read_bytes()

    assert b"zqgroup" not in content
    assert b"zqclient" not in content
    assert b"EPISODE" not in content
    assert _digest("zqgroup") in content


@pytest.mark.parametrize("content", [b"not a database" * 100, None], ids=["no-database", "another-program"])
def test_a_file_that_is_no_cache_is_said_in_one_line_and_not_touched(kgray, serve, content):
    serve()
    kgray("init", "--data", "one")
    path = kgray.folder / "one" / FILE
    if content is None:
        connection = apsw.Connection(str(path))
        connection.execute("CREATE TABLE recipes (name)")
        connection.close()
        content = path.read_bytes()
    path.write_bytes(content)

    answer = kgray("add", kgray.write("rows.jsonl", ROWS[0]), "--group", "g", "--data", "one", "--json")

    assert answer.code == 2
    assert answer.err.splitlines()[-1].endswith(
        "move it away or delete it; what it holds can be asked of the model again"
    )
    assert path.read_bytes() == content
    path.unlink()
    add(kgray, "one", ROWS[0])
