"""The ledger on every store: acceptance, requests, failures, look-ups (R19, R22, R24, R25)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kgray.errors import InputError, InvalidAnswer
from kgray.ingest import changes
from kgray.kinds import EPISODES
from kgray.ledger import (
    Bearers,
    Failure,
    accept,
    dumped_episodes,
    episodes_at,
    failures,
    find,
    previous,
    request,
    result,
    retry,
    sequences_of,
    standing,
)
from kgray.ports import GroupCounts, Patch
from kgray.records import Operation
from tests.graph.by_hand import declined, draft, ended, failed, head, next_time, remove, tell, told


def statuses(answers):
    return [(answer.status, answer.sequence) for answer in answers]


def pending(store, group):
    return [entry.sequence for entry in store.pending(group, 99)]


# ------------------------------------------------------------------------------------ accepting


def test_the_same_episode_is_accepted_once(store, group, other):
    """R19: the same id and content is a no-op that gives the first result, group by group."""
    a, b = draft("a", group=group, client_id="c"), draft("b", group=group)
    assert statuses(accept(store, [a, b, a], now=1)) == [("accepted", 1), ("accepted", 2), ("duplicate", 1)]
    there, elsewhere, new = accept(store, [b, replace(a, group=other), draft("c", group=group)], now=2)
    assert statuses([there, elsewhere, new]) == [("duplicate", 2), ("accepted", 1), ("accepted", 3)]
    assert [answer.id for answer in (there, elsewhere)] == [b.id, replace(a, group=other).id]
    assert (pending(store, group), pending(store, other)) == ([1, 2, 3], [1])


def test_nothing_is_accepted_for_a_name_that_is_no_group(store, group):
    with pytest.raises(InputError, match="no group name"):
        accept(store, [draft("fine", group=group), draft("x", group="a b")], now=1)
    with pytest.raises(InputError, match="no group name"):
        request(store, Operation(group="a b", kind="undo", target=1))
    assert not head(store, group).named
    assert accept(store, [], now=1) == []


def test_a_time_that_was_not_given_is_that_of_first_acceptance(store, group):
    """R19: stored with the row; the id does not depend on it."""
    untimed = draft("a", group=group, reference_time=None)
    [first] = accept(store, [untimed], now=70)
    assert (first.status, first.timed) == ("accepted", False)
    [again] = accept(store, [untimed], now=90)
    assert (again.status, again.sequence, again.timed) == ("duplicate", 1, True)
    assert [entry.reference_time for entry in store.pending(group, 9)] == [70]


def test_other_content_under_a_taken_id_names_both_hashes(store, group):
    old, new = (draft(text, group=group, client_id="c") for text in "ab")
    accept(store, [old], now=1)
    [answer] = accept(store, [new], now=2)
    assert (answer.status, answer.sequence, answer.id) == ("conflict", 1, old.id)
    assert old.content_sha256 in answer.reason
    assert new.content_sha256 in answer.reason
    assert store.pending_count(group) == 1
    assert statuses(accept(store, [draft("x", group=group)], now=3)) == [("accepted", 2)]


def test_replace_retracts_in_order_and_accepts_anew(store, group):
    """R19, R25: the retraction takes a sequence, then the new row; here before the old one was ingested."""
    old, new = (draft(text, group=group, client_id="c") for text in "ab")
    answers = accept(store, [old, new, new], now=1, replace=True)
    assert statuses(answers) == [("accepted", 1), ("accepted", 3), ("duplicate", 3)]
    asked = Operation(group=group, sequence=2, kind="retract", episodes=(old.id,))
    assert store.pending(group, 9)[1] == asked
    assert pending(store, group) == [1, 2, 3]
    assert standing(store, group, [old.id, "none"]) == {old.id: new.content_sha256}
    assert standing(store, group, []) == {}
    assert sequences_of(store, group, ids=["c"]) == [1, 3]


def test_replace_of_a_failed_row_leaves_nothing_to_retry(store, group):
    old, new = (draft(text, group=group, client_id="c") for text in "ab")
    with store.writing():
        accept(store, [old], now=1)
        store.apply([failed(1, 2, group=group)])
    assert statuses(accept(store, [new], now=3, replace=True)) == [("accepted", 3)]
    assert retry(store, group, [], now=4) == 0


@pytest.mark.parametrize(
    "named", [{"episodes": ("c",)}, {"source": "s"}, {"everything": True}], ids=["id", "source", "all"]
)
def test_what_a_pending_removal_takes_away_is_accepted_anew(store, group, named):
    """The order is that of acceptance: what comes after the request is not part of it."""
    row = draft("a", group=group, client_id="c")
    accept(store, [row], now=1)
    assert request(store, Operation(group=group, kind="remove", **named)) == 2
    assert standing(store, group, [row.id]) == {}
    assert statuses(accept(store, [row, row], now=3)) == [("accepted", 3), ("duplicate", 3)]


def test_the_same_content_after_a_removal_is_accepted_anew_and_after_a_retraction_too(store, group):
    said = draft("Al says one", group=group, client_id="c")
    with store.writing():
        first = tell(store, "Al", "one", group=group, client_id="c")
        remove(store, [first], group=group, episodes=("c",))
        assert statuses(accept(store, [said], now=9)) == [("accepted", 3)]
        store.apply([told(3, "Al", "one", next_time(store, group), group=group, sent=said)])
        asked = Operation(group=group, kind="retract", episodes=("c",))
        asked = replace(asked, sequence=request(store, asked))
        at = next_time(store, group)
        retired = Patch(kind=EPISODES, columns=("retired_at",), rows=((3, at),))
        store.apply([ended(asked, at, patches=(retired,))])
    assert standing(store, group, [said.id]) == {}
    assert statuses(accept(store, [said], now=9)) == [("accepted", 5)]


def test_bulk_is_the_backfill_lane_and_a_retried_episode_stays_in_it(store, group, other):
    accept(store, [draft("a", group=group)], now=1, bulk=True)
    accept(store, [draft("b", group=other)], now=1)
    with store.writing():
        store.apply([failed(1, 9, group=group), failed(1, 9, group=other)])
    for name in (group, other):
        assert retry(store, name, [], now=20) == 1
    assert {name: live for name, live in store.pending_groups().items() if name in {group, other}} == {
        group: False, other: True,
    }  # fmt: skip


# ------------------------------------------------------------------------------------ operations


def test_an_operation_has_its_result_once_it_has_ended(store, group):
    asked = Operation(group=group, kind="merge", entities=("x", "y"))
    assert [request(store, asked), request(store, replace(asked, entities=("u", "v")))] == [1, 2]
    assert store.pending(group, 1) == [replace(asked, sequence=1)]
    with store.writing():
        store.apply([ended(replace(asked, sequence=1), 50, result={"entity": "x"})])
        store.apply([declined(2, 51, "no such entity", group=group)])
    found = [result(store, group, sequence) for sequence in (1, 2, 3)]
    assert found == [{"entity": "x"}, {"error": "no such entity"}, None]
    assert result(store, "none", 1) is None
    waiting = request(store, asked)
    assert result(store, group, waiting) is None


# ------------------------------------------------------------------------------- previous context


def test_previous_context_comes_oldest_first_without_what_was_withdrawn_before(store, group):
    """R22 and case z: what a removal that was asked for before takes away is left out already."""
    accept(store, [draft(str(n), group=group, client_id=str(n)) for n in range(1, 9)], now=1)
    request(store, Operation(group=group, kind="retract", episodes=tuple("2345678")))
    accept(store, [draft("last", group=group)], now=1)
    entries = {entry.sequence: entry for entry in store.pending(group, 99)}
    assert [said.sequence for said in previous(store, entries[10], 2)] == [1]
    assert [said.sequence for said in previous(store, entries[8], 2)] == [6, 7]
    assert [said.sequence for said in previous(store, entries[8], 9)] == [1, 2, 3, 4, 5, 6, 7]
    assert previous(store, entries[8], 0) == []


# ------------------------------------------------------------------------------------- failures


def test_a_failure_is_kept_and_only_retry_takes_it_up(store, group):
    """R24 and case j: the failed row stays as history; its successor adds up the attempts."""
    accept(store, [draft("a", group=group, client_id="c"), draft("b", group=group)], now=1)
    with store.writing():
        [episode, _] = store.pending(group, 9)
        error = InvalidAnswer("no JSON", raw="bad \ud800 output")
        store.apply([changes.failed(episode, error, 100)])
        [row] = failures(store, group)
        assert (row.episode.sequence, row.episode.state) == (1, "failed")
        assert row.failure == Failure(kind="InvalidAnswer", message="no JSON", raw="bad ? output")
        assert statuses(accept(store, [draft("a", group=group, client_id="c")], now=1)) == [("duplicate", 1)]
        assert (failures(store, "none"), retry(store, "none", [], now=1)) == ([], 0)
        assert retry(store, group, ["unknown"], now=1) == 0
        assert retry(store, group, ["c"], now=1) == 1
        assert (failures(store, group), pending(store, group)) == ([], [2, 3])
        assert store.counts(group)[group] == GroupCounts(accepted=2)
        assert [(e.sequence, e.state) for e in dumped_episodes(store, group, 100)] == [(1, "failed")]
        assert list(dumped_episodes(store, group)) == []
        assert head(store, group).last_recorded == 101
        [_, again] = store.pending(group, 9)
        store.apply([changes.failed(again, error, 200)])
        assert [row.failure.attempts for row in failures(store, group)] == [2]


def test_what_a_pending_removal_takes_away_is_not_retried(store, group):
    accept(store, [draft("a", group=group, client_id="c"), draft("b", group=group)], now=1)
    with store.writing():
        store.apply([failed(1, 9, group=group), failed(2, 10, group=group)])
    request(store, Operation(group=group, kind="remove", episodes=("c",)))
    assert retry(store, group, [], now=20) == 1
    assert pending(store, group) == [3, 4]


# -------------------------------------------------------------------------------------- look-ups


def test_an_id_means_live_episodes_entities_statements_and_facts(store, group):
    with store.writing():
        first = tell(store, "Al", "one", group=group, client_id="c")
        said = tell(store, "Bo", "two", group=group)
    [one, two] = episodes_at(store, group, [first, said, 99])
    assert find(store, group, "c") == find(store, group, one.id) == Bearers(episodes=(first,))
    assert find(store, group, two.id) == Bearers(episodes=(said,))
    assert find(store, group, "E1") == Bearers(entity=True)
    assert find(store, group, "S1") == Bearers(statement=True)
    assert find(store, group, "F1") == Bearers(fact=True)
    assert not find(store, group, "nobody")
    assert not find(store, group, "\ud800")
    assert not find(store, "none", "E1")


def test_an_operation_names_rows_of_any_state(store, group):
    said = draft("b", group=group, source="mail")
    accept(
        store, [draft("a", group=group, client_id="x"), said, draft("c", group=group, source="mail")], now=1
    )
    with store.writing():
        store.apply([told(1, "Al", "one", 10, group=group, sent=draft("a", group=group, client_id="x"))])
        store.apply([failed(2, 20, group=group)])
    assert sequences_of(store, group, ids=["x"]) == [1]
    assert sequences_of(store, group, ids=["x", said.id, "none", "\ud800"]) == [1, 2]
    assert sequences_of(store, group, source="mail") == [2, 3]
    assert sequences_of(store, group, source="\ud800") == []
    assert sequences_of(store, group, everything=True) == [1, 2, 3]
    assert sequences_of(store, group) == sequences_of(store, "none", everything=True) == []


def test_the_dump_shows_each_episode_from_its_end_to_its_withdrawal(store, group):
    sent = [draft(str(n), group=group, client_id=str(n)) for n in (1, 2, 3)]
    accept(store, sent, now=1)
    with store.writing():
        store.apply([told(1, "Al", "one", 10, group=group, sent=sent[0]), failed(2, 20, group=group)])
        asked = Operation(group=group, kind="retract", episodes=("1",))
        asked = replace(asked, sequence=request(store, asked))
        store.apply([told(3, "Bo", "two", 25, group=group, sent=sent[2])])
        retired = Patch(kind=EPISODES, columns=("retired_at",), rows=((1, 30),))
        store.apply([ended(asked, 30, patches=(retired,))])
    retry(store, group, [], now=40)
    shown = {
        at: [episode.sequence for episode in dumped_episodes(store, group, at)]
        for at in (9, 10, 20, 29, 30, 39, 40, None)
    }
    assert shown == {9: [], 10: [1], 20: [1, 2], 29: [1, 2, 3], 30: [2, 3], 39: [2, 3], 40: [3], None: [3]}
