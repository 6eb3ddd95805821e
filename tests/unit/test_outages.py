"""Reports of outages to the user: at once, at growing intervals, at their end."""

from __future__ import annotations

import time
from pathlib import Path

from kgray.cli.waiting import WaitReporter
from kgray.system.outages import OUTAGES, Outage, OutageBoard

NOWHERE = Path("/nowhere")  # so that nothing is noted


def test_an_outage_is_reported_at_growing_intervals_and_at_its_end() -> None:
    reports: list[str] = []
    teller = WaitReporter(NOWHERE, reports.append)
    OUTAGES.failed("the model", "is down", since=1000.0, patience_s=600.0)

    heard = []
    for second in range(121):
        count_before = len(reports)
        teller.look(1000.0 + second)
        heard += [second] * (len(reports) - count_before)
    OUTAGES.answered("the model")
    teller.look(1121.0)

    assert heard == [1, 10, 20, 40, 80]
    assert reports[0].startswith(
        "waiting: the model is down; it is tried again for up to 599 s more. Start it"
    )
    assert (
        reports[3] == "still waiting, for 40 s now: the model is down; it is tried again for up to 560 s more"
    )
    assert reports[5:] == ["the model answers again after 121 s"]


def test_a_momentary_outage_is_not_reported() -> None:
    reports: list[str] = []
    teller = WaitReporter(NOWHERE, reports.append)
    OUTAGES.failed("the model", "answers 429", since=1000.0, patience_s=600.0)

    teller.look(1000.9)
    OUTAGES.answered("the model")
    teller.look(1002.0)

    assert reports == []


def test_an_unanswered_call_is_reported_earlier_if_the_server_never_answered() -> None:
    board, moment = OutageBoard(), time.time()
    with board.asking("new", 120.0):
        assert [item.what for item in board.current(moment + 3)] == ["new"]
        board.answered("new")
        assert board.current(moment + 3) == []
        (slow,) = board.current(moment + 11)
    assert (slow.slow, slow.words) == (True, "new has not answered yet")
    assert board.current(moment + 60) == []


def test_reports_about_one_server_are_merged_into_one_outage() -> None:
    board = OutageBoard()
    early = Outage(what="a", reason="is down", since=1.0, until=9.0)
    board.tell("one", [Outage(what="a", reason="is away", since=2.0, until=9.0)])
    board.tell("two", [early])
    board.failed("b", "is down", since=5.0, patience_s=1.0)
    board.failed("b", "is gone", since=6.0, patience_s=1.0)

    assert board.current() == [early, Outage(what="b", reason="is gone", since=5.0, until=6.0)]
    assert board.why() == "a is down"
    board.tell("two", [])
    assert board.why() == "a is away"
