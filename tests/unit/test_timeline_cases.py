"""The worked cases of semantics section 7 on the pure function; numbers are days."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from types import FrameType
from typing import Any

import pytest

from kgray.timeline import Claim, Span, Sweep, timeline

Row = tuple[str, int | None, int | None, int]  # statement, start, end, episodes of support


class Slot:
    """One single-valued slot that holds every statement."""

    def slot_keys(self, statement: str) -> Sequence[str]:  # noqa: ARG002 - one slot for all
        return ("alice works at",)

    def pairs(self, statement: str) -> Collection[str]:  # noqa: ARG002 - and nothing else
        return ()


@dataclass
class History:
    """What was said, written as the table writes it; each saying takes the next sequence."""

    claims: list[Claim] = field(default_factory=list)

    def _say(
        self, what: str, day: int, kind: str = "holds", start: int | None = None, end: int | None = None
    ) -> History:
        sequence = len(self.claims) + 1
        inferred = kind == "holds" and start == day
        claim = Claim(what, (day, sequence, 0), kind, start, end, inferred, sequence)  # type: ignore[arg-type]
        return History([*self.claims, claim])

    def at(self, what: str, day: int, until: int | None = None) -> History:
        """`X@5`: present tense on day 5, so from day 5, inferred (R3)."""
        return self._say(what, day, start=day, end=until)

    def since(self, what: str, start: int, said: int, until: int | None = None) -> History:
        """`X since 5 (20)`: a stated start."""
        return self._say(what, said, start=start, end=until)

    def left(self, what: str, end: int, said: int) -> History:
        """`left X on 31 (90)`; "used to work at X" (90) is `left(X, 90, 90)` (R3)."""
        return self._say(what, said, kind="ended", end=end)

    def never(self, what: str, said: int) -> History:
        """`never worked at X`."""
        return self._say(what, said, kind="denied")

    def in_one_episode(self) -> History:
        """All of it is one episode's, in this order."""
        return self.arriving([1] * len(self.claims), ordinals=range(len(self.claims)))

    def arriving(self, sequences: Sequence[int], ordinals: Sequence[int] = ()) -> History:
        """Accept the same sayings in another order."""
        places = zip(sequences, ordinals or [0] * len(self.claims), strict=True)
        return History(
            [
                claim._replace(said=(claim.said[0], *place), recorded=place[0])
                for claim, place in zip(self.claims, places, strict=True)
            ]
        )


H = History()
A, B, G, D, X = "Acme", "Beta", "Gama", "Delta", "X"
E = H.at(A, 0).at(B, 60).at(G, 90)

CASES = [
    pytest.param(H.at(A, 0).at(B, 60), [(A, 0, 60, 1), (B, 60, None, 1)], id="a"),
    pytest.param(
        H.at(A, 0).at(B, 60).at(A, 120), [(A, 0, 60, 1), (B, 60, 120, 1), (A, 120, None, 1)], id="b"
    ),
    pytest.param(H.at(A, 0).since(B, 60, 70), [(A, 0, 60, 1), (B, 60, None, 1)], id="d"),
    pytest.param(E, [(A, 0, 60, 1), (B, 60, 90, 1), (G, 90, None, 1)], id="e"),
    pytest.param(
        E.at(A, 130).at(A, 140).at(D, 150),
        [(A, 0, 60, 1), (B, 60, 90, 1), (G, 90, 130, 1), (A, 130, 150, 2), (D, 150, None, 1)],
        id="f",
    ),
    pytest.param(H.at(A, 0).left(A, 31, 90), [(A, 0, 31, 2)], id="l-once"),
    pytest.param(H.at(A, 0).left(A, 31, 90).left(A, 31, 90), [(A, 0, 31, 3)], id="l-twice"),
    pytest.param(H.at(A, 0).since(B, 40, 10).at(A, 20), [(A, 0, 40, 2), (B, 40, None, 1)], id="m"),
    pytest.param(H.at(A, 0).at(A, 95).since(B, 70, 100), [(A, 0, 70, 2), (B, 70, None, 1)], id="o"),
    pytest.param(H.at(B, 70).since(A, 50, 100), [(A, 50, None, 1), (B, 70, 70, 1)], id="p"),
    pytest.param(
        H.since(A, 18, 25).since(X, 21, 26, until=22),
        [(A, 18, 21, 1), (X, 21, 22, 1), (A, 22, None, 1)],
        id="q",
    ),
    pytest.param(H.since(A, 18, 19).since(X, 21, 24, until=23), [(A, 18, 21, 1), (X, 21, 23, 1)], id="r"),
    pytest.param(H.at(A, 0).at(A, 95).left(A, 50, 100), [(A, 0, 50, 3)], id="s-said-on-100"),
    pytest.param(H.at(A, 0).at(A, 95).left(A, 50, 60), [(A, 0, 50, 2), (A, 95, None, 1)], id="s-said-on-60"),
    pytest.param(H.at(A, 0).at(A, 50).never(A, 80).at(A, 90), [(A, 90, None, 1)], id="t"),
    pytest.param(H.left(A, 90, 90), [(A, None, 90, 1)], id="v"),
    pytest.param(
        H.at(A, 2024).since(A, 2010, 2025, until=2015), [(A, 2010, 2015, 1), (A, 2024, None, 1)], id="y0"
    ),
    pytest.param(
        H.at(A, 0).at(A, 95).since(B, 70, 100).left(B, 80, 110),
        [(A, 0, 70, 1), (B, 70, 80, 2), (A, 95, None, 1)],
        id="y1",
    ),
    pytest.param(H.at(A, 0, until=100).at(A, 50, until=200), [(A, 0, 200, 2)], id="y2-until"),
    pytest.param(H.left(A, 80, 90).since(A, 50, 100), [(A, 50, None, 2)], id="y2-left"),
    pytest.param(H.at(A, 0).left(A, 50, 10).at(A, 20), [(A, 0, 50, 3)], id="y3"),
    pytest.param(H.left(A, 50, 100).left(B, 90, 100), [(A, None, 50, 1), (B, 50, 90, 1)], id="y5"),
    pytest.param(H.at(A, 0, until=50).since(A, 0, 60), [(A, 0, None, 2)], id="y6"),
]

