"""Webhooks and keys over HTTP, against receivers on loopback."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")
pytest.importorskip("standardwebhooks", reason="needs the extra `serve`")

from standardwebhooks import Webhook as Verifier

import kgray
from kgray.domain.times import parse
from kgray.memory import access as kept
from kgray.server import webhooks as posting
from kgray.server.webhooks import is_public
from tests.doors.served import serving
from tests.waiting import wait_for

TEAM = "/v1/groups/team"
WAIT = {"prefer": "wait=30"}
KEY = b"k" * 32


class Receiver:
    """Receives messages, and answers with the statuses in `answers`."""

    def __init__(self):
        self.messages, self.answers, self.location = [], [], None
        self.may_answer = threading.Event()  # answers wait until this event is set
        self.may_answer.set()

    def bodies(self):
        return [json.loads(body) for _, body in self.messages]


@contextmanager
def receiving():
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            receiver.messages.append((dict(self.headers), body.decode()))
            receiver.may_answer.wait(10)
            self.send_response(receiver.answers.pop(0) if receiver.answers else 204)
            if receiver.location:
                self.send_header("location", receiver.location)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    receiver.url = f"http://127.0.0.1:{server.server_port}/hook?a=b"
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def receiver():
    with receiving() as instance:
        yield instance


@pytest.fixture
def served(tmp_path, monkeypatch):
    monkeypatch.setattr(posting, "LOOK_S", 0.05)
    monkeypatch.setattr(kept, "RETRY_S", (0.05, 0.05))
    with serving(tmp_path / "data", webhook_key=KEY, private_webhooks=True) as server:
        yield server


def post_message(client, text, id_):
    row = {"text": text, "speaker": "Alice", "id": id_, "at": "2026-01-01"}
    assert client.post(f"{TEAM}/episodes", json=row, headers=WAIT).status_code == 200


def state(client):
    return client.get(f"{TEAM}/webhooks").json()["webhooks"][0]


def test_each_commit_is_posted_once_in_order_with_ids_and_no_text(served, receiver, tmp_path):
    client = served.client()
    post_message(client, "I live in Lyon.", "before")
    reply = client.post(f"{TEAM}/webhooks", json={"url": receiver.url}).json()
    post_message(client, "I work at Acme.", "a1")
    post_message(client, "I work at Beta Labs.", "a2")
    wait_for(lambda: len(receiver.messages) == 2)

    for headers, body in receiver.messages:
        message = Verifier(reply["secret"]).verify(body, headers)
        assert headers["webhook-id"] == f"{reply['id']}_{message['data']['commit']}"
        assert (message["type"], message["data"]["group"]) == ("group.committed", "team")
    assert [[e["client_id"] for e in b["data"]["entries"]] for b in receiver.bodies()] == [["a1"], ["a2"]]
    assert receiver.bodies()[0]["data"]["counts"]["opened"] >= 1
    assert not any(word in body for _, body in receiver.messages for word in ("Acme", "Beta", "Alice"))
    assert "secret" not in client.get(f"{TEAM}/webhooks").text
    for file in (tmp_path / "data").rglob("*.sqlite3*"):
        assert reply["secret"].encode() not in file.read_bytes()


def test_failed_deliveries_are_retried_then_dead_until_a_resend(served, receiver):
    client = served.client()
    receiver.answers = [500, 302, 404]
    receiver.location = receiver.url
    id_ = client.post(f"{TEAM}/webhooks", json={"url": receiver.url}).json()["id"]
    post_message(client, "I work at Acme.", "a1")
    wait_for(lambda: state(client)["state"] == "dead")
    post_message(client, "I work at Beta Labs.", "a2")

    assert (state(client)["tries"], state(client)["fault"], len(receiver.messages)) == (3, "answered 404", 3)
    (delivery_id,) = {headers["webhook-id"] for headers, _ in receiver.messages}
    reply = client.get(f"{TEAM}/webhooks/{id_}/deliveries").json()
    assert (reply["state"], reply["waiting"][0]["id"], len(reply["waiting"])) == ("dead", delivery_id, 2)
    first = client.get(f"{TEAM}/webhooks/{id_}/deliveries?limit=1").json()
    assert (first["waiting"], first["more"], reply["more"]) == (reply["waiting"][:1], True, False)
    assert client.get(f"{TEAM}/webhooks/none/deliveries").status_code == 404
    assert client.post(f"{TEAM}/webhooks/{id_}/resend", json={}).status_code == 202
    wait_for(lambda: len(receiver.messages) == 5)
    wait_for(lambda: state(client)["state"] == "active" and state(client)["fault"] == "")
    assert [b["data"]["entries"][0]["client_id"] for b in receiver.bodies()[3:]] == ["a1", "a2"]
    assert client.post(f"{TEAM}/webhooks/{id_}/resend", json={"since": 0}).status_code == 202
    wait_for(lambda: len(receiver.messages) == 7)
    wait_for(lambda: client.get(f"{TEAM}/webhooks/{id_}/deliveries").json()["waiting"] == [])
    assert client.delete(f"{TEAM}/webhooks/{id_}").status_code == 200
    assert client.delete(f"{TEAM}/webhooks/{id_}").status_code == 404
    assert client.get(f"{TEAM}/webhooks").json() == {"webhooks": []}


def test_a_commit_during_a_delivery_pass_is_posted_once(served, receiver):
    client, door = served.client(), served.door
    client.post(f"{TEAM}/webhooks", json={"url": receiver.url})
    read, texts = door.changes, iter(["I work at Beta Labs."])

    async def changes(*arguments):
        if text := next(texts, ""):
            await asyncio.to_thread(post_message, client, text, "a2")
        return await read(*arguments)

    door.changes = changes
    post_message(client, "I work at Acme.", "a1")
    wait_for(lambda: len(receiver.messages) >= 2)
    wait_for(lambda: state(client)["sent"] >= receiver.bodies()[-1]["data"]["commit"])
    assert [b["data"]["entries"][0]["client_id"] for b in receiver.bodies()] == ["a1", "a2"]


def test_a_resend_during_a_delivery_restarts_from_its_position(served, receiver):
    client = served.client()
    id_ = client.post(f"{TEAM}/webhooks", json={"url": receiver.url}).json()["id"]
    post_message(client, "I work at Acme.", "a1")
    wait_for(lambda: len(receiver.messages) == 1 and state(client)["sent"])
    receiver.may_answer.clear()
    post_message(client, "I work at Beta Labs.", "a2")
    wait_for(lambda: len(receiver.messages) == 2)
    assert client.post(f"{TEAM}/webhooks/{id_}/resend", json={"since": 0}).status_code == 202
    receiver.may_answer.set()
    wait_for(lambda: len(receiver.messages) == 4)
    assert [b["data"]["entries"][0]["client_id"] for b in receiver.bodies()[2:]] == ["a1", "a2"]


def test_slow_receivers_of_a_group_do_not_delay_other_groups(served, receiver):
    client = served.client()
    with receiving() as slow:
        slow.may_answer.clear()
        for _ in range(9):
            client.post("/v1/groups/slow/webhooks", json={"url": slow.url})
        client.post(f"{TEAM}/webhooks", json={"url": receiver.url})
        client.post("/v1/groups/slow/episodes", json={"text": "I work at Acme."}, headers=WAIT)
        wait_for(lambda: len(slow.messages) >= 4)
        post_message(client, "I work at Acme.", "a1")
        wait_for(lambda: receiver.messages)
        delivered = served.door.metrics.webhooks.labels("delivered")._value.get()
        assert (len(slow.messages), delivered <= 1) == (4, True)
        slow.may_answer.set()
        wait_for(lambda: len(slow.messages) == 9)


def test_changes_of_webhooks_are_audited_without_their_urls(served, receiver, tmp_path):
    client = served.client(served.key("team", "admin"))
    id_ = client.post(f"{TEAM}/webhooks", json={"url": receiver.url}).json()["id"]
    assert client.post(f"{TEAM}/webhooks/{id_}/resend", json={}).status_code == 202
    assert client.delete(f"{TEAM}/webhooks/{id_}").status_code == 200
    entries = client.get("/v1/audit").json()["entries"]
    assert [entry["action"] for entry in entries] == ["webhooks add", "webhooks resend", "webhooks drop"]
    assert [entry["asked"].get("id") for entry in entries] == [None, id_, id_]
    assert entries[0]["asked"]["url"].startswith("sha256:")
    assert {entry["group"] for entry in entries} == {"team"}


def test_a_restarted_server_continues_its_deliveries(tmp_path, receiver, monkeypatch):
    monkeypatch.setattr(posting, "LOOK_S", 0.05)
    with serving(tmp_path / "data", webhook_key=KEY, private_webhooks=True) as first:
        client = first.client()
        client.post(f"{TEAM}/webhooks", json={"url": receiver.url})
        post_message(client, "I work at Acme.", "a1")
        wait_for(lambda: len(receiver.messages) == 1)
        wait_for(lambda: state(client)["sent"] == receiver.bodies()[0]["data"]["commit"])
    with serving(tmp_path / "data") as keyless:
        post_message(keyless.client(), "I work at Beta Labs.", "a2")
        assert keyless.client().get(f"{TEAM}/webhooks").status_code == 501
    with serving(tmp_path / "data", webhook_key=KEY, private_webhooks=True):
        wait_for(lambda: len(receiver.messages) == 2)
    assert [b["data"]["entries"][0]["client_id"] for b in receiver.bodies()] == ["a1", "a2"]


def test_a_private_address_is_refused_at_the_connection(tmp_path, receiver, monkeypatch):
    monkeypatch.setattr(posting, "LOOK_S", 0.05)
    with serving(tmp_path / "data", webhook_key=KEY) as server:
        client = server.client()
        url = receiver.url.replace("127.0.0.1", "localhost")  # a name that resolves to a private address
        client.post(f"{TEAM}/webhooks", json={"url": url, "since": 0})
        post_message(client, "I work at Acme.", "a1")
        wait_for(lambda: state(client)["tries"] == 1)
        assert "private" in state(client)["fault"]
    assert receiver.messages == []


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True), ("2606:2800:220:1::1", True), ("127.0.0.1", False), ("10.1.2.3", False),
        ("169.254.169.254", False), ("100.64.0.1", False), ("224.0.0.1", False),
        ("::1", False), ("fe80::1%eth0", False), ("fd00::1", False), ("::ffff:10.0.0.1", False),
        ("2002:7f00:1::", False), ("64:ff9b::5db8:d822", True), ("64:ff9b::a00:1", False),
        ("64:ff9b:1::a00:1", False), ("fec0::1", False), ("::7f00:1", False),
    ],
)  # fmt: skip
def test_public_addresses_are_recognised(address, public):
    assert is_public(address) is public


@pytest.mark.parametrize(
    "url",
    [
        "ftp://a.example/",
        "http://u:pw@a.example/",
        "http:///x",
        "http://a b/",
        "http://a:99999/",
        "http://a/\r\nx: y",
    ],
)
def test_an_invalid_webhook_address_is_refused(served, url):
    answer = served.client().post(f"{TEAM}/webhooks", json={"url": url})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/url")


# ------------------------------------------------------------------------------ keys


def test_keys_are_created_listed_and_revoked_over_http(tmp_path):
    with serving(tmp_path / "data") as server:
        reply = server.client().post("/v1/keys", json={"groups": ["*"], "scopes": ["admin"]}).json()
        assert server.client().get("/v1/keys").status_code == 401  # a key exists now
        root = server.client(reply["key"])
        lesser = root.post("/v1/keys", json={"groups": ["team", "p/*"], "scopes": ["admin"]}).json()
        chief = server.client(lesser["key"])

        assert [item["id"] for item in root.get("/v1/keys").json()["keys"]] == [reply["id"], lesser["id"]]
        assert [item["id"] for item in chief.get("/v1/keys").json()["keys"]] == [lesser["id"]]
        assert reply["key"] not in root.get("/v1/keys").text
        for groups, status in (
            (["team"], 200), (["pq/*"], 200), (["p"], 200), (["*"], 403), (["other"], 403), (["team/*"], 403),
            (["team", "other"], 403), (["a b"], 403),
        ):  # fmt: skip
            answer = chief.post("/v1/keys", json={"groups": groups, "scopes": ["read"]})
            assert answer.status_code == status, groups
        assert chief.delete(f"/v1/keys/{reply['id']}").status_code == 404
        assert chief.delete("/v1/keys/nothing").status_code == 404
        for body in ({"groups": ["a b"], "scopes": ["read"]}, {"groups": ["a"], "scopes": ["write"]},
                     {"groups": ["a"], "scopes": ["read"], "expires": "2020-01-01"},
                     {"groups": ["a"], "scopes": ["read"], "expires": "soon"}):  # fmt: skip
            assert root.post("/v1/keys", json=body).status_code == 422, body
        assert root.delete(f"/v1/keys/{lesser['id']}").status_code == 200
        assert chief.get("/v1/keys").status_code == 401
        entries = root.get("/v1/audit").json()["entries"]
        assert entries[-1]["action"] == "keys revoke"
        assert reply["key"].split("_", 2)[2] not in json.dumps(entries)


def test_a_key_cannot_create_a_key_that_expires_later(tmp_path):
    with serving(tmp_path / "data") as server:
        chief = server.client(server.key("team", "admin", expires=parse("2100-01-01")[0]))
        for expires, status in ((None, 403), ("2100-01-02", 403), ("2100-01-01", 200), ("2099-01-01", 200)):
            body = {"groups": ["team"], "scopes": ["read"], "expires": expires}
            assert chief.post("/v1/keys", json=body).status_code == status, expires


def test_an_admin_of_a_group_sees_only_the_audit_of_that_group(tmp_path):
    with serving(tmp_path / "data") as server:
        client = server.client()
        post_message(client, "I work at Acme.", "a1")
        client.post(f"{TEAM}/retract", json={"episodes": ["a1"]})
        team_admin, other_admin = (server.client(server.key(group, "admin")) for group in ("team", "other"))
        assert [e["group"] for e in team_admin.get("/v1/audit").json()["entries"]] == ["team"]
        assert other_admin.get("/v1/audit").json() == {"entries": []}


def test_the_removal_of_a_group_deletes_its_webhooks(tmp_path):
    """R27: no row of the group remains, and a later group with its name has no webhooks."""
    with kgray.open(tmp_path, create=True) as memory:
        webhooks = kept.Webhooks(memory.store)
        for group in ("team", "other"):
            memory.add("I work at Acme.", group=group, speaker="Alice")
            webhooks.add(group, f"https://example.com/{group}hook", None)
        memory.remove(group="team", everything=True)
        assert [item.of_group for item in webhooks.every()] == ["other"]
        webhooks.drop("other", webhooks.every()[0].id)
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.is_file())
    assert (b"teamhook" in stored, b"otherhook" in stored) == (False, False)
