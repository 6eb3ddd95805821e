"""Hard removal in the embedded store (R25, R27): nothing is left in any byte of the folder."""

from __future__ import annotations

import random
from dataclasses import replace

import apsw
import pytest

from kgray.domain.records import Declaration, ExtractedEntity, Extraction, Operation, Verdict
from kgray.ports import GroupHead
from kgray.schema.kinds import EPISODES, FACTS, KINDS, OPERATIONS, RECORDS
from kgray.schema.reads import RECORDS_AT
from kgray.schema.record_rows import EntryRecords, Judgements, judgements
from kgray.storage.sqlite import schema
from tests.graph.by_hand import (
    all_of,
    answered,
    append,
    ask,
    declined,
    draft,
    ended,
    extracted,
    failed,
    head,
    metadata,
    next_time,
    remove,
    rows_of,
    small,
    statement_commit,
    tell,
    with_judgements,
    worded,
)

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
        marked_word = f"zq{field}{n}{''.join(dice.choice('bcdfghjk') for _ in range(8))}"
        words.add(marked_word)
        return marked_word

    def padded(text):
        words_before, words_after = (dice.choices(FILLER, k=dice.randint(1, 40)) for _ in range(2))
        return " ".join([*words_before, text, *words_after])

    words: set[str] = set()
    sent = draft(
        padded(word("text")), group=group, source=source or word("source"), kind="message",
        speaker=word("speaker"), client_id=word("client"), metadata=metadata(note=word("metadata")),
        reference_time=n,
    )  # fmt: skip
    (sequence,) = append(store, sent)
    extraction = Extraction(entities=(ExtractedEntity(name=word("extracted")),))
    arrived = [
        extracted(sequence, extraction, group=group),
        answered(sequence, f"key {n}", {"why": word("answer")}, group=group),
    ]
    commit = statement_commit(
        sequence, word("name"), padded(word("value")), next_time(store, group), group=group, sent=sent
    )
    declared = Declaration(sequence=sequence, ordinal=0, name="SAYS", aspect="cardinality", value="many")
    verdict = Verdict(sequence=sequence, ordinal=1, a="A", b="B", exclusive=False, judge="j",
                      reason=word("verdict"))  # fmt: skip
    store.apply([*arrived, with_judgements(commit, declarations=[declared], verdicts=[verdict])])
    return sequence, words


def withdraw(store, sequences, **named):
    """Remove these episodes; the row of the removal saves their verdicts, without the reasons."""
    operation = Operation(group="g", kind="remove", **named)
    operation = replace(operation, sequence=ask(store, operation))
    judged = [judgements(row.judged) for row in store.rows(RECORDS_AT, "g", sequences)]
    verdicts = [(replace(verdict, reason=""), at) for each in judged for verdict, at in each.verdicts]
    at = next_time(store)
    saved = EntryRecords(sequence=operation.sequence, recorded_at=at, judgements=Judgements([], verdicts))
    puts = {RECORDS: [saved.row()]}
    store.apply(
        [ended(operation, at, drops=rows_of(store, sequences), puts=puts, erases=True, unsettles=True)]
    )


def test_files_contain_no_word_of_removed_episodes(store, tmp_path):
    dice = random.Random(7)
    with store.writing():
        kept_words: set[str] = set()
        removed_words: set[str] = set()
        chosen = []
        for n in range(60):
            sequence, words = marked_episode(store, dice, n)
            if n % 3:
                kept_words |= words
            else:
                removed_words |= words
                chosen.append((sequence, next(w for w in words if w.startswith("zqclient"))))
        dice.shuffle(chosen)
        for sequence, client_id in chosen:
            withdraw(store, [sequence], episodes=(client_id,))
        assert store.compact()
    stored_bytes = readable(tmp_path)
    assert {word for word in removed_words if word.encode() in stored_bytes} == set()
    assert {word for word in kept_words if word.encode() not in stored_bytes} == set()
    for word in removed_words:
        assert [worded(store, scope, word) for scope in ("fact", "entity", "episode")] == [[], [], []]
    check = apsw.Connection(str(tmp_path / schema.FILE))
    assert check.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    check.close()