# Two sayings of one day, or of one episode: here the order of arrival is what the case is about.
ORDERED = [
    pytest.param(H.at(A, 0).at(B, 0), [(A, 0, 0, 1), (B, 0, None, 1)], id="g"),
    pytest.param(H.at(B, 0).at(A, 0), [(B, 0, 0, 1), (A, 0, None, 1)], id="g-the-other-way"),
    pytest.param(H.since(A, 18, 25).at(B, 25).in_one_episode(), [(A, 18, 25, 1), (B, 25, None, 1)], id="u"),
    pytest.param(H.since(A, 0, 10).left(A, 0, 10).in_one_episode(), [(A, 0, 0, 1)], id="y4"),
]


def rows(claims: Sequence[Claim], known_at: int | None = None) -> list[Row]:
    """Return the spans of all statements in order of start."""
    spans = [span for found in timeline(claims, Slot(), known_at).values() for span in found]
    spans.sort(key=lambda s: (s.start is not None, s.start or 0, s.end is None, s.end or 0))
    return [(s.statement, s.start, s.end, len({c.said[1] for c in s.support})) for s in spans]


@pytest.mark.parametrize(("history", "expected"), [*CASES, *ORDERED])
def test_a_case_gives_its_spans_whatever_the_order_of_the_evidence(history, expected):
    """R13: the order in which the evidence is given does not count; `said` is as in the table."""
    for order in permutations(history.claims):
        assert rows(order) == expected


@pytest.mark.parametrize(("history", "expected"), CASES)
def test_a_case_gives_its_spans_whatever_the_order_of_arrival(history, expected):
    """R13 and case c: sequences and record times are dealt out in every order."""
    for sequences in permutations(range(1, len(history.claims) + 1)):
        assert rows(history.arriving(sequences).claims) == expected


def test_what_was_not_recorded_yet_does_not_count():
    """R4 and case n: known_at before Beta was recorded; the tests above give case a after it."""
    claims = H.at(A, 0).at(B, 60).claims
    assert rows(claims, known_at=1) == [(A, 0, None, 1)]
    assert rows(claims, known_at=2) == [(A, 0, 60, 1), (B, 60, None, 1)]
    assert rows(claims, known_at=0) == []


def test_a_span_says_what_opened_it_what_ended_it_and_what_supports_it():
    """R8-R11 and case q: the openers are a start, a rival's start and a confirmation."""
    since, interruption = H.since(A, 18, 25).since(X, 21, 26, until=22).claims
    assert timeline([interruption, since], Slot()) == {
        A: (
            Span(A, since, "start", 18, 21, interruption, (since,)),
            Span(A, since, "confirmation", 22, None, None, (since,)),
        ),
        X: (Span(X, interruption, "start", 21, 22, interruption, (interruption,)),),
    }


def test_an_ended_span_names_the_evidence_that_was_needed():
    """Own `ended` (l), the stated end that stands (y2), what knew better (p), a rival's end (y5)."""
    at, left = H.at(A, 0).left(A, 31, 90).claims
    assert timeline([at, left], Slot())[A] == (Span(A, at, "start", 0, 31, left, (at, left)),)

    first, second = H.at(A, 0, until=100).at(A, 50, until=200).claims
    assert timeline([first, second], Slot())[A] == (Span(A, first, "start", 0, 200, second, (first, second)),)

    beta, acme = H.at(B, 70).since(A, 50, 100).claims
    assert timeline([beta, acme], Slot())[B] == (Span(B, beta, "start", 70, 70, acme, (beta,)),)

    acme, beta = H.left(A, 50, 100).left(B, 90, 100).claims
    assert timeline([acme, beta], Slot())[B] == (Span(B, beta, "end", 50, 90, beta, (beta,)),)


