"""How readings are scored: names, values, cues, the pairing of facts, dates, the bootstrap, ends."""

from __future__ import annotations

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.labelled_set.bootstrap import bootstrap
from bench.labelled_set.details import Details, compared_details
from bench.labelled_set.facts import ReadFact, end_name, is_match
from bench.labelled_set.graphs import (
    Ends,
    GraphFact,
    Identities,
    ResolvedMention,
    ends_in_graph,
    identities,
)
from bench.labelled_set.labels import FactEnd, LabelledFact, LabelledMessage
from bench.labelled_set.pairing import paired
from bench.labelled_set.plain import listed_facts, read_fact, shown_message
from bench.labelled_set.shares import Counts
from bench.labelled_set.spelling import has_cue, normal_name, resembles

AT = "2026-03-05T09:00:00Z"


def end(*names: str) -> FactEnd:
    """Return an end that accepts these names, and "=..." as a value."""
    return FactEnd(
        (),
        frozenset(normal_name(name) for name in names if not name.startswith("=")),
        tuple(name[1:] for name in names if name.startswith("=")),
    )


def label(subject="Ada", object_="Acme", cues=("work",), statuses=("current",), **fields) -> LabelledFact:
    return LabelledFact(subject=end(subject), object=end(object_), cues=cues, statuses=statuses, **fields)


def fact(subject="Ada", object_="Acme", relation="works at", status="current", **fields) -> ReadFact:
    return ReadFact(subject=subject, object=object_, relation=relation, text="", status=status, **fields)


# ----------------------------------------------------------------------------- names and values


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("The Copper Herons", "copper herons"),
        ("Dr. Achterberg's lab", "Dr Achterberg lab"),
        ("my brother", "Brother"),
        ("Lucía", "Lucia"),
        ("€1,860", "1860 EUR"),
        ("£85 a year", "85 pounds a year"),
        ("1.2 million euros", "€1.2 million"),
        ("18.00 euros", "18 EUR"),
        ("BR-20417", "br 20417"),
        ("die Sparkasse Ulm", "Sparkasse Ulm"),
        ("Gerald’s", "gerald"),
    ],
)
def test_spellings_of_one_name_normalise_equally(first, second):
    assert normal_name(first) == normal_name(second) != ""


@pytest.mark.parametrize(
    ("first", "second"),
    [("Sluice", "Sluice 3.0"), ("plot", "plot 14"), ("85 EUR", "85 USD"), ("3.2 kg", "32 kg")],
)
def test_different_names_normalise_differently(first, second):
    assert normal_name(first) != normal_name(second)


@given(st.text(max_size=40))
def test_normalising_a_name_twice_changes_nothing(text):
    assert normal_name(normal_name(text)) == normal_name(text)


def test_a_value_matches_with_a_few_extra_words():
    assert resembles("40 minutes", "for about 40 minutes")
    assert resembles("900 kg", "900 kg")
    assert not resembles("40 minutes", "minutes: 40")
    assert not resembles("40 minutes", "down for 40 minutes last night until the certificate was replaced")
    assert not resembles("40", "")


@pytest.mark.parametrize(
    ("cue", "relation", "sentence"),
    [
        ("work", "WORKS_AT", ""),
        ("work", "worksAt", ""),
        ("allerg", "has", "Ada is allergic to fish."),
        ("own", "owns", ""),
        ("took over", "TOOK_OVER", ""),
        ("alérg", "", "Es alérgica a la penicilina"),
    ],
)
def test_a_cue_matches_in_the_relation_name_or_the_sentence(cue, relation, sentence):
    assert has_cue((cue,), relation, sentence)


@pytest.mark.parametrize(
    ("cue", "text"),
    [("own", "owner of"), ("run", "trunk"), ("took over", "over, took"), ("live", "delivers")],
)
def test_a_cue_does_not_match_inside_another_word(cue, text):
    assert not has_cue((cue,), text, text)


