"""Words and sign bits, which every store computes and hands out; when a reader's index of them is stale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgray import kinds
from kgray.derivation.repair import repaired
from kgray.errors import StoreError
from kgray.kinds import ALL, EPISODES, EVIDENCE, FACTS_OF, NAMED, NAMES, STATEMENT_VECTORS
from kgray.ports import Patch, Store
from kgray.records import GROUP_NAME, Extraction, Operation
from kgray.rows import folded, sign_bits
from kgray.words import packed
from tests.graph.by_hand import (
    INDEXED,
    WEIGHTS,
    WIDTH,
    all_of,
    append,
    ask,
    changes,
    draft,
    ended,
    extracted,
    failed,
    head,
    pointing,
    remove,
    rows_of,
    stored,
    tell,
    told,
    worded,
)
from tests.graph.engine import Engine
from tests.graph.histories import Played, Quoting, Refuses, history
from tests.graph.stores import Stores


def test_each_row_has_the_words_of_its_text_and_the_signs_of_its_vector(store, group):
    with store.writing():
        tell(store, "Zoë", "tea, tea", kind="message", speaker="Marcus Webb", group=group)
        tell(store, "Bo", "GPT-4", group=group)
    first, second = all_of(store, EPISODES, group)

    def read(what, *values):
        return list(store.rows(what, group, values))

    episodes = [
        (1, first[1], "s", "Marcus Webb", 5, kinds.COMMITTED, packed("Marcus Webb Zoë says tea, tea")),
        (2, second[1], "s", None, 5, kinds.COMMITTED, packed("Bo says GPT-4")),
    ]
    evidence = [(1, 0, "S1", packed("Zoë says tea, tea SAYS")), (2, 0, "S2", packed("Bo says GPT-4 SAYS"))]
    names = [(1, 0, "E1", "Zoë", packed("Zoë")), (2, 0, "E2", "Bo", packed("Bo"))]
    signs = [sign_bits(pointing(n)[None]).tobytes() for n in (1, 2)]
    assert read(kinds.EPISODE_WORDS) == read(kinds.EPISODE_WORDS_AT, 1, 2, 9) == episodes
    assert read(kinds.EVIDENCE_WORDS) == read(kinds.EVIDENCE_WORDS_IN, 1, 2, 9) == evidence
    assert read(kinds.NAME_WORDS) == read(kinds.NAME_WORDS_OF, "E1", "E2", "E9") == names
    of_episodes = [*zip((1, 2), (None, None), signs, strict=True)]
    assert read(kinds.EPISODE_SIGNS) == read(kinds.EPISODE_SIGNS_AT, 1, 2, 9) == of_episodes
    of_statements = [*zip(("S1", "S2"), (WEIGHTS, WEIGHTS), signs, strict=True)]
    assert read(kinds.STATEMENT_SIGNS) == read(kinds.STATEMENT_SIGNS_OF, "S1", "S2") == of_statements
    owners = [("E1", "Zoë"), ("E2", "Bo")]
    of_names = [(*owner, found) for owner, found in zip(owners, signs, strict=True)]
    assert read(kinds.NAME_SIGNS) == read(kinds.NAME_SIGNS_OF, "E1", "E2", "E9") == of_names
    assert read(kinds.EPISODE_VECTORS_AT, 2, 1) == [(2, None, stored(2)), (1, None, stored(1))]
    assert read(kinds.NAME_VECTORS_OF, "E2") == [("E2", "Bo", stored(2))]
    assert read(kinds.STATEMENT_VECTORS_OF, "S1") == [("S1", WEIGHTS, stored(1))]


def test_what_is_not_committed_has_no_words(store, group):
    """Its row is there: a reader that knows its sequence reads it again once it is committed."""
    sent = draft("bees", group=group)
    append(store, sent, draft("wasps", group=group))
    with store.writing():
        store.apply([failed(1, 9, group=group)])
    found = [row[5:] for row in store.rows(kinds.EPISODE_WORDS, group)]
    assert found == [(kinds.FAILED, b""), (kinds.ACCEPTED, b"")]


def test_a_long_text_has_all_its_words(store, group):
    long = " ".join(f"w{n}" for n in range(30_000))
    with store.writing():
        tell(store, "Al", long, group=group)
    (row,) = store.rows(kinds.EVIDENCE_WORDS, group)
    assert row[-1] == packed(f"Al says {long} SAYS")


def test_a_vector_of_another_width_is_refused_and_nothing_is_changed(store, group):
    (sequence,) = append(store, draft("a", group=group))
    wide = {STATEMENT_VECTORS: [("S1", None, stored(1, width=WIDTH + 1))]}
    with store.writing(), pytest.raises(StoreError, match=f"{WIDTH + 1} numbers in a store of {WIDTH}"):
        store.apply([changes(sequence, 9, wide, group=group)])
    assert (all_of(store, STATEMENT_VECTORS, group), head(store, group).last_recorded) == ([], 0)


HOSTILE = st.one_of(
    st.text(max_size=40),
    st.sampled_from(["'; DROP TABLE groups; --", "al OR 1", "2·secret", "a\x00b", "\ud800", "*", "x" * 9999]),
)


def test_nothing_crosses_a_group_and_no_text_is_an_error(stores):
    """Promise 5; case w: every read with any group, query or id gives this group's rows only."""
    store = stores.open()

    @settings(max_examples=stores.examples, deadline=None)
    @given(
        texts=st.lists(
            HOSTILE.filter(lambda t: "\x00" not in t and "\ud800" not in t),
            min_size=1,
            max_size=3,
            unique=True,
        ),
        names=st.lists(st.from_regex(GROUP_NAME, fullmatch=True), min_size=2, max_size=3, unique=True),
        query=HOSTILE,
    )
    def tried(texts, names, query):
        prefix = stores.fresh()
        nobody, names = f"{prefix}nobody", sorted({f"{prefix}{name[:100]}" for name in names})
        with store.writing():
            for name in names:
                for text in texts:
                    tell(store, text or "Al", f"secret {text}", group=name)
        for name in (*names, nobody):
            last = len(texts) if name in names else 0
            for read in INDEXED:
                if read.by is None:
                    assert len(list(store.rows(read, name))) == last
            assert worded(store, "fact", "secret", name) == [(n, 0) for n in range(1, last + 1)]
            for asked in (query, "secret", name, *texts):
                if asked == "\ud800":
                    continue  # it cannot be stored, so no store is asked for it: `ledger.find`
                for read in (kinds.TAKEN_IDS, kinds.TAKEN_CLIENT_IDS, FACTS_OF, kinds.NAME_WORDS_OF):
                    # A hostile name may be an id by chance ("F1"): what it finds is then this group's row.
                    assert len(list(store.rows(read, name, [asked]))) <= bool(last)
                assert len(list(store.rows(NAMED, name, [folded(asked)]))) <= last
        assert sorted(stores.mine(store.heads())) == sorted(names)

    tried()


