"""The columns that an index of a group is loaded from, on every store; when an index is stale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgray.domain.records import GROUP_NAME, Extraction, Operation
from kgray.graph.repair import repaired
from kgray.language.words import packed
from kgray.ports import Patch, Store
from kgray.schema import kinds, reads
from kgray.schema.kinds import EPISODES, RECORDS
from kgray.schema.record_rows import EntryRecords, UnpackedRecords, name_vectors, search_columns, vector_at
from kgray.schema.rows import sign_bits
from tests.graph.by_hand import (
    WEIGHTS,
    WIDTH,
    append,
    ask,
    draft,
    ended,
    extracted,
    failed,
    head,
    pointing,
    remove,
    rows_of,
    statement_commit,
    stored,
    tell,
    worded,
)
from tests.graph.engine import Engine
from tests.graph.histories import Played, Quoting, Refuses, history
from tests.graph.stores import Stores

pytestmark = pytest.mark.seldom_on_neo4j

# The scans that load an index -> the look-ups that read the rows of new episodes.
LOADED = {
    reads.MESSAGES: reads.MESSAGES_AT,
    reads.SEARCHED: reads.SEARCHED_AT,
    reads.VECTORS: reads.VECTORS_AT,
    reads.NAME_VECTORS: reads.NAME_VECTORS_AT,
}


def test_each_record_stores_the_words_of_its_texts_and_the_signs_of_its_vectors(store, group):
    sent = draft("Zoë says tea, tea", kind="message", speaker="Marcus Webb", group=group)
    append(store, sent)
    with store.writing():
        store.apply([statement_commit(1, "Zoë", "tea, tea", 10, group=group, sent=sent)])
        tell(store, "Bo", "GPT-4", group=group)
    for scan, look_up in LOADED.items():
        assert list(store.rows(scan, group)) == list(store.rows(look_up, group, [1, 2, 9])), scan.name
    messages = [(row.sequence, row.speaker, row.state) for row in store.rows(reads.MESSAGES, group)]
    assert messages == [(1, "Marcus Webb", kinds.COMMITTED), (2, None, kinds.COMMITTED)]
    texts = {1: ("Zoë", "Zoë says tea, tea"), 2: ("Bo", "Bo says GPT-4")}
    for n, search in store.rows(reads.SEARCHED, group):
        columns, (name, text) = search_columns(search), texts[n]
        signs = sign_bits(pointing(n)[None]).tobytes()
        assert columns.evidence == [[0, f"S{n}", packed(f"{text} SAYS")]]
        assert columns.names == [[n, 0, f"E{n}", name, packed(name), signs]]
        assert columns.statements == [[f"S{n}", WEIGHTS, signs]]
        assert columns.episode == [packed(text), None, signs]
    for n, row in enumerate(store.rows(reads.VECTORS, group), 1):
        assert [vector_at(row.vectors, at, WIDTH) for at in range(3)] == [stored(n), stored(n), b""]
    names = [
        vector[:4] for row in store.rows(reads.NAME_VECTORS, group) for vector in name_vectors(row.names)
    ]
    assert names == [("E1", "Zoë", 1, 0), ("E2", "Bo", 2, 0)]


def test_uncommitted_rows_are_not_indexed(store, group):
    """Its message can be read: a reader that knows the sequence reads it again after the commit."""
    append(store, draft("bees", group=group), draft("wasps", group=group))
    with store.writing():
        store.apply([failed(1, 9, group=group)])
    assert [row.state for row in store.rows(reads.MESSAGES, group)] == [kinds.FAILED, kinds.ACCEPTED]
    assert list(store.rows(reads.SEARCHED, group)) == []


def test_all_words_of_a_long_text_are_stored(store, group):
    long = " ".join(f"w{n}" for n in range(30_000))
    with store.writing():
        tell(store, "Al", long, group=group)
    (row,) = store.rows(reads.SEARCHED, group)
    ((_, _, words),) = search_columns(row.search).evidence
    assert words == packed(f"Al says {long} SAYS")


HOSTILE = st.one_of(
    st.text(max_size=40),
    st.sampled_from(["'; DROP TABLE groups; --", "al OR 1", "2·secret", "a\x00b", "\ud800", "*", "x" * 9999]),
)


def test_reads_of_any_text_return_only_rows_of_their_group(stores):
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
            for read in LOADED:
                assert len(list(store.rows(read, name))) == last
            assert worded(store, "fact", "secret", name) == [(n, 0) for n in range(1, last + 1)]
            for searched in (query, "secret", name, *texts):
                if searched == "\ud800":
                    continue  # it cannot be stored, so no store is searched for it: `ledger.find`
                for read in (reads.TAKEN_IDS, reads.TAKEN_CLIENT_IDS, reads.FACTS_OF, reads.MENTIONS_OF):
                    # A hostile name may be an id by chance ("F1"): it then finds this group's row.
                    assert len(list(store.rows(read, name, [searched]))) <= bool(last)
        assert sorted(stores.mine(store.heads())) == sorted(names)

    tried()


# ------------------------------------------------------------------------------------ `GroupHead.removals`


def asked_for(store, group, kind="merge"):
    """Append an operation; return it."""
    operation = Operation(group=group, kind=kind)
    return replace(operation, sequence=ask(store, operation))


def moved(store, group, **fields):
    """Apply an operation that changes rows."""
    store.apply([ended(asked_for(store, group), head(store, group).last_recorded + 10, **fields)])


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
    puts = {kinds.SHOWN_ENTITIES: [("E1", "E2")], kinds.SHOWN_EVIDENCE: [(1, 0, "S1", "S2")]}
    moved(store, group, puts=puts)


def drops(store, group):
    moved(store, group, drops=rows_of(store, [1], group=group), erases=True, unsettles=True)


def clears(store, group):
    remove(store, [], group=group, everything=True)


def replaces_words(store, group):
    (row,) = statement_commit(1, "Al", "other words", 10, group=group).puts[RECORDS]
    moved(store, group, puts={RECORDS: [row]}, unsettles=True)


def commits_another_vector(store, group):
    """Commit a vector of a statement that has one: all evidence of the statement was retracted."""
    (sequence,) = append(store, draft("more", group=group))
    commit = statement_commit(sequence, "Cy", "three", head(store, group).last_recorded + 10, group=group)
    store.apply([replace(commit, unsettles=True)])


def applies_again(store, group):
    """Send a change that was applied before."""
    store.apply([replace(statement_commit(1, "Al", "one", 10, group=group), unsettles=True)])


@pytest.mark.parametrize(
    ("happens", "counted"),
    [
        *((f, False) for f in (accepts, commits, extracts_and_fails)),
        *((f, False) for f in (retracts, shows_otherwise, applies_again)),
        *((f, True) for f in (drops, clears, replaces_words, commits_another_vector)),
    ],
)
def test_removals_count_the_changes_that_an_index_cannot_follow(store, group, other_group, happens, counted):
    """Each maker of a change declares it (`RowChanges.unsettles`): the store counts the applied changes."""
    with store.writing():
        for name, value in (("Al", "one"), ("Bo", "two")):
            tell(store, name, value, group=group)
            tell(store, name, value, group=other_group)
        removals_before = [head(store, each).removals for each in (group, other_group)]
        happens(store, group)
        removals_after = [head(store, each).removals for each in (group, other_group)]
    assert removals_after == [removals_before[0] + counted, removals_before[1]]
    assert {
        name: group_head.removals
        for name, group_head in store.heads().items()
        if name in (group, other_group)
    } == {
        name: count
        for name, count in zip((group, other_group), removals_after, strict=True)
        if head(store, name).named
    }


def test_a_recreated_group_keeps_its_count_of_removals(store, group):
    with store.writing():
        tell(store, "Al", "one", group=group)
        remove(store, [], group=group, everything=True)
        tell(store, "Al", "one", group=group)
        assert head(store, group).removals == 1


def test_a_repair_that_excludes_evidence_counts_as_a_removal(store, group):
    with store.writing():
        tell(store, "Al", "one", group=group)
        records = UnpackedRecords()
        records.take(store.rows(reads.PACKED, group), {})
        unmentioned = EntryRecords(
            sequence=1, recorded_at=10, evidence=records.evidence, births=records.births, text="Al says one"
        )
        moved(store, group, puts={RECORDS: [unmentioned.row()]})
    removals_before = head(store, group).removals
    assert worded(store, "fact", "one", group) == [(1, 0)]
    assert "set aside evidence 1.0" in repaired(store, group)[0]
    assert (worded(store, "fact", "one", group), head(store, group).removals) == ([], removals_before + 1)


def test_an_undone_copy_differs_from_its_cached_rows(store, group):
    removal_counts = []

    def verify():
        removal_counts.append(head(store, group).removals)
        raise ValueError("lost")

    episode = (EPISODES, tuple(statement_commit(1, "Al", "one", 10, group=group).puts[EPISODES][0]))
    with store.writing():
        for _ in range(2):
            with pytest.raises(ValueError, match="lost"):
                store.adopt(group, replace(head(store, group), named=True, last=1), [episode], verify)
    assert removal_counts[0] < removal_counts[1]


class Index:
    """A reader's cache of a group: read completely if `removals` differs, else only the new rows."""

    def __init__(self, store: Store, group: str) -> None:
        self._store, self._group = store, group
        self._removals = -1
        self.reloads = 0
        self.rows: dict[str, set[Any]] = {}

    def follow(self) -> None:
        """Bring it up to date."""
        removals = head(self._store, self._group).removals
        if removals != self._removals:
            self.rows, self.reloads = stored_rows(self._store, self._group), self.reloads + 1
        else:
            self._add()
        self._removals = removals

    def _add(self) -> None:
        last_known = max((row.sequence for row in self.rows[reads.MESSAGES.name]), default=0)
        heads = self._store.rows(reads.EPISODE_HEADS, self._group)
        new = [row.sequence for row in heads if row.sequence > last_known and row.state == kinds.COMMITTED]
        for scan, look_up in LOADED.items():
            self.rows[scan.name] |= set(self._store.rows(look_up, self._group, new))


