"""Hard removal (R25, R27): nothing readable remains, in any read and in any byte of the folder."""

from __future__ import annotations

import random
from dataclasses import replace

import apsw
import pytest

from kgray.graph import Derived
from kgray.ports import Commit, Failure, Judged, NamedVector
from kgray.records import (
    ExtractedEntity,
    Extraction,
    Operation,
    Ruling,
    Verdict,
)
from kgray.stores import schema
from tests.graph.by_hand import draft, gone, metadata, pointing, remove, small, tell, told

FILLER = "the quick brown fox jumps over a lazy dog while other animals watch and wonder why".split()


@pytest.fixture
def store(tmp_path):
    opened = small(tmp_path)
    yield opened
    opened.close()


def readable(folder):
    """Return every byte of every file in the folder."""
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))


def marked_episode(store, dice, n, *, group="g", source=None):
    """Commit an episode with a unique word in every field that takes one; return (sequence, words)."""

    def word(field):
        made = f"zq{field}{n}{''.join(dice.choice('bcdfghjk') for _ in range(8))}"
        words.add(made)
        return made

    def padded(text):
        before, after = (dice.choices(FILLER, k=dice.randint(1, 40)) for _ in range(2))
        return " ".join([*before, text, *after])

    words: set[str] = set()
    sent = draft(
        padded(word("text")), group=group, source=source or word("source"), kind="message",
        speaker=word("speaker"), client_id=word("client"), metadata=metadata(note=word("metadata")),
        reference_time=n,
    )  # fmt: skip
    (accepted,) = store.accept([sent], now=1)
    sequence = accepted.sequence
    store.keep_extraction(group, sequence, Extraction(entities=(ExtractedEntity(name=word("extracted")),)))
    store.remember(group, f"key {n}", sequence, Judged(answers=({"why": word("answer")},)))
    commit = told(sequence, word("name"), padded(word("value")), store.last_recorded(group) + 1, group=group,
                  episode=accepted.id)  # fmt: skip
    ruling = Ruling(sequence=sequence, ordinal=0, name="SAYS", aspect="cardinality", value="many", judge="j",
                    reason=word("ruling"))  # fmt: skip
    verdict = Verdict(sequence=sequence, ordinal=1, a="A", b="B", exclusive=False, judge="j",
                      reason=word("verdict"))  # fmt: skip
    store.apply(replace(commit, rulings=(ruling,), verdicts=(verdict,)))
    return sequence, words


def withdraw(store, sequences, **named):
    """Remove these episodes with their rulings; their verdicts stay, blanked."""
    asked = Operation(group="g", kind="remove", **named)
    sequence = store.request(asked, now=1)
    store.apply(
        Commit(
            group="g", sequence=sequence, recorded_at=store.last_recorded("g") + 1, operation=asked,
            erased=tuple(sequences), erased_rulings=tuple((n, 0) for n in sequences),
            blanked=tuple((n, 1) for n in sequences), derived=gone(*sequences),
            gone_births=tuple(f"{kind}{n}" for n in sequences for kind in "ES"),
        )
    )  # fmt: skip


def test_no_word_of_removed_episodes_is_left_in_any_file(store, tmp_path):
    dice = random.Random(7)
    with store.writing():
        kept: set[str] = set()
        lost: set[str] = set()
        chosen = []
        for n in range(150):
            sequence, words = marked_episode(store, dice, n)
            if n % 3:
                kept |= words
            else:
                lost |= words
                chosen.append((sequence, next(w for w in words if w.startswith("zqclient"))))
        dice.shuffle(chosen)
        for sequence, client_id in chosen:
            withdraw(store, [sequence], episodes=(client_id,))
        assert store.compact()
    left = readable(tmp_path)
    assert {word for word in lost if word.encode() in left} == set()
    assert {word for word in kept if word.encode() not in left} == set()
    for word in lost:
        assert store.find("g", word) == []
        assert [store.lexical("g", scope, word, 5) for scope in ("fact", "entity", "episode")] == [[], [], []]
    check = apsw.Connection(str(tmp_path / schema.FILE))
    assert check.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    for table in ("evidence_words", "name_words", "episode_words"):
        check.execute(f"INSERT INTO {table} ({table}) VALUES ('integrity-check')")  # noqa: S608
    check.close()


def test_no_word_of_a_removed_source_is_left(store, tmp_path):
    dice = random.Random(8)
    with store.writing():
        told_here = [marked_episode(store, dice, n, source="zqforgetme") for n in range(20)]
        _, kept = marked_episode(store, dice, 99)
        found = store.sequences("g", source="zqforgetme")
        assert found == [sequence for sequence, _ in told_here]
        withdraw(store, found, source="zqforgetme")
        assert store.compact()
    left = readable(tmp_path)
    lost = {"zqforgetme"}.union(*(words for _, words in told_here))
    assert {word for word in lost if word.encode() in left} == set()
    assert {word for word in kept if word.encode() not in left} == set()


