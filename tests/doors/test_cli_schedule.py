"""schedule add, list, remove: as they are promised."""

from __future__ import annotations

import pytest


def test_add_list_and_remove(kgray):
    added = kgray(
        "schedule", "add", "nightly", "--cron", "0 3 * * *", "--zone", "Europe/Berlin", "--json"
    ).json
    assert (added["name"], added["last"]) == ("nightly", None)
    assert added["next"] > "2026"

    (listed,) = kgray("schedule", "list", "--json").json["schedules"]
    assert {"name", "cron", "zone", "next", "last"} <= listed.keys()
    assert (listed["cron"], listed["zone"]) == ("0 3 * * *", "Europe/Berlin")
    assert "nightly" in kgray("schedule", "list").out
    assert kgray("groups", "--json").json == {"groups": []}

    assert kgray("schedule", "remove", "nightly").code == 0
    assert kgray("schedule", "list", "--json").json == {"schedules": []}
    assert "No schedules." in kgray("schedule", "list").out


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (("add", "n", "--cron", "0 3 * *", "--zone", "UTC"), "five fields"),
        (("add", "n", "--cron", "0 3 * * *", "--zone", "Nowhere"), "zone 'Nowhere'"),
        (("add", "n", "--cron", "0 3 * * *"), "--zone"),
        (("remove", "n"), "no schedule 'n'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(kgray, args, line):
    assert kgray("init").code == 0
    answer = kgray("schedule", *args)
    assert (answer.code, answer.out) == (2, "")
    assert line in answer.err
