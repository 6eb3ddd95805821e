"""Hard removal on every store (R25, R27): no read finds what was removed, and all else is there."""

from __future__ import annotations

from dataclasses import replace

from kgray.graph import Derived
from kgray.ports import Commit, GroupCounts, NamedVector
from kgray.records import Extraction, Operation, Ruling, Verdict
from tests.graph.by_hand import (
    answered,
    draft,
    everything,
    extracted,
    failed,
    gone,
    pointing,
    remove,
    tell,
    told,
)


def test_what_was_accepted_after_the_request_survives_a_groups_removal(store, group, mine):
    """Accepted means kept: the order says what the removal is about."""
    with store.writing():
        tell(store, "Al", "one", group=group)
        asked = Operation(group=group, kind="remove", everything=True)
        sequence = store.request(asked, now=1)
        store.accept([draft("after", client_id="c", group=group)], now=1)
        done = Commit(group=group, sequence=sequence, recorded_at=99, operation=asked, forgotten=True)
        store.write(
            [
                answered(1, "shared", {}, group=group),
                answered(3, "shared", {}, group=group),
                answered(3, "ahead", {"a": 1}, group=group),
                done,
            ]
        )
        assert [row.sequence for row in store.pending(group, 9)] == [3]
        assert mine(store.groups()) == [group]
        assert store.recall(group, "ahead") == ({"a": 1},)
        assert store.recall(group, "shared") is None
        store.write([told(3, "Bo", "two", 100, group=group)])
    assert store.lexical(group, "fact", "says", 9) == [(3, 0)]
    assert [found[0] for found in store.nearest(group, "fact", pointing(1), 9)] == ["S3"]


def test_a_surface_and_its_vector_stay_while_another_mention_bears_them(store, group):
    with store.writing():
        tell(store, "Al", "one", group=group)
        store.accept([draft("second", group=group)], now=1)
        second = told(2, "Al", "two", 20, group=group)
        mention = replace(second.mentions[0], entity="E1")
        vectors = (
            NamedVector(kind="name", owner="E1", text="Al", vector=pointing(1)),
            NamedVector(kind="statement", owner="S2", text="Al says two", vector=pointing(2)),
        )
        store.write([replace(second, mentions=(mention,), vectors=vectors)])
        assert store.nearest(group, "fact", pointing(1), 9) == [("S1", 1.0), ("S2", 0.0)]
        remove(store, [1], group=group)
        assert store.lexical(group, "entity", "al", 9) == ["E1"]
        assert [row[:2] for row in store.name_vectors(group)] == [("E1", "Al")]
        assert store.nearest(group, "fact", pointing(1), 9) == [("S2", 0.0)]
        remove(store, [2], group=group)
        assert store.lexical(group, "entity", "al", 9) == []
        assert list(store.name_vectors(group)) == []
        assert store.statement_vectors(group, ["S1", "S2"]) == {}


def test_a_statement_that_survives_takes_the_vector_that_is_sent(store, group):
    with store.writing():
        tell(store, "Al", "one", group=group)
        store.accept([draft("b", group=group)], now=1)
        second = told(2, "Bo", "two", 20, group=group)
        again = replace(second.evidence[0], statement="S1")
        store.write([replace(second, evidence=(again,), vectors=second.vectors[:1])])
        asked = Operation(group=group, kind="remove", episodes=("x",))
        sequence = store.request(asked, now=1)
        renewed = (NamedVector(kind="statement", owner="S1", text="Bo says two", vector=pointing(5)),)
        done = Commit(group=group, sequence=sequence, recorded_at=30, operation=asked, erased=(1,),
                      vectors=renewed, derived=Derived(gone_facts=("F1",)))  # fmt: skip
        assert store.nearest(group, "fact", pointing(5), 9) == [("S1", 0.0)]
        store.write([done])
    assert store.nearest(group, "fact", pointing(5), 9) == [("S1", 1.0)]


