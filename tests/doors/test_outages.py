"""An outage of a server is reported during the wait, at the end of the command, and by `status` (R24)."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
from collections.abc import Iterator
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from kgray.system.outages import OUTAGES
from tests.doors.chat_server import NOTHING, ChatRequest, ChatServer, Say, at
from tests.doors.shell import Shell
from tests.waiting import HANGS_S, line_of, until

ROW = {"id": "a", "speaker": "Alice", "text": "I work at Acme.", "at": "2026-01-01", "group": "g"}


@pytest.fixture
def port_socket() -> Iterator[socket.socket]:
    """Reserve a port without a listener, for servers of these tests."""
    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(("127.0.0.1", 0))
        yield bound


def url(bound: socket.socket) -> str:
    return f"http://127.0.0.1:{bound.getsockname()[1]}/v1"


def episode_text(request: ChatRequest) -> str:
    """Return the text of the episode that a request asks about."""
    return str(request.sections["EPISODE"]["text"])


def seconds_left(line: str) -> int:
    """Return the remaining seconds of the wait in a line."""
    return int(line.partition(" up to ")[2].split()[0])


def test_an_outage_and_its_end_are_reported(kgray: Shell, port_socket: socket.socket) -> None:
    kgray.env = at(url(port_socket))
    kgray.write("in.jsonl", ROW)
    running = kgray.start("add", "in.jsonl")

    line = line_of(running)
    server_name = f"the model's server at {url(port_socket)}"
    assert line.startswith(f"kgray: waiting: {server_name} cannot be reached (")
    assert 0 < seconds_left(line) < 600, "model.patience_s is 600"
    assert line.endswith("Ctrl-C stops the command: what was accepted is safe, run it again\n")
    down = kgray("status", "--json").json["outage"]
    server = ChatServer(lambda _: NOTHING, port=port_socket.getsockname()[1])
    _, err = running.communicate(timeout=HANGS_S)
    server.close()

    assert running.returncode == 0, err.decode()
    assert f"kgray: {server_name} answers again after " in err.decode()
    over = kgray("status", "--json").json["outage"]
    assert (over["what"], down["until"], over["since"]) == (server_name, None, down["since"])
    assert over["since"] < over["until"] <= over["seen"]
    assert f"last outage: {server_name} cannot be reached" in kgray("status").out


def test_a_signal_during_an_outage_reports_the_reason(kgray: Shell, port_socket: socket.socket) -> None:
    kgray.env = at(url(port_socket))
    kgray.write("in.jsonl", ROW)
    running = kgray.start("add", "in.jsonl")
    line_of(running)

    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=HANGS_S)

    assert running.returncode == 75
    last = err.decode().splitlines()[-1]
    assert last.startswith(
        f"kgray: stopped before the end (the model's server at {url(port_socket)} cannot be reached ("
    )
    assert last.endswith("; what was accepted is safe, run it again to go on")
    assert out.decode() == "1 accepted, 0 duplicate, 0 refused, 0 committed, 0 failed\n"
    assert kgray("status", "--json").json["outage"]["until"] is None


@pytest.mark.slow  # by default the model is waited for
def test_a_search_reports_the_outage_of_its_embedder(kgray: Shell, port_socket: socket.socket) -> None:
    kgray.env = at(url(port_socket), "EMBEDDER")
    assert kgray("init").code == 0
    kgray.env |= {"KGRAY_MODEL_BACKEND": "rules"}
    kgray.write("in.jsonl", ROW)
    kgray("add", "in.jsonl", "--accept-only")
    running = kgray.start("search", "Where does Alice work?", "--group", "g")

    server_name = f"the embedder's server at {url(port_socket)}"
    assert line_of(running).startswith(f"kgray: waiting: {server_name} cannot be reached (")
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=HANGS_S)

    assert running.returncode == 75
    assert err.decode().strip().startswith(f"kgray: stopped ({server_name} cannot be reached (")


@pytest.mark.slow  # test_slow_servers has a silent server by default
def test_a_silent_server_is_reported(kgray: Shell, port_socket: socket.socket) -> None:
    port_socket.listen()
    kgray.env = at(url(port_socket))
    kgray.write("in.jsonl", ROW)
    running = kgray.start("add", "in.jsonl")

    line = line_of(running)

    assert line.startswith(
        f"kgray: waiting: the model's server at {url(port_socket)} has not answered yet for "
    )
    assert 0 < seconds_left(line) < 120, "model.timeout_s is 120"
    running.send_signal(signal.SIGKILL)
    running.communicate()


def test_the_end_of_the_patience_reports_the_reason(kgray: Shell, port_socket: socket.socket) -> None:
    kgray.env = at(url(port_socket)) | {"KGRAY_MODEL_PATIENCE_S": "1"}
    kgray.write("in.jsonl", ROW)

    answer = kgray("add", "in.jsonl")

    last = answer.err.splitlines()[-1]
    assert answer.code == 75
    assert last.startswith(
        f"kgray: stopped before the end (The server at {url(port_socket)} cannot be reached ("
    )
    assert kgray("status", "--json").json["outage"]["what"] == f"the model's server at {url(port_socket)}"


@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
@pytest.mark.slow
async def test_through_ray_outages_and_costs_of_workers_are_reported(
    tmp_path: Path, port_socket: socket.socket
) -> None:
    """An unusable reply counts as it does without Ray.

    R27: a sequencer that holds the store and waits for the model serves a removal before pending episodes.
    """
    from tests.ray_session import over_ray

    server_name, port = f"the model's server at {url(port_socket)}", port_socket.getsockname()[1]
    settings: dict[str, Any] = {
        "model_backend": "openai",
        "model_name": "m",
        "model_base_url": url(port_socket),
    }
    with over_ray(tmp_path, **settings) as memory:
        triples = [{"source": "Ann Lee", "relation": "WORKS_AT", "target": "Acme"}]
        await memory.add(triples, kind="triples", group="g", id="known")
        adding = asyncio.create_task(memory.add_many([ROW, ROW | {"id": "b", "text": "I live in Oslo."}]))
        # A task may wait for a processor before that, on a busy machine.
        await until(lambda: OUTAGES.why().startswith(server_name) or adding.done())
        outage = OUTAGES.why()
        removed = await memory.remove(group="g", episodes=["known"])
        assert (removed.episodes, removed.absent, adding.done()) == (1, (), False)
        status = (await memory.status()).groups["g"]
        assert (status.accepted + status.extracted, status.committed) == (2, 0)
        server = ChatServer(
            lambda request: Say("no") if "Oslo" in episode_text(request) else NOTHING, port=port
        )
        report = await adding
        (failed,) = await memory.failures()
        episode = await memory.episode(failed.id, group="g")
        counts = (await memory.status()).model
        server.close()

    assert outage.startswith(f"{server_name} cannot be reached (")
    assert (report.committed, report.failed, report.stopped) == (1, 1, False)
    assert (failed.group, failed.client_id, failed.reply) == ("g", "b", "no")
    moments = (episode.reference_time, episode.recorded_at)
    assert [moment.tzinfo for moment in moments] == [UTC, UTC], "instants are datetimes, as everywhere"
    calls = len(server.requests) + len(server.probes)
    assert (counts.calls, counts.prompt_tokens) == (calls, calls * 100)
    assert OUTAGES.current() == []


def checks(kgray: Shell) -> tuple[int, dict[str, dict[str, Any]]]:
    answer = kgray("doctor", "--json")
    return answer.code, {row["name"]: row for row in answer.json["checks"]}


def test_doctor_calls_each_part_and_reports_the_time(kgray: Shell) -> None:
    """A server without a list of models is called for one token; a store is opened and read."""
    server = ChatServer(lambda _: NOTHING)
    kgray.env = at(server.url)
    assert kgray("init").code == 0

    code, result = checks(kgray)
    server.close()

    assert code == 0
    took = r" \(\d+\.\d\d s\)$"
    assert re.search(f"^openai: m at {server.url}; answers{took}", result["model"]["detail"])
    assert re.search(f"; embeds a text{took}", result["embedder"]["detail"])
    assert re.search(f"numbers a text\\){took}", result["store"]["detail"])
    (request,) = server.requests
    assert request.body["max_tokens"] == 1


def test_doctor_reports_absent_and_silent_servers(kgray: Shell, port_socket: socket.socket) -> None:
    kgray.env = at(url(port_socket)) | at(url(port_socket), "EMBEDDER")

    code, down = checks(kgray)
    port_socket.listen()
    kgray.env = at(url(port_socket))
    _, mute = checks(kgray)

    assert code == 1
    assert [down[name]["ok"] for name in ("model", "embedder")] == [False, False]
    server_name = f"the model's server at {url(port_socket)}"
    assert f"{server_name} cannot be reached (" in down["model"]["detail"]
    assert re.search(rf"{server_name} gives no answer within 5 s \(\d+\.\d\d s\)$", mute["model"]["detail"])


def test_doctor_names_the_setting_of_a_refused_key(kgray: Shell) -> None:
    server = ChatServer(lambda _: Say(status=401))
    kgray.env = at(server.url)

    code, result = checks(kgray)
    server.close()

    assert (code, result["model"]["ok"]) == (1, False)
    assert "refuses the key: check model.api_key" in result["model"]["detail"]
