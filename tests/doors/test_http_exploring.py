"""Routes for exploring, previews, uploads and boards: their answers, rights and bounds."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

import kgray
from kgray.server import page_files
from tests.doors.served import serving

TEAM = "/v1/groups/team"
ROWS = [
    {"text": "I work at Acme.", "speaker": "Alice Nguyen", "id": "a1", "at": "2026-01-01"},
    {"text": "What a day.", "speaker": "Ben", "id": "b1", "at": "2026-01-02"},
    {"text": "I work at Beta Labs.", "speaker": "Alice Nguyen", "id": "a2", "at": "2026-03-01"},
]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Serve a group that no test changes."""
    with serving(tmp_path_factory.mktemp("exploring") / "data") as server:
        answer = server.client().post(f"{TEAM}/episodes", json=ROWS, headers={"prefer": "wait=30"})
        assert answer.status_code == 200, answer.text
        yield server


@pytest.fixture
def client(served):
    return served.client()


def fact(client, target):
    facts = client.get(f"{TEAM}/graph").json()["facts"]
    return next(fact for fact in facts if fact["target"] == target)


def test_a_fact_has_its_supporting_and_its_ending_messages(client):
    acme = fact(client, "Acme")

    reply = client.get(f"{TEAM}/facts/{acme['id']}").json()

    assert [item["text"] for item in reply["facts"]] == ["Alice Nguyen works at Acme"]
    messages = {item["client_id"]: item for item in reply["messages"]}
    assert {name: item["role"] for name, item in messages.items()} == {
        "a1": "evidence",
        "b1": "around",
        "a2": "end",
    }
    start, end, statement = messages["a1"]["marks"][0]
    assert messages["a1"]["text"][start:end] == "Acme"
    assert statement == reply["statement"]
    assert [row["kind"] for row in reply["evidence"]] == ["holds"]
    assert reply["models"][0]["calls"] == 0
    assert client.get(f"{TEAM}/facts/{acme['id']}", params={"around": 0}).json()["messages"].__len__() == 2


def test_the_reasons_of_an_unknown_fact_are_not_found(client):
    alice = fact(client, "Acme")["source_id"]
    assert client.get(f"{TEAM}/facts/{alice}").status_code == 404
    assert client.get(f"{TEAM}/facts/nothing").status_code == 404
    assert client.get(f"{TEAM}/facts/x", params={"around": 13}).status_code == 422


@pytest.mark.parametrize(
    ("query", "names"),
    [("ali", ["Alice Nguyen"]), ("NGU", ["Alice Nguyen"]), ("lab", ["Beta Labs"]), ("zzz", [])],
)
def test_a_prefix_of_a_word_completes_a_name(client, query, names):
    reply = client.get(f"{TEAM}/complete", params={"q": query}).json()["entities"]
    assert [item["name"] for item in reply] == names


def test_names_of_a_later_commit_are_completed(tmp_path):
    with serving(tmp_path / "data") as server:
        client = server.client()
        for row in ROWS[0], {"text": "I work at Gamma.", "speaker": "Zora", "at": "2026-04-01"}:
            client.post(f"{TEAM}/episodes", json=row, headers={"prefer": "wait=30"})
            names = client.get(f"{TEAM}/complete", params={"q": "z"}).json()["entities"]
        assert [name["name"] for name in names] == ["Zora"]


def test_a_neighbourhood_has_a_bound_for_facts(client):
    reply = client.get(f"{TEAM}/graph", params={"limit": 2000, "most_facts": 1}).json()
    assert (len(reply["facts"]), reply["truncated"], reply["total"]["facts"]) == (1, True, 2)
    assert client.get(f"{TEAM}/graph", params={"limit": 2001}).status_code == 422


def test_communities_form_a_graph_and_label_a_neighbourhood(tmp_path):
    triples = [
        {"source": f"{side}{i}", "relation": "KNOWS", "target": f"{side}{j}"}
        for side in "AB" for i in range(5) for j in range(i)
    ] + [{"source": "A0", "relation": "KNOWS", "target": "B0"}]  # fmt: skip
    with kgray.open(tmp_path / "data", create=True) as memory:
        memory.add(triples, group="team", kind="triples")
        memory.communities.refresh(["team"])
    with serving(tmp_path / "data") as server:
        client = server.client()
        reply = client.get(f"{TEAM}/overview").json()
        first, second = (item["id"] for item in reply["communities"])
        assert [[*sorted(link[:2]), link[2]] for link in reply["links"]] == [[*sorted((first, second)), 1]]
        members = client.get(f"{TEAM}/graph", params={"community": first, "level": 0}).json()
        assert {item["community"] for item in members["entities"]} == {first}
        assert len(members["entities"]) == 5


@pytest.mark.parametrize(
    ("body", "changes"),
    [
        pytest.param({"retract": ["a1"]}, {("fact", "remove", "Alice Nguyen works at Acme")}, id="retract"),
        pytest.param(
            {"episode": {"text": "I live in Oslo.", "speaker": "Alice Nguyen", "at": "2026-05-01"}},
            {("fact", "add", "Alice Nguyen lives in Oslo")},
            id="episode",
        ),
        pytest.param(
            {"episode": {"kind": "triples", "source": "page", "triples": [{
                "source": "Alice Nguyen", "relation": "WORKS_AT", "target": "Beta Labs", "denied": True}]}},
            {("fact", "remove", "Alice Nguyen works at Beta Labs")},
            id="denial",
        ),
    ],
)  # fmt: skip
def test_a_preview_shows_changes_and_makes_none(client, body, changes):
    dump = client.get(f"{TEAM}/dump").text

    reply = client.post(f"{TEAM}/preview", json=body).json()["changes"]

    previewed = {(row["type"], row["op"], row.get("text")) for row in reply}
    assert changes <= previewed
    assert client.get(f"{TEAM}/dump").text == dump


