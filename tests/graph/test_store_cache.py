"""The response cache's file: its bound, what goes first, what stays of what went."""

from __future__ import annotations

import random

import pytest

from kgray.ledger import pending
from kgray.stores.sqlite.cache import FILE, SqliteResponses
from tests.graph.by_hand import append, draft, small

MB = 1 << 20


@pytest.fixture
def store(tmp_path):
    opened = small(tmp_path)
    yield opened
    opened.close()


def asking(store, name="a", group="g"):
    """Accept an episode and return it."""
    append(store, draft(name, group=group, client_id=name))
    return next(e for e in pending(store, group, 10_000) if e.client_id == name)


def reply(dice: random.Random, word: str) -> str:
    return " ".join([word, *("".join(dice.choices("abcdefgh", k=8)) for _ in range(dice.randint(2, 400)))])


def test_the_file_stays_within_its_bound_and_the_least_used_go_first(store, tmp_path):
    dice = random.Random(1)
    cache = store.responses(max_bytes=MB)
    episode = asking(store)
    cache.keep("often", "used", episode)
    largest = 0
    for n in range(1500):
        cache.keep(f"key {n}", reply(dice, f"zq{n}"), episode)
        if n % 20 == 0:
            assert cache.recall("often", episode) == "used"
        largest = max(largest, (tmp_path / FILE).stat().st_size)
    held = [n for n in range(1500) if cache.recall(f"key {n}", episode) is not None]

    assert largest <= 1.1 * MB
    assert held == list(range(held[0], 1500))
    assert len(held) > 300
    assert cache.recall("often", episode) == "used"


def test_a_smaller_bound_makes_a_smaller_file(store, tmp_path):
    dice = random.Random(2)
    episode = asking(store)
    cache = store.responses(max_bytes=8 * MB)
    for n in range(3000):
        cache.keep(f"key {n}", reply(dice, "x"), episode)
    assert (tmp_path / FILE).stat().st_size > 4 * MB

    less = store.responses(max_bytes=MB)
    less.keep("new", "y", episode)
    store.close()

    assert (tmp_path / FILE).stat().st_size <= 1.1 * MB


def test_a_reply_too_large_for_the_cache_is_not_kept(store, tmp_path):
    cache, episode = store.responses(max_bytes=MB), asking(store)

    cache.keep("key", "x" * MB, episode)

    assert cache.recall("key", episode) is None


def test_the_first_reply_stays_and_any_text_comes_back(store):
    cache, episode = store.responses(max_bytes=MB), asking(store)

    cache.keep("key", "Zoë \ud800 日本\0", episode)
    cache.keep("key", "other", episode)

    assert cache.recall("key", episode) == "Zoë \ud800 日本\0"


def test_who_used_a_reply_takes_it_along_and_who_is_not_stored_leaves_no_note(store, tmp_path):
    cache = store.responses(max_bytes=MB)
    one, two, three = (asking(store, name) for name in "abc")
    strange = asking(store, "d", group="h")
    cache.keep("key", "shared", one)
    cache.keep("other", "kept", three)
    assert cache.recall("key", two) == "shared"
    assert cache.recall("key", strange) is None
    file = SqliteResponses(tmp_path, patience_s=1, standing=dict)

    file.erase("g", [two.id])

    assert cache.recall("key", one) is None
    assert cache.recall("other", three) == "kept"
    file.erase("g")
    assert cache.recall("other", three) is None
    file.close()


def test_nothing_is_left_of_what_was_evicted_or_erased(store, tmp_path):
    """Rows that moved leave copies in pages: the file is rewritten where anything was ever deleted."""
    dice = random.Random(3)
    cache = store.responses(max_bytes=MB)
    episode, other = asking(store, "a"), asking(store, "b")
    for n in range(800):
        cache.keep(f"key {n}", reply(dice, f"zq{'ab'[n % 2]}{n}q"), (episode, other)[n % 2])
    file = SqliteResponses(tmp_path, patience_s=1, standing=dict)
    file.erase("g", [episode.id])

    assert store.compact()

    held = {n for n in range(1, 800, 2) if cache.recall(f"key {n}", other) is not None}
    assert len(held) > 100
    assert store.compact()
    content = b"".join(path.read_bytes() for path in tmp_path.glob(f"{FILE}*"))
    assert {n for n in range(800) if f"zq{'ab'[n % 2]}{n}q".encode() in content} == held
    file.close()


def test_a_deleted_file_is_made_anew(store, tmp_path):
    cache, episode = store.responses(max_bytes=MB), asking(store)
    cache.keep("key", "one", episode)
    for path in tmp_path.glob(f"{FILE}*"):
        path.unlink()

    assert cache.recall("key", episode) is None
    cache.keep("key", "two", episode)

    assert cache.recall("key", episode) == "two"