def test_of_a_removed_group_only_a_nameless_row_is_left(store, tmp_path):
    """R27; semantics 1: its last sequence and record time stay, so neither is ever used again."""
    dice = random.Random(9)
    with store.writing():
        lost = set().union(*(marked_episode(store, dice, n, group="zqgroup")[1] for n in range(20)))
        _, kept = marked_episode(store, dice, 99, group="other")
        store.accept([draft("zqfailed", group="zqgroup")], now=1)
        store.fail("zqgroup", 21, Failure(kind="Refused", message="zqmessage", raw="zqraw"), now=1)
        before = store.last_recorded("zqgroup")
        removal = remove(store, [], group="zqgroup", everything=True)
        assert store.compact()
        assert removal == 22
        assert store.groups() == ["other"]
        assert list(store.counts()) == ["other"]
        assert store.records("zqgroup").births == {}
        assert store.result("zqgroup", removal) == {"episodes": 0}
        left = readable(tmp_path)
        lost |= {"zqgroup", "zqfailed", "zqmessage", "zqraw"}
        assert {word for word in lost if word.encode() in left} == set()
        assert {word for word in kept if word.encode() not in left} == set()
        (again,) = store.accept([draft("anew", group="zqgroup")], now=1)
        assert again.sequence == 23
        assert store.groups() == ["other", "zqgroup"]
        assert store.last_recorded("zqgroup") > before
        # A commit of the removed time that arrives late is one that has ended.
        store.apply(told(3, "zq", "late", 10**6, group="zqgroup"))
        assert store.records("zqgroup").heads == []


def test_what_was_accepted_after_the_request_survives_a_groups_removal(store):
    """Accepted means kept: the order says what the removal is about."""
    with store.writing():
        tell(store, "Al", "one")
        asked = Operation(group="g", kind="remove", everything=True)
        sequence = store.request(asked, now=1)
        store.accept([draft("after", client_id="c")], now=1)
        store.remember("g", "shared", 1, Judged(answers=({},)))
        store.remember("g", "shared", 3, Judged(answers=({},)))
        store.remember("g", "ahead", 3, Judged(answers=({"a": 1},)))
        store.apply(Commit(group="g", sequence=sequence, recorded_at=99, operation=asked, forgotten=True))
        assert [row.sequence for row in store.pending("g", 9)] == [3]
        assert store.groups() == ["g"]
        assert store.recall("g", "ahead", 3) == ({"a": 1},)
        assert store.recall("g", "shared", 3) is None
        store.apply(told(3, "Bo", "two", 100))
    assert store.lexical("g", "fact", "says", 9) == [(3, 0)]
    assert [found[0] for found in store.nearest("g", "fact", pointing(1), 9)] == ["S3"]


def test_a_surface_and_its_vector_stay_while_another_mention_bears_them(store):
    with store.writing():
        tell(store, "Al", "one")
        store.accept([draft("second")], now=1)
        second = told(2, "Al", "two", 20)
        mention = replace(second.mentions[0], entity="E1")
        vectors = (
            NamedVector(kind="name", owner="E1", text="Al", vector=pointing(1)),
            NamedVector(kind="statement", owner="S2", text="Al says two", vector=pointing(2)),
        )
        store.apply(replace(second, mentions=(mention,), vectors=vectors))
        assert store.nearest("g", "fact", pointing(1), 9) == [("S1", 1.0), ("S2", 0.0)]
        remove(store, [1])
        assert store.lexical("g", "entity", "al", 9) == ["E1"]
        assert [row[:2] for row in store.name_vectors("g")] == [("E1", "Al")]
        assert store.nearest("g", "fact", pointing(1), 9) == [("S2", 0.0)]
        remove(store, [2])
        assert store.lexical("g", "entity", "al", 9) == []
        assert list(store.name_vectors("g")) == []
        assert store.statement_vectors("g", ["S1", "S2"]) == {}


def test_a_statement_that_survives_takes_the_vector_that_is_sent(store):
    with store.writing():
        tell(store, "Al", "one")
        store.accept([draft("b")], now=1)
        second = told(2, "Bo", "two", 20)
        again = replace(second.evidence[0], statement="S1")
        store.apply(replace(second, evidence=(again,), vectors=second.vectors[:1]))
        asked = Operation(group="g", kind="remove", episodes=("x",))
        sequence = store.request(asked, now=1)
        renewed = (NamedVector(kind="statement", owner="S1", text="Bo says two", vector=pointing(5)),)
        done = Commit(group="g", sequence=sequence, recorded_at=30, operation=asked, erased=(1,),
                      vectors=renewed, derived=Derived(gone_facts=("F1",)))  # fmt: skip
        assert store.nearest("g", "fact", pointing(5), 9) == [("S1", 0.0)]
        store.apply(done)
    assert store.nearest("g", "fact", pointing(5), 9) == [("S1", 1.0)]


def test_a_reader_prevents_compaction_and_the_next_one_completes_it(store, tmp_path):
    dice = random.Random(10)
    other = small(tmp_path)
    with store.writing():
        sequence, words = marked_episode(store, dice, 1)
        with other.reading():
            assert other.records("g").heads != []
            withdraw(store, [sequence], source="x")
            assert store.compact() is False
        other.close()
        assert store.compact() is True
    left = readable(tmp_path)
    assert {word for word in words if word.encode() in left} == set()


def test_compacting_a_store_that_erased_nothing_is_cheap_and_true(store):
    store.accept([draft("a")], now=1)
    assert store.compact() is True
    assert store.pending_count() == 1
