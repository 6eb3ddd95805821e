"""Full-text search on every store: the ranks, and the walls between groups."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kgray.kinds import FACTS_OF, NAMED, TAKEN_CLIENT_IDS, TAKEN_IDS
from kgray.records import GROUP_NAME
from kgray.rows import folded
from tests.graph.by_hand import append, draft, head, pointing, tell, told

SCOPES = ("fact", "entity", "episode")


def test_the_best_comes_first_and_equals_by_age(store, group):
    with store.writing():
        for value in ("tea", "tea and coffee", "coffee", "tea", "nothing"):
            tell(store, "Al", value, client_id=value + str(head(store, group).last), group=group)
    assert store.lexical(group, "fact", "coffee", 9) == [(3, 0), (2, 0)]
    assert store.lexical(group, "fact", "tea", 9) == [(1, 0), (4, 0), (2, 0)]
    assert store.lexical(group, "fact", "tea", 1) == [(1, 0)]
    assert store.lexical(group, "episode", "COFFEE?", 9) == [(3, 0), (2, 0)]
    assert store.lexical(group, "entity", "al", 3) == ["E1", "E2", "E3"]
    assert store.lexical(group, "fact", "absent", 9) == []
    assert store.lexical(group, "fact", "tea", 0) == []


def test_a_number_is_not_its_neighbour(store, group):
    with store.writing():
        tell(store, "Al", "GPT-4", group=group)
        tell(store, "Al", "GPT-5", group=group)
    assert store.lexical(group, "fact", "5", 9) == [(2, 0)]


def test_a_speaker_is_found_with_the_episode(store, group):
    with store.writing():
        tell(store, "Al", "one", kind="message", speaker="Marcus Webb", group=group)
    assert store.lexical(group, "episode", "webb", 9) == [(1, 0)]


HOSTILE = st.one_of(
    st.text(max_size=40),
    st.sampled_from(
        [
            '"',
            "'; DROP TABLE groups; --",
            "al OR 1",
            "NEAR(a b)",
            "1·al",
            "2·secret",
            "a\x00b",
            "\ud800",
            "*",
            "x" * 9999,
        ]
    ),
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
            for asked in (query, "secret", name, *texts):
                last = len(texts) if name in names else 0
                for scope in SCOPES:
                    for found in store.lexical(name, scope, asked, 50):
                        sequence = int(found[1:]) if isinstance(found, str) else found[0]
                        assert 1 <= sequence <= last
                assert store.lexical(nobody, "fact", asked, 9) == []
                if asked == "\ud800":
                    continue  # it cannot be stored, so no store is asked for it: `ledger.find`
                for read in (TAKEN_IDS, TAKEN_CLIENT_IDS, FACTS_OF):
                    # A hostile name may be an id by chance ("F1"): what it finds is then this group's row.
                    assert [row[0] for row in store.rows(read, name, [asked])] in ([], [asked][:last])
                assert len(list(store.rows(NAMED, name, [folded(asked)]))) <= last
            assert len(store.nearest(name, "fact", pointing(1), 99)) == last
        assert sorted(stores.mine(store.heads())) == sorted(names)

    tried()


def test_a_query_of_a_megabyte_is_answered(store, group):
    with store.writing():
        for value in ("printer ghost", "image"):
            tell(store, "Al", value, group=group)
    query = "printer " + " ".join(f"w{n} image {n}" for n in range(60_000))
    assert len(query) > 1_000_000
    assert sorted(store.lexical(group, "fact", query, 5)) == [(1, 0), (2, 0)]


def test_any_word_of_a_query_finds_and_a_relation_has_words(store, group):
    with store.writing():
        tell(store, "Al", "tea from Lyon and coffee from Kigali", group=group)
        tell(store, "Bo", "nothing", group=group)
        append(store, draft("c", group=group))
        store.apply([told(3, "Cy", "water", 10**6, relation="DRINKS_OFTEN", group=group)])
    assert store.lexical(group, "fact", "who sells coffee in Lyon, or tea?", 9) == [(1, 0)]
    assert store.lexical(group, "fact", "a drink", 9) == [(3, 0)]