def stored_rows(store: Store, group: str) -> Mapping[str, Any]:
    """Return the rows of a rebuilt index: committed episodes alone."""
    results = {read.name: set(store.rows(read, group)) for read in LOADED}
    messages = results[reads.MESSAGES.name]
    results[reads.MESSAGES.name] = {row for row in messages if row.state == kinds.COMMITTED}
    return results


def followed(played: Played, events: list[Any]) -> Index:
    """Play a history that an index follows, at two of three steps; return the index."""
    store, group = played.engine.store, played.engine.named()
    index = Index(store, group)
    for number, step in enumerate(events):
        played.carry_out(number, step)
        if number % 3 != 1:
            index.follow()
            assert index.rows == stored_rows(store, group)
    return index


def test_rows_change_only_by_appending_while_removals_are_unchanged(stores: Stores):
    """After additions, failures, retries, replacements, merges, splits, undos, retractions and removals."""
    store = stores.open()
    steps = reloads = 0
    # Removals are counted above the stores; on a server one history is enough to show the same sums.
    for seed in range(5 if not store.remote else 1):
        reader = Refuses()
        engine = Engine(store=store, prefix=stores.fresh(), judge=Quoting(), extractor=reader)
        events = history(seed, steps=12)
        steps, reloads = (
            steps + len(events),
            reloads + followed(Played(engine, reader), events).reloads,
        )
    assert reloads < steps / 2, "an index that is always reloaded follows nothing"