def test_files_contain_no_word_of_a_removed_source(store, tmp_path):
    dice = random.Random(8)
    with store.writing():
        marked_episodes = [marked_episode(store, dice, n, source="zqforgetme") for n in range(20)]
        _, kept_words = marked_episode(store, dice, 99)
        withdraw(store, [sequence for sequence, _ in marked_episodes], source="zqforgetme")
        assert store.compact()
    stored_bytes = readable(tmp_path)
    removed_words = {"zqforgetme"}.union(*(words for _, words in marked_episodes))
    assert {word for word in removed_words if word.encode() in stored_bytes} == set()
    assert {word for word in kept_words if word.encode() not in stored_bytes} == set()


def test_a_removed_group_leaves_only_a_row_without_a_name(store, tmp_path):
    """R27: its last sequence and record time stay, so neither is ever used again."""
    dice = random.Random(9)
    with store.writing():
        removed_words = set().union(*(marked_episode(store, dice, n, group="zqgroup")[1] for n in range(20)))
        _, kept_words = marked_episode(store, dice, 99, group="other")
        append(store, draft("zqfailed", group="zqgroup"))
        at = next_time(store, "zqgroup")
        store.apply([failed(21, at, "zqmessage", group="zqgroup", raw="zqraw")])
        removal = remove(store, [], group="zqgroup", everything=True)
        assert store.compact()
        assert list(store.heads()) == list(store.counts()) == ["other"]
        assert head(store, "zqgroup") == GroupHead(
            named=False, last=removal, last_recorded=at + 10, removals=1
        )
        remaining_rows = {kind: rows for kind in KINDS if (rows := list(store.rows(kind.all, "zqgroup")))}
        assert remaining_rows == {OPERATIONS: [(22, "remove", "{}", 1, at + 10, '{"episodes":0}')]}
        stored_bytes = readable(tmp_path)
        removed_words |= {"zqgroup", "zqfailed", "zqmessage", "zqraw"}
        assert {word for word in removed_words if word.encode() in stored_bytes} == set()
        assert {word for word in kept_words if word.encode() not in stored_bytes} == set()
        assert append(store, draft("anew", group="zqgroup")) == [23]
        assert list(store.heads()) == ["other", "zqgroup"]
        # A late commit from before the removal belongs to an episode that has ended.
        store.apply([statement_commit(3, "zq", "late", 10**6, group="zqgroup")])
        assert all_of(store, RECORDS, "zqgroup") == []


def test_a_reader_delays_compaction_until_the_next_call(store, tmp_path):
    dice = random.Random(10)
    second_store = small(tmp_path)
    with store.writing():
        sequence, words = marked_episode(store, dice, 1)
        with second_store.reading():
            assert all_of(second_store, EPISODES) != []
            withdraw(store, [sequence], source="x")
            assert store.compact() is False
        second_store.close()
        assert store.compact() is True
    stored_bytes = readable(tmp_path)
    assert {word for word in words if word.encode() in stored_bytes} == set()


def test_compacting_a_store_without_erased_rows_returns_true(store):
    append(store, draft("a"))
    assert store.compact() is True
    assert store.pending_count() == 1


def test_replaced_words_are_erased(store, tmp_path):
    """A refused operation keeps none of its names; a new wording of a statement replaces the old wording."""
    operation = Operation(group="g", kind="split", entities=("E1",), surfaces=("Zebulon",))
    with store.writing():
        tell(store, "Al", "zqold")
        sequence = ask(store, operation)
        (row,) = all_of(store, RECORDS)
        renewed = statement_commit(1, "Al", "new", 1).puts
        puts = {kind: renewed[kind] for kind in (EPISODES, RECORDS, FACTS)}
        change = declined(sequence, next_time(store), "no such entity", kind="split")
        store.apply([replace(change, puts={**change.puts, **puts})])
        assert store.compact()
    stored_bytes = readable(tmp_path)
    assert [word for word in (b"Zebulon", b"zqold") if word in stored_bytes] == []
    assert row != all_of(store, RECORDS)[0]