# ------------------------------------------------------------------------------------ `GroupHead.removals`


def asked_for(store, group, kind="merge"):
    """Append an operation; return it."""
    operation = Operation(group=group, kind=kind)
    return replace(operation, sequence=ask(store, operation))


def moved(store, group, **what):
    """Apply an operation that changes rows."""
    store.apply([ended(asked_for(store, group), head(store, group).last_recorded + 10, **what)])


def accepts(store, group):
    append(store, draft("more", group=group))


def commits(store, group):
    tell(store, "Cy", "three", group=group)


def extracts_and_fails(store, group):
    (sequence,) = append(store, draft("more", group=group))
    store.apply([extracted(sequence, Extraction(), group=group)])
    store.apply([failed(sequence, head(store, group).last_recorded + 10, group=group)])


def retracts(store, group):
    moved(store, group, patches=(Patch(kind=EPISODES, columns=("retired_at",), rows=((1, 99),)),))


def shows_otherwise(store, group):
    shown = Patch(kind=EVIDENCE, columns=("shown",), rows=((1, 0, "S2"),))
    puts = {kinds.SHOWN_ENTITIES: [("E1", "E2")], kinds.BIRTHS: [("E9", 1, 5)]}
    moved(store, group, patches=(shown,), puts=puts)


def applies_again(store, group):
    store.apply([told(1, "Al", "one", 10, group=group)])


