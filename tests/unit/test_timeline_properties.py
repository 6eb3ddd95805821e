"""R13 as properties, and the sweep against the slow transcription of the rules."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from timeline_oracle import Oracle

from kgray.timeline import Claim, Span, Sweep, timeline
from tests.tries import tries

NAMES = "ABCD"
EVENT = "E"  # an event: it has no rivals and no end (R18)
KINDS = ["present", "present", "since", "since", "always", "ended", "ended", "denied", "happened"]
DAYS = st.integers(0, 8)  # few, so that ties are frequent
Timelines = Mapping[str, tuple[Span, ...]]


@dataclass(frozen=True)
class Group:
    """The rivals of statements: slots by statement, and pairs."""

    slots: tuple[tuple[str, ...], ...]  # of each name
    exclusive: frozenset[frozenset[str]]

    def slot_keys(self, statement: str) -> Sequence[str]:
        return () if statement == EVENT else self.slots[NAMES.index(statement)]

    def pairs(self, statement: str) -> Collection[str]:
        return [rival for pair in self.exclusive if statement in pair for rival in pair - {statement}]

    def rivals(self, a: str, b: str) -> bool:
        return frozenset((a, b)) in self.exclusive or bool(set(self.slot_keys(a)) & set(self.slot_keys(b)))


PAIRS = [frozenset((a, b)) for a in NAMES for b in NAMES if a < b]
SLOTS = st.tuples(*[st.sampled_from([(), ("k",), ("k",), ("k", "l"), ("l",)])] * len(NAMES))
ONE_SLOT = st.just(Group((("k",),) * len(NAMES), frozenset()))
ONLY_PAIRS = st.builds(Group, st.just(((),) * len(NAMES)), st.frozensets(st.sampled_from(PAIRS)))
BOTH = st.builds(Group, SLOTS, st.frozensets(st.sampled_from(PAIRS), max_size=3))
GROUPS = ONE_SLOT | ONLY_PAIRS | BOTH


@st.composite
def sayings(draw: st.DrawFn) -> Claim:
    """One saying, its sequence still 0."""
    statement, day = draw(st.sampled_from(NAMES)), draw(DAYS)
    match draw(st.sampled_from(KINDS)):
        case "ended":
            return Claim(statement, (day, 0, 0), "ended", None, draw(DAYS), False, 0)
        case "denied":
            denied = draw(st.sampled_from((*NAMES, EVENT)))
            return Claim(denied, (day, 0, 0), "denied", None, None, False, 0)
        case "happened":
            return Claim(EVENT, (day, 0, 0), "happened", 4, None, draw(st.booleans()), 0)
        case case_kind:
            start = {"present": day, "always": None}.get(case_kind, draw(DAYS))
            length = draw(st.none() | st.integers(0, 5))
            end = None if length is None else (start or 0) + length
            return Claim(statement, (day, 0, 0), "holds", start, end, case_kind == "present", 0)


def numbered(claims: Sequence[Claim], places: Iterable[int]) -> list[Claim]:
    return [
        claim._replace(said=(claim.said[0], place // 3, place), recorded=place)
        for claim, place in zip(claims, places, strict=False)
    ]


def of_all_variants(
    claims: Sequence[Claim], variants: Collection[str], general: Collection[int]
) -> list[Claim]:
    """Return the claims with those ends and denials that speak of all variants said of each (R6).

    variants: the statements that are variants of one another; general: sequences of such ends and denials
    """
    result = []
    for claim in claims:
        result.append(claim)
        if claim.kind in {"ended", "denied"} and claim.statement in variants and claim.said[2] in general:
            variants_left = sorted(set(variants) - {claim.statement})
            result += [claim._replace(statement=variant, other_variant=True) for variant in variants_left]
    return result


@st.composite
def histories(draw: st.DrawFn, *, told_apart: bool = False) -> list[Claim]:
    """Draw sayings in order of arrival; told_apart: no two at the same time."""
    apart = (lambda claim: claim.said[0]) if told_apart else None
    claims = draw(st.lists(sayings(), min_size=1, max_size=9, unique_by=apart))
    variants, general = draw(st.sets(st.sampled_from(NAMES))), draw(st.sets(st.integers(3, 12)))
    return of_all_variants(numbered(claims, range(3, 3 + len(claims))), variants, general)


def rows_of(timelines: Timelines) -> set[tuple[object, ...]]:
    """Return the spans as the oracle's rows."""
    return {
        (
            span.statement,
            span.opened.said,
            span.point,
            -math.inf if span.start is None else span.start,
            math.inf if span.end is None else span.end,
            span.ended.said if span.ended else None,
            tuple(claim.said for claim in span.support),
        )
        for spans in timelines.values()
        for span in spans
    }


