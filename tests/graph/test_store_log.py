"""Acceptance, order, failures, journal: R19 and R21-R24, on every store."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest

from kgray.errors import InputError
from kgray.ports import Commit, Failed, Failure, GroupCounts
from kgray.records import (
    Episode,
    ExtractedEntity,
    ExtractedFact,
    Extraction,
    Operation,
    Value,
)
from tests.graph.by_hand import (
    answered,
    declined,
    draft,
    extracted,
    failed,
    gone,
    metadata,
    remove,
    small,
    tell,
    told,
)


def statuses(answers):
    """Return (status, sequence) of each answer."""
    return [(answer.status, answer.sequence) for answer in answers]


def of_all_groups(store):
    """Assert what is counted, told and retried over all groups of a database that was empty."""
    store.accept([draft("a"), draft("b"), draft("a", group="h")], now=1)
    assert (store.groups(), store.pending_count()) == (["g", "h"], 3)
    with store.writing():
        store.write([failed(1, 9), failed(1, 9, group="h")])
        assert [(row.episode.group, row.episode.sequence) for row in store.failures()] == [("g", 1), ("h", 1)]
        assert store.counts() == {"g": GroupCounts(accepted=1, failed=1), "h": GroupCounts(failed=1)}
        assert store.retry(None, [], now=20) == 2
    assert (store.failures(), store.pending_count()) == ([], 3)


def test_what_is_asked_of_all_groups_is_answered_of_all(tmp_path):
    with closing(small(tmp_path)) as store:
        of_all_groups(store)


def test_accepting_takes_sequences_and_a_repetition_takes_none(store, group, other, mine):
    """R19: the same id with the same content is a no-op that returns the first result."""
    answers = store.accept(
        [draft("a", group=group), draft("b", group=group), draft("a", group=group), draft("a", group=other)],
        now=7,
    )
    assert statuses(answers) == [("accepted", 1), ("accepted", 2), ("duplicate", 1), ("accepted", 1)]
    assert statuses(store.accept([draft("b", group=group), draft("c", group=group)], now=8)) == [
        ("duplicate", 2),
        ("accepted", 3),
    ]
    assert store.accept([], now=9) == []
    assert mine(store.groups()) == [group, other]
    assert mine(store.pending_groups()) == {group: True, other: True}
    assert [store.pending_count(group), store.pending_count(other), store.pending_count("none")] == [3, 1, 0]


def test_an_episode_comes_back_as_it_was_given(store, group):
    sent = draft("héllo \U0001f44d", source="chat", kind="message", speaker="Zoë", client_id="c/1",
                 metadata=metadata(mood="fine"), group=group)  # fmt: skip
    (answer,) = store.accept([sent], now=7)
    expected = Episode(
        group=group, sequence=1, id=sent.id, source="chat", kind="message", text="héllo \U0001f44d",
        reference_time=5, content_sha256=sent.content_sha256, speaker="Zoë", client_id="c/1",
        metadata=metadata(mood="fine"), state="accepted",
    )  # fmt: skip
    assert answer.id == sent.id
    assert store.pending(group, 5) == [expected]


def test_a_time_that_was_not_given_is_that_of_first_acceptance(store, group):
    """R19: stored with the row; the id does not depend on it."""
    untimed = draft("a", reference_time=None, group=group)
    first = store.accept([untimed], now=70)[0]
    assert (first.status, first.timed) == ("accepted", False)
    again = store.accept([untimed], now=90)[0]
    assert (again.status, again.sequence, again.timed) == ("duplicate", 1, True)
    assert [row.reference_time for row in store.pending(group, 9)] == [70]


def test_other_content_under_a_taken_id_names_both_hashes(store, group):
    old, new = draft("a", client_id="c", group=group), draft("b", client_id="c", group=group)
    store.accept([old], now=1)
    (answer,) = store.accept([new], now=2)
    assert (answer.status, answer.sequence, answer.id) == ("conflict", 1, old.id)
    assert old.content_sha256 in answer.reason
    assert new.content_sha256 in answer.reason
    assert store.pending_count(group) == 1
    assert store.accept([draft("x", group=group)], now=3)[0].sequence == 2


def test_replace_retracts_in_order_and_accepts_anew(store, group):
    """R19, R25: the retraction takes a sequence, then the new row; here before the old one was ingested."""
    old, new = draft("a", client_id="c", group=group), draft("b", client_id="c", group=group)
    answers = store.accept([old, new, new], now=1, replace=True)
    assert statuses(answers) == [("accepted", 1), ("accepted", 3), ("duplicate", 3)]
    assert [row.sequence for row in store.pending(group, 9)] == [1, 2, 3]
    assert store.pending_sequences(group, 0, 9) == [(1, True), (2, False), (3, True)]
    assert store.pending_sequences(group, 1, 1) == [(2, False)]
    assert (store.pending_sequences(group, 3, 9), store.pending_sequences("none", 0, 9)) == ([], [])
    assert store.pending(group, 9)[1] == Operation(
        group=group, sequence=2, kind="retract", episodes=(old.id,)
    )
    assert store.standing(group, [old.id, "none"]) == {old.id: new.content_sha256}
    assert store.sequences(group, ids=["c"]) == [1, 3]


def test_replace_of_a_failed_row_leaves_nothing_to_retry(store, group):
    with store.writing():
        store.accept([draft("a", client_id="c", group=group)], now=1)
        store.write([failed(1, 2, group=group)])
        assert statuses(store.accept([draft("b", client_id="c", group=group)], now=3, replace=True)) == [
            ("accepted", 3)
        ]
        assert store.retry(group, [], now=4) == 0


@pytest.mark.parametrize(
    "named", [{"episodes": ("c",)}, {"source": "s"}, {"everything": True}], ids=["id", "source", "all"]
)
def test_what_a_pending_removal_takes_away_is_accepted_anew(store, named, group):
    """The order is that of acceptance: what comes after the request is not part of it."""
    row = draft("a", client_id="c", group=group)
    store.accept([row], now=1)
    store.request(Operation(group=group, kind="remove", **named), now=2)
    assert store.standing(group, [row.id]) == {}
    assert statuses(store.accept([row, row], now=3)) == [("accepted", 3), ("duplicate", 3)]


def test_the_same_content_after_a_removal_is_accepted_anew(store, group):
    with store.writing():
        first = tell(store, "Al", "one", client_id="c", group=group)
        remove(store, [first], episodes=("c",), group=group)
        assert statuses(store.accept([draft("Al says one", client_id="c", group=group)], now=9)) == [
            ("accepted", 3)
        ]


def test_an_operation_goes_pending_done_or_refused(store, group, mine):
    asked = Operation(group=group, kind="merge", entities=("x", "y"))
    with store.writing():
        assert store.request(asked, now=1) == 1
        assert store.request(replace(asked, kind="split", entities=("x",), surfaces=("S",)), now=1) == 2
        assert store.result(group, 1) is None
        assert store.pending(group, 1) == [replace(asked, sequence=1)]
        done = replace(asked, sequence=1, moved=("k",), made="m")
        carried_out = Commit(group=group, sequence=1, recorded_at=50, operation=done, result={"sequence": 1})
        store.write([carried_out, declined(2, 9, "no such surface", group=group)])
        store.write([declined(2, 99, "again", group=group)])
    assert store.result(group, 1) == {"sequence": 1}
    assert store.result(group, 2) == {"error": "no such surface"}
    assert store.result(group, 3) is None
    assert store.result("none", 1) is None
    assert store.last_recorded(group) == 51  # R4: max(clock, last + 1)
    records = store.records(group)
    assert records.operations == [done]
    assert records.recorded == {1: 50}
    assert store.records(group, known_at=49).operations == []
    assert mine(store.pending_groups()) == {}


def test_previous_context_follows_the_rule(store, group):
    """R22 and case z: same group and source, smaller sequence, said no later; oldest first; at most n."""
    said = [(30, "s"), (10, "s"), (20, "other"), (20, "s"), (20, "s"), (40, "s")]
    store.accept(
        [draft(str(n), reference_time=t, source=s, group=group) for n, (t, s) in enumerate(said, 1)], now=1
    )
    rows = {row.sequence: row for row in store.pending(group, 9)}
    assert [row.sequence for row in store.previous(rows[6], 9)] == [2, 4, 5, 1]
    assert [row.sequence for row in store.previous(rows[6], 2)] == [5, 1]
    assert [row.sequence for row in store.previous(rows[5], 9)] == [2, 4]
    assert store.previous(rows[2], 9) == []
    assert store.previous(rows[6], 0) == []


def test_previous_context_leaves_out_what_was_withdrawn_before(store, group):
    store.accept([draft(str(n), client_id=str(n), group=group) for n in range(1, 9)], now=1)
    store.request(Operation(group=group, kind="retract", episodes=tuple("2345678")), now=1)
    store.accept([draft("last", group=group)], now=1)
    rows = {row.sequence: row for row in store.pending(group, 99)}
    assert [row.sequence for row in store.previous(rows[10], 2)] == [1]
    assert [row.sequence for row in store.previous(rows[8], 2)] == [6, 7]


EXTRACTION = Extraction(
    entities=(ExtractedEntity(name="Al", type="Person", span=(0, 2)), ExtractedEntity(name="B")),
    facts=(
        ExtractedFact(
            source=0, relation="R", text="t", target=1, valid_from=3, from_precision="day", inferred=True
        ),
        ExtractedFact(
            source=0, relation="R", text="u", kind="ended", value=Value("number", "1", "EUR"), valid_to=4
        ),
    ),
    dropped=("one line",),
    model="m",
    prompts=("p",),
    calls=2,
    prompt_tokens=30,
    completion_tokens=4,
)  # fmt: skip


def test_the_first_extraction_stays(store, group, mine):
    store.accept([draft("a", group=group)], now=1)
    assert store.extraction(group, 1) is None
    with store.writing():
        store.write([extracted(1, EXTRACTION, group=group)])
        store.write([extracted(1, Extraction(), group=group), extracted(7, Extraction(), group=group)])
        store.write([extracted(1, Extraction(), group="none")])
    assert mine(store.groups()) == [group]
    assert store.extraction(group, 1) == EXTRACTION
    assert store.extraction(group, 7) is None
    assert [row.state for row in store.pending(group, 9)] == ["extracted"]
    assert store.counts(group) == {
        group: GroupCounts(extracted=1, calls=2, prompt_tokens=30, completion_tokens=4)
    }


def test_a_models_broken_unicode_is_kept_as_what_can_be_stored(store, group):
    store.accept([draft("a", group=group)], now=1)
    broken = Extraction(entities=(ExtractedEntity(name="A\ud800"),))
    with store.writing():
        store.write([extracted(1, broken, group=group), answered(1, "k", {"why": "\udfff"}, group=group)])
    assert store.extraction(group, 1) == Extraction(entities=(ExtractedEntity(name="A?"),))
    assert store.recall(group, "k") == ({"why": "?"},)


def test_the_first_answers_stay_and_uses_are_noted(store, group, other, mine):
    """R21: first write wins; a removal takes the answers that the removed sequence used."""
    first, second = {"duplicate_of": None}, {"duplicate_of": 0}
    with store.writing():
        tell(store, "Al", "one", group=group)
        tell(store, "Bo", "two", group=group)
        assert store.recall(group, "k") is None
        store.write(
            [answered(1, "k", first, calls=1, group=group), answered(2, "k", second, calls=7, group=group)]
        )
        assert store.recall(group, "k") == (first,)
        store.write(
            [answered(1, "mine", second, group=group), answered(1, "other", second, first, group=group)]
        )
        store.write([answered(2, "mine", group=group)])
        store.write([answered(2, "absent", group=group)])
        assert [store.recall(group, key) for key in ("mine", "other", "absent")] == [
            (second,), (second, first), None,
        ]  # fmt: skip
        assert store.recall(other, "k") is None
        assert store.counts(group)[group].calls == 1
        remove(store, [2], source="none", group=group)
        assert [store.recall(group, key) for key in ("k", "mine")] == [None, None]
        assert store.recall(group, "other") == (second, first)
        # What was asked for a removed sequence, or for one that was never taken, leaves no trace.
        store.write(
            [
                answered(2, "late", first, group=group),
                answered(2, "other", group=group),
                answered(9, "never", first, group=group),
            ]
        )
        store.write([answered(1, "stray", first, group="none")])
        assert [store.recall(group, key) for key in ("late", "never")] == [None, None]
        assert mine(store.groups()) == [group]
        remove(store, [1], source="none", group=group)
        assert store.recall(group, "other") is None


def test_a_failure_is_kept_and_only_retry_takes_it_up(store, group, mine):
    """R24 and case j: the failed row stays as history, the new one has a new sequence."""
    why = Failure(kind="InvalidAnswer", message="no JSON", raw="bad \ud800 output", attempts=3)
    with store.writing():
        store.accept([draft("a", client_id="c", group=group), draft("b", group=group)], now=1)
        store.write([Failed(group=group, sequence=1, recorded_at=100, failure=why)])
        again = replace(why, message="again")
        store.write(
            [Failed(group=group, sequence=1, recorded_at=200, failure=again), failed(7, 300, group=group)]
        )
        (row,) = store.failures(group)
        assert (row.episode.sequence, row.episode.state) == (1, "failed")
        assert row.failure == replace(why, raw="bad ? output")
        assert store.last_recorded(group) == 100
        assert statuses(store.accept([draft("a", client_id="c", group=group)], now=1)) == [("duplicate", 1)]
        assert store.failures("none") == []
        assert store.retry(group, ["unknown"], now=1) == 0
        assert store.retry(group, ["c"], now=1) == 1
        assert store.failures(group) == []
        assert [row.sequence for row in store.pending(group, 9)] == [2, 3]
        assert mine(store.counts())[group] == GroupCounts(accepted=2)
        assert [(row.sequence, row.state) for row in store.episode_rows(group, 100)] == [(1, "failed")]
        assert list(store.episode_rows(group)) == []
        assert store.last_recorded(group) == 101


def test_the_dump_shows_each_episode_from_its_end_to_its_withdrawal(store, group):
    with store.writing():
        store.accept([draft(str(n), client_id=str(n), group=group) for n in (1, 2, 3)], now=1)
        store.write([told(1, "Al", "one", 10, group=group), failed(2, 20, group=group)])
        asked = Operation(group=group, kind="retract", episodes=("1",))
        sequence = store.request(asked, now=1)
        store.write([told(3, "Bo", "two", 25, group=group)])
        done = Commit(
            group=group, sequence=sequence, recorded_at=30, operation=asked, retired=(1,), derived=gone(1)
        )
        store.write([done])
        store.retry(group, [], now=40)
    shown = {
        at: [row.sequence for row in store.episode_rows(group, at)]
        for at in (9, 10, 20, 29, 30, 39, 40, None)
    }
    assert shown == {9: [], 10: [1], 20: [1, 2], 29: [1, 2, 3], 30: [2, 3], 39: [2, 3], 40: [3], None: [3]}
    assert [head.sequence for head in store.records(group, 29).heads] == [1, 3]
    assert [head.sequence for head in store.records(group).heads] == [3]
    assert store.counts(group)[group] == GroupCounts(accepted=1, committed=1, entities=1, facts=1)


def test_a_name_that_is_no_group_is_refused(store, group, mine):
    with pytest.raises(InputError, match="no group name"):
        store.accept([draft("fine", group=group), draft("x", group="a b")], now=1)
    assert mine(store.groups()) == []


def test_the_newest_record_times_of_several_groups_are_one_answer(store, group, other):
    idle = f"{group}-idle"
    store.accept([draft("a", group=group), draft("b", group=other), draft("c", group=idle)], now=1)
    with store.writing():
        store.write([told(1, "Al", "one", 30, group=group), told(1, "Al", "two", 40, group=other)])

    assert store.last_recorded_of([group, "none", other, idle]) == {
        group: 30,
        "none": 0,
        other: 40,
        idle: 0,
    }
    assert store.last_recorded_of([]) == {}


def test_reads_of_an_unknown_group_are_empty(store, mine):
    assert store.counts("none") == {"none": GroupCounts()}
    assert mine(store.counts()) == {}
    assert store.last_recorded("none") == 0
    assert store.pending("none", 5) == []
    assert list(store.episode_rows("none")) == []
    assert store.sequences("none", everything=True) == []
    assert store.records("none").heads == []
    assert store.find("none", "x") == []


def test_the_next_sequence_is_told_and_not_taken(store, group, mine):
    assert (store.next_sequence(group), mine(store.groups())) == (1, [])
    store.accept([draft("one", group=group), draft("two", group=group)], now=1)
    assert [store.next_sequence(group), store.next_sequence(group)] == [3, 3]


def test_what_is_accepted_in_bulk_is_told_apart_from_what_others_wait_for(store, group, other, mine):
    """A group is live as long as anything else of it is pending: an episode or a correction."""
    third, fourth = f"{group}-i", f"{group}-new"
    store.accept([draft("a", group=name) for name in (group, other, third)], now=1, bulk=True)
    (again,) = store.accept([draft("a", group=group)], now=1)
    assert again.status == "duplicate"
    assert mine(store.pending_groups()) == {group: False, other: False, third: False}
    store.accept([draft("b", group=group), draft("b", group=fourth)], now=1)
    store.request(Operation(group=other, kind="retract", episodes=("x",)), now=1)
    assert mine(store.pending_groups()) == {group: True, other: True, third: False, fourth: True}
    assert [row.bulk for row in store.pending(group, 9)] == [True, False]
    with store.writing():
        store.write(
            [
                told(1, "Al", "one", 10, group=group),
                told(2, "Al", "one", 20, group=group),
                declined(2, 9, "none", group=other),
            ]
        )
        store.write([extracted(1, Extraction(), group=third), failed(1, 9, group=fourth)])
    assert mine(store.pending_groups()) == {other: False, third: False}
    assert [(row.sequence, row.bulk) for row in store.episode_rows(group)] == [(1, True), (2, False)]


def test_an_episode_that_is_retried_stays_in_its_lane(store, group, other, mine):
    store.accept([draft("a", group=group)], now=1, bulk=True)
    store.accept([draft("b", group=other)], now=1)
    with store.writing():
        store.write([failed(1, 9, group=group), failed(1, 9, group=other)])
        failures = store.failures(group) + store.failures(other)
        assert [row.episode.bulk for row in failures] == [True, False]
        assert mine(store.pending_groups()) == {}
        assert [store.retry(each, [], now=20) for each in (group, other)] == [1, 1]
    assert mine(store.pending_groups()) == {group: False, other: True}


def test_attempts_add_up_over_retries(store, group):
    """R24: what is read counts the sequences that it was retried from."""
    why = Failure(kind="InvalidAnswer", message="no JSON", attempts=2)
    store.accept([draft("a", group=group)], now=1)
    with store.writing():
        for sequence in (1, 2, 3):
            store.write([Failed(group=group, sequence=sequence, recorded_at=9, failure=why)])
            assert [row.failure.attempts for row in store.failures(group)] == [2 * sequence]
            store.retry(group, [], now=9)