# ------------------------------------------------------------------------------- pairs of facts


def test_a_match_needs_both_ends_in_either_order():
    assert is_match(label(), fact("Acme", "Ada", "employs work"))
    assert not is_match(label(), fact("Ada", "Beta"))
    assert not is_match(label(), fact(relation="likes"))


def test_the_pronoun_i_matches_the_speaker():
    assert end_name("I", "Ada") == "Ada"
    assert end_name("I", None) == "I"
    assert end_name("Iris", "Ada") == "Iris"


def test_each_label_and_each_fact_counts_once():
    scored = paired([label()], [fact(), fact()], AT)

    assert scored.counts == Counts(right=1, wrong=1, missed=0)
    assert scored.pairs == ((0, 0),)


def test_an_optional_label_neither_helps_nor_harms():
    labels = [label(), label("Ada", "Rome", ("live",), optional=True)]

    assert paired(labels, [fact()], AT).counts == Counts(1, 0, 0)
    assert paired(labels, [fact(), fact("Ada", "Rome", "lives in")], AT).counts == Counts(1, 0, 0)


def test_a_required_label_takes_precedence_over_an_optional_label():
    labels = [label(optional=True), label()]

    assert paired(labels, [fact()], AT).counts == Counts(1, 0, 0)


def test_a_fact_is_reassigned_to_a_label_that_needs_it():
    """The first label fits both facts, the second only the first fact."""
    both = LabelledFact(subject=end("Ada"), object=end("=chair"), cues=("chair",), statuses=("current",))
    first, second = fact("Ada", "chair", "chair"), fact("Ada", "the chair", "is chair of the club")
    narrow = LabelledFact(subject=end("Ada"), object=end("chair"), cues=("chair",), statuses=("current",))

    assert paired([both, narrow], [first, second], AT).counts == Counts(2, 0, 0)


def test_a_label_is_paired_with_the_fact_of_equal_status_and_date():
    facts = [fact(status="ended"), fact(start="2024"), fact(start="2018-05")]

    assert paired([label(start="2018")], facts, AT).pairs == ((0, 2),)


NAMES = st.sampled_from(["Ada", "Bo", "Cy", "Di"])
LABELS = st.lists(
    st.builds(
        lambda subject, object_, optional: label(subject, object_, optional=optional),
        NAMES,
        NAMES,
        st.booleans(),
    ),
    max_size=6,
)
FACTS = st.lists(st.builds(fact, NAMES, NAMES), max_size=6)


@given(LABELS, FACTS)
def test_as_many_required_labels_as_possible_are_matched(labels, facts):
    required = [place for place, item in enumerate(labels) if not item.optional]
    graph = nx.Graph()
    graph.add_nodes_from(("label", place) for place in required)
    graph.add_edges_from(
        (("label", place), ("fact", index))
        for place in required
        for index, item in enumerate(facts)
        if is_match(labels[place], item)
    )
    maximum = nx.bipartite.maximum_matching(graph, [("label", place) for place in required])

    scored = paired(labels, facts, AT)

    assert scored.counts.right == len(maximum) // 2
    assert scored.counts.right + scored.counts.missed == len(required)
    assert len({place for place, _ in scored.pairs}) == len({index for _, index in scored.pairs})
    assert scored.counts.wrong == len(facts) - len(scored.pairs)


def test_precision_recall_and_f1_of_counts():
    assert Counts(3, 1, 2).precision == 0.75
    assert Counts(3, 1, 2).recall == 0.6
    assert Counts(3, 1, 2).f1 == pytest.approx(2 / 3)
    assert Counts().f1 == 1.0


# ----------------------------------------------------------------------------- status and dates