def meet(a: Span, b: Span) -> bool:
    """Tell whether two spans share a moment."""
    start = max(-math.inf if span.start is None else span.start for span in (a, b))
    return start < min(math.inf if span.end is None else span.end for span in (a, b))


@given(histories(), GROUPS)
@settings(max_examples=tries(300))
def test_the_sweep_equals_a_literal_reading_of_the_rules(claims, group):
    """R6-R12: the slow transcription agrees, openers, endings and support included."""
    assert rows_of(timeline(claims, group)) == Oracle(claims, group.rivals).rows()


@given(histories(), GROUPS, st.data())
@settings(max_examples=tries(150))
def test_any_order_and_batches_give_the_same_spans(claims, group, data):
    """R13: after each batch the sweep equals the pure function of its claims, and reports the changes."""
    given_order = data.draw(st.permutations(claims))
    sweep, spans_so_far = Sweep(group), dict.fromkeys((*NAMES, EVENT), ())
    count = 0
    while count < len(claims):
        size = data.draw(st.integers(1, 4))
        changes = sweep.add(given_order[count : count + size])
        count = min(count + size, len(claims))
        for statement, (spans_before, spans_after) in changes.items():
            assert spans_before == spans_so_far[statement] != spans_after
            spans_so_far[statement] = spans_after
        fresh_result = timeline(given_order[:count], group)
        assert {name: sweep.spans(name) for name in fresh_result} == fresh_result
        assert {name: spans_so_far[name] for name in fresh_result} == fresh_result
        assert len(sweep) == count
    assert fresh_result == timeline(claims, group)


@given(
    st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 20)), min_size=1, max_size=14),
    st.none() | sayings(),
    ONE_SLOT | BOTH,
    st.data(),
)
@settings(max_examples=tries(150))
def test_a_slot_of_present_tense_follows_the_same_rules(present, second_claim, group, data):
    """R9-R11: the fast path of such slots, and its end with another kind of claim."""
    claims = [Claim(name, (day, 0, 0), "holds", day, None, True, 0) for name, day in present]
    claims = numbered([*claims, *([second_claim] if second_claim else [])], range(3, 99))
    sweep = Sweep(group)
    order = data.draw(st.permutations(claims))
    for count, claim in enumerate(order, 1):
        sweep.add([claim])
        result = {name: sweep.spans(name) for name in (*NAMES, EVENT)}
        assert rows_of(result) == Oracle(order[:count], group.rivals).rows()


@given(histories(), GROUPS)
@settings(max_examples=tries(150))
def test_spans_of_a_statement_and_its_rivals_do_not_overlap(claims, group):
    """R11; no span ends before it starts, a statement's spans are in order, its own claims open them."""
    spans = [span for result in timeline(claims, group).values() for span in result]
    for place, a in enumerate(spans):
        assert a.start is None or a.end is None or a.start <= a.end
        assert (a.end is None) == (a.ended is None)
        assert a.opened in a.support
        assert not a.opened.other_variant
        for b in spans[place + 1 :]:
            if a.statement == b.statement:
                assert not meet(a, b)
                assert a.start is None or (b.start is not None and a.start <= b.start)
            elif group.rivals(a.statement, b.statement):
                assert not meet(a, b)


@given(histories(), GROUPS)
@settings(max_examples=tries(100))
def test_denied_evidence_does_not_affect_spans(claims, group):
    """R6: spans depend only on evidence without a later denial of its statement."""
    denials = [claim for claim in claims if claim.kind == "denied"]
    claims_left = [
        c for c in claims if not any(d.statement == c.statement and c.said < d.said for d in denials)
    ]
    assert rows_of(timeline(claims, group)) == rows_of(timeline(claims_left, group))


@given(histories(told_apart=True), GROUPS, st.data())
@settings(max_examples=tries(100))
def test_the_order_of_arrival_does_not_matter_for_different_times(claims, group, data):
    """R13: only claims of one time are ordered by sequence."""
    points = sorted({claim.said for claim in claims})
    new_places = dict(zip(points, data.draw(st.permutations([place for _, _, place in points])), strict=True))
    later = [numbered([claim], [new_places[claim.said]])[0] for claim in claims]

    def plain(timelines: Timelines) -> dict[str, list[tuple[object, ...]]]:
        return {
            name: [(s.opened.said[0], s.point, s.start, s.end, [c.said[0] for c in s.support]) for s in spans]
            for name, spans in timelines.items()
        }

    assert plain(timeline(claims, group)) == plain(timeline(later, group))


@given(histories(), GROUPS, st.integers(0, 12))
@settings(max_examples=tries(100))
def test_known_facts_are_a_function_of_the_recorded_facts(claims, group, known_at):
    """R4."""
    recorded = [claim for claim in claims if claim.recorded <= known_at]
    assert timeline(claims, group, known_at) == timeline(recorded, group)