def drops(store, group):
    moved(store, group, drops=rows_of(store, [1], group=group), erases=True)


def clears(store, group):
    remove(store, [], group=group, everything=True)


def replaces_words(store, group):
    (first, _) = all_of(store, EVIDENCE, group)
    moved(store, group, puts={EVIDENCE: [(*first[:6], "other words", *first[7:])]})


def replaces_an_ended_episode(store, group):
    row = all_of(store, EPISODES, group)[0]
    undone = {EPISODES: [(*row[:10], kinds.FAILED, *row[11:])]}
    store.apply([changes(1, None, undone, group=group, states=frozenset({kinds.COMMITTED}))])


def embeds_later(store, group):
    moved(store, group, puts={STATEMENT_VECTORS: [("S1", WEIGHTS, stored(5))]})


def commits_another_vector(store, group):
    """Of a statement whose evidence was retracted: it is new to the graph, and its vector is there."""
    (sequence,) = append(store, draft("more", group=group))
    commit = told(sequence, "Cy", "three", head(store, group).last_recorded + 10, group=group)
    store.apply([replace(commit, puts={**commit.puts, STATEMENT_VECTORS: [("S1", WEIGHTS, stored(5))]})])


def commits_a_name_of_before(store, group):
    (sequence,) = append(store, draft("more", group=group))
    commit = told(sequence, "Cy", "three", head(store, group).last_recorded + 10, group=group)
    store.apply([replace(commit, puts={**commit.puts, NAMES: [("E1", "Albert", "albert", 1, 7)]})])


@pytest.mark.parametrize(
    ("happens", "counted"),
    [
        *((f, False) for f in (accepts, commits, extracts_and_fails)),
        *((f, False) for f in (retracts, shows_otherwise, applies_again)),
        *((f, True) for f in (drops, clears, replaces_words, replaces_an_ended_episode, embeds_later)),
        *((f, True) for f in (commits_another_vector, commits_a_name_of_before)),
    ],
)
def test_removals_count_what_an_index_cannot_follow(store, group, other, happens, counted):
    with store.writing():
        for name, value in (("Al", "one"), ("Bo", "two")):
            tell(store, name, value, group=group)
            tell(store, name, value, group=other)
        before = [head(store, each).removals for each in (group, other)]
        happens(store, group)
        after = [head(store, each).removals for each in (group, other)]
    assert (after[0] > before[0], after[1]) == (counted, before[1])
    assert {name: found.removals for name, found in store.heads().items() if name in (group, other)} == {
        name: count for name, count in zip((group, other), after, strict=True) if head(store, name).named
    }


def test_a_group_that_is_removed_and_comes_back_counts_on(store, group):
    with store.writing():
        tell(store, "Al", "one", group=group)
        remove(store, [], group=group, everything=True)
        tell(store, "Al", "one", group=group)
        assert head(store, group).removals == 1


def test_a_repair_that_sets_evidence_aside_is_counted(store, group):
    with store.writing():
        tell(store, "Al", "one", group=group)
        moved(store, group, drops={kinds.MENTIONS: [(1, 0)]})
    before = head(store, group).removals
    assert "set aside evidence 1.0" in repaired(store, group)[0]
    assert (worded(store, "fact", "one", group), head(store, group).removals) == ([], before + 1)


