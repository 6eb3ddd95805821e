"""The histories among the worked cases of docs/semantics.md on the pure function; numbers are days."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from types import FrameType
from typing import Any

import pytest

from kgray.timeline import Claim, Span, Sweep, timeline
from tests import worked_cases
from tests.worked_cases import Message

Row = tuple[str, int | None, int | None, int]  # statement, start, end, episodes of support


class Slot:
    """One single-valued slot that holds every statement."""

    def slot_keys(self, statement: str) -> Sequence[str]:  # noqa: ARG002 - one slot for all
        return ("alice works at",)

    def pairs(self, statement: str) -> Collection[str]:  # noqa: ARG002 - and nothing else
        return ()


@dataclass
class History:
    """Messages as claims; each message takes the next sequence."""

    claims: list[Claim] = field(default_factory=list)

    def _add(self, message: Message) -> History:
        sequence = len(self.claims) + 1
        inferred = message.kind == "holds" and message.start == message.day
        place = (message.day, sequence, 0)
        dates = (message.start, message.end, inferred)
        claim = Claim(message.name, place, message.kind, *dates, sequence)
        return History([*self.claims, claim])

    def at(self, name: str, day: int, end: int | None = None) -> History:
        """Add `NAME@day`: present tense, so it holds from that day, inferred (R3)."""
        return self._add(Message("holds", name, day, day, end))

    def began(self, name: str, start: int | None, day: int, end: int | None = None) -> History:
        """Add `NAME since start (day)`: a stated start, None if it is unknown."""
        return self._add(Message("holds", name, day, start, end))

    def ended(self, name: str, end: int, day: int) -> History:
        """Add `left NAME end (day)`."""
        return self._add(Message("ended", name, day, end=end))

    def never(self, name: str, day: int) -> History:
        """Add `never NAME (day)`."""
        return self._add(Message("denied", name, day))

    def in_one_episode(self) -> History:
        """Return the same messages as the evidence of one episode, in this order."""
        return self.arriving([1] * len(self.claims), ordinals=range(len(self.claims)))

    def arriving(self, sequences: Sequence[int], ordinals: Sequence[int] = ()) -> History:
        """Return the same messages, accepted with these sequences."""
        places = zip(sequences, ordinals or [0] * len(self.claims), strict=True)
        return History(
            [
                claim._replace(said=(claim.said[0], *place), recorded=place[0])
                for claim, place in zip(self.claims, places, strict=True)
            ]
        )


H = History()
A, B, X = "Acme", "Beta", "X"

# A claim has no wording, so the cases of variants are run on the graph alone.
CASES = [case for case in worked_cases.histories() if not case.names_variants]
IN_ANY_ORDER = [case for case in CASES if case.arrival == "any order"]


def history_of(case: worked_cases.History) -> History:
    """Return the messages of a case as it gives them."""
    history = H
    for message in case.messages:
        history = history._add(message)
    return history.in_one_episode() if case.arrival == "one episode" else history


def expected_rows(case: worked_cases.History) -> list[Row]:
    """Return the spans of a case in order of start."""
    return sorted(((name, *span) for name, spans in case.spans.items() for span in spans), key=by_start)


def by_start(row: Row) -> tuple[bool, int, bool, int]:
    """Return the key that sorts rows by start, then end."""
    _, start, end, _ = row
    return start is not None, start or 0, end is None, end or 0


def rows(claims: Sequence[Claim], known_at: int | None = None) -> list[Row]:
    """Return the spans of all statements in order of start, each with the number of its episodes."""
    spans = [span for its in timeline(claims, Slot(), known_at).values() for span in its]
    counted = ((s.statement, s.start, s.end, len({c.said[1] for c in s.support})) for s in spans)
    return sorted(counted, key=by_start)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.case)
def test_a_case_gives_its_spans_whatever_the_order_of_the_evidence(case):
    """R13: the function gets the evidence in every order; `said` is as in the table."""
    for order in permutations(history_of(case).claims):
        assert rows(order) == expected_rows(case)


@pytest.mark.parametrize("case", IN_ANY_ORDER, ids=lambda case: case.case)
def test_a_case_gives_its_spans_whatever_the_order_of_arrival(case):
    """R13 and case c: sequences and record times are dealt out in every order."""
    history = history_of(case)
    for sequences in permutations(range(1, len(history.claims) + 1)):
        assert rows(history.arriving(sequences).claims) == expected_rows(case)


def test_known_at_ignores_later_records():
    """R4 and case n: known_at before Beta was recorded; the tests above give case a after it."""
    claims = H.at(A, 0).at(B, 60).claims
    assert rows(claims, known_at=1) == [(A, 0, None, 1)]
    assert rows(claims, known_at=2) == [(A, 0, 60, 1), (B, 60, None, 1)]
    assert rows(claims, known_at=0) == []


def test_a_span_lists_its_opening_its_end_and_its_support():
    """R8-R11 and case q: the openers are a start, a rival's start and a confirmation."""
    claim, interruption = H.began(A, 18, 25).began(X, 21, 26, end=22).claims
    assert timeline([interruption, claim], Slot()) == {
        A: (
            Span(A, claim, "start", 18, 21, interruption, (claim,)),
            Span(A, claim, "confirmation", 22, None, None, (claim,)),
        ),
        X: (Span(X, interruption, "start", 21, 22, interruption, (interruption,)),),
    }


