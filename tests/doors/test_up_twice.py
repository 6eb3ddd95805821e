"""`kgray up` and `kgray down` of one folder take turns, whoever comes second."""

from __future__ import annotations

import os
import socket

from kgray.runtime import lifecycle
from tests.doors.shell import Shell


def test_the_second_of_two_waits_for_the_first_and_meets_what_it_left(kgray: Shell) -> None:
    data = kgray.folder / "kgray-data"
    assert kgray("init").code == 0
    note = data / "ray.json"
    with lifecycle.one_at_a_time(data, lambda _: None):
        second = kgray.start("down", "--json")
        assert second.stderr is not None
        line = second.stderr.readline().decode()
        note.write_text("{")  # `up` writes it while the other waits
    _, err = second.communicate(timeout=60)

    holder = f"process {os.getpid()} on {socket.gethostname()}"
    assert line == f"kgray: waiting: {holder} starts or ends the Ray of kgray-data now\n"
    assert second.returncode == 2
    assert "ray.json cannot be used" in err.decode()