def test_a_statement_that_was_only_denied_is_there_without_spans():
    """R6: a denial sets aside, it derives nothing."""
    assert timeline(H.at(A, 0).never(A, 80).claims, Slot()) == {A: ()}


def test_two_statements_that_always_held_leave_no_span_without_length():
    """R12: one from unknown to unknown is none; the later news holds."""
    claims = H.since(A, None, 10).since(B, None, 20).claims  # type: ignore[arg-type]
    assert timeline(claims, Slot()) == {
        A: (Span(A, claims[0], "confirmation", 10, 10, claims[1], (claims[0],)),),
        B: (Span(B, claims[1], "start", None, None, None, (claims[1],)),),
    }


def test_an_interruption_without_length_is_closed_where_it_was():
    """R11: no rival span of positive length lies between, so the confirmed span goes on at its end."""
    claims = H.since(A, 18, 25).since(X, 21, 22).left(X, 21, 23).claims
    assert rows(claims) == [(A, 18, 21, 1), (X, 21, 21, 2), (A, 21, None, 1)]


@pytest.mark.parametrize(
    ("history", "first_then_second", "second_then_first"),
    [
        pytest.param(
            H.since(A, 0, 10).left(A, 0, 10),
            [(A, 0, 0, 2)],
            [(A, None, 0, 1), (A, 0, None, 1)],
            id="one-instant-two-kinds",
        ),
        pytest.param(
            H.since(A, 5, 10).left(A, 8, 10), [(A, 5, 8, 2)], [(A, 5, None, 2)], id="two-instants-two-kinds"
        ),
        pytest.param(
            H.since(A, 18, 25).at(B, 25),
            [(A, 18, 25, 1), (B, 25, None, 1)],
            [(A, 18, None, 1), (B, 25, 25, 1)],
            id="a-confirmation-and-a-start",
        ),
    ],
)
def test_what_was_said_at_one_time_is_told_apart_by_its_sequence(
    history, first_then_second, second_then_first
):
    """R6: said later means the later sequence where the reference times are equal."""
    assert rows(history.claims) == first_then_second
    assert rows(history.arriving([2, 1]).claims) == second_then_first


@pytest.mark.parametrize("present", [True, False])
def test_a_slot_with_ten_thousand_values_is_one_span_each(present):
    """One sweep, whatever the tense; each value ends where the next begins."""
    claims = [
        Claim(f"{day}", (day, day, 0), "holds", day if present else day - 1, None, present, day)
        for day in range(1, 10_001)
    ]
    starts = [claim.start for claim in claims]
    expected = [
        (f"{n}", start, end, 1)
        for n, (start, end) in enumerate(zip(starts, [*starts[1:], None], strict=True), 1)
    ]
    assert rows(claims) == expected


def test_ten_thousand_values_may_arrive_newest_first():
    """A history in the present tense, read backwards one by one: each claim concerns its neighbours only."""
    claims = [Claim(f"{day}", (day, day, 0), "holds", day, None, True, day) for day in range(10_000)]
    sweep = Sweep(Slot())
    for claim in reversed(claims):
        changed = sweep.add([claim])
        assert changed == {claim.statement: ((), sweep.spans(claim.statement))}
    assert {claim.statement: sweep.spans(claim.statement) for claim in claims} == timeline(claims, Slot())


def lines_run(work: Callable[[], object]) -> int:
    """Return how many lines of Python a call runs; each round of a comprehension is one."""
    count, before = 0, sys.gettrace()

    def trace(_frame: FrameType, event: str, _arg: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def ends(count: int) -> list[Claim]:
    """One end of each value: when did it start? (R8)."""
    return [Claim(f"{day}", (day, day, 0), "ended", None, day, False, day) for day in range(1, count + 1)]


def ends_in_between(count: int) -> list[Claim]:
    """One value that others interrupt, each confirmed after its end: where does it go on? (R11)."""
    found = H
    for day in range(0, 5 * count, 5):
        found = found.since(f"{day}", day + 1, day + 3, until=day + 2).since(A, day, day + 4)
    return found.claims


@pytest.mark.parametrize("history", [ends, ends_in_between])
@pytest.mark.parametrize("kept", [False, True])
def test_twice_as_many_ends_in_a_slot_are_twice_the_work(history, kept):
    """Section 3: what a value asks about its rivals does not take a walk through all of them."""

    def work(claims: list[Claim]) -> None:
        sweep = Sweep(Slot())
        for batch in [[claim] for claim in claims] if kept else [claims]:
            sweep.add(batch)

    once, twice = (lines_run(lambda: work(history(count))) for count in (200, 400))  # noqa: B023
    assert twice < 2.2 * once
