"""`kgray.connect`: a program for a folder works on a server after one changed line."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from operator import attrgetter

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

import kgray
from kgray.memory.remote import VERBS
from tests.doors.served import serving


@pytest.fixture
def served(tmp_path):
    with serving(tmp_path / "served") as server:
        yield server


def story(memory):
    """Use a memory like a program does; yield its results."""
    memory.add("I work at Acme.", group="team", speaker="Alice", at="2026-01-01", id="a1")
    report = memory.add_many(
        [{"text": "I work at Beta Labs.", "speaker": "Alice", "at": "2026-03-01", "id": "a2"}, {"text": ""}],
        group="team",
    )
    yield (report.accepted, report.committed, report.refused, report.refusals[0].line)
    none = memory.add_many([{"text": ""}, {"speaker": "Alice"}], group="team")
    yield (none.accepted, [(refusal.line, refusal.field, refusal.reason) for refusal in none.refusals])
    for options in ({}, {"as_of": "2026-02-01"}, {"filters": kgray.Filters(relations=("WORKS_AT",))}):
        hits = memory.search("Where does Alice work?", group="team", **options)
        yield [(h.text, h.subject, h.object, h.valid_at, h.invalid_at, h.told_by, h.speaker) for h in hits]
    yield memory.context("Where does Alice work?", group="team", tokens=200).text
    yield [(e.entity.name, e.facts) for e in memory.entities("ali", group="team")]
    history = memory.history("Alice", group="team")
    yield [(f.text, f.valid_at, f.invalid_at, f.statement, f.episodes) for f in history.facts]
    details = memory.show("a1", group="team")
    yield (
        [record["type"] for record in details.records],
        details.episodes[0].text,
        details.episodes[0].marks,
    )
    around = memory.neighbourhood("Alice", group="team")
    yield ([item.name for item in around.entities], around.total, around.truncated)
    moved = memory.diff(group="team", from_as_of="2026-02-01", to_as_of="2026-04-01")
    yield ([f.object for f in moved.opened], [f.object for f in moved.ended])
    yield [e.client_id for c in memory.changes(group="team").commits for e in c.entries]
    yield [e.client_id for e in memory.log(group="team").episodes]
    why = memory.provenance(history.facts[0].statement, group="team")
    yield ([fact.text for fact in why.facts], [(m.text, m.marks, m.role) for m in why.messages])
    yield [(row.text, row.valid_from) for row in why.evidence]
    yield (memory.episode("a1", group="team").reference_time, memory.complete("ali", group="team")[0].name)
    yield (memory.failures(group="team"), memory.overview(group="team"))
    yield memory.admin.relation_suggestions(group="team")
    yield (memory.communities.list(group="team"), memory.duplicates(group="team"))
    merged = memory.merge("Acme", "Beta Labs", group="team")
    yield memory.operation(merged.sequence, group="team").state
    yield (memory.undo(merged.sequence, group="team").undone, memory.retry(group="team").accepted)
    yield memory.retract(group="team", episodes=["a2", "a9"])
    yield memory.remove(group="team", episodes=["a2"])
    yield memory.dump(group="team")
    with pytest.raises(kgray.NotFound):
        memory.history("Nobody", group="team")
    with pytest.raises(kgray.InputError):
        memory.add("Else", group="team", id="a1")
    with pytest.raises(kgray.InputError):
        memory.search("x", group="team", limit=0)


def test_a_program_gets_the_same_results_from_a_server(served, tmp_path):
    with (
        kgray.open(tmp_path / "here", create=True) as folder_memory,
        kgray.connect(served.url) as server_memory,
    ):
        for local, remote in zip(story(folder_memory), story(server_memory), strict=True):
            assert remote == local


def classes_of(memory):
    """Return the class of the result of each method of `VERBS`; of a list, of its items."""
    fact = memory.history("Alice", group="team").facts[0].id
    arguments = {
        "search": ("Alice",), "context": ("Alice",), "history": ("Alice",), "show": ("Alice",),
        "episode": ("a0",), "complete": ("ali",), "provenance": (fact,), "merge": ("Acme", "Beta Labs"),
        "communities.get": (memory.communities.list(group="team")[0].id,), "undo": (4,), "operation": (4,),
        "split": ("Acme", ["Beta Labs"]), "distinct": ("Acme", "Bob"),
    }  # fmt: skip
    last = ("merge", "operation", "undo", "split", "distinct", "retract", "remove")
    for verb in (*(VERBS.keys() - {*last}), *last):
        if verb == "split":  # the entity needs two names
            memory.merge("Acme", "Beta Labs", group="team")
        options = {"episodes": ["a2"]} if verb in ("retract", "remove") else {}
        result = attrgetter(verb)(memory)(*arguments.get(verb, ()), group="team", **options)
        yield verb, {type(item) for item in result} if isinstance(result, list | tuple) else type(result)


def test_a_server_returns_the_classes_of_a_folder(served, tmp_path):
    with kgray.open(tmp_path / "here", create=True) as local, kgray.connect(served.url) as remote:
        for memory in (local, remote):
            for number, (name, firm) in enumerate(
                (("Alice", "Acme"), ("Alice", "Beta Labs"), ("Bob", "Acme"))
            ):
                row = {
                    "text": f"I work at {firm}.",
                    "speaker": name,
                    "id": f"a{number}",
                    "at": 86_400 * number,
                }
                memory.add_many([row], group="team")
        local.communities.refresh(["team"])
        with kgray.open(tmp_path / "served") as folder:
            folder.communities.refresh(["team"])
        for memory in (remote, local):
            assert all(community.summary for community in memory.overview(group="team").communities)
        assert dict(classes_of(remote)) == dict(classes_of(local))
        assert remote.status(group="team") == local.status(group="team")


def test_a_null_means_the_same_to_a_server_and_a_folder(served, tmp_path):
    fact_row = {"source": "Ann", "relation": "KNOWS", "target": "Bob", "valid_at": None}
    rows = [
        {"id": "t1", "at": "2026-03-01", "kind": "triples", "triples": [fact_row]},
        {"id": "j1", "at": "2026-03-01", "kind": "json", "content": {"name": "Desk", "price": None}},
    ]
    with kgray.open(tmp_path / "here", create=True) as local, kgray.connect(served.url) as remote:
        for memory in (local, remote):
            assert memory.add_many(rows, group="team").committed == 2
            assert [fact.valid_at for fact in memory.history("Ann", group="team").facts] == [None]
        assert remote.dump(group="team") == local.dump(group="team")


@pytest.mark.parametrize(
    ("verb", "positional", "named"),
    [
        ("communities", (), {"levle": 0}),
        ("history", ("Alice",), {"asof": "2026-01-01"}),
        ("show", ("a1", "a2"), {}),
        ("retract", (), {"episode": ["a1"]}),
        ("status", (), {"groups": "team"}),
    ],
)
def test_unknown_arguments_are_refused_by_a_server_and_a_folder(served, tmp_path, verb, positional, named):
    with kgray.open(tmp_path / "here", create=True) as local, kgray.connect(served.url) as remote:
        for memory in (local, remote):
            with pytest.raises(TypeError):
                getattr(memory, verb)(*positional, group="team", **named)


def test_a_function_cannot_be_an_argument(served):
    with kgray.connect(served.url) as memory, pytest.raises(TypeError, match="stop"):
        memory.merge("a1", "a2", group="team", stop=bool)


def test_groups_lists_the_groups_of_the_key(served):
    with kgray.connect(served.url) as memory:
        memory.add("I work at Acme.", group="team", speaker="Alice")
        memory.add("I work at Beta Labs.", group="other", speaker="Bob")
        assert [size.group for size in memory.groups()] == ["other", "team"]
    with kgray.connect(served.url, served.key("team", "read")) as memory:
        (size,) = memory.groups()
        assert (size.group, size.episodes, size.facts) == ("team", 1, 1)


def test_the_async_client_has_awaitable_verbs(served):
    async def use():
        async with kgray.connect_async(served.url) as memory:
            await memory.add("I work at Acme.", group="team", speaker="Alice")
            return await asyncio.gather(*(memory.search("Alice", group="team") for _ in range(4)))

    outcome = asyncio.run(use())
    assert outcome[0]
    assert all([hit.id for hit in hits] == [hit.id for hit in outcome[0]] for hits in outcome)


def test_a_key_without_the_right_is_denied(served):
    key = served.key("team", "read")
    with kgray.connect(served.url, key) as memory:
        assert memory.search("x", group="team") == []
        for group in ("team", "other"):
            with pytest.raises(kgray.Denied):
                memory.add("x", group=group)
        assert key not in repr(memory)


def test_an_absent_server_is_unavailable():
    with (
        kgray.connect("http://127.0.0.1:9") as memory,
        pytest.raises(kgray.Unavailable, match=r"127\.0\.0\.1:9"),
    ):
        memory.search("x", group="team")
    with pytest.raises(kgray.InputError):
        kgray.connect("localhost")


@contextmanager
def answering(status, body=b"", **headers):
    """Serve one request; yield the address, and the keys that came."""
    keys = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["content-length"]))
            self.do_GET()

        def do_GET(self):
            keys.append(self.headers["authorization"])
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        server.timeout = 5
        threading.Thread(target=server.handle_request, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", keys


@pytest.mark.parametrize(("kind", "body"), [("text/html", b"<p>Log in"), ("application/json", b'{"hits": [')])
def test_a_foreign_server_is_reported(kind, body):
    with (
        answering(200, body, content_type=kind) as (url, _),
        kgray.connect(url) as memory,
        pytest.raises(kgray.Unavailable, match="is it a kgray server"),
    ):
        memory.search("x", group="team")


def test_a_key_does_not_follow_a_redirect():
    with answering(200, b"{}", content_type="application/json") as (elsewhere, keys):
        with (
            answering(302, location=f"{elsewhere}/v1/groups/team/status") as (url, _),
            kgray.connect(url, "kg_secret") as memory,
            pytest.raises(kgray.Unavailable),
        ):
            memory.status(group="team")
        assert keys == []


def test_a_search_on_a_server_returns_communities(served, tmp_path):
    with kgray.connect(served.url) as remote, kgray.open(tmp_path / "served", create=True) as local:
        for name in ("Ann Lee", "Bob Hill", "Cid Moss", "Dan Voss"):
            remote.add("I work at Acme, and I live in Berlin.", group="team", speaker=name, at="2026-01-01")
        local.communities.refresh(groups=["team"])
        query = {"group": "team", "scopes": ["community"]}
        (remote_hit,), (local_hit,) = (
            memory.search("Who is at Acme?", **query) for memory in (remote, local)
        )
        assert (remote_hit.scope, remote_hit.id, remote_hit.text, remote_hit.known_at) == (
            "community", local_hit.id, local_hit.text, local_hit.known_at,
        )  # fmt: skip
