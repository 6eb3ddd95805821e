"""`kgray up` and `kgray down` of a folder never run at the same time."""

from __future__ import annotations

import os
import socket
from importlib.util import find_spec

import pytest

from kgray.runtime import lifecycle
from tests.doors.shell import Shell
from tests.waiting import HANGS_S


def test_the_second_command_waits_for_the_first_and_reads_its_note(kgray: Shell) -> None:
    data = kgray.folder / "kgray-data"
    assert kgray("init").code == 0
    note = data / "ray.json"
    with lifecycle.one_at_a_time(data, lambda _: None):
        second = kgray.start("down", "--json")
        assert second.stderr is not None
        line = second.stderr.readline().decode()
        note.write_text("{")  # `up` writes it while the other waits
    _, err = second.communicate(timeout=HANGS_S)

    holder = f"process {os.getpid()} on {socket.gethostname()}"
    assert line == f"kgray: waiting: {holder} starts, changes or ends the Ray of kgray-data now\n"
    assert second.returncode == 2
    assert "ray.json cannot be used" in err.decode()


@pytest.mark.skipif(find_spec("ray") is None, reason='Ray is missing: pip install "kgray[ray]"')
@pytest.mark.slow  # test_outages has a server that is down by default
def test_an_absent_ray_is_reported_at_once_and_accepted_rows_remain(kgray: Shell) -> None:
    """Ray itself would try for a minute, and log this."""
    with socket.socket() as port_socket:  # bound for the whole test, against other listeners
        port_socket.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{port_socket.getsockname()[1]}"
        kgray.env |= {"KGRAY_RUNTIME_BACKEND": "ray", "KGRAY_RUNTIME_ADDRESS": address}
        kgray.write("a.jsonl", {"id": "1", "text": "x", "group": "g", "at": 0})

        # New processes: the process of the tests may be connected to a Ray already.
        added = kgray.process("add", "a.jsonl")
        status = kgray.process("status", "--json")

        line = f"no Ray answers at {address}: nobody listens there"
        assert (added.code, added.err) == (75, f"kgray: {line}\n")
        assert status.json["groups"]["g"]["accepted"] == 1
        assert status.json["runtime"] == {
            "backend": "ray",
            "address": address,
            "state": "unreachable",
            "reason": line,
        }