def test_a_copy_that_is_undone_is_no_longer_what_was_read_of_it(store, group):
    seen = []

    def verify():
        seen.append(head(store, group).removals)
        raise ValueError("lost")

    episode = (EPISODES, tuple(told(1, "Al", "one", 10, group=group).puts[EPISODES][0]))
    with store.writing():
        for _ in range(2):
            with pytest.raises(ValueError, match="lost"):
                store.adopt(group, replace(head(store, group), named=True, last=1), [episode], verify)
    assert seen[0] < seen[1]


class Index:
    """What a reader has in memory of a group: read whole where `removals` differs, else what is new."""

    def __init__(self, store: Store, group: str) -> None:
        self._store, self._group = store, group
        self._removals = -1
        self.anew = 0
        self.rows: dict[str, set[Any]] = {}

    def follow(self) -> None:
        """Bring it up to date."""
        removals = head(self._store, self._group).removals
        if removals != self._removals:
            self.rows, self.anew = whole(self._store, self._group), self.anew + 1
        else:
            self._add()
        self._removals = removals

    def _add(self) -> None:
        known = max((row[0] for row in self.rows[kinds.EPISODE_WORDS.name]), default=0)
        heads = self._read(kinds.EPISODE_HEADS)
        new = [row[0] for row in heads if row[0] > known and row[5] == kinds.COMMITTED]
        entities = {row[3] for row in self._read(kinds.MENTIONS_IN, new)}
        said = {row[2] for row in self._read(kinds.EVIDENCE_WORDS_IN, new)}
        for scan, read, values in (
            (kinds.EPISODE_WORDS, kinds.EPISODE_WORDS_AT, new),
            (kinds.EVIDENCE_WORDS, kinds.EVIDENCE_WORDS_IN, new),
            (kinds.NAME_WORDS, kinds.NAME_WORDS_OF, sorted(entities)),
            (kinds.EPISODE_SIGNS, kinds.EPISODE_SIGNS_AT, new),
            (kinds.STATEMENT_SIGNS, kinds.STATEMENT_SIGNS_OF, sorted(said)),
            (kinds.NAME_SIGNS, kinds.NAME_SIGNS_OF, sorted(entities)),
            (ALL["statement_vectors"], kinds.STATEMENT_VECTORS_OF, sorted(said)),
        ):
            self.rows[scan.name] |= set(self._read(read, values))

    def _read(self, read: kinds.Read, values: Any = ()) -> list[kinds.Row]:
        return list(self._store.rows(read, self._group, values))


def whole(store: Store, group: str) -> Mapping[str, Any]:
    """Return the rows of an index that is built anew: committed episodes alone."""
    reads = [read for read in INDEXED if read.by is None] + [ALL["statement_vectors"]]
    found = {read.name: set(store.rows(read, group)) for read in reads}
    episodes = found[kinds.EPISODE_WORDS.name]
    found[kinds.EPISODE_WORDS.name] = {row for row in episodes if row[5] == kinds.COMMITTED}
    return found


def followed(played: Played, told_here: list[Any]) -> Index:
    """Play a history that an index follows, at two of three steps; return the index."""
    store, group = played.engine.store, played.engine.named()
    index = Index(store, group)
    for number, step in enumerate(told_here):
        played.one(number, step)
        if number % 3 != 1:
            index.follow()
            assert index.rows == whole(store, group)
    return index


def test_while_removals_are_the_same_only_greater_sequences_were_added(stores: Stores):
    """Whatever is added, fails, is retried, replaced, merged, split, undone, retracted or removed."""
    store = stores.open()
    steps = anew = 0
    # What counts is decided above the stores; a server shows one history that it adds up alike.
    for seed in range(12 if not store.remote else 1):
        reader = Refuses()
        engine = Engine(store=store, prefix=stores.fresh(), judge=Quoting(), extractor=reader)
        told_here = history(seed, steps=12)
        steps, anew = steps + len(told_here), anew + followed(Played(engine, reader), told_here).anew
    assert anew < steps / 2, "an index that is always made anew follows nothing"