@pytest.mark.parametrize(
    ("expected", "actual", "result"),
    [
        pytest.param(label(), fact(), Details(1, 1, 0, 0, 0), id="no-dates"),
        pytest.param(
            label(start="2018"), fact(start="2018-03-01"), Details(1, 1, 1, 1, 0), id="finer-is-right"
        ),
        pytest.param(
            label(start="2018-03"), fact(start="2018"), Details(1, 1, 1, 0, 0), id="coarser-is-wrong"
        ),
        pytest.param(label(), fact(start="2018"), Details(1, 1, 0, 0, 1), id="false-date"),
        pytest.param(label(), fact(start=AT), Details(1, 1, 0, 0, 0), id="message-day-is-no-date"),
        pytest.param(label(start="2026-03-05"), fact(start=AT), Details(1, 1, 1, 1, 0), id="today-is-stated"),
        pytest.param(label(), fact(status="event"), Details(1, 0, 0, 0, 0), id="wrong-status"),
        pytest.param(
            label(statuses=("ended",), start="2018", end="2020"),
            fact(start="2018", end="2020"),
            Details(1, 1, 2, 2, 0),
            id="a-state-that-ended-before-the-message",
        ),
        pytest.param(
            label(end="2026-08"),
            fact(end="2026-08-31"),
            Details(1, 1, 1, 1, 0),
            id="a-planned-end-is-current",
        ),
        pytest.param(
            label(statuses=("event", "ended"), end="2026-03-02"),
            fact(status="event", start="2026-03-02"),
            Details(1, 1, 1, 1, 0),
            id="an-event-has-one-date",
        ),
        pytest.param(
            label(statuses=("event",), start="2026-03-02"),
            fact(status="event", start="2026-03-02", end="2026-03-02"),
            Details(1, 1, 1, 1, 0),
            id="an-event-that-ends-at-once",
        ),
        pytest.param(
            label(end="2026-03-02"),
            fact(start="2026-03-02"),
            Details(1, 1, 1, 0, 1),
            id="wrong-field-of-a-state",
        ),
        pytest.param(label(statuses=("denied",)), fact(status="ended"), Details(1, 1, 0, 0, 0), id="denial"),
    ],
)
def test_status_and_dates_of_a_matched_fact_are_compared(expected, actual, result):
    assert compared_details(expected, actual, AT) == result


# ------------------------------------------------------------------------------------ bootstrap


def test_equal_readers_have_a_difference_of_zero():
    counts = [Counts(2, 1, 0), Counts(0, 1, 3), Counts(0, 0, 0)]

    difference = bootstrap(counts, counts, resamples=500)

    assert (difference.mean, difference.low, difference.high) == (0.0, 0.0, 0.0)


def test_a_better_reader_has_a_positive_difference():
    good = [Counts(2, 0, 0)] * 20 + [Counts(1, 1, 1)] * 20
    bad = [Counts(1, 1, 1)] * 40

    difference, mirrored = bootstrap(good, bad), bootstrap(bad, good)

    assert 0.0 < difference.low < difference.mean < difference.high < 0.5
    assert difference.mean == pytest.approx(0.25, abs=0.01)
    assert (mirrored.low, mirrored.high) == pytest.approx((-difference.high, -difference.low))
    assert difference == bootstrap(good, bad), "the seed is fixed"


def test_no_facts_for_a_message_without_facts_is_a_perfect_score():
    assert bootstrap([Counts()], [Counts(0, 2, 0)], resamples=10).mean == 1.0


def test_a_bootstrap_needs_pairs():
    with pytest.raises(ValueError, match="the same messages"):
        bootstrap([Counts()], [])


# ------------------------------------------------------------------------- identities and ends


