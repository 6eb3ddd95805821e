"""The ledger above the stores: acceptance, corrections, failures, retry, look-ups (R19, R22, R24, R25).

Decided above every store, so played on the embedded one alone.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from kgray.domain.records import Declaration, Operation, Verdict
from kgray.errors import InputError
from kgray.graph.stored import StoredView, records_of
from kgray.ports import GroupCounts, Patch
from kgray.schema import rows
from kgray.schema.kinds import EPISODES, RECORDS
from kgray.schema.record_rows import Judgements, judged_column, name_vectors
from kgray.storage.ledger import (
    AcceptancePreview,
    Bearers,
    Failure,
    NoneAccepted,
    accept,
    dumped_episodes,
    episodes_at,
    failures,
    find,
    named_episodes,
    pending,
    pending_groups,
    previous,
    request,
    result,
    retry_failed,
    sequences_of,
)
from tests.graph.by_hand import (
    all_of,
    declined,
    draft,
    ended,
    failed,
    head,
    next_time,
    remove,
    small,
    statement_commit,
    tell,
)


@pytest.fixture
def store(tmp_path):
    opened = small(tmp_path)
    yield opened
    opened.close()


def statuses(answers):
    """Return (status, sequence) of each answer."""
    return [(answer.status, answer.sequence) for answer in answers]


def foreseen(store, drafts, *, replace=False, again=False):
    """Return the foreseen result of accepting these, one by one."""
    preview = AcceptancePreview(store, replace=replace, again=again)
    return [answer for draft in drafts for answer in preview.of([draft])]


def retracted(store, sequence, **named):
    """Ask for a retraction of one episode and carry it out."""
    operation = Operation(group="g", kind="retract", **named)
    operation = replace(operation, sequence=request(store, operation))
    at = next_time(store)
    retired = Patch(kind=EPISODES, columns=("retired_at",), rows=((sequence, at),))
    store.apply([ended(operation, at, patches=(retired,))])


# ------------------------------------------------------------------------------------ acceptance


def test_a_repeated_episode_takes_no_new_sequence(store):
    """R19: the same id with the same content is a no-op that returns the first result."""
    answers = accept(store, [draft("a"), draft("b"), draft("a"), draft("a", group="h")], now=7)
    assert statuses(answers) == [("accepted", 1), ("accepted", 2), ("duplicate", 1), ("accepted", 1)]
    second_receipts = accept(store, [draft("b"), draft("c")], now=8)
    assert statuses(second_receipts) == [("duplicate", 2), ("accepted", 3)]
    assert accept(store, [], now=9) == []
    assert {group: counted.accepted for group, counted in store.counts().items()} == {"g": 3, "h": 1}


def test_an_episode_without_a_time_gets_its_first_acceptance_time(store):
    """R19: stored with the row; the id does not depend on it."""
    untimed = draft("a", reference_time=None)
    (first,) = accept(store, [untimed], now=70)
    assert (first.status, first.timed) == ("accepted", False)
    (second_receipt,) = accept(store, [untimed], now=90)
    assert (second_receipt.status, second_receipt.sequence, second_receipt.timed) == ("duplicate", 1, True)
    assert [row.reference_time for row in pending(store, "g", 9)] == [70]


def test_different_content_under_a_used_id_is_a_conflict_with_both_hashes(store):
    old, new = draft("a", client_id="c"), draft("b", client_id="c")
    accept(store, [old], now=1)
    (answer,) = accept(store, [new], now=2)
    assert (answer.status, answer.sequence, answer.id) == ("conflict", 1, old.id)
    assert old.content_sha256 in answer.reason
    assert new.content_sha256 in answer.reason
    assert store.pending_count("g") == 1
    assert statuses(accept(store, [draft("x")], now=3)) == [("accepted", 2)]


def test_a_conflict_in_an_atomic_batch_leaves_the_log_unchanged(store):
    accept(store, [draft("a", client_id="1")], now=7)
    rows_ = [draft("b", client_id="2"), draft("else", client_id="1"), draft("c", group="h")]
    with pytest.raises(NoneAccepted) as stopped:
        accept(store, rows_, now=8, whole=True)
    assert [outcome.status for outcome in stopped.value.outcomes] == ["accepted", "conflict", "accepted"]
    assert {group: counted.accepted for group, counted in store.counts().items()} == {"g": 1}
    assert statuses(accept(store, [rows_[0], draft("a", client_id="1")], now=9, whole=True)) == [
        ("accepted", 2), ("duplicate", 1),
    ]  # fmt: skip


def test_replace_retracts_in_order_and_accepts_the_new_row(store):
    """R19, R25: the retraction takes a sequence, then the new row; here before the old row was ingested."""
    old, new = draft("a", client_id="c"), draft("b", client_id="c")
    assert statuses(foreseen(store, [old, new, new], replace=True)) == [
        ("accepted", 1), ("accepted", 3), ("duplicate", 3)
    ]  # fmt: skip
    answers = accept(store, [old, new, new], now=1, replace=True)
    assert statuses(answers) == [("accepted", 1), ("accepted", 3), ("duplicate", 3)]
    operation = Operation(group="g", sequence=2, kind="retract", episodes=(old.id,), replaces=True)
    assert [item if item == operation else item.sequence for item in pending(store, "g", 9)] == [
        1,
        operation,
        3,
    ]
    assert sequences_of(store, "g", ids=["c"]) == [1, 3]


def test_replace_of_a_failed_row_leaves_nothing_to_retry(store):
    accept(store, [draft("a", client_id="c")], now=1)
    with store.writing():
        store.apply([failed(1, 2)])
    (answer,) = accept(store, [draft("b", client_id="c")], now=3, replace=True)
    assert (answer.status, answer.sequence) == ("accepted", 3)
    assert retry_failed(store, "g", [], now=4) == 0


@pytest.mark.parametrize(
    "named", [{"episodes": ("c",)}, {"source": "s"}, {"everything": True}], ids=["id", "source", "all"]
)
def test_content_under_a_pending_removal_is_accepted_again(store, named):
    """A removal covers only rows that were accepted before its request."""
    sent = draft("a", client_id="c")
    accept(store, [sent], now=1)
    request(store, Operation(group="g", kind="remove", **named))
    assert statuses(foreseen(store, [sent, sent])) == [("accepted", 3), ("duplicate", 3)]
    assert statuses(accept(store, [sent, sent], now=3)) == [("accepted", 3), ("duplicate", 3)]


def test_the_same_content_is_accepted_again_after_a_removal_and_on_request_after_a_retraction(store):
    """R19: a retracted episode counts as a duplicate; other content with its id is news."""
    sent, changed = draft("Al says one", client_id="c"), draft("Al says two", client_id="c")
    with store.writing():
        first = tell(store, "Al", "one", client_id="c")
        remove(store, [first], episodes=("c",))
        assert statuses(accept(store, [sent], now=9)) == [("accepted", 3)]
        store.apply([statement_commit(3, "Al", "one", next_time(store), sent=sent)])
        retracted(store, 3, episodes=("c",))
    assert statuses(foreseen(store, [sent, changed, sent])) == [
        ("duplicate", 3), ("accepted", 5), ("conflict", 5)
    ]  # fmt: skip
    assert statuses(foreseen(store, [sent], again=True)) == [("accepted", 5)]
    (stays,) = accept(store, [sent], now=9)
    assert (stays.status, stays.sequence, stays.retracted) == ("duplicate", 3, True)
    assert statuses(accept(store, [sent], now=9, again=True)) == [("accepted", 5)]
    assert statuses(accept(store, [sent], now=9)) == [("duplicate", 5)]
    request(store, Operation(group="g", kind="retract", episodes=("c",)))
    assert accept(store, [sent], now=9)[0].retracted
    assert statuses(accept(store, [changed], now=9)) == [("accepted", 7)]


def test_content_under_a_pending_removal_or_replacement_is_accepted_again(store):
    """R19: a requested retraction keeps an id out; a requested removal or replacement does not."""
    sent = {name: draft(name, client_id=name) for name in "abc"}
    accept(store, list(sent.values()), now=1)
    for name, kind, replaces in (("a", "retract", False), ("b", "retract", True), ("c", "remove", False)):
        request(store, Operation(group="g", kind=kind, episodes=(name,), replaces=replaces))
    assert statuses(accept(store, list(sent.values()), now=1)) == [
        ("duplicate", 1), ("accepted", 7), ("accepted", 8)
    ]  # fmt: skip


def test_an_invalid_group_name_is_refused_and_nothing_is_accepted(store):
    with pytest.raises(InputError, match="is not a name"):
        accept(store, [draft("fine"), draft("x", group="a b")], now=1)
    with pytest.raises(InputError, match="is not a name"):
        request(store, Operation(group="", kind="merge"))
    assert store.heads() == {}


def test_bulk_episodes_are_distinguished_from_interactive_episodes(store):
    """A group is live while another episode or a correction is pending."""
    accept(store, [draft("a", group=name) for name in "ghi"], now=1, bulk=True)
    assert statuses(accept(store, [draft("a")], now=1)) == [("duplicate", 1)]
    assert pending_groups(store) == {"g": False, "h": False, "i": False}
    accept(store, [draft("b"), draft("b", group="new")], now=1)
    request(store, Operation(group="h", kind="retract", episodes=("x",)))
    assert pending_groups(store) == {"g": True, "h": True, "i": False, "new": True}
    assert [row.bulk for row in pending(store, "g", 9)] == [True, False]


# ----------------------------------------------------------------------------------- corrections


def test_an_operation_is_pending_until_it_is_done_or_refused(store):
    operation = Operation(group="g", kind="merge", entities=("x", "y"))
    split = replace(operation, kind="split", entities=("x",), surfaces=("S",))
    assert [request(store, each) for each in (operation, split)] == [1, 2]
    assert result(store, "g", 1) is None
    assert pending(store, "g", 1) == [replace(operation, sequence=1)]
    completed = replace(operation, sequence=1, moved=("k",), made="m")
    with store.writing():
        store.apply([ended(completed, 50, result={"sequence": 1}), declined(2, 60, "no such surface")])
        store.apply([declined(2, 99, "again")])
    assert [result(store, "g", n) for n in (1, 2, 3)] == [{"sequence": 1}, {"error": "no such surface"}, None]
    assert result(store, "none", 1) is None
    records = records_of(store, "g")
    assert (records.operations, records.recorded, records.last_recorded) == ([completed], {1: 50}, 60)
    assert records_of(store, "g", 49).operations == []


def test_retracted_declarations_are_visible_only_before_the_retraction(store):
    declared = Declaration(sequence=1, ordinal=0, name="R", aspect="cardinality", value="many")
    verdict = Verdict(sequence=1, ordinal=1, a="A", b="B", exclusive=False, judge="j", reason="w")
    commit = statement_commit(1, "Al", "one", 10)
    (row,) = commit.puts[RECORDS]
    judged, blank = (
        judged_column(Judgements([(declared, 10)], [(item, 10)]))
        for item in (verdict, replace(verdict, reason=""))
    )
    accept(store, [draft("Al says one", client_id="c")], now=1)
    with store.writing():
        store.apply([replace(commit, puts={**commit.puts, RECORDS: [row._replace(timed=10, judged=judged)]})])
        operation = Operation(group="g", kind="retract", episodes=("c",))
        operation = replace(operation, sequence=request(store, operation), retired=(("declaration", 1, 0),))
        store.apply(
            [ended(operation, 20, patches=(Patch(kind=RECORDS, columns=("judged",), rows=((1, blank),)),))]
        )
    assert records_of(store, "g").declarations == []
    assert records_of(store, "g", 19).declarations == [declared]
    assert records_of(store, "g").verdicts == [replace(verdict, reason="")]
    assert records_of(store, "g", 9).verdicts == []


# ---------------------------------------------------------------------------------- previous context


def test_previous_context_follows_the_rule(store):
    """R22, case z: same group and source, smaller sequence, no later time; oldest first; at most n."""
    times_and_sources = enumerate([(30, "s"), (10, "s"), (20, "other"), (20, "s"), (20, "s"), (40, "s")], 1)
    accept(store, [draft(str(n), reference_time=t, source=s) for n, (t, s) in times_and_sources], now=1)
    items = {item.sequence: item for item in pending(store, "g", 9)}
    every = list(items.values())

    def context_of(limit):
        return {
            n: [each.sequence for each in context] for n, context in previous(store, every, limit).items()
        }

    assert context_of(9) == {1: [], 2: [], 3: [], 4: [2], 5: [2, 4], 6: [2, 4, 5, 1]}
    assert context_of(2)[6] == [5, 1]
    assert not any(context_of(0).values())


def test_previous_context_omits_withdrawn_episodes(store):
    """The context goes back to earlier messages: a withdrawal precedes all pending rows."""
    accept(store, [draft(str(n), client_id=str(n)) for n in range(1, 9)], now=1)
    request(store, Operation(group="g", kind="retract", episodes=tuple("2345678")))
    accept(store, [draft("last")], now=1)
    items = {item.sequence: item for item in pending(store, "g", 99)}
    contexts = previous(store, [items[8], items[10]], 2)
    assert {n: [item.sequence for item in context] for n, context in contexts.items()} == {8: [1], 10: [1]}


# ----------------------------------------------------------------------------- failures and retry


def test_a_failed_episode_is_stored_and_only_retry_reads_it_again(store):
    """R24 and case j: the failed row stays as history, the new row has a new sequence."""
    accept(store, [draft("a", client_id="c"), draft("b")], now=1)
    with store.writing():
        store.apply([failed(1, 100, "no JSON", raw="bad output")])
    (row,) = failures(store)
    assert (row.episode.sequence, row.episode.state) == (1, "failed")
    assert row.failure == Failure(kind="Refused", message="no JSON", raw="bad output", attempts=1)
    assert statuses(accept(store, [draft("a", client_id="c")], now=1)) == [("duplicate", 1)]
    assert failures(store, "none") == []
    assert [retry_failed(store, "g", ["unknown"], now=1), retry_failed(store, None, ["c"], now=1)] == [0, 1]
    assert failures(store) == []
    assert [item.sequence for item in pending(store, "g", 9)] == [2, 3]
    assert store.counts()["g"] == GroupCounts(accepted=2)
    assert [(row.sequence, row.state) for row in dumped_episodes(store, "g", 100)] == [(1, "failed")]
    assert list(dumped_episodes(store, "g")) == []
    assert head(store).last_recorded == 101


def test_a_retry_skips_episodes_that_a_pending_correction_removes(store):
    accept(store, [draft("a", client_id="a"), draft("b", client_id="b")], now=1)
    with store.writing():
        store.apply([failed(1, 10), failed(2, 20)])
    request(store, Operation(group="g", kind="remove", episodes=("a",)))
    assert retry_failed(store, "g", [], now=30) == 1
    assert [row.episode.client_id for row in failures(store)] == ["a"]


def test_failures_of_all_groups_come_by_group_and_are_retried_together(store):
    accept(store, [draft("a"), draft("b"), draft("a", group="h")], now=1)
    with store.writing():
        store.apply([failed(1, 9), failed(2, 12), failed(1, 9, group="h")])
    assert [(row.episode.group, row.episode.sequence) for row in failures(store)] == [
        ("g", 1), ("g", 2), ("h", 1),
    ]  # fmt: skip
    assert retry_failed(store, None, [], now=20) == 3
    assert (failures(store), store.pending_count()) == ([], 3)
    assert {group: group_head.last for group, group_head in store.heads().items()} == {"g": 4, "h": 2}


def test_an_episode_that_is_retried_stays_in_its_lane(store):
    accept(store, [draft("a")], now=1, bulk=True)
    accept(store, [draft("b", group="h")], now=1)
    with store.writing():
        store.apply([failed(1, 9), failed(1, 9, group="h")])
    assert [row.episode.bulk for row in failures(store)] == [True, False]
    assert pending_groups(store) == {}
    assert retry_failed(store, None, [], now=20) == 2
    assert pending_groups(store) == {"g": False, "h": True}


def test_attempts_are_summed_over_retries(store):
    """R24: the row counts the sequences of its earlier attempts."""
    accept(store, [draft("a")], now=1)
    for sequence in (1, 2, 3):
        (episode,) = pending(store, "g", 9)
        at = next_time(store)
        ends = {EPISODES: [rows.failed_row(episode, at, "InvalidAnswer", "no \ud800", "")]}
        with store.writing():
            store.apply([replace(failed(sequence, at), puts=ends, patches=())])
        (row,) = failures(store)
        assert (row.failure.attempts, row.failure.message) == (sequence, "no ?")
        assert retry_failed(store, "g", [], now=9) == 1
    assert [row.attempts for row in all_of(store, EPISODES)] == [1, 2, 3, 3]


# ------------------------------------------------------------------------------------- look-ups


def test_a_dump_lists_an_episode_from_its_commit_until_its_withdrawal(store):
    accept(store, [draft(str(n), client_id=str(n)) for n in (1, 2, 3)], now=1)
    with store.writing():
        store.apply(
            [statement_commit(1, "Al", "one", 10), failed(2, 20), statement_commit(3, "Bo", "two", 25)]
        )
        operation = Operation(group="g", kind="retract", episodes=("1",))
        operation = replace(operation, sequence=request(store, operation))
        retired = Patch(kind=EPISODES, columns=("retired_at",), rows=((1, 30),))
        store.apply([ended(operation, 30, patches=(retired,))])
    assert retry_failed(store, "g", [], now=40) == 1
    sequences_at = {
        at: [row.sequence for row in dumped_episodes(store, "g", at)]
        for at in (9, 10, 20, 29, 30, 39, 40, None)
    }
    assert sequences_at == {
        9: [],
        10: [1],
        20: [1, 2],
        29: [1, 2, 3],
        30: [2, 3],
        39: [2, 3],
        40: [3],
        None: [3],
    }
    assert [head.sequence for head in records_of(store, "g", 29).heads] == [1, 3]
    assert [head.sequence for head in records_of(store, "g").heads] == [3]
    assert store.counts("g")["g"] == GroupCounts(accepted=1, committed=1, entities=2, facts=2)


def test_episodes_of_an_operation_are_found_by_id_source_or_all(store):
    accept(store, [draft("a", client_id="x"), draft("b", source="mail"), draft("c", source="mail")], now=1)
    with store.writing():
        store.apply([statement_commit(1, "Al", "one", 10, sent=draft("a", client_id="x")), failed(2, 20)])

    def sequences(group="g", **chosen):
        return [
            row.sequence for row in named_episodes(store, Operation(group=group, kind="remove", **chosen))
        ]

    ids = ("x", draft("b", source="mail").id, "none", "\ud800")
    assert sequences(episodes=("x",)) == sequences_of(store, "g", ["x"]) == [1]
    assert sequences(episodes=ids) == sequences_of(store, "g", ids) == [1, 2]
    assert sequences(source="mail") == [2, 3]
    assert sequences(source="\ud800") == sequences() == []
    assert sequences(everything=True) == [1, 2, 3]
    assert sequences("none", everything=True) == []


def test_find_matches_ids_of_entities_statements_facts_and_episodes(store):
    sent = draft("Al says one", client_id="c")
    accept(store, [sent, draft("other", group="h")], now=1)
    with store.writing():
        store.apply([statement_commit(1, "Al", "one", 10, sent=sent)])
        assert find(store, "g", "E1") == Bearers(entity=True)
        assert find(store, "g", "S1") == Bearers(statement=True)
        assert find(store, "g", "F1") == Bearers(fact=True)
        assert find(store, "g", sent.id) == find(store, "g", "c") == Bearers(episodes=(1,))
        assert not any(find(store, "h", name) for name in ("E1", "S1", "F1", "c", sent.id, "\ud800"))
        retracted(store, 1, episodes=("c",))
    assert find(store, "g", "c") == Bearers()


def test_episodes_at_returns_each_episode_once_in_the_requested_order(store):
    sent = [draft(text) for text in "abc"]
    accept(store, sent, now=1)
    assert [row.text for row in episodes_at(store, "g", [3, 1, 9, 3])] == ["c", "a"]
    assert episodes_at(store, "none", [1]) == []


def test_no_read_finds_a_removed_episode(store):
    """R25: the ledger, the records and the view show nothing of it; all other rows are unchanged."""
    with store.writing():
        tell(store, "Al", "one", client_id="a")
        kept_sequence = tell(store, "Bo", "two", client_id="b")
        ids = {row.client_id: row.id for row in all_of(store, EPISODES)}
        remove(store, [1], episodes=("a",))
    for name in ("a", ids["a"], "E1", "S1", "F1"):
        assert find(store, "g", name) == Bearers()
    sent = [draft(text, client_id=name) for text, name in (("Al says one", "a"), ("Bo says two", "b"))]
    assert statuses(foreseen(store, sent)) == [("accepted", 4), ("duplicate", 2)]
    for known_at in (None, 10, 20, 30):
        records = records_of(store, "g", known_at)
        listed = [] if known_at == 10 else [kept_sequence]
        assert [record.sequence for record in records.heads] == listed
        assert [row.sequence for row in dumped_episodes(store, "g", known_at)] == listed
        assert records.births == {"E2": (2, 0), "S2": (2, 0)}
        assert records.operations == []
    view = StoredView(store, "g")
    assert [fact.id for fact in view.facts_of(["S1", "S2"], None)] == ["F2"]
    assert [entity.id for entity in view.entities(["E1", "E2"])] == ["E2"]
    assert view.supporters(list(ids.values())) == {ids["b"]: "b"}
    assert [row.sequence for row in view.episodes([1, 2])] == [2]
    names = [vector for row in all_of(store, RECORDS) for vector in name_vectors(row.names)]
    assert [(name.entity, name.surface, name.sequence, name.ordinal) for name in names] == [
        ("E2", "Bo", 2, 0)
    ]