def test_a_preview_of_a_merge_shows_the_removed_entity(client):
    reply = client.post(f"{TEAM}/preview", json={"merge": ["Acme", "Beta Labs"]}).json()["changes"]
    entities = [(row["op"], row["name"]) for row in reply if row["type"] == "entity"]
    assert ("remove", "Beta Labs") in entities


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"retract": ["a1"], "undo": 1},
        {"merge": ["Acme"]},
        {"episode": {"text": 7}},
        {"merge": ["Acme", "Nobody"]},
    ],
)
def test_a_preview_of_no_change_is_refused(client, body):
    assert client.post(f"{TEAM}/preview", json=body).status_code in (404, 422)


def test_each_row_of_an_uploaded_file_is_accepted_or_refused(tmp_path):
    lines = b'{"text": "I work at Gamma.", "speaker": "Ida"}\n{"text": 7}\n{"text": "x", "group": "other"}\n'
    with serving(tmp_path / "data") as server:
        client = server.client()
        reply = client.post(f"{TEAM}/files", params={"name": "a.jsonl"}, content=lines).json()
        assert (reply["accepted"], reply["refused"]) == (1, 2)
        assert {(row["line"], row["field"]) for row in reply["refusals"]} == {(2, "text"), (3, "group")}
        csv = client.post(
            f"{TEAM}/files", params={"name": "b.csv"}, content=b"speaker,text\nIda,I like tea.\n"
        )
        assert csv.json()["accepted"] == 1
        assert client.post(f"{TEAM}/files", params={"name": "a.exe"}, content=b"x").status_code == 422


def test_the_board_and_its_stream_show_the_groups_of_the_key(tmp_path):
    with serving(tmp_path / "data", runtime=lambda: {"backend": "local"}) as server:
        for group in ("team", "secret"):
            server.client().post(f"/v1/groups/{group}/episodes", json=ROWS[0])
        client = server.client(server.key("team", "read"))
        board = client.get("/v1/status").json()
        assert set(board["groups"]) == {"team"}
        assert board["runtime"] == {"backend": "local"}
        with client.stream("GET", "/v1/status/events") as stream:
            lines = stream.iter_lines()
            assert next(lines) == "event: status"
            assert set(json.loads(next(lines).removeprefix("data: "))["groups"]) == {"team"}


def test_only_schedules_of_the_groups_of_the_key_are_listed(tmp_path):
    with serving(tmp_path / "data") as server:
        made_at = 1_700_000_000_000_000
        for group in ("team", "secret"):
            server.memory.store.append([group], lambda log, group=group: log.take_sequence(group))
        for name, groups in (("all", ()), ("ours", ("team",)), ("theirs", ("secret",))):
            server.memory.admin.schedules.add(name, "0 3 * * *", "UTC", made_at, groups=groups)
        clients = {key: server.client(server.key(key, "read")) for key in ("team", "*")}
        results = {key: client.get("/v1/schedules").json()["schedules"] for key, client in clients.items()}
        names_by_key = {key: [row["name"] for row in rows] for key, rows in results.items()}
        assert {key: sorted(names) for key, names in names_by_key.items()} == {
            "team": ["ours"], "*": ["all", "ours", "theirs"],
        }  # fmt: skip


def test_a_key_can_read_its_own_rights(tmp_path):
    with serving(tmp_path / "data") as server:
        assert server.client().get("/v1/key").json()["groups"] == ["*"]
        client = server.client(server.key("team", "add"))
        assert {name: client.get("/v1/key").json()[name] for name in ("groups", "scopes")} == {
            "groups": ["team"], "scopes": ["add"],
        }  # fmt: skip
        assert server.client().get("/v1/key").status_code == 401


@pytest.mark.parametrize("path", ["facts/x", "complete?q=a", "overview", "graph"])
def test_a_key_cannot_read_another_group(tmp_path, path):
    with serving(tmp_path / "data") as server:
        client = server.client(server.key("other", "read"))
        assert client.get(f"{TEAM}/{path}").status_code == 403


def test_a_missing_page_is_reported_with_the_command_that_builds_it(client, monkeypatch, tmp_path):
    monkeypatch.setattr(page_files, "BUILT", tmp_path)
    answer = client.get("/")
    assert (answer.status_code, answer.text.count("\n")) == (404, 1)
    assert "make page" in answer.text
    assert client.get(f"{TEAM}/graph").status_code == 200


def test_the_page_needs_no_key_and_no_other_file_is_served(tmp_path, monkeypatch):
    built = tmp_path / "built"
    built.mkdir()
    (built / "index.html").write_text("<!doctype html>")
    (tmp_path / "secret.js").write_text("1")
    monkeypatch.setattr(page_files, "BUILT", built)
    with serving(tmp_path / "data") as server:
        server.key("team", "read")
        client = server.client()
        answer = client.get("/")
        assert answer.text == "<!doctype html>"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert client.get("/", headers={"if-none-match": answer.headers["etag"]}).status_code == 304
        for path in ("/page/..%2Fsecret.js", "/page/../secret.js", "/page/nothing.js"):
            assert client.get(path).status_code in (401, 404)