def test_an_ended_span_lists_the_evidence_of_its_end():
    """Its own `ended` (l), a stated end in force (y2), a later correction (p), the end of a rival (y5)."""
    start, end = H.at(A, 0).ended(A, 31, 90).claims
    assert timeline([start, end], Slot())[A] == (Span(A, start, "start", 0, 31, end, (start, end)),)

    first, second = H.at(A, 0, end=100).at(A, 50, end=200).claims
    assert timeline([first, second], Slot())[A] == (Span(A, first, "start", 0, 200, second, (first, second)),)

    beta, acme = H.at(B, 70).began(A, 50, 100).claims
    assert timeline([beta, acme], Slot())[B] == (Span(B, beta, "start", 70, 70, acme, (beta,)),)

    acme, beta = H.ended(A, 50, 100).ended(B, 90, 100).claims
    assert timeline([acme, beta], Slot())[B] == (Span(B, beta, "end", 50, 90, beta, (beta,)),)


def test_a_statement_that_was_only_denied_has_no_spans():
    """R6: a denial cancels claims and creates no span."""
    assert timeline(H.at(A, 0).never(A, 80).claims, Slot()) == {A: ()}


def test_two_statements_with_unknown_starts_leave_no_empty_span():
    """R12: a span from unknown to unknown is empty; the later statement holds."""
    claims = H.began(A, None, 10).began(B, None, 20).claims
    assert timeline(claims, Slot()) == {
        A: (Span(A, claims[0], "confirmation", 10, 10, claims[1], (claims[0],)),),
        B: (Span(B, claims[1], "start", None, None, None, (claims[1],)),),
    }


def test_an_empty_interruption_resumes_the_span_at_its_end():
    """R11: no rival span of positive length lies between, so the confirmed span continues from its end."""
    claims = H.began(A, 18, 25).began(X, 21, 22).ended(X, 21, 23).claims
    assert rows(claims) == [(A, 18, 21, 1), (X, 21, 21, 2), (A, 21, None, 1)]


@pytest.mark.parametrize(
    ("history", "first_then_second", "second_then_first"),
    [
        pytest.param(
            H.began(A, 0, 10).ended(A, 0, 10),
            [(A, 0, 0, 2)],
            [(A, None, 0, 1), (A, 0, None, 1)],
            id="one-instant-two-kinds",
        ),
        pytest.param(
            H.began(A, 5, 10).ended(A, 8, 10), [(A, 5, 8, 2)], [(A, 5, None, 2)], id="two-instants-two-kinds"
        ),
        pytest.param(
            H.began(A, 18, 25).at(B, 25),
            [(A, 18, 25, 1), (B, 25, None, 1)],
            [(A, 18, None, 1), (B, 25, 25, 1)],
            id="a-confirmation-and-a-start",
        ),
    ],
)
def test_claims_of_one_time_are_ordered_by_sequence(history, first_then_second, second_then_first):
    """R6: for equal reference times, the larger sequence is the later statement."""
    assert rows(history.claims) == first_then_second
    assert rows(history.arriving([2, 1]).claims) == second_then_first


@pytest.mark.parametrize("present", [True, False])
def test_a_slot_with_ten_thousand_values_has_one_span_each(present):
    """One sweep in the present tense and with stated starts; each value ends when the next begins."""
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
    count, trace_before = 0, sys.gettrace()

    def trace(_frame: FrameType, event: str, _arg: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(trace_before)
    return count


def ends(count: int) -> list[Claim]:
    """One end of each value: when did it start? (R8)."""
    return [Claim(f"{day}", (day, day, 0), "ended", None, day, False, day) for day in range(1, count + 1)]


def ends_in_between(count: int) -> list[Claim]:
    """Return a history of a value with interruptions, each followed by a confirmation (R11)."""
    history = H
    for day in range(0, 5 * count, 5):
        history = history.began(f"{day}", day + 1, day + 3, end=day + 2).began(A, day, day + 4)
    return history.claims


@pytest.mark.parametrize("history", [ends, ends_in_between])
@pytest.mark.parametrize("is_kept", [False, True])
def test_the_work_is_linear_in_the_number_of_ends_in_a_slot(history, is_kept):
    """R8, R11: the work for a value does not grow with the number of its rivals."""

    def work(claims: list[Claim]) -> None:
        sweep = Sweep(Slot())
        for batch in [[claim] for claim in claims] if is_kept else [claims]:
            sweep.add(batch)

    once, twice = (lines_run(lambda: work(history(count))) for count in (200, 400))  # noqa: B023
    assert twice < 2.2 * once