def test_pairs_of_mentions_of_different_names_are_counted_separately():
    mentions = [
        ResolvedMention("ada", "ada", "e1"),
        ResolvedMention("ada lee", "ada", "e1"),
        ResolvedMention("dr lee", "ada", "e2"),
        ResolvedMention("acme", "acme", "e2"),
    ]

    result = identities(mentions, labelled=6, matched=4)

    # Right: ada + ada lee. Wrong: dr lee + acme. Missed: ada + dr lee, ada lee + dr lee.
    assert result == Identities(Counts(1, 1, 2), Counts(1, 1, 2), 6, 4)
    extended = identities([*mentions, ResolvedMention("ada", "ada", "e1")], 7, 5)
    assert extended.pairs == Counts(3, 1, 3)
    assert extended.aliases == Counts(2, 1, 3)


def span(state: str, subject="Ada", object_="Acme") -> GraphFact:
    return GraphFact(
        subject=(subject, "Dr. Lee"), object=(object_,), relation="WORKS_AT", text="", state=state
    )


ENDED = label(statuses=(), ending="ended")
DENIED = label(statuses=(), ending="denied")


@pytest.mark.parametrize(
    ("ended", "graph", "read", "expected"),
    [
        pytest.param([ENDED], [span("ended")], [], Ends(Counts(1, 0, 0)), id="ended"),
        pytest.param([ENDED], [span("holds")], [], Ends(Counts(0, 0, 1)), id="still-holds"),
        pytest.param(
            [ENDED], [span("ended"), span("holds")], [], Ends(Counts(0, 0, 1)), id="one-still-holds"
        ),
        pytest.param([ENDED], [], [fact()], Ends(Counts(0, 0, 1)), id="absent"),
        pytest.param([DENIED], [], [fact()], Ends(Counts(1, 0, 0)), id="denied-and-absent"),
        pytest.param([DENIED], [], [], Ends(Counts(0, 0, 1)), id="denied-and-never-read"),
        pytest.param([], [span("ended")], [], Ends(Counts(0, 1, 0)), id="ended-though-it-holds"),
        pytest.param([], [span("event")], [], Ends(Counts(0, 0, 0)), id="events-do-not-end"),
        pytest.param([], [span("ended", "Bo")], [], Ends(Counts(0, 0, 0), 1), id="no-label"),
    ],
)
def test_ends_of_a_conversation_are_counted(ended, graph, read, expected):
    assert ends_in_graph(ended, [label()], graph, read) == expected


def test_a_fact_stated_as_ended_is_not_a_wrong_end():
    assert ends_in_graph([], [label(statuses=("ended",))], [span("ended")], []) == Ends()


# ----------------------------------------------------------------------------- the plain prompt


def test_a_truncated_reply_keeps_its_complete_facts():
    row = {"subject": "Ada", "relation": "works at", "object": "Acme"}
    text = '{"entities": [], "facts": [' + str(row).replace("'", '"') + ', {"subject": "B'

    assert listed_facts(text) == ([row], False)
    assert listed_facts('{"facts": [1, {}]}') == ([{}], True)
    assert listed_facts('{"entities": [{"na') == ([], False)
    assert listed_facts("no JSON") == ([], False)
    assert listed_facts("[]") == ([], True)


def test_a_row_of_a_reply_becomes_a_fact():
    row = {"subject": "I", "relation": "costs", "object": 4, "status": "current", "start": None, "end": ""}

    assert read_fact(row, "Ada") == ReadFact(
        subject="Ada", object="4", relation="costs", text="", status="current"
    )


def test_the_prompt_shows_previous_messages_the_day_and_the_speaker(tmp_path):
    def message(text, speaker="Ada", kind="message"):
        return LabelledMessage(
            id="1", kind=kind, at=AT, speaker=speaker, text=text, mentions=(), facts=(), ends=()
        )

    text = shown_message(message("Hello"), [message("Hi", "Bo"), message("Rain.", None, "text")])

    assert (
        text == "Previous messages:\nBo: Hi\nRain.\n\nMessage of 2026-03-05 (Thursday), speaker Ada:\nHello"
    )
    assert (
        shown_message(message({"a": 1}, None, "json"), [])
        == 'JSON record of 2026-03-05 (Thursday):\n{"a": 1}'
    )
