"""The commands schedule add, list and remove."""

from __future__ import annotations

import pytest

import kgray as kgray_library
from kgray.domain import times


def test_add_list_and_remove(kgray):
    added = kgray(
        "schedule", "add", "nightly", "--cron", "0 3 * * *", "--zone", "Europe/Berlin", "--json"
    ).json
    assert (added["name"], added["last"]) == ("nightly", None)
    assert [row["next"] for row in added["schedules"]] == [added["next"]]
    assert added["next"] > "2026"

    (listed,) = kgray("schedule", "list", "--json").json["schedules"]
    assert {"name", "cron", "zone", "next", "last"} <= listed.keys()
    assert (listed["cron"], listed["zone"]) == ("0 3 * * *", "Europe/Berlin")
    assert "nightly" in kgray("schedule", "list").out
    assert kgray("groups", "--json").json == {"groups": []}

    assert kgray("schedule", "remove", "nightly").code == 0
    assert kgray("schedule", "list", "--json").json == {"schedules": []}
    assert "No schedules." in kgray("schedule", "list").out


def test_a_schedule_shows_its_kind_of_refresh_and_its_groups(kgray):
    with kgray_library.open(kgray.folder / "kgray-data", create=True) as memory:
        memory.add_many([{"text": "Alice works at Acme"}], group="team", accept_only=True)
    assert kgray("schedule", "add", "weekly", "--cron", "0 4 * * 0", "--full", "--group", "team").code == 0
    assert kgray("schedule", "add", "daily", "--cron", "0 3 * * *", "--due").code == 0

    daily, weekly = kgray("schedule", "list", "--json").json["schedules"]
    assert (weekly["full"], weekly["groups"], weekly["zone"]) == (True, ["team"], "UTC")
    assert (daily["full"], daily["groups"], daily["job"], daily["running"]) == (False, [], None, False)
    assert "full, team" in kgray("schedule", "list").out


def test_status_shows_a_failed_run_with_its_job(kgray):
    assert kgray("schedule", "add", "nightly", "--cron", "0 3 * * *").code == 0
    with kgray_library.open(kgray.folder / "kgray-data", create=True) as memory:
        (schedule,) = memory.admin.schedules.every()
        begun = schedule.due(schedule.made_at + times.DAY)
        ended = schedule._replace(begun=begun, tries=1, ended_at=begun, said="failed: the model is away")
        assert memory.admin.schedules.replace(schedule, ended)

    (line,) = [line for line in kgray("status").out.splitlines() if line.startswith("schedule ")]
    assert line.startswith(f"schedule nightly, {times.show(begun)}: failed: the model is away (job kgray-")
    (row,) = kgray("status", "--json").json["schedules"]
    assert row["job"] in line
    assert f"-nightly-{times.to_datetime(begun):%Y%m%dT%H%MZ}" in row["job"]
    assert "failed: the model is away" in kgray("schedule", "list").out


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (("add", "n", "--cron", "0 3 * *", "--zone", "UTC"), "five fields"),
        (("add", "n", "--cron", "0 3 * * *", "--zone", "Nowhere"), "zone 'Nowhere'"),
        (("add", "n", "--cron", "0 0 30 2 *"), "it never comes"),
        (("add", "n"), "--cron"),
        (("add", "n", "--cron", "0 3 * * *", "--full", "--due"), "exclude each other"),
        (("add", "n", "--cron", "0 3 * * *", "--fully"), "--fully"),
        (("add", "n", "--cron", "0 3 * * *", "--group", "a b"), "group 'a b'"),
        (("add", "n", "--cron", "0 3 * * *", "--group", "taem"), "no group 'taem'"),
        (("add", "there", "--cron", "0 3 * * *"), "a schedule 'there' already"),
        (("remove", "n"), "no schedule 'n'"),
    ],
)
def test_bad_input_is_a_one_line_error_with_exit_code_2(kgray, args, line):
    assert kgray("schedule", "add", "there", "--cron", "0 3 * * *").code == 0
    answer = kgray("schedule", *args)
    assert (answer.code, answer.out) == (2, "")
    (error,) = answer.err.splitlines()
    assert line in error
