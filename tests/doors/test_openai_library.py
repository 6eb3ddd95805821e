"""The openai library as the client: addresses of every form, headers, replies that are none, its import."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import pytest

from kgray.errors import SettingsError, Unavailable
from kgray.models.openai_api.client import Client, TokensSpent
from kgray.models.openai_api.dialects import DIALECTS
from kgray.models.openai_api.extractor import OpenAIExtractor
from kgray.models.openai_api.retrieval import OpenAIEmbedder
from kgray.ports import ExtractionRequest
from tests.doors.chat_server import Asked, ChatServer, Say, as_json
from tests.doors.test_openai_models import (
    GOOD,
    HANGS_S,
    KEY,
    PROMPTS,
    embedding,
    endpoint,
    episode,
    one_after_the_other,
    serve,
)

__all__ = ["serve"]
AZURE = "/openai/deployments/m/chat/completions"


async def read(server: ChatServer, base_url: str = "", **changes: object) -> list[str]:
    """Return the relations of an episode that a client of the server reads."""
    client = Client(endpoint(server, base_url=base_url or server.url, **changes))
    extraction = await OpenAIExtractor(client, PROMPTS).extract(ExtractionRequest(episode=episode()))
    return [fact.relation for fact in extraction.facts]


def root(server: ChatServer) -> str:
    return server.url.removesuffix("/v1")


# ------------------------------------------------------------------------------------- addresses


@pytest.mark.parametrize(
    ("base_url", "path"),
    [
        ("/?api-version=2024-10-21", f"{AZURE}?api-version=2024-10-21"),
        ("?api-version=2025-04-01-preview", f"{AZURE}?api-version=2025-04-01-preview"),
        ("/openai?api-version=v", f"{AZURE}?api-version=v"),
        ("/openai/deployments/d/?api-version=v", "/openai/deployments/d/chat/completions?api-version=v"),
        ("/gateway/openai?api-version=v", f"/gateway{AZURE}?api-version=v"),
    ],
)
async def test_an_address_with_an_api_version_has_azures_form(serve, base_url, path):
    """The deployment is in the path, and the key in a header of its own."""
    server = serve(lambda _: as_json(GOOD))
    assert await read(server, root(server) + base_url) == ["WORKS_AT"]
    asked = server.asked[0]
    assert (asked.path, asked.headers["api-key"], asked.key) == (path, KEY, "")
    assert asked.body["response_format"]["type"] == "json_schema"


@pytest.mark.parametrize(
    ("base_url", "path", "key"),
    [
        ("http://name.openai.azure.com", f"{AZURE}?api-version=2024-10-21", ""),
        ("http://name.cognitiveservices.azure.com/", f"{AZURE}?api-version=2024-10-21", ""),
        ("http://name.openai.azure.com?api-version=v", f"{AZURE}?api-version=v", ""),
        ("http://name.openai.azure.com/openai/v1/", "/openai/v1/chat/completions", KEY),
        ("http://name.openai.azure.com/openai/v1?api-version=preview",
         "/openai/v1/chat/completions?api-version=preview", KEY),
        ("http://openai.azure.com.example", "/chat/completions", KEY),
    ],
)  # fmt: skip
async def test_a_host_of_azures_has_azures_form_but_for_its_interface_without_versions(
    serve, monkeypatch, base_url, path, key
):
    server = serve(lambda _: as_json(GOOD))
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("http_proxy", root(server))  # so that the server stands for the host
    assert await read(server, base_url) == ["WORKS_AT"]
    host = base_url.split("?")[0].removesuffix("/openai/v1").removesuffix("/openai/v1/").rstrip("/")
    asked = server.asked[0]
    assert (asked.path, asked.key) == (host + path, key)
    assert asked.headers.get("api-key", "") == ("" if key else KEY)


async def test_azure_embeds_and_streams(serve):
    server = serve(lambda asked: embedding(asked) if "input" in asked.body else as_json(GOOD))
    address = f"{root(server)}?api-version=v"
    client = Client(endpoint(server, base_url=address, setting="embedder"))
    assert (await OpenAIEmbedder(client, dimensions=3).embed(["a"])).shape == (1, 3)
    assert server.asked[0].path == "/openai/deployments/m/embeddings?api-version=v"

    server.answer = lambda _: Say(pieces=["Hello", " world"])
    pieces: list[str] = []
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    await Client(endpoint(server, base_url=address)).chat(body, TokensSpent(), pieces.append)
    assert pieces == ["Hello", " world"]


async def test_doctor_asks_azures_deployment_and_no_list_of_models(serve):
    """The list has all models, not the ones that are deployed."""
    server = serve(lambda _: as_json(GOOD))
    client = Client(endpoint(server, base_url=f"{root(server)}?api-version=v"))
    assert await client.check(5.0) == "answers"
    assert [asked.path for asked in server.asked] == [f"{AZURE}?api-version=v"]


async def test_a_deployment_that_is_not_there_is_one_line_about_the_settings(serve):
    server = serve(lambda _: Say("DeploymentNotFound", status=404), lambda _: Say("no", status=404))
    with pytest.raises(SettingsError, match=r"check model\.base_url .* and model\.name"):
        await read(server, f"{root(server)}?api-version=v")


async def test_azures_key_goes_to_no_other_server(serve):
    other = serve(lambda _: as_json(GOOD))
    named = serve(lambda _: Say(status=307, headers={"location": f"{other.url}/chat/completions"}))
    assert await read(named, f"{root(named)}?api-version=v") == ["WORKS_AT"]
    assert {asked.headers.get("api-key") for asked in named.asked} == {KEY}
    assert {asked.headers.get("api-key") for asked in other.asked} == {None}


async def test_a_query_of_an_address_is_sent_with_each_request(serve):
    server = serve(lambda _: as_json(GOOD))
    assert await read(server, f"{server.url}/?tenant=a") == ["WORKS_AT"]
    assert server.asked[0].path == "/v1/chat/completions?tenant=a"


@pytest.mark.parametrize("proxy", ["foo:bar", "ftp://x", "http://[::1"])
async def test_a_proxy_that_is_none_is_one_line_about_it(serve, monkeypatch, proxy):
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("ALL_PROXY", proxy)
    with pytest.raises(SettingsError, match=r"cannot be asked \(.*\): check model\.base_url and the proxies"):
        await read(serve(lambda _: as_json(GOOD)))


async def test_a_host_that_is_none_is_one_line_about_it(serve):
    with pytest.raises(SettingsError, match=r"^The server at http://a\.\.b/v1 cannot be asked \(.*\): check"):
        await read(serve(lambda _: as_json(GOOD)), "http://a..b/v1")


async def test_a_request_that_is_no_text_is_not_waited_for(serve):
    server = serve(lambda _: as_json(GOOD))
    body = {"messages": [{"role": "user", "content": "half of a pair: \ud83d"}]}
    with pytest.raises(SettingsError, match=r"cannot be asked \(.*surrogates not allowed\)"):
        await Client(endpoint(server)).chat(body, TokensSpent())
    assert server.asked == []


async def test_two_models_of_one_server_are_asked_by_their_own_names(serve):
    """They share connections and the limiter."""
    server = serve(lambda asked: embedding(asked) if "input" in asked.body else as_json(GOOD))
    await read(server, name="reader")
    client = Client(endpoint(server, name="vectors", setting="embedder"))
    await OpenAIEmbedder(client, dimensions=3).embed(["a"])
    assert [asked.body["model"] for asked in server.asked] == ["reader", "vectors"]


async def test_a_server_without_a_key_gets_none(serve):
    server = serve(lambda _: as_json(GOOD))
    await read(server, key=None)
    assert {asked.key for asked in server.asked} == {"none"}


async def test_variables_for_openais_servers_are_sent_to_no_other(serve, monkeypatch):
    """Neither keys nor headers nor an address of the environment replace the settings."""
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.setenv(name, "of-another-program")
    monkeypatch.setenv(
        "OPENAI_CUSTOM_HEADERS", "Authorization: of-another-program\nX-Own: of-another-program"
    )
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("AZURE_OPENAI_AD_TOKEN", "of-another-program")
    server = serve(lambda _: as_json(GOOD))
    for base_url in (server.url, f"{root(server)}?api-version=v"):
        assert await read(server, base_url) == ["WORKS_AT"]
        DIALECTS.clear()
    for asked in server.asked:
        assert "of-another-program" not in json.dumps(asked.headers)


# ------------------------------------------------------------------------- replies that are none

WHOLE = as_json(GOOD).body()
NO_REPLY = {
    "a page": (Say(raw=b"<html>maintenance</html>"), "sends no JSON of the interface"),
    "JSON of another form": (Say(raw=b'{"object": "list"}'), "sends no JSON of the interface"),
    "cut JSON": (Say(raw=WHOLE[:-40]), "sends no JSON of the interface"),
    "a body that ends too early": (
        Say(raw=WHOLE[:-40], headers={"transfer-encoding": "chunked"}), r"cannot be reached \(.*\)",
    ),
    "no body": (Say(raw=b""), "sends no JSON of the interface"),
    "bytes that are no text": (Say(raw=b"\xff\xfe\xfd"), "sends no JSON of the interface"),
    "no answer": (Say(cut_connection=True), r"cannot be reached \(Server disconnected\)"),
    "a page as an error": (Say(raw=b"<html>" * 999, status=502), "answers 502"),
    "not modified": (Say(raw=b"", status=304), "answers 304"),
}  # fmt: skip


@pytest.mark.parametrize("fault", NO_REPLY, ids=str)
async def test_an_answer_that_is_no_reply_is_one_line(serve, fault):
    say, words = NO_REPLY[fault]
    server = serve(lambda _: say)
    with pytest.raises(Unavailable, match=rf"^The server at \S+/v1 {words}; waited [\d.]+ s ") as gone:
        await read(server, patience_s=0.2)
    assert "\n" not in str(gone.value)
    assert len(str(gone.value)) < 400


async def test_a_reply_that_is_cut_off_is_asked_for_again(serve):
    server = serve(one_after_the_other(Say(raw=WHOLE[:-40]), as_json(GOOD)))
    assert await read(server) == ["WORKS_AT"]
    assert len(server.asked) == 2


# -------------------------------------------------------------------------- connections, import


async def test_a_request_is_sent_once_by_the_library(serve):
    """Its own retries would hold a place at the server, and nobody would be told of the outage."""
    server = serve(lambda _: Say(status=503, headers={"retry-after": "3600", "x-should-retry": "true"}))
    with pytest.raises(Unavailable, match="answers 503 and asks for 3600 s; waited 0 s"):
        await read(server)
    assert len(server.asked) == 1
    assert server.asked[0].headers["x-stainless-retry-count"] == "0"


async def test_more_calls_than_a_pool_of_connections_usually_has_are_at_the_server(serve):
    """The limit of aiohttp itself is 100."""
    ready = asyncio.Event()
    loop = asyncio.get_running_loop()

    def answer(asked: Asked) -> Say:
        if server.most_at_once >= 150:
            loop.call_soon_threadsafe(ready.set)
        asyncio.run_coroutine_threadsafe(ready.wait(), loop).result(HANGS_S)
        return as_json(GOOD)

    server = serve(answer)
    client = Client(endpoint(server, max_concurrency=150, timeout_s=HANGS_S, patience_s=HANGS_S))
    reader = OpenAIExtractor(client, PROMPTS)
    await asyncio.gather(
        *(reader.extract(ExtractionRequest(episode=episode(f"I work at {n}"))) for n in range(150))
    )
    assert server.most_at_once == 150


@pytest.mark.parametrize(
    "code",
    [
        "import kgray",
        "from kgray.cli import cli\ntry: cli.main(['--help'])\nexcept SystemExit: pass",
        "from kgray.cli import cli\ntry: cli.main(['status'])\nexcept SystemExit: pass",
        "from kgray.models.openai_api import client, extractor, judge, retrieval, structured, writing",
    ],
)
def test_the_library_is_imported_at_the_first_request(tmp_path, code):
    env = {
        "KGRAY_MODEL_BACKEND": "openai", "KGRAY_MODEL_NAME": "m",
        "KGRAY_MODEL_BASE_URL": "http://127.0.0.1:9/v1", "KGRAY_DATA": str(tmp_path / "data"),
        "PATH": "", "PYTHONPATH": ":".join(sys.path),
    }  # fmt: skip
    code += "\nimport sys; print(*{'openai', 'httpx2', 'aiohttp'} & set(sys.modules), file=sys.stderr)"
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=env)
    assert ran.stderr.splitlines()[-1] == ""