def test_what_was_removed_is_found_by_no_read(store, group):
    """R25: by none of its words, none of its ids; what shares a group with it is as it was."""
    ruling = Ruling(sequence=1, ordinal=0, name="SAYS", aspect="cardinality", value="many", judge="j")
    verdict = Verdict(sequence=2, ordinal=0, a="S1", b="S2", exclusive=True, judge="j", reason="zqwhy")
    with store.writing():
        goes = draft(
            "zqtext",
            source="zqsource",
            client_id="zqclient",
            kind="message",
            speaker="zqspeaker",
            group=group,
        )
        stays = draft("kept text", client_id="kept", group=group)
        gone_id, kept_id = (answer.id for answer in store.accept([goes, stays], now=1))
        store.write(
            [
                extracted(1, Extraction(calls=1), group=group),
                answered(1, "k", {"why": "zqanswer"}, group=group),
                answered(2, "k", group=group),
                replace(told(1, "zqname", "zqvalue", 10, episode=gone_id, group=group), rulings=(ruling,)),
                replace(told(2, "Bo", "two", 20, episode=kept_id, group=group), verdicts=(verdict,)),
            ]
        )
        asked = Operation(group=group, kind="remove", episodes=("zqclient",))
        sequence = store.request(asked, now=1)
        done = Commit(
            group=group, sequence=sequence, recorded_at=30, operation=replace(asked, sequence=sequence),
            result={"episodes": 1}, erased=(1,), erased_rulings=((1, 0),), blanked=((2, 0),),
            derived=gone(1), gone_births=("E1", "S1"),
        )  # fmt: skip
        store.write([done])
        store.write([done])
    for known_at in (None, 10, 20, 30):
        records = store.records(group, known_at)
        assert [head.sequence for head in records.heads] == ([] if known_at == 10 else [2])
        assert records.births == {"E2": (2, 0), "S2": (2, 0)}
        assert records.rulings == records.operations == []
        assert [v.reason for v in records.verdicts] == ([] if known_at == 10 else [""])
        assert [row.sequence for row in store.episode_rows(group, known_at)] == (
            [] if known_at == 10 else [2]
        )
    for word in ("zqtext", "zqspeaker", "zqname", "zqvalue", "zqclient", gone_id, "E1", "S1", "F1"):
        assert store.find(group, word) == []
        assert [store.lexical(group, scope, word, 5) for scope in ("fact", "entity", "episode")] == [
            [],
            [],
            [],
        ]
        assert store.entities_named(group, word) == []
        assert store.sequences(group, ids=[word], source="zqsource") == []
    assert [owner for owner, _ in store.nearest(group, "fact", pointing(1), 9)] == ["S2"]
    assert [owner for owner, _ in store.nearest(group, "entity", pointing(1), 9)] == ["E2"]
    assert [owner for owner, _ in store.nearest(group, "episode", pointing(1), 9)] == ["2"]
    assert store.surfaces(group, []) == ["Bo"]
    assert [store.extraction(group, 1), store.recall(group, "k")] == [None, None]
    assert store.counts(group)[group] == GroupCounts(committed=1, entities=1, facts=1)
    view = store.view(group)
    assert view.facts_of(["S1", "S2"], None) == list(
        told(2, "Bo", "two", 20, episode=kept_id, group=group).derived.facts
    )
    assert view.supporters([gone_id, kept_id]) == {kept_id: "kept"}
    assert store.standing(group, [gone_id, kept_id]) == {
        kept_id: draft("kept text", client_id="kept", group=group).content_sha256
    }


def test_a_removed_group_leaves_its_place_in_the_order_alone(store, group, other, mine):
    """R27; semantics 1: no sequence and no record time of it is used again; no other group changes."""
    with store.writing():
        for each in (group, other):
            tell(store, "Al", "one", group=each, client_id="c")
            store.accept([draft("failed", group=each)], now=1)
            store.write([failed(2, 50, group=each)])
        before = everything(store, other)
        removal = remove(store, [], group=group, everything=True)
        assert (removal, store.result(group, removal)) == (3, {"episodes": 0})
        assert mine(store.groups()) == list(mine(store.counts())) == [other]
        assert everything(store, other) == before
        records = store.records(group)
        assert (records.heads, records.mentions, records.evidence, records.births) == ([], [], [], {})
        assert store.failures(group) == []
        assert store.view(group).facts_at(["E1"], None, None) == []
        # A commit of the removed time that arrives late is one that has ended.
        store.write([told(1, "Al", "late", 10**6, group=group)])
        assert store.records(group).heads == []
        (again,) = store.accept([draft("anew", group=group, client_id="c")], now=1)
        assert (again.status, again.sequence) == ("accepted", 4)
        assert mine(store.groups()) == [group, other]
        assert store.last_recorded(group) == 60
